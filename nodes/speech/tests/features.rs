//! Log-mel features against the float64 reference.

mod common;

use common::{Golden, clip};
use oxiline_speech::whisper::features::mel_bank;
use oxiline_speech::whisper::{Features, Mel};

fn compare(bins: usize, golden: &Golden) -> usize {
    let features = Features::new(bins);
    let mut clips = 0;
    for name in golden.names() {
        let Some(name) = name.strip_suffix(".feat64") else { continue };
        let mel = features.mel(&clip(name));
        let columns = golden.ids(&format!("{name}.frames"));
        let expected = golden.f64(&format!("{name}.feat64"));
        for (bin, row) in expected.chunks_exact(columns.len()).enumerate() {
            for (expected, frame) in row.iter().zip(&columns) {
                let found = mel.data[*frame as usize * bins + bin];
                let diff = (f64::from(found) - expected).abs();
                // One rounding to f32, nothing else.
                assert!(diff < 7e-8, "{name}, bin {bin}, frame {frame}: {found} for {expected}");
            }
        }
        let sums = golden.f64(&format!("{name}.sum64"));
        assert_eq!(mel.frames, sums.len(), "{name}");
        for (frame, (row, expected)) in mel.data.chunks_exact(bins).zip(&sums).enumerate() {
            let sum: f64 = row.iter().map(|v| f64::from(*v)).sum();
            // A frame of equal values rounds all of them the same way.
            assert!((sum - expected).abs() < 7e-8 * bins as f64, "{name}, frame {frame}: {sum} for {expected}");
        }
        clips += 1;
    }
    clips
}

#[test]
fn features_of_80_bins() {
    assert_eq!(compare(80, &Golden::open("logmel/80.safetensors")), 6);
}

#[test]
fn features_of_128_bins() {
    assert_eq!(compare(128, &Golden::open("logmel/128.safetensors")), 3);
}

#[test]
fn the_mel_bank_is_slaneys() {
    let golden = Golden::open("logmel/80.safetensors").f64("mel_filters");
    let bank = mel_bank(80);
    assert_eq!(golden.len(), bank.len());
    for (found, expected) in bank.iter().zip(&golden) {
        assert!((found - expected).abs() < 1e-14, "{found} for {expected}");
    }
}

#[test]
fn windows_are_filled_up_with_zero_not_silence() {
    let mel = Features::new(80).mel(&clip("odd31s"));
    let window = mel.window(3000);
    assert_eq!(window.len(), Mel::WINDOW * 80);
    assert_eq!(window[..100 * 80], mel.data[3000 * 80..]);
    assert!(window[100 * 80..].iter().all(|v| *v == 0.0));
    assert!(mel.window(usize::MAX).iter().all(|v| *v == 0.0));
    assert_eq!(mel.by_bin()[3100], mel.data[1]);
}

#[test]
fn any_samples_give_finite_features() {
    let mut samples = clip("short10ms");
    samples[3] = f32::NAN;
    samples[5] = f32::NEG_INFINITY;
    samples[7] = f32::MAX;
    assert!(Features::new(80).mel(&samples).data.iter().all(|v| v.is_finite()));
    assert!(Features::new(80).mel(&[]).data.iter().all(|v| *v == -1.5));
}
