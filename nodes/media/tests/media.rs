//! Every container and codec: right form, right length, right sound; and what is not right is one
//! sentence. The clips are tones of a formula (tests/fixtures/make.sh), so the truth is computed.

use std::f64::consts::PI;
use std::path::{Path, PathBuf};

use oxiline_media::{Loaded, Reader, load_audio, load_mono_16k};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// The formula of make.sh.
fn signal(rate: u32, channels: u16, seconds: f64) -> Vec<f32> {
    let mut samples = Vec::new();
    for i in 0..(f64::from(rate) * seconds) as usize {
        let t = i as f64 / f64::from(rate);
        for c in 0..channels {
            let c = f64::from(c);
            let envelope = 0.6 + 0.4 * (2.0 * PI * 3.0 * t + c).sin();
            let v = 0.35 * envelope * (2.0 * PI * (440.0 + 110.0 * c) * t).sin()
                + 0.15 * (2.0 * PI * (1250.0 + 400.0 * c) * t + c).sin();
            samples.push(v as f32);
        }
    }
    samples
}

/// dB of the truth over the error, over the part both have but for `edge` samples at each end.
fn snr(want: &[f32], got: &[f32], edge: usize) -> f64 {
    let end = want.len().min(got.len()).saturating_sub(edge);
    let (mut s, mut n) = (0.0, 1e-30);
    for i in edge..end {
        s += f64::from(want[i]).powi(2);
        n += (f64::from(want[i]) - f64::from(got[i])).powi(2);
    }
    10.0 * (s / n).log10()
}

