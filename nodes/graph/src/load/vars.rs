//! `${var}`, `${env:NAME}` and `--set`.

use std::collections::HashMap;

use super::message::{Reports, Spot, clip, suggest};
use super::value::{Key, Kind, Table, Value, parse_set};

/// The longest text an expansion may make; beyond it a few `${a}${a}` lines are a bomb.
const MAX_TEXT: usize = 1 << 20;
/// All expanded texts of a graph together.
const MAX_TOTAL: usize = 64 << 20;
/// Variables may name variables so many times over.
const MAX_DEPTH: usize = 32;

/// Looks environment variables up.
pub(crate) type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The variables of one file, expanded on first use.
pub(crate) struct Vars<'a> {
    defined: HashMap<String, Value>,
    order: Vec<String>,
    done: HashMap<String, Option<Value>>,
    open: Vec<String>,
    env: Env<'a>,
    total: usize,
}

impl<'a> Vars<'a> {
    /// Variables from `[vars]`, some replaced by `given` (from the caller or `--set`).
    pub fn new(table: &Table, given: &[(String, Value)], env: Env<'a>, reports: &mut Reports) -> Self {
        let mut defined: HashMap<String, Value> = HashMap::new();
        let mut order = Vec::new();
        for (key, value) in &table.entries {
            if matches!(value.kind, Kind::Table(_)) {
                reports.error(
                    value.spot,
                    format!(
                        "the variable `{}` is a table; variables are texts, numbers, true, false or lists of them",
                        clip(&key.name)
                    ),
                );
                continue;
            }
            order.push(key.name.clone());
            defined.insert(key.name.clone(), value.clone());
        }
        // Given values are what they are: a file name with `${` in it is a file name.
        let mut done = HashMap::new();
        for (name, value) in given {
            if let Some(value) = defined.get(name).and_then(|old| fit(name, old, value, reports)) {
                done.insert(name.clone(), Some(value));
            }
        }
        Self { defined, order, done, open: Vec::new(), env, total: 0 }
    }

    /// Expands every text in `value`, in place.
    /// Values from `--set` stay as they are.
    pub fn expand(&mut self, value: &mut Value, reports: &mut Reports) {
        if value.raw.is_some() {
            return;
        }
        match &mut value.kind {
            Kind::Str(text) => {
                if !text.contains("${") {
                    return;
                }
                let text = std::mem::take(text);
                if let Some(new) = self.expand_text(&text, value.spot, reports) {
                    // The place stays the place of use: that is where a person can change something.
                    value.kind = new.kind;
                    value.raw = new.raw;
                }
            }
            Kind::List(items) => items.iter_mut().for_each(|v| self.expand(v, reports)),
            Kind::Table(table) => table.entries.iter_mut().for_each(|(_, v)| self.expand(v, reports)),
            _ => {}
        }
    }

    fn expand_text(&mut self, text: &str, spot: Spot, reports: &mut Reports) -> Option<Value> {
        if let Some(name) = text.strip_prefix("${").and_then(|t| t.strip_suffix('}'))
            && !name.contains("${")
            && !name.contains('}')
        {
            return self.lookup(name.trim(), spot, reports);
        }
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find("${") {
            if let Some(before) = rest[..at].strip_suffix('$') {
                // `$${` is a literal `${`.
                out.push_str(before);
                out.push_str("${");
                rest = &rest[at + 2..];
                continue;
            }
            out.push_str(&rest[..at]);
            let Some(end) = rest[at..].find('}') else {
                reports.error(
                    spot,
                    format!("`{}` has no closing brace; write `$${{` for a literal `${{`", clip(&rest[at..])),
                );
                return None;
            };
            let value = self.lookup(rest[at + 2..at + end].trim(), spot, reports)?;
            match &value.kind {
                Kind::Str(s) => out.push_str(s),
                Kind::Int(n) => out.push_str(&n.to_string()),
                Kind::Float(x) => out.push_str(&x.to_string()),
                Kind::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
                _ => {
                    reports.error(
                        spot,
                        format!(
                            "`{}` is {} and cannot stand inside a text",
                            clip(&rest[at..=at + end]),
                            value.describe()
                        ),
                    );
                    return None;
                }
            }
            if out.len() > MAX_TEXT {
                reports.error(
                    spot,
                    "this text grows beyond 1 MiB when its variables are put in; shorten the variables".to_string(),
                );
                return None;
            }
            rest = &rest[at + end + 1..];
        }
        out.push_str(rest);
        self.total += out.len();
        if self.total > MAX_TOTAL {
            reports.error(
                spot,
                "the graph grows beyond 64 MiB when its variables are put in; shorten the variables".to_string(),
            );
            return None;
        }
        Some(Value::text(spot, out))
    }

