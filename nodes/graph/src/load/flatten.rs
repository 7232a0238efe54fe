//! Documents to one flat draft: node and model keys read, sub-graphs put in their place.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::document::{Document, Reader, parse_text, tidy};
use super::draft::{Draft, DraftEdge, DraftInput, DraftNode, DraftScope, Endpoint, From};
use super::keys;
use super::message::{Spot, clip, list, suggest};
use super::nodekeys;
use super::value::{Key, Kind, Table, Value};
use super::vars::Sets;
use crate::payload::PortType;
use crate::plan::Group;

/// Sub-graphs in sub-graphs.
const MAX_DEPTH: usize = 8;
/// Nodes of a whole graph; more is a mistake or an attack.
const MAX_NODES: usize = 100_000;
/// Sub-graph nodes of a whole graph.
const MAX_INSTANCES: usize = 2_000;

/// What a sub-graph instance shows to the outside.
struct Instance {
    outs: Vec<(String, Endpoint)>,
}

/// The state of flattening.
pub(crate) struct Flattener<'a, 'r> {
    pub reader: Reader<'a, 'r>,
    draft: Draft,
    instances: HashMap<String, Instance>,
    scopes: HashMap<String, usize>,
    trees: HashMap<PathBuf, (Table, Spot)>,
    stack: Vec<PathBuf>,
    made: usize,
}

/// What surrounds the graph being flattened.
struct Level<'l> {
    prefix: &'l str,
    path: &'l Path,
    /// What feeds the graph's own inputs.
    ports: HashMap<String, Vec<DraftEdge>>,
    /// Models by their local name.
    models: HashMap<String, usize>,
    /// The scope of the using node.
    scope: Option<(usize, Spot)>,
}

impl<'a, 'r> Flattener<'a, 'r> {
    pub fn run(reader: Reader<'a, 'r>, document: Document, path: &Path, mut sets: Sets) -> Draft {
        let draft = Draft {
            name: document.name.clone(),
            spot: document.spot,
            graph: document.graph.clone(),
            nodes: Vec::with_capacity(document.nodes.len()),
            models: Vec::new(),
            scopes: Vec::new(),
            ports_in: Vec::new(),
            ports_out: Vec::new(),
        };
        let mut this = Self {
            reader,
            draft,
            instances: HashMap::new(),
            scopes: HashMap::new(),
            trees: HashMap::new(),
            stack: vec![tidy(path)],
            made: 0,
        };
        let mut ports = HashMap::new();
        for (key, value) in &document.ports_in {
            let Some(ty) = this.port_in_type(key, value) else { continue };
            this.draft.ports_in.push((key.name.clone(), ty, key.spot));
            let from = From::End(Endpoint { node: "port".into(), port: Some(key.name.clone()) });
            ports.insert(key.name.clone(), vec![plain(from, key.spot)]);
        }
        let outs = this.level(document, "", path, ports, HashMap::new(), None, &mut sets);
        this.draft.ports_out = outs.into_iter().map(|(_, end, spot)| (end, spot)).collect();
        sets.check_rest(this.reader.reports);
        this.resolve_instances();
        this.check_scopes();
        this.draft
    }

    fn error(&mut self, spot: Spot, text: impl Into<String>) {
        self.reader.reports.error(spot, text);
    }

    fn port_in_type(&mut self, key: &Key, value: &Value) -> Option<PortType> {
        let text = keys::text(&format!("ports.in.{}", key.name), value, self.reader.reports)?;
        let ty = keys::port_type(&text);
        if ty.is_none() {
            let hint = suggest(&text, keys::PORT_TYPES.iter().copied());
            self.error(value.spot, format!("`{}` is not a port type{hint}", clip(&text)));
        }
        ty
    }

