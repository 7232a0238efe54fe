//! The JSON Schema of graph files, and `docs/nodes.md`, both from the registry.

use std::fmt::Write as _;

use serde_json::{Map, Value as Json, json};

use crate::check::say_type;
use crate::node::PortDecl;
use crate::registry::Registry;

/// One JSON Schema (draft 2020-12) for graph files: editors complete and check keys with it
/// (`#:schema ./oxiline.schema.json` for Taplo).
pub fn schema(registry: &Registry) -> Json {
    let mut defs = Map::new();
    let mut nodes = Vec::new();
    for kind in registry.kinds() {
        let mut options = kind.schema().clone();
        lift(&mut options, &mut defs, kind.kind());
        nodes.push(json!({
            "if": { "properties": { "use": { "const": kind.kind() } }, "required": ["use"] },
            "then": merged(&node_keys(), &options, kind.about()),
        }));
    }
    nodes.push(json!({
        "if": { "properties": { "use": { "pattern": "^graph:" } }, "required": ["use"] },
        "then": { "properties": { "models": { "type": "object", "description": "Models of the sub-graph, replaced by these" } } },
    }));
    let mut models = Vec::new();
    for kind in registry.model_kinds() {
        let mut options = registry.model_schema(kind.kind()).cloned().unwrap_or_default();
        lift(&mut options, &mut defs, kind.kind());
        models.push(json!({
            "if": { "properties": { "use": { "const": kind.kind() } }, "required": ["use"] },
            "then": merged(&model_keys(), &options, kind.about()),
        }));
    }
    let node_kinds: Vec<&str> = registry.kinds().map(crate::registry::NodeKind::kind).collect();
    let model_kinds: Vec<&str> = registry.model_kinds().map(|k| k.kind()).collect();
    base_defs(&mut defs);
    defs.insert(
        "node".into(),
        json!({
            "type": "object",
            "required": ["use"],
            "properties": { "use": { "description": "Kind of node, or graph:FILE", "anyOf": [{ "enum": node_kinds }, { "type": "string", "pattern": "^graph:.+" }] } },
            "allOf": nodes,
        }),
    );
    defs.insert(
        "model".into(),
        json!({
            "type": "object",
            "required": ["use"],
            "properties": { "use": { "description": "Kind of model", "enum": model_kinds } },
            "allOf": models,
        }),
    );
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "oxiline graph",
        "type": "object",
        "required": ["schema"],
        "additionalProperties": false,
        "properties": {
            "schema": { "const": 1, "description": "Version of this format" },
            "name": { "type": "string", "description": "Name of the graph; the file's name if left out" },
            "about": { "type": "string", "description": "What it does, in a sentence" },
            "import": { "type": "array", "items": { "type": "string" }, "description": "Files with models, variables and scopes" },
            "vars": {
                "type": "object",
                "description": "Variables for ${name}, replaced by --set name=value",
                "additionalProperties": { "type": ["string", "number", "boolean", "array"] }
            },
            "graph": graph_section(),
            "models": { "type": "object", "additionalProperties": { "$ref": "#/$defs/model" } },
            "nodes": { "type": "object", "additionalProperties": { "$ref": "#/$defs/node" } },
            "scopes": {
                "type": "object",
                "additionalProperties": {
                    "type": "object",
                    "additionalProperties": false,
                    "properties": { "group": { "enum": ["one", "rest", "all"] } }
                }
            },
            "ports": {
                "type": "object",
                "description": "Ports of the graph as a node of another",
                "additionalProperties": false,
                "properties": {
                    "in": { "type": "object", "additionalProperties": { "enum": crate::load::port_types() } },
                    "out": { "type": "object", "additionalProperties": { "type": "string" } }
                }
            }
        },
        "$defs": defs,
    })
}

fn graph_section() -> Json {
    json!({
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "clock": { "enum": ["auto", "virtual", "paced", "monotonic"], "default": "auto" },
            "latency_budget": { "$ref": "#/$defs/duration" },
            "end": { "enum": ["sources", "never"] },
            "auto_convert": { "type": "boolean", "default": true },
            "drain": { "$ref": "#/$defs/duration" },
            "on_failure": { "anyOf": [{ "enum": ["stop", "restart"] }, { "$ref": "#/$defs/restart" }] }
        }
    })
}

