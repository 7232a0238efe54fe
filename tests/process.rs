//! The program as a process of its own: the memory it takes, and how signals end it.

mod common;

use std::path::Path;

use common::{clip, oxiline, recipe, root, run, speech, stdout, write_wav};
use serde_json::Value;

fn path(p: &Path) -> &str {
    p.to_str().expect("UTF-8")
}

/// `graph check` promises a bound; a long clip must stay under it (plus what one second of sound takes:
/// the program, the model, one window's scratch).
#[cfg(target_os = "linux")]
#[test]
fn a_long_clip_stays_under_the_worst_case_that_was_declared() {
    let dir = tempfile::tempdir().expect("folder");
    let file = root().join("graphs/transcribe.toml");
    let set = |key: &str, value: &str| ["--set".to_string(), format!("{key}={value}")];
    let model = set("model", path(&speech("whisper_en")));
    let checked = stdout(&run(["graph", "check", path(&file), &model[0], &model[1]]));
    // "memory of queues and nodes: 46.4 MiB where it is known; not known for ..."
    let bound = checked.split("memory of queues and nodes: ").nth(1).expect("a bound").split(" MiB").next();
    let declared: f64 = bound.expect("MiB").parse().expect("a number");
    // And what has no bound grows with the clip: its samples, and (80 bins in this model) its features.
    assert!(checked.contains("64 kB a second of sound, and 32 to 51 kB of its features"), "{checked}");
    let peak = |seconds: usize| -> f64 {
        let (wav, out) = (dir.path().join("clip.wav"), dir.path().join("out.srt"));
        // Speech every half minute, so that every part of the graph works; seconds of silence between.
        let mut samples = clip("en_a");
        samples.resize(16_000 * 30, 0.0);
        let samples: Vec<f32> = samples.into_iter().cycle().take(16_000 * seconds).collect();
        write_wav(&wav, &samples);
        let sets = [model.clone(), set("input", path(&wav)), set("output", path(&out))].concat();
        let args = ["run".to_string(), path(&file).to_string(), "--stats".into(), "json".into()];
        let output = run(args.into_iter().chain(sets));
        stdout(&output);
        let errors = String::from_utf8(output.stderr).expect("UTF-8");
        let end: Value = serde_json::from_str(errors.lines().last().expect("a line")).expect("JSON");
        assert!((end["audio_s"].as_f64().expect("a number") - seconds as f64).abs() < 1.0, "{end}");
        end["peak_memory_bytes"].as_f64().expect("Linux tells")
    };
    let (base, seconds) = (peak(30), 1200);
    let long = peak(seconds);
    let allowed = declared * 1_048_576.0 + 96_000.0 * seconds as f64;
    assert!(long <= base + allowed, "{long} bytes at most, {base} for 30 s, {allowed} declared");
}

/// How the program ends, and what it says, when it is interrupted so many times.
#[cfg(unix)]
fn interrupted(times: usize, args: &[&str]) -> (Option<i32>, String) {
    use std::io::{BufRead, BufReader, Read};
    let mut child = oxiline().args(args).stderr(std::process::Stdio::piped()).spawn().expect("started");
    let mut errors = BufReader::new(child.stderr.take().expect("stderr"));
    std::thread::sleep(std::time::Duration::from_millis(1500));
    let mut said = Vec::new();
    for n in 0..times {
        let kill = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill");
        assert!(kill.success());
        if n == 0 {
            // It has taken the first one when it says so; signals sent at once could be one.
            let seen = |said: &[u8]| String::from_utf8_lossy(said).contains("Ctrl-C again");
            while !seen(&said) && errors.read_until(b'\n', &mut said).expect("read") > 0 {}
        }
    }
    let status = child.wait().expect("ended");
    errors.read_to_end(&mut said).expect("read");
    (status.code(), String::from_utf8_lossy(&said).into_owned())
}

#[cfg(unix)]
#[test]
fn an_interrupt_keeps_what_is_finished_as_a_part() {
    let dir = tempfile::tempdir().expect("folder");
    let (wav, out) = (dir.path().join("clip.wav"), dir.path().join("out.srt"));
    // Long enough that the signal comes before the end on any machine.
    write_wav(&wav, &recipe("long").repeat(40));
    let model = speech("whisper_en");
    let (code, said) =
        interrupted(1, &["transcribe", path(&wav), "--model", path(&model), "-o", path(&out), "--keep-all"]);
    assert_eq!(code, Some(130), "{said}");
    assert!(!out.exists(), "a part must not look whole");
    assert!(dir.path().join("out.srt.partial").exists(), "what was finished is kept: {said}");
}

#[cfg(unix)]
#[test]
fn a_second_interrupt_stops_at_once_and_leaves_nothing_that_looks_whole() {
    let dir = tempfile::tempdir().expect("folder");
    let (wav, out) = (dir.path().join("clip.wav"), dir.path().join("out.srt"));
    write_wav(&wav, &recipe("long").repeat(40));
    let model = speech("whisper_en");
    let args = ["transcribe", path(&wav), "--model", path(&model), "-o", path(&out), "--keep-all"];
    let (code, said) = interrupted(2, &args);
    assert_eq!(code, Some(130), "{said}");
    assert!(said.contains("Ctrl-C again stops at once") && !said.contains("panicked"), "{said}");
    let mut left: Vec<String> = std::fs::read_dir(dir.path())
        .expect("folder")
        .map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned())
        .collect();
    left.sort();
    // What was finished may be kept, under the name of a part; nothing else is left.
    assert!(left == ["clip.wav"] || left == ["clip.wav", "out.srt.partial"], "{left:?}: {said}");
    // The third does not even wait for the runtime.
    let (code, said) = interrupted(3, &args);
    assert_eq!(code, Some(130), "{said}");
    assert!(!out.exists());
}
