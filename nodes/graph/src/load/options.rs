//! Checks options against a kind's JSON schema, so that a mistake is told at its own line.
//!
//! Only the part of JSON Schema that schemars makes from option structs is understood;
//! whatever else a schema says is left to serde.

use serde_json::Value as Json;

use super::message::{Reports, clip, list, suggest};
use super::value::{Kind, Table, Value};

/// Checks `options` of `whose` ("`audio.vad`") against `schema`. Values from `--set` that read
/// as numbers become text where text is wanted.
pub(crate) fn check(
    whose: &str,
    schema: &Json,
    options: &mut Table,
    spot: super::message::Spot,
    reports: &mut Reports,
) {
    table(whose, "", schema, schema, options, spot, reports);
}

/// The property names of an options schema.
pub(crate) fn properties(schema: &Json) -> Vec<&str> {
    schema["properties"].as_object().map(|p| p.keys().map(String::as_str).collect()).unwrap_or_default()
}

fn resolve<'a>(root: &'a Json, mut schema: &'a Json) -> &'a Json {
    for _ in 0..8 {
        let Some(target) = schema["$ref"].as_str().and_then(|r| r.strip_prefix('#')) else { break };
        let Some(next) = root.pointer(target) else { break };
        schema = next;
    }
    schema
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.into() } else { format!("{path}.{name}") }
}

fn table(
    whose: &str,
    path: &str,
    root: &Json,
    schema: &Json,
    options: &mut Table,
    spot: super::message::Spot,
    reports: &mut Reports,
) {
    let known = schema["properties"].as_object();
    let extra = &schema["additionalProperties"];
    for (key, value) in &mut options.entries {
        let name = join(path, &key.name);
        match known.and_then(|k| k.get(&key.name)) {
            Some(property) => one(whose, &name, root, property, value, reports),
            None if extra.is_object() => one(whose, &name, root, extra, value, reports),
            // A struct that lists its keys takes no others, whether or not it says so to serde.
            None if extra == &Json::Bool(true) || (known.is_none() && extra.is_null()) => {}
            None => {
                let names: Vec<&str> = known.map(|k| k.keys().map(String::as_str).collect()).unwrap_or_default();
                let hint = if names.is_empty() {
                    "; it takes no options".into()
                } else {
                    suggest(&key.name, names.iter().copied())
                };
                let within = if path.is_empty() { String::new() } else { format!(" in `{path}`") };
                reports.error(key.spot, format!("{whose} has no option `{}`{within}{hint}", clip(&key.name)));
            }
        }
    }
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Json::as_str) {
        if options.get(name).is_none() {
            let about = known.and_then(|k| k.get(name)).and_then(|p| p["description"].as_str()).unwrap_or_default();
            let about = about.lines().next().unwrap_or_default().trim_end_matches('.');
            let about = if about.is_empty() { String::new() } else { format!(" ({about})") };
            reports.error(spot, format!("{whose} needs the option `{}`{about}", join(path, name)));
        }
    }
}

/// The words a schema allows, when it is a choice of words.
fn words<'a>(root: &'a Json, schema: &'a Json) -> Option<Vec<&'a str>> {
    if let Some(word) = schema["const"].as_str() {
        return Some(vec![word]);
    }
    if let Some(all) = schema["enum"].as_array() {
        return all.iter().map(Json::as_str).collect();
    }
    let branches = schema["oneOf"].as_array().or_else(|| schema["anyOf"].as_array())?;
    let mut out = Vec::new();
    for branch in branches {
        out.extend(words(root, resolve(root, branch))?);
    }
    Some(out)
}

fn types(schema: &Json) -> Vec<&str> {
    match &schema["type"] {
        Json::String(one) => vec![one],
        Json::Array(all) => all.iter().filter_map(Json::as_str).filter(|t| *t != "null").collect(),
        _ => Vec::new(),
    }
}

fn type_name(ty: &str) -> &str {
    match ty {
        "string" => "text in quotes",
        "integer" => "a whole number",
        "number" => "a number",
        "boolean" => "true or false",
        "array" => "a list",
        "object" => "a table",
        other => other,
    }
}

fn fits(value: &Value, ty: &str) -> bool {
    matches!(
        (&value.kind, ty),
        (Kind::Str(_), "string")
            | (Kind::Int(_), "integer" | "number")
            | (Kind::Float(_), "number")
            | (Kind::Bool(_), "boolean")
            | (Kind::List(_), "array")
            | (Kind::Table(_), "object")
    )
}

