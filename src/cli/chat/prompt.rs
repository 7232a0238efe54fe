//! The prompt itself: printed to the byte, or its logits, without a conversation.

use std::io::Write;
use std::path::Path;

use oxiline::EngineOptions;
use oxiline::engine::Conversation;
use oxiline::graph::protocol::llm::Chat as Messages;
use oxiline::graph::{Error, Result};
use serde_json::Value;

use super::args::Chat;
use super::{read_stdin, read_text};
use crate::cli::Outcome;

/// Prints exactly what the checkpoint's template makes of the messages: no line end is added.
pub fn print(args: &Chat, weights: &Path) -> Result<Outcome> {
    let text = if args.raw { words(args)? } else { rendered(args, weights)? };
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(Outcome::Done),
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(Outcome::Done),
        Err(e) => Err(Error::msg(format_args!("cannot write to standard output: {e}"))),
    }
}

/// The user's words, where no file of messages is given.
fn words(args: &Chat) -> Result<String> {
    let text = match args.prompt.as_deref() {
        Some("-") | None => read_stdin()?,
        Some(text) => text.to_string(),
    };
    if text.trim().is_empty() {
        return Err(Error::msg("there is nothing to answer: the prompt is empty"));
    }
    Ok(text)
}

fn rendered(args: &Chat, weights: &Path) -> Result<String> {
    let Some(template) = oxiline::engine::chat_template(weights)? else {
        return Err(Error::msg(format_args!(
            "`{}` has no chat template; use --raw, which gives the model the text as it is",
            weights.display()
        )));
    };
    let chat = Messages {
        messages: messages(args)?.into(),
        tools: tools(args)?.into(),
        // Nothing said: what the template does by itself.
        think: if args.think { Some(true) } else { args.no_think.then_some(false) },
        ..Messages::default()
    };
    template.render(&chat, !args.no_generation_prompt)
}

/// Messages of the file as they are, or a conversation of the flags.
fn messages(args: &Chat) -> Result<Vec<Value>> {
    if let Some(file) = &args.messages {
        return Ok(Conversation::load(file)?.messages().to_vec());
    }
    let system = match &args.system {
        Some(text) => Some(text.clone()),
        None if args.no_system => None,
        None => Some(oxiline::tools::default_system()),
    };
    let mut conversation = Conversation::new(system, false);
    conversation.ask(&words(args)?);
    Ok(conversation.messages().to_vec())
}

fn tools(args: &Chat) -> Result<Vec<Value>> {
    match args.tools.as_deref() {
        None => Ok(Vec::new()),
        Some("") => Ok(oxiline::tools::builtin()),
        Some(file) => {
            let text = read_text(Path::new(file))?;
            serde_json::from_str(&text)
                .map_err(|e| Error::msg(format_args!("`{file}`: tools are a JSON array of objects ({e})")))
        }
    }
}

/// Writes the logits that follow the prompt: `logits` f32 `[vocab]`, `ids` i64 `[T]`.
pub fn dump_logits(args: &Chat, options: &EngineOptions, weights: &Path, out: &Path) -> Result<Outcome> {
    use oxiline::language::decoder::{CausalLm, Decoder, Span, Want};
    let text = if args.raw { words(args)? } else { rendered(args, weights)? };
    let tokenizer = oxiline::engine::tokenizer(weights)?;
    let ids = tokenizer.encode(&text, args.raw).map_err(Error::msg)?;
    if ids.is_empty() {
        return Err(Error::msg("the prompt is empty: give --prompt or text on standard input"));
    }
    let model = Decoder::load(weights, &oxiline::engine::load_options(options)?, &mut |_, _| Ok(()))?;
    let mut state = model.new_state();
    let mut batch = [Span::new(&mut state, &ids, Want::Last)];
    model.forward(&mut batch)?;
    let logits: Vec<u8> = batch[0].logits.iter().flat_map(|v| v.to_le_bytes()).collect();
    let wide: Vec<u8> = ids.iter().flat_map(|id| i64::from(*id).to_le_bytes()).collect();
    let view =
        |dtype, len: usize, bytes| safetensors::tensor::TensorView::new(dtype, vec![len], bytes).map_err(Error::msg);
    let tensors = [
        ("logits", view(safetensors::Dtype::F32, batch[0].logits.len(), &logits)?),
        ("ids", view(safetensors::Dtype::I64, ids.len(), &wide)?),
    ];
    let bytes = safetensors::serialize(tensors, None).map_err(Error::msg)?;
    std::fs::write(out, bytes).map_err(|e| Error::msg(format_args!("`{}` cannot be written: {e}", out.display())))?;
    Ok(Outcome::Done)
}