    /// One graph, at the top or as a node; gives its output ports.
    #[allow(clippy::too_many_arguments)] // The recursion's whole state, named at the two call sites.
    fn level(
        &mut self,
        document: Document,
        prefix: &str,
        path: &Path,
        ports: HashMap<String, Vec<DraftEdge>>,
        replaced: HashMap<String, usize>,
        scope: Option<(usize, Spot)>,
        sets: &mut Sets,
    ) -> Vec<(String, Endpoint, Spot)> {
        let mut level = Level { prefix, path, ports, models: replaced, scope };
        for (key, table) in document.models {
            if level.models.contains_key(&key.name) {
                continue;
            }
            let quiet = document.imported.contains(&key.name);
            if let Some(mut model) = nodekeys::model(&key, table, prefix, self.reader.reports) {
                model.quiet = quiet;
                level.models.insert(key.name.clone(), self.draft.models.len());
                self.draft.models.push(model);
            }
        }
        for (key, table) in document.scopes {
            let at = self.scope(&format!("{prefix}{}", key.name), key.spot);
            self.draft.scopes[at].declared = true;
            self.draft.scopes[at].group = nodekeys::scope(&key, &table, self.reader.reports);
        }
        for (key, table) in document.nodes {
            if self.reader.reports.flooded() {
                break;
            }
            if self.draft.nodes.len() >= MAX_NODES || self.made > MAX_INSTANCES {
                self.error(
                    key.spot,
                    format!("the graph grows beyond {MAX_NODES} nodes or {MAX_INSTANCES} sub-graphs; use fewer"),
                );
                return Vec::new();
            }
            self.node(key, table, &level, sets);
        }
        let mut outs = Vec::new();
        for (key, value) in document.ports_out {
            let Some(text) = keys::text(&format!("ports.out.{}", key.name), &value, self.reader.reports) else {
                continue;
            };
            if let Some(name) = text.strip_prefix("port.") {
                self.error(
                    value.spot,
                    format!(
                        "the output port `{}` repeats the input port `{}`; connect its consumer directly",
                        key.name,
                        clip(name)
                    ),
                );
                continue;
            }
            if let Some(end) = self.endpoint("ports.out", &text, prefix, value.spot) {
                outs.push((key.name, end, value.spot));
            }
        }
        outs
    }

    fn scope(&mut self, name: &str, spot: Spot) -> usize {
        if let Some(&at) = self.scopes.get(name) {
            return at;
        }
        let at = self.draft.scopes.len();
        self.draft.scopes.push(DraftScope { name: name.into(), spot, declared: false, members: 0, group: Group::One });
        self.scopes.insert(name.into(), at);
        at
    }

    fn endpoint(&mut self, key: &str, text: &str, prefix: &str, spot: Spot) -> Option<Endpoint> {
        let (node, port) = match text.split_once('.') {
            Some((node, port)) => (node, Some(port)),
            None => (text, None),
        };
        let good = keys::is_name(node) && port.is_none_or(|p| !p.is_empty() && !p.contains('.'));
        if !good {
            self.error(spot, format!("`{key}` wants `node` or `node.port`, but got the text \"{}\"", clip(text)));
            return None;
        }
        Some(Endpoint { node: format!("{prefix}{node}"), port: port.map(String::from) })
    }

    /// One node or sub-graph instance.
    fn node(&mut self, key: Key, mut table: Table, level: &Level<'_>, sets: &mut Sets) {
        let full = format!("{}{}", level.prefix, key.name);
        let Some((use_key, use_value)) = table.take("use") else {
            self.error(key.spot, format!("node `{full}` does not say what it is; add `use = \"KIND\"`"));
            return;
        };
        let Some(kind) = keys::text("use", &use_value, self.reader.reports) else { return };
        let inputs = match table.take("in") {
            Some((_, value)) => self.inputs(&full, &value, level),
            None => Vec::new(),
        };
        let scope = table.take("scope").and_then(|(_, v)| {
            let name = keys::text("scope", &v, self.reader.reports)?;
            Some((self.scope(&format!("{}{name}", level.prefix), v.spot), v.spot))
        });
        let scope = scope.or(level.scope);
        if let Some(file) = kind.strip_prefix("graph:") {
            let inside = sets.inside(&key.name);
            self.instance(&full, &key, use_value.spot, file, table, inputs, scope, level, inside);
            return;
        }
        let mut node = DraftNode {
            name: full.as_str().into(),
            spot: key.spot,
            kind,
            kind_spot: if use_value.spot == Spot::NONE { use_key.spot } else { use_value.spot },
            options: Table::default(),
            inputs,
            model: None,
            scope,
            cancels: Vec::new(),
            restart: None,
            bypass: None,
            skip_item_errors: None,
            stall: Some(std::time::Duration::from_secs(10)),
            placement: Vec::new(),
        };
        if let Some((at, _)) = scope {
            self.draft.scopes[at].members += 1;
        }
        if let Some((_, v)) = table.take("model") {
            node.model = self.model(&v, level);
        }
        if let Some((_, v)) = table.take("cancels") {
            for name in keys::texts("cancels", &v, self.reader.reports).unwrap_or_default() {
                let at = self.scope(&format!("{}{name}", level.prefix), v.spot);
                node.cancels.push(at);
            }
        }
        nodekeys::node(&mut node, table, self.reader.reports);
        self.draft.nodes.push(node);
    }

