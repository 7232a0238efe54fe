//! `audio.write`: sound to a WAV file that appears under its name only when it is whole.

use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::PathBuf;

use oxiline_graph::payload::Audio;
use oxiline_graph::{EosReason, Error, Incoming, Input, Io, Nanos, Node, PortType, Prepare, Result, Setup, Timed};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::place::{Place, full, rename};

/// How samples are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WavFormat {
    /// Integers of 16 bits.
    #[default]
    S16,
    /// Integers of 24 bits.
    S24,
    /// Floats of 32 bits: nothing is rounded or clipped.
    F32,
}

impl WavFormat {
    fn bytes(self) -> u16 {
        match self {
            Self::S16 => 2,
            Self::S24 => 3,
            Self::F32 => 4,
        }
    }
}

/// Options of `audio.write`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AudioWriteOptions {
    /// A WAV file, written as NAME.partial until it is whole, or "-" for standard output.
    pub to: String,
    /// s16, s24 or f32.
    #[serde(default)]
    pub format: WavFormat,
    /// Replace a recording that is there already.
    #[serde(default)]
    pub overwrite: bool,
}

/// Writes sound.
pub struct AudioWrite {
    options: AudioWriteOptions,
    target: Option<Target>,
}

impl Node for AudioWrite {
    const KIND: &'static str = "audio.write";
    const ABOUT: &'static str = "Writes sound to a WAV file; time without sound becomes silence.";
    type Options = AudioWriteOptions;

    fn new(options: Self::Options, setup: &mut Setup) -> Result<Self> {
        if options.to.is_empty() {
            return Err(Error::msg("`to` is empty: name a WAV file, or - for standard output"));
        }
        setup.input("audio", PortType::AUDIO);
        setup.writes(options.to.clone().into());
        setup.memory(1 << 20);
        Ok(Self { options, target: None })
    }

    fn prepare(&mut self, _: &Prepare) -> Result<()> {
        let to = self.options.to.as_str();
        let (out, names) = match to {
            "-" => (Out::Stream(Box::new(io::stdout())), None),
            to => {
                let place =
                    if self.options.overwrite { Place::replace("sound", to) } else { Place::open("sound", to) }?;
                // A pipe or device takes no sizes afterwards.
                let file = place.file.metadata().is_ok_and(|m| m.is_file());
                let out = if file { Out::File(BufWriter::new(place.file)) } else { Out::Stream(Box::new(place.file)) };
                (out, place.names)
            }
        };
        let place = names.as_ref().map_or_else(|| PathBuf::from(to), |(_, partial)| partial.clone());
        self.target = Some(Target { out, names, place, wav: None });
        Ok(())
    }

    fn run(&mut self, io: &Io) -> Result<()> {
        let mut target =
            self.target.take().ok_or_else(|| Error::msg("`audio.write` was run before it was prepared"))?;
        let done = write_all(io, &mut target, self.options.format);
        if let Some(wav) = &target.wav {
            io.count("frames", wav.frames);
            if wav.clipped > 0 {
                io.count("clipped", wav.clipped);
                io.note(format!(
                    "{} samples were louder than `{}` can hold and were clipped; use `format = \"f32\"`",
                    wav.clipped, self.options.to
                ));
            }
        }
        match done {
            Ok(EosReason::Complete) if target.wav.is_some() => target.complete(),
            Ok(_) => {
                target.keep_partial().into_iter().for_each(|note| io.note(note));
                Ok(())
            }
            Err(error) => {
                target.keep_partial().into_iter().for_each(|note| io.note(note));
                Err(error)
            }
        }
    }
}

