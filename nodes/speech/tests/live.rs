//! `asr.stream` over a model whose words can be read off the sound: half a second a word, its level the word.

mod common;

use std::sync::Arc;

use common::{clip, fixture};
use oxiline_graph::payload::{Audio, Transcript, Update};
use oxiline_graph::protocol::speech::{Segment, Transcribe, TranscribeReply, TranscribeStats, Word};
use oxiline_graph::{
    EosReason, Error, Gap, GapReason, Harness, Header, Item, Job, Load, Mark, Model, Payload, Result, Span,
};
use oxiline_speech::live::{AsrStream, AsrStreamOptions, Policy};
use oxiline_speech::whisper::{WhisperModel, WhisperOptions};
use proptest::prelude::*;
use schemars::JsonSchema;
use serde::Deserialize;

const WORD: usize = 8000;
const NAMES: [&str; 6] = ["oak", "elm", "ash", "fir", "yew", "box"];

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct Trees {
    /// Passes after which it fails.
    fails_after: Option<usize>,
}

struct Forest(Trees, usize);

impl Forest {
    /// The words in the sound. One that is not over yet is heard wrong half the time.
    fn hear(sound: &[f32]) -> Vec<Word> {
        let mut words = Vec::new();
        for (i, part) in sound.chunks(WORD).enumerate() {
            let level = (part[0] * 10.0).round() as usize;
            if level == 0 {
                continue;
            }
            let wrong = part.len() < WORD && sound.len() / 100 % 2 == 1;
            let name = if wrong { "owl" } else { NAMES[(level - 1) % NAMES.len()] };
            let (start, end) = (i as f64 * 0.5, (i * WORD + part.len()) as f64 / 16_000.0);
            words.push(Word { text: format!(" {name}"), start, end, probability: 0.9 });
        }
        words
    }
}

impl Model for Forest {
    const KIND: &'static str = "forest";
    const ABOUT: &'static str = "Hears trees.";
    type Options = Trees;
    type Protocol = Transcribe;
    type Session = ();

