//! Kinds looked up, options checked, nodes and models made.

use std::sync::Arc;

use serde_json::{Map, Value as Json};

use super::Work;
use crate::error::{Error, Result};
use crate::load::draft::{Draft, DraftInput, DraftModel, DraftNode, Endpoint};
use crate::load::keys;
use crate::load::message::{Reports, Spot, clip};
use crate::load::nodekeys;
use crate::load::value::{Key, Kind, Value, table_to_json};
use crate::load::{LoadOptions, check_options, option_names};
use crate::model::{ModelSlot, Whereabouts};
use crate::node::{Declared, DynNode, Io, PortDecl, Prepare, Setup};
use crate::plan::{MakeNode, Placement, PlannedModel, PlannedNode};

/// What is left to connect.
pub(crate) struct Wiring {
    /// By node.
    pub inputs: Vec<Vec<DraftInput>>,
    pub exported: Vec<(Endpoint, Spot)>,
}

/// Makes everything that can be made; mistakes go to `reports`.
pub(crate) fn build(work: &mut Work<'_>, mut draft: Draft, options: &LoadOptions, reports: &mut Reports) -> Wiring {
    mark_mentioned(&mut draft);
    let models: Vec<Option<usize>> =
        std::mem::take(&mut draft.models).into_iter().map(|m| model(work, m, options, reports)).collect();
    let mut wiring =
        Wiring { inputs: Vec::with_capacity(draft.nodes.len()), exported: std::mem::take(&mut draft.ports_out) };
    if !draft.ports_in.is_empty() {
        stand_in(work, &draft);
        wiring.inputs.push(Vec::new());
    }
    for node in draft.nodes {
        if reports.flooded() {
            break;
        }
        if let Some(inputs) = make(work, node, &models, reports) {
            wiring.inputs.push(inputs);
        }
    }
    wiring
}

/// Models that an option names (`"model:NAME"`) are used, though no node has them as `model`.
fn mark_mentioned(draft: &mut Draft) {
    fn walk(value: &crate::load::value::Value, names: &mut Vec<String>) {
        match &value.kind {
            Kind::Str(s) => names.extend(s.strip_prefix("model:").map(String::from)),
            Kind::List(items) => items.iter().for_each(|v| walk(v, names)),
            Kind::Table(t) => t.entries.iter().for_each(|(_, v)| walk(v, names)),
            _ => {}
        }
    }
    let mut names = Vec::new();
    for (_, value) in draft.nodes.iter().flat_map(|n| &n.options.entries) {
        walk(value, &mut names);
    }
    for model in &mut draft.models {
        model.used |= names.iter().any(|n| **n == *model.name);
    }
}

fn model(work: &mut Work<'_>, mut model: DraftModel, options: &LoadOptions, reports: &mut Reports) -> Option<usize> {
    let Some(kind) = work.registry.model_kind(&model.kind).cloned() else {
        let hint = match work.registry.node_kind(&model.kind) {
            Some(_) => "; that is a kind of node".into(),
            None => work.registry.suggest_model(&model.kind),
        };
        reports.error(model.kind_spot, format!("there is no model kind `{}`{hint}", clip(&model.kind)));
        return None;
    };
    let before = reports.failed();
    if let Some(schema) = work.registry.model_schema(&model.kind) {
        check_options(&format!("model kind `{}`", model.kind), schema, &mut model.options, model.spot, reports);
    }
    if !model.used {
        if !model.quiet {
            reports.warn(model.spot, format!("no node uses the model `{}`, so it is not loaded", model.name));
        }
        return None;
    }
    let json = table_to_json(&model.options).unwrap_or_default();
    let identity = if before || reports.failed() {
        String::new()
    } else {
        let found = kind.identity(&json).and_then(|identity| Ok((identity, kind.whereabouts(&json)?)));
        match found {
            Ok((identity, place)) => {
                tell(&model, place, options, reports);
                format!("{}:{identity}", model.kind)
            }
            Err(error) => {
                let text = error.to_string();
                reports.error(spot(&model), format!("model `{}`: {}", model.name, text.trim_end_matches('.')));
                String::new()
            }
        }
    };
    work.models.push(PlannedModel {
        slot: Arc::new(ModelSlot::new(model.name.clone(), kind.clone())),
        name: model.name,
        kind,
        options: json,
        identity,
        class: model.keys.class,
        share: model.keys.share,
        max_sessions: model.keys.max_sessions,
        queue: model.keys.queue,
        batch_max: model.keys.batch_max,
        batch_wait: model.keys.batch_wait,
        keep: model.keys.keep,
    });
    Some(work.models.len() - 1)
}

