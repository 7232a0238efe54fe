//! Types agreed along the edges; sound converted where its form differs.
//!
//! An output whose parameter is `Any` (and follows no input) is known only when the graph
//! runs, so an input that wants one form gets a converter in front: passing through costs
//! nothing, guessing would cost the result.

use std::collections::{HashMap, HashSet, VecDeque};

use serde_json::json;

use super::{Edge, Work, build, input_index};
use crate::load::message::Reports;
use crate::payload::{Param, PortType};
use crate::plan::{Cap, Full, PlannedEdge};
use crate::registry::Registry;

/// The kind that converts sound.
const CONVERTER: &str = "audio.resample";

/// What both parameters allow; `None` when nothing is left.
pub(crate) fn meet<T: Copy + Ord>(a: &Param<T>, b: &Param<T>) -> Option<Param<T>> {
    use Param::{Any, Is, OneOf, Range};
    let within = |p: &Param<T>, v: &T| match p {
        Any => true,
        Is(x) => x == v,
        OneOf(all) => all.contains(v),
        Range(lo, hi) => lo <= v && v <= hi,
    };
    match (a, b) {
        (Any, other) | (other, Any) => Some(other.clone()),
        (Is(x), other) | (other, Is(x)) => within(other, x).then_some(Is(*x)),
        (OneOf(all), other) | (other, OneOf(all)) => {
            let left: Vec<T> = all.iter().copied().filter(|v| within(other, v)).collect();
            match left.as_slice() {
                [] => None,
                [only] => Some(Is(*only)),
                _ => Some(OneOf(left)),
            }
        }
        (Range(a, b), Range(c, d)) => {
            let (lo, hi) = (*a.max(c), *b.min(d));
            (lo <= hi).then_some(if lo == hi { Is(lo) } else { Range(lo, hi) })
        }
    }
}

/// What both types allow.
fn meet_types(a: &PortType, b: &PortType) -> Option<PortType> {
    match (a, b) {
        (PortType::Any, other) | (other, PortType::Any) => Some(other.clone()),
        (PortType::Audio { rate: r, channels: c }, PortType::Audio { rate: s, channels: d }) => {
            Some(PortType::Audio { rate: meet(r, s)?, channels: meet(c, d)? })
        }
        _ => (a.name() == b.name()).then(|| a.clone()),
    }
}

/// One value of a choice: the producer's first, or the nearest to what is usual.
fn pick<T: Copy + Ord>(param: &Param<T>, usual: T) -> Param<T> {
    match param {
        Param::OneOf(all) => all.first().map_or(Param::Any, |v| Param::Is(*v)),
        Param::Range(lo, hi) => Param::Is(usual.clamp(*lo, (*hi).max(*lo))),
        other => other.clone(),
    }
}

fn native(ty: &PortType) -> PortType {
    match ty {
        PortType::Audio { rate, channels } => PortType::Audio { rate: pick(rate, 48_000), channels: pick(channels, 2) },
        other => other.clone(),
    }
}

/// Is `offer` inside what `want` takes, whatever it turns out to be?
fn satisfied(offer: &PortType, want: &PortType) -> bool {
    fn param<T: Copy + Ord>(offer: &Param<T>, want: &Param<T>) -> bool {
        match (offer, want) {
            (_, Param::Any) => true,
            (Param::Any, _) => false,
            (offer, want) => meet(offer, want).is_some(),
        }
    }
    match (offer, want) {
        (_, PortType::Any) => true,
        (PortType::Audio { rate: r, channels: c }, PortType::Audio { rate: s, channels: d }) => {
            param(r, s) && param(c, d)
        }
        (offer, want) => offer.name() == want.name(),
    }
}

