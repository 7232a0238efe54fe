//! The program against a microphone and a loudspeaker made of software: `tools/virtual_audio.py`.
//!
//! Without the sound server these tests say that they are skipped; with `OXILINE_TEST_AUDIO` set, as
//! `cargo check-all` does, they fail.
#![cfg(all(target_os = "linux", feature = "audio-devices", feature = "cli"))]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use oxiline::media::load_audio;
use serde_json::Value;

const RATE: usize = 48_000;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A sound server of this test's own; one test at a time, for their sound shares the processor.
struct Sound {
    folder: tempfile::TempDir,
    env: Vec<(String, String)>,
    _alone: MutexGuard<'static, ()>,
}

impl Sound {
    /// `None`, said aloud, when there is no server and nobody insists on one.
    fn start() -> Option<Self> {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::tempdir().unwrap();
        let mut sound = Self { folder, env: Vec::new(), _alone: alone };
        let started = sound.tool("start", &[]).output();
        let problem = match &started {
            Ok(done) if done.status.success() => None,
            Ok(done) => Some(String::from_utf8_lossy(&done.stderr).into_owned()),
            Err(error) => Some(error.to_string()),
        };
        if let Some(problem) = problem {
            assert!(std::env::var_os("OXILINE_TEST_AUDIO").is_none(), "no sound server: {problem}");
            eprintln!("skipped: no sound server ({}); see tools/virtual_audio.py", problem.trim());
            return None;
        }
        let env = sound.tool("env", &[]).output().unwrap();
        let lines = String::from_utf8(env.stdout).unwrap();
        sound.env =
            lines.lines().filter_map(|l| l.split_once('=')).map(|(name, value)| (name.into(), value.into())).collect();
        assert_eq!(sound.env.len(), 3, "{lines}");
        Some(sound)
    }

    fn place(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn tool(&self, verb: &str, words: &[&str]) -> Command {
        let mut command = Command::new("python3");
        command.arg(root().join("tools/virtual_audio.py")).arg(verb).arg(self.place("server")).args(words);
        command.stdin(Stdio::null());
        command
    }

    fn done(&self, verb: &str, words: &[&str]) {
        let status = self.tool(verb, words).status().unwrap();
        assert!(status.success(), "virtual_audio.py {verb} {words:?}: {status}");
    }

    /// Runs a graph; its statistics come once a second on standard error.
    fn run(&self, graph: &str, sets: &[&str]) -> Program {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oxiline"));
        command.arg("run").arg(root().join("graphs").join(graph)).args(["--stats", "json"]);
        for set in sets {
            command.args(["--set", set]);
        }
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        Program { child, lines: Box::new(lines.map_while(Result::ok)), said: Vec::new() }
    }
}

impl Drop for Sound {
    fn drop(&mut self) {
        let _ = self.tool("stop", &[]).status();
    }
}

/// A running graph.
struct Program {
    child: Child,
    lines: Box<dyn Iterator<Item = String>>,
    said: Vec<String>,
}

impl Program {
    fn next(&mut self) -> Option<Value> {
        loop {
            let line = self.lines.next()?;
            if let Ok(value) = serde_json::from_str::<Value>(&line) {
                return Some(value);
            }
            self.said.push(line);
        }
    }

    /// Waits until a node's statistics are so.
    fn until(&mut self, node: &str, ready: impl Fn(&Value) -> bool) {
        while let Some(value) = self.next() {
            let nodes = value["stats"]["nodes"].as_array();
            if nodes.into_iter().flatten().any(|n| n["name"] == node && ready(n)) {
                return;
            }
            assert_ne!(value["event"], "end", "it ended before: {value}");
        }
        panic!("it ended without a word more than: {:?}", self.said);
    }

