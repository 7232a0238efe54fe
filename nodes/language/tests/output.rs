//! Answers taken apart, in any pieces, as the reference takes the whole apart.

use std::sync::Arc;

use oxiline_language::chat::{OutputFormat, OutputParser, Piece};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Thinking, text and calls of an answer given in pieces of `sizes` characters.
fn parse(mut parser: OutputParser, output: &str, sizes: &[usize]) -> (String, String, Vec<Value>) {
    let (mut thinking, mut text, mut calls) = (String::new(), String::new(), Vec::new());
    let mut take = |pieces: Vec<Piece>| {
        for piece in pieces {
            match piece {
                Piece::Text(t) => text.push_str(&t),
                Piece::Thinking(t) => thinking.push_str(&t),
                Piece::ToolCall(c) => calls.push(json!({"name": c.name, "arguments": c.arguments})),
            }
        }
    };
    let chars: Vec<char> = output.chars().collect();
    let (mut at, mut n) = (0, 0);
    while at < chars.len() {
        let end = (at + sizes[n % sizes.len()].max(1)).min(chars.len());
        take(parser.push(&chars[at..end].iter().collect::<String>()));
        (at, n) = (end, n + 1);
    }
    take(parser.finish());
    (thinking, text, calls)
}

const QWEN: &str = "<think> <tool_call>";
const GEMMA: &str = "<|channel>thought <|tool_call>";
const LLAMA: &str = "<|start_header_id|> <|python_tag|>";