/// Says when weights are not on this machine, and how to get them.
fn tell(model: &DraftModel, place: Whereabouts, options: &LoadOptions, reports: &mut Reports) {
    let (name, fetched) = match place {
        Whereabouts::Here => return,
        Whereabouts::Fetched(name) => (name, true),
        Whereabouts::Missing(name) => (name, false),
    };
    let name = clip(&name);
    let what = if fetched { "it is fetched when the graph runs, or now with" } else { "fetch it:" };
    let text = format!("model `{}`: `{name}` is not on this machine; {what} `oxiline models pull {name}`", model.name);
    if fetched || options.allow_missing_models {
        reports.warn(spot(model), text);
    } else {
        reports.error(spot(model), text);
    }
}

/// Where a message about a model's weights points.
fn spot(model: &DraftModel) -> Spot {
    model.options.get("weights").map_or(model.spot, |v| v.spot)
}

fn make(
    work: &mut Work<'_>,
    mut node: DraftNode,
    models: &[Option<usize>],
    reports: &mut Reports,
) -> Option<Vec<DraftInput>> {
    let Some(kind) = work.registry.node_kind(&node.kind).cloned() else {
        let hint = match work.registry.model_kind(&node.kind) {
            Some(_) => "; that is a kind of model, for `[models.NAME]`".into(),
            None => work.registry.suggest_node(&node.kind),
        };
        reports.error(node.kind_spot, format!("there is no node kind `{}`{hint}", clip(&node.kind)));
        return None;
    };
    if let Some(&first) = work.by_name.get(&*node.name) {
        reports.error(
            node.spot,
            format!("two nodes are called `{}`; the first is at {}", node.name, reports.place(work.spots[first])),
        );
        return None;
    }
    let schema = kind.schema();
    let names = option_names(schema);
    let (mut class, mut class_spot) = (None, node.spot);
    let mut placement = Placement::default();
    for (key, value) in std::mem::take(&mut node.placement) {
        if names.contains(&key.name.as_str()) {
            node.options.entries.push((key, value));
        } else if key.name == "class" {
            class = keys::word("class", &keys::CLASSES, &value, reports);
            class_spot = key.spot;
        } else if key.name == "threads" {
            one_thread(&node, &key, &value, reports);
        } else {
            nodekeys::placement(&node.name, &key, &value, &mut placement, reports);
        }
    }
    let errors = reports.error_count();
    check_options(&format!("`{}`", node.kind), schema, &mut node.options, node.spot, reports);
    let options = match table_to_json(&node.options) {
        Some(json) => json,
        None => Json::Object(Map::new()),
    };
    let model = match node.model {
        None => None,
        // Its own mistake is told already.
        Some(at) => Some(models[at]?),
    };
    if reports.error_count() > errors {
        return None;
    }
    let make: MakeNode = {
        let kind = kind.clone();
        Arc::new(move |setup: &mut Setup| {
            setup.set_class(class);
            kind.make(&options, setup)
        })
    };
    let mut setup = Setup::new(node.name.clone(), model.map(|m| work.models[m].slot.clone()));
    let made = match make(&mut setup) {
        Ok(made) => made,
        Err(error) => {
            let text = error.to_string();
            let named = text.contains(&format!("`{}`", node.name));
            let text = text.trim_end_matches('.');
            reports.error(node.spot, if named { text.to_string() } else { format!("node `{}`: {text}", node.name) });
            return None;
        }
    };
    let declared = setup.into_declared();
    if let Some(text) = contradiction(&node.kind, &declared) {
        reports.error(node.spot, text);
        return None;
    }
    if model.is_some() && declared.protocol.is_none() {
        reports.warn(
            node.spot,
            format!("`{}` uses no model; the key `model` of node `{}` changes nothing", node.kind, node.name),
        );
    }
    if class.is_some() && declared.protocol.is_none() {
        reports.warn(
            class_spot,
            format!("`{}` uses no model; the key `class` of node `{}` changes nothing", node.kind, node.name),
        );
    }
    if let Some((_, spot)) = node.scope.filter(|_| !declared.cancellable) {
        reports.error(spot, format!("node `{}` cannot belong to a scope: `{}` cannot be cancelled in the middle of its work; leave `scope` out", node.name, node.kind));
    }
    if let Some((bypass, spot)) = node.bypass {
        let same = declared.inputs.len() == 1
            && declared.outputs.len() == 1
            && declared.inputs[0].ty.name() == declared.outputs[0].ty.name();
        if bypass == crate::plan::Bypass::Pass && !same {
            reports.error(spot, format!("node `{}` cannot be bypassed with \"pass\": that needs one input and one output of the same type; use \"mute\"", node.name));
        }
    }
    work.by_name.insert(node.name.to_string(), work.nodes.len());
    work.spots.push(node.spot);
    work.nodes.push(PlannedNode {
        name: node.name,
        kind: node.kind.as_str().into(),
        inserted: false,
        node: made,
        make,
        input_types: vec![None; declared.inputs.len()],
        output_types: declared.outputs.iter().map(|p| p.ty.clone()).collect(),
        declared,
        model,
        scope: node.scope.map(|(at, _)| at),
        cancels: node.cancels,
        restart: node.restart,
        bypass: node.bypass.map(|(b, _)| b),
        skip_item_errors: node.skip_item_errors,
        stall: node.stall,
        placement,
    });
    Some(node.inputs)
}

