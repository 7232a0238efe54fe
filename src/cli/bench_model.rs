//! `oxiline bench MODEL`: how fast a language model reads a prompt and writes an answer, beside what the
//! machine would allow.

use std::fmt::Write;
use std::time::Instant;

use oxiline::engine::{Parameters, parameters};
use oxiline::graph::{Error, Result};
use oxiline::kernels::Pool;
use oxiline::kernels::limits::Limits;
use oxiline::kernels::ops::argmax;
use oxiline::language::decoder::{CausalLm, Decoder, KvFormat, LoadOptions, Quant, Span, Want};
use serde_json::{Value, json};

use super::args::{Bench, Common};
use super::{Outcome, interrupt, memory, models, print};

/// Most sequences decoded together.
const MAX_BATCH: usize = 256;

/// Runs the verb.
pub fn run(model: &str, args: &Bench, common: &Common) -> Result<Outcome> {
    let options = load_options(args)?;
    if args.prompt == 0 || args.generate == 0 || args.repeat == 0 || !(1..=MAX_BATCH).contains(&args.decode_batch) {
        return Err(Error::msg(format_args!(
            "--prompt, --generate and --repeat are 1 or more, and --decode-batch is from 1 to {MAX_BATCH}"
        )));
    }
    let weights = models::fetch(model, common)?;
    let began = Instant::now();
    let model = Decoder::load(&weights, &options, &mut |_, _| Ok(()))?;
    let load_s = began.elapsed().as_secs_f64();
    if args.prompt + args.generate > model.context() {
        return Err(Error::msg(format_args!(
            "--prompt {} and --generate {} are more than the model's context of {}",
            args.prompt,
            args.generate,
            model.context()
        )));
    }
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let asked = stop.clone();
    let _guard = interrupt::on_interrupt(move |_| asked.store(true, std::sync::atomic::Ordering::SeqCst));
    let stopped = || stop.load(std::sync::atomic::Ordering::SeqCst);
    let Some((pp, tg)) = measure(&model, args, &stopped)? else { return Ok(Outcome::Stopped) };
    let figures =
        Figures { limits: Limits::measure(Pool::global()), parameters: parameters(model.spec()), load_s, pp, tg };
    let peak = memory::peak_bytes();
    print(if args.json { figures.json(&model, args, peak).to_string() } else { figures.text(&model, args, peak) })?;
    Ok(Outcome::Done)
}

fn load_options(args: &Bench) -> Result<LoadOptions> {
    let quant = match args.quant.as_deref() {
        None => None,
        Some("q8") => Some(Quant::Q8),
        Some("q4") => Some(Quant::Q4),
        Some(other) => return Err(Error::msg(format_args!("--quant cannot be `{other}`: give q8 or q4"))),
    };
    let kv = match args.kv.as_deref() {
        None => None,
        Some("f32") => Some(KvFormat::F32),
        Some("f16") => Some(KvFormat::F16),
        Some("int8") => Some(KvFormat::Int8),
        Some(other) => return Err(Error::msg(format_args!("--kv cannot be `{other}`: give f32, f16 or int8"))),
    };
    Ok(LoadOptions { exact: args.exact, quant, kv })
}

/// Tokens a second of several runs.
#[derive(Debug, Clone, Copy)]
struct Rate {
    median: f64,
    min: f64,
    max: f64,
}

impl Rate {
    fn of(mut runs: Vec<f64>) -> Self {
        runs.sort_by(f64::total_cmp);
        let middle = runs.len() / 2;
        let median = if runs.len() % 2 == 1 { runs[middle] } else { (runs[middle - 1] + runs[middle]) / 2.0 };
        Self { median, min: runs[0], max: runs[runs.len() - 1] }
    }

    fn json(&self) -> Value {
        json!({"median": self.median, "min": self.min, "max": self.max})
    }
}

/// Rates of prompt and answer; `None` when it was stopped.
fn measure(model: &impl CausalLm, args: &Bench, stopped: &dyn Fn() -> bool) -> Result<Option<(Rate, Rate)>> {
    let prompt = ids(args.prompt, model.vocab());
    // Pages of mapped weights, threads and caches, once.
    let mut state = model.new_state();
    forward(model, &mut [(&mut state, &prompt[..prompt.len().min(16)])])?;
    let (mut pp, mut tg) = (Vec::new(), Vec::new());
    for _ in 0..args.repeat {
        let mut state = model.new_state();
        let began = Instant::now();
        let mut last = forward(model, &mut [(&mut state, &prompt)])?;
        pp.push(prompt.len() as f64 / began.elapsed().as_secs_f64());
        let mut states: Vec<_> =
            (1..args.decode_batch).map(|_| oxiline::language::decoder::SequenceState::fork(&state)).collect();
        states.push(state);
        // Sequences differ from their first token on.
        let first = last.pop().unwrap_or_default();
        let mut tokens: Vec<u32> = (0..states.len() as u32).map(|i| (first + i) % model.vocab() as u32).collect();
        let began = Instant::now();
        for _ in 0..args.generate {
            if stopped() {
                return Ok(None);
            }
            let mut batch: Vec<_> = states.iter_mut().zip(tokens.chunks(1)).collect();
            tokens = forward(model, &mut batch)?;
        }
        tg.push((args.generate * args.decode_batch) as f64 / began.elapsed().as_secs_f64());
    }
    Ok(Some((Rate::of(pp), Rate::of(tg))))
}

