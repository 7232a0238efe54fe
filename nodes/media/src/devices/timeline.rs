//! Where captured sound lies in graph time.
//!
//! A stamp is a count of samples times their period after an anchor, never the time of a callback: those
//! only feed the [`Dll`]. Of the master device the period is the nominal one, because its seconds are the
//! graph's; sound of any other device is resampled, steered by the distance between where the line says its
//! input lies and where the counted output lies. Time without samples is a gap of its true length.

use oxiline_graph::{Gap, GapReason, Nanos, Result};

use super::dll::{Dll, MOVED};
use super::host::Form;
use super::ring::Block;
use super::steer::{CLAMP, Steer, correction};
use crate::resample::Resampler;

/// The drift is told once it was followed for so long, seconds.
pub const TELLING: f64 = 30.0;
/// Shorter holes are the jitter of the stamps.
const HOLE: Nanos = 1_000_000;
/// The clock follows the master device's samples over this time, seconds.
const FOLLOW: f64 = 10.0;

/// What goes out, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Piece {
    /// Interleaved samples from this graph time on.
    Sound(Nanos, Vec<f32>),
    /// Time without samples.
    Gap(Gap),
}

/// One open device.
struct Source {
    form: Form,
    /// In the stream's time for the master, else in graph time.
    dll: Dll,
    /// The frame that comes next, and the one at the anchor.
    next: u64,
    first: u64,
    resampler: Option<Resampler>,
    steer: Option<Steer>,
    anchored: bool,
    /// Frames to leave out because the output is ahead.
    skip: u64,
}

/// Graph time of one capture node.
pub struct Timeline {
    out: Form,
    master: bool,
    source: Option<Source>,
    /// Graph time of the output frame that `given` counts from.
    anchor: Nanos,
    given: u64,
    /// Graph time up to which everything is said; `None`: nothing yet.
    end: Option<Nanos>,
    /// How fast the master's clock should run.
    clock: f64,
    /// Hard realignments so far.
    pub resyncs: u64,
    /// How far output and device lie apart, seconds.
    pub late: f64,
}

impl Timeline {
    /// For output in this form; `master`: the device is the graph's clock.
    pub fn new(out: Form, master: bool) -> Self {
        Self { out, master, source: None, anchor: 0, given: 0, end: None, clock: 1.0, resyncs: 0, late: 0.0 }
    }

    /// The form of the output.
    pub fn form(&self) -> Form {
        self.out
    }

    /// A device is open and will deliver `form`.
    ///
    /// # Errors
    /// Its form cannot be converted.
    pub fn open(&mut self, form: Form) -> Result<()> {
        let resampler = (form != self.out)
            .then(|| Resampler::new(form.rate, form.channels, self.out.rate, self.out.channels))
            .transpose()?;
        let steer = (!self.master).then(|| Steer::new(self.out.channels));
        let dll = Dll::new(form.rate);
        self.source = Some(Source { form, dll, next: 0, first: 0, resampler, steer, anchored: false, skip: 0 });
        Ok(())
    }

    /// Seconds of graph time in one of the monotonic clock, as the master device says.
    pub fn clock(&self) -> f64 {
        self.clock
    }

    /// Distance of the device from its nominal rate, parts per million, once that can be told.
    pub fn ppm(&self) -> Option<f64> {
        self.source.as_ref().filter(|s| s.dll.age() > TELLING).map(|s| s.dll.ppm())
    }

    /// Graph time up to which everything is said.
    #[cfg(test)]
    fn end(&self) -> Option<Nanos> {
        self.end
    }