/// `threads` of a node whose kind has no such option.
fn one_thread(node: &DraftNode, key: &Key, value: &Value, reports: &mut Reports) {
    if keys::count("threads", 1, value, reports).is_some_and(|n| n > 1) {
        reports.error(
            key.spot,
            format!(
                "node `{}` works on one thread of its own, as every `{}` does; leave `threads` out",
                node.name, node.kind
            ),
        );
    }
}

/// A mistake in the node kind's own code.
fn contradiction(kind: &str, declared: &Declared) -> Option<String> {
    for ports in [&declared.inputs, &declared.outputs] {
        for (i, port) in ports.iter().enumerate() {
            if ports[..i].iter().any(|p| p.name == port.name) {
                return Some(format!(
                    "`{kind}` declares the port `{}` twice; that is a fault of the node kind",
                    port.name
                ));
            }
        }
    }
    declared.outputs.iter().find_map(|p| {
        let like = p.like.filter(|l| super::input_index(declared, l).is_none())?;
        Some(format!("the output `{}` of `{kind}` follows an input `{like}` that does not exist; that is a fault of the node kind", p.name))
    })
}

/// Stands for whatever the using graph will connect, so that a part can be checked alone.
struct StandIn(Arc<str>);

impl DynNode for StandIn {
    fn prepare(&mut self, _: &Prepare) -> Result<()> {
        Err(Error::msg(format_args!(
            "`{}` is a part: it has input ports that another graph must connect; use it with `use = \"graph:FILE\"`",
            self.0
        )))
    }
    fn run(&mut self, _: &Io) -> Result<()> {
        Ok(())
    }
}

fn stand_in(work: &mut Work<'_>, draft: &Draft) {
    let name: Arc<str> = draft.name.as_str().into();
    let outputs = draft.ports_in.iter().map(|(name, ty, _)| PortDecl {
        // Port names of node code are static; the few names of a part's ports live as long as the program.
        name: String::leak(name.clone()),
        ty: ty.clone(),
        optional: false,
        like: None,
    });
    let declared = Declared { outputs: outputs.collect(), ..Declared::default() };
    work.by_name.insert("port".into(), work.nodes.len());
    work.spots.push(draft.ports_in[0].2);
    let node = Box::new(StandIn(name.clone()));
    let make: MakeNode = Arc::new(move |_| Ok(Box::new(StandIn(name.clone())) as Box<dyn DynNode>));
    work.nodes.push(PlannedNode { inserted: true, make, ..PlannedNode::bare("port", "port", node, declared) });
}

/// Options of a converter the loader puts in.
pub(crate) fn converter(work: &Work<'_>, kind: &str, name: &str, options: Json) -> Result<PlannedNode> {
    let known = work
        .registry
        .node_kind(kind)
        .cloned()
        .ok_or_else(|| Error::msg(format_args!("there is no node kind `{kind}`")))?;
    let make: MakeNode = Arc::new(move |setup: &mut Setup| known.make(&options, setup));
    let mut setup = Setup::new(name.into(), None);
    let node = make(&mut setup)?;
    let declared = setup.into_declared();
    if declared.inputs.len() != 1 || declared.outputs.len() != 1 {
        return Err(Error::msg(format_args!("`{kind}` is no converter: it has not one input and one output")));
    }
    let stall = Some(std::time::Duration::from_secs(10));
    Ok(PlannedNode { inserted: true, make, stall, ..PlannedNode::bare(name, kind, node, declared) })
}
