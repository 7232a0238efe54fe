//! A conversation from Rust: `cargo run --release --example chat -- MODEL [PROMPT...]`.
//!
//! Each prompt is a turn; Ctrl-C ends the program. MODEL is a GGUF file, a folder, `org/name` or a known name.

use std::io::Write;

use oxiline::{Engine, EngineOptions, Event, Flow};

fn main() -> oxiline::Result<()> {
    let mut words = std::env::args().skip(1);
    let Some(model) = words.next() else {
        eprintln!("usage: chat MODEL [PROMPT...]");
        std::process::exit(2);
    };
    let mut prompts: Vec<String> = words.collect();
    if prompts.is_empty() {
        prompts = vec!["What is 17 * 23?".into(), "And minus one?".into()];
    }
    let mut options = EngineOptions::new();
    options.set("max_tokens", "200")?.set("system", "Answer in one sentence.")?;
    let mut engine = Engine::load(&model, options)?.with_tools(oxiline::tools::builtin(), oxiline::tools::call);
    for prompt in prompts {
        println!("> {prompt}");
        let turn = engine.send(&prompt, |event| {
            match event {
                Event::Text(text) => {
                    print!("{text}");
                    // Nobody reads any more: stop, and keep what there is.
                    if std::io::stdout().flush().is_err() {
                        return Flow::Stop;
                    }
                }
                Event::ToolResult(call, result) => eprintln!("[{}: {result}]", call.name),
                _ => {}
            }
            Flow::Continue
        })?;
        let stats = &turn.stats;
        println!();
        eprintln!(
            "[{} tokens, {:.1} tokens/s; {} of the prompt's {} tokens were known]",
            stats.tokens,
            stats.decode_tok_s(),
            stats.cached_tokens,
            stats.prompt_tokens
        );
    }
    Ok(())
}
