//! Between a device's callback and a node: bounded rings that neither side ever waits for.
//!
//! The callback's end of a ring does not block and does not allocate. What does not fit is counted, and
//! what is counted is never silent: every block carries the number of its first frame, so the node sees
//! how much is missing and where.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
use std::sync::{Arc, Mutex};

use oxiline_graph::Nanos;
use rtrb::{Consumer, Producer, RingBuffer};

/// How well a device does, written by its callbacks.
#[derive(Debug, Default)]
pub struct Health {
    /// Blocks that came or were asked for.
    pub blocks: AtomicU64,
    /// Times the device itself ran over or dry.
    pub xruns: AtomicU64,
    /// Other errors the device reported.
    pub errors: AtomicU64,
    /// The device said that it is gone.
    gone: AtomicBool,
    /// The first thing it said.
    said: Mutex<Option<String>>,
}

/// What a device reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It ran over or dry and goes on.
    Xrun,
    /// Something failed. A dead sound server says this thousands of times a second.
    Error,
    /// It is gone.
    Gone,
    /// Worth nobody's attention.
    Notice,
}

impl Health {
    /// Counts a fault. Cheap enough to be called thousands of times a second: only the first text is made.
    pub fn fault(&self, fault: Fault, text: impl FnOnce() -> String) {
        match fault {
            Fault::Xrun => self.xruns.fetch_add(1, Relaxed),
            Fault::Error => self.errors.fetch_add(1, Relaxed),
            Fault::Gone | Fault::Notice => 0,
        };
        if matches!(fault, Fault::Error | Fault::Gone)
            && let Ok(mut said) = self.said.try_lock()
        {
            said.get_or_insert_with(text);
        }
        if fault == Fault::Gone {
            self.gone.store(true, Release);
        }
    }

    /// Did the device say that it is gone?
    pub fn is_gone(&self) -> bool {
        self.gone.load(Acquire)
    }

    /// The first error, as the device said it.
    pub fn said(&self) -> Option<String> {
        self.said.lock().ok().and_then(|said| said.clone())
    }
}

/// Where a captured block belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Number of its first frame since the stream opened, lost ones counted.
    pub first: u64,
    /// Frames.
    pub frames: u32,
    /// When its first frame was captured, on the stream's clock.
    pub at: Nanos,
    /// The device lost an unknown number of frames before it.
    pub broken: bool,
}

/// The callback's end of a capture ring.
pub struct CaptureEnd {
    samples: Producer<f32>,
    blocks: Producer<Block>,
    channels: usize,
    next: u64,
    xruns: u64,
    lost: Arc<AtomicU64>,
    health: Arc<Health>,
}

/// The node's end of a capture ring.
pub struct CaptureRing {
    samples: Consumer<f32>,
    blocks: Consumer<Block>,
    channels: usize,
    lost: Arc<AtomicU64>,
    /// How the device does.
    pub health: Arc<Health>,
}

/// A ring for `frames` frames of `channels`.
pub fn capture(frames: usize, channels: u16) -> (CaptureEnd, CaptureRing) {
    let width = usize::from(channels.max(1));
    let (samples, samples_out) = RingBuffer::new(frames.max(1).saturating_mul(width));
    // Blocks of 32 frames are the smallest that any host is known to give.
    let (blocks, blocks_out) = RingBuffer::new((frames / 32).max(64));
    let (lost, health) = (Arc::new(AtomicU64::new(0)), Arc::new(Health::default()));
    let end =
        CaptureEnd { samples, blocks, channels: width, next: 0, xruns: 0, lost: lost.clone(), health: health.clone() };
    (end, CaptureRing { samples: samples_out, blocks: blocks_out, channels: width, lost, health })
}

impl CaptureEnd {
    /// How the device does.
    pub fn health(&self) -> Arc<Health> {
        self.health.clone()
    }

    /// Takes interleaved samples whose first frame was captured `at`. All of them or none.
    pub fn push<T: Copy>(&mut self, data: &[T], at: Nanos, sample: impl Fn(T) -> f32) {
        let frames = data.len() / self.channels;
        let data = &data[..frames * self.channels];
        let xruns = self.health.xruns.load(Relaxed);
        let broken = xruns != self.xruns;
        let count = u32::try_from(frames).unwrap_or(u32::MAX);
        let block = Block { first: self.next, frames: count, at, broken };
        self.next += frames as u64;
        self.health.blocks.fetch_add(1, Release);
        if self.blocks.slots() > 0
            && let Ok(chunk) = self.samples.write_chunk_uninit(data.len())
        {
            chunk.fill_from_iter(data.iter().map(|&x| sample(x)));
            // After its samples, so that a block that is seen is there.
            let _ = self.blocks.push(block);
            self.xruns = xruns;
        } else {
            self.lost.fetch_add(frames as u64, Relaxed);
        }
    }
}

