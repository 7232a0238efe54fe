//! One graph file: read, imports joined, `--set` applied, variables put in.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::keys;
use super::message::{Reports, Spot, clip, suggest};
use super::value::{self, Key, Kind, Table, Value};
use super::vars::{Env, Sets, Vars};
use crate::plan::{ClockKind, Restart};
use crate::time::Span;

const TOP: [&str; 10] = ["schema", "name", "about", "import", "vars", "graph", "models", "nodes", "scopes", "ports"];
/// Files may import files so many times over.
const MAX_IMPORTS: usize = 8;

/// `[graph]`.
#[derive(Debug, Clone)]
pub(crate) struct GraphKeys {
    pub clock: ClockKind,
    pub budget: Option<(Span, Spot)>,
    pub auto_convert: bool,
    pub drain: Duration,
    pub restart: Option<Restart>,
    /// It goes on when its sources have ended.
    pub stays: bool,
}

/// One file with everything put in, ready to be flattened.
pub(crate) struct Document {
    pub name: String,
    pub spot: Spot,
    pub graph: GraphKeys,
    pub models: Vec<(Key, Table)>,
    pub imported: Vec<String>,
    pub nodes: Vec<(Key, Table)>,
    pub scopes: Vec<(Key, Table)>,
    pub ports_in: Vec<(Key, Value)>,
    pub ports_out: Vec<(Key, Value)>,
}

/// Where files come from: memory first, then the disk.
pub(crate) struct Files<'a> {
    pub memory: &'a BTreeMap<PathBuf, String>,
}

impl Files<'_> {
    /// The text of a file as a sentence or a text.
    pub fn read(&self, path: &Path) -> Result<String, String> {
        if let Some(text) = self.memory.get(path) {
            return Ok(text.clone());
        }
        let meta = std::fs::metadata(path).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => "there is no such file; check the path".to_string(),
            _ => format!("the file cannot be read: {e}"),
        })?;
        if meta.is_dir() {
            return Err("this is a folder, not a graph file".into());
        }
        if meta.len() > value::MAX_FILE as u64 {
            return Err("the file is larger than 8 MiB, which no graph is".into());
        }
        let bytes = std::fs::read(path).map_err(|e| format!("the file cannot be read: {e}"))?;
        String::from_utf8(bytes).map_err(|e| {
            let at = e.utf8_error().valid_up_to();
            format!("the byte at offset {at} is not UTF-8; save the file as UTF-8")
        })
    }
}

/// `path` without `.` and with `..` resolved in words, so that equal files compare equal.
pub(crate) fn tidy(path: &Path) -> PathBuf {
    use std::path::Component;
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if matches!(out.components().next_back(), Some(Component::Normal(_))) => {
                out.pop();
            }
            part => out.push(part),
        }
    }
    out
}

/// Reads the text of one file into a tree.
pub(crate) fn parse_text(name: &str, text: &str, reports: &mut Reports) -> Option<(Table, Spot)> {
    if text.len() > value::MAX_FILE {
        reports.file_error(name, "the graph is larger than 8 MiB, which no graph is");
        return None;
    }
    let file = reports.add_source(name, text);
    Some((value::parse(file, text, reports)?, Spot::new(file, 0)))
}

/// Turns a tree into a [`Document`].
pub(crate) struct Reader<'a, 'r> {
    pub files: &'a Files<'a>,
    pub env: Env<'a>,
    pub reports: &'r mut Reports,
}

