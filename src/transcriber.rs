//! Speech to text without a graph: a thin client of the same model actor that graphs use.

use std::sync::Arc;

use oxiline_graph::plan::Class;
use oxiline_graph::protocol::speech::{
    Segment, Transcribe, TranscribeOptions, TranscribeReply, TranscribeRequest, TranscribeStats,
};
use oxiline_graph::{ActorHandle, Error, Result, Session};
use oxiline_speech::whisper::{WhisperModel, WhisperOptions};
use serde::Serialize;

use crate::CancelHandle;

/// How to keep the weights.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoadSettings {
    /// Precision of the kept weights; `None`: as stored.
    pub precision: Option<oxiline_speech::whisper::Precision>,
    /// Quantise at load: faster, may change a word.
    pub quant: Option<oxiline_speech::whisper::Quant>,
}

/// A loaded Whisper model with one stream of its own. [`Transcriber::another`] makes more on the same weights.
pub struct Transcriber {
    handle: ActorHandle<Transcribe>,
    session: Session<Transcribe>,
    cancel: CancelHandle,
}

/// What was said.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Transcription {
    /// Language code.
    pub language: String,
    /// Its probability; 1 when it was given.
    pub language_probability: f32,
    /// Segments in order.
    pub segments: Vec<Segment>,
    /// What it cost. `stopped`: it was cancelled and the segments are a part.
    pub stats: TranscribeStats,
}

impl Transcription {
    /// The text of all segments.
    pub fn text(&self) -> String {
        let text: String = self.segments.iter().map(|s| s.text.as_str()).collect();
        text.trim().to_string()
    }
}

impl Transcriber {
    /// Loads a model: a folder in Hugging Face's layout, `org/name`, or a known name.
    pub fn load(model: &str) -> Result<Self> {
        Self::load_with(model, LoadSettings::default())
    }

    /// The same, saying how the weights are kept.
    pub fn load_with(model: &str, settings: LoadSettings) -> Result<Self> {
        let folder = crate::models::resolve(model)?;
        let options = WhisperOptions {
            weights: folder.to_string_lossy().into_owned(),
            precision: settings.precision,
            quant: settings.quant,
            ..WhisperOptions::default()
        };
        Self::on(ActorHandle::load::<WhisperModel>(options, Class::Batch)?)
    }

    fn on(handle: ActorHandle<Transcribe>) -> Result<Self> {
        let session = handle.open(())?;
        Ok(Self { handle, session, cancel: CancelHandle::default() })
    }

    /// One more stream on the same loaded weights, for another thread.
    pub fn another(&self) -> Result<Self> {
        Self::on(self.handle.clone())
    }

    /// What cancels from another thread.
    pub fn cancel_handle(&self) -> CancelHandle {
        self.cancel.clone()
    }

    /// Transcribes 16 kHz mono samples; `each` is called with every segment as it is finished.
    ///
    /// # Errors
    /// Unknown language, a task the model cannot do, or a failure inside the model. A cancel is no error.
    pub fn transcribe(
        &mut self,
        samples: impl Into<Arc<[f32]>>,
        options: &TranscribeOptions,
        mut each: impl FnMut(&Segment),
    ) -> Result<Transcription> {
        let request = TranscribeRequest { samples: samples.into(), speech: None, options: options.clone() };
        let mut result = Transcription::default();
        let cancel = self.cancel.clone();
        let call = self.session.call(request)?;
        let asked = cancel.begin(&call);
        let mut outcome = Ok(());
        for reply in call {
            match reply {
                Ok(TranscribeReply::Language { code, probability }) => {
                    result.language = code;
                    result.language_probability = probability;
                }
                Ok(TranscribeReply::Segment(segment)) => {
                    each(&segment);
                    result.segments.push(segment);
                }
                Ok(TranscribeReply::Done(stats)) => result.stats = stats,
                Ok(_) => {}
                Err(Error::Cancelled) => result.stats.stopped = true,
                Err(error) => outcome = Err(error),
            }
        }
        cancel.end();
        cancel.clear();
        result.stats.stopped |= asked;
        outcome.map(|()| result)
    }

    /// Probabilities of the languages on the first 30 s of 16 kHz mono samples, most probable first.
    /// Empty for English-only models.
    pub fn detect_language(&mut self, samples: impl Into<Arc<[f32]>>) -> Result<Vec<(String, f32)>> {
        let options = TranscribeOptions { detect_only: true, ..TranscribeOptions::default() };
        let request = TranscribeRequest { samples: samples.into(), speech: None, options };
        let mut languages = Vec::new();
        for reply in self.session.call(request)? {
            if let TranscribeReply::Languages(list) = reply? {
                languages = list;
            }
        }
        languages.sort_by(|a, b| b.1.total_cmp(&a.1));
        Ok(languages)
    }

    /// Transcribes a media file: its first audio track, of any rate and length.
    #[cfg(feature = "media")]
    pub fn transcribe_file(
        &mut self,
        path: impl AsRef<std::path::Path>,
        options: &TranscribeOptions,
        each: impl FnMut(&Segment),
    ) -> Result<Transcription> {
        self.transcribe(load_audio(path)?, options, each)
    }

    /// Transcribes sound of any rate and channel count.
    #[cfg(feature = "media")]
    pub fn transcribe_audio(
        &mut self,
        audio: &oxiline_graph::payload::Audio,
        options: &TranscribeOptions,
        each: impl FnMut(&Segment),
    ) -> Result<Transcription> {
        let mut resampler = oxiline_media::resample::Resampler::new(audio.rate, audio.channels, 16_000, 1)?;
        let mut samples = Vec::new();
        resampler.push(&audio.samples, &mut samples);
        resampler.finish(&mut samples);
        self.transcribe(samples, options, each)
    }
}

/// The first audio track of a media file as 16 kHz mono samples.
#[cfg(feature = "media")]
pub fn load_audio(path: impl AsRef<std::path::Path>) -> Result<Arc<[f32]>> {
    Ok(oxiline_media::load_mono_16k(path.as_ref())?.audio.samples)
}