/// Writes until the input ends.
fn write_all(io: &Io, target: &mut Target, format: WavFormat) -> Result<EosReason> {
    let input: Input<Audio> = io.input("audio")?;
    // Where the recording begins in time: sound or silence, whichever comes first.
    let mut start: Option<Nanos> = None;
    loop {
        match input.next()? {
            Incoming::Data(Timed { header, value }) => {
                let start = *start.get_or_insert(header.pts);
                target.begin(&value, format)?;
                target.silence_until(header.pts - start)?;
                target.write(&value.samples)?;
            }
            Incoming::Gap(gap) => {
                let start = *start.get_or_insert(gap.from);
                target.silence_until(gap.to - start)?;
            }
            Incoming::Mark(_) => {}
            Incoming::End(reason) => return Ok(reason),
        }
    }
}

enum Out {
    File(BufWriter<File>),
    Stream(Box<dyn Write + Send>),
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::File(out) => out.write(bytes),
            Self::Stream(out) => out.write(bytes),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::File(out) => out.flush(),
            Self::Stream(out) => out.flush(),
        }
    }
}

struct Target {
    out: Out,
    names: Option<(PathBuf, PathBuf)>,
    place: PathBuf,
    /// Once the form of the sound is known.
    wav: Option<Wav>,
}

/// What has been written.
struct Wav {
    rate: u32,
    channels: u16,
    format: WavFormat,
    frames: u64,
    clipped: u64,
    bytes: Vec<u8>,
}

/// Bytes before the samples, and those of them that RIFF's own size does not count.
const HEADER: u64 = 58;
const RIFF: u64 = 8;

impl Wav {
    fn block(&self) -> u16 {
        self.format.bytes() * self.channels
    }

    /// The header, with sizes that mean "to the end" while they are not known.
    fn header(&self, whole: bool) -> Vec<u8> {
        let data = self.frames * u64::from(self.block());
        let size = |n: u64| u32::try_from(n).ok().filter(|_| whole).unwrap_or(u32::MAX).to_le_bytes();
        let tag: u16 = if self.format == WavFormat::F32 { 3 } else { 1 };
        let mut out = Vec::with_capacity(HEADER as usize);
        out.extend(b"RIFF");
        out.extend(size(HEADER - RIFF + data + data % 2));
        out.extend(b"WAVEfmt ");
        out.extend(18u32.to_le_bytes());
        out.extend(tag.to_le_bytes());
        out.extend(self.channels.to_le_bytes());
        out.extend(self.rate.to_le_bytes());
        out.extend((self.rate.saturating_mul(u32::from(self.block()))).to_le_bytes());
        out.extend(self.block().to_le_bytes());
        out.extend((self.format.bytes() * 8).to_le_bytes());
        out.extend(0u16.to_le_bytes());
        out.extend(b"fact");
        out.extend(4u32.to_le_bytes());
        out.extend(size(self.frames));
        out.extend(b"data");
        out.extend(size(data));
        out
    }

    /// Stores samples in `bytes`.
    fn encode(&mut self, samples: &[f32]) {
        self.bytes.clear();
        match self.format {
            WavFormat::F32 => samples.iter().for_each(|x| self.bytes.extend(x.to_le_bytes())),
            WavFormat::S16 => {
                for &x in samples {
                    let y = (x * 32_768.0).round();
                    self.clipped += u64::from(!(-32_768.0..=32_767.0).contains(&y));
                    // The cast saturates, and is 0 for what is not a number.
                    self.bytes.extend((y as i16).to_le_bytes());
                }
            }
            WavFormat::S24 => {
                for &x in samples {
                    let y = (f64::from(x) * 8_388_608.0).round();
                    self.clipped += u64::from(!(-8_388_608.0..=8_388_607.0).contains(&y));
                    let y = y.clamp(-8_388_608.0, 8_388_607.0) as i32;
                    self.bytes.extend(&y.to_le_bytes()[..3]);
                }
            }
        }
    }
}

