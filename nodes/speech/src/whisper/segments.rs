//! Cutting a window's tokens into segments, and how far the window moves on.

use super::align::POSITION_S;

/// Seconds of one feature frame.
pub const FRAME_S: f64 = 0.01;

/// A run of a window's tokens that is one segment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slice {
    /// First token.
    pub from: usize,
    /// One past the last token.
    pub to: usize,
    /// Start, in steps of 0.02 s from the window's start.
    pub start: usize,
    /// End, likewise.
    pub end: usize,
    /// A timestamp closes it.
    pub closed: bool,
}

/// Cuts the tokens of a window of `frames` frames (`<|endoftext|>` left out) as the reference does;
/// also returns the frames the window moves on, at least one.
///
/// Two timestamps in a row part segments. Where the window ends in a single timestamp, there is
/// nothing behind it and the window moves on as a whole. Otherwise what follows the last pair was
/// cut off by the window's end: it is dropped, and the next window begins at that pair. Without a
/// pair, all tokens are one segment from the window's start.
pub fn cut(tokens: &[u32], timestamp_begin: u32, frames: usize) -> (Vec<Slice>, usize) {
    let stamp = |i: usize| tokens[i].checked_sub(timestamp_begin).map(|steps| steps as usize);
    let n = tokens.len();
    let single = n >= 2 && stamp(n - 1).is_some() && stamp(n - 2).is_none();
    let mut ends: Vec<usize> = (1..n).filter(|&i| stamp(i - 1).is_some() && stamp(i).is_some()).collect();
    let whole = frames.max(1);
    let Some(last) = ends.last_mut() else {
        let mut end = (frames as f64 * FRAME_S / POSITION_S) as usize;
        if let Some(steps @ 1..) = (0..n).rev().find_map(stamp) {
            end = steps;
        }
        let closed = n > 0 && stamp(n - 1).is_some();
        return (vec![Slice { from: 0, to: n, start: 0, end, closed }], whole);
    };
    if single {
        ends.push(n);
    } else {
        // Both timestamps of the last pair stay with the segment they close.
        *last += 1;
    }
    let mut slices: Vec<Slice> = Vec::with_capacity(ends.len());
    let mut from = 0;
    for (i, &to) in ends.iter().enumerate() {
        let last = i + 1 == ends.len() && !single;
        let before = slices.last().map_or(0, |s| s.end);
        // Text in place of a timestamp happens only where no timestamps were asked for.
        let start = stamp(from).unwrap_or(before);
        let end = stamp(to - 1 - usize::from(last)).unwrap_or(start);
        slices.push(Slice { from, to, start, end, closed: true });
        from = to;
    }
    let advance = if single { whole } else { stamp(from - 2).unwrap_or(0) * 2 };
    (slices, if advance == 0 { whole } else { advance })
}

/// The segments that are already whole in the tokens generated so far: those before the last pair.
pub fn whole(tokens: &[u32], timestamp_begin: u32) -> Vec<Slice> {
    let paired = (1..tokens.len()).any(|i| tokens[i - 1] >= timestamp_begin && tokens[i] >= timestamp_begin);
    if !paired {
        return Vec::new();
    }
    let mut tokens = tokens.to_vec();
    // A text token behind the last pair keeps a closing timestamp from counting as the window's end.
    tokens.push(0);
    cut(&tokens, timestamp_begin, 1).0
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: u32 = 100;

    fn bounds(tokens: &[u32]) -> (Vec<(usize, usize, usize, usize)>, usize) {
        let (slices, advance) = cut(tokens, T, 3000);
        (slices.iter().map(|s| (s.from, s.to, s.start, s.end)).collect(), advance)
    }

    #[test]
    fn windows_are_cut_at_pairs() {
        // Ends in text: dropped, and the window moves to the pair.
        assert_eq!(bounds(&[T, 1, T + 50, T + 60, 2]), (vec![(0, 4, 0, 50)], 100));
        // Ends in a single timestamp: kept, and the whole window is done.
        assert_eq!(bounds(&[T, 1, T + 50, T + 60, 2, T + 70]), (vec![(0, 3, 0, 50), (3, 6, 60, 70)], 3000));
        // Ends in a pair.
        assert_eq!(bounds(&[T + 5, 1, T + 50, T + 50]), (vec![(0, 4, 5, 50)], 100));
        // No pair.
        assert_eq!(bounds(&[T + 5, 1, T + 50]), (vec![(0, 3, 0, 50)], 3000));
        assert_eq!(bounds(&[T, 1]), (vec![(0, 2, 0, 1500)], 3000));
        assert_eq!(bounds(&[]), (vec![(0, 0, 0, 1500)], 3000));
        // A pair at 0.00, which only unruly output has, must not stop the clock.
        assert_eq!(bounds(&[T, T, 1]).1, 3000);
    }

    #[test]
    fn whole_segments_of_unfinished_windows() {
        assert!(whole(&[T, 1, T + 50], T).is_empty());
        let slices = whole(&[T, 1, T + 50, T + 50, 3, T + 60], T);
        assert_eq!(slices.iter().map(|s| (s.from, s.to)).collect::<Vec<_>>(), [(0, 4)]);
    }
}