fn base_defs(defs: &mut Map<String, Json>) {
    let edge = json!({
        "type": "object",
        "required": ["from"],
        "additionalProperties": false,
        "properties": {
            "from": { "type": "string" },
            "cap": { "$ref": "#/$defs/cap" },
            "full": { "enum": ["block", "drop-oldest", "drop-newest", "latest", "fail"], "default": "block" },
            "feedback": { "type": "boolean", "default": false },
            "convert": { "type": "boolean" },
            "sync": { "const": "turn" }
        }
    });
    let producers = json!({ "anyOf": [
        { "type": "string" }, { "$ref": "#/$defs/edge" },
        { "type": "array", "items": { "anyOf": [{ "type": "string" }, { "$ref": "#/$defs/edge" }] } }
    ] });
    for (name, value) in [
        (
            "duration",
            json!({ "type": "string", "pattern": r"^\s*([0-9]+(\.[0-9]+)?\s*(ns|us|µs|ms|s|m|min|h)|\$\{.*\})\s*$" }),
        ),
        (
            "size",
            json!({ "anyOf": [{ "type": "integer", "minimum": 1 }, { "type": "string", "pattern": r"^\s*[0-9]+\s*([kKMG]i?)?B\s*$" }] }),
        ),
        (
            "cap",
            json!({ "anyOf": [
            { "type": "integer", "minimum": 1 }, { "type": "string" },
            { "type": "object", "additionalProperties": false, "properties": {
                "items": { "type": "integer", "minimum": 1 },
                "time": { "$ref": "#/$defs/duration" },
                "bytes": { "$ref": "#/$defs/size" }
            } }
        ] }),
        ),
        ("edge", edge),
        ("producers", producers),
        (
            "restart",
            json!({ "type": "object", "additionalProperties": false, "properties": {
            "on": { "const": "failure" },
            "max": { "type": "integer", "minimum": 1, "default": 3 },
            "within": { "$ref": "#/$defs/duration" },
            "backoff": { "$ref": "#/$defs/duration" },
            "backoff_max": { "$ref": "#/$defs/duration" }
        } }),
        ),
    ] {
        defs.insert(name.into(), value);
    }
}

fn node_keys() -> Json {
    json!({
        "use": {},
        "in": { "description": "Inputs: producers of the sole input, or a table of port = producers", "anyOf": [
            { "$ref": "#/$defs/producers" },
            { "type": "object", "additionalProperties": { "$ref": "#/$defs/producers" } }
        ] },
        "model": { "type": "string", "description": "Name of a [models] entry" },
        "scope": { "type": "string", "description": "Cancel scope it belongs to" },
        "cancels": { "type": "array", "items": { "type": "string" }, "description": "Scopes it may cancel" },
        "restart": { "anyOf": [{ "type": "boolean" }, { "$ref": "#/$defs/restart" }] },
        "bypass": { "enum": ["pass", "mute"] },
        "on_item_error": { "enum": ["skip", "fail"] },
        "stall": { "anyOf": [{ "const": false }, { "$ref": "#/$defs/duration" }] },
        "threads": { "type": "integer", "minimum": 1 },
        "cpu": { "description": "Core or cores its thread may use", "anyOf": [
            { "type": "integer", "minimum": 0 },
            { "type": "array", "minItems": 1, "items": { "type": "integer", "minimum": 0 } }
        ] },
        "priority": { "enum": ["low", "normal", "high"], "default": "normal" },
        "class": { "enum": ["interactive", "live", "batch"] }
    })
}

fn model_keys() -> Json {
    json!({
        "use": {},
        "class": { "enum": ["interactive", "live", "batch"], "default": "live" },
        "max_sessions": { "type": "integer", "minimum": 1, "default": 64 },
        "queue": { "type": "integer", "minimum": 1, "default": 64 },
        "keep": { "$ref": "#/$defs/duration" },
        "batch": { "anyOf": [{ "type": "integer", "minimum": 1 }, { "type": "object", "additionalProperties": false, "properties": {
            "max": { "type": "integer", "minimum": 1 }, "wait": { "$ref": "#/$defs/duration" }
        } }] },
        "share": { "type": "object", "additionalProperties": false, "properties": {
            "interactive": { "type": "integer", "minimum": 1 },
            "live": { "type": "integer", "minimum": 1 },
            "batch": { "type": "integer", "minimum": 1 }
        } }
    })
}

/// Options of a kind together with the runtime's keys.
fn merged(keys: &Json, options: &Json, about: &str) -> Json {
    let mut properties = options["properties"].as_object().cloned().unwrap_or_default();
    // A variable may stand for a value of any type.
    for value in properties.values_mut() {
        let text = matches!(value["type"].as_str(), Some("string")) && value.get("enum").is_none();
        if !text {
            let about = value.get("description").cloned();
            let default = value.get("default").cloned();
            let mut wide = json!({ "anyOf": [value.clone(), { "type": "string", "pattern": r"\$\{.*\}" }] });
            if let Some(about) = about {
                wide["description"] = about;
            }
            if let Some(default) = default {
                wide["default"] = default;
            }
            *value = wide;
        }
    }
    for (name, key) in keys.as_object().into_iter().flatten() {
        properties.entry(name.clone()).or_insert_with(|| key.clone());
    }
    let mut required: Vec<Json> = options["required"].as_array().cloned().unwrap_or_default();
    required.push(json!("use"));
    json!({ "description": about, "additionalProperties": false, "properties": properties, "required": required })
}

