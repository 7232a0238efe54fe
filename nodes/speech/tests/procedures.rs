//! The decoding procedures on a model without weights, whose logits are a hash of the window and of
//! the tokens fed: rules, order of times, batches, pools, beams, cancellation.

#[path = "common/config.rs"]
mod testing;

use std::cell::RefCell;
use std::sync::Arc;

use oxiline_graph::Result;
use oxiline_graph::protocol::speech::{Segment, TranscribeOptions, TranscribeReply, TranscribeStats};
use oxiline_speech::whisper::beam::BeamSearch;
use oxiline_speech::whisper::decode::{Ask, Lane};
use oxiline_speech::whisper::rules::Rules;
use oxiline_speech::whisper::sample::{Random, argmax, log_probability};
use oxiline_speech::whisper::{Codec, Config, Mel, Model, Need, Rows, Transcription, step};
use proptest::prelude::*;
use testing::config;

const VOCABULARY: usize = 30 + 1501;
const STAMP: u32 = 30;

/// Letters as tokens.
struct Letters;

impl Codec for Letters {
    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        Ok(text.bytes().map(|b| u32::from(b) % 20).collect())
    }
    fn decode(&self, ids: &[u32]) -> Result<String> {
        Ok(ids.iter().map(|&id| char::from(b'a' + (id % 20) as u8)).collect())
    }
}

/// A stream that remembers what it was fed.
#[derive(Clone)]
struct Memory {
    window: u64,
    tokens: Vec<u32>,
}

impl Lane for Memory {
    fn fork(&self) -> Self {
        self.clone()
    }
    fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
    }
}

/// Logits by hashing. `ends`: how readily it ends a window.
struct Hash {
    ends: f32,
    batches: RefCell<Vec<usize>>,
}

impl Hash {
    fn new(ends: f32) -> Self {
        Self { ends, batches: RefCell::default() }
    }

    fn logits(&self, window: u64, tokens: &[u32]) -> Vec<f32> {
        let fed: Vec<u64> = tokens.iter().map(|&t| u64::from(t)).collect();
        let mut random = Random::new(window, &fed);
        let mut logits: Vec<f32> = (0..VOCABULARY).map(|_| (random.unit() * 6.0) as f32).collect();
        for logit in &mut logits[STAMP as usize..] {
            *logit -= 6.0;
        }
        logits[20] = logits[20] - 3.0 + self.ends * tokens.len() as f32;
        logits
    }
}

impl Model for Hash {
    type Lane = Memory;

    fn encode(&self, windows: &[&[f32]], _: &dyn Fn() -> bool) -> Result<Vec<Memory>> {
        let hash = |w: &[f32]| w.iter().fold(17_u64, |h, v| (h ^ u64::from(v.to_bits())).wrapping_mul(0x100_0000_01b3));
        Ok(windows.iter().map(|w| Memory { window: hash(w), tokens: Vec::new() }).collect())
    }

    fn feed(&self, asks: Vec<Ask<'_, Memory>>) -> Result<Vec<Vec<f32>>> {
        self.batches.borrow_mut().push(asks.len());
        Ok(asks
            .into_iter()
            .map(|ask| {
                let before = ask.stream.tokens.len();
                ask.stream.tokens.extend(ask.tokens);
                assert!(ask.stream.tokens.len() <= 448);
                if let Some(attention) = ask.attention {
                    let mut random = Random::new(ask.stream.window, &[ask.stream.tokens.len() as u64]);
                    let row = attention.heads.len() * attention.columns;
                    attention.data.extend((0..row * ask.tokens.len()).map(|_| random.unit() as f32));
                }
                let at = |i: usize| self.logits(ask.stream.window, &ask.stream.tokens[..before + i + 1]);
                match ask.rows {
                    Rows::None => Vec::new(),
                    Rows::Last => at(ask.tokens.len() - 1),
                    Rows::All => (0..ask.tokens.len()).flat_map(at).collect(),
                    Rows::At(rows) => rows.iter().flat_map(|&i| at(i)).collect(),
                }
            })
            .collect())
    }
}

