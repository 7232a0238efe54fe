//! Whole files at once, for programs and tests; graphs stream.

use std::path::Path;

use oxiline_graph::payload::Audio;
use oxiline_graph::samples::Samples;
use oxiline_graph::{Error, Result};

use crate::decoder::Decoder;
use crate::reader::Reader;
use crate::resample::{Resampler, SPEECH_RATE};
use crate::source::{STDIN_LIMIT, Source};

/// A decoded file.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The sound; damaged packets are silence, so that times stay true.
    pub audio: Audio,
    /// Codec name.
    pub codec: String,
    /// Container name.
    pub container: &'static str,
    /// Damaged packets.
    pub damaged: u64,
    /// What was wrong with the file, as sentences.
    pub warnings: Vec<String>,
}

/// Decodes the first audio track of a file, as it is: its own rate and channels. A change of
/// rate or channels on the way is converted to the form the file starts with.
///
/// # Errors
/// One sentence, see [`Reader::open`]; also when not one packet can be decoded.
pub fn load_audio(path: &Path) -> Result<Loaded> {
    load(Source::open_path(path)?, None)
}

/// Decodes the first audio track of a file to 16 kHz mono, what speech models want.
///
/// # Errors
/// As [`load_audio`].
pub fn load_mono_16k(path: &Path) -> Result<Loaded> {
    load(Source::open_path(path)?, Some((SPEECH_RATE, 1)))
}

/// As [`load_mono_16k`] for anything [`Source::open`] takes: a path, a `file:` URL, `-`.
///
/// # Errors
/// As [`load_audio`].
pub fn load_uri_mono_16k(uri: &str) -> Result<Loaded> {
    load(Source::open(uri, STDIN_LIMIT)?, Some((SPEECH_RATE, 1)))
}

/// Rate and channels, once known.
type Form = Option<(u32, u16)>;

fn load(source: Source, target: Form) -> Result<Loaded> {
    let mut reader = Reader::from_source(source, 0)?;
    let mut decoder = Decoder::new(reader.stream())?;
    let mut sink = Sink { target, samples: Samples::default(), buffer: Vec::new(), resampler: None };
    let mut warnings = Vec::new();
    while let Some(demuxed) = reader.next_packet()? {
        match decoder.decode(&demuxed.packet, demuxed.dur) {
            Ok(sound) => sink.add_all(&sound)?,
            Err(damage) => {
                if decoder.packets().1 <= 3 {
                    warnings.push(damage.error.to_string());
                }
                sink.silence(damage.frames, damage.rate)?;
            }
        }
    }
    sink.add_all(&decoder.finish()?)?;
    match (reader.warning(), decoder.missing()) {
        (Some(warning), _) => warnings.push(warning.to_string()),
        (None, Some((frames, rate))) => {
            let seconds = frames as f64 / f64::from(rate);
            warnings.push(format!("the file promises {seconds:.1} s more sound than is in it: it was cut off"));
        }
        (None, None) => {}
    }
    let (target, samples) = sink.finish()?;
    let (rate, channels) = target.ok_or_else(|| Error::msg("the file has an audio track without any sound in it"))?;
    Ok(Loaded {
        audio: Audio { rate, channels, samples: samples.into() },
        codec: reader.stream().codec.clone(),
        container: reader.container(),
        damaged: decoder.packets().1,
        warnings,
    })
}

struct Sink {
    target: Form,
    samples: Samples,
    /// What the resampler gave, before it joins the rest.
    buffer: Vec<f32>,
    resampler: Option<Resampler>,
}

impl Sink {
    fn add_all(&mut self, sound: &[Audio]) -> Result<()> {
        sound.iter().try_for_each(|audio| self.add(audio))
    }

    fn add(&mut self, audio: &Audio) -> Result<()> {
        let (rate, channels) = *self.target.get_or_insert((audio.rate, audio.channels));
        let fits = |r: &Resampler| r.input() == (audio.rate, audio.channels);
        if !self.resampler.as_ref().is_some_and(fits) {
            self.flush();
            self.resampler = Some(Resampler::new(audio.rate, audio.channels, rate, channels)?);
        }
        if let Some(resampler) = &mut self.resampler {
            resampler.push(&audio.samples, &mut self.buffer);
        }
        self.samples.extend_from_slice(&self.buffer);
        self.buffer.clear();
        Ok(())
    }

    /// Silence in place of what is missing, so that times after it stay true.
    fn silence(&mut self, frames: u64, rate: u32) -> Result<()> {
        let form = self.resampler.as_ref().map(Resampler::input);
        let Some((rate, channels)) = form.or(self.target.map(|(_, c)| (rate, c))).filter(|f| f.0 > 0) else {
            return Ok(());
        };
        // A damaged packet cannot claim more than a minute.
        let frames = usize::try_from(frames.min(u64::from(rate) * 60)).unwrap_or(0);
        self.add(&Audio { rate, channels, samples: vec![0.0; frames * usize::from(channels)].into() })
    }

    fn flush(&mut self) {
        if let Some(mut resampler) = self.resampler.take() {
            resampler.finish(&mut self.buffer);
            self.samples.extend_from_slice(&self.buffer);
            self.buffer.clear();
        }
    }

    /// The form of the sound (None: there was none) and its samples.
    fn finish(mut self) -> Result<(Form, Samples)> {
        self.flush();
        Ok((self.target, self.samples))
    }
}