    fn model(&mut self, value: &Value, level: &Level<'_>) -> Option<usize> {
        let name = keys::text("model", value, self.reader.reports)?;
        let found = level.models.get(&name).copied();
        match found {
            Some(at) => self.draft.models[at].used = true,
            None => {
                let mut names: Vec<&str> = level.models.keys().map(String::as_str).collect();
                names.sort_unstable();
                let hint = match names.is_empty() {
                    true => format!("; add `[models.{}]`", clip(&name)),
                    false => suggest(&name, names.iter().copied()),
                };
                self.error(value.spot, format!("there is no model `{}`{hint}", clip(&name)));
            }
        }
        found
    }

    /// The forms of `in`.
    fn inputs(&mut self, node: &str, value: &Value, level: &Level<'_>) -> Vec<DraftInput> {
        match &value.kind {
            Kind::Table(table) if table.get("from").is_none() => {
                let mut out = Vec::new();
                for (key, value) in &table.entries {
                    let edges = self.edges(&format!("{node}.{}", key.name), value, level);
                    out.push(DraftInput { port: Some(key.name.clone()), spot: key.spot, edges });
                }
                out
            }
            _ => {
                let edges = self.edges(node, value, level);
                vec![DraftInput { port: None, spot: value.spot, edges }]
            }
        }
    }

    fn edges(&mut self, to: &str, value: &Value, level: &Level<'_>) -> Vec<DraftEdge> {
        match &value.kind {
            Kind::List(items) => items.iter().flat_map(|v| self.edges_of(to, v, level)).collect(),
            _ => self.edges_of(to, value, level),
        }
    }

    fn edges_of(&mut self, to: &str, value: &Value, level: &Level<'_>) -> Vec<DraftEdge> {
        let mut edge = plain(From::Absent(String::new()), value.spot);
        let from = match &value.kind {
            Kind::Str(text) => Some(text.clone()),
            Kind::Table(table) => nodekeys::edge(to, table, value.spot, &mut edge, self.reader.reports),
            _ => {
                keys::wrong(
                    &format!("in of {to}"),
                    "\"node\", \"node.port\" or { from = \"node.port\", ... }",
                    value,
                    self.reader.reports,
                );
                None
            }
        };
        let Some(from) = from else { return Vec::new() };
        if let Some(port) = from.strip_prefix("port.") {
            return match level.ports.get(port) {
                Some(outer) => outer.iter().map(|o| join(&edge, o)).collect(),
                None => {
                    let mut names: Vec<&str> = level.ports.keys().map(String::as_str).collect();
                    names.sort_unstable();
                    let hint = match names.is_empty() {
                        true => "; declare it: `[ports] in = { ... }`".to_string(),
                        false => suggest(port, names.iter().copied()),
                    };
                    self.error(value.spot, format!("this graph has no input port `{}`{hint}", clip(port)));
                    Vec::new()
                }
            };
        }
        match self.endpoint(&format!("in of {to}"), &from, level.prefix, value.spot) {
            Some(end) => {
                edge.from = From::End(end);
                vec![edge]
            }
            None => Vec::new(),
        }
    }

