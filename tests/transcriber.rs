//! [`oxiline::Transcriber`] as a program uses it, on a tiny fixture checkpoint.

mod common;

use common::{clip, recipe, speech};
use oxiline::{TranscribeOptions, Transcriber};

fn load(name: &str) -> Transcriber {
    Transcriber::load(speech(name).to_str().expect("UTF-8")).expect("the fixture loads")
}

#[test]
fn a_cancel_from_another_thread_gives_the_part_that_is_finished() {
    let mut transcriber = load("whisper_en");
    let handle = transcriber.cancel_handle();
    let samples = recipe("long").repeat(4);
    let options = TranscribeOptions { timestamps: true, ..TranscribeOptions::default() };
    let whole = transcriber.transcribe(samples.clone(), &options, |_| {}).expect("transcribed");
    assert!(!whole.stats.stopped && whole.segments.len() > 1);

    let mut told = 0;
    let part = transcriber
        .transcribe(samples.clone(), &options, |_| {
            told += 1;
            if told == 1 {
                let handle = handle.clone();
                std::thread::spawn(move || handle.cancel()).join().expect("cancelled");
            }
        })
        .expect("a cancel is no error");
    assert!(part.stats.stopped);
    assert_eq!(told, part.segments.len());
    assert!(!part.segments.is_empty() && part.segments.len() < whole.segments.len());
    assert_eq!(part.segments, whole.segments[..part.segments.len()], "what is finished is what it would have been");

    // The stream stays usable, and the cancel is used up.
    let again = transcriber.transcribe(samples.clone(), &options, |_| {}).expect("transcribed");
    assert_eq!(again.segments, whole.segments);

    // Cancelled before it begins: nothing, marked.
    handle.cancel();
    let none = transcriber.transcribe(samples, &options, |_| {}).expect("a cancel is no error");
    assert!(none.stats.stopped && none.segments.len() < whole.segments.len());
}

#[test]
fn streams_share_a_model_and_languages_are_told() {
    let mut one = load("whisper_multi");
    let mut two = one.another().expect("a second stream");
    let options = TranscribeOptions { language: "en".into(), ..TranscribeOptions::default() };
    let other = options.clone();
    let beside =
        std::thread::spawn(move || two.transcribe(clip("en_a"), &other, |_| {}).expect("transcribed").segments);
    let here = one.transcribe(clip("en_a"), &options, |_| {}).expect("transcribed").segments;
    assert_eq!(here, beside.join().expect("the other thread"));
    let languages = one.detect_language(clip("en_a")).expect("languages");
    let sum: f32 = languages.iter().map(|(_, p)| p).sum();
    assert!((sum - 1.0).abs() < 1e-3 && languages.is_sorted_by(|a, b| a.1 >= b.1));
    assert!(load("whisper_en").detect_language(clip("en_a")).expect("none").is_empty());
}
