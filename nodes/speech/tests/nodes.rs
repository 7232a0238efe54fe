//! The nodes of this crate on the real runtime.

mod common;

use common::{clip, fixture};
use oxiline_graph::payload::{Audio, Event, Transcript};
use oxiline_graph::protocol::speech::{Task, TranscribeOptions};
use oxiline_graph::{EosReason, Harness, Header, Item, Mark, Payload};
use oxiline_speech::vad::{AudioVad, AudioVadOptions, Gate, SileroModel, SileroOptions};
use oxiline_speech::whisper::{AsrTranscribe, WhisperModel, WhisperOptions};

/// Silence, speech, silence.
fn sound() -> Vec<f32> {
    [vec![0.0; 48_000], clip("en_a"), vec![0.0; 48_000]].concat()
}

/// The sound as items of `size` samples, from `start` seconds on.
fn items(samples: &[f32], size: usize, start: i64) -> Vec<Item> {
    let time = |sample: usize| start * 1_000_000_000 + (sample as i64 * 1_000_000_000) / 16_000;
    let item = |(i, part): (usize, &[f32])| {
        let (from, to) = (time(i * size), time(i * size + part.len()));
        let audio = Audio { rate: 16_000, channels: 1, samples: part.into() };
        Item::Data(Header::at(from, to - from), Payload::Audio(audio))
    };
    let mut items: Vec<Item> = samples.chunks(size).enumerate().map(item).collect();
    items.push(Item::Mark(Mark::Eos(EosReason::Complete)));
    items
}

fn vad(gate: Gate, size: usize) -> oxiline_graph::Outputs {
    Harness::new::<AudioVad>(AudioVadOptions { gate, ..AudioVadOptions::default() })
        .model::<SileroModel>(SileroOptions::default())
        .input("audio", items(&sound(), size, 5))
        .run()
        .unwrap()
}

#[test]
fn labels_pass_every_sample_on_in_order() {
    for size in [100usize, 1000, 4096] {
        let out = vad(Gate::Label, size);
        let data = out.data::<Audio>("speech");
        let samples: Vec<f32> = data.iter().flat_map(|item| item.value.samples.to_vec()).collect();
        assert!(samples == sound(), "items of {size}");
        assert!(data.iter().all(|item| item.header.flags & Header::VAD_SEEN != 0));
        // Three seconds of silence less the padding on either side are no speech.
        let labels: Vec<bool> = data.iter().map(|item| item.header.flags & Header::SPEECH != 0).collect();
        assert!(!labels[0] && !labels[labels.len() - 1]);
        let middle = data.iter().position(|item| item.header.pts >= 9_000_000_000).unwrap();
        assert!(labels[middle], "items of {size}");
        let events = out.data::<Event>("events");
        let states: Vec<&str> = events.iter().map(|event| event.value.data["state"].as_str().unwrap()).collect();
        assert_eq!(states, ["start", "end"]);
        let at = events[0].value.data["at"].as_f64().unwrap();
        assert!((7.6..8.2).contains(&at), "{at}");
    }
}

#[test]
fn a_gap_stands_for_every_muted_item() {
    let out = vad(Gate::Gap, 1000);
    let mut end = 5_000_000_000;
    let mut gaps = 0;
    for item in out.items("speech") {
        match item {
            Item::Data(header, _) => {
                assert_eq!(header.pts, end);
                end += header.dur;
            }
            Item::Gap(gap) => {
                assert_eq!(gap.from, end);
                end = gap.to;
                gaps += 1;
            }
            Item::Mark(_) => {}
        }
    }
    let total = sound().len() as i64 * 1_000_000_000 / 16_000;
    assert_eq!(end, 5_000_000_000 + total);
    assert!(gaps > 0);
}

#[test]
fn a_clip_is_transcribed_through_the_actor() {
    let options = TranscribeOptions {
        language: "en".into(),
        task: Task::Transcribe,
        timestamps: false,
        max_tokens: 20,
        ..TranscribeOptions::default()
    };
    let weights = fixture("whisper_multi").display().to_string();
    let out = Harness::new::<AsrTranscribe>(options)
        .model::<WhisperModel>(WhisperOptions { weights, ..WhisperOptions::default() })
        .input("audio", items(&clip("en_a"), 4096, 5))
        .run()
        .unwrap();
    let updates = out.data::<Transcript>("transcript");
    assert_eq!(updates.len(), 1);
    let update = &updates[0].value.0;
    assert!(update.is_final && update.segment == 1);
    assert_eq!((update.t0, update.lang.as_deref()), (5_000_000_000, Some("en")));
    let case: serde_json::Value =
        serde_json::from_slice(&std::fs::read(fixture("whisper_multi/case.json")).unwrap()).unwrap();
    let expected: Vec<u32> = serde_json::from_value(case["runs"]["plain"]["segments"][0]["tokens"].clone()).unwrap();
    assert_eq!(update.tokens[..20], expected[..20]);
}
