//! Media in and out: files to packets, packets to sound, sound to 16 kHz mono, transcripts to
//! caption files, text in and out, and the graph nodes around them.
//!
//! Everything works without a graph: [`Reader`], [`Decoder`], [`resample::Resampler`],
//! [`load_mono_16k`] and the writers of [`caption`] are plain synchronous code.

mod aac;
pub mod caption;
mod decoder;
pub mod devices;
mod load;
mod mp4_edits;
mod mpeg;
mod nodes;
mod place;
mod promise;
mod reader;
pub mod resample;
mod sniff;
mod source;
pub mod text;
mod track;
mod wav;

pub use decoder::{Damage, Decoder};
pub use load::{Loaded, load_audio, load_mono_16k, load_uri_mono_16k};
pub use nodes::{
    AudioDecode, AudioDecodeOptions, AudioResample, AudioResampleOptions, CaptionWrite, CaptionWriteOptions, MediaRead,
    MediaReadOptions, register,
};
pub use reader::{Demuxed, Reader};
pub use sniff::SUPPORTED;
pub use source::{STDIN_LIMIT, Source};
pub use wav::{AudioWrite, AudioWriteOptions, WavFormat};
