//! `oxiline dump text`: logits and hidden states of a language model, and its greedy tokens.

use oxiline::graph::{Error, Result};
use oxiline::kernels::ops::argmax;
use oxiline::language::decoder::{
    CausalLm, Decoder, KvFormat, LoadOptions, Observer, Quant, SequenceState, Span, State, Want,
};

use super::file::{self, Out};
use crate::cli::args::{DumpText, KvArg, TextQuantArg};

/// Rows of `embeddings_head`.
const HEAD: usize = 8;

/// Runs the dump.
pub fn run(args: DumpText) -> Result<()> {
    file::apart(&args.io.input, &args.io.output)?;
    let ids = file::read_ids(&args.io.input, "input_ids")?;
    let shown = args.io.input.display();
    if ids.is_empty() {
        return Err(Error::msg(format_args!("{shown}: `input_ids` is empty; a model needs at least one token")));
    }
    let path = oxiline::models::resolve(&args.model)?;
    let model = Decoder::load(&path, &load_options(&args), &mut |_, _| Ok(()))?;
    let (vocab, hidden) = (model.vocab(), model.spec().hidden);
    if let Some((at, id)) = ids.iter().enumerate().find(|(_, id)| **id as usize >= vocab) {
        return Err(Error::msg(format_args!(
            "{shown}: id {at} of `input_ids` is {id}; the vocabulary has {vocab} ids"
        )));
    }
    let len = ids.len() + args.greedy.saturating_sub(1);
    if len > model.context() {
        let context = model.context();
        return Err(Error::msg(format_args!(
            "{shown}: {len} positions are asked for; the model's context is {context}"
        )));
    }

    let mut state = model.new_state();
    let mut seen = Layers::default();
    let (mut logits, mut states) = (Vec::new(), Vec::new());
    for tokens in ids.chunks(args.chunk.map_or(ids.len(), |n| n as usize)) {
        let mut batch = [Span { keep_hidden: true, ..Span::new(&mut state, tokens, Want::All) }];
        if args.layers {
            seen.hidden = hidden;
            model.forward_observed(&mut batch, &mut seen)?;
        } else {
            model.forward(&mut batch)?;
        }
        logits.append(&mut batch[0].logits);
        states.append(&mut batch[0].hidden);
    }
    let greedy = greedy(&model, &mut state, &logits[logits.len() - vocab..], args.greedy)?;
    let mut tensors = vec![
        Out::f32("logits", &[ids.len(), vocab], &logits),
        Out::f32("hidden", &[ids.len(), hidden], &states),
        Out::ids("greedy_ids", &greedy),
    ];
    if args.layers {
        let head = ids.len().min(HEAD);
        tensors.extend([
            Out::f32("layer_last", &[seen.last.len() / hidden, hidden], &seen.last),
            Out::f32("layer0_all", &[ids.len(), hidden], &seen.first),
            Out::f32("embeddings_head", &[head, hidden], &seen.embeddings[..head * hidden]),
        ]);
    }
    file::write(&args.io.output, &tensors, Vec::new())
}

fn greedy(model: &Decoder, state: &mut State, last: &[f32], count: usize) -> Result<Vec<u32>> {
    let mut ids = Vec::new();
    let mut row = last.to_vec();
    while ids.len() < count {
        let Some(next) = argmax(&row) else {
            return Err(Error::msg(format_args!("the logits of position {} are not numbers", state.len() - 1)));
        };
        ids.push(next as u32);
        if ids.len() < count {
            let token = [next as u32];
            let mut batch = [Span::new(state, &token, Want::Last)];
            model.forward(&mut batch)?;
            row = std::mem::take(&mut batch[0].logits);
        }
    }
    Ok(ids)
}

/// The residual stream: of the first layer all rows, of every layer the last row.
#[derive(Default)]
struct Layers {
    hidden: usize,
    embeddings: Vec<f32>,
    first: Vec<f32>,
    last: Vec<f32>,
}

impl Observer for Layers {
    fn embeddings(&mut self, x: &[f32]) {
        self.embeddings.extend_from_slice(x);
        // The last pass is the one whose last rows stay.
        self.last.clear();
    }

    fn layer(&mut self, layer: usize, x: &[f32]) {
        if layer == 0 {
            self.first.extend_from_slice(x);
        }
        self.last.extend_from_slice(&x[x.len() - self.hidden..]);
    }
}

fn load_options(args: &DumpText) -> LoadOptions {
    LoadOptions {
        exact: args.exact,
        quant: args.quant.map(|q| match q {
            TextQuantArg::Q8 => Quant::Q8,
            TextQuantArg::Q4 => Quant::Q4,
        }),
        kv: args.kv.map(|kv| match kv {
            KvArg::F32 => KvFormat::F32,
            KvArg::F16 => KvFormat::F16,
            KvArg::Int8 => KvFormat::Int8,
        }),
    }
}