/// A clip of noise whose windows all differ.
fn clip(seconds: f64) -> (Mel, usize) {
    let samples = (seconds * 16_000.0) as usize;
    let frames = if samples <= 480_000 { 3000 } else { samples / 160 };
    let mut random = Random::new(frames as u64, &[]);
    (Mel { bins: 2, frames, data: (0..2 * frames).map(|_| random.unit() as f32).collect() }, samples)
}

fn options() -> TranscribeOptions {
    TranscribeOptions { language: "en".into(), timestamps: true, ..TranscribeOptions::default() }
}

fn begin(seconds: f64, options: &TranscribeOptions, speech: Option<&[(f64, f64)]>) -> Transcription<Memory> {
    let (mel, samples) = clip(seconds);
    Transcription::new(Arc::new(config()), Arc::new(Letters), options.clone(), mel, samples, speech).unwrap()
}

fn end(mut transcriptions: Vec<Transcription<Memory>>, model: &Hash) -> Vec<(Vec<Segment>, TranscribeStats)> {
    let mut all: Vec<&mut Transcription<Memory>> = transcriptions.iter_mut().collect();
    let mut steps = 0;
    while step(model, &mut all, &|| false).unwrap() {
        steps += 1;
        assert!(steps < 1_000_000, "it never ends");
    }
    transcriptions.iter_mut().map(|t| replies(t.events())).collect()
}

fn replies(replies: Vec<TranscribeReply>) -> (Vec<Segment>, TranscribeStats) {
    let (mut segments, mut stats, mut last) = (Vec::new(), None, 0.0);
    for reply in replies {
        match reply {
            TranscribeReply::Segment(segment) => segments.push(segment),
            TranscribeReply::Progress { done, total } => {
                assert!(done >= last && done <= total, "{done} after {last} of {total}");
                last = done;
            }
            TranscribeReply::Done(done) => assert!(stats.replace(done).is_none()),
            TranscribeReply::Language { .. } => assert!(segments.is_empty()),
            TranscribeReply::Languages(_) => panic!("nobody asked"),
        }
    }
    (segments, stats.expect("an end"))
}

fn run(
    seconds: f64,
    options: &TranscribeOptions,
    speech: Option<&[(f64, f64)]>,
    ends: f32,
) -> (Vec<Segment>, TranscribeStats) {
    end(vec![begin(seconds, options, speech)], &Hash::new(ends)).remove(0)
}

