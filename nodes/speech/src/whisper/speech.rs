//! Where there is speech, and what to do with text where there is none.

use oxiline_graph::protocol::speech::Segment;

use super::segments::FRAME_S;

/// How far text may lie from speech and still belong to it, and the least speech worth decoding, seconds.
pub const TOLERANCE_S: f64 = 0.2;

/// Spans of speech: sorted, apart, inside the clip.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Spans(Vec<(f64, f64)>);

impl Spans {
    /// From any spans in seconds: sorted, joined where they touch, cut to the clip; what is no span
    /// (not finite, empty) is left out.
    pub fn new(spans: &[(f64, f64)], clip_s: f64) -> Self {
        let mut spans: Vec<(f64, f64)> = spans
            .iter()
            .filter(|(start, end)| start.is_finite() && end.is_finite())
            .map(|&(start, end)| (start.max(0.0), end.min(clip_s)))
            .filter(|(start, end)| end > start)
            .collect();
        spans.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut joined: Vec<(f64, f64)> = Vec::with_capacity(spans.len());
        for span in spans {
            match joined.last_mut() {
                Some(last) if span.0 <= last.1 => last.1 = last.1.max(span.1),
                _ => joined.push(span),
            }
        }
        Self(joined)
    }

    /// The spans, seconds.
    pub fn all(&self) -> &[(f64, f64)] {
        &self.0
    }

    /// Is there speech worth decoding between two times? A rest of a span shorter than
    /// [`TOLERANCE_S`] is the tail of what was decoded before.
    pub fn any(&self, start: f64, end: f64) -> bool {
        let mut total = 0.0;
        for &(from, to) in &self.0[self.0.partition_point(|s| s.1 <= start)..] {
            if from >= end {
                break;
            }
            if from >= start {
                return true;
            }
            total += to.min(end) - from.max(start);
        }
        total >= TOLERANCE_S
    }

    /// Does a stretch touch speech, give or take [`TOLERANCE_S`]?
    pub fn touches(&self, start: f64, end: f64) -> bool {
        let (start, end) = (start - TOLERANCE_S, end + TOLERANCE_S);
        let at = self.0.partition_point(|s| s.1 <= start);
        self.0.get(at).is_some_and(|s| s.0 < end)
    }

    /// The frame at which to go on from `seek`, where the window at `seek` holds no speech: shortly
    /// before the next speech, or None when there is no more.
    pub fn next(&self, seek: usize) -> Option<usize> {
        let now = seek as f64 * FRAME_S;
        let at = self.0.partition_point(|s| s.0 < now);
        let (start, _) = self.0.get(at)?;
        Some((((start - TOLERANCE_S) / FRAME_S) as usize).max(seek + 1))
    }
}

/// Does a text go round in circles? True where its end is one phrase at least four times over,
/// eight tokens or more in all.
pub fn loops(tokens: &[u32]) -> bool {
    (1..=tokens.len() / 4).any(|period| {
        let run = tokens.iter().rev().zip(tokens.iter().rev().skip(period)).take_while(|(a, b)| a == b).count();
        run >= 3 * period && run + period >= 8
    })
}

/// Mean log-probability of a token below which a text is a guess: less than 3 in 10.
const IMPROBABLE: f32 = -1.25;
/// Probability of no speech from which a guess is no text.
const HALF_SILENT: f32 = 0.3;

/// Text that the model itself takes for improbable, in sound in which it half hears no speech: music, mostly, which
/// voice activity can't always tell from a voice.
pub fn guessed(segment: &Segment) -> bool {
    segment.avg_logprob < IMPROBABLE && segment.no_speech_prob > HALF_SILENT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guess_is_improbable_where_nobody_may_speak() {
        let of = |avg_logprob, no_speech_prob| guessed(&Segment { avg_logprob, no_speech_prob, ..Segment::default() });
        // A saxophone, by whisper-base and by whisper-tiny.en.
        assert!(of(-1.55, 0.48) && of(-2.72, 0.36));
        // Mumbled speech; a certain text after a pause; weights that say nothing.
        assert!(!of(-1.4, 0.02) && !of(-0.3, 0.7) && !of(-10.0, 2e-5));
    }

    #[test]
    fn spans_are_tidied() {
        let spans = Spans::new(&[(5.0, 6.0), (f64::NAN, 1.0), (1.0, 2.0), (1.5, 3.0), (9.0, 40.0), (4.0, 4.0)], 10.0);
        assert_eq!(spans.all(), [(1.0, 3.0), (5.0, 6.0), (9.0, 10.0)]);
        assert!(spans.any(0.0, 1.5) && spans.any(2.0, 9.0) && spans.any(5.5, 7.0));
        assert!(!spans.any(3.0, 5.0) && !spans.any(2.9, 4.0) && !spans.any(10.0, 40.0));
        assert!(spans.touches(3.1, 4.0) && !spans.touches(3.3, 4.7) && spans.touches(4.0, 4.9));
        assert_eq!(spans.next(300), Some(480));
        assert_eq!(spans.next(499), Some(500));
        assert_eq!(spans.next(901), None);
    }

    #[test]
    fn loops_are_seen() {
        assert!(loops(&[1, 2, 3, 2, 3, 2, 3, 2, 3]));
        assert!(loops(&[7; 8]));
        assert!(!loops(&[7; 7]) && !loops(&[1, 2, 3, 4, 5, 6, 7, 8, 9]));
        assert!(!loops(&[]));
    }
}
