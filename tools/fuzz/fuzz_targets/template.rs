#![no_main]
use oxiline_graph::protocol::llm::Chat;
use oxiline_language::chat::{ChatTemplate, Variables};
use serde_json::json;

libfuzzer_sys::fuzz_target!(|source: &str| {
    let Ok(template) = ChatTemplate::from_source(source, Variables::default()) else { return };
    let messages = [
        json!({"role": "system", "content": "be brief"}),
        json!({"role": "user", "content": "what is 2 + 2?"}),
        json!({"role": "assistant", "content": "4"}),
    ];
    let _ = template.render(&Chat { messages: messages.into(), ..Chat::default() }, true);
});