    /// The summary, and the exit code.
    fn end(mut self) -> (Value, i32) {
        let mut end = Value::Null;
        while let Some(value) = self.next() {
            if value["event"] == "end" {
                end = value;
            }
        }
        let status = self.child.wait().unwrap();
        assert_eq!(end["event"], "end", "no summary; it said: {:?}", self.said);
        (end, status.code().unwrap_or(-1))
    }
}

fn captures(node: &Value) -> bool {
    node["counters"]["frames"].as_u64() > Some(0)
}

fn device(end: &Value, node: &str) -> Value {
    let nodes = end["nodes"].as_array().unwrap();
    nodes.iter().find(|n| n["name"] == node).unwrap()["reports"]["device"].clone()
}

/// Noise that repeats nowhere and is nowhere silent, as 16-bit samples.
fn noise(frames: usize, channels: usize, seed: u64) -> Vec<i16> {
    let mut state = seed;
    (0..frames * channels)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let value = (state >> 50) as i16 - 8192;
            if value == 0 { 1 } else { value }
        })
        .collect()
}

fn write(to: &Path, channels: u16, samples: &[i16]) {
    let data: Vec<u8> = samples.iter().flat_map(|x| x.to_le_bytes()).collect();
    let size = u32::try_from(data.len()).unwrap();
    let mut wav = Vec::new();
    wav.extend(b"RIFF");
    wav.extend((36 + size).to_le_bytes());
    wav.extend(b"WAVEfmt \x10\0\0\0\x01\0");
    wav.extend(channels.to_le_bytes());
    wav.extend((RATE as u32).to_le_bytes());
    wav.extend((RATE as u32 * 2 * u32::from(channels)).to_le_bytes());
    wav.extend((2 * channels).to_le_bytes());
    wav.extend(16u16.to_le_bytes());
    wav.extend(b"data");
    wav.extend(size.to_le_bytes());
    wav.extend(data);
    std::fs::write(to, wav).unwrap();
}

fn read(path: &Path) -> (usize, Vec<i16>) {
    let audio = load_audio(path).unwrap().audio;
    assert_eq!(audio.rate as usize, RATE);
    (audio.frames(), audio.samples.iter().map(|x| (x * 32_768.0).round() as i16).collect())
}

/// How many samples of `clip` lie in `sound`, all in one piece from the first on.
fn found(clip: &[i16], sound: &[i16]) -> usize {
    let key = &clip[..16];
    let at = sound.windows(key.len()).position(|w| w == key);
    at.map_or(0, |at| clip.iter().zip(&sound[at..]).take_while(|(a, b)| a == b).count())
}

/// The sound server's own player or recorder may stumble on a busy machine: a second try is allowed.
fn twice(attempt: impl Fn(u64) -> Result<(), String>) {
    if let Err(first) = attempt(1) {
        eprintln!("first attempt: {first}");
        attempt(2).unwrap();
    }
}

#[test]
fn what_is_said_is_captured_to_the_sample() {
    let Some(sound) = Sound::start() else { return };
    twice(|seed| {
        let clip = noise(3 * RATE, 1, seed);
        let (said, heard) = (sound.place("said.wav"), sound.place(&format!("heard{seed}.wav")));
        write(&said, 1, &clip);
        let to = format!("output={}", heard.display());
        let sets = [&to, "nodes.mic.channels=1", "nodes.mic.duration=7s", "nodes.mic.prelisten=true"];
        let mut program = sound.run("record.toml", &sets);
        program.until("mic", captures);
        sound.done("say", &[said.to_str().unwrap()]);
        let (end, code) = program.end();
        assert_eq!((code, &end["outcome"]), (0, &"complete".into()), "{end}");
        let device = device(&end, "mic");
        assert_eq!(device["overrun_frames"], 0, "{device}");
        assert_eq!(device["clock_master"], true);
        let (frames, sound) = read(&heard);
        assert_eq!(frames, 7 * RATE, "samples captured");
        match found(&clip, &sound) {
            n if n == clip.len() => Ok(()),
            n => Err(format!("{n} of {} samples arrived in one piece; {device}", clip.len())),
        }
    });
}

