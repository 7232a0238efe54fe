//! The nodes in a harness: what goes in, what comes out.

use std::path::Path;

use oxiline_graph::harness::Harness;
use oxiline_graph::payload::{Audio, Packet, Transcript, Update};
use oxiline_graph::{EosReason, Gap, GapReason, Item, Mark, Payload, Timed};
use oxiline_media::*;

fn fixture(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name).display().to_string()
}

fn packets(name: &str) -> Vec<Item> {
    let options = MediaReadOptions { uri: fixture(name), track: 0, stdin_limit: 0 };
    Harness::new::<MediaRead>(options).run().unwrap().items("audio").to_vec()
}

fn decode(items: Vec<Item>) -> oxiline_graph::Result<oxiline_graph::harness::Outputs> {
    Harness::new::<AudioDecode>(AudioDecodeOptions {}).input("packet", items).run()
}

fn frames(audio: &[Timed<Audio>]) -> usize {
    audio.iter().map(|a| a.value.frames()).sum()
}

#[test]
fn a_file_goes_through_reader_decoder_and_resampler() {
    for (name, rate, want) in [("a.m4a", 44_100, 22_050), ("celt.opus", 48_000, 24_000), ("s16.wav", 8000, 2000)] {
        let out = decode(packets(name)).unwrap();
        let sound = out.data::<Audio>("audio");
        assert_eq!((frames(&sound), sound[0].value.rate), (want, rate), "{name}");
        let mut at = 0;
        for item in &sound {
            assert!((item.header.pts - at).abs() <= 2, "{name}: times run on");
            at = item.header.pts + item.header.dur;
        }
        let options = AudioResampleOptions::default();
        let mono = Harness::new::<AudioResample>(options).input("audio", out.items("audio").to_vec()).run().unwrap();
        let mono = mono.data::<Audio>("audio");
        assert_eq!(frames(&mono), want * 16_000 / rate as usize, "{name}");
        assert_eq!(mono[0].header.pts, 0);
        let last = mono.last().unwrap();
        assert!((last.header.pts + last.header.dur - at).abs() < 70_000, "{name}");
    }
}

#[test]
fn a_damaged_packet_is_a_gap_of_its_length() {
    let mut items = packets("a.m4a");
    let Item::Data(header, Payload::Packet(packet)) = &items[5] else { panic!() };
    let (header, bad) = (*header, Packet { data: packet.data[..10].into(), ..packet.clone() });
    items[5] = Item::Data(header, Payload::Packet(bad));
    let out = decode(items).unwrap();
    let gaps: Vec<Gap> =
        out.items("audio").iter().filter_map(|i| if let Item::Gap(g) = i { Some(*g) } else { None }).collect();
    assert_eq!(gaps.len(), 1);
    assert_eq!(gaps[0].reason, GapReason::DecodeError);
    let missing = (gaps[0].to - gaps[0].from) as f64 * 44.1e-6;
    assert!((missing - 1024.0).abs() < 1.0, "{missing} samples");
    assert_eq!(frames(&out.data::<Audio>("audio")) + 1024, 22_050);
}

#[test]
fn a_file_of_rubbish_packets_fails_with_a_sentence() {
    let mut items = packets("a.m4a");
    for item in &mut items {
        if let Item::Data(_, Payload::Packet(packet)) = item {
            packet.data = packet.data[..packet.data.len().min(2)].into();
        }
    }
    let Err(error) = decode(items) else { panic!("no error") };
    assert!(error.to_string().contains("not one of the"), "{error}");
}

#[test]
fn the_resampler_does_not_reach_across_a_gap() {
    let audio = |pts: i64| {
        let samples: Vec<f32> = vec![0.5; 4410];
        let header = oxiline_graph::Header::at(pts, 100_000_000);
        Item::Data(header, Payload::Audio(Audio { rate: 44_100, channels: 1, samples: samples.into() }))
    };
    let gap = Gap { from: 100_000_000, to: 400_000_000, reason: GapReason::DecodeError };
    let items = vec![audio(0), Item::Gap(gap), audio(400_000_000)];
    let out = Harness::new::<AudioResample>(AudioResampleOptions::default()).input("audio", items).run().unwrap();
    let mut before = 0;
    let mut after = 0;
    let mut seen = false;
    for item in out.items("audio") {
        match item {
            Item::Gap(g) => {
                assert_eq!(*g, gap);
                seen = true;
            }
            Item::Data(header, Payload::Audio(a)) if seen => {
                assert!(header.pts >= gap.to);
                after += a.frames();
            }
            Item::Data(header, Payload::Audio(a)) => {
                assert!(header.pts + header.dur <= gap.from + 1);
                before += a.frames();
            }
            _ => {}
        }
    }
    assert_eq!((before, after, seen), (1600, 1600, true));
}

fn said(t0: i64, text: &str, is_final: bool) -> Item {
    let update = Update {
        segment: 1,
        t0,
        t1: t0 + 1_000_000_000,
        stable: text.into(),
        lang: Some("en".into()),
        is_final,
        ..Update::default()
    };
    Item::Data(oxiline_graph::Header::at(t0, 1_000_000_000), Payload::Transcript(Transcript(update.into())))
}

fn write(to: &Path, end: EosReason) -> oxiline_graph::Result<oxiline_graph::harness::Outputs> {
    let options =
        CaptionWriteOptions { format: oxiline_media::caption::Format::Srt, to: to.display().to_string(), max_line: 42 };
    let items = vec![said(0, " draft", false), said(0, " hello", true), Item::Mark(Mark::Eos(end))];
    Harness::new::<CaptionWrite>(options).input("transcript", items).run()
}

#[test]
fn captions_are_whole_or_partial() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("a.srt");
    write(&to, EosReason::Complete).unwrap();
    assert_eq!(std::fs::read_to_string(&to).unwrap(), "1\n00:00:00,000 --> 00:00:01,000\nhello\n\n");
    let stopped = dir.path().join("b.srt");
    let _ = write(&stopped, EosReason::Stopped);
    assert!(!stopped.exists() && dir.path().join("b.srt.partial").exists());
    assert!(write(&dir.path().join("no/dir/c.srt"), EosReason::Complete).is_err());
}