/// Moves a schema's `$defs` to the top, under names of their own.
fn lift(schema: &mut Json, defs: &mut Map<String, Json>, kind: &str) {
    let own = schema.as_object_mut().and_then(|s| s.remove("$defs"));
    rename(schema, kind);
    if let Some(Json::Object(own)) = own {
        for (name, mut def) in own {
            rename(&mut def, kind);
            defs.insert(format!("{kind}:{name}"), def);
        }
    }
}

fn rename(value: &mut Json, kind: &str) {
    match value {
        Json::Object(map) => {
            if let Some(Json::String(target)) = map.get_mut("$ref")
                && let Some(name) = target.strip_prefix("#/$defs/")
            {
                *target = format!("#/$defs/{kind}:{name}");
            }
            map.values_mut().for_each(|v| rename(v, kind));
        }
        Json::Array(items) => items.iter_mut().for_each(|v| rename(v, kind)),
        _ => {}
    }
}

/// The text of `docs/nodes.md`: every kind with its ports and options.
pub fn nodes_markdown(registry: &Registry) -> String {
    let mut out = String::from(
        "# Kinds of nodes and models\n\nMade from the program itself by `oxiline schema --markdown`; do not edit by hand.\n\n## Nodes\n",
    );
    for kind in registry.kinds() {
        let _ = write!(out, "\n### `{}`\n\n{}\n", kind.kind(), kind.about());
        if let Some(declared) = kind.usual() {
            ports(&mut out, "In", &declared.inputs);
            ports(&mut out, "Out", &declared.outputs);
            if let Some(protocol) = declared.protocol {
                let _ = write!(out, "\nNeeds a model that speaks `{protocol}`.\n");
            }
            if declared.cancellable {
                out += "\nCan belong to a cancel scope.\n";
            }
        }
        options(&mut out, kind.schema());
    }
    out += "\n## Models\n";
    for kind in registry.model_kinds() {
        let _ = write!(out, "\n### `{}`\n\n{}\n\nSpeaks `{}`.\n", kind.kind(), kind.about(), kind.protocol());
        if let Some(schema) = registry.model_schema(kind.kind()) {
            options(&mut out, schema);
        }
    }
    out
}

fn ports(out: &mut String, side: &str, ports: &[PortDecl]) {
    if ports.is_empty() {
        return;
    }
    let list: Vec<String> = ports
        .iter()
        .map(|p| format!("`{}` ({}{})", p.name, say_type(&p.ty), if p.optional { ", optional" } else { "" }))
        .collect();
    let _ = write!(out, "\n{side}: {}.\n", list.join(", "));
}

fn options(out: &mut String, schema: &Json) {
    let Some(properties) = schema["properties"].as_object().filter(|p| !p.is_empty()) else {
        return;
    };
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Json::as_str).collect();
    out.push_str("\n| option | type | default | meaning |\n|---|---|---|---|\n");
    for (name, property) in properties {
        let default = match property.get("default") {
            _ if required.contains(&name.as_str()) => "required".into(),
            None | Some(Json::Null) => "none".into(),
            Some(value) => format!("`{value}`"),
        };
        let about = property["description"].as_str().unwrap_or_default().replace('\n', " ").replace('|', "\\|");
        let _ = writeln!(out, "| `{name}` | {} | {default} | {about} |", type_words(schema, property));
    }
}

fn type_words(root: &Json, property: &Json) -> String {
    let mut at = property;
    if let Some(target) = at["$ref"].as_str().and_then(|r| r.strip_prefix('#')) {
        at = root.pointer(target).unwrap_or(at);
    }
    if let Some(words) = at["enum"].as_array() {
        return words.iter().map(|w| format!("`{w}`")).collect::<Vec<_>>().join(", ");
    }
    if let Some(word) = at.get("const") {
        return format!("`{word}`");
    }
    for key in ["oneOf", "anyOf", "allOf"] {
        if let Some(branches) = at[key].as_array() {
            let words: Vec<String> =
                branches.iter().filter(|b| b["type"] != "null").map(|b| type_words(root, b)).collect();
            return words.join(", ");
        }
    }
    if at["pattern"].as_str().is_some_and(|p| p.contains("ns|us")) {
        return "duration".into();
    }
    match &at["type"] {
        Json::String(one) if one == "array" => format!("list of {}", type_words(root, &at["items"])),
        Json::String(one) => one.clone(),
        Json::Array(all) => {
            all.iter().filter_map(Json::as_str).filter(|t| *t != "null").collect::<Vec<_>>().join(" or ")
        }
        _ => "any".into(),
    }
}