    /// `use = "graph:FILE"`.
    #[allow(clippy::too_many_arguments)] // What `node` has taken apart already.
    fn instance(
        &mut self,
        full: &str,
        key: &Key,
        use_spot: Spot,
        file: &str,
        mut table: Table,
        inputs: Vec<DraftInput>,
        scope: Option<(usize, Spot)>,
        level: &Level<'_>,
        mut inside: Sets,
    ) {
        self.made += 1;
        let path = tidy(&level.path.parent().unwrap_or(Path::new("")).join(file));
        if self.stack.contains(&path) {
            self.error(
                use_spot,
                format!("`{}` is used inside itself by node `{full}`; a graph cannot contain itself", clip(file)),
            );
            return;
        }
        if self.stack.len() > MAX_DEPTH {
            self.error(
                use_spot,
                format!("sub-graphs go more than {MAX_DEPTH} deep at node `{full}`; put some of them side by side"),
            );
            return;
        }
        if !self.trees.contains_key(&path) {
            let text = match self.reader.files.read(&path) {
                Ok(text) => text,
                Err(why) => {
                    self.error(use_spot, format!("node `{full}` cannot use `{}`: {why}", clip(file)));
                    return;
                }
            };
            let Some(tree) = parse_text(&path.to_string_lossy(), &text, self.reader.reports) else { return };
            self.trees.insert(path.clone(), tree);
        }
        let (tree, spot) = self.trees[&path].clone();

        let models =
            tree.get("models").and_then(Value::as_table).map(|t| t.names().map(String::from).collect::<Vec<_>>());
        let replaced = self.replacements(full, &mut table, &models.unwrap_or_default(), level);
        for name in ["restart", "bypass", "on_item_error", "stall", "cancels", "threads", "cpu", "priority", "class"] {
            if let Some((k, _)) = table.take(name) {
                self.error(
                    k.spot,
                    format!(
                        "`{name}` belongs to a node inside `{}`, not to the sub-graph node `{full}`; move it there",
                        clip(file)
                    ),
                );
            }
        }
        let names: Vec<String> = tree
            .get("vars")
            .and_then(Value::as_table)
            .map(|t| t.names().map(String::from).collect())
            .unwrap_or_default();
        let mut given = Vec::new();
        for (k, v) in table.entries {
            if names.contains(&k.name) {
                given.push((k.name, v));
            } else {
                let hint = suggest(&k.name, names.iter().map(String::as_str));
                self.error(
                    k.spot,
                    format!("`{}` has no variable `{}` for node `{full}` to set{hint}", clip(file), clip(&k.name)),
                );
            }
        }
        let Some(document) = self.reader.document(tree, spot, &path, &inside, &given) else { return };
        let ports = self.instance_ports(full, key.spot, &document, inputs);
        self.stack.push(path.clone());
        let outs = self.level(document, &format!("{full}/"), &path, ports, replaced, scope, &mut inside);
        self.stack.pop();
        inside.check_rest(self.reader.reports);
        let outs = outs.into_iter().map(|(name, end, _)| (name, end)).collect();
        self.instances.insert(full.into(), Instance { outs });
    }

    /// `model = "ears"` and `models.asr = "ears"` of a sub-graph node.
    fn replacements(
        &mut self,
        full: &str,
        table: &mut Table,
        inner: &[String],
        level: &Level<'_>,
    ) -> HashMap<String, usize> {
        let mut out = HashMap::new();
        if let Some((k, v)) = table.take("model") {
            match inner {
                [only] => {
                    if let Some(at) = self.model(&v, level) {
                        out.insert(only.clone(), at);
                    }
                }
                [] => self.error(k.spot, format!("the sub-graph of node `{full}` has no model to replace")),
                many => {
                    let text = format!(
                        "the sub-graph of node `{full}` has several models, {}; say which: `models.NAME = \"...\"`",
                        list(many)
                    );
                    self.error(k.spot, text);
                }
            }
        }
        if let Some((_, v)) = table.take("models") {
            let Kind::Table(map) = &v.kind else {
                keys::wrong("models", "a table: models.NAME = \"...\"", &v, self.reader.reports);
                return out;
            };
            for (k, v) in &map.entries {
                if !inner.contains(&k.name) {
                    let hint = suggest(&k.name, inner.iter().map(String::as_str));
                    self.error(
                        k.spot,
                        format!("the sub-graph of node `{full}` has no model `{}`{hint}", clip(&k.name)),
                    );
                } else if let Some(at) = self.model(v, level) {
                    out.insert(k.name.clone(), at);
                }
            }
        }
        out
    }

    /// What feeds the inputs of a sub-graph instance.
    fn instance_ports(
        &mut self,
        full: &str,
        spot: Spot,
        document: &Document,
        inputs: Vec<DraftInput>,
    ) -> HashMap<String, Vec<DraftEdge>> {
        let mut types = Vec::new();
        for (key, value) in &document.ports_in {
            if let Some(ty) = self.port_in_type(key, value) {
                types.push((key.name.clone(), ty));
            }
        }
        let names: Vec<&str> = types.iter().map(|(n, _)| n.as_str()).collect();
        let mut out: HashMap<String, Vec<DraftEdge>> = HashMap::new();
        for input in inputs {
            let name = match (&input.port, names.as_slice()) {
                (Some(port), _) => port.clone(),
                (None, [only]) => (*only).to_string(),
                (None, _) => {
                    let what = if names.is_empty() { "none".to_string() } else { list(&names) };
                    self.error(
                        input.spot,
                        format!(
                            "node `{full}` has {} input ports ({what}); name one: `in = {{ PORT = ... }}`",
                            names.len()
                        ),
                    );
                    continue;
                }
            };
            let Some((_, ty)) = types.iter().find(|(n, _)| *n == name) else {
                let hint = suggest(&name, names.iter().copied());
                self.error(
                    input.spot,
                    format!("the sub-graph of node `{full}` has no input port `{}`{hint}", clip(&name)),
                );
                continue;
            };
            let via = (format!("{full}.{name}"), ty.clone());
            out.entry(name).or_default().extend(input.edges.into_iter().map(|mut e| {
                e.via.push(via.clone());
                e
            }));
        }
        for (name, _) in &types {
            out.entry(name.clone()).or_insert_with(|| {
                let why = format!("the input port `{name}` of the sub-graph node `{full}` is not connected; add `in = {{ {name} = \"NODE.PORT\" }}`");
                vec![plain(From::Absent(why), spot)]
            });
        }
        out
    }