fn one(whose: &str, name: &str, root: &Json, schema: &Json, value: &mut Value, reports: &mut Reports) {
    let schema = resolve(root, schema);
    if let Some(words) = words(root, schema) {
        if value.as_str().is_none()
            && let Some(raw) = value.raw.take()
        {
            value.kind = Kind::Str(raw.to_string());
        }
        match value.as_str() {
            Some(text) if words.contains(&text) => {}
            Some(text) => {
                let hint = suggest(text, words.iter().copied());
                reports.error(value.spot, format!("`{name}` of {whose} cannot be \"{}\"{hint}", clip(text)));
            }
            None => reports.error(
                value.spot,
                format!("`{name}` of {whose} wants one of {}, but got {}", list(&words), value.describe()),
            ),
        }
        return;
    }
    let branches = ["anyOf", "oneOf", "allOf"].iter().find_map(|b| schema[*b].as_array());
    if let Some(branches) = branches {
        let real: Vec<&Json> =
            branches.iter().map(|b| resolve(root, b)).filter(|b| b["type"].as_str() != Some("null")).collect();
        if let [only] = real.as_slice() {
            return one(whose, name, root, only, value, reports);
        }
        // Several forms: take the first whose outer type fits and let it speak.
        let fitting = real.iter().find(|b| {
            words(root, b).is_some_and(|w| value.as_str().is_some_and(|t| w.contains(&t)))
                || types(b).iter().any(|t| fits(value, t))
        });
        match fitting {
            Some(branch) if words(root, branch).is_none() => one(whose, name, root, branch, value, reports),
            Some(_) => {}
            None => {
                let wants: Vec<&str> = real.iter().flat_map(|b| types(b)).map(type_name).collect();
                if !wants.is_empty() {
                    let wants = wants.join(" or ");
                    reports
                        .error(value.spot, format!("`{name}` of {whose} wants {wants}, but got {}", value.describe()));
                }
            }
        }
        return;
    }
    let types = types(schema);
    if !types.is_empty() && !types.iter().any(|t| fits(value, t)) {
        if let (true, Some(raw)) = (types.contains(&"string"), value.raw.clone()) {
            value.kind = Kind::Str(raw.to_string());
        } else {
            let wants = types.iter().map(|t| type_name(t)).collect::<Vec<_>>().join(" or ");
            reports.error(value.spot, format!("`{name}` of {whose} wants {wants}, but got {}", value.describe()));
            return;
        }
    }
    range(whose, name, schema, value, reports);
    if schema["pattern"].as_str().is_some_and(|p| p.contains("ns|us")) {
        // The schema of `Span`: the parser says it better than a pattern could.
        if let Some(text) = value.as_str()
            && let Err(why) = crate::time::Span::parse(text)
        {
            reports.error(value.spot, format!("`{name}` of {whose}: {}", super::keys::short(text, &why)));
        }
        return;
    }
    let spot = value.spot;
    match &mut value.kind {
        Kind::List(items) => {
            for (i, item) in items.iter_mut().enumerate() {
                one(whose, &format!("{name}[{i}]"), root, &schema["items"], item, reports);
            }
        }
        Kind::Table(inner) => table(whose, name, root, schema, inner, spot, reports),
        _ => {}
    }
}

fn range(whose: &str, name: &str, schema: &Json, value: &Value, reports: &mut Reports) {
    let number = match value.kind {
        Kind::Int(n) => n as f64,
        Kind::Float(x) => x,
        _ => return,
    };
    let (min, max) = (schema["minimum"].as_f64(), schema["maximum"].as_f64());
    let (min, max) = match schema["format"].as_str() {
        Some("uint8") => (min, max.or(Some(255.0))),
        Some("uint16") => (min, max.or(Some(65_535.0))),
        Some("uint32") => (min, max.or(Some(f64::from(u32::MAX)))),
        _ => (min, max),
    };
    let wants = match (min, max) {
        (Some(min), Some(max)) if number < min || number > max => format!("from {min} to {max}"),
        (Some(min), None) if number < min => format!("of at least {min}"),
        (None, Some(max)) if number > max => format!("of at most {max}"),
        _ => return,
    };
    reports.error(value.spot, format!("`{name}` of {whose} wants a number {wants}, but got {}", value.describe()));
}