    /// A block of the open device; `to_graph`: graph time less the stream's time, now.
    pub fn block(&mut self, block: Block, samples: &[f32], to_graph: Nanos, out: &mut Vec<Piece>) {
        let Some(source) = &mut self.source else { return };
        let shift = if self.master { to_graph } else { 0 };
        let at = if self.master { block.at } else { block.at + to_graph };
        let moved = source.dll.update(block.first, at);
        if block.broken {
            source.dll.restart(block.first, at);
        }
        let time = source.dll.time(block.first) + shift;
        let length = nanos(u64::from(block.frames), source.form.rate);
        if !source.anchored {
            if time + length <= 0 && self.end.is_none() {
                // Before the graph's time: nobody asked for it.
                source.next = block.first + u64::from(block.frames);
                return;
            }
            source.anchored = true;
            (source.next, source.first) = (block.first, block.first);
            let from = time.max(self.end.unwrap_or(0));
            if let Some(end) = self.end {
                gap(end, from, GapReason::DeviceLost, out);
            }
            (self.anchor, self.given, self.end) = (from, 0, Some(from));
        } else if block.broken || moved {
            // The device itself lost frames, or time jumped: the stamps alone know how much.
            self.flush(out);
            let missing = time - self.end.unwrap_or(time);
            self.resyncs += u64::from(missing > HOLE);
            self.jump(block.first, if missing > HOLE { missing } else { 0 }, out);
        } else if block.first > source.next {
            // The ring was full.
            let missing = nanos(block.first - source.next, source.form.rate);
            self.jump(block.first, missing, out);
        }
        self.align(block, time, out);
        self.push(block, samples, out);
    }

    /// Puts a hole before frame `first`, and starts counting anew after it.
    fn jump(&mut self, first: u64, missing: Nanos, out: &mut Vec<Piece>) {
        self.flush(out);
        let from = self.end.unwrap_or(0);
        gap(from, from + missing, GapReason::Dropped, out);
        (self.anchor, self.given, self.end) = (from + missing, 0, Some(from + missing));
        if let Some(source) = &mut self.source {
            (source.next, source.first) = (first, first);
        }
    }

    /// Steers: the clock by the master, the resampler of everybody else.
    fn align(&mut self, block: Block, time: Nanos, out: &mut Vec<Piece>) {
        let Some(source) = &mut self.source else { return };
        if self.master {
            let counted = self.anchor + nanos(block.first - source.first, source.form.rate);
            self.late = (counted - time) as f64 * 1e-9;
            let pull = (self.late / FOLLOW).clamp(-CLAMP * 1e-6, CLAMP * 1e-6);
            self.clock = source.dll.rate() * (1.0 + pull);
            return;
        }
        let Some(steer) = &mut source.steer else { return };
        // On the input's timeline: what is still inside the filters has its place already.
        let position = steer.position() * f64::from(source.form.rate) / f64::from(self.out.rate);
        let whole = position.max(0.0) as u64;
        let rest = ((position - whole as f64) * 1e9 / f64::from(source.form.rate)) as Nanos;
        let lies = source.dll.time(source.first + whole) + rest;
        let late = lies - (self.anchor + nanos(self.given, self.out.rate));
        self.late = late as f64 * 1e-9;
        if late as f64 > MOVED {
            self.resyncs += 1;
            self.jump(block.first, late, out);
        } else if (late as f64) < -MOVED {
            self.resyncs += 1;
            source.skip = (-late as u128 * u128::from(source.form.rate) / 1_000_000_000) as u64;
            self.jump(block.first, 0, out);
        } else {
            steer.set(correction(source.dll.ppm(), self.late));
        }
    }

    fn push(&mut self, block: Block, samples: &[f32], out: &mut Vec<Piece>) {
        let Some(source) = &mut self.source else { return };
        source.next = block.first + u64::from(block.frames);
        let skip = source.skip.min(u64::from(block.frames));
        source.skip -= skip;
        source.first += skip;
        let samples = &samples[skip as usize * usize::from(source.form.channels)..];
        let mut nominal = Vec::new();
        match &mut source.resampler {
            None => nominal.extend_from_slice(samples),
            Some(resampler) => resampler.push(samples, &mut nominal),
        }
        let sound = match &mut source.steer {
            None => nominal,
            Some(steer) => {
                let mut steered = Vec::new();
                steer.push(&nominal, &mut steered);
                steered
            }
        };
        self.give(sound, out);
    }

