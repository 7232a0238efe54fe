//! Templates of our own: where they are found, and Python's way of printing.

use std::fs;

use oxiline_graph::protocol::llm::Chat;
use oxiline_language::chat::ChatTemplate;
use oxiline_weights::gguf;
use serde_json::{Map, Value, json};

use crate::chat;

const OURS: &str = "{{ bos_token }}{% for m in messages %}\n[{{ m.role }}] {{ m.content }}{{ eos_token }}\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";

fn expression(source: &str, messages: Value) -> String {
    ChatTemplate::from_source(source, Map::new())
        .unwrap()
        .render(&chat(messages), false)
        .unwrap_or_else(|e| panic!("{source}: {e}"))
}

#[test]
fn found_in_every_place_a_checkpoint_keeps_it() {
    let dir = tempfile::tempdir().unwrap();
    let hello = chat(json!([{"role": "user", "content": "hi"}]));
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    let render = |chat: &Chat| ChatTemplate::load(dir.path()).unwrap().unwrap().render(chat, true).unwrap();
    assert!(ChatTemplate::load(dir.path()).unwrap().is_none());

    let config = json!({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": null, "chat_template": [
        {"name": "default", "template": "plain {{ messages[0].content }}{{ pad_token }}"},
        {"name": "tool_use", "template": "tools {{ tools | length }}"}]});
    write("tokenizer_config.json", &config.to_string());
    assert_eq!(render(&hello), "plain hi");
    let with_tools = Chat { tools: vec![json!({}), json!({})].into(), ..hello.clone() };
    assert_eq!(render(&with_tools), "tools 2");

    write("chat_template.json", &json!({"chat_template": "kept {{ messages[0].content }}"}).to_string());
    assert_eq!(render(&hello), "kept hi");

    write("chat_template.jinja", OURS);
    assert_eq!(render(&hello), "<s>[user] hi</s>\n[assistant]");

    write("chat_template.jinja", "{% for %}");
    let message = ChatTemplate::load(dir.path()).unwrap_err().to_string();
    assert!(message.contains("chat_template.jinja") && message.contains("line 1"), "{message}");
    write("chat_template.jinja", OURS);
    write("tokenizer_config.json", "[]");
    assert!(ChatTemplate::load(dir.path()).unwrap_err().to_string().contains("not a JSON object"));
}

#[test]
fn a_gguf_file_holds_template_and_tokens() {
    let mut metadata = gguf::Metadata::default();
    assert!(ChatTemplate::from_gguf(&metadata).unwrap().is_none());
    let mut set = |key: &str, value| metadata.0.insert(key.into(), value);
    set("tokenizer.chat_template", gguf::Value::String(OURS.into()));
    set("tokenizer.ggml.tokens", gguf::Value::Strings(vec!["<a>".into(), "<b>".into()]));
    set("tokenizer.ggml.bos_token_id", gguf::Value::U64(1));
    set("tokenizer.ggml.eos_token_id", gguf::Value::U64(9));
    let template = ChatTemplate::from_gguf(&metadata).unwrap().unwrap();
    assert_eq!(template.render(&chat(json!([])), true).unwrap(), "<b>[assistant]");
}

#[test]
fn printed_as_python_prints() {
    let value = json!([{"a": "é<&'\"\n\u{1}", "b": [1, -2.5, 1e16, 1e-5, 100000.0, true, null, {}, []]}]);
    for (source, wanted) in [
        (
            "{{ messages[0] | tojson }}",
            r#"{"a": "é<&'\"\n\u0001", "b": [1, -2.5, 1e+16, 1e-05, 100000.0, true, null, {}, []]}"#,
        ),
        ("{{ messages[0].a | tojson(ensure_ascii=true) }}", r#""\u00e9<&'\"\n\u0001""#),
        ("{{ {'b': 1, 'a': [2]} | tojson(indent=1, sort_keys=true) }}", "{\n \"a\": [\n  2\n ],\n \"b\": 1\n}"),
        ("{{ {'a': [1]} | tojson(separators=(',', ':')) }}", r#"{"a":[1]}"#),
        ("{{ messages[0].b }}", "[1, -2.5, 1e+16, 1e-05, 100000.0, True, None, {}, []]"),
        ("{{ [1, -2.5, true] ~ '' }}|{{ true ~ none }}|{{ (1, 'a') }}", "[1, -2.5, True]|TrueNone|(1, 'a')"),
        ("{{ {'k': \"it's\", 1: 'a\"b'} }}", r#"{'k': "it's", 1: 'a"b'}"#),
        ("{{ messages[0].b | string | length }}", "53"),
        ("{{ '\u{1f} x \u{1c}' | trim }}{{ ' \u{1e}y'.strip() }}{{ 'xxabxx'.strip('x') }}", "xyab"),
        ("{{ 'a,b'.split(',')[-1] }}{{ 'ab'[::-1] }}{{ 'x'.upper() }}", "bbaX"),
        ("{% generation %}\nx{%- endgeneration -%}\n y", "xy"),
        ("{% for a in [1,2,3] %}{% if a == 2 %}{% continue %}{% endif %}{{ a }}{% endfor %}", "13"),
        ("  {% if true %}\n  a\n  {% endif %}\nb\n", "  a\nb"),
        ("{{ undefined_thing }}{{ undefined_thing is defined }}", "False"),
    ] {
        assert_eq!(expression(source, value.clone()), wanted, "{source}");
    }
    let now = expression("{{ strftime_now('%Y-%m-%d %H') }}", json!([]));
    assert!(now.len() == 13 && now.starts_with("20"), "{now}");
}

#[test]
fn an_answer_goes_on_from_where_it_was_begun() {
    let begun = Chat {
        continue_last: true,
        ..chat(json!([{"role": "user", "content": "q"}, {"role": "assistant", "content": "It is "}]))
    };
    let plain = ChatTemplate::from_source(OURS, Map::new()).unwrap();
    assert_eq!(plain.render(&begun, true).unwrap(), "[user] q\n[assistant] It is ");
    let trims =
        ChatTemplate::from_source("{% for m in messages %}<{{ m.content | trim }}>\n{% endfor %}", Map::new()).unwrap();
    assert_eq!(trims.render(&begun, true).unwrap(), "<q>\n<It is");
    let drops = ChatTemplate::from_source("{{ messages[0].content }}", Map::new()).unwrap();
    assert!(drops.render(&begun, true).unwrap_err().to_string().contains("leaves out"));
    let empty = Chat { continue_last: true, ..Chat::default() };
    assert!(plain.render(&empty, true).unwrap_err().to_string().contains("no text to go on from"));
}

#[test]
fn the_templates_own_words_are_the_error() {
    let t = ChatTemplate::from_source("{{ raise_exception('Roles must ' ~ 'alternate') }}", Map::new()).unwrap();
    let message = t.render(&Chat::default(), true).unwrap_err().to_string();
    assert_eq!(message, "the chat template: the chat template refuses the conversation: Roles must alternate");
}
