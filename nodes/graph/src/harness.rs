//! One node between two vectors, on the virtual clock: how nodes are tested.
//!
//! ```
//! # use oxiline_graph::{Harness, Item, Io, Node, Result, Setup, payload::{PortType, Text}};
//! # #[derive(serde::Deserialize, schemars::JsonSchema)] struct O {}
//! # struct Upper;
//! # impl Node for Upper {
//! #     const KIND: &'static str = "text.upper"; const ABOUT: &'static str = "Capitals.";
//! #     type Options = O;
//! #     fn new(_: O, s: &mut Setup) -> Result<Self> { s.input("text", PortType::Text); s.output("text", PortType::Text); Ok(Self) }
//! #     fn run(&mut self, io: &Io) -> Result<()> {
//! #         let (i, o) = (io.input::<Text>("text")?, io.output::<Text>("text")?);
//! #         while let Some(mut t) = i.recv()? { t.value.text = t.value.text.to_uppercase().into(); o.send(t)?; }
//! #         Ok(())
//! #     }
//! # }
//! let hello = Item::data(0, 0, Text { text: "hello".into(), delta: false });
//! let out = Harness::new::<Upper>(O {}).input("text", vec![hello]).run()?;
//! assert_eq!(&*out.data::<Text>("text")[0].value.text, "HELLO");
//! # Ok::<(), oxiline_graph::Error>(())
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::actor::{self, ActorConfig, AnyActor};
use crate::error::{Error, Result};
use crate::io::{Io, Prepare, Timed};
use crate::item::{EosReason, Item, Mark};
use crate::model::{Load, Model, ModelKind, ModelSlot};
use crate::node::{Declared, DynNode, Node, PortDecl, Setup};
use crate::payload::{Audio, Param, PayloadType, PortType};
use crate::plan::{Class, ClockKind, Full, Plan, PlannedEdge, PlannedNode};
use crate::run::{RunOptions, Runtime};
use crate::stats::Summary;

type Loaded = Result<Arc<dyn AnyActor>>;
type Build = Box<dyn FnOnce(&mut Setup) -> Result<Box<dyn DynNode>>>;

/// Builds the run of one node.
pub struct Harness {
    build: Build,
    kind: &'static str,
    inputs: Vec<(String, Vec<Item>)>,
    types: Vec<(String, PortType)>,
    model: Option<(Arc<ModelSlot>, Loaded)>,
    skip: Option<bool>,
    clock: ClockKind,
    cap: u64,
}

/// What came out.
#[derive(Debug)]
pub struct Outputs {
    /// Every item of every output port in order, without the end of stream.
    pub ports: BTreeMap<String, Vec<Item>>,
    /// How each output port ended.
    pub ends: BTreeMap<String, EosReason>,
    /// The run's summary: notes, counters, reports of the node `node`.
    pub summary: Summary,
}

impl Outputs {
    /// The items of a port (none when the port does not exist).
    pub fn items(&self, port: &str) -> &[Item] {
        self.ports.get(port).map_or(&[], Vec::as_slice)
    }

    /// The payloads of a port.
    pub fn data<T: PayloadType>(&self, port: &str) -> Vec<Timed<T>> {
        let typed = |item: &Item| match item {
            Item::Data(header, payload) => {
                T::from_payload(payload.clone()).map(|value| Timed { header: *header, value })
            }
            _ => None,
        };
        self.items(port).iter().filter_map(typed).collect()
    }
}

impl Harness {
    /// A harness for a node with these options.
    pub fn new<N: Node>(options: N::Options) -> Self {
        Self {
            build: Box::new(move |setup| Ok(Box::new(N::new(options, setup)?))),
            kind: N::KIND,
            inputs: Vec::new(),
            types: Vec::new(),
            model: None,
            skip: None,
            clock: ClockKind::Virtual,
            cap: 8,
        }
    }

