//! Encoder and decoder against the reference, and the guarantee that a row's result does not
//! depend on what is computed beside it.

mod common;

use common::{Golden, clip, fixture, worst};
use oxiline_graph::Error;
use oxiline_speech::whisper::{CrossAttention, Features, Feed, LoadOptions, Mel, Precision, Quant, Rows, Whisper};

const CASES: [&str; 4] = ["whisper_multi", "whisper_en", "whisper_v3", "whisper_distil"];

fn load(case: &str, options: LoadOptions) -> Whisper {
    Whisper::load(&fixture(case), &options).unwrap()
}

fn mel(model: &Whisper, name: &str) -> Mel {
    Features::new(model.config.mel_bins).mel(&clip(name))
}

fn encode(model: &Whisper, name: &str) -> Vec<f32> {
    model.encode(&[&mel(model, name).window(0)], &|| false).unwrap().remove(0)
}

fn logits(model: &Whisper, encoded: &[f32], tokens: &[u32]) -> Vec<f32> {
    let mut stream = model.start(encoded).unwrap();
    let mut feeds = [Feed { rows: Rows::All, ..Feed::new(&mut stream, tokens) }];
    model.step(&mut feeds).unwrap();
    std::mem::take(&mut feeds[0].logits)
}

fn language_probabilities(model: &Whisper, encoded: &[f32]) -> Vec<f32> {
    let logits = logits(model, encoded, &[model.config.ids.start]);
    let exp: Vec<f64> = model.config.languages.iter().map(|l| f64::from(logits[l.id as usize]).exp()).collect();
    let sum: f64 = exp.iter().sum();
    exp.iter().map(|v| (v / sum) as f32).collect()
}

#[test]
fn encoder_logits_and_languages_agree_with_the_reference() {
    for case in CASES {
        let model = load(case, LoadOptions::default());
        let golden = Golden::open(&format!("{case}/golden.safetensors"));
        let width = model.config.width;
        let rows = golden.ids("encoder.rows");
        for name in ["en_a", "fr_a"] {
            let encoded = encode(&model, name);
            let found: Vec<f32> = rows
                .iter()
                .flat_map(|row| encoded[*row as usize * width..(*row as usize + 1) * width].to_vec())
                .collect();
            let (diff, at) = worst(&found, &golden.f32(&format!("{name}.encoder")));
            assert!(diff < 1e-5, "{case}, {name}: encoder off by {diff} at {at}");
            for (position, expected) in golden.f64(&format!("{name}.encoder_sum")).iter().enumerate() {
                let row = &encoded[position * width..(position + 1) * width];
                let sum: f64 = row.iter().map(|v| f64::from(*v)).sum();
                assert!((sum - expected).abs() < 2e-4, "{case}, {name}, position {position}: {sum} for {expected}");
            }
        }
        let encoded = encode(&model, "en_a");
        let found = logits(&model, &encoded, &golden.ids("en_a.prompt_ids"));
        let (diff, at) = worst(&found, &golden.f32("en_a.prompt_logits"));
        assert!(diff < 5e-5, "{case}: logits off by {diff} at {at}");
        for name in ["en_a", "fr_a", "de_a"] {
            let key = format!("{name}.language_probs");
            if !golden.names().contains(&key) {
                assert!(!model.config.multilingual || name == "fr_a", "{case}: no golden for {name}");
                continue;
            }
            let (diff, _) = worst(&language_probabilities(&model, &encode(&model, name)), &golden.f32(&key));
            assert!(diff < 1e-5, "{case}, {name}: languages off by {diff}");
        }
    }
}

#[test]
fn several_windows_at_once_are_bitwise_the_same() {
    let model = load("whisper_v3", LoadOptions::default());
    let windows: Vec<Vec<f32>> = ["en_a", "de_a", "fr_a"].iter().map(|name| mel(&model, name).window(0)).collect();
    let together = model.encode(&windows.iter().map(Vec::as_slice).collect::<Vec<_>>(), &|| false).unwrap();
    for (window, together) in windows.iter().zip(together) {
        assert!(model.encode(&[window], &|| false).unwrap()[0] == together);
    }
}

