//! A naive decoder in f64, straight from `config.json` and named tensors: no cache, no batch,
//! nothing shared with the crate. It says what the numbers should be for any sizes.

use std::collections::HashMap;
use std::f64::consts::PI;

use serde_json::Value;

/// Tensors by name, row-major.
pub type Tensors = HashMap<String, Vec<f64>>;

type Rows = Vec<Vec<f64>>;

pub struct Reference<'a> {
    pub config: &'a Value,
    pub tensors: &'a Tensors,
    pub prefix: &'a str,
}

impl Reference<'_> {
    fn num(&self, key: &str) -> Option<f64> {
        self.config[key].as_f64()
    }
    fn size(&self, key: &str) -> usize {
        self.num(key).unwrap_or_else(|| panic!("{key}")) as usize
    }
    fn flag(&self, key: &str) -> bool {
        self.config[key].as_bool().unwrap_or(false)
    }
    fn gemma(&self) -> bool {
        self.config["model_type"] == "gemma3_text"
    }
    fn t(&self, name: &str) -> &[f64] {
        let full = format!("{}{name}", self.prefix);
        self.tensors.get(&full).unwrap_or_else(|| panic!("{full}"))
    }
    fn linear(&self, x: &Rows, name: &str) -> Rows {
        let w = self.t(&format!("{name}.weight"));
        let bias = self.tensors.get(&format!("{}{name}.bias", self.prefix));
        let row = |x: &Vec<f64>| {
            let dot = |w: &[f64]| w.iter().zip(x).map(|(w, x)| w * x).sum::<f64>();
            let mut y: Vec<f64> = w.chunks(x.len()).map(dot).collect();
            if let Some(bias) = bias {
                y.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
            }
            y
        };
        x.iter().map(row).collect()
    }
    fn norm_row(&self, x: &[f64], w: &[f64]) -> Vec<f64> {
        let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
        let scale = 1.0 / (mean + self.num("rms_norm_eps").unwrap_or(1e-6)).sqrt();
        let offset = if self.gemma() { 1.0 } else { 0.0 };
        x.iter().zip(w).map(|(x, w)| x * scale * (w + offset)).collect()
    }
    fn norm(&self, x: &Rows, name: &str) -> Rows {
        let w = self.t(&format!("{name}.weight"));
        x.iter().map(|x| self.norm_row(x, w)).collect()
    }

    /// Frequencies at a position, and the factor on cosines and sines.
    fn frequencies(&self, dims: usize, local: bool, position: usize) -> (Vec<f64>, f64) {
        let d = dims as f64;
        let theta = if local { self.num("rope_local_base_freq") } else { self.num("rope_theta") }.unwrap_or(1e4);
        let plain = |theta: f64| (0..dims / 2).map(|i| theta.powf(-2.0 * i as f64 / d)).collect::<Vec<f64>>();
        let s = &self.config["rope_scaling"];
        let get = |key: &str| s[key].as_f64();
        let original = get("original_max_position_embeddings").or(self.num("max_position_embeddings")).unwrap_or(0.0);
        let inv = plain(theta);
        match s["rope_type"].as_str() {
            Some("linear") if !local => (inv.iter().map(|f| f / get("factor").unwrap()).collect(), 1.0),
            Some("dynamic") if !local && (position + 1) as f64 > original => {
                let f = get("factor").unwrap();
                let grown = f * (position + 1) as f64 / original - (f - 1.0);
                (plain(theta * grown.powf(d / (d - 2.0))), 1.0)
            }
            Some("llama3") => {
                let (f, lo, hi) =
                    (get("factor").unwrap(), get("low_freq_factor").unwrap(), get("high_freq_factor").unwrap());
                let one = |v: &f64| {
                    let turns = original * v / (2.0 * PI);
                    let keep = ((turns - lo) / (hi - lo)).clamp(0.0, 1.0);
                    v * keep + v / f * (1.0 - keep)
                };
                (inv.iter().map(one).collect(), 1.0)
            }
            Some("yarn") => {
                let f = get("factor").unwrap();
                let at = |turns: f64| d * (original / (turns * 2.0 * PI)).ln() / (2.0 * theta.ln());
                let low = at(get("beta_fast").unwrap_or(32.0)).floor().max(0.0);
                let mut high = at(get("beta_slow").unwrap_or(1.0)).ceil().min(d - 1.0);
                if low == high {
                    high += 0.001;
                }
                let one = |(i, v): (usize, &f64)| {
                    let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                    v / f * ramp + v * (1.0 - ramp)
                };
                let factor = get("attention_factor").unwrap_or(0.1 * f.ln() + 1.0);
                (inv.iter().enumerate().map(one).collect(), factor)
            }
            _ => (inv, 1.0),
        }
    }

    fn rotate(&self, head: &mut [f64], local: bool, position: usize) {
        let part = self.num("partial_rotary_factor").unwrap_or(1.0);
        let dims = (head.len() as f64 * part) as usize;
        let (inv, factor) = self.frequencies(dims, local, position);
        for i in 0..dims / 2 {
            let (sin, cos) = (position as f64 * inv[i]).sin_cos();
            let (a, b) = (head[i], head[i + dims / 2]);
            head[i] = factor * (a * cos - b * sin);
            head[i + dims / 2] = factor * (b * cos + a * sin);
        }
    }

    fn slides(&self, layer: usize) -> bool {
        match self.config["model_type"].as_str() {
            Some("gemma3_text") => !(layer + 1).is_multiple_of(self.size("sliding_window_pattern")),
            Some("mistral") => self.num("sliding_window").is_some(),
            Some("qwen2" | "qwen3") => self.flag("use_sliding_window") && layer >= self.size("max_window_layers"),
            _ => false,
        }
    }

    fn attention(&self, x: &Rows, layer: usize) -> Rows {
        let at = format!("layers.{layer}.self_attn");
        let heads = self.size("num_attention_heads");
        let kv = self.num("num_key_value_heads").map_or(heads, |v| v as usize);
        let dim = self.num("head_dim").map_or(self.size("hidden_size") / heads, |v| v as usize);
        let sliding = self.slides(layer);
        let split = |name: &str, norm: &str, rotate: bool| -> Vec<Rows> {
            let norm = self.tensors.get(&format!("{}{at}.{norm}.weight", self.prefix));
            let head = |position: usize, head: &[f64]| {
                let mut head = norm.map_or(head.to_vec(), |w| self.norm_row(head, w));
                if rotate {
                    self.rotate(&mut head, sliding && self.gemma(), position);
                }
                head
            };
            let rows = self.linear(x, &format!("{at}.{name}_proj"));
            rows.iter().enumerate().map(|(p, row)| row.chunks(dim).map(|h| head(p, h)).collect()).collect()
        };
        let (q, k, v) = (split("q", "q_norm", true), split("k", "k_norm", true), split("v", "-", false));
        let scale = 1.0 / self.num("query_pre_attn_scalar").unwrap_or(dim as f64).sqrt();
        let mut out = Vec::new();
        for p in 0..x.len() {
            let first = if sliding { (p + 1).saturating_sub(self.size("sliding_window")) } else { 0 };
            let mut row = Vec::new();
            for (h, q) in q[p].iter().enumerate() {
                let g = h / (heads / kv);
                let dot = |j: usize| scale * q.iter().zip(&k[j][g]).map(|(a, b)| a * b).sum::<f64>();
                let weights = softmax((first..=p).map(dot).collect());
                let value = |i: usize| weights.iter().zip(&v[first..=p]).map(|(w, v)| w * v[g][i]).sum::<f64>();
                row.extend((0..dim).map(value));
            }
            out.push(row);
        }
        self.linear(&out, &format!("{at}.o_proj"))
    }

    fn act(&self, x: f64) -> f64 {
        match self.gemma() {
            true => 0.5 * x * (1.0 + ((2.0 / PI).sqrt() * (x + 0.044715 * x * x * x)).tanh()),
            false => x / (1.0 + (-x).exp()),
        }
    }

    fn mlp(&self, x: &Rows, at: &str) -> Rows {
        let mut inner = self.linear(x, &format!("{at}.gate_proj"));
        for (gate, up) in inner.iter_mut().zip(self.linear(x, &format!("{at}.up_proj"))) {
            gate.iter_mut().zip(up).for_each(|(g, u)| *g = self.act(*g) * u);
        }
        self.linear(&inner, &format!("{at}.down_proj"))
    }

    fn experts(&self, x: &Rows, at: &str) -> Rows {
        let mut out = Vec::new();
        for (x, scores) in x.iter().zip(self.linear(x, &format!("{at}.gate"))) {
            let weights = softmax(scores);
            let mut order: Vec<usize> = (0..weights.len()).collect();
            order.sort_by(|&a, &b| weights[b].total_cmp(&weights[a]));
            order.truncate(self.size("num_experts_per_tok"));
            let sum: f64 = if self.flag("norm_topk_prob") { order.iter().map(|&e| weights[e]).sum() } else { 1.0 };
            let mut row = vec![0.0; x.len()];
            for e in order {
                let result = &self.mlp(&vec![x.clone()], &format!("{at}.experts.{e}"))[0];
                row.iter_mut().zip(result).for_each(|(o, r)| *o += weights[e] / sum * r);
            }
            out.push(row);
        }
        out
    }

    /// Logits of every position.
    pub fn logits(&self, ids: &[u32]) -> Vec<f32> {
        let hidden = self.size("hidden_size");
        let scale = if self.gemma() { (hidden as f64).sqrt() } else { 1.0 };
        let table = self.t("embed_tokens.weight");
        let row = |&id: &u32| table[id as usize * hidden..][..hidden].iter().map(|v| v * scale).collect();
        let mut x: Rows = ids.iter().map(row).collect();
        for i in 0..self.size("num_hidden_layers") {
            let at = |name: &str| format!("layers.{i}.{name}");
            let mut y = self.attention(&self.norm(&x, &at("input_layernorm")), i);
            let before = if self.gemma() { "pre_feedforward_layernorm" } else { "post_attention_layernorm" };
            if self.gemma() {
                y = self.norm(&y, &at("post_attention_layernorm"));
            }
            add(&mut x, &y);
            let normed = self.norm(&x, &at(before));
            let mixture = self.tensors.contains_key(&format!("{}{}.weight", self.prefix, at("mlp.gate")));
            y = if mixture { self.experts(&normed, &at("mlp")) } else { self.mlp(&normed, &at("mlp")) };
            if self.gemma() {
                y = self.norm(&y, &at("post_feedforward_layernorm"));
            }
            add(&mut x, &y);
        }
        let head = self.tensors.get("lm_head.weight").map_or(table, Vec::as_slice);
        let cap = self.num("final_logit_softcapping");
        let dot = |x: &Vec<f64>, w: &[f64]| {
            let v: f64 = w.iter().zip(x).map(|(w, x)| w * x).sum();
            cap.map_or(v, |cap| cap * (v / cap).tanh()) as f32
        };
        self.norm(&x, "norm").iter().flat_map(|x| head.chunks(hidden).map(move |w| dot(x, w))).collect()
    }
}

fn add(x: &mut Rows, y: &Rows) {
    x.iter_mut().flatten().zip(y.iter().flatten()).for_each(|(x, y)| *x += y);
}

fn softmax(mut x: Vec<f64>) -> Vec<f64> {
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    x.iter_mut().for_each(|v| *v = (*v - max).exp());
    let sum: f64 = x.iter().sum();
    x.iter_mut().for_each(|v| *v /= sum);
    x
}
