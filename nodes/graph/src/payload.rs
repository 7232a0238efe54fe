//! Port types and the payloads that travel on them.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::protocol::speech::Word;
use crate::time::Nanos;

/// A parameter of a port type: what an end offers or accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Param<T> {
    /// Anything.
    Any,
    /// Exactly this.
    Is(T),
    /// One of these.
    OneOf(Vec<T>),
    /// Between these, both included.
    Range(T, T),
}

/// The type of a port, with the parameters that are negotiated.
#[derive(Debug, Clone, PartialEq)]
pub enum PortType {
    /// Sound: interleaved f32 samples.
    Audio {
        /// Samples per second and channel.
        rate: Param<u32>,
        /// Channels.
        channels: Param<u16>,
    },
    /// Coded media of one stream.
    Packet,
    /// Video frames.
    Video,
    /// Single pictures.
    Image,
    /// Numbers with a shape.
    Tensor,
    /// Embedding vectors.
    Embed,
    /// Token ids.
    Tokens,
    /// Codec codebook frames.
    Codes,
    /// Text: concatenated deltas or whole segments.
    Text,
    /// Revisions of what was said.
    Transcript,
    /// Small structured events.
    Event,
    /// For tee, gate, tap and record only.
    Any,
}

impl PortType {
    /// Audio of any rate and channel count.
    pub const AUDIO: Self = Self::Audio { rate: Param::Any, channels: Param::Any };

    /// Audio of exactly this form.
    pub fn audio(rate: u32, channels: u16) -> Self {
        Self::Audio { rate: Param::Is(rate), channels: Param::Is(channels) }
    }

    /// The base name, as graph files and messages say it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Audio { .. } => "audio",
            Self::Packet => "packet",
            Self::Video => "video",
            Self::Image => "image",
            Self::Tensor => "tensor",
            Self::Embed => "embed",
            Self::Tokens => "tokens",
            Self::Codes => "codes",
            Self::Text => "text",
            Self::Transcript => "transcript",
            Self::Event => "event",
            Self::Any => "any",
        }
    }
}

/// Interleaved f32 sound, nominal range ±1.
#[derive(Clone, PartialEq)]
pub struct Audio {
    /// Samples per second and channel.
    pub rate: u32,
    /// Channels.
    pub channels: u16,
    /// Interleaved samples, `frames * channels`.
    pub samples: Arc<[f32]>,
}

impl Audio {
    /// Samples per channel.
    pub fn frames(&self) -> usize {
        self.samples.len() / usize::from(self.channels.max(1))
    }
}

impl fmt::Debug for Audio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Audio({} Hz, {} ch, {} frames)", self.rate, self.channels, self.frames())
    }
}

/// What a demuxer knows of one coded stream.
pub struct StreamInfo {
    /// Codec name: `"flac"`, `"aac"`, `"opus"`, ...
    pub codec: String,
    /// Declared sample rate (0: unknown).
    pub rate: u32,
    /// Declared channels (0: unknown; may lie, the decoder decides).
    pub channels: u16,
    /// Whole length in samples per channel at `rate`, when known.
    pub total_frames: Option<u64>,
    /// The native description of the library that demuxed it, for its decoder.
    pub native: Arc<dyn Any + Send + Sync>,
}

impl fmt::Debug for StreamInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StreamInfo({}, {} Hz, {} ch)", self.codec, self.rate, self.channels)
    }
}

/// One coded packet.
#[derive(Debug, Clone)]
pub struct Packet {
    /// Its stream.
    pub stream: Arc<StreamInfo>,
    /// The coded bytes.
    pub data: Arc<[u8]>,
    /// The demuxer's own stamp in the stream's time base, if it has one.
    pub ts: Option<i64>,
    /// Samples per channel to cut from the start and the end of what it decodes to.
    pub trim: (u32, u32),
}

/// One revision of a segment of speech. See graph.md 2.2 for the contract.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Update {
    /// The segment: opens once, finals once.
    pub segment: u64,
    /// Revision number within the segment.
    pub rev: u32,
    /// Start on the graph timeline.
    pub t0: Nanos,
    /// End on the graph timeline.
    pub t1: Nanos,
    /// Append-only text.
    pub stable: String,
    /// Text that may still change.
    pub unstable: String,
    /// Words with times, when asked for.
    pub words: Vec<Word>,
    /// Language code, when known.
    pub lang: Option<String>,
    /// Speaker label, when known.
    pub speaker: Option<String>,
    /// Nothing about the segment changes after this.
    pub is_final: bool,
    /// Newest captured sample minus newest consumed sample.
    pub lag: Nanos,
    /// Mean log-probability of the tokens, when known.
    pub avg_logprob: Option<f32>,
    /// Probability that the window holds no speech, when known.
    pub no_speech_prob: Option<f32>,
    /// Token ids behind the text.
    pub tokens: Vec<u32>,
    /// Temperature it was decoded at, when known.
    pub temperature: Option<f32>,
    /// Compression ratio of its window's text, when known.
    pub compression_ratio: Option<f32>,
}

