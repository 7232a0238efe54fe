//! Sample by sample against ffmpeg, for every format of docs/formats.md. Needs the `ffmpeg` program:
//! `cargo test -p oxiline-media --test ffmpeg -- --ignored --nocapture` prints the table.

use std::path::{Path, PathBuf};
use std::process::Command;

use oxiline_media::load_audio;

/// File name (`3.`, `4.`, `6.`, `8.`: so many channels), ffmpeg's options to make it, its options to read
/// it, least dB.
type Case = (&'static str, &'static str, &'static str, f64);

/// `EXACT`: no sample may differ.
const EXACT: f64 = f64::INFINITY;

const CASES: &[Case] = &[
    ("s16.wav", "-c:a pcm_s16le", "", EXACT),
    ("s24.wav", "-c:a pcm_s24le", "", EXACT),
    ("s32.wav", "-c:a pcm_s32le", "", EXACT),
    ("u8.wav", "-c:a pcm_u8", "", EXACT),
    ("f32.wav", "-c:a pcm_f32le", "", EXACT),
    ("f64.wav", "-c:a pcm_f64le", "", 140.0),
    ("rf64.wav", "-c:a pcm_s16le -rf64 always", "", EXACT),
    ("mulaw.wav", "-c:a pcm_mulaw", "", EXACT),
    ("alaw.wav", "-c:a pcm_alaw", "", EXACT),
    ("adpcm_ms.wav", "-c:a adpcm_ms", "", EXACT),
    ("adpcm_ima.wav", "-c:a adpcm_ima_wav", "", EXACT),
    ("s16be.aiff", "-c:a pcm_s16be", "", EXACT),
    ("s16.caf", "-c:a pcm_s16be", "", EXACT),
    ("pcm.avi", "-c:a pcm_s16le", "", EXACT),
    ("pcm.mkv", "-c:a pcm_s16le", "", EXACT),
    ("pcm.mov", "-c:a pcm_s16le", "", EXACT),
    ("a.flac", "-c:a flac", "", EXACT),
    ("s24.flac", "-c:a flac -sample_fmt s32", "", EXACT),
    ("flac.ogg", "-c:a flac", "", EXACT),
    ("flac.mkv", "-c:a flac", "", EXACT),
    ("flac.mp4", "-c:a flac", "", EXACT),
    ("6.flac", "-c:a flac", "", EXACT),
    ("alac.m4a", "-c:a alac", "", EXACT),
    ("alac.caf", "-c:a alac", "", EXACT),
    ("cbr.mp3", "-c:a libmp3lame -b:a 128k", "", 90.0),
    ("vbr.mp3", "-c:a libmp3lame -q:a 4", "", 90.0),
    ("low.mp3", "-c:a libmp3lame -ar 22050 -b:a 48k", "", 90.0),
    ("mono.mp3", "-c:a libmp3lame -ac 1 -b:a 64k", "", 90.0),
    ("a.mp2", "-c:a mp2", "", 80.0),
    ("mp3.mkv", "-c:a libmp3lame", "", 90.0),
    ("mp3.mp4", "-c:a libmp3lame", "", 90.0),
    ("vorbis.ogg", "-c:a libvorbis", "", 90.0),
    ("vorbis.webm", "-c:a libvorbis", "", 90.0),
    ("6.ogg", "-c:a libvorbis", "", 90.0),
    ("aac.m4a", "-c:a aac", "", 90.0),
    ("aac.aac", "-c:a aac", "", 90.0),
    ("aac.mkv", "-c:a aac", "", 90.0),
    ("frag.mp4", "-c:a aac -movflags frag_keyframe+empty_moov", "", 90.0),
    ("mono.m4a", "-c:a aac -ac 1 -ar 16000", "", 90.0),
    ("music.opus", "-c:a libopus -b:a 96k", "-c:a libopus", 60.0),
    ("speech.opus", "-c:a libopus -b:a 16k -application voip -ac 1", "-c:a libopus", 60.0),
    ("opus.mkv", "-c:a libopus", "-c:a libopus", 60.0),
    ("opus.webm", "-c:a libopus", "-c:a libopus", 60.0),
    ("opus.mp4", "-c:a libopus", "-c:a libopus", 60.0),
    ("4.opus", "-c:a libopus -mapping_family 1", "-c:a libopus", 60.0),
    ("6.opus", "-c:a libopus -mapping_family 1", "-c:a libopus", 60.0),
    ("8.opus", "-c:a libopus -mapping_family 1", "-c:a libopus", 60.0),
    ("3.opus", "-c:a libopus -mapping_family 255", "-c:a libopus", 60.0),
    ("6.mkv", "-c:a libopus -mapping_family 1", "-c:a libopus", 60.0),
];

fn ffmpeg(args: &str, places: &[(&str, &Path)]) -> Vec<u8> {
    let mut command = Command::new("ffmpeg");
    command.args(["-hide_banner", "-loglevel", "error", "-y"]);
    for word in args.split_whitespace() {
        match places.iter().find(|(name, _)| *name == word) {
            Some((_, path)) => command.arg(path),
            None => command.arg(word),
        };
    }
    let output = command.output().expect("the ffmpeg program is installed");
    assert!(output.status.success(), "ffmpeg {args}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Five seconds of pink noise and rising tones, every channel different: no codec finds it easy.
fn source(dir: &Path, channels: usize) -> PathBuf {
    let path = dir.join(format!("source{channels}.wav"));
    let layout = match channels {
        3 => "3.0",
        4 => "quad",
        6 => "5.1",
        8 => "7.1",
        _ => "stereo",
    };
    let tones: Vec<String> = (0..channels)
        .map(|c| format!("0.2*sin(2*PI*({}+{}*t)*t)+0.1*(random({c})-0.5)", 150 + 90 * c, 40 * c))
        .collect();
    let tones = format!("aevalsrc={}:d=5:s=44100:c={layout}", tones.join("|"));
    ffmpeg(&format!("-f lavfi -i {tones} -c:a pcm_f32le OUT"), &[("OUT", &path)]);
    path
}

/// dB of the reference over the difference, the channel of ours that goes with each of the reference's
/// (a container's order is not always ffmpeg's), and how many samples a channel are compared.
fn compare(reference: &[f32], ours: &[f32], channels: usize) -> (f64, Vec<usize>) {
    let frames = (reference.len() / channels).min(ours.len() / channels);
    let error = |a: usize, b: usize| -> f64 {
        (0..frames).map(|i| f64::from(reference[i * channels + a] - ours[i * channels + b]).powi(2)).sum()
    };
    let order: Vec<usize> =
        (0..channels).map(|a| (0..channels).min_by(|&x, &y| error(a, x).total_cmp(&error(a, y))).unwrap()).collect();
    let noise: f64 = order.iter().enumerate().map(|(a, &b)| error(a, b)).sum();
    let signal: f64 = reference[..frames * channels].iter().map(|v| f64::from(*v).powi(2)).sum();
    (10.0 * (signal / noise).log10(), order)
}

#[test]
#[ignore = "needs the ffmpeg program"]
fn samples_are_those_of_ffmpeg() {
    let dir = tempfile::tempdir().expect("folder");
    let mut wrong = Vec::new();
    for (name, make, read, least) in CASES {
        let file = dir.path().join(name);
        let source = source(dir.path(), name.split('.').next().and_then(|n| n.parse().ok()).unwrap_or(2));
        ffmpeg(&format!("-i IN -strict -2 {make} OUT"), &[("IN", &source), ("OUT", &file)]);
        let bytes = ffmpeg(&format!("{read} -i IN -f f32le -c:a pcm_f32le -"), &[("IN", &file)]);
        let reference: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        let loaded = match load_audio(&file) {
            Ok(loaded) => loaded,
            Err(error) => {
                println!("{name:<16} {error}");
                wrong.push(format!("{name}: {error}"));
                continue;
            }
        };
        let channels = usize::from(loaded.audio.channels);
        let ours = loaded.audio.samples.to_vec();
        let (db, order) = compare(&reference, &ours, channels);
        let (n, m) = (ours.len() / channels, reference.len() / channels);
        let moved = if order.iter().copied().eq(0..channels) { String::new() } else { format!(" order {order:?}") };
        println!(
            "{name:<16} {channels} ch {:>6} Hz {n:>7} samples, ffmpeg {m:>7}: {db:>6.1} dB{moved}",
            loaded.audio.rate
        );
        if db < *least || loaded.damaged > 0 {
            wrong.push(format!("{name}: {db:.1} dB, {least} wanted, {} damaged", loaded.damaged));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// MP4 whose config announces HE-AAC, made of AAC-LC at 24 kHz by the one bit field that says so.
#[test]
#[ignore = "needs the ffmpeg program"]
fn the_core_of_he_aac_is_read_and_more_channels_are_refused() {
    let dir = tempfile::tempdir().expect("folder");
    let (plain, announced, six) = (dir.path().join("lc.m4a"), dir.path().join("he.m4a"), dir.path().join("six.m4a"));
    ffmpeg("-i IN -c:a aac -ar 24000 OUT", &[("IN", &source(dir.path(), 2)), ("OUT", &plain)]);
    let mut bytes = std::fs::read(&plain).expect("made");
    // DecoderSpecificInfo: tag 5, its length in four bytes, the config (13 10 for LC, 24 kHz, stereo and
    // the sync extension that says there is no SBR).
    let config = bytes.windows(7).position(|w| w[..2] == [5, 0x80] && w[5..] == [0x13, 0x10]).expect("config") + 5;
    assert_eq!(bytes[config - 1], 5, "room for the config of HE-AAC");
    bytes[config..config + 5].copy_from_slice(&[0x2b, 0x11, 0x88, 0x00, 0x00]);
    std::fs::write(&announced, bytes).expect("written");
    let (lc, he) = (load_audio(&plain).expect("LC"), load_audio(&announced).expect("HE-AAC"));
    assert_eq!((he.audio.rate, he.audio.channels, he.damaged), (24_000, 2, 0));
    assert!(he.audio.samples == lc.audio.samples, "the core is what it is without the announcement");
    for name in ["six.m4a", "six.aac", "six.mkv"] {
        let six = six.with_file_name(name);
        ffmpeg("-i IN -c:a aac OUT", &[("IN", &source(dir.path(), 6)), ("OUT", &six)]);
        let said = load_audio(&six).expect_err("six channels").to_string();
        assert!(said.contains(name) && said.contains("6 channels") && said.contains("mix it down"), "{said}");
    }
}
