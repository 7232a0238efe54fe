//! Whisper as a model actor: any number of clips at a time, a step a token or an encoder layer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use oxiline_graph::protocol::speech::{Transcribe, TranscribeReply, TranscribeRequest, TranscribeStats};
use oxiline_graph::{Error, Job, Load, Model, Result, Whereabouts};
use oxiline_weights::Tokenizer;
use oxiline_weights::hub;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::transcription::Need;
use super::{
    Codec, Config, Encoding, Features, Feed, LoadOptions, Mel, Precision, Quant, Stream, Transcription, Whisper,
    language,
};

/// Options of a `whisper` model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct WhisperOptions {
    /// Folder of the checkpoint (config.json, model.safetensors, tokenizer.json), `org/name`, or a known name.
    pub weights: String,
    /// How weights are kept: `stored` (the default), `f32`, `f16` or `bf16`.
    pub precision: Option<Precision>,
    /// Integer weights instead: `q8` is faster and may change a word.
    pub quant: Option<Quant>,
    /// Where to compute: `cpu`, or left out.
    pub device: Option<String>,
}

impl WhisperOptions {
    /// What can be known to be wrong before anything is read.
    fn check(&self) -> Result<()> {
        if self.weights.is_empty() {
            return Err(Error::msg(
                "a `whisper` model needs `weights`: a checkpoint's folder, `org/name` or a known name such as whisper-base",
            ));
        }
        if let Some(device) = self.device.as_deref().filter(|device| !matches!(*device, "cpu" | "auto")) {
            return Err(Error::msg(format_args!("device `{device}` is not known to `whisper`; use `cpu`")));
        }
        Ok(())
    }
}

/// A loaded checkpoint, shared by any number of streams.
pub struct WhisperModel {
    whisper: Whisper,
    config: Arc<Config>,
    codec: Arc<dyn Codec>,
    features: Features,
}

/// A stream: the clip it is on, if any.
#[derive(Default)]
pub struct WhisperSession {
    work: Option<Work>,
}

struct Work {
    task: Task,
    /// An encoder pass that is not done yet.
    encoding: Option<Encoding>,
    features_s: f64,
}

enum Task {
    /// Only the languages' probabilities are wanted.
    Detect(Mel),
    Transcribe(Box<Transcription<Stream>>),
}

/// A step gives others a turn after this long.
const STEP: Duration = Duration::from_millis(10);

/// Whisper's tokenizer as decoding wants it.
struct Text(Tokenizer);

impl Codec for Text {
    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        self.0.encode(text, false).map_err(Error::msg)
    }
    fn decode(&self, ids: &[u32]) -> Result<String> {
        self.0.decode(ids, false).map_err(Error::msg)
    }
}

/// The tokenizer of a checkpoint folder.
pub fn codec(dir: &std::path::Path) -> Result<Arc<dyn Codec>> {
    Ok(Arc::new(Text(Tokenizer::load(dir).map_err(Error::msg)?)))
}

impl Model for WhisperModel {
    const KIND: &'static str = "whisper";
    const ABOUT: &'static str = "Whisper speech recognition, from a checkpoint folder in Hugging Face's layout.";
    type Options = WhisperOptions;
    type Protocol = Transcribe;
    type Session = WhisperSession;

    fn identity(options: &WhisperOptions) -> Result<String> {
        options.check()?;
        let folder = hub::place(&options.weights, &hub::process_options()).map_err(Error::msg)?;
        Ok(format!("{} {:?} {:?}", folder.display(), options.precision.unwrap_or_default(), options.quant))
    }

    fn whereabouts(options: &WhisperOptions) -> Result<Whereabouts> {
        let hub = hub::process_options();
        let name = options.weights.clone();
        Ok(match hub::local(&name, &hub).map_err(Error::msg)? {
            Some(_) => Whereabouts::Here,
            None if hub.fetches() => Whereabouts::Fetched(name),
            None => Whereabouts::Missing(name),
        })
    }