/// A revision, shared.
#[derive(Debug, Clone, PartialEq)]
pub struct Transcript(pub Arc<Update>);

/// A piece of text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    /// The text.
    pub text: Arc<str>,
    /// It continues the previous piece (else it is a whole segment).
    pub delta: bool,
}

/// A small structured event.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// What kind: `"vad"`, `"turn"`, `"playback"`, `"device"`, `"stats"`.
    pub kind: Arc<str>,
    /// The facts.
    pub data: Arc<serde_json::Value>,
}

/// Numbers with a shape.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// Dimensions, outermost first.
    pub shape: Arc<[usize]>,
    /// Values, row-major.
    pub data: Arc<[f32]>,
}

/// Token ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tokens(pub Arc<[u32]>);

/// Codebook frames: `frames x codebooks`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Codes {
    /// Codebooks per frame.
    pub codebooks: u16,
    /// Codes, frame after frame.
    pub codes: Arc<[u32]>,
}

/// A picture: 8-bit interleaved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Pixels across.
    pub width: u32,
    /// Pixels down.
    pub height: u32,
    /// Bytes per pixel: 1 grey, 3 RGB, 4 RGBA.
    pub channels: u8,
    /// Rows from the top.
    pub data: Arc<[u8]>,
}

/// A video frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Video(pub Image);

/// An embedding.
#[derive(Debug, Clone, PartialEq)]
pub struct Embed {
    /// `"text"`, `"vision"`, `"audio"`.
    pub modality: Arc<str>,
    /// The vectors, row-major.
    pub tensor: Tensor,
}

/// What a data item carries. Cloning clones a handle, never samples.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub enum Payload {
    Audio(Audio),
    Packet(Packet),
    Video(Video),
    Image(Image),
    Tensor(Tensor),
    Embed(Embed),
    Tokens(Tokens),
    Codes(Codes),
    Text(Text),
    Transcript(Transcript),
    Event(Event),
}

impl Payload {
    /// Bytes it keeps alive, for capacities and statistics (handles and headers not counted).
    pub fn bytes(&self) -> u64 {
        let n = match self {
            Self::Audio(a) => a.samples.len() * 4,
            Self::Packet(p) => p.data.len(),
            Self::Video(Video(i)) | Self::Image(i) => i.data.len(),
            Self::Tensor(t) => t.data.len() * 4,
            Self::Embed(e) => e.tensor.data.len() * 4,
            Self::Tokens(t) => t.0.len() * 4,
            Self::Codes(c) => c.codes.len() * 4,
            Self::Text(t) => t.text.len(),
            Self::Transcript(t) => {
                let words: usize = t.0.words.iter().map(|w| w.text.len() + 24).sum();
                t.0.stable.len() + t.0.unstable.len() + t.0.tokens.len() * 4 + words
            }
            Self::Event(_) => 64,
        };
        n as u64
    }

    /// The port type it travels on, without parameters.
    pub fn base(&self) -> PortType {
        match self {
            Self::Audio(_) => PortType::AUDIO,
            Self::Packet(_) => PortType::Packet,
            Self::Video(_) => PortType::Video,
            Self::Image(_) => PortType::Image,
            Self::Tensor(_) => PortType::Tensor,
            Self::Embed(_) => PortType::Embed,
            Self::Tokens(_) => PortType::Tokens,
            Self::Codes(_) => PortType::Codes,
            Self::Text(_) => PortType::Text,
            Self::Transcript(_) => PortType::Transcript,
            Self::Event(_) => PortType::Event,
        }
    }
}

/// A Rust type that travels on ports of one type.
pub trait PayloadType: Sized + Clone + Send + 'static {
    /// The base port type.
    const TYPE: PortType;
    /// Takes it out of a payload of that type.
    fn from_payload(payload: Payload) -> Option<Self>;
    /// Puts it into a payload.
    fn into_payload(self) -> Payload;
}

macro_rules! payload_types {
    ($($name:ident => $ty:expr),* $(,)?) => { $(
        impl PayloadType for $name {
            const TYPE: PortType = $ty;
            fn from_payload(payload: Payload) -> Option<Self> {
                match payload { Payload::$name(value) => Some(value), _ => None }
            }
            fn into_payload(self) -> Payload { Payload::$name(self) }
        }
    )* };
}

payload_types! {
    Audio => PortType::AUDIO, Packet => PortType::Packet, Video => PortType::Video,
    Image => PortType::Image, Tensor => PortType::Tensor, Embed => PortType::Embed,
    Tokens => PortType::Tokens, Codes => PortType::Codes, Text => PortType::Text,
    Transcript => PortType::Transcript, Event => PortType::Event,
}

impl PayloadType for Payload {
    const TYPE: PortType = PortType::Any;
    fn from_payload(payload: Payload) -> Option<Self> {
        Some(payload)
    }
    fn into_payload(self) -> Payload {
        self
    }
}