/// One pass; the most probable next token of each sequence.
fn forward<M: CausalLm>(model: &M, batch: &mut [(&mut M::State, &[u32])]) -> Result<Vec<u32>> {
    let mut spans: Vec<_> =
        batch.iter_mut().map(|(state, tokens)| Span::new(&mut **state, tokens, Want::Last)).collect();
    model.forward(&mut spans)?;
    Ok(spans.iter().map(|span| argmax(&span.logits).unwrap_or_default() as u32).collect())
}

/// Token ids all over the vocabulary, the same every time.
fn ids(count: usize, vocab: usize) -> Vec<u32> {
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    (0..count)
        .map(|_| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((seed >> 33) % vocab.max(1) as u64) as u32
        })
        .collect()
}

struct Figures {
    limits: Limits,
    parameters: Parameters,
    load_s: f64,
    pp: Rate,
    tg: Rate,
}

impl Figures {
    /// Bytes a step of the answer reads: the weights a token is multiplied with, and half its caches.
    fn bytes_per_step(&self, model: &Decoder, args: &Bench) -> f64 {
        let share = self.parameters.active as f64 / self.parameters.total.max(1) as f64;
        let positions = args.prompt as f64 + args.generate as f64 / 2.0;
        model.weight_bytes() as f64 * share + positions * model.bytes_per_position() as f64 * args.decode_batch as f64
    }

    /// Floating-point operations of the prompt's products a second.
    fn gflops(&self) -> f64 {
        2.0 * self.parameters.active as f64 * self.pp.median / 1e9
    }

    fn gbytes(&self, model: &Decoder, args: &Bench) -> f64 {
        self.bytes_per_step(model, args) * self.tg.median / args.decode_batch as f64 / 1e9
    }

    fn json(&self, model: &Decoder, args: &Bench, peak: Option<u64>) -> Value {
        let (l, p) = (&self.limits, &self.parameters);
        json!({
            "family": model.spec().family, "parameters": p.total, "active_parameters": p.active,
            "weights_bytes": model.weight_bytes(), "kv_bytes_per_token": model.bytes_per_position(),
            "threads": l.threads, "prompt": args.prompt, "generate": args.generate, "repeat": args.repeat,
            "decode_batch": args.decode_batch, "load_s": self.load_s,
            "pp": self.pp.json(), "tg": self.tg.json(),
            "pp_gflops": self.gflops(), "tg_gbytes_s": self.gbytes(model, args),
            "bytes_per_step": self.bytes_per_step(model, args),
            "limits": {"read_gbytes_s": l.read, "fma_gflops": l.fma, "int8_gops": l.int8},
            "tg_of_read": self.gbytes(model, args) / l.read, "pp_of_fma": self.gflops() / l.fma,
            "pp_of_int8": self.gflops() / l.int8, "peak_rss": peak,
        })
    }

    fn text(&self, model: &Decoder, args: &Bench, peak: Option<u64>) -> String {
        let (l, mut text) = (&self.limits, String::new());
        let _ = writeln!(
            text,
            "{}, {:.1} M parameters, {:.1} MB of weights, loaded in {:.2} s, {} threads",
            model.spec().family,
            self.parameters.total as f64 / 1e6,
            model.weight_bytes() as f64 / 1e6,
            self.load_s,
            l.threads
        );
        let _ = writeln!(text, "{:<10} {:>10} {:>10} {:>10}  limit", "tokens/s", "median", "min", "max");
        let mut row = |name: String, rate: &Rate| {
            let _ = write!(text, "{name:<10} {:>10.1} {:>10.1} {:>10.1}  ", rate.median, rate.min, rate.max);
        };
        row(format!("pp{}", args.prompt), &self.pp);
        let (fma, int8) = (self.gflops() / l.fma * 100.0, self.gflops() / l.int8 * 100.0);
        let rest = format!(
            "{:.0} GFLOP/s: {fma:.0} % of {:.0} (FMA), {int8:.0} % of {:.0} (int8)\n",
            self.gflops(),
            l.fma,
            l.int8
        );
        text.push_str(&rest);
        let mut row = |name: String, rate: &Rate| {
            let _ = write!(text, "{name:<10} {:>10.1} {:>10.1} {:>10.1}  ", rate.median, rate.min, rate.max);
        };
        let name = if args.decode_batch > 1 {
            format!("tg{}x{}", args.generate, args.decode_batch)
        } else {
            format!("tg{}", args.generate)
        };
        row(name, &self.tg);
        let gbytes = self.gbytes(model, args);
        let mb = self.bytes_per_step(model, args) / 1e6;
        let _ = writeln!(
            text,
            "{mb:.0} MB a step, {gbytes:.1} GB/s: {:.0} % of {:.1} (read)",
            gbytes / l.read * 100.0,
            l.read
        );
        if let Some(peak) = peak {
            let _ = write!(text, "peak memory {:.0} MB", peak as f64 / 1e6);
        }
        text
    }
}