/// "16000 Hz mono sound".
pub(crate) fn say(ty: &PortType) -> String {
    let PortType::Audio { rate, channels } = ty else { return ty.name().into() };
    let rate = match rate {
        Param::Any => String::new(),
        Param::Is(r) => format!(" {r} Hz"),
        Param::OneOf(all) => format!(" {} Hz", all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ")),
        Param::Range(lo, hi) => format!(" {lo} to {hi} Hz"),
    };
    let channels = match channels {
        Param::Any => String::new(),
        Param::Is(1) => " mono".into(),
        Param::Is(2) => " stereo".into(),
        Param::Is(n) => format!(" {n} channels"),
        Param::OneOf(all) => {
            format!(" {} channels", all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or "))
        }
        Param::Range(lo, hi) => format!(" {lo} to {hi} channels"),
    };
    if rate.is_empty() && channels.is_empty() { "audio of any form".into() } else { format!("audio{rate}{channels}") }
}

/// Agrees on every type, inserts converters, fills the nodes' and edges' types.
pub(crate) fn negotiate(work: &mut Work<'_>, order: &[usize], reports: &mut Reports) {
    let (mut into, mut out): (Vec<Vec<usize>>, Vec<Vec<usize>>) =
        (vec![Vec::new(); work.nodes.len()], vec![Vec::new(); work.nodes.len()]);
    for (i, edge) in work.edges.iter().enumerate() {
        into[edge.planned.to.0].push(i);
        out[edge.planned.from.0].push(i);
    }
    let wants = backward(work, order, &out);
    let mut offers: Vec<Vec<PortType>> = work.nodes.iter().map(|n| n.output_types.clone()).collect();
    // Feedback comes after everything it follows.
    let mut converted: HashMap<usize, PortType> = HashMap::new();
    let mut ins: Vec<Vec<Option<PortType>>> = work.nodes.iter().map(|n| vec![None; n.declared.inputs.len()]).collect();
    for &node in order {
        for &i in &into[node] {
            if work.edges[i].planned.feedback {
                continue;
            }
            settle(work, i, &offers, &wants, &mut ins, &mut converted, reports);
        }
        follow(work, node, &ins[node], &mut offers[node]);
        for port in 0..offers[node].len() {
            let mut narrowed = offers[node][port].clone();
            for &i in &out[node] {
                let edge = &work.edges[i].planned;
                if edge.from.1 == port {
                    narrowed = meet_types(&narrowed, &wants[edge.to.0][edge.to.1])
                        .filter(|m| m.name() == narrowed.name() && satisfied(&narrowed, m))
                        .unwrap_or(narrowed);
                }
            }
            offers[node][port] = native(&narrowed);
        }
    }
    for i in 0..work.edges.len() {
        if work.edges[i].planned.feedback {
            settle(work, i, &offers, &wants, &mut ins, &mut converted, reports);
        }
    }
    for (node, (ins, offers)) in work.nodes.iter_mut().zip(ins.into_iter().zip(offers)) {
        node.input_types = ins;
        node.output_types = offers;
    }
    let mut list: Vec<(usize, PortType)> = converted.into_iter().collect();
    list.sort_by_key(|(i, _)| *i);
    for (i, target) in list {
        insert(work, i, &target, reports);
    }
    cannot_follow(work, reports);
}

/// What each input takes, narrowed by what stands behind outputs that follow it.
fn backward(work: &Work<'_>, order: &[usize], out: &[Vec<usize>]) -> Vec<Vec<PortType>> {
    let mut wants: Vec<Vec<PortType>> =
        work.nodes.iter().map(|n| n.declared.inputs.iter().map(|p| p.ty.clone()).collect()).collect();
    for &node in order.iter().rev() {
        for (o, port) in work.nodes[node].declared.outputs.iter().enumerate() {
            let Some(like) = port.like.and_then(|l| input_index(&work.nodes[node].declared, l)) else { continue };
            let mut want = wants[node][like].clone();
            for &i in &out[node] {
                let edge = &work.edges[i].planned;
                if edge.from.1 == o && !edge.feedback {
                    want = meet_types(&want, &wants[edge.to.0][edge.to.1]).unwrap_or(want);
                }
            }
            wants[node][like] = want;
        }
    }
    wants
}

/// Outputs that follow an input take its parameters where they are open.
fn follow(work: &Work<'_>, node: usize, ins: &[Option<PortType>], offers: &mut [PortType]) {
    let declared = &work.nodes[node].declared;
    for (o, port) in declared.outputs.iter().enumerate() {
        let Some(input) = port.like.and_then(|l| input_index(declared, l)).and_then(|i| ins[i].clone()) else {
            continue;
        };
        offers[o] = match (&offers[o], input) {
            (PortType::Any, input) => input,
            (PortType::Audio { rate, channels }, PortType::Audio { rate: r, channels: c }) => PortType::Audio {
                rate: if *rate == Param::Any { r } else { rate.clone() },
                channels: if *channels == Param::Any { c } else { channels.clone() },
            },
            (own, _) => own.clone(),
        };
    }
}

/// Decides one edge: as it is, with a converter, or not at all.
fn settle(
    work: &mut Work<'_>,
    i: usize,
    offers: &[Vec<PortType>],
    wants: &[Vec<PortType>],
    ins: &mut [Vec<Option<PortType>>],
    converted: &mut HashMap<usize, PortType>,
    reports: &mut Reports,
) {
    let (from, to) = (work.edges[i].planned.from, work.edges[i].planned.to);
    let offer = &offers[from.0][from.1];
    let accepts = work.nodes[to.0].declared.inputs[to.1].ty.clone();
    for (via, ty) in &work.edges[i].via {
        if meet_types(offer, ty).is_none() {
            reports.error(
                work.edges[i].spot,
                format!("`{via}` is a port for {}, but `{}` gives {}", ty.name(), work.out_name(from), offer.name()),
            );
            return;
        }
    }
    let ty = if satisfied(offer, &accepts) {
        meet_types(offer, &accepts).map(|t| native(&t))
    } else if let (PortType::Audio { .. }, PortType::Audio { .. }) = (offer, &accepts) {
        let wish = meet_types(&accepts, &wants[to.0][to.1]).unwrap_or_else(|| accepts.clone());
        let target = target(offer, &accepts, &wish);
        let allowed = work.edges[i].convert.unwrap_or(work.auto_convert);
        if !allowed || work.registry.node_kind(CONVERTER).is_none() {
            let why = match (allowed, work.edges[i].convert) {
                (true, _) => format!("this program has no `{CONVERTER}` to put between them"),
                (false, Some(_)) => format!("put `{CONVERTER}` between them, or remove `convert = false`"),
                (false, None) => format!("put `{CONVERTER}` between them, or set `auto_convert = true` in [graph]"),
            };
            mismatch(work, i, offer, &accepts, &why, reports);
            return;
        }
        converted.insert(i, target.clone());
        Some(target)
    } else {
        let why = match chain(work.registry, offer, &accepts) {
            Some(kinds) => {
                format!("put {} between them", kinds.iter().map(|k| format!("`{k}`")).collect::<Vec<_>>().join(" → "))
            }
            None => "no node turns one into the other; connect another output".into(),
        };
        mismatch(work, i, offer, &accepts, &why, reports);
        return;
    };
    let Some(ty) = ty else { return };
    let slot = &mut ins[to.0][to.1];
    *slot = Some(match slot.take() {
        // Several producers: what they have in common, else whatever comes.
        Some(other) if other != ty => accepts,
        _ => ty.clone(),
    });
    work.edges[i].planned.ty = ty;
}

fn mismatch(work: &Work<'_>, i: usize, offer: &PortType, accepts: &PortType, why: &str, reports: &mut Reports) {
    let edge = &work.edges[i];
    reports.error(
        edge.spot,
        format!(
            "`{}` wants {}, but `{}` gives {}; {why}",
            work.in_name(edge.planned.to),
            say(accepts),
            work.out_name(edge.planned.from),
            say(offer)
        ),
    );
}

/// The form a converter should make: the wish, as near to the offer as it goes.
fn target(offer: &PortType, accepts: &PortType, wish: &PortType) -> PortType {
    fn near<T: Copy + Ord>(offer: &Param<T>, accepts: &Param<T>, wish: &Param<T>, usual: T) -> Param<T> {
        let wish = if meet(accepts, wish).is_some() { wish } else { accepts };
        let usual = match offer {
            Param::Is(v) => *v,
            _ => usual,
        };
        match wish {
            Param::Any => match offer {
                Param::Is(v) => Param::Is(*v),
                _ => Param::Any,
            },
            other => pick(other, usual),
        }
    }
    match (offer, accepts, wish) {
        (
            PortType::Audio { rate: or, channels: oc },
            PortType::Audio { rate: ar, channels: ac },
            PortType::Audio { rate: wr, channels: wc },
        ) => PortType::Audio { rate: near(or, ar, wr, 48_000), channels: near(oc, ac, wc, 2) },
        _ => accepts.clone(),
    }
}

/// The shortest way from one base type to another over the kinds there are.
fn chain(registry: &Registry, from: &PortType, to: &PortType) -> Option<Vec<&'static str>> {
    let mut steps: Vec<(&'static str, &'static str, &'static str)> = Vec::new();
    for kind in registry.kinds() {
        let Some(declared) = kind.usual() else { continue };
        if let [input] = declared.inputs.iter().filter(|p| !p.optional).collect::<Vec<_>>().as_slice() {
            steps.extend(declared.outputs.iter().map(|o| (kind.kind(), input.ty.name(), o.ty.name())));
        }
    }
    let mut seen = HashSet::from([from.name()]);
    let mut queue = VecDeque::from([(from.name(), Vec::new())]);
    while let Some((at, path)) = queue.pop_front() {
        for (kind, input, output) in &steps {
            if *input == at && seen.insert(output) {
                let mut path = path.clone();
                path.push(*kind);
                if *output == to.name() {
                    return Some(path);
                }
                queue.push_back((output, path));
            }
        }
    }
    None
}

/// Puts a converter on edge `i`.
fn insert(work: &mut Work<'_>, i: usize, target: &PortType, reports: &mut Reports) {
    let PortType::Audio { rate, channels } = target else { return };
    let mut options = serde_json::Map::new();
    if let Param::Is(rate) = rate {
        options.insert("rate".into(), json!(rate));
    }
    if let Param::Is(channels) = channels {
        options.insert("channels".into(), json!(channels));
    }
    let (from, to) = (work.edges[i].planned.from, work.edges[i].planned.to);
    let base = format!("{}~resample", work.in_name(to).replace('.', "-"));
    let mut name = base.clone();
    let mut n = 2;
    while work.by_name.contains_key(&name) {
        name = format!("{base}{n}");
        n += 1;
    }
    let mut node = match build::converter(work, CONVERTER, &name, serde_json::Value::Object(options)) {
        Ok(node) => node,
        Err(error) => {
            let text = format!("cannot convert between `{}` and `{}`: {error}", work.out_name(from), work.in_name(to));
            reports.error(work.edges[i].spot, text);
            return;
        }
    };
    let offer = work.nodes[from.0].output_types[from.1].clone();
    reports.note(
        work.edges[i].spot,
        format!(
            "`{CONVERTER}` is put between `{}` ({}) and `{}`, which wants {}",
            work.out_name(from),
            say(&offer),
            work.in_name(to),
            say(target)
        ),
    );
    let at = work.nodes.len();
    node.input_types = vec![Some(offer.clone())];
    node.output_types = vec![target.clone()];
    node.scope = work.nodes[to.0].scope.filter(|_| node.declared.cancellable);
    work.by_name.insert(name, at);
    work.spots.push(work.edges[i].spot);
    work.nodes.push(node);
    // The edge keeps its capacity and policy in front of the converter: that is where the queue
    // the author thought of is; behind it a short blocking edge does.
    let spot = work.edges[i].spot;
    let first = &mut work.edges[i].planned;
    first.to = (at, 0);
    first.ty = offer;
    let by_turn = std::mem::take(&mut first.by_turn);
    work.edges.push(Edge {
        planned: PlannedEdge {
            from: (at, 0),
            to,
            cap: Cap::default(),
            full: Full::Block,
            feedback: false,
            by_turn,
            ty: target.clone(),
        },
        spot,
        own_cap: false,
        convert: None,
        via: Vec::new(),
    });
}

/// Nodes that cannot follow a change of form must not get sound whose form is known only later.
fn cannot_follow(work: &Work<'_>, reports: &mut Reports) {
    for edge in &work.edges {
        let to = edge.planned.to;
        let open = matches!(&edge.planned.ty, PortType::Audio { rate, channels } if *rate == Param::Any || *channels == Param::Any);
        if open && work.nodes[to.0].declared.fixed_caps {
            reports.error(
                edge.spot,
                format!(
                    "`{}` cannot follow a change of form, and what `{}` gives is known only while it runs; put `{CONVERTER}` with `rate` and `channels` between them",
                    work.in_name(to),
                    work.out_name(edge.planned.from)
                ),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_meet() {
        use Param::{Any, Is, OneOf, Range};
        assert_eq!(meet(&Any, &Is(3)), Some(Is(3)));
        assert_eq!(meet(&OneOf(vec![1, 2, 3]), &Range(2, 9)), Some(OneOf(vec![2, 3])));
        assert_eq!(meet(&OneOf(vec![1, 2]), &OneOf(vec![2, 5])), Some(Is(2)));
        assert_eq!(meet(&Range(1, 4), &Range(4, 9)), Some(Is(4)));
        assert_eq!(meet(&Range(1, 3), &Is(4)), None);
    }

    #[test]
    fn unknown_forms_do_not_satisfy_a_wish() {
        assert!(!satisfied(&PortType::AUDIO, &PortType::audio(16_000, 1)));
        assert!(satisfied(&PortType::audio(16_000, 1), &PortType::AUDIO));
        assert!(!satisfied(&PortType::Text, &PortType::AUDIO));
    }
}