impl Target {
    /// Writes the header when the first sound comes.
    fn begin(&mut self, audio: &Audio, format: WavFormat) -> Result<()> {
        let (rate, channels) = (audio.rate, audio.channels);
        match &self.wav {
            Some(wav) if (wav.rate, wav.channels) == (rate, channels) => Ok(()),
            Some(wav) => Err(Error::msg(format_args!(
                "the sound changed from {} Hz with {} channels to {rate} Hz with {channels}, which one WAV file \
                 cannot hold; put `audio.resample` in front",
                wav.rate, wav.channels
            ))),
            None => {
                let wav = Wav { rate, channels, format, frames: 0, clipped: 0, bytes: Vec::new() };
                self.out.write_all(&wav.header(false)).map_err(|e| full("sound", &self.place, &e))?;
                self.wav = Some(wav);
                Ok(())
            }
        }
    }

    /// Silence up to a time of the recording. Less than a millisecond is rounding.
    fn silence_until(&mut self, at: Nanos) -> Result<()> {
        let Some(wav) = &self.wav else { return Ok(()) };
        let frames = (i128::from(at) * i128::from(wav.rate) + 500_000_000) / 1_000_000_000;
        let mut missing = frames - i128::from(wav.frames);
        if missing * 1000 < i128::from(wav.rate) {
            return Ok(());
        }
        let channels = usize::from(wav.channels);
        const SILENCE: [f32; 4096] = [0.0; 4096];
        while missing > 0 {
            let part = (SILENCE.len() / channels).max(1).min(usize::try_from(missing).unwrap_or(usize::MAX));
            self.write(&SILENCE[..(part * channels).min(SILENCE.len())])?;
            missing -= part as i128;
        }
        Ok(())
    }

    fn write(&mut self, samples: &[f32]) -> Result<()> {
        let Some(wav) = &mut self.wav else { return Ok(()) };
        wav.frames += (samples.len() / usize::from(wav.channels.max(1))) as u64;
        if self.names.is_some() && HEADER + wav.frames * u64::from(wav.block()) > u64::from(u32::MAX) {
            return Err(Error::msg(format_args!(
                "`{}` is full: a WAV file holds 4 GiB; record in parts with `duration`",
                self.place.display()
            )));
        }
        wav.encode(samples);
        self.out.write_all(&wav.bytes).map_err(|e| full("sound", &self.place, &e))
    }

    /// The sizes, now that they are known.
    fn seal(&mut self) -> io::Result<()> {
        let Some(wav) = &self.wav else { return Ok(()) };
        if (wav.frames * u64::from(wav.block())) % 2 == 1 {
            self.out.write_all(&[0])?;
        }
        self.out.flush()?;
        if let Out::File(out) = &mut self.out {
            out.seek(SeekFrom::Start(0))?;
            out.write_all(&wav.header(true))?;
            out.flush()?;
            out.get_ref().sync_data()?;
        }
        Ok(())
    }

    fn complete(mut self) -> Result<()> {
        self.seal().map_err(|e| full("sound", &self.place, &e))?;
        match &self.names {
            Some((path, partial)) => rename("sound is", partial, path),
            None => Ok(()),
        }
    }