#[test]
fn what_is_played_leaves_the_loudspeaker_to_the_sample() {
    let Some(sound) = Sound::start() else { return };
    twice(|seed| {
        let clip = noise(3 * RATE, 2, 10 + seed);
        let (file, monitor) = (sound.place("clip.wav"), sound.place("monitor.wav"));
        write(&file, 2, &clip);
        let mut recorder = sound.tool("record", &["8", monitor.to_str().unwrap()]).spawn().unwrap();
        std::thread::sleep(Duration::from_secs(1));
        let (end, code) = sound.run("play.toml", &[&format!("input={}", file.display())]).end();
        assert!(recorder.wait().unwrap().success());
        assert_eq!((code, &end["outcome"]), (0, &"complete".into()), "{end}");
        let device = device(&end, "speaker");
        let (_, sound) = read(&monitor);
        match found(&clip, &sound) {
            n if n == clip.len() && device["underruns"] == 0 => Ok(()),
            n => Err(format!("{n} of {} samples left in one piece; {device}", clip.len())),
        }
    });
}

#[test]
fn a_crashed_sound_server_is_a_gap_and_no_end() {
    let Some(sound) = Sound::start() else { return };
    let clip = noise(2 * RATE, 1, 99);
    let (said, heard) = (sound.place("said.wav"), sound.place("heard.wav"));
    write(&said, 1, &clip);
    let sets = [&format!("output={}", heard.display()), "nodes.mic.channels=1", "nodes.mic.duration=10s"];
    let mut program = sound.run("record.toml", &sets);
    program.until("mic", captures);
    sound.done("kill", &[]);
    let killed = Instant::now();
    std::thread::sleep(Duration::from_secs(3));
    sound.done("start", &[]);
    let away = killed.elapsed();
    // Told only by a device that is open again.
    program.until("mic", |node| node["reports"]["device"]["losses"] == 1);
    sound.done("say", &[said.to_str().unwrap()]);
    let (end, code) = program.end();
    assert_eq!((code, &end["outcome"]), (0, &"complete".into()), "{end}");
    assert!(end["edges"][0]["gaps"].as_u64() > Some(0), "{}", end["edges"]);
    let notes = end["notes"].to_string();
    assert!(notes.contains("was lost") && notes.contains("again"), "{notes}");
    let (frames, sound) = read(&heard);
    // All ten seconds of sound, and silence of at least the time the server was away.
    let silence = frames.saturating_sub(10 * RATE) as f64 / RATE as f64;
    assert!(silence >= away.as_secs_f64() - 0.2, "{silence} s of gap for {away:?} without a server");
    assert_eq!(found(&clip, &sound), clip.len(), "sound after the gap");
}

#[test]
fn ctrl_c_ends_a_recording_whole() {
    let Some(sound) = Sound::start() else { return };
    let heard = sound.place("heard.wav");
    let mut program = sound.run("record.toml", &[&format!("output={}", heard.display())]);
    program.until("mic", captures);
    let pid = program.child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let (end, code) = program.end();
    assert_eq!((code, &end["outcome"]), (0, &"complete".into()), "{end}");
    assert!(read(&heard).0 > 0);
    assert!(!sound.place("heard.wav.partial").exists());
}

#[test]
fn the_devices_are_listed() {
    let Some(sound) = Sound::start() else { return };
    let mut command = Command::new(env!("CARGO_BIN_EXE_oxiline"));
    command.args(["devices", "--json"]).envs(sound.env.iter().map(|(name, value)| (name, value)));
    let listed: Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
    let ids: Vec<&str> = listed["audio"].as_array().unwrap().iter().filter_map(|d| d["id"].as_str()).collect();
    for id in ["alsa:default", "alsa:speaker", "alsa:speaker_monitor", "alsa:mic"] {
        assert!(ids.contains(&id), "{id} is not among {ids:?}");
    }
    let missing = sound.run("record.toml", &["device=alsa:nowhere", &format!("output={}", sound.place("x").display())]);
    let (end, code) = missing.end();
    assert_eq!(code, 1);
    assert!(end["error"].as_str().unwrap().contains("there is no microphone `alsa:nowhere`"), "{end}");
}
