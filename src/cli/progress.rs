//! The progress bar: how far, how fast, how long still.

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use oxiline::graph::run::{Observer, Progress};

/// A bar on standard error, or nothing when nobody would see it.
#[derive(Clone)]
pub struct Bar(Option<ProgressBar>);

impl Bar {
    /// `wanted`: nobody asked for quiet, and captions do not scroll by on the same terminal.
    pub fn new(wanted: bool) -> Self {
        if !wanted || !std::io::stderr().is_terminal() {
            return Self(None);
        }
        let bar = ProgressBar::with_draw_target(Some(1000), ProgressDrawTarget::stderr());
        bar.set_style(
            ProgressStyle::with_template("{msg} {wide_bar} {percent}% ").unwrap_or(ProgressStyle::default_bar()),
        );
        Self(Some(bar))
    }

    /// What a runtime tells, drawn. `show` picks the node whose progress is the job's.
    pub fn observer(&self, show: impl Fn(&str) -> bool + Send + Sync + 'static) -> Observer {
        let bar = self.0.clone();
        let began = Instant::now();
        Arc::new(move |progress| {
            let Some(bar) = &bar else { return };
            match progress {
                Progress::Load { model, done, total } if total > 0 => {
                    bar.set_message(format!("loading {model}"));
                    bar.set_position(done.saturating_mul(1000) / total);
                }
                Progress::Node { node, done, total } if show(node) => {
                    let Some(total) = total.filter(|t| *t > 0.0) else { return };
                    let elapsed = began.elapsed().as_secs_f64().max(1e-3);
                    let speed = done / elapsed;
                    let left = if speed > 0.0 { clock((total - done).max(0.0) / speed) } else { "?".into() };
                    bar.set_message(format!("{} of {}  {speed:.1}x  {left} left", clock(done), clock(total)));
                    bar.set_position((done / total * 1000.0) as u64);
                }
                _ => {}
            }
        })
    }

    /// Bytes of a download.
    pub fn download(&self, file: &str, done: u64, total: Option<u64>) {
        let Some(bar) = &self.0 else { return };
        let mb = |bytes: u64| bytes as f64 / 1e6;
        match total {
            Some(total) if total > 0 => {
                bar.set_message(format!("{file}: {:.0} of {:.0} MB", mb(done), mb(total)));
                bar.set_position(done.saturating_mul(1000) / total);
            }
            _ => bar.set_message(format!("{file}: {:.0} MB", mb(done))),
        }
    }

    /// Takes the bar off the screen.
    pub fn finish(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

/// `1:02:03` or `2:03`.
fn clock(seconds: f64) -> String {
    let s = seconds as u64;
    if s >= 3600 {
        format!("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
    } else {
        format!("{}:{:02}", s / 60, s % 60)
    }
}