impl Reader<'_, '_> {
    /// Imports, sets, variables, sections. `given`: variables set by the using node.
    pub fn document(
        &mut self,
        mut root: Table,
        spot: Spot,
        path: &Path,
        sets: &Sets,
        given: &[(String, Value)],
    ) -> Option<Document> {
        let reports = &mut *self.reports;
        for (key, _) in &root.entries {
            if !TOP.contains(&key.name.as_str()) {
                let hint = suggest(&key.name, TOP.iter().copied());
                reports.error(key.spot, format!("a graph file has no key `{}`{hint}", clip(&key.name)));
            }
        }
        match root.get("schema").map(|v| (v, &v.kind)) {
            Some((_, Kind::Int(1))) => {}
            Some((v, _)) => reports.error(
                v.spot,
                format!("`schema` is {}, but this version reads schema 1; write `schema = 1`", v.describe()),
            ),
            None => reports.error(spot, "the file does not say which schema it follows; write `schema = 1` at its top"),
        }
        let imported = self.imports(&mut root, path, &mut vec![tidy(path)])?;
        let reports = &mut *self.reports;
        sets.apply(&mut root, reports);
        let mut all = sets.vars.clone();
        all.extend(given.iter().cloned());
        let vars = section(&root, "vars", reports);
        let mut vars = Vars::new(&vars, &all, self.env, reports);
        for (key, value) in &mut root.entries {
            if key.name != "vars" {
                vars.expand(value, reports);
            }
        }
        let name = match root.get("name") {
            Some(v) => keys::text("name", v, reports)?,
            None => path.file_stem().map_or_else(|| "graph".into(), |s| s.to_string_lossy().into_owned()),
        };
        if let Some(v) = root.get("about") {
            keys::text("about", v, reports);
        }
        let graph = graph_keys(&section(&root, "graph", reports), reports);
        let models = named(&mut root, "models", reports);
        let nodes = named(&mut root, "nodes", reports);
        let scopes = named(&mut root, "scopes", reports);
        let ports = section(&root, "ports", reports);
        keys::unknown(&ports, &["in", "out"], "ports", reports);
        let mut port_side = |side: &str| match ports.get(side).map(|v| (v, &v.kind)) {
            None => Vec::new(),
            Some((_, Kind::Table(t))) => t.entries.clone(),
            Some((v, _)) => {
                keys::wrong(&format!("ports.{side}"), "a table of port = \"...\"", v, reports);
                Vec::new()
            }
        };
        let (ports_in, ports_out) = (port_side("in"), port_side("out"));
        Some(Document { name, spot, graph, models, imported, nodes, scopes, ports_in, ports_out })
    }

    /// Joins `[models]` and `[vars]` of imported files into `root`; gives the imported models' names.
    fn imports(&mut self, root: &mut Table, path: &Path, stack: &mut Vec<PathBuf>) -> Option<Vec<String>> {
        let mut names = Vec::new();
        let Some((_, list)) = root.take("import") else { return Some(names) };
        let dir = path.parent().unwrap_or(Path::new("")).to_path_buf();
        let Kind::List(items) = &list.kind else {
            keys::wrong("import", "a list of files, such as [\"models.toml\"]", &list, self.reports);
            return None;
        };
        for item in items {
            let file = keys::text("import", item, self.reports)?;
            let full = tidy(&dir.join(&file));
            if stack.contains(&full) || stack.len() > MAX_IMPORTS {
                self.reports.error(
                    item.spot,
                    format!(
                        "importing `{}` never ends: it leads back to itself or more than {MAX_IMPORTS} files deep",
                        clip(&file)
                    ),
                );
                return None;
            }
            let text = match self.files.read(&full) {
                Ok(text) => text,
                Err(why) => {
                    self.reports.error(item.spot, format!("cannot import `{}`: {why}", clip(&file)));
                    return None;
                }
            };
            let (mut other, _) = parse_text(&full.to_string_lossy(), &text, self.reports)?;
            stack.push(full.clone());
            names.extend(self.imports(&mut other, &full, stack)?);
            stack.pop();
            for (key, value) in other.entries {
                match key.name.as_str() {
                    "schema" | "name" | "about" => {}
                    "models" | "vars" | "scopes" => {
                        let Kind::Table(table) = value.kind else {
                            self.reports.error(value.spot, format!("`{}` must be a table", key.name));
                            continue;
                        };
                        if key.name == "models" {
                            names.extend(table.names().map(String::from));
                        }
                        self.merge(root, &key, table);
                    }
                    _ => self.reports.error(
                        key.spot,
                        format!("an imported file declares models, variables and scopes only; to use a whole graph, write `use = \"graph:{}\"` in a node", clip(&file)),
                    ),
                }
            }
        }
        Some(names)
    }

