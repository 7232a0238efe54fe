//! Windows that do not wait for each other: a clip cut at silences into stretches of at most 30 s.
//!
//! A stretch is one unbroken piece of the clip, so a time inside it is the time in the clip by one
//! addition; nothing is spliced and nothing can drift. Each stretch is decoded by the sequential
//! algorithm, which may need more than one window where the model closes its last segment early.

use super::Mel;
use super::segments::FRAME_S;
use super::speech::{Spans, TOLERANCE_S};

/// Frames from one place in the clip to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stretch {
    /// First frame.
    pub begin: usize,
    /// One past the last frame.
    pub end: usize,
}

/// Silence this long is not decoded together with the speech around it, in frames.
const LONG_SILENCE: usize = 500;
/// A stretch that must be cut is cut in its last third.
const SEARCH: usize = Mel::WINDOW / 3;
/// Loudness is judged over this many frames.
const QUIET: usize = 20;

/// Cuts a clip of `frames` frames into stretches of at most [`Mel::WINDOW`] frames, in order and
/// without overlap: along `speech` where it is known, else all of it, at the quietest places.
pub fn plan(mel: &Mel, frames: usize, speech: Option<&Spans>) -> Vec<Stretch> {
    let frames = frames.min(mel.frames);
    let padded: Vec<Stretch> = match speech {
        None => vec![Stretch { begin: 0, end: frames }],
        Some(spans) => spans
            .all()
            .iter()
            .map(|&(start, end)| Stretch {
                begin: ((start - TOLERANCE_S).max(0.0) / FRAME_S) as usize,
                end: (((end + TOLERANCE_S) / FRAME_S).ceil() as usize).min(frames),
            })
            .collect(),
    };
    let mut stretches: Vec<Stretch> = Vec::new();
    for mut span in padded {
        if let Some(last) = stretches.last_mut() {
            // Paddings that meet share the silence between them.
            span.begin = span.begin.max(last.end);
            if span.end > span.begin && span.end - last.begin <= Mel::WINDOW && span.begin - last.end <= LONG_SILENCE {
                last.end = span.end;
                continue;
            }
        }
        while span.end > span.begin + Mel::WINDOW {
            let at = quietest(mel, span.begin + Mel::WINDOW - SEARCH, span.begin + Mel::WINDOW);
            stretches.push(Stretch { begin: span.begin, end: at });
            span.begin = at;
        }
        if span.end > span.begin {
            stretches.push(span);
        }
    }
    stretches
}

/// The middle of the quietest [`QUIET`] frames between two frames.
fn quietest(mel: &Mel, from: usize, to: usize) -> usize {
    let frames = mel.data.chunks_exact(mel.bins.max(1)).skip(from).take(to - from);
    let levels: Vec<f64> = frames.map(|frame| frame.iter().map(|&v| f64::from(v)).sum()).collect();
    let mut best = (f64::INFINITY, to);
    for (i, part) in levels.windows(QUIET).enumerate() {
        let level: f64 = part.iter().sum();
        if level < best.0 {
            best = (level, from + i + QUIET / 2);
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mel(frames: usize) -> Mel {
        Mel { bins: 1, frames, data: (0..frames).map(|i| ((i * 7919) % 101) as f32 / 50.0).collect() }
    }

    #[test]
    fn cuts_fall_into_silence() {
        let mut mel = mel(5000);
        mel.data[2500..2600].fill(-9.0);
        let cut = plan(&mel, 5000, None);
        assert_eq!(cut.len(), 2);
        assert!((2500..2600).contains(&cut[0].end) && cut[1].end == 5000);
        let spans = Spans::new(&[(1.0, 2.0), (4.0, 6.0), (20.0, 31.0), (33.0, 34.0)], 50.0);
        let cut = plan(&mel, 5000, Some(&spans));
        assert_eq!(
            cut,
            [Stretch { begin: 80, end: 620 }, Stretch { begin: 1980, end: 3420 }],
            "a pause of 14 s is left out, short ones are kept"
        );
        assert!(plan(&mel, 5000, Some(&Spans::default())).is_empty());
    }

    proptest! {
        #[test]
        fn stretches_are_in_order_and_hold_all_speech(
            spans in proptest::collection::vec((0.0_f64..700.0, 0.01_f64..90.0), 0..60),
        ) {
            let clip = 720.0;
            let spans: Vec<(f64, f64)> = spans.into_iter().map(|(s, d)| (s, s + d)).collect();
            let spans = Spans::new(&spans, clip);
            let cut = plan(&mel(72_000), 72_000, Some(&spans));
            for s in &cut {
                prop_assert!(s.begin < s.end && s.end - s.begin <= Mel::WINDOW && s.end <= 72_000);
            }
            for pair in cut.windows(2) {
                prop_assert!(pair[0].end <= pair[1].begin);
            }
            for &(start, end) in spans.all() {
                let (mut at, end) = ((start * 100.0).ceil() as usize, (end * 100.0) as usize);
                for s in &cut {
                    if s.begin <= at && at < s.end {
                        at = s.end;
                    }
                }
                prop_assert!(at >= end, "speech up to {end} is covered only to {at}");
            }
        }
    }
}