impl CaptureRing {
    /// The next block; its samples are appended to `out`.
    pub fn next(&mut self, out: &mut Vec<f32>) -> Option<Block> {
        let block = self.blocks.pop().ok()?;
        let chunk = self.samples.read_chunk(block.frames as usize * self.channels).ok()?;
        let (head, tail) = chunk.as_slices();
        out.extend_from_slice(head);
        out.extend_from_slice(tail);
        chunk.commit_all();
        Some(block)
    }

    /// Frames that did not fit so far.
    pub fn lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }

    /// Frames waiting.
    pub fn waiting(&self) -> usize {
        self.samples.slots() / self.channels
    }
}

/// What the callback of a playback device is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Command {
    /// Silence, the samples stay.
    Hold = 0,
    /// Play.
    Run = 1,
    /// Fade out, then silence; what fades is played again at full level later.
    Pause = 2,
}

#[derive(Debug, Default)]
struct Control {
    command: AtomicU8,
    /// Frames before this one are not to be played.
    discard: AtomicU64,
    /// No more samples come: running dry is the end and no underrun.
    ended: AtomicBool,
    /// Frames taken out of the ring.
    read: AtomicU64,
    silent: AtomicBool,
    underruns: AtomicU64,
}

/// What was given to the device in one callback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Given {
    /// Number of the first frame since the stream opened, silence counted.
    pub first: u64,
    /// Frames.
    pub frames: u32,
    /// Number of the first frame of sound in it: they come first, silence after them.
    pub sound: u64,
    /// Frames of sound.
    pub sound_frames: u32,
    /// When its first frame is heard, on the stream's clock.
    pub at: Nanos,
}

/// The callback's end of a playback ring.
pub struct PlaybackEnd {
    samples: Consumer<f32>,
    given: Producer<Given>,
    channels: usize,
    control: Arc<Control>,
    health: Arc<Health>,
    next: u64,
    /// Frames of a fade.
    fade: u32,
    /// How loud, of `fade`.
    level: u32,
    /// Frames that faded out and are still in the ring.
    ahead: usize,
    /// Was it paused (so that it fades in)?
    paused: bool,
}

/// The node's end of a playback ring.
pub struct PlaybackRing {
    samples: Producer<f32>,
    given: Consumer<Given>,
    channels: usize,
    control: Arc<Control>,
    written: u64,
    capacity: usize,
    /// How the device does.
    pub health: Arc<Health>,
}

/// A ring for `frames` frames of `channels`, with fades of `fade` frames.
pub fn playback(frames: usize, channels: u16, fade: u32) -> (PlaybackEnd, PlaybackRing) {
    let width = usize::from(channels.max(1));
    let capacity = frames.max(1);
    let (samples, samples_out) = RingBuffer::new(capacity.saturating_mul(width));
    let (given, given_out) = RingBuffer::new(1024);
    let (control, health) = (Arc::new(Control::default()), Arc::new(Health::default()));
    let end = PlaybackEnd {
        samples: samples_out,
        given,
        channels: width,
        control: control.clone(),
        health: health.clone(),
        next: 0,
        fade: fade.max(1),
        level: fade.max(1),
        ahead: 0,
        paused: false,
    };
    (end, PlaybackRing { samples, given: given_out, channels: width, control, written: 0, capacity, health })
}

impl PlaybackEnd {
    /// How the device does.
    pub fn health(&self) -> Arc<Health> {
        self.health.clone()
    }

    /// Fills the device's buffer, whose first frame is heard `at`.
    pub fn fill<T: Copy>(&mut self, out: &mut [T], at: Nanos, silence: T, sample: impl Fn(f32) -> T) {
        self.discard();
        let want = out.len() / self.channels;
        let command = self.control.command.load(Acquire);
        let sound = self.control.read.load(Relaxed);
        let mut played = 0;
        let mut done = 0;
        if command == Command::Run as u8 {
            if self.ahead > 0 {
                // Called back before it was silent: what has faded was heard.
                played += self.take(self.ahead);
                self.ahead = 0;
            }
            done = self.play(out, want, &sample);
            played += done;
            if done < want && !self.control.ended.load(Acquire) {
                self.control.underruns.fetch_add(1, Relaxed);
                // The node decides when there is enough to go on with; a newer command wins.
                let _ = self.control.command.compare_exchange(command, Command::Hold as u8, Release, Relaxed);
            }
            self.control.silent.store(done < want, Release);
        } else {
            if command == Command::Pause as u8 && self.level > 0 {
                done = self.fade_out(out, want, &sample);
            }
            if command == Command::Hold as u8 || self.level == 0 || done < want {
                self.ahead = 0;
                self.paused |= command == Command::Pause as u8;
                self.control.silent.store(true, Release);
            }
        }
        out[done * self.channels..].fill(silence);
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let given = Given { first: self.next, frames: count(want), sound, sound_frames: count(played), at };
        self.next += want as u64;
        self.health.blocks.fetch_add(1, Release);
        // A node that does not look misses some of the reports, not the sound.
        let _ = self.given.push(given);
    }

