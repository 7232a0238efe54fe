//! The text nodes in a harness.

use oxiline_graph::harness::{Harness, Outputs};
use oxiline_graph::payload::{Text, Transcript, Update};
use oxiline_graph::{EosReason, Header, Item, Mark, Payload, Span};
use oxiline_media::text::*;

fn piece(text: &str) -> Item {
    Item::data(0, 0, Text { text: text.into(), delta: true })
}

fn segment(text: &str) -> Item {
    Item::data(0, 0, Text { text: text.into(), delta: false })
}

fn end(id: u64, cancelled: bool) -> Item {
    Item::Mark(Mark::SegmentEnd { id, cancelled })
}

fn texts(out: &Outputs) -> Vec<String> {
    out.data::<Text>("text").iter().map(|t| t.value.text.to_string()).collect()
}

#[test]
fn a_file_is_read_by_lines_and_sentences_are_cut() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("a.txt");
    std::fs::write(&from, "First. Second one.\n\nThird\n").unwrap();
    let options = TextReadOptions { from: from.display().to_string(), ..TextReadOptions::default() };
    let lines = Harness::new::<TextRead>(options.clone()).run().unwrap();
    assert_eq!(texts(&lines), ["First. Second one.", "Third"]);
    assert!(lines.data::<Text>("text").iter().all(|t| !t.value.delta));
    let out = Harness::new::<TextSentences>(TextSentencesOptions::default())
        .input("text", lines.items("text").to_vec())
        .run()
        .unwrap();
    assert_eq!(texts(&out), ["First.", "Second one.", "Third"]);
    let whole = Harness::new::<TextRead>(TextReadOptions { by: By::Whole, ..options }).run().unwrap();
    assert_eq!(texts(&whole), ["First. Second one.\n\nThird\n"]);
    let Err(error) = Harness::new::<TextRead>(TextReadOptions { from: "no/such".into(), ..Default::default() }).run()
    else {
        panic!("no error")
    };
    assert!(error.to_string().contains("no/such"), "{error}");
}

#[test]
fn a_segments_end_flushes_and_a_cancelled_one_forgets() {
    let items = vec![
        Item::Mark(Mark::SegmentStart(1)),
        piece("So, this is my answer, I"),
        piece(" think. And an un"),
        piece("finished one"),
        end(1, false),
        Item::Mark(Mark::SegmentStart(2)),
        piece("Well then, all of this is new, but it is"),
        end(2, true),
        piece("gone"),
    ];
    let out = Harness::new::<TextSentences>(TextSentencesOptions::default()).input("text", items).run().unwrap();
    assert_eq!(
        texts(&out),
        ["So, this is my answer,", "I think.", "And an unfinished one", "Well then, all of this is new,", "gone"]
    );
    // What belongs to a segment comes before its end.
    let order: Vec<&str> = out
        .items("text")
        .iter()
        .map(|item| match item {
            Item::Data(..) => "text",
            Item::Mark(Mark::SegmentStart(_)) => "start",
            Item::Mark(Mark::SegmentEnd { .. }) => "end",
            _ => "other",
        })
        .collect();
    assert_eq!(order, ["start", "text", "text", "text", "end", "start", "text", "end", "text"]);
}

#[test]
fn bad_options_are_sentences() {
    for options in [TextSentencesOptions { first_min: 9, max: 8 }, TextSentencesOptions { first_min: 0, max: 0 }] {
        let Err(error) = Harness::new::<TextSentences>(options).input("text", vec![]).run() else { panic!("no error") };
        assert!(error.to_string().contains("first_min"), "{error}");
    }
    let options = TextWindowOptions { every: Span::ms(0), overlap: Span::ms(0) };
    assert!(Harness::new::<TextWindow>(options).input("transcript", vec![]).run().is_err());
}

#[test]
fn text_is_written_whole_or_partial_or_appended() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let write = |name: &str, append: bool, items: Vec<Item>| {
        let options = TextWriteOptions { to: path(name).display().to_string(), append };
        Harness::new::<TextWrite>(options).input("text", items).run()
    };
    let items = || vec![piece("He"), piece("llo"), end(1, false), segment("whole"), piece("rest")];
    write("a.md", false, items()).unwrap();
    assert_eq!(std::fs::read_to_string(path("a.md")).unwrap(), "Hello\nwhole\nrest\n");
    write("a.md", true, vec![segment("more")]).unwrap();
    assert_eq!(std::fs::read_to_string(path("a.md")).unwrap(), "Hello\nwhole\nrest\nmore\n");

    let mut stopped = items();
    stopped.push(Item::Mark(Mark::Eos(EosReason::Stopped)));
    let _ = write("b.md", false, stopped);
    assert!(!path("b.md").exists());
    assert_eq!(std::fs::read_to_string(path("b.md.partial")).unwrap(), "Hello\nwhole\nrest\n");
    assert!(write("no/dir/c.md", false, items()).is_err());
    assert!(write("no/dir/c.md", true, items()).is_err());
}

#[test]
fn windows_of_a_transcript_take_final_segments_only() {
    let said = |t0: i64, text: &str, is_final: bool| {
        let second = 1_000_000_000;
        let update = Update { segment: 1, t0: t0 * second, stable: text.into(), is_final, ..Update::default() };
        Item::Data(Header::at(t0 * second, second), Payload::Transcript(Transcript(update.into())))
    };
    let items = vec![said(1, " dr", false), said(1, " a", true), said(9, " b", true), said(12, " c", true)];
    let options = TextWindowOptions { every: Span::secs(10), overlap: Span::secs(2) };
    let out = Harness::new::<TextWindow>(options).input("transcript", items).run().unwrap();
    assert_eq!(texts(&out), ["a b", "b c"]);
    let times: Vec<i64> = out.data::<Text>("text").iter().map(|t| t.header.pts / 1_000_000_000).collect();
    assert_eq!(times, [0, 8]);
}