#[test]
fn logits_do_not_depend_on_the_batch_or_the_cutting() {
    for (case, quant) in [("whisper_multi", None), ("whisper_v3", None), ("whisper_multi", Some(Quant::Q8))] {
        let model = load(case, LoadOptions { quant, ..LoadOptions::default() });
        let tokens: Vec<u32> = (0..61u32).map(|i| (i * 37 + 5) % 490).collect();
        let encoded: Vec<Vec<f32>> = ["en_a", "de_a"].iter().map(|name| encode(&model, name)).collect();
        let whole = logits(&model, &encoded[0], &tokens);
        let vocab = model.config.vocab;

        // One token at a time, beside a stream of another window that runs ahead.
        let mut stream = model.start(&encoded[0]).unwrap();
        let mut other = model.start(&encoded[1]).unwrap();
        for (i, token) in tokens.iter().enumerate() {
            let token = [*token];
            let noise: Vec<u32> = (0..1 + i % 5).map(|k| (k * 91 + i) as u32 % 490).collect();
            let mut feeds = [Feed::new(&mut other, &noise), Feed::new(&mut stream, &token)];
            model.step(&mut feeds).unwrap();
            assert!(feeds[1].logits == whole[i * vocab..(i + 1) * vocab], "{case} {quant:?}: token {i}");
        }

        // In pieces, with a detour that is taken back, and on a fork.
        let mut stream = model.start(&encoded[0]).unwrap();
        let mut at = 0;
        for n in [7usize, 1, 20, 33] {
            let mut fork = stream.fork();
            model.step(&mut [Feed::new(&mut stream, &[400, 3, 5])]).unwrap();
            stream.truncate(at);
            for stream in [&mut stream, &mut fork] {
                let mut feeds = [Feed::new(stream, &tokens[at..at + n])];
                model.step(&mut feeds).unwrap();
                let last = at + n - 1;
                assert!(feeds[0].logits == whole[last * vocab..(last + 1) * vocab], "{case} {quant:?}: token {last}");
            }
            at += n;
            assert_eq!(stream.len(), at);
        }
    }
}

#[test]
fn only_the_wanted_rows_come_back() {
    let model = load("whisper_en", LoadOptions::default());
    let encoded = encode(&model, "en_a");
    let tokens = [497, 602, 57, 190, 218];
    let all = logits(&model, &encoded, &tokens);
    let vocab = model.config.vocab;
    let row = |i: usize| &all[i * vocab..(i + 1) * vocab];
    let mut streams: Vec<_> = (0..3).map(|_| model.start(&encoded).unwrap()).collect();
    let [a, b, c] = &mut streams[..] else { unreachable!() };
    let mut feeds = [
        Feed { rows: Rows::None, ..Feed::new(a, &tokens) },
        Feed { rows: Rows::At(&[3, 0]), ..Feed::new(b, &tokens) },
        Feed::new(c, &tokens),
    ];
    model.step(&mut feeds).unwrap();
    assert!(feeds[0].logits.is_empty());
    assert!(feeds[1].logits == [row(3), row(0)].concat());
    assert!(feeds[2].logits == row(4));
}

#[test]
fn cross_attention_rows_are_distributions_of_the_right_heads() {
    let model = load("whisper_multi", LoadOptions::default());
    let encoded = encode(&model, "en_a");
    let heads = model.config.alignment_heads.clone();
    let tokens = [497, 498, 598, 602, 57, 190];
    let mut whole = CrossAttention::new(&heads, 1500);
    let mut stream = model.start(&encoded).unwrap();
    model.step(&mut [Feed { attention: Some(&mut whole), ..Feed::new(&mut stream, &tokens) }]).unwrap();
    assert_eq!(whole.tokens(), tokens.len());
    for token in 0..tokens.len() {
        for head in 0..heads.len() {
            let sum: f32 = whole.row(token, head).iter().sum();
            assert!((sum - 1.0).abs() < 1e-4, "token {token}, head {head}: {sum}");
        }
    }
    // Other order, fewer columns, one token at a time, beside a stream that records nothing.
    let turned: Vec<_> = heads.iter().rev().copied().collect();
    let mut parts = CrossAttention::new(&turned, 262);
    let mut stream = model.start(&encoded).unwrap();
    let mut other = stream.fork();
    for token in tokens {
        let token = [token];
        let feed = Feed { attention: Some(&mut parts), ..Feed::new(&mut stream, &token) };
        model.step(&mut [Feed::new(&mut other, &token), feed]).unwrap();
    }
    for token in 0..tokens.len() {
        for head in 0..heads.len() {
            assert!(parts.row(token, head) == &whole.row(token, heads.len() - 1 - head)[..262]);
        }
    }
}