    /// Says where the part is that was written before the work stopped.
    fn keep_partial(mut self) -> Option<String> {
        let sealed = self.seal();
        let (path, partial) = self.names.take()?;
        let Some(wav) = &self.wav else {
            drop(self.out);
            let _ = std::fs::remove_file(&partial);
            return Some(format!("`{}` was not written: there was no sound", path.display()));
        };
        let seconds = wav.frames as f64 / f64::from(wav.rate.max(1));
        let (path, partial) = (path.display(), partial.display());
        Some(match sealed {
            Ok(()) => format!(
                "the work stopped before the end: the first {seconds:.2} s are in `{partial}`, `{path}` was not written"
            ),
            Err(e) => format!("the end of `{partial}` was not written: {e}; `{path}` was not written"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxiline_graph::{Gap, GapReason, Harness, Header, Item, Mark, Payload};

    fn sound(pts: Nanos, samples: &[f32]) -> Item {
        let audio = Audio { rate: 1000, channels: 2, samples: samples.into() };
        Item::Data(Header::at(pts, samples.len() as Nanos * 500_000), Payload::Audio(audio))
    }

    fn write(to: &std::path::Path, format: WavFormat, items: Vec<Item>) -> oxiline_graph::Outputs {
        let options = AudioWriteOptions { to: to.display().to_string(), format, overwrite: false };
        Harness::new::<AudioWrite>(options).input("audio", items).run_whatever().unwrap()
    }

    /// Read again by the decoder of this crate.
    fn read(path: &std::path::Path) -> (u32, u16, Vec<f32>) {
        let sound = crate::load_audio(path).unwrap().audio;
        (sound.rate, sound.channels, sound.samples.to_vec())
    }

    #[test]
    fn samples_come_back_as_they_went_in() {
        let dir = tempfile::tempdir().unwrap();
        let samples: Vec<f32> = (-32_768i32..32_768).step_by(64).map(|i| i as f32 / 32_768.0).collect();
        for (format, name) in [(WavFormat::S16, "a.wav"), (WavFormat::S24, "b.wav"), (WavFormat::F32, "c.wav")] {
            let to = dir.path().join(name);
            write(&to, format, vec![sound(0, &samples)]);
            assert_eq!(read(&to), (1000, 2, samples.clone()), "{format:?}");
            assert_eq!(std::fs::metadata(&to).unwrap().len(), 58 + samples.len() as u64 * u64::from(format.bytes()));
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3, "no partial file is left");
    }

    #[test]
    fn time_without_sound_is_silence() {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("a.wav");
        let gap = Gap { from: 10_000_000, to: 510_000_000, reason: GapReason::DeviceLost };
        write(&to, WavFormat::F32, vec![sound(0, &[0.5; 20]), Item::Gap(gap), sound(510_000_000, &[0.25; 20])]);
        let (_, _, samples) = read(&to);
        assert_eq!(samples.len(), 2 * 520);
        assert!(samples[20..1020].iter().all(|x| *x == 0.0) && samples[1020] == 0.25);
    }

    #[test]
    fn a_stopped_recording_is_partial_and_can_be_played() {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("a.wav");
        let out = write(&to, WavFormat::S16, vec![sound(0, &[2.0; 20]), Item::Mark(Mark::Eos(EosReason::Stopped))]);
        assert!(!to.exists());
        assert_eq!(read(&dir.path().join("a.wav.partial")).2.len(), 20);
        let notes = out.summary.notes.join("\n");
        assert!(notes.contains("first 0.01 s") && notes.contains("20 samples were louder"), "{notes}");
        let none = write(&dir.path().join("b.wav"), WavFormat::S16, vec![]);
        assert!(none.summary.notes[0].contains("there was no sound"), "{:?}", none.summary.notes);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_recording_is_not_lost_by_mistake() {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("a.wav");
        write(&to, WavFormat::S16, vec![sound(0, &[0.5; 20])]);
        let again = |overwrite| {
            let options = AudioWriteOptions { to: to.display().to_string(), format: WavFormat::S16, overwrite };
            Harness::new::<AudioWrite>(options).input("audio", vec![sound(0, &[0.25; 4])]).run()
        };
        assert!(again(false).unwrap_err().to_string().contains("another name"));
        assert_eq!(read(&to).2.len(), 20);
        again(true).unwrap();
        assert_eq!(read(&to).2, [0.25; 4]);
        let mut other = sound(2_000_000, &[0.5; 20]);
        if let Item::Data(_, Payload::Audio(audio)) = &mut other {
            audio.rate = 2000;
        }
        let changed = write(&dir.path().join("c.wav"), WavFormat::S16, vec![sound(0, &[0.5; 4]), other]);
        assert!(changed.summary.error.unwrap().contains("audio.resample"));
    }
}