    fn load(options: WhisperOptions, load: &Load) -> Result<Self> {
        options.check()?;
        let folder = hub::resolve(&options.weights, &hub::process_options()).map_err(Error::msg)?;
        let config = Config::load(&folder)?;
        let codec = codec(&folder)?;
        let how = LoadOptions { precision: options.precision.unwrap_or_default(), quant: options.quant };
        let whisper = Whisper::load_with(&folder, config, &how, &mut |done, total| {
            load.progress(done, total);
            load.check()
        })?;
        let features = Features::new(whisper.config.mel_bins);
        let mut config = whisper.config.clone();
        // A request always names its task. Checkpoints whose files force none loop on real speech
        // when the prompt of a detected language leaves it out.
        if let Some(transcribe) = config.ids.transcribe.filter(|_| config.multilingual)
            && !config.forced.iter().any(|(_, id)| *id == Some(transcribe))
        {
            config.forced.push((2, Some(transcribe)));
        }
        Ok(Self { config: Arc::new(config), whisper, codec, features })
    }

    fn open(&mut self, (): ()) -> Result<WhisperSession> {
        Ok(WhisperSession::default())
    }

    fn step(&mut self, jobs: &mut [Job<'_, Self>]) {
        let end = Instant::now() + STEP;
        let mut open: Vec<&mut Job<'_, Self>> = jobs.iter_mut().collect();
        for job in &mut open {
            if job.first() {
                // What an abandoned request left behind.
                job.session.work = None;
            }
        }
        while !open.is_empty() {
            self.sweep(&mut open);
            open.retain(|job| job.session.work.is_some());
            if Instant::now() >= end {
                break;
            }
        }
    }

    fn memory(&self) -> u64 {
        self.whisper.bytes()
    }
}

impl WhisperModel {
    /// Moves every job on by one encoder layer or one batch of tokens. Jobs that are done have no
    /// work left afterwards.
    fn sweep(&self, jobs: &mut [&mut Job<'_, Self>]) {
        let mut feeding = Vec::new();
        for (i, job) in jobs.iter_mut().enumerate() {
            match self.advance(job) {
                Ok(true) => feeding.push(i),
                Ok(false) => {}
                Err(error) => {
                    job.session.work = None;
                    job.finish(Err(error));
                }
            }
        }
        if feeding.is_empty() {
            return;
        }
        let began = Instant::now();
        let logits = self.feed(jobs, &feeding);
        let share = began.elapsed().as_secs_f64() / feeding.len() as f64;
        for (i, logits) in feeding.into_iter().zip(logits) {
            let job = &mut jobs[i];
            let Some(Work { task: Task::Transcribe(clip), .. }) = &mut job.session.work else { continue };
            clip.stats_mut().decode_s += share;
            if let Err(error) = logits.and_then(|logits| clip.advance(logits)) {
                job.session.work = None;
                job.finish(Err(error));
            } else {
                publish(job);
            }
        }
    }

    /// The tokens that these jobs' clips ask for, as one batch; a result for each job. When the
    /// batch is refused, each job is tried alone, so that only the one at fault fails.
    fn feed(&self, jobs: &mut [&mut Job<'_, Self>], feeding: &[usize]) -> Vec<Result<Vec<Vec<f32>>>> {
        let mut counts = Vec::new();
        let mut feeds: Vec<Feed<'_>> = Vec::new();
        for (i, job) in jobs.iter_mut().enumerate() {
            if !feeding.contains(&i) {
                continue;
            }
            let before = feeds.len();
            if let Some(Work { task: Task::Transcribe(clip), .. }) = &mut job.session.work {
                feeds.extend(clip.asks().into_iter().map(Feed::from));
            }
            counts.push(feeds.len() - before);
        }
        let whole = self.whisper.step(&mut feeds);
        let mut results = Vec::with_capacity(counts.len());
        let mut rest = &mut feeds[..];
        for count in counts {
            let (mine, others) = rest.split_at_mut(count);
            rest = others;
            let result = match &whole {
                Ok(()) => Ok(()),
                Err(_) => self.whisper.step(mine),
            };
            results.push(result.map(|()| mine.iter_mut().map(|feed| std::mem::take(&mut feed.logits)).collect()));
        }
        results
    }

    /// Everything of a job but feeding tokens; true when that is what it needs.
    fn advance(&self, job: &mut Job<'_, Self>) -> Result<bool> {
        if job.cancelled() {
            if let Some(Work { task: Task::Transcribe(clip), .. }) = &mut job.session.work {
                clip.stop()?;
                publish(job);
            }
            return Err(Error::Cancelled);
        }
        let request = job.request;
        let Some(work) = &mut job.session.work else {
            job.session.work = Some(self.begin(request)?);
            return Ok(false);
        };
        if let Some(mut encoding) = work.encoding.take() {
            let began = Instant::now();
            if !self.whisper.encode_step(&mut encoding) {
                work.encoding = Some(encoding);
            } else {
                let encoded = self.whisper.finish_encode(encoding);
                let streams = encoded.iter().map(|window| self.whisper.start(window)).collect::<Result<Vec<_>>>()?;
                match &mut work.task {
                    Task::Transcribe(clip) => clip.encoded(streams)?,
                    Task::Detect(_) => {
                        let languages = self.languages(streams)?;
                        job.reply(TranscribeReply::Languages(languages));
                        return done(job, TranscribeStats::default());
                    }
                }
            }
            if let Task::Transcribe(clip) = &mut work.task {
                clip.stats_mut().encode_s += began.elapsed().as_secs_f64();
            }
            return Ok(false);
        }
        match &mut work.task {
            Task::Detect(mel) => {
                if self.config.languages.is_empty() {
                    job.reply(TranscribeReply::Languages(Vec::new()));
                    return done(job, TranscribeStats::default());
                }
                work.encoding = Some(self.whisper.begin_encode(&[&mel.window(0)])?);
                Ok(false)
            }
            Task::Transcribe(clip) => {
                clip.stats_mut().features_s = work.features_s;
                match clip.need()? {
                    Need::Encode => {
                        let windows = clip.windows();
                        let windows: Vec<&[f32]> = windows.iter().map(Vec::as_slice).collect();
                        if windows.is_empty() {
                            clip.encoded(Vec::new())?;
                        } else {
                            work.encoding = Some(self.whisper.begin_encode(&windows)?);
                        }
                        publish(job);
                        Ok(false)
                    }
                    Need::Feed => {
                        publish(job);
                        Ok(true)
                    }
                    Need::Done => {
                        publish(job);
                        job.session.work = None;
                        job.finish(Ok(()));
                        Ok(false)
                    }
                }
            }
        }
    }

    fn begin(&self, request: &TranscribeRequest) -> Result<Work> {
        let began = Instant::now();
        if request.options.detect_only {
            let first = &request.samples[..request.samples.len().min(super::features::WINDOW_SAMPLES)];
            return Ok(Work { task: Task::Detect(self.features.mel(first)), encoding: None, features_s: 0.0 });
        }
        let mel = self.features.mel(&request.samples);
        let features_s = began.elapsed().as_secs_f64();
        let clip = Transcription::new(
            self.config.clone(),
            self.codec.clone(),
            request.options.clone(),
            mel,
            request.samples.len(),
            request.speech.as_deref(),
        )?;
        Ok(Work { task: Task::Transcribe(Box::new(clip)), encoding: None, features_s })
    }

    fn languages(&self, streams: Vec<Stream>) -> Result<Vec<(String, f32)>> {
        let start = [self.config.ids.start];
        let mut languages = Vec::new();
        for mut stream in streams {
            let mut feeds = [Feed::new(&mut stream, &start)];
            self.whisper.step(&mut feeds)?;
            let probabilities = language::probabilities(&self.config, &feeds[0].logits);
            languages = self.config.languages.iter().map(|l| l.code.clone()).zip(probabilities).collect();
        }
        Ok(languages)
    }
}

fn done(job: &mut Job<'_, WhisperModel>, stats: TranscribeStats) -> Result<bool> {
    job.reply(TranscribeReply::Done(stats));
    job.session.work = None;
    job.finish(Ok(()));
    Ok(false)
}

/// Sends what has become final.
fn publish(job: &mut Job<'_, WhisperModel>) {
    if let Some(Work { task: Task::Transcribe(clip), .. }) = &mut job.session.work {
        for event in clip.events() {
            job.reply(event);
        }
    }
}
