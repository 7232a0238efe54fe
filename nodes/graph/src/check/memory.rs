//! The most memory the queues and nodes of a graph can take, before it runs.

use crate::payload::{Param, PortType};
use crate::plan::{Cap, Plan};

/// Worst-case bytes, as far as they can be known.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Bound {
    /// Bytes of edges and nodes that have a bound.
    pub known: u64,
    /// Edges (`from → to`) and nodes that have none, and why.
    pub unknown: Vec<String>,
}

impl Bound {
    /// The whole bound, when everything has one.
    pub fn total(&self) -> Option<u64> {
        self.unknown.is_empty().then_some(self.known)
    }
}

/// The largest item of a type a well-behaved node sends, bytes; `None`: depends on the data.
fn largest(ty: &PortType) -> Option<u64> {
    Some(match ty {
        // A second of stereo at 48 kHz.
        PortType::Audio { .. } => 48_000 * 2 * 4,
        PortType::Packet => 64 << 10,
        PortType::Text => 4 << 10,
        PortType::Transcript => 64 << 10,
        PortType::Event => 1 << 10,
        PortType::Tokens | PortType::Codes => 16 << 10,
        PortType::Video | PortType::Image | PortType::Tensor | PortType::Embed | PortType::Any => return None,
    })
}

/// Bytes of one second of sound; unknown forms count as 48 kHz stereo.
fn per_second(ty: &PortType) -> Option<u64> {
    let PortType::Audio { rate, channels } = ty else { return None };
    let rate = if let Param::Is(rate) = rate { u64::from(*rate) } else { 48_000 };
    let channels = if let Param::Is(channels) = channels { u64::from(*channels) } else { 2 };
    Some(rate.saturating_mul(channels).saturating_mul(4))
}

/// The most bytes an edge holds.
pub fn edge(cap: &Cap, ty: &PortType) -> Option<u64> {
    let items = cap.items.and_then(|n| largest(ty).map(|b| n.saturating_mul(b)));
    let time = cap.time.and_then(|t| per_second(ty).map(|b| (t.as_secs_f64() * b as f64).ceil() as u64));
    [items, time, cap.bytes].into_iter().flatten().min()
}

/// The bound of a plan: edges and node budgets. Weights are the models' own.
pub fn bound(plan: &Plan) -> Bound {
    let mut out = Bound::default();
    for e in &plan.edges {
        let name = || {
            let (from, to) = (&plan.nodes[e.from.0], &plan.nodes[e.to.0]);
            format!(
                "{}.{} → {}.{}",
                from.name, from.declared.outputs[e.from.1].name, to.name, to.declared.inputs[e.to.1].name
            )
        };
        match edge(&e.cap, &e.ty) {
            Some(bytes) => out.known = out.known.saturating_add(bytes),
            None => out.unknown.push(format!("{} (give it a `cap` in bytes)", name())),
        }
    }
    for node in &plan.nodes {
        match node.declared.memory {
            Some(bytes) => out.known = out.known.saturating_add(bytes),
            None => {
                let why = node.declared.grows.map(|with| format!(" ({with})")).unwrap_or_default();
                out.unknown.push(format!("node {}{why}", node.name));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Span;

    #[test]
    fn the_first_limit_counts() {
        let ty = PortType::audio(16_000, 1);
        let cap = Cap { items: None, time: Some(Span::secs(2)), bytes: Some(1 << 30) };
        assert_eq!(edge(&cap, &ty), Some(128_000));
        assert_eq!(edge(&Cap { bytes: Some(10), ..cap }, &ty), Some(10));
        assert_eq!(edge(&Cap { items: Some(3), ..Cap::default() }, &PortType::Image), None);
    }
}
