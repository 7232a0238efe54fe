//! What is known of a language model without its weights.

use oxiline_language::decoder::Spec;
use oxiline_language::decoder::spec::{Mixer, Mlp};

/// Parameters of a model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Parameters {
    /// All of them.
    pub total: u64,
    /// Those that one token is multiplied with: the chosen experts, the output layer, no embedding.
    pub active: u64,
}

/// Counts the parameters of the matrices; norms and biases are less than a thousandth.
pub fn parameters(spec: &Spec) -> Parameters {
    let hidden = spec.hidden as u64;
    let head = spec.vocab as u64 * hidden;
    let mut out = Parameters { total: if spec.tied { head } else { 2 * head }, active: head };
    for layer in &spec.layers {
        let mut both = |total: u64, active: u64| {
            out.total += total;
            out.active += active;
        };
        match &layer.mixer {
            Mixer::Attention(a) => {
                let all = hidden * (2 * a.q_width() + 2 * a.kv_width()) as u64;
                both(all, all);
            }
            // A mixer this function does not know yet: its weights are not counted.
            _ => {}
        }
        match &layer.mlp {
            Mlp::Dense(d) => {
                let all = hidden * d.inner as u64 * if d.gated { 3 } else { 2 };
                both(all, all);
            }
            Mlp::Experts(e) => {
                let one = 3 * hidden * e.inner as u64;
                let router = hidden * e.count as u64;
                both(one * e.count as u64 + router, one * e.chosen as u64 + router);
            }
        }
    }
    out
}
