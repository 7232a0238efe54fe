use super::*;
use crate::payload::{Text, Transcript, Update};
use std::sync::Arc;

fn text(pts: Nanos) -> Item {
    Item::data(pts, 1, Text { text: "four".into(), delta: false })
}

fn update(pts: Nanos, segment: u64, is_final: bool) -> Item {
    Item::data(pts, 0, Transcript(Arc::new(Update { segment, is_final, ..Update::default() })))
}

fn items(n: u64, full: Full) -> Link {
    Link::new(Cap { items: Some(n), ..Cap::default() }, full)
}

fn drain(link: &mut Link) -> Vec<String> {
    std::iter::from_fn(|| link.pop())
        .map(|item| match item {
            Item::Data(h, _) => format!("{}", h.pts),
            Item::Gap(g) => format!("{}..{}", g.from, g.to),
            Item::Mark(m) => format!("{m:?}"),
        })
        .collect()
}

#[test]
fn block_gives_the_item_back_and_loses_nothing() {
    let mut link = items(2, Full::Block);
    assert!(matches!(link.push(text(0)), Push::Done));
    assert!(matches!(link.push(text(1)), Push::Done));
    let Push::Full(back) = link.push(text(2)) else { panic!("must be full") };
    assert!(matches!(link.push(Item::Mark(Mark::SegmentStart(1))), Push::Done), "marks have room");
    link.pop();
    assert!(matches!(link.push(back), Push::Done));
    assert_eq!(drain(&mut link), ["1", "SegmentStart(1)", "2"]);
    assert_eq!((link.counts().sent, link.counts().received), (3, 3));
}

#[test]
fn each_limit_holds_and_an_oversized_item_passes_alone() {
    let cap = |time: Option<u64>, bytes| Cap {
        items: None,
        time: time.map(|n| crate::Span(std::time::Duration::from_nanos(n))),
        bytes,
    };
    for (cap, fit) in
        [(cap(Some(3), None), 3), (cap(None, Some(9)), 2), (cap(Some(3), Some(5)), 1), (cap(Some(0), Some(0)), 1)]
    {
        let mut link = Link::new(cap, Full::Block);
        let taken = (0..10).take_while(|&i| matches!(link.push(text(i)), Push::Done)).count();
        assert_eq!(taken, fit, "{cap:?}");
    }
}

#[test]
fn drop_oldest_leaves_one_merged_gap_and_every_mark() {
    let mut link = items(2, Full::DropOldest);
    for i in 0..3 {
        link.push(text(i));
    }
    link.push(Item::Mark(Mark::SegmentStart(9)));
    for i in 3..6 {
        link.push(text(i));
    }
    assert!(link.counts().conserved(link.queued()));
    assert_eq!(link.counts().dropped[DropReason::Evicted as usize], 4);
    assert_eq!(drain(&mut link), ["0..3", "SegmentStart(9)", "3..4", "4", "5"]);
}

#[test]
fn drop_newest_refuses_with_one_gap() {
    let mut link = items(1, Full::DropNewest);
    for i in 0..4 {
        link.push(text(i));
    }
    assert_eq!(drain(&mut link), ["0", "1..3"]);
    assert_eq!(link.counts().dropped[DropReason::Refused as usize], 3);
}

#[test]
fn latest_replaces_by_segment_but_never_a_final() {
    let mut link = items(3, Full::Latest);
    for (pts, segment, last) in [(0, 1, false), (1, 2, false), (2, 1, false), (3, 1, true)] {
        assert!(matches!(link.push(update(pts, segment, last)), Push::Done));
    }
    // 3 is final: another revision of segment 1 does not replace it.
    assert!(matches!(link.push(update(4, 1, false)), Push::Done));
    assert!(matches!(link.push(update(5, 7, true)), Push::Full(_)), "finals wait for room");
    assert_eq!(drain(&mut link), ["1", "3", "4"]);
    assert!(link.counts().conserved(0));
}

#[test]
fn fail_overflows() {
    let mut link = items(1, Full::Fail);
    link.push(text(0));
    assert!(matches!(link.push(text(1)), Push::Overflow));
}

#[test]
fn stale_data_goes_but_sticky_data_and_marks_stay() {
    let mut link = items(8, Full::Block);
    let Item::Data(mut header, payload) = text(2) else { unreachable!() };
    header.flags = Header::STICKY;
    link.push(text(0));
    link.push(text(1));
    link.push(Item::Data(header, payload));
    link.push(Item::Mark(Mark::SegmentStart(1)));
    link.push(text(3));
    assert!(link.settle(Some(1)));
    let mut seen = Vec::new();
    while !link.is_empty() {
        link.settle(Some(1));
        seen.extend(link.pop().map(|i| match i {
            Item::Data(h, _) => h.pts.to_string(),
            Item::Gap(g) => format!("{}..{}", g.from, g.to),
            Item::Mark(m) => format!("{m:?}"),
        }));
    }
    assert_eq!(seen, ["0..2", "2", "SegmentStart(1)", "3..3"]);
    assert_eq!(link.counts().dropped[DropReason::Stale as usize], 3);
    assert!(link.counts().conserved(0));
}

#[test]
fn gaps_and_marks_are_bounded_too() {
    for full in [Full::Block, Full::DropOldest, Full::DropNewest, Full::Latest] {
        let mut link = items(4, full);
        for i in 0..10_000i64 {
            let reason = if i % 2 == 0 { GapReason::NoSpeech } else { GapReason::Muted };
            link.push(Item::Gap(Gap { from: 3 * i, to: 3 * i + 1, reason }));
            link.push(Item::Mark(Mark::SegmentStart(i as u64)));
        }
        assert!(link.queue.len() <= 2 * RESERVE + 4, "{full:?}: {}", link.queue.len());
    }
}

#[test]
fn absurd_durations_do_not_overflow() {
    let mut link = items(8, Full::Block);
    for _ in 0..4 {
        link.push(Item::data(Nanos::MAX, Nanos::MAX, Text { text: "x".into(), delta: false }));
    }
    assert_eq!(drain(&mut link).len(), 4);
}

#[test]
fn closing_counts_the_rest_as_unread() {
    let mut link = items(8, Full::Block);
    link.push(text(0));
    link.push(text(1));
    link.close();
    link.push(text(2));
    assert_eq!(link.counts().dropped[DropReason::Unread as usize], 3);
    assert!(link.counts().conserved(0));
}
