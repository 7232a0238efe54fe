//! `sync = "turn"`: attachments and the text they belong to meet in their turn.

mod common;
use common::*;
use oxiline_graph::payload::Text;
use oxiline_graph::plan::*;
use oxiline_graph::{Header, Io, Item, Mark, Outcome, Span, Timed};

fn words(turn: u64, word: &str) -> Timed<Text> {
    Timed { header: Header { segment: turn, ..Header::at(0, 0) }, value: text(word) }
}

/// Sends for every turn its start, its words and its end, the words after `delay`.
fn talker(name: &str, turns: Vec<(u64, Vec<&'static str>)>, delay: Span) -> PlannedNode {
    node(name, &[], &["out"], move |io: &Io| {
        let out = io.output::<Text>("out")?;
        for (turn, said) in &turns {
            out.mark(Mark::SegmentStart(*turn))?;
            io.sleep(delay)?;
            for word in said {
                out.send(words(*turn, word))?;
            }
            out.mark(Mark::SegmentEnd { id: *turn, cancelled: false })?;
        }
        Ok(())
    })
}

/// What a join of a text and two attachments sees.
fn joined(turns: [Vec<(u64, Vec<&'static str>)>; 3], delays: [u64; 3], cap: u64) -> (Vec<String>, Outcome) {
    let log = Log::default();
    let seen = log.clone();
    let join = node("join", &["text", "image", "speech"], &[], move |io: &Io| {
        while let Some((port, item)) = io.recv_any()? {
            let said = match &item {
                Item::Data(header, _) => format!("{} {}", header.segment, line(&item)),
                Item::Mark(Mark::SegmentEnd { id, .. }) if port == 0 => format!("{id} over"),
                _ => continue,
            };
            seen.lock().unwrap().push(said);
        }
        Ok(())
    });
    let mut nodes: Vec<PlannedNode> = turns
        .into_iter()
        .zip(["text", "image", "speech"])
        .zip(delays)
        .map(|((turns, name), ms)| talker(name, turns, Span::ms(ms)))
        .collect();
    nodes.push(join);
    let mut edges: Vec<PlannedEdge> = (0..3).map(|n| edge((n, 0), (3, n), cap, Full::Block)).collect();
    edges[1].by_turn = true;
    edges[2].by_turn = true;
    let summary = run(plan(nodes, edges));
    assert!(summary.conserved, "{summary}");
    (lines(&log), summary.outcome)
}

#[test]
fn what_is_attached_comes_before_the_text_of_its_turn() {
    let turns = || {
        [
            vec![(1, vec!["look"]), (2, vec!["and", "this"]), (3, vec!["bye"])],
            vec![(1, vec!["cat.png"]), (2, vec![]), (3, vec![])],
            vec![(1, vec![]), (2, vec!["a.wav", "b.wav"]), (3, vec![])],
        ]
    };
    let wanted = [
        "1 cat.png@0e0",
        "1 look@0e0",
        "1 over",
        "2 a.wav@0e0",
        "2 b.wav@0e0",
        "2 and@0e0",
        "2 this@0e0",
        "2 over",
        "3 bye@0e0",
        "3 over",
    ];
    // Whoever is slow, and however little fits on an edge.
    for delays in [[0, 0, 0], [0, 900, 20], [500, 0, 0], [0, 20, 900]] {
        for cap in [1, 8] {
            let (got, outcome) = joined(turns(), delays, cap);
            assert_eq!(outcome, Outcome::Complete);
            assert_eq!(got, wanted, "delays {delays:?}, cap {cap}");
        }
    }
}

#[test]
fn an_attachment_stream_that_ends_holds_nothing_back() {
    let turns = [vec![(1, vec!["look"]), (2, vec!["bye"])], vec![(1, vec!["cat.png"])], vec![]];
    let (got, outcome) = joined(turns, [0, 50, 0], 2);
    assert_eq!(outcome, Outcome::Complete);
    assert_eq!(got, ["1 cat.png@0e0", "1 look@0e0", "1 over", "2 bye@0e0", "2 over"]);
}
