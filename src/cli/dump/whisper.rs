//! `oxiline dump whisper`: every stage of one transcription.

use std::cell::RefCell;
use std::sync::Arc;

use oxiline::graph::protocol::speech::TranscribeReply;
use oxiline::graph::{Error, Result};
use oxiline::speech::whisper::decode::Ask;
use oxiline::speech::whisper::{
    Config, Features, Feed, LoadOptions, Model, Precision, Quant, Stream, Transcription, Whisper, actor::codec,
    language, step,
};
use oxiline::{Segment, Task, TranscribeOptions};
use serde_json::json;

use super::file::{self, Out};
use crate::cli::args::{Decode, DumpWhisper, LoadArgs, PrecisionArg, QuantArg};

/// Runs the dump.
pub fn run(args: DumpWhisper) -> Result<()> {
    file::apart(&args.io.input, &args.io.output)?;
    let samples = file::read_samples(&args.io.input, "samples")?;
    let options = options(&args)?;
    let folder = oxiline::models::resolve(&args.model)?;
    let config = Config::load(&folder)?;
    let whisper = Whisper::load(&folder, &load_options(&args.load))?;
    let (config, codec) = (Arc::new(config), codec(&folder)?);
    let mel = Features::new(config.mel_bins).mel(&samples);

    let first_window = mel.window(0);
    let encoded = whisper.encode(&[&first_window], &|| false)?.remove(0);
    let probabilities = language_probabilities(&whisper, &config, &encoded)?;

    let mut tensors = vec![
        Out::f32("mel", &[mel.bins, mel.frames], &mel.by_bin()),
        Out::f32("encoder", &[encoded.len() / whisper.config.width, whisper.config.width], &encoded),
        Out::f32("language_probs", &[probabilities.len()], &probabilities),
    ];
    drop(encoded);

    let detects = options.language == "auto" && !config.languages.is_empty();
    let recorder = Recorder { whisper: &whisper, start: config.ids.start, detects, first: RefCell::default() };
    let mut clip = Transcription::new(config.clone(), codec, options, mel, samples.len(), None)?;
    let mut events = Vec::new();
    while step(&recorder, &mut [&mut clip], &|| false)? {
        events.extend(clip.events());
    }
    events.extend(clip.events());

    let mut spoken = None;
    let mut segments: Vec<Segment> = Vec::new();
    for event in events {
        match event {
            TranscribeReply::Language { code, .. } => spoken = Some(code),
            TranscribeReply::Segment(segment) => segments.push(segment),
            _ => {}
        }
    }
    let (prompt, logits) = recorder.first.into_inner().unwrap_or_default();
    let tokens: Vec<u32> = segments.iter().flat_map(|s| s.tokens.iter().copied()).collect();
    tensors.extend([
        Out::ids("prompt_ids", &prompt),
        Out::f32("first_logits", &[logits.len()], &logits),
        Out::ids("tokens", &tokens),
    ]);
    if args.word_timestamps {
        let words: Vec<_> = segments.iter().flat_map(|s| &s.words).collect();
        let starts: Vec<f32> = words.iter().map(|w| w.start as f32).collect();
        let ends: Vec<f32> = words.iter().map(|w| w.end as f32).collect();
        tensors
            .extend([Out::f32("word_starts", &[starts.len()], &starts), Out::f32("word_ends", &[ends.len()], &ends)]);
    }
    let text: String = segments.iter().map(|s| s.text.as_str()).collect();
    let metadata = vec![
        ("text".to_string(), text),
        ("segments".to_string(), json!(segments).to_string()),
        ("language".to_string(), spoken.unwrap_or_default()),
    ];
    file::write(&args.io.output, &tensors, metadata)
}

/// Softmax over the language tokens after start-of-transcript; empty for English-only checkpoints.
fn language_probabilities(whisper: &Whisper, config: &Config, encoded: &[f32]) -> Result<Vec<f32>> {
    if config.languages.is_empty() {
        return Ok(Vec::new());
    }
    let mut stream = whisper.start(encoded)?;
    let start = [config.ids.start];
    let mut feeds = [Feed::new(&mut stream, &start)];
    whisper.step(&mut feeds)?;
    Ok(language::probabilities(config, &feeds[0].logits))
}

/// The model, noting the first window's prompt and the raw logits after it.
struct Recorder<'a> {
    whisper: &'a Whisper,
    start: u32,
    /// The first thing fed will be the lone start token of the language detection.
    detects: bool,
    first: RefCell<Option<(Vec<u32>, Vec<f32>)>>,
}

impl Model for Recorder<'_> {
    type Lane = Stream;

    fn encode(&self, windows: &[&[f32]], cancelled: &dyn Fn() -> bool) -> Result<Vec<Stream>> {
        Model::encode(self.whisper, windows, cancelled)
    }

    fn feed(&self, asks: Vec<Ask<'_, Stream>>) -> Result<Vec<Vec<f32>>> {
        let fed: Vec<u32> = asks.first().map(|ask| ask.tokens.to_vec()).unwrap_or_default();
        let detection = self.detects && fed == [self.start];
        let logits = self.whisper.feed(asks)?;
        let mut first = self.first.borrow_mut();
        if first.is_none() && !detection {
            let vocabulary = self.whisper.config.vocab;
            let rows = logits.first().map(Vec::as_slice).unwrap_or_default();
            *first = Some((fed, rows[rows.len().saturating_sub(vocabulary)..].to_vec()));
        }
        Ok(logits)
    }
}

fn options(args: &DumpWhisper) -> Result<TranscribeOptions> {
    let task = match args.task.as_deref() {
        None | Some("transcribe") => Task::Transcribe,
        Some("translate") => Task::Translate,
        Some(other) => {
            return Err(Error::msg(format_args!("`--task {other}` is not known; use transcribe or translate")));
        }
    };
    let mut options = TranscribeOptions {
        task,
        timestamps: args.timestamps,
        words: args.word_timestamps,
        // No voice activity is looked at: the reference's algorithm, untouched.
        skip_silence: false,
        ..TranscribeOptions::default()
    };
    if let Some(language) = &args.language {
        options.language.clone_from(language);
    }
    apply(&args.decode, &mut options);
    Ok(options)
}

fn apply(d: &Decode, options: &mut TranscribeOptions) {
    options.initial_prompt.clone_from(&d.initial_prompt);
    options.prefix.clone_from(&d.prefix);
    options.fallback = d.fallback;
    options.condition_on_prev = d.condition_on_prev;
    if let Some(temperatures) = &d.temperatures {
        options.temperatures.clone_from(temperatures);
    }
    let set = |to: &mut f32, from: Option<f32>| *to = from.unwrap_or(*to);
    set(&mut options.compression_ratio_threshold, d.compression_ratio_threshold);
    set(&mut options.logprob_threshold, d.logprob_threshold);
    set(&mut options.no_speech_threshold, d.no_speech_threshold);
    options.beam = d.beam.unwrap_or(options.beam);
    options.max_tokens = d.max_tokens.unwrap_or(options.max_tokens);
    options.batch = d.batch.unwrap_or(options.batch);
    options.seed = d.seed.unwrap_or(options.seed);
}

fn load_options(load: &LoadArgs) -> LoadOptions {
    let precision = match load.precision {
        None => Precision::default(),
        Some(PrecisionArg::F32) => Precision::F32,
        Some(PrecisionArg::F16) => Precision::F16,
        Some(PrecisionArg::Bf16) => Precision::Bf16,
    };
    LoadOptions { precision, quant: load.quant.map(|QuantArg::Q8| Quant::Q8) }
}