    fn lookup(&mut self, name: &str, spot: Spot, reports: &mut Reports) -> Option<Value> {
        if let Some(env) = name.strip_prefix("env:") {
            return match (self.env)(env) {
                Some(text) => Some(Value::text(spot, text)),
                None => {
                    reports.error(
                        spot,
                        format!(
                            "the environment has no variable `{}`; set it, or use a `[vars]` entry instead",
                            clip(env)
                        ),
                    );
                    None
                }
            };
        }
        if let Some(done) = self.done.get(name) {
            if let Some(value) = done {
                self.total += value.as_str().map_or(0, str::len);
            }
            return done.clone();
        }
        let Some(value) = self.defined.get(name).cloned() else {
            let names = self.order.iter().map(String::as_str);
            reports.error(spot, format!("there is no variable `{}`{}", clip(name), suggest(name, names)));
            return None;
        };
        if self.open.iter().any(|open| open == name) || self.open.len() >= MAX_DEPTH {
            let path: Vec<&str> = self.open.iter().map(String::as_str).chain([name]).collect();
            let path = path.iter().rev().take(8).rev().map(|n| clip(n)).collect::<Vec<_>>().join(" → ");
            reports.error(value.spot, format!("the variables go in a circle: {path}; give one of them a plain value"));
            return None;
        }
        self.open.push(name.to_string());
        let mut value = value;
        let before = reports.failed();
        self.expand(&mut value, reports);
        self.open.pop();
        let value =
            (reports.failed() == before || !matches!(&value.kind, Kind::Str(s) if s.is_empty())).then_some(value);
        self.done.insert(name.to_string(), value.clone());
        value
    }
}

/// The given value in the type the variable has.
fn fit(name: &str, old: &Value, given: &Value, reports: &mut Reports) -> Option<Value> {
    let kind = match (&old.kind, &given.kind) {
        (Kind::Str(_), Kind::Str(s)) => Kind::Str(s.clone()),
        (Kind::Str(_), _) if given.raw.is_some() => Kind::Str(given.raw.as_deref().unwrap_or_default().to_string()),
        (Kind::Float(_), Kind::Int(n)) => Kind::Float(*n as f64),
        (Kind::Int(_), Kind::Int(_))
        | (Kind::Float(_), Kind::Float(_))
        | (Kind::Bool(_), Kind::Bool(_))
        | (Kind::List(_), Kind::List(_)) => given.kind.clone(),
        _ => {
            let want = match &old.kind {
                Kind::Str(_) => "a text",
                Kind::Int(_) => "a whole number",
                Kind::Float(_) => "a number",
                Kind::Bool(_) => "true or false",
                Kind::List(_) => "a list",
                Kind::Table(_) => "a table",
            };
            reports.error(
                given.spot,
                format!("the variable `{name}` is {want} in the graph file, but was given {}", given.describe()),
            );
            return None;
        }
    };
    Some(Value::new(given.spot, kind))
}

/// What the `--set` of one file come to: variables, keys of its tree, keys inside its sub-graphs.
#[derive(Debug, Default, Clone)]
pub(crate) struct Sets {
    pub vars: Vec<(String, Value)>,
    keys: Vec<(String, Value)>,
    inner: Vec<(String, String, Value)>,
}

impl Sets {
    /// Sorts `key=value` pairs.
    pub fn new(sets: &[(String, String)]) -> Self {
        let mut out = Self::default();
        for (key, text) in sets {
            out.add(key, parse_set(text));
        }
        out
    }

    fn add(&mut self, key: &str, value: Value) {
        if !key.contains('.') {
            self.vars.push((key.into(), value));
            return;
        }
        for section in ["nodes.", "models.", "scopes."] {
            if let Some((instance, rest)) = key.strip_prefix(section).and_then(|k| k.split_once('/'))
                && !instance.contains('.')
            {
                self.inner.push((instance.into(), format!("{section}{rest}"), value));
                return;
            }
        }
        self.keys.push((key.into(), value));
    }

    /// Those that reach inside the sub-graph node `instance`.
    pub fn inside(&mut self, instance: &str) -> Self {
        let mut out = Self::default();
        self.inner.retain(|(name, key, value)| {
            if name == instance {
                out.add(key, value.clone());
            }
            name != instance
        });
        out
    }

