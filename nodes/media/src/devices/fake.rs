//! Simulated devices: they run on the graph's time, drift, jitter, go away and come back.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use oxiline_graph::{Error, Nanos, Result};

use super::host::{Ask, Form, Host, Opened, Stream};
use super::ring::{CaptureEnd, Fault, PlaybackEnd};

/// What a device is like.
#[derive(Debug, Clone)]
pub struct Nature {
    pub form: Form,
    /// How much faster than it says it runs.
    pub ppm: f64,
    /// Frames a callback.
    pub period: u32,
    /// Callbacks come up to so much late.
    pub jitter: Nanos,
    /// It is gone from the first time to the second, and back in this form.
    pub away: Option<(Nanos, Nanos, Form)>,
    /// It does not say that it is gone.
    pub mute: bool,
}

impl Nature {
    pub fn new(rate: u32, channels: u16) -> Self {
        let form = Form { rate, channels };
        Self { form, ppm: 0.0, period: rate / 100, jitter: 0, away: None, mute: false }
    }
}

/// A device that a test knows.
#[derive(Default)]
pub struct Fake {
    /// What it played, with the time of each buffer.
    pub played: Mutex<Vec<(Nanos, Vec<f32>)>>,
    pub opened: Mutex<u32>,
}

impl Fake {
    /// All it played.
    pub fn sound(&self) -> Vec<f32> {
        let played = self.played.lock().unwrap_or_else(PoisonError::into_inner);
        played.iter().flat_map(|(_, samples)| samples.iter().copied()).collect()
    }
}

type Devices = HashMap<String, (Nature, Arc<Fake>)>;

static DEVICES: Mutex<Option<Devices>> = Mutex::new(None);

/// Puts a device there.
pub fn plug(name: &str, nature: Nature) -> Arc<Fake> {
    let fake = Arc::new(Fake::default());
    let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    devices.get_or_insert_default().insert(name.into(), (nature, fake.clone()));
    fake
}

/// Opens simulated devices by their names.
pub struct FakeHost;

impl FakeHost {
    fn find(&self, ask: &Ask) -> Result<(Nature, Arc<Fake>, Nanos)> {
        let now = ask.now;
        let devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut nature, fake) = devices
            .as_ref()
            .and_then(|d| d.get(&ask.device))
            .cloned()
            .ok_or_else(|| Error::msg(format_args!("there is no device `{}`", ask.device)))?;
        if let Some((from, to, form)) = nature.away {
            if (from..to).contains(&now) {
                return Err(Error::msg("it is away"));
            }
            if now >= to {
                (nature.form, nature.away, nature.period) = (form, None, form.rate / 100);
            }
        }
        *fake.opened.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        Ok((nature, fake, now))
    }

    fn opened(&self, ask: &Ask, nature: Nature, end: End, at: Nanos) -> Opened {
        let (form, period) = (nature.form, Some(nature.period));
        let stream = Running { nature, end, opened: at, own: at, done: 0, seed: 1 };
        Opened { id: ask.device.clone(), form, period, stream: Box::new(stream) }
    }
}

impl Host for FakeHost {
    fn new() -> Self {
        Self
    }
    fn capture(&mut self, ask: &Ask, ring: &mut dyn FnMut(Form) -> CaptureEnd) -> Result<Opened> {
        let (nature, _, at) = self.find(ask)?;
        let end = End::Capture(ring(nature.form));
        Ok(self.opened(ask, nature, end, at))
    }
    fn playback(&mut self, ask: &Ask, ring: &mut dyn FnMut(Form) -> PlaybackEnd) -> Result<Opened> {
        let (nature, fake, at) = self.find(ask)?;
        let end = End::Playback(ring(nature.form), fake);
        Ok(self.opened(ask, nature, end, at))
    }
}

enum End {
    Capture(CaptureEnd),
    Playback(PlaybackEnd, Arc<Fake>),
}

struct Running {
    nature: Nature,
    end: End,
    opened: Nanos,
    /// Its own now: the graph's, or later in moments after the graph's end.
    own: Nanos,
    done: u64,
    seed: u64,
}

/// A microphone hears its frame number.
pub fn signal(frame: u64) -> f32 {
    ((frame % 32_768) as f32) / 32_768.0
}

impl Running {
    /// Graph time of a frame.
    fn time(&self, frame: u64) -> Nanos {
        self.opened
            + (frame as f64 * 1e9 / (f64::from(self.nature.form.rate) * (1.0 + self.nature.ppm * 1e-6))) as Nanos
    }

    fn work(&mut self) {
        let (period, width) = (u64::from(self.nature.period), usize::from(self.nature.form.channels));
        loop {
            let end = self.time(self.done + period);
            if end > self.own {
                return;
            }
            if let Some((from, _, _)) = self.nature.away
                && end > from
            {
                let health = match &self.end {
                    End::Capture(ring) => ring.health(),
                    End::Playback(ring, _) => ring.health(),
                };
                if !self.nature.mute {
                    health.fault(Fault::Gone, || "unplugged".into());
                }
                return;
            }
            self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let late = if self.nature.jitter > 0 { (self.seed >> 33) as Nanos % self.nature.jitter } else { 0 };
            let at = self.time(self.done) + late;
            match &mut self.end {
                End::Capture(ring) => {
                    let samples: Vec<f32> =
                        (0..period).flat_map(|i| std::iter::repeat_n(signal(self.done + i), width)).collect();
                    ring.push(&samples, at, |x| x);
                }
                End::Playback(ring, fake) => {
                    let mut samples = vec![0f32; period as usize * width];
                    // It is heard a period after it was asked for.
                    let heard = at + self.nature.period as Nanos * 1_000_000_000 / Nanos::from(self.nature.form.rate);
                    ring.fill(&mut samples, heard, 0.0, |x| x);
                    fake.played.lock().unwrap_or_else(PoisonError::into_inner).push((heard, samples));
                }
            }
            self.done += period;
        }
    }
}

impl Stream for Running {
    fn now(&self) -> Nanos {
        self.own
    }
    fn pump(&mut self, now: Nanos) {
        self.own = self.own.max(now);
        self.work();
    }
    fn moment(&mut self) {
        self.own += 2_000_000;
        self.work();
    }
}