    fn identity(options: &Trees) -> Result<String> {
        Ok(format!("{options:?}"))
    }
    fn load(options: Trees, _: &Load) -> Result<Self> {
        Ok(Self(options, 0))
    }
    fn open(&mut self, (): ()) -> Result<()> {
        Ok(())
    }
    fn step(&mut self, jobs: &mut [Job<'_, Self>]) {
        for job in jobs {
            self.1 += 1;
            if self.0.fails_after.is_some_and(|n| self.1 > n) {
                job.finish(Err(Error::msg("the forest burns")));
                continue;
            }
            let words = Self::hear(&job.request.samples);
            let text: String = words.iter().map(|word| word.text.as_str()).collect();
            job.reply(TranscribeReply::Language { code: "en".into(), probability: 1.0 });
            if !words.is_empty() {
                job.reply(TranscribeReply::Segment(Segment { text, words, ..Segment::default() }));
            }
            job.reply(TranscribeReply::Done(TranscribeStats::default()));
            job.finish(Ok(()));
        }
    }
}

/// Stretches of speech (words) and silence (half seconds) as labelled items of `size` samples.
fn stream(parts: &[(Vec<usize>, usize)], size: usize) -> Vec<Item> {
    let mut sound: Vec<(f32, bool)> = Vec::new();
    for (words, silence) in parts {
        for word in words {
            sound.extend(vec![((word % NAMES.len()) as f32 / 10.0 + 0.1, true); WORD]);
        }
        sound.extend(vec![(0.0, false); silence * WORD]);
    }
    let mut items = Vec::new();
    let mut at = 0;
    while at < sound.len() {
        let speech = sound[at].1;
        let len = sound[at..].iter().take(size).take_while(|s| s.1 == speech).count();
        let samples: Arc<[f32]> = sound[at..at + len].iter().map(|s| s.0).collect();
        let time = |sample: usize| (sample as i64) * 62_500;
        let mut header = Header::at(time(at), time(len));
        header.flags = Header::VAD_SEEN | if speech { Header::SPEECH } else { 0 };
        items.push(Item::Data(header, Payload::Audio(Audio { rate: 16_000, channels: 1, samples })));
        at += len;
    }
    items.push(Item::Mark(Mark::Eos(EosReason::Complete)));
    items
}

fn updates(options: AsrStreamOptions, model: Trees, items: Vec<Item>) -> Vec<Update> {
    let out = Harness::new::<AsrStream>(options).model::<Forest>(model).input("audio", items).run_whatever().unwrap();
    out.data::<Transcript>("transcript").iter().map(|item| (*item.value.0).clone()).collect()
}

/// The contract of revisions (graph.md 2.2); the final texts.
fn finals(updates: &[Update]) -> Vec<String> {
    let mut texts = Vec::new();
    let mut open: Option<&Update> = None;
    for update in updates {
        if let Some(before) = open {
            assert_eq!((update.segment, update.rev), (before.segment, before.rev + 1), "{update:?}");
            assert!(update.stable.starts_with(&before.stable), "`{}` after `{}`", update.stable, before.stable);
        } else {
            assert_eq!((update.segment, update.rev), (texts.len() as u64 + 1, 0), "{update:?}");
        }
        let (t0, t1) = (update.t0 as f64 / 1e9, update.t1 as f64 / 1e9);
        let mut at = t0;
        for word in &update.words {
            assert!(word.start >= at - 1e-6 && word.end >= word.start && word.end <= t1 + 1e-6, "{update:?}");
            at = word.start;
        }
        open = Some(update);
        if update.is_final {
            assert_eq!(update.unstable, "");
            texts.push(update.stable.clone());
            open = None;
        }
    }
    assert!(open.is_none(), "a segment was never ended");
    texts
}

fn said(words: &[usize]) -> String {
    words.iter().map(|word| NAMES[word % NAMES.len()]).collect::<Vec<_>>().join(" ")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn every_word_comes_once_and_revisions_keep_their_contract(
        parts in prop::collection::vec((prop::collection::vec(0_usize..6, 0..9), 1_usize..3), 0..5),
        size in 300_usize..9000,
        step in 100_u64..1500,
        policy in prop_oneof![Just(Policy::LocalAgreement), Just(Policy::AlignAtt), Just(Policy::StablePrefix), Just(Policy::FinalOnly)],
    ) {
        let options = AsrStreamOptions { policy, step: Span::ms(step), ..AsrStreamOptions::default() };
        let updates = updates(options, Trees::default(), stream(&parts, size));
        let wanted: Vec<String> = parts.iter().filter(|(words, _)| !words.is_empty()).map(|(words, _)| said(words)).collect();
        prop_assert_eq!(finals(&updates), wanted);
        if policy == Policy::FinalOnly {
            prop_assert!(updates.iter().all(|update| update.is_final));
        }
    }
}

#[test]
fn partial_texts_come_while_speech_goes_on() {
    let words = [0, 1, 2, 3, 4, 5];
    let updates = updates(AsrStreamOptions::default(), Trees::default(), stream(&[(words.to_vec(), 1)], 800));
    assert_eq!(finals(&updates), [said(&words)]);
    let first = &updates[0];
    assert!(!first.is_final && first.t1 <= 700_000_000, "{first:?}");
    // Agreement is one pass behind: half a second.
    let stable = updates.iter().find(|update| update.stable.starts_with("oak elm")).unwrap();
    assert!(stable.t1 <= 2_000_000_000, "{stable:?}");
}

#[test]
fn speech_longer_than_the_window_is_cut_without_loss() {
    let words: Vec<usize> = (0..60).map(|i| i * 7 % 6).collect();
    let options = AsrStreamOptions { window: Span::secs(6), ..AsrStreamOptions::default() };
    let updates = updates(options, Trees::default(), stream(&[(words.clone(), 1)], 800));
    let texts = finals(&updates);
    assert!(texts.len() >= 5, "{texts:?}");
    assert_eq!(texts.join(" "), said(&words));
}

#[test]
fn silence_and_gaps_say_nothing() {
    let mut items = stream(&[(vec![], 600)], 1600);
    items.insert(3, Item::Gap(Gap { from: 300_000_000, to: 400_000_000, reason: GapReason::NoSpeech }));
    assert_eq!(updates(AsrStreamOptions::default(), Trees::default(), items), []);
}

#[test]
fn a_failure_ends_the_segment_that_was_shown() {
    let items = stream(&[(vec![0, 1, 2, 3], 1)], 800);
    let updates = updates(AsrStreamOptions::default(), Trees { fails_after: Some(3) }, items);
    let texts = finals(&updates);
    assert_eq!(texts.len(), 1);
    assert!(said(&[0, 1, 2, 3]).starts_with(&texts[0]), "{texts:?}");
}

#[test]
fn unlabelled_sound_is_refused() {
    let audio = Audio { rate: 16_000, channels: 1, samples: vec![0.1; 1600].into() };
    let items =
        vec![Item::Data(Header::at(0, 100_000_000), Payload::Audio(audio)), Item::Mark(Mark::Eos(EosReason::Complete))];
    let run =
        Harness::new::<AsrStream>(AsrStreamOptions::default()).model::<Forest>(Trees::default()).input("audio", items);
    let error = run.run().unwrap_err().to_string();
    assert!(error.contains("put `audio.vad` in front of it"), "{error}");
}

#[test]
fn options_that_do_not_fit_are_one_sentence() {
    for (options, want) in [
        (AsrStreamOptions { window: Span::secs(40), ..AsrStreamOptions::default() }, "between 2 s and 28 s"),
        (AsrStreamOptions { step: Span::secs(9), ..AsrStreamOptions::default() }, "must grow in this order"),
        (AsrStreamOptions { step: Span::ms(1), ..AsrStreamOptions::default() }, "from 100 ms on"),
    ] {
        let run = Harness::new::<AsrStream>(options).model::<Forest>(Trees::default()).input("audio", Vec::new());
        let error = run.run().unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    }
}

#[test]
fn whisper_runs_live_and_keeps_the_contract() {
    let sound = clip("en_a");
    let samples = sound.chunks(1600).enumerate().map(|(i, part)| {
        let mut header = Header::at(i as i64 * 100_000_000, part.len() as i64 * 62_500);
        header.flags = Header::VAD_SEEN | Header::SPEECH;
        Item::Data(header, Payload::Audio(Audio { rate: 16_000, channels: 1, samples: part.into() }))
    });
    let items: Vec<Item> = samples.chain([Item::Mark(Mark::Eos(EosReason::Complete))]).collect();
    let weights = fixture("whisper_en").to_string_lossy().into_owned();
    let options = AsrStreamOptions { step: Span::secs(2), step_max: Span::secs(2), ..AsrStreamOptions::default() };
    let out = Harness::new::<AsrStream>(options)
        .model::<WhisperModel>(WhisperOptions { weights, ..WhisperOptions::default() })
        .input("audio", items)
        .run()
        .unwrap();
    let updates: Vec<Update> =
        out.data::<Transcript>("transcript").iter().map(|item| (*item.value.0).clone()).collect();
    finals(&updates);
}