#[test]
fn precision_and_quantisation_stay_close() {
    let exact = load("whisper_v3", LoadOptions::default());
    let encoded = encode(&exact, "en_a");
    let tokens = Golden::open("whisper_v3/golden.safetensors").ids("en_a.prompt_ids");
    let reference = logits(&exact, &encoded, &tokens);
    let largest = reference.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    for (precision, quant, bound) in [
        // The file stores halves: widening them changes nothing.
        (Precision::F32, None, 0.0),
        // The keys and values of the window are rounded.
        (Precision::F16, None, 0.002),
        (Precision::Bf16, None, 0.1),
        (Precision::Stored, Some(Quant::Q8), 0.1),
    ] {
        let model = load("whisper_v3", LoadOptions { precision, quant });
        let found = logits(&model, &encode(&model, "en_a"), &tokens);
        let (diff, _) = worst(&found, &reference);
        assert!(diff <= bound * largest, "{precision:?} {quant:?}: {diff} of {largest}");
        assert!(bound == 0.0 || diff > 0.0, "{precision:?} {quant:?} changed nothing");
    }
}

#[test]
fn a_cancelled_encoder_pass_stops_between_layers() {
    let model = load("whisper_distil", LoadOptions::default());
    let window = mel(&model, "en_a").window(0);
    let asked = std::cell::Cell::new(0);
    let cancelled = || {
        asked.set(asked.get() + 1);
        asked.get() == 2
    };
    assert!(matches!(model.encode(&[&window], &cancelled), Err(Error::Cancelled)));
    assert_eq!(asked.get(), 2);
}

#[test]
fn wrong_input_is_a_sentence_and_changes_nothing() {
    let model = load("whisper_en", LoadOptions::default());
    assert!(model.encode(&[&[0.0; 7]], &|| false).unwrap_err().to_string().contains("3000 frames of 80 bins"));
    assert!(model.start(&[0.0; 3]).err().unwrap().to_string().contains("96000"));
    let encoded = encode(&model, "en_a");
    let mut stream = model.start(&encoded).unwrap();
    let long = vec![5; 449];
    for (tokens, rows, message) in [
        (&[][..], Rows::Last, "without tokens"),
        (&[9, 2104], Rows::Last, "2104"),
        (&long, Rows::Last, "448"),
        (&[9, 9], Rows::At(&[2]), "token 2"),
    ] {
        let error = model.step(&mut [Feed { rows, ..Feed::new(&mut stream, tokens) }]).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
        assert!(stream.is_empty());
    }
}

/// Every reference case on every instruction set this machine has, and each the same to the bit.
#[test]
fn every_instruction_set_gives_the_same_bits() {
    use oxiline_kernels::Isa;
    for case in CASES {
        let model = load(case, LoadOptions::default());
        let golden = Golden::open(&format!("{case}/golden.safetensors"));
        let prompt = golden.ids("en_a.prompt_ids");
        let mut first: Option<(Vec<f32>, Vec<f32>)> = None;
        for isa in Isa::ALL.into_iter().filter(|isa| isa.force()) {
            let encoded = encode(&model, "en_a");
            let found = logits(&model, &encoded, &prompt);
            match &first {
                None => first = Some((encoded, found)),
                Some((e, l)) => assert!(*e == encoded && *l == found, "{case}: {isa:?} differs from the plain kernels"),
            }
        }
        Isa::detect().force();
    }
}