    /// Gives what the converters still hold, and empties them.
    fn flush(&mut self, out: &mut Vec<Piece>) {
        let Some(source) = &mut self.source else { return };
        let mut rest = Vec::new();
        if let Some(resampler) = &mut source.resampler {
            resampler.finish(&mut rest);
        }
        if let Some(steer) = &mut source.steer {
            let mut steered = Vec::new();
            steer.push(&rest, &mut steered);
            steer.finish(&mut steered);
            rest = steered;
            *steer = Steer::new(self.out.channels);
        }
        self.give(rest, out);
    }

    fn give(&mut self, samples: Vec<f32>, out: &mut Vec<Piece>) {
        let frames = samples.len() / usize::from(self.out.channels.max(1));
        if frames == 0 {
            return;
        }
        out.push(Piece::Sound(self.anchor + nanos(self.given, self.out.rate), samples));
        self.given += frames as u64;
        self.end = Some(self.anchor + nanos(self.given, self.out.rate));
    }

    /// The device is gone, or the stream ends: gives what is left of it.
    pub fn close(&mut self, out: &mut Vec<Piece>) {
        self.flush(out);
        self.source = None;
    }

    /// No device until `now`: that time is a gap.
    pub fn away(&mut self, now: Nanos, out: &mut Vec<Piece>) {
        if let Some(end) = self.end {
            gap(end, now, GapReason::DeviceLost, out);
        }
        self.end = Some(self.end.unwrap_or(now).max(now));
    }
}

fn gap(from: Nanos, to: Nanos, reason: GapReason, out: &mut Vec<Piece>) {
    if to > from {
        out.push(Piece::Gap(Gap { from, to, reason }));
    }
}