    /// `--set` of sub-graph nodes that do not exist.
    pub fn check_rest(&self, reports: &mut Reports) {
        for (instance, key, _) in &self.inner {
            reports.error(
                Spot::NONE,
                format!(
                    "`--set` names `{}` inside `{}`, but no sub-graph node has that name",
                    clip(key),
                    clip(instance)
                ),
            );
        }
    }

    /// Puts the keys into the tree and checks that the variables exist.
    pub fn apply(&self, root: &mut Table, reports: &mut Reports) {
        for (name, _) in &self.vars {
            let vars = root.get("vars").and_then(Value::as_table);
            if vars.is_none_or(|v| v.get(name).is_none()) {
                let names: Vec<&str> = vars.map(|v| v.names().collect()).unwrap_or_default();
                reports.error(
                    Spot::NONE,
                    format!(
                        "`--set {}=...`: the graph has no such variable{}",
                        clip(name),
                        suggest(name, names.iter().copied())
                    ),
                );
            }
        }
        for (path, value) in &self.keys {
            set_path(root, path, value, reports);
        }
    }
}

fn set_path(root: &mut Table, path: &str, value: &Value, reports: &mut Reports) {
    let parts: Vec<&str> = path.split('.').collect();
    if parts.len() > 16 || parts.iter().any(|p| p.is_empty()) {
        reports.error(
            Spot::NONE,
            format!("`--set {}=...` is not a key; write it like `nodes.asr.step=400ms`", clip(path)),
        );
        return;
    }
    let mut table = root;
    for (depth, part) in parts[..parts.len() - 1].iter().enumerate() {
        if table.get(part).is_none() {
            // Names of nodes, models and scopes must exist; tables of options may be new.
            let named = depth == 1 && matches!(parts[0], "nodes" | "models" | "scopes");
            if named || depth == 0 && !matches!(*part, "graph" | "vars" | "nodes" | "models" | "scopes") {
                let names: Vec<&str> = table.names().collect();
                let hint = suggest(part, names.iter().copied());
                reports.error(Spot::NONE, format!("`--set {}=...`: there is no `{}`{hint}", clip(path), clip(part)));
                return;
            }
            table.entries.push((
                Key { name: (*part).into(), spot: Spot::NONE },
                Value::new(Spot::NONE, Kind::Table(Table::default())),
            ));
        }
        let Some(Kind::Table(next)) = table.get_mut(part).map(|v| &mut v.kind) else {
            reports.error(Spot::NONE, format!("`--set {}=...`: `{}` is not a table", clip(path), clip(part)));
            return;
        };
        table = next;
    }
    table.set(parts[parts.len() - 1], value.clone());
}

#[cfg(test)]
mod tests {
    use super::super::value::parse;
    use super::*;

    fn expand(vars: &str, text: &str) -> Result<Value, String> {
        let mut reports = Reports::default();
        let file = reports.add_source("g.toml", vars);
        let table = parse(file, vars, &mut reports).unwrap_or_default();
        let env = |name: &str| (name == "HOME_OF_TEST").then(|| "here".to_string());
        let mut vars = Vars::new(&table, &[], &env, &mut reports);
        let mut value = Value::text(Spot::NONE, text);
        vars.expand(&mut value, &mut reports);
        match reports.into_messages().into_iter().next() {
            Some(message) => Err(message.text),
            None => Ok(value),
        }
    }

    #[test]
    fn a_lone_variable_keeps_its_type() {
        assert!(matches!(expand("n = 3", "${n}").unwrap().kind, Kind::Int(3)));
        assert_eq!(expand("n = 3", "x${n}y").unwrap().as_str(), Some("x3y"));
        assert_eq!(expand("a = \"${b}!\"\nb = \"q\"", "${a}").unwrap().as_str(), Some("q!"));
        assert_eq!(expand("", "${env:HOME_OF_TEST}/x $${y}").unwrap().as_str(), Some("here/x ${y}"));
    }

    #[test]
    fn circles_and_bombs_are_sentences() {
        assert!(expand("a = \"${b}\"\nb = \"x${a}\"", "${a}").unwrap_err().contains("a → b → a"));
        let mut bomb = format!("v0 = \"{}\"\n", "x".repeat(64));
        for i in 1..30 {
            bomb += &format!("v{i} = \"{}\"\n", format!("${{v{}}}", i - 1).repeat(10));
        }
        assert!(expand(&bomb, "${v29}").unwrap_err().contains("beyond 1 MiB"));
        assert!(expand("", "${env:NOT_THERE}").unwrap_err().contains("NOT_THERE"));
        assert!(expand("model = 1", "${modle}").unwrap_err().contains("did you mean `model`"));
        assert!(expand("", "a ${b").unwrap_err().contains("closing brace"));
    }
}
