//! Silero's network and the segmenter against the reference package.

mod common;

use common::{Golden, clip, fixture, worst};
use oxiline_kernels::Pool;
use oxiline_speech::vad::{Boundary, CHUNK, SegmentSettings, Segmenter, Silero, State};
use proptest::prelude::*;

fn probabilities(silero: &Silero, samples: &[f32]) -> Vec<f32> {
    let mut state = State::default();
    let mut found = silero.push(Pool::global(), &mut state, samples);
    found.extend(silero.finish(Pool::global(), &mut state));
    found
}

#[test]
fn probabilities_agree_with_the_packaged_model() {
    let silero = Silero::bundled().unwrap();
    let golden = Golden::open("silero/golden.safetensors");
    for name in ["en_a", "exact30", "silence"] {
        let found = probabilities(&silero, &clip(name));
        let (diff, at) = worst(&found, &golden.f32(&format!("{name}.probs")));
        assert!(diff < 2e-5, "{name}: {diff} at chunk {at}");
    }
}

#[test]
fn any_cutting_gives_the_same_probabilities() {
    let silero = Silero::bundled().unwrap();
    let samples = clip("en_a");
    let whole = probabilities(&silero, &samples);
    for size in [1usize, 63, 512, 777, 40_000] {
        let mut state = State::default();
        let mut found = Vec::new();
        let part = if size == 1 { &samples[..3000] } else { &samples[..] };
        for piece in part.chunks(size) {
            found.extend(silero.push(Pool::global(), &mut state, piece));
        }
        assert_eq!(found[..], whole[..part.len() / CHUNK], "pieces of {size}");
    }
}

#[test]
fn samples_that_are_not_finite_do_not_poison_the_state() {
    let silero = Silero::bundled().unwrap();
    let mut samples = clip("en_a");
    samples[100] = f32::NAN;
    samples[200] = f32::INFINITY;
    assert!(probabilities(&silero, &samples).iter().all(|p| p.is_finite()));
}

#[test]
fn a_wrong_weights_file_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vad.safetensors");
    std::fs::write(&path, b"nothing of use").unwrap();
    let error = Silero::load(&path).err().unwrap().to_string();
    assert!(error.contains("vad.safetensors"), "{error}");
    std::fs::copy(fixture("silero/golden.safetensors"), &path).unwrap();
    let error = Silero::load(&path).err().unwrap().to_string();
    assert!(error.contains("stft_conv.weight"), "{error}");
}

fn settings(value: &serde_json::Value) -> SegmentSettings {
    let mut settings = SegmentSettings::default();
    let samples = |v: &serde_json::Value, scale: f64| (v.as_f64().unwrap() * scale).round() as u64;
    for (key, v) in value.as_object().unwrap() {
        match key.as_str() {
            "threshold" => settings.threshold = v.as_f64().unwrap() as f32,
            "speech_pad_ms" => settings.pad = samples(v, 16.0),
            "min_silence_duration_ms" => settings.min_silence = samples(v, 16.0),
            "min_speech_duration_ms" => settings.min_speech = samples(v, 16.0),
            "max_speech_duration_s" => settings.max_segment = Some(samples(v, 16_000.0)),
            other => panic!("{other}"),
        }
    }
    settings
}

#[test]
fn segments_are_those_of_the_reference() {
    let golden = Golden::open("silero/golden.safetensors");
    let cases: serde_json::Value =
        serde_json::from_slice(&std::fs::read(fixture("silero/segments.json")).unwrap()).unwrap();
    let mut compared = 0;
    for (name, runs) in cases["clips"].as_object().unwrap() {
        let probabilities = golden.f32(&format!("{name}.probs"));
        for (run, case) in runs.as_object().unwrap() {
            let found = Segmenter::segments(settings(&case["settings"]), &probabilities, clip(name).len() as u64);
            let expected: Vec<(u64, u64)> = serde_json::from_value(case["segments"].clone()).unwrap();
            assert_eq!(found, expected, "{name}, {run}");
            compared += 1;
        }
    }
    assert_eq!(compared, 15);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    /// Boundaries alternate and do not run backwards; labels come as soon as they can, in order,
    /// and say what the finished segments say.
    #[test]
    fn labels_agree_with_segments(
        probabilities in prop::collection::vec(prop_oneof![0.0f32..0.4, 0.3f32..0.6, 0.5f32..1.0], 1..120),
        runs in prop::collection::vec(1usize..12, 1..120),
        pad in 0u64..4000,
        min_speech in 0u64..5000,
        min_silence in 0u64..9000,
        max in prop::option::of(8000u64..40_000),
        step in 1u64..3000,
    ) {
        // Runs of equal chunks: speech that lasts.
        let probabilities: Vec<f32> =
            probabilities.iter().zip(&runs).flat_map(|(p, n)| std::iter::repeat_n(*p, *n)).collect();
        let total = (probabilities.len() * CHUNK) as u64;
        let settings = SegmentSettings { pad, min_speech, min_silence, max_segment: max, ..Default::default() };
        let segments = Segmenter::segments(settings, &probabilities, total);
        let mut segmenter = Segmenter::new(settings);
        let (mut at, mut labels) = (0, Vec::new());
        let mut boundaries = Vec::new();
        for i in 0..=probabilities.len() {
            match probabilities.get(i) {
                Some(p) => segmenter.push(*p),
                None => segmenter.finish(total),
            }
            while at < total && let Some(label) = segmenter.speech(at, (at + step).min(total)) {
                labels.push((at, (at + step).min(total), label));
                at += step;
            }
            boundaries.extend(std::iter::from_fn(|| segmenter.next_boundary()));
        }
        prop_assert!(at >= total);
        for (from, to, label) in labels {
            let expected = segments.iter().any(|(start, end)| *start < to && *end > from);
            prop_assert_eq!(label, expected, "{}..{} of {:?}", from, to, segments);
        }
        let mut last = 0;
        for (i, boundary) in boundaries.iter().enumerate() {
            let at = match (i % 2, boundary) {
                (0, Boundary::Start(at)) | (1, Boundary::End(at)) => *at,
                _ => return Err(TestCaseError::fail(format!("{boundaries:?}"))),
            };
            prop_assert!(at >= last, "{:?}", boundaries);
            last = at;
        }
    }
}