/// Time of so many frames.
pub fn nanos(frames: u64, rate: u32) -> Nanos {
    (u128::from(frames) * 1_000_000_000 / u128::from(rate.max(1))) as Nanos
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUT: Form = Form { rate: 16_000, channels: 1 };

    /// Ten minutes of a device that is `ppm` fast, in blocks that come up to 5 ms early or late.
    fn drifting(ppm: f64, master: bool) -> (Timeline, Vec<Piece>, f64) {
        let mut line = Timeline::new(OUT, master);
        line.open(OUT).unwrap();
        let (mut pieces, mut seed, mut worst, mut clock) = (Vec::new(), 7u64, 0f64, (0.0, 0.0));
        for n in 0..600 * 100u64 {
            let truth = (n * 160) as f64 / (16_000.0 * (1.0 + ppm * 1e-6));
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let late = (seed >> 40) as f64 / f64::from(1 << 24) * 0.010 - 0.005;
            let at = ((truth + late) * 1e9) as Nanos;
            // The graph's clock: the monotonic one, run as fast as the master says.
            if master {
                clock = (truth, clock.1 + (truth - clock.0) * line.clock());
            }
            let shift = if master { ((clock.1 - truth) * 1e9) as Nanos } else { 0 };
            let block = Block { first: n * 160, frames: 160, at, broken: false };
            line.block(block, &[0.25; 160], shift, &mut pieces);
            let end = line.end().unwrap() as f64 * 1e-9;
            let graph = if master { clock.1 } else { truth };
            if truth > 120.0 {
                // The block's own length, and the 4 ms that wait in the filter.
                worst = worst.max((graph + 0.010 - end).abs());
            }
        }
        (line, pieces, worst)
    }

    #[test]
    fn two_hundred_ppm_for_ten_minutes_stay_aligned() {
        for master in [false, true] {
            let (line, pieces, worst) = drifting(200.0, master);
            assert_eq!(line.resyncs, 0);
            assert!(!pieces.iter().any(|p| matches!(p, Piece::Gap(_))), "no hard resync");
            assert!(worst < 0.010, "master {master}: {worst} s apart");
            assert!((line.ppm().unwrap() - 200.0).abs() < 25.0, "{:?}", line.ppm());
            if master {
                // The device's samples are the time: ten minutes are 9,600,000 of them.
                assert_eq!(line.end(), Some(600_000_000_000 + line.anchor));
            }
        }
    }

    #[test]
    fn stamps_run_on_to_the_nanosecond() {
        let (_, pieces, _) = drifting(-137.0, false);
        let mut next = None;
        for piece in &pieces {
            let Piece::Sound(pts, samples) = piece else { panic!("{piece:?}") };
            assert!(next.is_none_or(|n: Nanos| (n - pts).abs() <= 1));
            next = Some(pts + nanos(samples.len() as u64, 16_000));
        }
    }

    fn block(first: u64, at_ms: Nanos, broken: bool) -> Block {
        Block { first, frames: 1600, at: at_ms * 1_000_000, broken }
    }

    #[test]
    fn a_full_ring_leaves_a_gap_of_its_length() {
        let mut line = Timeline::new(OUT, true);
        line.open(OUT).unwrap();
        let mut out = Vec::new();
        line.block(block(0, 0, false), &[0.0; 1600], 0, &mut out);
        line.block(block(4800, 300, false), &[0.0; 1600], 0, &mut out);
        let gap = Gap { from: 100_000_000, to: 300_000_000, reason: GapReason::Dropped };
        let sound = |pts| Piece::Sound(pts, vec![0.0; 1600]);
        assert_eq!(out, [sound(0), Piece::Gap(gap), sound(300_000_000)]);
    }

    #[test]
    fn what_the_device_lost_is_measured() {
        let mut line = Timeline::new(OUT, true);
        line.open(OUT).unwrap();
        let mut out = Vec::new();
        line.block(block(0, 0, false), &[0.0; 1600], 0, &mut out);
        line.block(block(1600, 350, true), &[0.0; 1600], 0, &mut out);
        let gap = Gap { from: 100_000_000, to: 350_000_000, reason: GapReason::Dropped };
        assert_eq!(out[1], Piece::Gap(gap));
        assert_eq!(line.resyncs, 1);
    }

    #[test]
    fn lost_for_five_seconds_and_back_at_another_rate() {
        let mut line = Timeline::new(OUT, true);
        line.open(OUT).unwrap();
        let mut out = Vec::new();
        for n in 0..10 {
            line.block(block(n * 1600, n as Nanos * 100, false), &[0.5; 1600], 0, &mut out);
        }
        line.close(&mut out);
        line.away(3_000_000_000, &mut out);
        line.open(Form { rate: 48_000, channels: 2 }).unwrap();
        for n in 0..10u64 {
            let at = 6_000_000_000 + n as Nanos * 100_000_000;
            let block = Block { first: n * 4800, frames: 4800, at, broken: false };
            line.block(block, &[0.5; 9600], 0, &mut out);
        }
        line.close(&mut out);
        let gaps: Vec<Gap> = out.iter().filter_map(|p| if let Piece::Gap(g) = p { Some(*g) } else { None }).collect();
        assert!(gaps.iter().all(|g| g.reason == GapReason::DeviceLost));
        assert_eq!((gaps[0].from, gaps.last().unwrap().to), (1_000_000_000, 6_000_000_000));
        assert_eq!(gaps.iter().map(|g| g.to - g.from).sum::<Nanos>(), 5_000_000_000);
        let sound: usize = out.iter().map(|p| if let Piece::Sound(_, s) = p { s.len() } else { 0 }).sum();
        assert_eq!(sound, 32_000, "a second before and a second after");
        assert_eq!(line.end(), Some(7_000_000_000));
    }

    #[test]
    fn what_came_before_the_graph_began_is_left_out() {
        let mut line = Timeline::new(OUT, true);
        line.open(OUT).unwrap();
        let mut out = Vec::new();
        for n in 0..4 {
            line.block(block(n * 1600, n as Nanos * 100 - 250, false), &[0.0; 1600], 0, &mut out);
        }
        // The second block reaches into graph time; it starts at its beginning.
        assert!(matches!(&out[0], Piece::Sound(0, s) if s.len() == 1600), "{out:?}");
        assert_eq!(out.len(), 2);
    }
}