    fn merge(&mut self, root: &mut Table, key: &Key, table: Table) {
        if root.get(&key.name).is_none() {
            root.entries.push((key.clone(), Value::new(key.spot, Kind::Table(Table::default()))));
        }
        let Some(Kind::Table(own)) = root.get_mut(&key.name).map(|v| &mut v.kind) else { return };
        for (name, value) in table.entries {
            match own.entries.iter().find(|(k, _)| k.name == name.name) {
                None => own.entries.push((name, value)),
                // A file's own variables go before those it imports.
                Some(_) if key.name == "vars" => {}
                Some((first, _)) => {
                    let place = self.reports.place(name.spot);
                    let text = format!(
                        "`{}.{}` is declared here and in {place}, which is imported; rename or remove one",
                        key.name,
                        clip(&name.name)
                    );
                    self.reports.error(first.spot, text);
                }
            }
        }
    }
}

fn section(root: &Table, name: &str, reports: &mut Reports) -> Table {
    match root.get(name).map(|v| (v, &v.kind)) {
        None => Table::default(),
        Some((_, Kind::Table(t))) => t.clone(),
        Some((v, _)) => {
            keys::wrong(name, "a table", v, reports);
            Table::default()
        }
    }
}

/// `[nodes.*]`, `[models.*]`, `[scopes.*]`: tables with checked names.
fn named(root: &mut Table, what: &str, reports: &mut Reports) -> Vec<(Key, Table)> {
    let Some((_, value)) = root.take(what) else { return Vec::new() };
    let Kind::Table(table) = value.kind else {
        keys::wrong(what, "tables such as [nodes.NAME]", &value, reports);
        return Vec::new();
    };
    let mut out = Vec::with_capacity(table.entries.len());
    for (key, value) in table.entries {
        if !keys::is_name(&key.name) || (what == "nodes" && key.name == "port") {
            reports.error(
                key.spot,
                format!(
                    "`{}` cannot name one of the {what}; use letters, digits, `-` and `_` (and not `port`)",
                    clip(&key.name)
                ),
            );
            continue;
        }
        match value.kind {
            Kind::Table(table) => out.push((key, table)),
            _ => reports
                .error(value.spot, format!("`{what}.{}` must be a table; write `[{what}.{}]`", key.name, key.name)),
        }
    }
    out
}

fn graph_keys(table: &Table, reports: &mut Reports) -> GraphKeys {
    keys::unknown(table, &["clock", "latency_budget", "end", "auto_convert", "drain", "on_failure"], "graph", reports);
    let mut out = GraphKeys {
        clock: ClockKind::Auto,
        budget: None,
        auto_convert: true,
        drain: Duration::from_secs(10),
        restart: None,
        stays: false,
    };
    if let Some(v) = table.get("clock") {
        out.clock = keys::word("clock", &keys::CLOCKS, v, reports).unwrap_or_default();
    }
    if let Some(v) = table.get("latency_budget") {
        out.budget = keys::span("latency_budget", v, reports).map(|s| (s, v.spot));
    }
    if let Some(v) = table.get("end") {
        out.stays = keys::word("end", &[("sources", false), ("never", true)], v, reports).unwrap_or(false);
    }
    if let Some(v) = table.get("auto_convert") {
        out.auto_convert = keys::flag("auto_convert", v, reports).unwrap_or(true);
    }
    if let Some(v) = table.get("drain") {
        out.drain = keys::duration("drain", v, reports).unwrap_or(out.drain);
    }
    if let Some(v) = table.get("on_failure") {
        out.restart = match &v.kind {
            Kind::Table(_) => keys::restart("on_failure", v, reports),
            _ => keys::word("on_failure", &[("stop", None), ("restart", Some(keys::RESTART))], v, reports).flatten(),
        };
    }
    out
}
