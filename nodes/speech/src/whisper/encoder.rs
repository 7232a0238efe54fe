//! The encoder: convolution stem and bidirectional layers.

/// An encoder pass that can be done a layer at a time. See [`crate::whisper::Whisper::begin_encode`].
pub struct Encoding {
    /// `[windows, positions, width]`.
    pub(crate) hidden: Vec<f32>,
    /// Layers done.
    pub(crate) layer: usize,
}
