//! The real templates against the reference's prompts. They are other people's texts, so they are read
//! from the reference kit and are not part of this repository.

use oxiline_graph::protocol::llm::Chat;
use oxiline_language::chat::ChatTemplate;
use serde_json::{Map, Value, json};

use crate::shared;

#[test]
fn prompts_are_the_references_byte_for_byte() {
    let (Some(goldens), Some(templates)) = (shared("text/chat"), shared("gen/templates")) else { return };
    let (mut rendered, mut refused) = (0, 0);
    for entry in std::fs::read_dir(goldens).unwrap() {
        let path = entry.unwrap().path();
        let golden: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let (Some(name), Some(cases)) = (golden["template"].as_str(), golden["cases"].as_array()) else { continue };
        let source = std::fs::read_to_string(templates.join(name)).unwrap();
        let mut variables = Map::new();
        for token in ["bos_token", "eos_token"] {
            if golden[token].is_string() {
                variables.insert(token.into(), golden[token].clone());
            }
        }
        variables.insert("pad_token".into(), golden["eos_token"].clone());
        let template = ChatTemplate::from_source(&source, variables).unwrap();
        for case in cases {
            let mut extra = case["kwargs"].as_object().unwrap().clone();
            let think = extra.remove("enable_thinking").and_then(|v| v.as_bool());
            let chat = Chat {
                messages: case["messages"].as_array().unwrap().clone().into(),
                tools: case["tools"].as_array().cloned().unwrap_or_default().into(),
                think,
                extra,
                continue_last: false,
            };
            let got = template.render(&chat, case["add_generation_prompt"] == json!(true));
            let place = format!("{name}: {}", case["name"]);
            match case["error"].as_str() {
                Some(error) => {
                    let message = got.expect_err(&place).to_string();
                    let said = error.trim_start_matches("TemplateError: ");
                    assert!(message.contains(said), "{place}: {message}");
                    refused += 1;
                }
                None => {
                    assert_eq!(
                        got.unwrap_or_else(|e| panic!("{place}: {e}")),
                        case["prompt"].as_str().unwrap(),
                        "{place}"
                    );
                    rendered += 1;
                }
            }
        }
    }
    eprintln!("{rendered} prompts equal, {refused} refused as the reference refuses them");
    assert_eq!(rendered + refused, 291);
}
