//! Text to tokens and back, and the prompt every window begins with.

use oxiline_graph::protocol::speech::Task;
use oxiline_graph::{Result, bail};

use super::Config;

/// What decoding needs of a tokenizer. No special tokens are added or looked for.
pub trait Codec: Send + Sync {
    /// The ids of plain text.
    fn encode(&self, text: &str) -> Result<Vec<u32>>;
    /// The text of ids; bytes that are no UTF-8 come out as U+FFFD.
    fn decode(&self, ids: &[u32]) -> Result<String>;
}

/// The language a transcript is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spoken {
    /// The checkpoint knows one language only: no token.
    Only,
    /// Asked for: this token.
    Given(u32),
    /// Found by listening, or fixed by the checkpoint's `forced_decoder_ids`: this token.
    Detected(u32),
}

/// The tokens from `<|startoftranscript|>` to the first generated one.
///
/// With a language given, or translation asked for, the task is always named. With a detected
/// language it is named only where the checkpoint's `forced_decoder_ids` name one: newer
/// checkpoints were tuned without it.
pub fn initial(config: &Config, spoken: Spoken, task: Task, timestamps: bool) -> Result<Vec<u32>> {
    let ids = &config.ids;
    let mut tokens = vec![ids.start];
    let named = match task {
        Task::Transcribe => ids.transcribe,
        Task::Translate => ids.translate,
    };
    match spoken {
        Spoken::Only => {
            if task == Task::Translate {
                bail!("this checkpoint knows English only and cannot translate; choose a multilingual one");
            }
        }
        Spoken::Given(language) => {
            tokens.push(language);
            tokens.extend(named);
        }
        Spoken::Detected(language) => {
            tokens.push(language);
            if task == Task::Translate {
                let Some(translate) = named else {
                    bail!("this checkpoint has no <|translate|> token; leave the translation out");
                };
                tokens.push(translate);
            } else {
                let rest = config.forced.iter().filter(|(place, _)| *place > 1).filter_map(|(_, id)| *id);
                tokens.extend(rest.filter(|&id| id != ids.no_timestamps));
            }
        }
    }
    if !timestamps {
        tokens.push(ids.no_timestamps);
    }
    Ok(tokens)
}

/// The language token the checkpoint's `forced_decoder_ids` fix, if they do.
pub fn forced_language(config: &Config) -> Option<u32> {
    config.forced.iter().find(|(place, _)| *place == 1).and_then(|(_, id)| *id).filter(|&id| is_language(config, id))
}

/// Is this the token of a language?
pub fn is_language(config: &Config, id: u32) -> bool {
    config.languages.iter().any(|l| l.id == id)
}

/// How many tokens of earlier text a window may see: half the positions less one.
pub fn context(config: &Config) -> usize {
    (config.target_positions / 2).saturating_sub(1)
}

/// `<|startofprev|>` and the tokens of a text that is taken as said before.
pub fn previous_text(config: &Config, codec: &dyn Codec, text: &str) -> Result<Vec<u32>> {
    let mut tokens: Vec<u32> = config.ids.start_of_prev.into_iter().collect();
    tokens.extend(codec.encode(&format!(" {}", text.trim()))?);
    Ok(tokens)
}

/// The last [`context`] tokens of earlier segments, behind `head` (normally `<|startofprev|>`). Of
/// a segment that closes with two timestamps the second is left out: it opens the next one.
pub fn conditioned(config: &Config, head: &[u32], history: &[Vec<u32>]) -> Vec<u32> {
    let stamp = config.ids.timestamp_begin;
    let mut past: Vec<u32> = Vec::new();
    for tokens in history {
        let closing = tokens.len() > 2 && tokens[tokens.len() - 2] >= stamp;
        past.extend(&tokens[..tokens.len() - usize::from(closing)]);
    }
    let cut = past.len().saturating_sub(context(config));
    head.iter().copied().chain(past.drain(cut..)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::whisper::testing;

    #[test]
    fn prompts_name_what_the_reference_names() {
        let mut config = testing::config();
        let of = |config: &Config, spoken, task, stamps| initial(config, spoken, task, stamps).unwrap();
        let (start, no) = (config.ids.start, config.ids.no_timestamps);
        let (tra, en) = (config.ids.transcribe.unwrap(), config.languages[0].id);
        let to_english = config.ids.translate.unwrap();
        assert_eq!(of(&config, Spoken::Given(en), Task::Transcribe, false), [start, en, tra, no]);
        assert_eq!(of(&config, Spoken::Given(en), Task::Translate, true), [start, en, to_english]);
        assert_eq!(of(&config, Spoken::Detected(en), Task::Transcribe, false), [start, en, no]);
        assert_eq!(of(&config, Spoken::Detected(en), Task::Translate, false), [start, en, to_english, no]);
        config.forced = vec![(1, None), (2, Some(tra)), (3, Some(no))];
        assert_eq!(of(&config, Spoken::Detected(en), Task::Transcribe, true), [start, en, tra]);
        assert_eq!(forced_language(&config), None);
        config.forced[0].1 = Some(en);
        assert_eq!(forced_language(&config), Some(en));
        assert_eq!(of(&config, Spoken::Only, Task::Transcribe, false), [start, no]);
        assert!(initial(&config, Spoken::Only, Task::Translate, false).is_err());
    }

    #[test]
    fn history_is_cut_to_the_context_and_closes_once() {
        let config = testing::config();
        let stamp = config.ids.timestamp_begin;
        let history = vec![vec![1, 2], vec![stamp, 3, stamp + 4, stamp + 4], vec![stamp + 4, 5, stamp + 9]];
        let all = conditioned(&config, &[7], &history);
        assert_eq!(all, [7, 1, 2, stamp, 3, stamp + 4, stamp + 4, 5, stamp + 9]);
        let long = vec![(0..1000).map(|i| i % 7).collect::<Vec<u32>>()];
        let cut = conditioned(&config, &[], &long);
        assert_eq!(cut, long[0][1000 - context(&config)..]);
    }
}
