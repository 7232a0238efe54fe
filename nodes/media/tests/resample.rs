//! The resampler against closed forms and against the reference's own output.

use std::f64::consts::PI;
use std::path::PathBuf;

use oxiline_media::resample::{Resampler, resample};
use proptest::prelude::*;

const RATES: [u32; 12] =
    [8000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 37_800, 44_100, 48_000, 96_000, 192_000];

fn tones(n: usize, rate: u32) -> Vec<f64> {
    // Inside 0.9 of 4 kHz, so that every rate here can hold them.
    [(0.31, 220.5, 0.3), (0.22, 997.0, 1.1), (0.17, 2503.0, 2.0), (0.11, 3590.0, 0.0)].iter().fold(
        vec![0.0; n],
        |mut all, (a, f, p)| {
            all.iter_mut()
                .enumerate()
                .for_each(|(i, x)| *x += a * (2.0 * PI * f * i as f64 / f64::from(rate) + p).sin());
            all
        },
    )
}

fn snr(want: &[f64], got: &[f32]) -> f64 {
    let signal: f64 = want.iter().map(|x| x * x).sum();
    let noise: f64 = want.iter().zip(got).map(|(a, b)| (a - f64::from(*b)).powi(2)).sum();
    10.0 * (signal / noise.max(1e-30)).log10()
}

fn rms(x: &[f32]) -> f64 {
    (x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / x.len() as f64).sqrt()
}

#[test]
fn tones_come_out_as_they_would_have_been_sampled() {
    for rate in RATES.into_iter().chain([44_099, 15_999, 47_999]) {
        let input: Vec<f32> = tones(rate as usize, rate).iter().map(|&x| x as f32).collect();
        let out = resample(&input, rate, 16_000).unwrap();
        assert_eq!(out.len(), 16_000, "{rate}");
        let want = tones(out.len(), 16_000);
        let inner = 640..out.len() - 640;
        let db = snr(&want[inner.clone()], &out[inner]);
        println!("{rate:6} -> 16000: {db:.1} dB");
        assert!(db > 110.0, "{rate} Hz: {db:.1} dB");
    }
}

#[test]
fn what_would_alias_is_gone() {
    for rate in [22_050u32, 37_800, 44_100, 48_000, 96_000] {
        // Just above the new Nyquist frequency, and far above.
        for hz in [8_010.0, 10_500.0] {
            let input: Vec<f32> =
                (0..rate).map(|i| (2.0 * PI * hz * f64::from(i) / f64::from(rate)).sin() as f32).collect();
            let out = resample(&input, rate, 16_000).unwrap();
            let left = rms(&out[640..out.len() - 640]);
            println!("{rate} {hz}: {left:.2e}");
            assert!(left < 1e-5, "{hz} Hz at {rate} Hz leaves {left}");
        }
    }
}

#[test]
fn a_constant_stays_what_it_is() {
    for rate in RATES {
        let out = resample(&vec![0.5; rate as usize / 4], rate, 16_000).unwrap();
        let inner = &out[500..out.len() - 500];
        assert!(inner.iter().all(|x| (x - 0.5).abs() < 1e-5), "{rate}");
    }
}

/// Against soxr's highest quality: the committed part of the reference, or all of it when
/// `OXILINE_REF` names its folder.
#[test]
fn agrees_with_the_reference_resampler() {
    let fixture = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/resample.safetensors");
    let path = match std::env::var_os("OXILINE_REF") {
        Some(dir) => PathBuf::from(dir).join("audio/resample/golden.safetensors"),
        None => fixture,
    };
    let bytes = std::fs::read(path).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let floats = |name: &str| -> Vec<f32> {
        tensors.tensor(name).unwrap().data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    };
    let rates = [
        ("pcm16_8k", 8000),
        ("pcm8_8k", 8000),
        ("ulaw_8k", 8000),
        ("f32_22k", 22_050),
        ("pcm16_stereo_44k", 44_100),
        ("pcm24_stereo_48k", 48_000),
        ("pcm32_11k", 11_025),
        ("pcm16_32k", 32_000),
        ("extensible_4ch_16k", 16_000),
    ];
    let mut compared = 0;
    for (name, rate) in rates {
        if tensors.tensor(&format!("{name}.soxr")).is_err() {
            continue;
        }
        let out = resample(&floats(&format!("{name}.mono")), rate, 16_000).unwrap();
        let want: Vec<f64> = floats(&format!("{name}.soxr")).iter().map(|&x| f64::from(x)).collect();
        assert!(out.len().abs_diff(want.len()) <= 1, "{name}: {} samples, reference {}", out.len(), want.len());
        let end = out.len().min(want.len()) - 640;
        let db = snr(&want[640..end], &out[640..end]);
        println!("{name}: {db:.1} dB against the reference");
        // The reference itself is 85 dB from the truth at these two rates (its case.json says so
        // for the first; the second shows in the spectrum of its difference from the closed form).
        let bar = match name {
            "f32_22k" | "pcm16_stereo_44k" => 85.0,
            _ => 90.0,
        };
        assert!(db > bar, "{name}: {db:.1} dB");
        if name == "f32_22k" {
            let ideal: Vec<f64> = floats("f32_22k.ideal").iter().map(|&x| f64::from(x)).collect();
            let db = snr(&ideal[640..end], &out[640..end]);
            println!("{name}: {db:.1} dB against the closed form");
            assert!(db > 110.0, "{name}: {db:.1} dB against the closed form");
        }
        compared += 1;
    }
    assert!(compared >= 2);
}