    /// What an input receives; the end of the stream follows by itself
    /// (or give [`Mark::Eos`] as the last item).
    pub fn input(mut self, port: &str, items: Vec<Item>) -> Self {
        self.inputs.push((port.into(), items));
        self
    }

    /// The negotiated type of a port, where the declared one is open. Without it an audio input
    /// takes the form of its first item.
    pub fn port_type(mut self, port: &str, ty: PortType) -> Self {
        self.types.push((port.into(), ty));
        self
    }

    /// The model of the node: loaded here, used by this run only.
    pub fn model<M: Model>(mut self, options: M::Options) -> Self {
        let name: Arc<str> = Arc::from(M::KIND);
        let slot = Arc::new(ModelSlot::new(name.clone(), Arc::new(ModelKind::<M>::new())));
        let config = ActorConfig { name, ..ActorConfig::default() };
        let actor = actor::start::<M>(options, config, &Load::quiet()).map(|actor| actor as Arc<dyn AnyActor>);
        self.model = Some((slot, actor));
        self
    }

    /// `on_item_error`: skip (true) or fail (false) instead of the node's default.
    pub fn skip_item_errors(mut self, skip: bool) -> Self {
        self.skip = Some(skip);
        self
    }

    /// Another clock than the virtual one.
    pub fn clock(mut self, clock: ClockKind) -> Self {
        self.clock = clock;
        self
    }

    /// Capacity of every edge in items (8).
    pub fn cap(mut self, items: u64) -> Self {
        self.cap = items;
        self
    }

    /// Runs the node to its end. Err with the sentence when it failed.
    pub fn run(self) -> Result<Outputs> {
        let outputs = self.run_whatever()?;
        match outputs.summary.error.clone() {
            Some(error) => Err(Error::Message(error)),
            None => Ok(outputs),
        }
    }