    /// Edges that name a sub-graph's output get the node inside it.
    fn resolve_instances(&mut self) {
        let mut problems = Vec::new();
        let instances = &self.instances;
        let mut resolve = |end: &mut Endpoint, spot: Spot| {
            // An output of a sub-graph may be the output of a sub-graph inside it.
            for _ in 0..=MAX_DEPTH {
                let Some(instance) = instances.get(&end.node) else { return };
                let names: Vec<&str> = instance.outs.iter().map(|(n, _)| n.as_str()).collect();
                let found = match (&end.port, instance.outs.as_slice()) {
                    (Some(port), outs) => outs.iter().find(|(n, _)| n == port).map(|(_, e)| e.clone()),
                    (None, [(_, only)]) => Some(only.clone()),
                    (None, _) => None,
                };
                match (found, &end.port) {
                    (Some(inner), _) => *end = inner,
                    (None, Some(port)) => {
                        let hint = suggest(port, names.iter().copied());
                        problems.push((
                            spot,
                            format!("the sub-graph of node `{}` has no output port `{}`{hint}", end.node, clip(port)),
                        ));
                        return;
                    }
                    (None, None) => {
                        let what = if names.is_empty() { "none".to_string() } else { list(&names) };
                        problems.push((
                            spot,
                            format!(
                                "node `{}` has {} output ports ({what}); name one: `{}.PORT`",
                                end.node,
                                names.len(),
                                end.node
                            ),
                        ));
                        return;
                    }
                }
            }
        };
        for edge in self.draft.nodes.iter_mut().flat_map(|n| &mut n.inputs).flat_map(|i| &mut i.edges) {
            if let From::End(end) = &mut edge.from {
                resolve(end, edge.spot);
            }
        }
        for (end, spot) in &mut self.draft.ports_out {
            resolve(end, *spot);
        }
        for (spot, text) in problems {
            self.error(spot, text);
        }
    }

    fn check_scopes(&mut self) {
        let known: Vec<String> =
            self.draft.scopes.iter().filter(|s| s.declared || s.members > 0).map(|s| s.name.to_string()).collect();
        let mut problems = Vec::new();
        for scope in &self.draft.scopes {
            if !scope.declared && scope.members == 0 {
                let hint = match known.is_empty() {
                    true => format!("; put `scope = \"{}\"` on the nodes it should stop", clip(&scope.name)),
                    false => suggest(&scope.name, known.iter().map(String::as_str)),
                };
                problems.push((
                    scope.spot,
                    format!("`cancels` names the scope `{}`, which no node belongs to{hint}", clip(&scope.name)),
                ));
            }
        }
        for (spot, text) in problems {
            self.error(spot, text);
        }
    }
}

fn plain(from: From, spot: Spot) -> DraftEdge {
    DraftEdge { from, spot, cap: None, full: None, feedback: false, by_turn: None, convert: None, via: Vec::new() }
}

/// The edge inside a sub-graph with what the edge outside says; the inside goes first.
fn join(inner: &DraftEdge, outer: &DraftEdge) -> DraftEdge {
    DraftEdge {
        from: outer.from.clone(),
        spot: if matches!(outer.from, From::Absent(_)) { outer.spot } else { inner.spot },
        cap: inner.cap.or(outer.cap),
        full: inner.full.or(outer.full),
        feedback: inner.feedback || outer.feedback,
        by_turn: inner.by_turn.or(outer.by_turn),
        convert: inner.convert.or(outer.convert),
        via: outer.via.iter().chain(&inner.via).cloned().collect(),
    }
}
