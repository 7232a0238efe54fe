//! Sample by sample against ffmpeg, for every format of docs/formats.md. Needs the `ffmpeg` program:
//! `cargo test -p oxiline-media --test ffmpeg -- --ignored --nocapture` prints the table.

use std::path::{Path, PathBuf};
use std::process::Command;

use oxiline_media::load_audio;

/// File name, ffmpeg's options to make it, its options to read it, least dB.
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
    ("six.flac", "-c:a flac -ac 6", "", EXACT),
    ("alac.m4a", "-c:a alac", "", EXACT),
    ("alac.caf", "-c:a alac", "", EXACT),
    ("cbr.mp3", "-c:a libmp3lame -b:a 128k", "", 90.0),
    ("vbr.mp3", "-c:a libmp3lame -q:a 4", "", 90.0),
    ("low.mp3", "-c:a libmp3lame -ar 22050 -b:a 48k", "", 90.0),
    ("mono.mp3", "-c:a libmp3lame -ac 1 -b:a 64k", "", 90.0),
    ("a.mp2", "-c:a mp2", "", 90.0),
    ("mp3.mkv", "-c:a libmp3lame", "", 90.0),
    ("mp3.mp4", "-c:a libmp3lame", "", 90.0),
    ("vorbis.ogg", "-c:a libvorbis", "", 90.0),
    ("vorbis.webm", "-c:a libvorbis", "", 90.0),
    ("six.ogg", "-c:a libvorbis -ac 6", "", 90.0),
    ("aac.m4a", "-c:a aac", "", 90.0),
    ("aac.aac", "-c:a aac", "", 90.0),
    ("aac.mkv", "-c:a aac", "", 90.0),
    ("frag.mp4", "-c:a aac -movflags frag_keyframe+empty_moov", "", 90.0),
    ("mono.m4a", "-c:a aac -ac 1 -ar 16000", "", 90.0),
    ("six.m4a", "-c:a aac -ac 6", "", 90.0),
    ("music.opus", "-c:a libopus -b:a 96k", "-c:a libopus", 60.0),
    ("speech.opus", "-c:a libopus -b:a 16k -application voip -ac 1", "-c:a libopus", 60.0),
    ("opus.mkv", "-c:a libopus", "-c:a libopus", 60.0),
    ("opus.webm", "-c:a libopus", "-c:a libopus", 60.0),
    ("opus.mp4", "-c:a libopus", "-c:a libopus", 60.0),
    ("quad.opus", "-c:a libopus -ac 4 -mapping_family 1", "-c:a libopus", 60.0),
    ("six.opus", "-c:a libopus -ac 6 -mapping_family 1", "-c:a libopus", 60.0),
    ("eight.opus", "-c:a libopus -ac 8 -mapping_family 1", "-c:a libopus", 60.0),
    ("discrete.opus", "-c:a libopus -ac 3 -mapping_family 255", "-c:a libopus", 60.0),
    ("six.mkv", "-c:a libopus -ac 6 -mapping_family 1", "-c:a libopus", 60.0),
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

/// Five seconds of pink noise and a rising tone, different left and right: no codec finds it easy.
fn source(dir: &Path) -> PathBuf {
    let path = dir.join("source.wav");
    let noise = "anoisesrc=d=5:c=pink:r=44100:a=0.2:seed=7";
    let tones = "aevalsrc=0.3*sin(2*PI*(200+300*t)*t)|0.25*sin(2*PI*(500-50*t)*t):d=5:s=44100";
    let mix = "[0:a]aformat=channel_layouts=stereo[n];[n][1:a]amix=2:normalize=0";
    ffmpeg(
        &format!("-f lavfi -i {noise} -f lavfi -i {tones} -filter_complex {mix} -c:a pcm_f32le OUT"),
        &[("OUT", &path)],
    );
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
    let source = source(dir.path());
    let mut wrong = Vec::new();
    for (name, make, read, least) in CASES {
        let file = dir.path().join(name);
        ffmpeg(&format!("-i IN {make} OUT"), &[("IN", &source), ("OUT", &file)]);
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