    /// The same, also giving what came out before a failure (see [`Summary::error`]).
    pub fn run_whatever(self) -> Result<Outputs> {
        let slot = match self.model {
            Some((slot, actor)) => {
                slot.fill(Some((actor?, Class::Live)));
                Some(slot)
            }
            None => None,
        };
        let mut setup = Setup::new(Arc::from("node"), slot);
        let node = (self.build)(&mut setup)?;
        let declared = setup.into_declared();
        let given = |port: &str| self.types.iter().find(|(name, _)| name == port).map(|(_, ty)| ty.clone());
        let mut nodes: Vec<PlannedNode> = Vec::new();
        let mut edges = Vec::new();
        let mut input_types: Vec<Option<PortType>> = vec![None; declared.inputs.len()];
        for (port, items) in self.inputs {
            let Some(at) = declared.inputs.iter().position(|p| p.name == port) else {
                return Err(Error::msg(format_args!("node kind `{}` has no input `{port}`", self.kind)));
            };
            let ty = given(&port).unwrap_or_else(|| form(&declared.inputs[at].ty, &items));
            input_types[at] = Some(ty.clone());
            edges.push(edge((nodes.len() + 1, 0), (0, at), self.cap, ty.clone()));
            let out = PortDecl { name: "out", ty: ty.clone(), optional: false, like: None };
            let feed = Declared { outputs: vec![out], ..Declared::default() };
            nodes.push(planned(&format!("feed {port}"), Box::new(Feed(items)), feed, vec![], vec![ty]));
        }
        if let Some((at, port)) =
            declared.inputs.iter().enumerate().find(|(at, p)| !p.optional && input_types[*at].is_none())
        {
            let _ = at;
            return Err(Error::msg(format_args!("give input `{}` of `{}` with `.input(..)`", port.name, self.kind)));
        }
        let collected: Collected = Arc::default();
        let mut output_types = Vec::new();
        for (at, port) in declared.outputs.iter().enumerate() {
            let like = port.like.and_then(|name| declared.inputs.iter().position(|p| p.name == name));
            let same = like.and_then(|i| input_types[i].clone()).filter(|ty| ty.name() == port.ty.name());
            let ty = given(port.name).or(same).unwrap_or_else(|| port.ty.clone());
            output_types.push(ty.clone());
            edges.push(edge((0, at), (nodes.len() + 1, 0), self.cap, ty.clone()));
            let input = PortDecl { name: "in", ty: ty.clone(), optional: false, like: None };
            let sink = Declared { inputs: vec![input], ..Declared::default() };
            let keep = Keep(port.name.into(), collected.clone());
            nodes.push(planned(&format!("collect {}", port.name), Box::new(keep), sink, vec![Some(ty)], vec![]));
        }
        let mut tested = planned("node", node, declared, input_types, output_types);
        tested.kind = Arc::from(self.kind);
        tested.skip_item_errors = self.skip;
        nodes.insert(0, tested);
        let plan = Plan { clock: self.clock, ..Plan::of("harness", nodes, edges) };
        let summary = Runtime::isolated(RunOptions { stats: true, ..RunOptions::default() }).start(plan)?.wait();
        let (ports, ends) = std::mem::take(&mut *collected.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(Outputs { ports, ends, summary })
    }
}

/// The form of an input: what is declared, or for open audio that of the first item.
fn form(declared: &PortType, items: &[Item]) -> PortType {
    let first = items.iter().find_map(|item| match item {
        Item::Data(_, payload) => Audio::from_payload(payload.clone()),
        _ => None,
    });
    match (declared, first) {
        (PortType::Audio { rate, channels }, Some(audio)) => PortType::Audio {
            rate: if *rate == Param::Any { Param::Is(audio.rate) } else { rate.clone() },
            channels: if *channels == Param::Any { Param::Is(audio.channels) } else { channels.clone() },
        },
        _ => declared.clone(),
    }
}

fn edge(from: (usize, usize), to: (usize, usize), cap: u64, ty: PortType) -> PlannedEdge {
    PlannedEdge::of(from, to, cap, Full::Block, ty)
}

fn planned(
    name: &str,
    node: Box<dyn DynNode>,
    declared: Declared,
    input_types: Vec<Option<PortType>>,
    output_types: Vec<PortType>,
) -> PlannedNode {
    PlannedNode { input_types, output_types, ..PlannedNode::bare(name, "harness", node, declared) }
}

/// Sends given items.
struct Feed(Vec<Item>);

impl DynNode for Feed {
    fn prepare(&mut self, _: &Prepare) -> Result<()> {
        Ok(())
    }
    fn run(&mut self, io: &Io) -> Result<()> {
        for item in std::mem::take(&mut self.0) {
            match item {
                Item::Mark(Mark::Eos(EosReason::Complete)) => return Ok(()),
                Item::Mark(Mark::Eos(EosReason::Failed { error, .. })) => return Err(Error::msg(error)),
                Item::Mark(Mark::Eos(_)) => return Err(Error::Cancelled),
                item => io.to_all(&item)?,
            }
        }
        Ok(())
    }
}

type Collected = Arc<Mutex<(BTreeMap<String, Vec<Item>>, BTreeMap<String, EosReason>)>>;

/// Keeps what it receives.
struct Keep(String, Collected);

impl DynNode for Keep {
    fn prepare(&mut self, _: &Prepare) -> Result<()> {
        Ok(())
    }
    fn run(&mut self, io: &Io) -> Result<()> {
        loop {
            let next = io.recv_any()?;
            let mut kept = self.1.lock().unwrap_or_else(PoisonError::into_inner);
            kept.0.entry(self.0.clone()).or_default();
            match next {
                None => return Ok(()),
                Some((_, Item::Mark(Mark::Eos(reason)))) => {
                    kept.1.insert(self.0.clone(), reason);
                }
                Some((_, item)) => kept.0.entry(self.0.clone()).or_default().push(item),
            }
        }
    }
}
