//! A model actor of the language models' protocol that needs no weights: it answers with the user's words,
//! a word a step. Its tokens are the words.

use std::collections::VecDeque;

use oxiline::graph::protocol::llm::{
    Finish, Llm, LlmDone, LlmMark, LlmReply, LlmRequest, LlmStats, OpenLlm, Prompt, TokenInfo, ToolCall,
};
use oxiline::graph::{Error, Job, Load, Model, Result};
use schemars::JsonSchema;
use serde::Deserialize;

/// Options, which it does not look at.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EchoOptions {
    /// Where the weights would be.
    pub weights: String,
    /// How they would be quantised.
    pub quant: Option<String>,
}

/// The model.
pub struct Echo;

/// A stream.
#[derive(Default)]
pub struct EchoSession {
    words: VecDeque<String>,
    done: String,
    thinking: String,
    ids: Vec<u32>,
    prompt: usize,
}

impl Model for Echo {
    const KIND: &'static str = "echo-llm";
    const ABOUT: &'static str = "Repeats what it is told.";
    type Options = EchoOptions;
    type Protocol = Llm;
    type Session = EchoSession;

    fn identity(_: &EchoOptions) -> Result<String> {
        Ok(String::new())
    }

    fn load(_: EchoOptions, _: &Load) -> Result<Self> {
        Ok(Self)
    }

    fn open(&mut self, _: OpenLlm) -> Result<EchoSession> {
        Ok(EchoSession::default())
    }

    fn step(&mut self, jobs: &mut [Job<'_, Self>]) {
        for job in jobs {
            let request = job.request;
            match request {
                LlmRequest::Generate(generate) => step(job, &generate.prompt),
                LlmRequest::Render(prompt) => {
                    let (text, _) = said(prompt);
                    job.reply(reply_prompt(&text));
                    job.finish(Ok(()));
                }
                _ => {
                    job.reply(LlmReply::Marked(LlmMark { position: 0, turn: 0 }));
                    job.finish(Ok(()));
                }
            }
        }
    }
}

/// The prompt as text, and what there is to repeat.
fn said(prompt: &Prompt) -> (String, String) {
    match prompt {
        Prompt::Text(text) => (text.clone(), text.clone()),
        Prompt::Chat(chat) => {
            let content = |m: &serde_json::Value| m["content"].as_str().unwrap_or_default().to_string();
            let all: Vec<String> = chat.messages.iter().map(content).collect();
            (all.join("\n"), all.last().cloned().unwrap_or_default())
        }
        Prompt::Ids(ids) | Prompt::Append(ids) => (format!("{ids:?}"), format!("{ids:?}")),
    }
}

fn reply_prompt(text: &str) -> LlmReply {
    let ids: Vec<u32> = (0..text.split_whitespace().count() as u32).collect();
    LlmReply::Prompt { text: text.into(), ids: ids.into(), cached: 0, dropped: 0 }
}

fn step(job: &mut Job<'_, Echo>, prompt: &Prompt) {
    if job.first() {
        let (text, last) = said(prompt);
        *job.session = EchoSession { prompt: text.split_whitespace().count(), ..EchoSession::default() };
        job.reply(reply_prompt(&text));
        let mut last = last.as_str();
        if last == "fail" {
            return job.finish(Err(Error::msg("the model was asked to fail")));
        }
        if let Some((thought, rest)) = last.strip_prefix("<think>").and_then(|l| l.split_once("</think>")) {
            job.reply(LlmReply::Text { text: thought.into(), thinking: true });
            job.session.thinking = thought.into();
            last = rest;
        }
        let is_tool = matches!(prompt, Prompt::Chat(c) if c.messages.last().is_some_and(|m| m["role"] == "tool"));
        let for_ever = matches!(prompt, Prompt::Chat(c) if c.messages.iter().any(|m| m["content"] == "call-for-ever"));
        let call = last.strip_prefix("call ").filter(|_| !is_tool).and_then(|l| l.split_once(' '));
        let call = call.or(for_ever.then_some(("calculate", "1")));
        if let Some((name, expression)) = call {
            let call = ToolCall { name: name.into(), arguments: serde_json::json!({"expression": expression}) };
            job.reply(LlmReply::ToolCall(call.clone()));
            return finish(job, Finish::End, vec![call]);
        }
        job.session.words = last.split_inclusive(' ').map(String::from).collect();
        // Spaces lead, as tokens have them.
        let words: Vec<&str> = last.split(' ').collect();
        job.session.words =
            words.iter().enumerate().map(|(i, w)| if i == 0 { w.to_string() } else { format!(" {w}") }).collect();
    }
    if job.cancelled() {
        return finish(job, Finish::Cancelled, Vec::new());
    }
    let Some(word) = job.session.words.pop_front() else { return finish(job, Finish::End, Vec::new()) };
    job.session.done.push_str(&word);
    let id = job.session.ids.len() as u32;
    job.session.ids.push(id);
    let LlmRequest::Generate(generate) = job.request else { return };
    if generate.tokens {
        job.reply(LlmReply::Token(TokenInfo {
            id,
            text: word.as_bytes().into(),
            logprob: Some(-0.5),
            top: vec![(id, -0.5)],
        }));
    }
    job.reply(LlmReply::Text { text: word.as_str().into(), thinking: false });
    if generate.max_tokens.is_some_and(|most| job.session.ids.len() >= most) {
        finish(job, Finish::Length, Vec::new());
    }
}

fn finish(job: &mut Job<'_, Echo>, finish: Finish, tool_calls: Vec<ToolCall>) {
    let s = &*job.session;
    let stats = LlmStats {
        prompt_tokens: s.prompt,
        cached_tokens: 0,
        tokens: s.ids.len(),
        prefill_s: 0.5,
        decode_s: 0.25,
        wait_s: 0.0,
    };
    let done = LlmDone {
        finish,
        text: s.done.clone(),
        thinking: s.thinking.clone(),
        tool_calls,
        ids: s.ids.clone(),
        stats,
        position: s.prompt + s.ids.len(),
    };
    job.reply(LlmReply::Done(Box::new(done)));
    job.finish(Ok(()));
}
