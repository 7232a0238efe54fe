//! The kinds of nodes and models a program knows, by name.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::load::message::{nearest, suggest};
use crate::model::{AnyModelKind, Load, Model, ModelKind, ModelSlot};
use crate::node::{Declared, DynNode, Node, Setup};

/// Makes a node from checked options.
type Make = fn(&Value, &mut Setup) -> Result<Box<dyn DynNode>>;

/// A kind of node.
pub struct NodeKind {
    kind: &'static str,
    about: &'static str,
    schema: fn() -> schemars::Schema,
    cached: OnceLock<Value>,
    probed: OnceLock<Option<Declared>>,
    make: Make,
}

impl NodeKind {
    fn of<N: Node>() -> Self {
        Self {
            kind: N::KIND,
            about: N::ABOUT,
            schema: || schemars::schema_for!(N::Options),
            cached: OnceLock::new(),
            probed: OnceLock::new(),
            make: |options, setup| {
                let options: N::Options = serde_json::from_value(options.clone())
                    .map_err(|e| Error::msg(format_args!("options of `{}`: {e}", N::KIND)))?;
                Ok(Box::new(N::new(options, setup)?))
            },
        }
    }

    /// [`Node::KIND`].
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// [`Node::ABOUT`].
    pub fn about(&self) -> &'static str {
        self.about
    }

    /// JSON schema of the options.
    pub fn schema(&self) -> &Value {
        self.cached.get_or_init(|| tidy((self.schema)().to_value()))
    }

    /// Makes a node; a panic in the node's code is an error.
    pub fn make(&self, options: &Value, setup: &mut Setup) -> Result<Box<dyn DynNode>> {
        catch_unwind(AssertUnwindSafe(|| (self.make)(options, setup))).unwrap_or_else(|_| {
            Err(Error::msg(format_args!("the code of `{}` panicked while declaring its ports; report it", self.kind)))
        })
    }

    /// What a node of this kind declares with default options: its usual ports. `None` when
    /// it cannot be made without knowing more.
    pub fn usual(&self) -> Option<&Declared> {
        let probe = || {
            let options = sample(self.schema());
            let mut setup = Setup::new("probe".into(), None);
            if self.make(&options, &mut setup).is_ok() {
                return Some(setup.into_declared());
            }
            // It wants a model: pretend one that speaks what it asked for.
            let protocol = setup.into_declared().protocol?;
            let slot = Arc::new(ModelSlot::new("probe".into(), Arc::new(Pretended(protocol))));
            let mut setup = Setup::new("probe".into(), Some(slot));
            self.make(&options, &mut setup).ok()?;
            Some(setup.into_declared())
        };
        self.probed.get_or_init(probe).as_ref()
    }
}

/// Defaults of f32 options as a person wrote them: 0.2, not 0.20000000298023224.
fn tidy(mut schema: Value) -> Value {
    fn walk(value: &mut Value) {
        match value {
            Value::Number(n) if n.is_f64() => {
                let wide = n.as_f64().unwrap_or_default();
                let narrow = wide as f32;
                if f64::from(narrow) == wide
                    && let Ok(short) = narrow.to_string().parse::<f64>()
                {
                    *value = json!(short);
                }
            }
            Value::Array(items) => items.iter_mut().for_each(walk),
            Value::Object(map) => map.values_mut().for_each(walk),
            _ => {}
        }
    }
    walk(&mut schema);
    schema
}

/// Options with a plausible value for every required key.
fn sample(schema: &Value) -> Value {
    let mut options = Map::new();
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        let mut property = &schema["properties"][name];
        if let Some(target) = property["$ref"].as_str().and_then(|r| r.strip_prefix("#/$defs/")) {
            property = &schema["$defs"][target];
        }
        let choice = property["enum"].get(0).or_else(|| property["oneOf"].get(0).and_then(|c| c.get("const")));
        let value = match (choice, property["type"].as_str()) {
            (Some(choice), _) => choice.clone(),
            (_, Some("integer" | "number")) => {
                property.get("minimum").filter(|m| m.as_f64() > Some(0.0)).cloned().unwrap_or(json!(1))
            }
            (_, Some("boolean")) => json!(false),
            (_, Some("array")) => json!([]),
            (_, Some("object")) => json!({}),
            _ if property["pattern"].is_string() => json!("1s"),
            _ => json!("x"),
        };
        options.insert(name.into(), value);
    }
    Value::Object(options)
}

/// Stands in for a model of any kind while ports are probed; it can never be started.
struct Pretended(&'static str);

impl AnyModelKind for Pretended {
    fn kind(&self) -> &'static str {
        "pretended"
    }
    fn about(&self) -> &'static str {
        ""
    }
    fn protocol(&self) -> &'static str {
        self.0
    }
    fn schema(&self) -> schemars::Schema {
        schemars::Schema::default()
    }
    fn identity(&self, _: &Value) -> Result<String> {
        Err(Error::msg("a pretended model has no identity"))
    }
    fn start(&self, _: &Value, _: crate::ActorConfig, _: &Load) -> Result<Arc<dyn crate::actor::AnyActor>> {
        Err(Error::msg("a pretended model cannot be started"))
    }
}

/// A kind of model with its schema made once.
struct KnownModel {
    kind: Arc<dyn AnyModelKind>,
    schema: OnceLock<Value>,
}

/// Kinds by name. Crates add theirs: `oxiline_media::register(&mut registry)`.
#[derive(Default)]
pub struct Registry {
    nodes: BTreeMap<&'static str, Arc<NodeKind>>,
    models: BTreeMap<&'static str, KnownModel>,
}

impl Registry {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a node kind; a kind of the same name is replaced, so programs can put their own in.
    pub fn node<N: Node>(&mut self) {
        self.nodes.insert(N::KIND, Arc::new(NodeKind::of::<N>()));
    }

    /// Adds a model kind; a kind of the same name is replaced.
    pub fn model<M: Model>(&mut self) {
        let kind = Arc::new(ModelKind::<M>::new());
        self.models.insert(M::KIND, KnownModel { kind, schema: OnceLock::new() });
    }

    /// The node kinds, by name.
    pub fn kinds(&self) -> impl Iterator<Item = &NodeKind> {
        self.nodes.values().map(|kind| &**kind)
    }

    /// The model kinds, by name.
    pub fn model_kinds(&self) -> impl Iterator<Item = &Arc<dyn AnyModelKind>> {
        self.models.values().map(|known| &known.kind)
    }

    /// The node kind of that name.
    pub fn node_kind(&self, name: &str) -> Option<&Arc<NodeKind>> {
        self.nodes.get(name)
    }

    /// The model kind of that name.
    pub fn model_kind(&self, name: &str) -> Option<&Arc<dyn AnyModelKind>> {
        self.models.get(name).map(|known| &known.kind)
    }

    /// JSON schema of a model kind's options.
    pub fn model_schema(&self, name: &str) -> Option<&Value> {
        self.models.get(name).map(|known| known.schema.get_or_init(|| tidy(known.kind.schema().to_value())))
    }

    /// The node kind nearest in spelling.
    pub fn nearest(&self, name: &str) -> Option<&str> {
        nearest(name, self.nodes.keys().copied())
    }

    /// "; did you mean ...?" for a node kind that does not exist.
    pub(crate) fn suggest_node(&self, name: &str) -> String {
        suggest(name, self.nodes.keys().copied())
    }

    /// "; did you mean ...?" for a model kind that does not exist.
    pub(crate) fn suggest_model(&self, name: &str) -> String {
        suggest(name, self.models.keys().copied())
    }
}
