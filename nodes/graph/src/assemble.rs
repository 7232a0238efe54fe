//! From a plan to an engine at rest: links, node states, who is restarted with whom.

use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Condvar, Mutex};

use crate::actor::ActorConfig;
use crate::engine::{EdgeInfo, Engine, NodeInfo, NodeState, State, needs_lockstep};
use crate::error::{Error, Result};
use crate::link::Link;
use crate::model::ModelSlot;
use crate::node::Device;
use crate::plan::{Class, Group, Plan, PlannedModel};
use crate::run::RunOptions;
use crate::supervise::Worker;

/// A model as the runtime starts it.
pub(crate) struct Model {
    pub name: Arc<str>,
    pub slot: Arc<ModelSlot>,
    pub options: serde_json::Value,
    pub identity: String,
    pub class: Class,
    pub config: ActorConfig,
}

impl From<PlannedModel> for Model {
    fn from(model: PlannedModel) -> Self {
        let config = ActorConfig {
            name: model.name.clone(),
            share: model.share,
            max_sessions: model.max_sessions,
            queue: model.queue,
            batch_max: model.batch_max,
            batch_wait: model.batch_wait,
            keep: model.keep,
        };
        Self {
            name: model.name,
            slot: model.slot,
            options: model.options,
            identity: model.identity,
            class: model.class,
            config,
        }
    }
}

/// Turns a plan into an engine at rest.
pub(crate) fn build(plan: Plan, options: &RunOptions) -> Result<(Arc<Engine>, Vec<Worker>, Vec<Model>)> {
    let mut inputs: Vec<Vec<Vec<usize>>> =
        plan.nodes.iter().map(|n| vec![Vec::new(); n.declared.inputs.len()]).collect();
    let mut outputs: Vec<Vec<Vec<usize>>> =
        plan.nodes.iter().map(|n| vec![Vec::new(); n.declared.outputs.len()]).collect();
    let mut edges = Vec::with_capacity(plan.edges.len());
    for (l, edge) in plan.edges.iter().enumerate() {
        let out = outputs.get_mut(edge.from.0).and_then(|ports| ports.get_mut(edge.from.1));
        let into = inputs.get_mut(edge.to.0).and_then(|ports| ports.get_mut(edge.to.1));
        let (Some(out), Some(into)) = (out, into) else {
            return Err(Error::msg(format_args!(
                "edge {l} of the plan of graph `{}` joins ports that do not exist",
                plan.name
            )));
        };
        out.push(l);
        into.push(l);
        let (from, to) = (&plan.nodes[edge.from.0], &plan.nodes[edge.to.0]);
        let (from_port, to_port) = (from.declared.outputs[edge.from.1].name, to.declared.inputs[edge.to.1].name);
        edges.push(EdgeInfo {
            from: edge.from,
            to: edge.to,
            name: format!("{}.{from_port} → {}.{to_port}", from.name, to.name),
            scope: from.scope,
            feedback: edge.feedback,
            by_turn: edge.by_turn,
        });
    }
    let device = |role| plan.nodes.iter().position(|n| n.declared.device == Some(role));
    let master = device(Device::Playback).or_else(|| device(Device::Capture));
    let clock = crate::clock::clock(plan.clock, master.is_some());
    let cancels = plan.nodes.iter().any(|n| !n.cancels.is_empty());
    let lockstep = clock.is_virtual() && needs_lockstep(plan.edges.iter().map(|e| e.full), cancels);
    let slots = if lockstep { 1 } else { options.threads.map_or(usize::MAX, |n| n.max(1)) };
    let links = plan.edges.iter().map(|edge| Link::new(edge.cap, edge.full)).collect();
    let slot_of: Vec<Arc<ModelSlot>> = plan.models.iter().map(|m| m.slot.clone()).collect();
    let mut nodes = Vec::with_capacity(plan.nodes.len());
    let mut workers = Vec::with_capacity(plan.nodes.len());
    for ((node, inputs), outputs) in plan.nodes.into_iter().zip(inputs).zip(outputs) {
        let all_inputs: Vec<usize> = inputs.iter().flatten().copied().collect();
        workers.push(Worker {
            node: node.node,
            make: node.make,
            slot: node.model.and_then(|m| slot_of.get(m).cloned()),
            restart: node.restart.or(plan.restart),
            bypass: node.bypass,
        });
        nodes.push(NodeInfo {
            name: node.name,
            kind: node.kind,
            skip_errors: node.skip_item_errors.unwrap_or(node.declared.skips_item_errors),
            declared: node.declared,
            input_types: node.input_types,
            output_types: node.output_types,
            source: all_inputs.is_empty(),
            inputs,
            outputs,
            joins_turns: all_inputs.iter().any(|&l| edges[l].by_turn),
            all_inputs,
            scope: node.scope,
            cancels: node.cancels,
            stall: node.stall,
            placement: node.placement,
            epoch: AtomicU32::new(0),
            stop_seen: AtomicBool::new(false),
            settings: AtomicBool::new(false),
            companions: Vec::new(),
            renew: AtomicBool::new(false),
        });
    }
    let groups: Vec<Group> = plan.scopes.iter().map(|scope| scope.group).collect();
    companions(&mut nodes, &edges, &groups);
    let states: Vec<NodeState> = nodes.iter().map(|n| NodeState::new(n.inputs.len(), n.outputs.len())).collect();
    let state = State {
        links,
        running: 0,
        ready: states.len(),
        external: 0,
        live: states.len(),
        nodes: states,
        started: false,
        failure: None,
        drain_at: None,
        deadline: None,
        notes: plan.notes,
    };
    let engine = Engine {
        name: plan.name,
        wake: nodes.iter().map(|_| Condvar::new()).collect(),
        nodes,
        edges,
        paused: plan.scopes.iter().map(|_| AtomicBool::new(false)).collect(),
        scopes: plan.scopes.into_iter().map(|scope| (scope.name, AtomicU32::new(0))).collect(),
        master: master.filter(|_| clock.is_steered()),
        clock,
        lockstep,
        slots,
        stats: options.stats,
        stop_at: options.stop_at.clone(),
        drain: plan.drain,
        observer: options.observer.clone(),
        stopping: AtomicBool::new(false),
        cancelled: AtomicBool::new(false),
        killed: AtomicBool::new(false),
        state: Mutex::new(state),
        supervisor: Condvar::new(),
    };
    Ok((Arc::new(engine), workers, plan.models.into_iter().map(Model::from).collect()))
}

/// Finds for every member of a scope who is restarted with it.
fn companions(nodes: &mut [NodeInfo], edges: &[EdgeInfo], groups: &[Group]) {
    for me in 0..nodes.len() {
        let Some(scope) = nodes[me].scope else { continue };
        let mut reached = vec![groups[scope] == Group::All; nodes.len()];
        let mut open = if groups[scope] == Group::Rest { vec![me] } else { Vec::new() };
        while let Some(from) = open.pop() {
            for edge in edges.iter().filter(|edge| edge.from.0 == from && !edge.feedback) {
                if !std::mem::replace(&mut reached[edge.to.0], true) {
                    open.push(edge.to.0);
                }
            }
        }
        let with = (0..nodes.len()).filter(|&n| n != me && reached[n] && nodes[n].scope == Some(scope)).collect();
        nodes[me].companions = with;
    }
}
