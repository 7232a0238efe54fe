//! What has really been heard: not what was sent, nor what the device took, but what left it.

use std::collections::VecDeque;

use oxiline_graph::Nanos;

use super::ring::Given;
use super::timeline::nanos;

/// How much of a segment was heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Played {
    /// The segment (0: sound outside of segments).
    pub segment: u64,
    /// Frames of it that were heard.
    pub frames: u64,
    /// Nothing more of it comes.
    pub whole: bool,
}

/// Follows the sound through the device.
#[derive(Debug, Default)]
pub struct Heard {
    rate: u32,
    recent: VecDeque<Given>,
    frames: u64,
    /// First frames of the segments that are not heard to their end, in order.
    segments: VecDeque<(u64, u64)>,
}

impl Heard {
    /// For a device of this rate.
    pub fn new(rate: u32) -> Self {
        Self { rate, segments: VecDeque::from([(0, 0)]), ..Self::default() }
    }

    /// From frame `first` on the sound belongs to `segment`.
    pub fn segment(&mut self, first: u64, segment: u64) {
        if self.segments.back().is_some_and(|(_, last)| *last == segment) {
            return;
        }
        if let Some(last) = self.segments.back_mut()
            && last.0 == first
        {
            last.1 = segment;
        } else {
            self.segments.push_back((first, segment));
        }
    }

    /// The device took a buffer.
    pub fn given(&mut self, given: Given) {
        if given.sound_frames > 0 {
            self.recent.push_back(given);
        }
    }

    /// Frames that have been heard at `now`.
    pub fn at(&mut self, now: Nanos) -> u64 {
        while let Some(given) = self.recent.front() {
            let length = nanos(u64::from(given.sound_frames), self.rate);
            let part = (now - given.at).clamp(0, length);
            let frames = (i128::from(part) * i128::from(self.rate) / 1_000_000_000) as u64;
            let whole = part == length;
            let frames = if whole { u64::from(given.sound_frames) } else { frames };
            self.frames = self.frames.max(given.sound + frames);
            if !whole {
                break;
            }
            self.recent.pop_front();
        }
        self.frames
    }

    /// When the last sound the device has taken leaves it.
    pub fn last(&self) -> Option<Nanos> {
        self.recent.back().map(|given| given.at + nanos(u64::from(given.sound_frames), self.rate))
    }

    /// The segments that have been heard to their end at `now`, and how far the current one is.
    pub fn played(&mut self, now: Nanos) -> Vec<Played> {
        let frames = self.at(now);
        let mut played = Vec::new();
        while let [(first, segment), (next, _), ..] = *self.segments.make_contiguous()
            && next <= frames
        {
            played.push(Played { segment, frames: next - first, whole: true });
            self.segments.pop_front();
        }
        if let Some(&(first, segment)) = self.segments.front() {
            played.push(Played { segment, frames: frames.saturating_sub(first), whole: false });
        }
        played
    }

    /// Frames of the current segment before frame `to`.
    pub fn since_segment(&self, to: u64) -> u64 {
        self.segments.front().map_or(0, |(first, _)| to.saturating_sub(*first))
    }

    /// What was written up to frame `to` and not heard will not be: counting goes on there.
    pub fn cut(&mut self, to: u64) {
        self.recent.clear();
        self.frames = to;
        self.segments = VecDeque::from([(to, 0)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = 1_000_000;

    fn given(sound: u64, frames: u32, at: Nanos) -> Given {
        Given { first: 0, frames, sound, sound_frames: frames, at }
    }

    #[test]
    fn what_waits_in_the_device_is_not_heard() {
        let mut heard = Heard::new(1000);
        heard.segment(0, 7);
        heard.given(given(0, 100, 50 * MS));
        heard.segment(150, 8);
        heard.given(given(100, 100, 150 * MS));
        let at = |heard: &mut Heard, ms: Nanos| heard.played(ms * MS);
        assert_eq!(at(&mut heard, 40), [Played { segment: 7, frames: 0, whole: false }]);
        assert_eq!(at(&mut heard, 90), [Played { segment: 7, frames: 40, whole: false }]);
        let both = [Played { segment: 7, frames: 150, whole: true }, Played { segment: 8, frames: 10, whole: false }];
        assert_eq!(at(&mut heard, 210), both);
        assert_eq!(heard.last(), Some(250 * MS));
        heard.cut(500);
        assert_eq!(at(&mut heard, 900), [Played { segment: 0, frames: 0, whole: false }]);
    }
}
