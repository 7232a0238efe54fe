//! Sampling against the reference's filtered distributions, and draws against their distribution.

use oxiline_graph::protocol::llm::Sampling;
use oxiline_language::sample::{Sampler, acceptance};
use safetensors::SafeTensors;
use serde_json::Value;

fn fixture(name: &str) -> Vec<u8> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/sampling").join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn floats(file: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    let data = file.tensor(name).unwrap().data().to_vec();
    data.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

#[test]
fn distributions_are_the_references() {
    let (bytes, cases) = (fixture("golden.safetensors"), fixture("sampling.json"));
    let golden = SafeTensors::deserialize(&bytes).unwrap();
    let cases: Value = serde_json::from_slice(&cases).unwrap();
    let context: Vec<u32> = serde_json::from_value(cases["context_ids"].clone()).unwrap();
    let rows = cases["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 80);
    for row in rows {
        let mut settings = row["settings"].clone();
        settings.as_object_mut().unwrap().entry("temperature").or_insert(1.0.into());
        let sampling: Sampling = serde_json::from_value(settings).unwrap();
        let (logits, wanted) = (row["logits"].as_str().unwrap(), row["probs"].as_str().unwrap());
        let mut values = floats(&golden, logits);
        let mut got = Sampler::new(&sampling).unwrap().probabilities(&mut values, &context, &[]);
        let mut expected = floats(&golden, wanted);
        assert_eq!(got.iter().filter(|p| **p > 0.0).count() as u64, row["kept"].as_u64().unwrap(), "{wanted}");
        if logits == "logits.ties" {
            // Which of equals is cut is free.
            got.sort_by(f32::total_cmp);
            expected.sort_by(f32::total_cmp);
        }
        for (i, (g, e)) in got.iter().zip(&expected).enumerate() {
            assert!((g - e).abs() <= 1e-6, "{wanted}[{i}]: {g}, reference {e}");
        }
    }
}

#[test]
fn speculative_acceptance_is_the_references() {
    let bytes = fixture("golden.safetensors");
    let golden = SafeTensors::deserialize(&bytes).unwrap();
    let (accept, rest) = acceptance(&floats(&golden, "spec.p"), &floats(&golden, "spec.q"));
    for (got, name) in [(accept, "spec.accept"), (rest, "spec.residual")] {
        for (g, e) in got.iter().zip(floats(&golden, name)) {
            assert!((g - e).abs() <= 1e-6, "{name}: {g}, reference {e}");
        }
    }
}

#[test]
fn draws_follow_their_distribution() {
    let logits: Vec<f32> = (0..40).map(|i| (i as f32 * 0.37).sin() * 2.0).collect();
    let sampling = Sampling { temperature: 0.8, top_k: 12, top_p: 0.95, seed: Some(5), ..Sampling::default() };
    let mut sampler = Sampler::new(&sampling).unwrap();
    let wanted = sampler.probabilities(&mut logits.clone(), &[], &[]);
    let draws = 200_000;
    let mut counts = [0_u32; 40];
    for _ in 0..draws {
        counts[sampler.choose(&mut logits.clone(), &[], &[]).unwrap() as usize] += 1;
    }
    let mut chi = 0.0;
    for (count, p) in counts.iter().zip(&wanted) {
        let expected = f64::from(*p) * f64::from(draws);
        if expected == 0.0 {
            assert_eq!(*count, 0);
        } else {
            chi += (f64::from(*count) - expected).powi(2) / expected;
        }
    }
    // Eleven degrees of freedom: beyond 40 once in thirty thousand seeds, and the seed is fixed.
    assert!(chi < 40.0, "{chi}");
}

fn kept(sampling: Sampling, logits: &[f32]) -> Vec<usize> {
    let mut sampler = Sampler::new(&Sampling { temperature: 1.0, ..sampling }).unwrap();
    let probabilities = sampler.probabilities(&mut logits.to_vec(), &[], &[]);
    assert!((probabilities.iter().sum::<f32>() - 1.0).abs() < 1e-5);
    (0..logits.len()).filter(|&i| probabilities[i] > 0.0).collect()
}

#[test]
fn typical_and_xtc_take_out_what_they_say() {
    // Probabilities 0.5, 0.3, 0.15, 0.05; information 0.69, 1.2, 1.9, 3.0; entropy 1.14.
    let logits: Vec<f32> = [0.5_f32, 0.3, 0.15, 0.05].iter().map(|p| p.ln()).collect();
    assert_eq!(kept(Sampling { typical_p: 0.2, ..Sampling::default() }, &logits), [1]);
    assert_eq!(kept(Sampling { typical_p: 0.7, ..Sampling::default() }, &logits), [0, 1]);
    let xtc = |threshold| Sampling { xtc_probability: 1.0, xtc_threshold: threshold, ..Sampling::default() };
    assert_eq!(kept(xtc(0.1), &logits), [2, 3], "only the least probable of those above stays");
    assert_eq!(kept(xtc(0.4), &logits), [0, 1, 2, 3], "one above the threshold is no choice");
}

#[test]
fn strange_logits_give_a_token_or_none() {
    let greedy = Sampling::default();
    let drawn = Sampling { temperature: 1.0, top_k: 3, top_p: 0.9, min_p: 0.1, typical_p: 0.9, ..Sampling::default() };
    for sampling in [greedy, drawn] {
        let mut sampler = Sampler::new(&sampling).unwrap();
        assert_eq!(sampler.choose(&mut [f32::NEG_INFINITY; 4], &[], &[]), None);
        assert_eq!(sampler.choose(&mut [f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY], &[], &[]), Some(1));
        assert_eq!(sampler.choose(&mut [0.0, f32::INFINITY, 5.0], &[], &[]), Some(1));
        let _ = sampler.choose(&mut [f32::NAN, 0.0, f32::NAN], &[9], &[1, 77]);
        assert_eq!(sampler.choose(&mut [], &[], &[]), None);
    }
}
