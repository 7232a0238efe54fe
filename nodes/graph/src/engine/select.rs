//! Which link a node takes from next.

use super::EdgeInfo;
use crate::link::Link;
use crate::plan::Full;
use crate::time::Nanos;

pub(super) enum Select {
    Take(usize),
    Wait,
    Ended,
}

/// The link to take from: smallest media time, then order; an empty open link holds back
/// whatever its next item could still come before.
pub(super) fn select(links: &[Link], order: &[usize]) -> Select {
    let mut best: Option<((Nanos, u64), usize, usize)> = None;
    let mut open = false;
    for (rank, &l) in order.iter().enumerate() {
        let link = &links[l];
        if link.end().is_some() {
            continue;
        }
        open = true;
        if let Some(key) = link.head_key()
            && best.is_none_or(|(least, ..)| key < least)
        {
            best = Some((key, rank, l));
        }
    }
    let Some((key, rank, l)) = best else { return if open { Select::Wait } else { Select::Ended } };
    let held = order.iter().enumerate().any(|(other, &o)| {
        let link = &links[o];
        link.end().is_none() && link.is_empty() && (link.next_key(), other) < (key, rank)
    });
    if held { Select::Wait } else { Select::Take(l) }
}

/// The same for a node that joins inputs by turn: the smallest turn, what is joined to it before what
/// it is joined to, then order. An empty open link holds back whatever its next item could come before.
pub(super) fn select_by_turn(links: &[Link], order: &[usize], edges: &[EdgeInfo]) -> Select {
    let open = |l: &usize| links[*l].end().is_none();
    let class = |l: usize| !edges[l].by_turn;
    let heads = order.iter().copied().enumerate().filter(|(_, l)| open(l));
    let best = heads.filter_map(|(rank, l)| links[l].head_turn().map(|turn| ((turn, class(l), rank), l))).min();
    let Some((key, l)) = best else { return if order.iter().any(open) { Select::Wait } else { Select::Ended } };
    let held = order.iter().enumerate().any(|(rank, &o)| {
        open(&o) && links[o].is_empty() && (links[o].turn(), class(o)) < (key.0, key.1) && rank != key.2
    });
    if held { Select::Wait } else { Select::Take(l) }
}

/// Must a graph with these edges run in lockstep on a virtual clock?
pub(crate) fn needs_lockstep(policies: impl IntoIterator<Item = Full>, cancels: bool) -> bool {
    cancels || policies.into_iter().any(|full| full != Full::Block)
}