    /// Drops what a cancel made stale.
    fn discard(&mut self) {
        let (to, read) = (self.control.discard.load(Acquire), self.control.read.load(Relaxed));
        if to > read {
            let stale = usize::try_from(to - read).unwrap_or(usize::MAX);
            self.take(stale);
            // What comes next has not been paused.
            (self.ahead, self.level, self.paused) = (0, self.fade, false);
        }
    }

    /// Takes frames out of the ring unheard.
    fn take(&mut self, frames: usize) -> usize {
        let frames = frames.min(self.samples.slots() / self.channels);
        if let Ok(chunk) = self.samples.read_chunk(frames * self.channels) {
            chunk.commit_all();
            self.control.read.fetch_add(frames as u64, Release);
        }
        frames
    }

    /// Plays what is there, at full level or fading in after a pause.
    fn play<T: Copy>(&mut self, out: &mut [T], want: usize, sample: &impl Fn(f32) -> T) -> usize {
        let frames = want.min(self.samples.slots() / self.channels);
        let Ok(chunk) = self.samples.read_chunk(frames * self.channels) else { return 0 };
        if !std::mem::take(&mut self.paused) && self.level == 0 {
            self.level = self.fade;
        }
        let (head, tail) = chunk.as_slices();
        let frames_in = head.iter().chain(tail).enumerate();
        for ((i, &x), y) in frames_in.zip(out.iter_mut()) {
            if self.level == self.fade {
                *y = sample(x);
            } else {
                *y = sample(x * (self.level as f32 / self.fade as f32));
                self.level += u32::from((i + 1) % self.channels == 0);
            }
        }
        chunk.commit_all();
        self.control.read.fetch_add(frames as u64, Release);
        frames
    }

    /// Fades out over frames that stay in the ring.
    fn fade_out<T: Copy>(&mut self, out: &mut [T], want: usize, sample: &impl Fn(f32) -> T) -> usize {
        let there = (self.samples.slots() / self.channels).saturating_sub(self.ahead);
        let frames = want.min(there).min(self.level as usize);
        let skip = self.ahead * self.channels;
        let Ok(chunk) = self.samples.read_chunk(skip + frames * self.channels) else { return 0 };
        let (head, tail) = chunk.as_slices();
        let fading = head.iter().chain(tail).skip(skip).enumerate();
        for ((i, &x), y) in fading.zip(out.iter_mut()) {
            if i % self.channels == 0 {
                self.level -= 1;
            }
            *y = sample(x * (self.level as f32 / self.fade as f32));
        }
        // Nothing is taken: they are played again when it goes on.
        chunk.commit(0);
        self.ahead += frames;
        if frames == there {
            self.level = 0;
        }
        frames
    }
}

impl PlaybackRing {
    /// Tells the callback what to do.
    pub fn command(&self, command: Command) {
        self.control.silent.store(false, Release);
        self.control.command.store(command as u8, Release);
    }

    /// Is it held (also after running dry)?
    pub fn is_held(&self) -> bool {
        self.control.command.load(Acquire) == Command::Hold as u8
    }

    /// Is nothing heard any more of what a pause cut off?
    pub fn is_silent(&self) -> bool {
        self.control.silent.load(Acquire)
    }

    /// Says whether more samples come.
    pub fn set_ended(&self, ended: bool) {
        self.control.ended.store(ended, Release);
    }

    /// Frames in the ring.
    pub fn waiting(&self) -> usize {
        usize::try_from(self.written.saturating_sub(self.read())).unwrap_or(0)
    }

    /// Frames that fit.
    pub fn room(&self) -> usize {
        self.capacity - self.waiting().min(self.capacity)
    }

    /// Writes whole frames of interleaved samples; returns how many frames fitted.
    pub fn write(&mut self, samples: &[f32]) -> usize {
        let frames = (samples.len() / self.channels).min(self.samples.slots() / self.channels);
        if let Ok(chunk) = self.samples.write_chunk_uninit(frames * self.channels) {
            chunk.fill_from_iter(samples.iter().copied());
            self.written += frames as u64;
        }
        frames
    }

