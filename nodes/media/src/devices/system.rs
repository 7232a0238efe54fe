//! The devices of this system, through cpal.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cpal::traits::{DeviceTrait, HostTrait, StreamTrait};
use cpal::{BufferSize, ErrorKind, FromSample, Sample, SampleFormat, SizedSample, StreamConfig, SupportedStreamConfig};
use oxiline_graph::{Error, Nanos, Result};

use super::host::{Ask, Form, Host, Opened, Stream};
use super::ring::{CaptureEnd, Fault, Health, PlaybackEnd};

/// Opens devices of the default host: ALSA on Linux, `CoreAudio` on macOS, WASAPI on Windows.
pub struct System {
    host: cpal::Host,
    /// The zero of all stamps.
    origin: Instant,
}

#[derive(Clone, Copy, PartialEq)]
enum Way {
    In,
    Out,
}

impl Way {
    fn word(self) -> &'static str {
        match self {
            Self::In => "microphone",
            Self::Out => "loudspeaker",
        }
    }
}

impl Host for System {
    fn new() -> Self {
        Self { host: cpal::default_host(), origin: Instant::now() }
    }

    fn capture(&mut self, ask: &Ask, ring: &mut dyn FnMut(Form) -> CaptureEnd) -> Result<Opened> {
        let (device, id) = self.find(ask, Way::In)?;
        let found = choose(&device, ask, Way::In)?;
        let open = |config, format, end: CaptureEnd| match format {
            SampleFormat::F32 => input::<f32>(&device, config, end, self.origin),
            SampleFormat::I16 => input::<i16>(&device, config, end, self.origin),
            SampleFormat::I32 => input::<i32>(&device, config, end, self.origin),
            SampleFormat::I8 => input::<i8>(&device, config, end, self.origin),
            SampleFormat::U8 => input::<u8>(&device, config, end, self.origin),
            SampleFormat::U16 => input::<u16>(&device, config, end, self.origin),
            SampleFormat::I24 => input::<cpal::I24>(&device, config, end, self.origin),
            SampleFormat::U32 => input::<u32>(&device, config, end, self.origin),
            SampleFormat::F64 => input::<f64>(&device, config, end, self.origin),
            _ => Err(ErrorKind::UnsupportedConfig.into()),
        };
        self.open(&found, ask, id, Way::In, |config, format, form| open(config, format, ring(form)))
    }

    fn playback(&mut self, ask: &Ask, ring: &mut dyn FnMut(Form) -> PlaybackEnd) -> Result<Opened> {
        let (device, id) = self.find(ask, Way::Out)?;
        let found = choose(&device, ask, Way::Out)?;
        let open = |config, format, end: PlaybackEnd| match format {
            SampleFormat::F32 => output::<f32>(&device, config, end, self.origin),
            SampleFormat::I16 => output::<i16>(&device, config, end, self.origin),
            SampleFormat::I32 => output::<i32>(&device, config, end, self.origin),
            SampleFormat::I8 => output::<i8>(&device, config, end, self.origin),
            SampleFormat::U8 => output::<u8>(&device, config, end, self.origin),
            SampleFormat::U16 => output::<u16>(&device, config, end, self.origin),
            SampleFormat::I24 => output::<cpal::I24>(&device, config, end, self.origin),
            SampleFormat::U32 => output::<u32>(&device, config, end, self.origin),
            SampleFormat::F64 => output::<f64>(&device, config, end, self.origin),
            _ => Err(ErrorKind::UnsupportedConfig.into()),
        };
        self.open(&found, ask, id, Way::Out, |config, format, form| open(config, format, ring(form)))
    }
}

impl System {
    fn find(&self, ask: &Ask, way: Way) -> Result<(cpal::Device, String)> {
        let word = way.word();
        let missing = || {
            Error::msg(format_args!(
                "there is no {word} `{}`; `oxiline devices` lists what is there, `default` is the system's choice",
                ask.device
            ))
        };
        if ask.device == "default" {
            let device = match way {
                Way::In => self.host.default_input_device(),
                Way::Out => self.host.default_output_device(),
            };
            let device = device.ok_or_else(|| Error::msg(format_args!("this system has no {word}")))?;
            return Ok((device, "default".into()));
        }
        // The host's name may be left out: there is one.
        let whole = format!("{}:{}", self.host.id(), ask.device);
        let ids = [ask.device.parse::<cpal::DeviceId>(), whole.parse()];
        let device = ids.iter().flatten().find_map(|id| self.host.device_by_id(id)).ok_or_else(missing)?;
        let id = device.id().map_or_else(|_| ask.device.clone(), |id| id.to_string());
        Ok((device, id))
    }

    /// Opens with the wished size of a callback, or else with the device's own.
    fn open(
        &self,
        found: &SupportedStreamConfig,
        ask: &Ask,
        id: String,
        way: Way,
        mut open: impl FnMut(StreamConfig, SampleFormat, Form) -> Result<cpal::Stream, cpal::Error>,
    ) -> Result<Opened> {
        let form = Form { rate: found.sample_rate(), channels: found.channels() };
        let mut config = found.config();
        config.buffer_size = BufferSize::Fixed(ask.period);
        let mut opened = open(config, found.sample_format(), form);
        if opened.as_ref().is_err_and(|e| e.kind() == ErrorKind::UnsupportedConfig) {
            opened = open(StreamConfig { buffer_size: BufferSize::Default, ..config }, found.sample_format(), form);
        }
        let stream = opened.and_then(|stream| stream.play().map(|()| stream)).map_err(|e| cannot(&id, way, &e))?;
        let period = stream.buffer_size().ok();
        Ok(Opened { id, form, period, stream: Box::new(Running { stream: Some(stream), origin: self.origin }) })
    }
}