fn in_order(segments: &[Segment], limit: f64) {
    let mut last = 0.0;
    for segment in segments {
        assert!(segment.start >= last - 1e-9 && segment.end >= segment.start, "{segment:?} after {last}");
        assert!(segment.end <= limit, "{segment:?} of {limit}");
        last = segment.start;
        let mut word = segment.start;
        for w in &segment.words {
            assert!(w.start >= word - 1e-9 && w.end >= w.start && w.end <= segment.end + 1e-9, "{w:?} in {segment:?}");
            assert!((0.0..=1.0).contains(&w.probability));
            word = w.end;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn rules_never_forbid_everything(seed in any::<u64>(), steps in 1_usize..60, boost in -8.0_f32..8.0) {
        let rules = Rules::new(&config(), true);
        let mut random = Random::new(seed, &[]);
        let mut generated: Vec<u32> = Vec::new();
        let mut highest = 0;
        for _ in 0..steps {
            let mut logits: Vec<f32> = (0..VOCABULARY).map(|_| (random.unit() * 9.0) as f32).collect();
            logits[STAMP as usize..].iter_mut().for_each(|l| *l += boost);
            rules.apply(&mut logits, &generated);
            prop_assert!(logits.iter().any(|l| l.is_finite()));
            let token = argmax(&logits);
            if token == 20 {
                break;
            }
            prop_assert!(!rules.suppress.contains(&token) && token != 29);
            if token >= STAMP {
                prop_assert!(token >= highest, "time runs backwards");
                highest = token;
            }
            generated.push(token);
        }
    }

    #[test]
    fn times_are_in_order(seconds in 1.0_f64..140.0, ends in 0.0_f32..0.3, beam in 1_usize..3, words: bool, batch in 0_usize..3) {
        let options = TranscribeOptions { beam, words, batch, max_tokens: 60, ..options() };
        let (segments, stats) = run(seconds, &options, None, ends);
        in_order(&segments, seconds.max(30.0) + 31.0);
        prop_assert!(stats.windows > 0 && !stats.stopped);
    }

    #[test]
    fn nothing_is_said_where_nobody_spoke(
        seconds in 20.0_f64..140.0,
        spans in proptest::collection::vec((0.0_f64..140.0, 0.1_f64..20.0), 0..6),
        batch in 0_usize..3,
    ) {
        let spans: Vec<(f64, f64)> = spans.into_iter().map(|(s, d)| (s, s + d)).collect();
        let options = TranscribeOptions { batch, max_tokens: 60, logprob_threshold: 0.0, ..options() };
        let (segments, stats) = run(seconds, &options, Some(&spans), 0.05);
        in_order(&segments, seconds.max(30.0) + 31.0);
        for segment in &segments {
            prop_assert!(segment.start <= seconds);
            prop_assert!(spans.iter().any(|(s, e)| segment.start < e + 0.2 && segment.end > s - 0.2), "{segment:?}");
        }
        if spans.iter().all(|(s, _)| *s >= seconds) {
            prop_assert_eq!(stats.windows, 0);
            prop_assert!((stats.skipped_s - seconds).abs() < 0.02, "{}", stats.skipped_s);
        }
    }
}

#[test]
fn windows_side_by_side_are_windows_one_by_one() {
    let speech: Vec<(f64, f64)> = (0..12).map(|i| (f64::from(i) * 17.0 + 1.0, f64::from(i) * 17.0 + 14.0)).collect();
    let of = |batch| TranscribeOptions { batch, max_tokens: 80, words: true, ..options() };
    let one = run(204.0, &of(1), Some(&speech), 0.1);
    let model = Hash::new(0.1);
    let many = end(vec![begin(204.0, &of(5), Some(&speech))], &model).remove(0);
    assert_eq!(one.0, many.0);
    assert!(one.0.len() > 5);
    assert_eq!((one.1.windows, one.1.tokens, one.1.skipped), (many.1.windows, many.1.tokens, many.1.skipped));
    assert!(model.batches.borrow().iter().any(|&n| n >= 5), "they were fed together");
    in_order(&many.0, 204.0);
}

#[test]
fn files_decoded_together_are_files_decoded_alone() {
    let wishes = [
        (45.0, options()),
        (20.0, TranscribeOptions { beam: 3, language: "auto".into(), ..options() }),
        (70.0, TranscribeOptions { batch: 2, fallback: true, logprob_threshold: 0.0, seed: 3, ..options() }),
    ];
    let model = Hash::new(0.1);
    let together = end(wishes.iter().map(|(s, o)| begin(*s, o, None)).collect(), &model);
    for ((seconds, options), together) in wishes.iter().zip(together) {
        let alone = run(*seconds, options, None, 0.1);
        assert_eq!(alone.0, together.0);
        assert_eq!(alone.1.tokens, together.1.tokens);
    }
    assert!(model.batches.borrow().iter().any(|&n| n >= 4));
}

#[test]
fn fallback_tries_higher_temperatures_and_is_seeded() {
    let of = |seed| TranscribeOptions {
        fallback: true,
        logprob_threshold: 0.0,
        no_speech_threshold: 1.0,
        seed,
        max_tokens: 30,
        ..options()
    };
    let (segments, stats) = run(25.0, &of(1), None, 0.1);
    assert_eq!(stats.fallbacks, 5 * stats.windows);
    assert!(segments.iter().all(|s| s.temperature == 1.0));
    assert_eq!(segments, run(25.0, &of(1), None, 0.1).0);
    assert_ne!(segments, run(25.0, &of(2), None, 0.1).0);
}

#[test]
fn one_beam_is_greedy_and_more_are_lawful() {
    let model = Hash::new(0.3);
    let rules = Rules::new(&config(), true);
    let search = |beams: usize| {
        let mut search = BeamSearch::new(beams, Memory { window: 9, tokens: vec![21] }, 40, 20);
        search.advance(vec![model.logits(9, &[21])], &rules).unwrap();
        while !search.done() {
            let logits = model.feed(search.asks()).unwrap();
            search.advance(logits, &rules).unwrap();
        }
        search.best()
    };
    let mut greedy = Vec::new();
    while greedy.last() != Some(&20) && greedy.len() < 40 {
        let fed: Vec<u32> = std::iter::once(21).chain(greedy.iter().copied()).collect();
        let mut logits = model.logits(9, &fed);
        rules.apply(&mut logits, &greedy);
        greedy.push(argmax(&logits));
    }
    let one = search(1);
    assert_eq!(one.tokens, greedy);
    // What a wider search returns is a sequence the rules allow, with the probabilities it says.
    for beams in [2, 5, 8] {
        let found = search(beams);
        let mut fed = vec![21];
        for (i, (&token, logprob)) in found.tokens.iter().zip(&found.logprobs).enumerate() {
            let mut logits = model.logits(9, &fed);
            rules.apply(&mut logits, &found.tokens[..i]);
            assert!((log_probability(&logits, token) - logprob).abs() < 1e-5);
            fed.push(token);
        }
        let sum: f64 = found.logprobs.iter().map(|&l| f64::from(l)).sum();
        assert!((sum - found.sum).abs() < 1e-6);
    }
}

#[test]
fn stopping_keeps_what_is_whole() {
    let whole = run(100.0, &options(), None, 0.1).0;
    let model = Hash::new(0.1);
    for after in [0, 1, 2, 5, 17, 40, 90, 150] {
        let mut transcription = begin(100.0, &options(), None);
        for _ in 0..after {
            step(&model, &mut [&mut transcription], &|| false).unwrap();
        }
        transcription.stop().unwrap();
        assert_eq!(transcription.need().unwrap(), Need::Done);
        let (segments, stats) = replies(transcription.events());
        assert!(stats.stopped);
        assert!(segments.len() <= whole.len());
        for (part, whole) in segments.iter().zip(&whole) {
            assert_eq!((part.start, part.end, &part.text), (whole.start, whole.end, &whole.text));
        }
    }
}

#[test]
fn a_live_listener_sees_tokens_and_attention() {
    let model = Hash::new(0.1);
    let mut transcription = begin(10.0, &options(), None);
    transcription.listen(&[(1, 1)]);
    for _ in 0..6 {
        step(&model, &mut [&mut transcription], &|| false).unwrap();
    }
    let partial = transcription.partial().expect("a window under way");
    assert!(partial.tokens.len() >= 2);
    assert_eq!(partial.attention.unwrap().tokens(), partial.tokens.len() - 1);
}

#[test]
fn options_that_make_no_sense_get_a_sentence() {
    let refuse = |options: TranscribeOptions, config: Config| {
        let (mel, samples) = clip(40.0);
        match Transcription::<Memory>::new(Arc::new(config), Arc::new(Letters), options, mel, samples, None) {
            Ok(_) => panic!("accepted"),
            Err(error) => error.to_string(),
        }
    };
    assert!(refuse(TranscribeOptions { temperatures: vec![], ..options() }, config()).contains("temperatures"));
    assert!(refuse(TranscribeOptions { beam: 1000, ..options() }, config()).contains("beam"));
    assert!(refuse(TranscribeOptions { batch: 2, condition_on_prev: true, ..options() }, config()).contains("batch"));
    assert!(refuse(TranscribeOptions { language: "klingon".into(), ..options() }, config()).contains("klingon"));
    assert!(refuse(TranscribeOptions { language: "fr".into(), ..options() }, config()).contains("fr"));
    assert!(refuse(TranscribeOptions { prefix: Some("x".repeat(300)), ..options() }, config()).contains("prefix"));
    let english = Config { multilingual: false, languages: vec![], ..config() };
    assert!(refuse(TranscribeOptions { language: "de".into(), ..options() }, english).contains("English only"));
    // Nothing to hear is no failure.
    let (mel, _) = clip(1.0);
    let mut none =
        Transcription::<Memory>::new(Arc::new(config()), Arc::new(Letters), options(), mel, 0, None).unwrap();
    assert_eq!(none.need().unwrap(), Need::Done);
}