fn load(name: &str) -> Loaded {
    load_audio(&fixture(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// name, container, codec, rate, channels, seconds of the source, extra samples, least SNR.
/// `extra`: samples the container cannot say are padding (`None`: fewer than a packet).
type Case = (&'static str, &'static str, &'static str, u32, u16, f64, Option<usize>, f64);

const CASES: &[Case] = &[
    ("s16.wav", "wav", "pcm_s16le", 8000, 1, 0.25, Some(0), 85.0),
    ("s24.wav", "wav", "pcm_s24le", 8000, 1, 0.25, Some(0), 85.0),
    ("u8.wav", "wav", "pcm_u8", 8000, 1, 0.25, Some(0), 33.0),
    ("f32.wav", "wav", "pcm_f32le", 8000, 1, 0.25, Some(0), 85.0),
    ("mulaw.wav", "wav", "pcm_mulaw", 8000, 1, 0.25, Some(0), 30.0),
    ("alaw.wav", "wav", "pcm_alaw", 8000, 1, 0.25, Some(0), 30.0),
    ("adpcm_ima.wav", "wav", "adpcm_ima_wav", 8000, 1, 0.25, None, 24.0),
    ("adpcm_ms.wav", "wav", "adpcm_ms", 8000, 1, 0.25, None, 23.0),
    ("cbr.mp3", "mpeg audio", "mp3", 44_100, 2, 0.5, Some(0), 20.0),
    ("vbr.mp3", "mpeg audio", "mp3", 44_100, 2, 0.5, Some(0), 20.0),
    ("a.flac", "flac", "flac", 8000, 1, 0.25, Some(0), 85.0),
    ("flac.oga", "ogg", "flac", 8000, 1, 0.25, Some(0), 85.0),
    ("flac.mkv", "matroska", "flac", 8000, 1, 0.25, Some(0), 85.0),
    ("flac.mp4", "mp4", "flac", 8000, 1, 0.25, Some(0), 85.0),
    ("a.ogg", "ogg", "vorbis", 44_100, 2, 0.5, Some(0), 18.0),
    ("vorbis.webm", "matroska", "vorbis", 44_100, 2, 0.5, None, 18.0),
    ("celt.opus", "ogg", "opus", 48_000, 2, 0.5, Some(0), 12.0),
    ("silk.opus", "ogg", "opus", 48_000, 1, 0.5, Some(0), 8.0),
    ("hybrid.opus", "ogg", "opus", 48_000, 1, 0.5, Some(0), 8.0),
    ("opus.mkv", "matroska", "opus", 48_000, 2, 0.5, Some(0), 12.0),
    ("opus.mp4", "mp4", "opus", 48_000, 2, 0.5, Some(0), 12.0),
    ("a.m4a", "mp4", "aac", 44_100, 2, 0.5, Some(0), 14.0),
    ("mono.m4a", "mp4", "aac", 16_000, 1, 0.5, Some(0), 19.0),
    ("video.mp4", "mp4", "aac", 44_100, 2, 0.5, Some(0), 14.0),
    ("video.mov", "mp4", "aac", 44_100, 2, 0.5, Some(0), 14.0),
    ("pcm.avi", "avi", "pcm_s16le", 8000, 1, 0.25, Some(0), 85.0),
    ("pcm24.mkv", "matroska", "pcm", 8000, 1, 0.25, Some(0), 85.0),
    ("a.aiff", "aiff", "pcm", 8000, 1, 0.25, Some(0), 85.0),
    ("a.caf", "caf", "pcm", 8000, 1, 0.25, Some(0), 85.0),
    ("alac.m4a", "mp4", "alac", 8000, 1, 0.25, Some(0), 85.0),
    ("alac.caf", "caf", "alac", 8000, 1, 0.25, Some(0), 85.0),
];

#[test]
fn every_format_decodes_to_its_source() {
    let mut wrong = Vec::new();
    for &(name, container, codec, rate, channels, seconds, extra, least) in CASES {
        let loaded = load(name);
        let audio = &loaded.audio;
        let want = signal(rate, channels, seconds);
        let frames = want.len() / usize::from(channels);
        let db = snr(&want, &audio.samples, 400 * usize::from(channels));
        println!("{name:14} {container:10} {codec:13} {audio:?} {db:.1} dB {:?}", loaded.warnings);
        let length = match extra {
            Some(extra) => audio.frames() == frames + extra,
            None => (frames..frames + 2048).contains(&audio.frames()),
        };
        if (loaded.container, &loaded.codec[..], audio.rate, audio.channels) != (container, codec, rate, channels)
            || !length
            || db < least
            || loaded.damaged != 0
            || !loaded.warnings.is_empty()
        {
            wrong.push(format!(
                "{name}: {} {} {audio:?} {db:.1} dB, {} damaged, {:?}; wanted {frames} frames, {least} dB",
                loaded.container, loaded.codec, loaded.damaged, loaded.warnings
            ));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Containers that do not say how much of the start is priming: all of it comes, and the sound is there.
#[test]
fn streams_without_a_trim_keep_their_priming() {
    for (name, codec, delay) in
        [("a.aac", "aac", 1024), ("aac.mkv", "aac", 1024), ("frag.mp4", "aac", 1024), ("mp3.avi", "mp3", 1105)]
    {
        let loaded = load(name);
        let want = signal(44_100, 2, 0.5);
        assert_eq!((&loaded.codec[..], loaded.audio.rate, loaded.audio.channels), (codec, 44_100, 2), "{name}");
        let best =
            [0, delay].map(|d| snr(&want, &loaded.audio.samples[d * 2..], 3000)).into_iter().fold(f64::MIN, f64::max);
        assert!(best > 14.0, "{name}: {best:.1} dB");
        assert!((22_050..22_050 + 4096).contains(&loaded.audio.frames()), "{name}: {:?}", loaded.audio);
    }
}

#[test]
fn everything_becomes_speech_input() {
    for name in ["a.m4a", "cbr.mp3", "celt.opus", "s24.wav"] {
        let audio = load_mono_16k(&fixture(name)).unwrap().audio;
        let seconds = if name == "s24.wav" { 0.25 } else { 0.5 };
        assert_eq!((audio.rate, audio.channels, audio.frames()), (16_000, 1, (16_000.0 * seconds) as usize), "{name}");
    }
}

#[test]
fn files_that_are_no_media_say_what_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let said = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        load_audio(&path).unwrap_err().to_string()
    };
    for (name, bytes, expect) in [
        ("empty.mp3", &b""[..], "is empty"),
        ("a.wav", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "a PNG image"),
        ("b.wav", b"not media at all\n", "a text file"),
        ("c.mp3", b"\x0b\x77\x01\x02\x03", "AC-3"),
        ("d", &[7u8, 0, 9, 1, 0, 0, 0, 255, 254], "no known media format"),
    ] {
        let error = said(name, bytes);
        assert!(error.contains(expect) && error.contains(name) && !error.contains('\n'), "{error}");
    }
    for unsupported in ["b.wav", "d"] {
        assert!(said(unsupported, b"words").contains("Matroska/WebM"), "lists what is supported");
    }
    let error = load_audio(&fixture("silent.mp4")).unwrap_err().to_string();
    assert!(error.contains("has no audio track") && error.contains("pictures"), "{error}");
    let error = load_audio(Path::new("no/such/file.wav")).unwrap_err().to_string();
    assert!(error.contains("does not exist"), "{error}");
    let error = load_audio(dir.path()).unwrap_err().to_string();
    assert!(error.contains("is a directory"), "{error}");
    let Err(error) = Reader::open_path(&fixture("s16.wav"), 3) else { panic!() };
    assert!(error.to_string().contains("1 audio track(s)"), "{error}");
}

/// The extension does not matter.
#[test]
fn content_decides() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("really.mp3");
    std::fs::copy(fixture("a.flac"), &path).unwrap();
    assert_eq!(load_audio(&path).unwrap().codec, "flac");
}

/// Cut, flipped and zeroed files: an error sentence or sound, never a panic, never more sound
/// than a small file can hold.
#[test]
fn damaged_files_never_break_anything() {
    let dir = tempfile::tempdir().unwrap();
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move |n: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed % n.max(1) as u64) as usize
    };
    let hook = std::panic::take_hook();
    // What third-party decoders do is caught and counted; the noise is not wanted here.
    std::panic::set_hook(Box::new(|_| {}));
    let (mut sound, mut errors) = (0, 0);
    for &(name, ..) in
        CASES.iter().chain(&[("a.aac", "", "", 0, 0, 0.0, None, 0.0), ("mp3.avi", "", "", 0, 0, 0.0, None, 0.0)])
    {
        let whole = std::fs::read(fixture(name)).unwrap();
        for round in 0..rounds() {
            let mut bytes = whole.clone();
            match round % 5 {
                0 => bytes.truncate(random(bytes.len())),
                1 => (0..5).for_each(|_| {
                    let at = random(bytes.len());
                    bytes[at] = random(256) as u8;
                }),
                2 => {
                    let at = random(bytes.len());
                    let end = (at + 1 + random(200)).min(bytes.len());
                    bytes[at..end].fill(if round % 2 == 0 { 0 } else { 0xff });
                }
                3 => (0..3).for_each(|_| {
                    let at = random(bytes.len().min(300));
                    bytes[at] ^= 1 << random(8);
                }),
                _ => {
                    let at = random(bytes.len());
                    let rubbish: Vec<u8> = (0..random(400)).map(|_| random(256) as u8).collect();
                    bytes.splice(at..at, rubbish);
                }
            }
            let path = dir.path().join("damaged");
            std::fs::write(&path, &bytes).unwrap();
            match load_audio(&path) {
                Ok(loaded) => {
                    sound += 1;
                    assert!(loaded.audio.samples.len() < 20_000_000, "{name}, round {round}: {:?}", loaded.audio);
                }
                Err(error) => {
                    errors += 1;
                    let text = error.to_string();
                    assert!(text.len() > 20 && !text.contains('\n'), "{name}, round {round}: {text}");
                }
            }
        }
    }
    std::panic::set_hook(hook);
    println!("{sound} with sound, {errors} refused");
    assert!(sound > 0 && errors > 0);
}

/// Rounds of damage for each file; `OXILINE_FUZZ_ROUNDS` for longer campaigns.
fn rounds() -> usize {
    std::env::var("OXILINE_FUZZ_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(10)
}

/// A file that was cut off: what is there is decoded, and the reader says that something is missing.
#[test]
fn cut_files_give_what_they_hold_and_say_so() {
    let dir = tempfile::tempdir().unwrap();
    // Whether the reader can know that something is missing depends on the container.
    for (name, full, told) in [("s16.wav", 2000, true), ("cbr.mp3", 22_050, false), ("alac.m4a", 2000, false)] {
        let mut bytes = std::fs::read(fixture(name)).unwrap();
        bytes.truncate(bytes.len() * 7 / 10);
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let loaded = match load_audio(&path) {
            Ok(loaded) => loaded,
            // The table of an MP4 lies behind its sound: without it nothing can be found.
            Err(error) if name == "alac.m4a" => {
                assert!(error.to_string().contains("cannot be read"), "{error}");
                continue;
            }
            Err(error) => panic!("{name}: {error}"),
        };
        let frames = loaded.audio.frames();
        println!("{name}: {frames} of {full}, {:?}", loaded.warnings);
        assert!(frames > full / 3 && frames < full, "{name}: {frames} of {full}");
        assert!(!told || !loaded.warnings.is_empty(), "{name}");
    }
}