/// One sentence with what to do.
fn cannot(id: &str, way: Way, e: &cpal::Error) -> Error {
    let advice = match e.kind() {
        ErrorKind::DeviceBusy => "another program uses it; close that, or choose another with `device`",
        ErrorKind::PermissionDenied => "this user may not use it; on Linux join the group `audio`",
        ErrorKind::UnsupportedConfig => "choose another `rate` or `channels`, or leave them out",
        _ => "is it plugged in, and does the sound server run?",
    };
    Error::msg(format_args!("the {} `{id}` cannot be opened: {e}; {advice}", way.word()))
}

/// The asked form if the device has it, in floats if it can; else its own.
fn choose(device: &cpal::Device, ask: &Ask, way: Way) -> Result<SupportedStreamConfig> {
    let id = &ask.device;
    let own = match way {
        Way::In => device.default_input_config(),
        Way::Out => device.default_output_config(),
    };
    let own = own.map_err(|e| cannot(id, way, &e))?;
    let (rate, channels) = (ask.rate.unwrap_or(own.sample_rate()), ask.channels.unwrap_or(own.channels()));
    let ranges: Vec<_> = match way {
        Way::In => device.supported_input_configs().map(Iterator::collect),
        Way::Out => device.supported_output_configs().map(Iterator::collect),
    }
    .unwrap_or_default();
    // Integers of 32 bits lose nothing either; 16 bits may.
    let rank = |f: SampleFormat| match f {
        SampleFormat::F32 => 0,
        SampleFormat::I32 | SampleFormat::F64 => 1,
        SampleFormat::I24 => 2,
        SampleFormat::I16 => 3,
        SampleFormat::I8 | SampleFormat::U8 | SampleFormat::U16 | SampleFormat::U32 => 4,
        _ => 9,
    };
    let best = |rate, channels| {
        let fits = ranges.iter().filter(|r| r.channels() == channels && r.contains_rate(rate));
        let best = fits.min_by_key(|r| rank(r.sample_format())).filter(|r| rank(r.sample_format()) < 9)?;
        best.try_with_sample_rate(rate)
    };
    let found = best(rate, channels)
        .or_else(|| best(rate, own.channels()))
        .or_else(|| best(own.sample_rate(), own.channels()))
        .unwrap_or(own);
    Ok(found)
}

fn since(origin: Instant) -> Nanos {
    Nanos::try_from(origin.elapsed().as_nanos()).unwrap_or(Nanos::MAX)
}

fn nanos(d: Option<Duration>) -> Nanos {
    d.and_then(|d| Nanos::try_from(d.as_nanos()).ok()).unwrap_or(0)
}

/// Counts what the device reports.
fn listen(health: Arc<Health>) -> impl FnMut(cpal::Error) + Send + 'static {
    move |e| {
        let fault = match e.kind() {
            ErrorKind::Xrun => Fault::Xrun,
            ErrorKind::DeviceNotAvailable | ErrorKind::StreamInvalidated | ErrorKind::HostUnavailable => Fault::Gone,
            ErrorKind::RealtimeDenied | ErrorKind::DeviceChanged => Fault::Notice,
            _ => Fault::Error,
        };
        health.fault(fault, || e.to_string());
        if fault == Fault::Error {
            // ALSA's thread repeats a lasting error without a pause: leave the processor to others.
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn input<T: SizedSample>(
    device: &cpal::Device,
    config: StreamConfig,
    mut end: CaptureEnd,
    origin: Instant,
) -> Result<cpal::Stream, cpal::Error>
where
    f32: FromSample<T>,
{
    let health = end.health();
    let take = move |data: &[T], info: &cpal::InputCallbackInfo| {
        let stamp = info.timestamp();
        // Now, less what the sound waited in the device.
        let waited = nanos(stamp.callback.checked_duration_since(stamp.capture));
        end.push(data, since(origin) - waited, f32::from_sample);
    };
    device.build_input_stream(config, take, listen(health), None)
}

fn output<T: SizedSample + FromSample<f32>>(
    device: &cpal::Device,
    config: StreamConfig,
    mut end: PlaybackEnd,
    origin: Instant,
) -> Result<cpal::Stream, cpal::Error> {
    let health = end.health();
    let fill = move |data: &mut [T], info: &cpal::OutputCallbackInfo| {
        let stamp = info.timestamp();
        let waits = nanos(stamp.playback.checked_duration_since(stamp.callback));
        end.fill(data, since(origin) + waits, T::EQUILIBRIUM, T::from_sample);
    };
    device.build_output_stream(config, fill, listen(health), None)
}

/// How long closing a device may take before it is left to itself.
const CLOSE: Duration = Duration::from_millis(500);

struct Running {
    stream: Option<cpal::Stream>,
    origin: Instant,
}

impl Stream for Running {
    fn now(&self) -> Nanos {
        since(self.origin)
    }
    fn moment(&mut self) {
        std::thread::sleep(Duration::from_millis(2));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A driver may hang for good when its server has crashed (libpulse waits for a lock in memory it shared
        // with it): the device is closed elsewhere, and nobody waits long for that.
        let Some(stream) = self.stream.take() else { return };
        let (done, closed) = std::sync::mpsc::sync_channel(1);
        let close = move || {
            drop(stream);
            let _ = done.send(());
        };
        if std::thread::Builder::new().name("close sound device".into()).spawn(close).is_ok() {
            let _ = closed.recv_timeout(CLOSE);
        }
    }
}
