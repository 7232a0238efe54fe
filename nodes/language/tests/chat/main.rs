//! Prompts, answers and tools of conversations.

mod hostile;
mod reference;
mod templates;

use oxiline_graph::protocol::llm::Chat;
use serde_json::Value;

/// The reference kit beside this checkout, when it is there.
fn shared(path: &str) -> Option<std::path::PathBuf> {
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let found = here.ancestors().map(|a| a.join("shared/ref").join(path)).find(|p| p.exists());
    if found.is_none() {
        eprintln!("skipped: no shared/ref/{path} beside this checkout");
    }
    found
}

fn chat(messages: Value) -> Chat {
    Chat { messages: messages.as_array().cloned().unwrap_or_default().into(), ..Chat::default() }
}