    /// Frames written so far.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Frames the callback has taken.
    pub fn read(&self) -> u64 {
        self.control.read.load(Acquire)
    }

    /// Everything written so far is not to be played any more.
    pub fn discard(&self) {
        self.control.discard.store(self.written, Release);
    }

    /// How often the ring ran dry.
    pub fn underruns(&self) -> u64 {
        self.control.underruns.load(Relaxed)
    }

    /// The next report of the callback.
    pub fn given(&mut self) -> Option<Given> {
        self.given.pop().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_counted_and_its_place_is_known() {
        let (mut end, mut ring) = capture(100, 2);
        let data: Vec<f32> = (0..120).map(|i| i as f32).collect();
        end.push(&data, 0, |x| x);
        end.push(&data, 60, |x| x);
        assert_eq!((ring.lost(), ring.waiting()), (60, 60));
        let mut out = Vec::new();
        assert_eq!(ring.next(&mut out), Some(Block { first: 0, frames: 60, at: 0, broken: false }));
        assert_eq!(out, data);
        end.health().fault(Fault::Xrun, String::new);
        end.push(&data[..10], 120, |x| x);
        out.clear();
        // Frames 60 to 119 are missing, and the device lost some itself.
        assert_eq!(ring.next(&mut out), Some(Block { first: 120, frames: 5, at: 120, broken: true }));
        assert_eq!(ring.next(&mut out), None);
    }

    fn fill(end: &mut PlaybackEnd, frames: usize) -> Vec<f32> {
        let mut out = vec![9.0; frames];
        end.fill(&mut out, 0, 0.0, |x| x);
        out
    }

    #[test]
    fn a_pause_fades_out_and_goes_on_at_the_exact_sample() {
        let (mut end, mut ring) = playback(100, 1, 4);
        assert_eq!(ring.write(&[1.0; 50]), 50);
        assert_eq!(fill(&mut end, 5), [0.0; 5], "held until the gate opens");
        ring.command(Command::Run);
        assert_eq!(fill(&mut end, 5), [1.0; 5]);
        ring.command(Command::Pause);
        // The fade spans two callbacks and takes nothing out of the ring.
        assert_eq!(fill(&mut end, 3), [0.75, 0.5, 0.25]);
        assert!(!ring.is_silent());
        assert_eq!(fill(&mut end, 3), [0.0; 3]);
        assert!(ring.is_silent());
        assert_eq!(ring.read(), 5);
        ring.command(Command::Run);
        assert_eq!(fill(&mut end, 6), [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]);
        assert_eq!(ring.read(), 11);
        let sounds: Vec<(u64, u32)> = std::iter::from_fn(|| ring.given()).map(|g| (g.sound, g.sound_frames)).collect();
        assert_eq!(sounds, [(0, 0), (0, 5), (5, 0), (5, 0), (5, 6)]);
    }

    #[test]
    fn running_dry_holds_unless_it_is_the_end() {
        let (mut end, mut ring) = playback(100, 1, 4);
        ring.write(&[1.0; 3]);
        ring.command(Command::Run);
        assert_eq!(fill(&mut end, 5), [1.0, 1.0, 1.0, 0.0, 0.0]);
        assert!(ring.is_held());
        assert_eq!(ring.underruns(), 1);
        ring.write(&[1.0; 3]);
        ring.set_ended(true);
        ring.command(Command::Run);
        assert_eq!(fill(&mut end, 5), [1.0, 1.0, 1.0, 0.0, 0.0]);
        assert_eq!((ring.underruns(), ring.is_held()), (1, false));
    }

    #[test]
    fn a_cancel_leaves_nothing_to_hear() {
        let (mut end, mut ring) = playback(100, 2, 2);
        ring.write(&[1.0; 40]);
        ring.command(Command::Run);
        fill(&mut end, 8);
        ring.command(Command::Pause);
        fill(&mut end, 8);
        assert!(ring.is_silent());
        ring.discard();
        ring.write(&[0.5; 8]);
        ring.command(Command::Run);
        let out = fill(&mut end, 8);
        assert!(out.iter().all(|&x| x <= 0.5), "{out:?}");
        assert_eq!(ring.waiting(), 0);
    }

    #[test]
    fn a_flood_of_errors_keeps_one_text() {
        let health = Health::default();
        for i in 0..10_000 {
            health.fault(Fault::Error, || format!("error {i}"));
        }
        assert_eq!(health.errors.load(Relaxed), 10_000);
        assert_eq!(health.said().as_deref(), Some("error 0"));
        assert!(!health.is_gone());
        health.fault(Fault::Gone, || "gone".into());
        assert!(health.is_gone());
    }
}