#[test]
fn equal_rates_pass_bit_for_bit_and_mono_is_the_mean() {
    let input: Vec<f32> = (0..999).map(|i| (i as f32).sin()).collect();
    assert_eq!(resample(&input, 16_000, 16_000).unwrap(), input);
    let mut mono = Resampler::new(16_000, 3, 16_000, 1).unwrap();
    let mut out = Vec::new();
    mono.push(&[0.25, 0.25, 0.25, 1.0, 0.0, -1.0, 0.5], &mut out);
    mono.finish(&mut out);
    assert_eq!(out, [0.25, 0.0]);
    let mut stereo = Resampler::new(16_000, 1, 16_000, 2).unwrap();
    out.clear();
    stereo.push(&[0.5, -0.5], &mut out);
    assert_eq!(out, [0.5, 0.5, -0.5, -0.5]);
}

#[test]
fn channels_stay_apart() {
    let left = tones(4410, 44_100);
    let stereo: Vec<f32> = left.iter().flat_map(|&x| [x as f32, 0.0]).collect();
    let mut resampler = Resampler::new(44_100, 2, 16_000, 2).unwrap();
    let mut out = Vec::new();
    resampler.push(&stereo, &mut out);
    resampler.finish(&mut out);
    assert_eq!(out.len(), 3200);
    assert!(out.iter().skip(1).step_by(2).all(|&x| x == 0.0));
    let mono = resample(&left.iter().map(|&x| x as f32).collect::<Vec<_>>(), 44_100, 16_000).unwrap();
    assert!(out.iter().step_by(2).eq(mono.iter()));
}

/// Three hours in, outputs are still where they belong: positions are integers, not sums.
#[test]
fn nothing_drifts_over_hours() {
    // The ratio of 44.1 kHz to 16 kHz at a hundredth of the rates: hours of audio in little time.
    let rate = 441u32;
    let (hours, tail) = (3u64, 4410usize);
    let mut resampler = Resampler::new(rate, 1, 160, 1).unwrap();
    let block = vec![0.0f32; rate as usize * 10];
    let mut out = Vec::new();
    for _ in 0..hours * 360 {
        out.clear();
        resampler.push(&block, &mut out);
    }
    let before = resampler.given();
    let skipped = 160 * 3600 * hours - before;
    let signal = tones(tail, rate * 100);
    out.clear();
    resampler.push(&signal.iter().map(|&x| x as f32).collect::<Vec<_>>(), &mut out);
    resampler.finish(&mut out);
    let heard = &out[usize::try_from(skipped).unwrap()..];
    assert_eq!(heard.len(), 1600);
    let want = tones(1600, 16_000);
    assert!(snr(&want[200..1400], &heard[200..1400]) > 100.0);
}

#[test]
fn rates_nobody_has_are_refused() {
    for rate in [0, 1, 99, 7_000_000, u32::MAX] {
        assert!(resample(&[0.0], rate, 16_000).is_err(), "{rate}");
    }
    assert!(Resampler::new(8000, 0, 16_000, 1).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_cutting_gives_the_same_bits(
        which in 0..RATES.len(),
        n in 0usize..6000,
        cuts in prop::collection::vec(1usize..700, 1..20),
    ) {
        let rate = RATES[which];
        let input: Vec<f32> = (0..n).map(|i| ((i * i) as f32 * 0.01).sin()).collect();
        let whole = resample(&input, rate, 16_000).unwrap();
        let exact = (n as u64 * 16_000 * 2 + u64::from(rate)) / (u64::from(rate) * 2);
        prop_assert_eq!(whole.len() as u64, exact);
        let mut resampler = Resampler::new(rate, 1, 16_000, 1).unwrap();
        let mut out = Vec::new();
        let (mut at, mut turn) = (0, 0);
        while at < n {
            let end = (at + cuts[turn % cuts.len()]).min(n);
            resampler.push(&input[at..end], &mut out);
            (at, turn) = (end, turn + 1);
        }
        resampler.finish(&mut out);
        prop_assert!(out.iter().map(|x| x.to_bits()).eq(whole.iter().map(|x| x.to_bits())));
        // And again with the same one: finish starts anew.
        out.clear();
        resampler.push(&input, &mut out);
        resampler.finish(&mut out);
        prop_assert_eq!(out, whole);
    }
}
