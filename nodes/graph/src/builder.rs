//! The same graph from Rust code: what TOML can say, without a file.

use std::path::Path;

use serde_json::{Map, Value as Json, json};

use crate::load::message::{Reports, Spot, clip};
use crate::load::value::{Kind, Value};
use crate::load::{LoadOptions, Message, plan_tree};
use crate::plan::Plan;
use crate::registry::Registry;

/// Builds a graph from code. Keys are those of graph files, options of nodes among them, and the
/// checks are the same.
///
/// ```
/// use oxiline_graph::{GraphBuilder, Registry};
/// use serde_json::json;
///
/// let graph = GraphBuilder::new("copy")
///     .node("file", "media.read", json!({ "uri": "talk.wav" }))
///     .node("decode", "audio.decode", json!({ "on_item_error": "skip" }))
///     .connect("file.audio", "decode");
/// // A registry without kinds: every mistake is a sentence.
/// let messages = graph.plan(&Registry::new()).err().unwrap();
/// assert!(messages[0].text.contains("no node kind `media.read`"));
/// ```
#[derive(Debug, Clone)]
pub struct GraphBuilder {
    root: Map<String, Json>,
    mistakes: Vec<String>,
}

impl GraphBuilder {
    /// An empty graph.
    pub fn new(name: &str) -> Self {
        let mut root = Map::new();
        root.insert("schema".into(), json!(1));
        root.insert("name".into(), json!(name));
        Self { root, mistakes: Vec::new() }
    }

    fn section(&mut self, name: &str) -> &mut Map<String, Json> {
        let value = self.root.entry(name).or_insert_with(|| json!({}));
        if !value.is_object() {
            *value = json!({});
        }
        match value {
            Json::Object(map) => map,
            _ => unreachable!("made an object above"),
        }
    }

    fn add(&mut self, section: &str, name: &str, kind: &str, keys: Json) {
        let mut table = match keys {
            Json::Object(map) => map,
            Json::Null => Map::new(),
            _ => {
                self.mistakes
                    .push(format!("the keys of `{section}.{}` are not an object; use `json!({{...}})`", clip(name)));
                return;
            }
        };
        table.insert("use".into(), json!(kind));
        if self.section(section).insert(name.into(), Json::Object(table)).is_some() {
            self.mistakes.push(format!("`{section}.{}` is declared twice; rename or remove one of them", clip(name)));
        }
    }

    /// A `[graph]` key: `.set("clock", json!("virtual"))`.
    #[must_use]
    pub fn set(mut self, key: &str, value: Json) -> Self {
        self.section("graph").insert(key.into(), value);
        self
    }

    /// A `[vars]` entry for `${name}`.
    #[must_use]
    pub fn var(mut self, name: &str, value: Json) -> Self {
        self.section("vars").insert(name.into(), value);
        self
    }

    /// A node: name, kind (or `graph:FILE`), keys and options.
    #[must_use]
    pub fn node(mut self, name: &str, kind: &str, keys: Json) -> Self {
        self.add("nodes", name, kind, keys);
        self
    }

    /// A model: name, kind, keys and options.
    #[must_use]
    pub fn model(mut self, name: &str, kind: &str, keys: Json) -> Self {
        self.add("models", name, kind, keys);
        self
    }

    /// An edge: from `"node"` or `"node.port"` to `"node"` or `"node.port"`. Several edges to one
    /// input join their producers.
    #[must_use]
    pub fn connect(self, from: &str, to: &str) -> Self {
        self.connect_with(from, to, json!({}))
    }

    /// An edge with keys: `json!({ "cap": "2s", "full": "drop-oldest" })`.
    #[must_use]
    pub fn connect_with(mut self, from: &str, to: &str, keys: Json) -> Self {
        let mut edge = match keys {
            Json::Object(map) => map,
            _ => Map::new(),
        };
        edge.insert("from".into(), json!(from));
        let edge = Json::Object(edge);
        let (node, port) = match to.split_once('.') {
            Some((node, port)) => (node, Some(port)),
            None => (to, None),
        };
        let Some(Json::Object(table)) = self.section("nodes").get_mut(node) else {
            self.mistakes.push(format!("`connect` names the node `{}`, which was not added yet", clip(node)));
            return self;
        };
        let conflict = match (port, table.get_mut("in")) {
            (None, None) => {
                table.insert("in".into(), json!([edge]));
                false
            }
            (Some(port), None) => {
                table.insert("in".into(), json!({ port: [edge] }));
                false
            }
            (None, Some(Json::Array(list))) => {
                list.push(edge);
                false
            }
            (Some(port), Some(Json::Object(map))) => {
                match map.entry(port).or_insert_with(|| json!([])) {
                    Json::Array(list) => list.push(edge),
                    other => *other = json!([other.clone(), edge]),
                }
                false
            }
            _ => true,
        };
        if conflict {
            let text =
                format!("node `{}` is connected both by port name and without; name the port each time", clip(node));
            self.mistakes.push(text);
        }
        self
    }

    /// Checks the graph and makes its plan.
    ///
    /// # Errors
    /// Everything that is wrong, as sentences.
    pub fn plan(self, registry: &Registry) -> Result<Plan, Vec<Message>> {
        self.plan_with(registry, &LoadOptions::default())
    }

    /// The same with `--set`, files from memory and the like.
    pub fn plan_with(self, registry: &Registry, options: &LoadOptions) -> Result<Plan, Vec<Message>> {
        let mut reports = Reports::default();
        for mistake in self.mistakes {
            reports.error(Spot::NONE, mistake);
        }
        match Value::from_json(&Json::Object(self.root)).map(|v| v.kind) {
            Some(Kind::Table(tree)) if !reports.failed() => {
                plan_tree(tree, Spot::NONE, Path::new(""), registry, options, reports)
            }
            _ => Err(reports.into_messages()),
        }
    }
}