fn tools() -> Arc<[Value]> {
    let tool = |name: &str, properties: Value| json!({"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}});
    [
        tool("weather", json!({"city": {"type": "string"}, "days": {"type": "integer"}})),
        tool("order", json!({"items": {"type": "array"}, "gift": {"type": "boolean"}})),
    ]
    .into()
}

/// Template, end of the prompt, output, and what is in it.
fn cases() -> Vec<(&'static str, &'static str, &'static str, &'static str, &'static str, Value)> {
    vec![
        (QWEN, "assistant\n", "Plain answer.", "", "Plain answer.", json!([])),
        (QWEN, "assistant\n", "<think>\nlet me see\n</think>\n\nDone.", "let me see", "Done.", json!([])),
        (QWEN, "<think>\n\n</think>\n\n", "No thought.", "", "No thought.", json!([])),
        (QWEN, "assistant\n<think>\n", "hm.\n\nyes\n</think>\n\nDone. \n", "hm.\n\nyes", "Done. \n", json!([])),
        (
            QWEN,
            "assistant\n",
            "Checking.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"東京\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"order\", \"arguments\": {}}\n</tool_call>",
            "",
            "Checking.",
            json!([{"name": "weather", "arguments": {"city": "東京"}}, {"name": "order", "arguments": {}}]),
        ),
        (
            QWEN,
            "assistant\n",
            "<tool_call>\n<function=weather>\n<parameter=city>\n75001\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
            "",
            "",
            json!([{"name": "weather", "arguments": {"city": "75001", "days": 3}}]),
        ),
        (
            QWEN,
            "assistant\n",
            "<tool_call>\n<function=order>\n<parameter=items>\n[{\"a\": 1}]\n</parameter>\n<parameter=gift>\ntrue\n</parameter>\n</function>\n</tool_call>",
            "",
            "",
            json!([{"name": "order", "arguments": {"items": [{"a": 1}], "gift": true}}]),
        ),
        (QWEN, "x", "a < b <tool_ and <think", "", "a < b <tool_ and <think", json!([])),
        (QWEN, "x", "<tool_call>not json</tool_call> after", "", "<tool_call>not json</tool_call> after", json!([])),
        (QWEN, "x", "<tool_call>{\"name\": \"cut", "", "<tool_call>{\"name\": \"cut", json!([])),
        (
            GEMMA,
            "<|turn>model\n",
            "<|channel>thought\nneed it<channel|><|tool_call>call:weather{city:<|\"|>São {x}, <tool_call|> y:z<|\"|>,days:3}<tool_call|>",
            "need it",
            "",
            json!([{"name": "weather", "arguments": {"city": "São {x}, <tool_call|> y:z", "days": 3}}]),
        ),
        (
            GEMMA,
            "<|channel>thought\n<channel|>",
            "<|tool_call>call:order{a:{s:<|\"|>1<|\"|>,z:null},d:0.25,g:true,i:[{q:2}],t:[<|\"|>a<|\"|>,<|\"|>b c<|\"|>]}<tool_call|>",
            "",
            "",
            json!([{"name": "order", "arguments": {"a": {"s": "1", "z": null}, "d": 0.25, "g": true, "i": [{"q": 2}], "t": ["a", "b c"]}}]),
        ),
        (GEMMA, "x", "<|tool_call>call:now{}<tool_call|>", "", "", json!([{"name": "now", "arguments": {}}])),
        (LLAMA, "x", "{\"name\": \"now\", \"parameters\": {}}", "", "", json!([{"name": "now", "arguments": {}}])),
        (LLAMA, "x", "{\"a\": 1} is no call", "", "{\"a\": 1} is no call", json!([])),
        (
            LLAMA,
            "x",
            "<|python_tag|>{\"name\": \"now\", \"parameters\": {}}",
            "",
            "",
            json!([{"name": "now", "arguments": {}}]),
        ),
        ("no marks", "x", " <think> is text here \n", "", " <think> is text here \n", json!([])),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn an_answer_is_the_same_in_any_pieces(sizes in prop::collection::vec(1_usize..9, 1..5)) {
        for (template, prompt, output, thinking, text, calls) in cases() {
            let parser = OutputFormat::of(template).answer_to(prompt, tools());
            let got = parse(parser, output, &sizes);
            prop_assert_eq!(got, (thinking.into(), text.into(), calls.as_array().unwrap().clone()), "{}", output);
        }
    }

    #[test]
    fn nothing_breaks_it(output in "(<think>|</think>|<tool_call>|</tool_call>|<function=|<parameter=a>|<\\|tool_call>call:|\\{|\\}|a|\"|<\\|\"\\|>|,|:|\n| ){0,24}", at in 0_usize..3) {
        let parser = OutputFormat::of([QWEN, GEMMA, LLAMA][at]).answer_to("x", tools());
        parse(parser.clone(), &output, &[1]);
        parse(parser, &output, &[3, 7]);
    }
}

#[test]
fn the_references_answers() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/ref/text/chat/parse.json");
    let Ok(bytes) = std::fs::read(&root) else {
        eprintln!("left out: the reference kit is not beside this checkout");
        return;
    };
    let file: Value = serde_json::from_slice(&bytes).unwrap();
    let cases = file["cases"].as_array().unwrap();
    let tools: Arc<[Value]> = file["tools"].as_array().cloned().unwrap_or_default().into();
    for case in cases {
        let template = match case["template"].as_str().unwrap() {
            name if name.starts_with("gemma4") => GEMMA,
            _ => QWEN,
        };
        let output = case["output"].as_str().unwrap();
        let output = output.trim_end_matches("<|im_end|>").trim_end_matches("<turn|>");
        let parser = OutputFormat::of(template).answer_to(case["prompt_tail"].as_str().unwrap(), tools.clone());
        let (thinking, text, calls) = parse(parser, output, &[1]);
        let wanted = &case["parsed"];
        assert_eq!(thinking, wanted["reasoning_content"].as_str().unwrap_or_default(), "{output}");
        assert_eq!(text, wanted["content"].as_str().unwrap_or_default(), "{output}");
        let functions: Vec<Value> =
            wanted["tool_calls"].as_array().into_iter().flatten().map(|c| c["function"].clone()).collect();
        assert_eq!(calls, functions, "{output}");
    }
    assert_eq!(cases.len(), 16);
}
