//! What travels on an edge: data, gaps and marks in one total order.

use std::sync::Arc;

use crate::payload::{Payload, PortType};
use crate::time::Nanos;

/// The stamp of a data item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Header {
    /// Position in its edge's order, given by the sending port.
    pub seq: u64,
    /// Media time on the graph timeline, non-decreasing per edge within an epoch.
    pub pts: Nanos,
    /// How much media time the item covers.
    pub dur: Nanos,
    /// The cancel epoch of the scope it was born in.
    pub epoch: u32,
    /// The segment it belongs to (0: none).
    pub segment: u64,
    /// Clock time of capture or creation; never changes on the way.
    pub born: Nanos,
    /// [`Header::SPEECH`], [`Header::STICKY`].
    pub flags: u32,
}

impl Header {
    /// A voice-activity node found speech in this item.
    pub const SPEECH: u32 = 1;
    /// A voice-activity node looked at this item (so a missing [`Header::SPEECH`] means silence).
    pub const VAD_SEEN: u32 = 2;
    /// Survives a cancel of its scope (tool results, finals).
    pub const STICKY: u32 = 4;

    /// A header for media time `pts` lasting `dur`; the port fills in the rest.
    pub fn at(pts: Nanos, dur: Nanos) -> Self {
        Self { pts, dur, ..Self::default() }
    }
}

/// Why a stretch of time has no data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GapReason {
    /// A gate labelled it silence.
    NoSpeech,
    /// An edge's policy evicted it.
    Dropped,
    /// The device was away.
    DeviceLost,
    /// It could not be decoded.
    DecodeError,
    /// A failed optional node was muted.
    Muted,
}

/// Time without data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// Start on the graph timeline.
    pub from: Nanos,
    /// End on the graph timeline.
    pub to: Nanos,
    /// Why.
    pub reason: GapReason,
}

impl GapReason {
    /// As messages and statistics say it.
    pub fn name(self) -> &'static str {
        match self {
            Self::NoSpeech => "no-speech",
            Self::Dropped => "dropped",
            Self::DeviceLost => "device-lost",
            Self::DecodeError => "decode-error",
            Self::Muted => "muted",
        }
    }
}

/// How a stream ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EosReason {
    /// Everything was delivered.
    Complete,
    /// Somebody stopped it; what came is a part.
    Stopped,
    /// A node failed.
    Failed {
        /// The node's name in the graph.
        node: Arc<str>,
        /// The sentence.
        error: Arc<str>,
    },
    /// The capture device went away for good.
    DeviceLost,
}

impl EosReason {
    /// The worse of two endings: a node whose inputs ended differently passes on the worst.
    pub fn worse(self, other: Self) -> Self {
        fn rank(reason: &EosReason) -> u8 {
            match reason {
                EosReason::Complete => 0,
                EosReason::Stopped => 1,
                EosReason::DeviceLost => 2,
                EosReason::Failed { .. } => 3,
            }
        }
        if rank(&other) > rank(&self) { other } else { self }
    }
}

/// A point in the order of an edge; never dropped, never evicted.
#[derive(Debug, Clone, PartialEq)]
pub enum Mark {
    /// The type's parameters change here.
    Caps(PortType),
    /// A segment (utterance, sentence, turn) starts.
    SegmentStart(u64),
    /// A segment ends.
    SegmentEnd {
        /// The segment.
        id: u64,
        /// It was cut short by a cancel.
        cancelled: bool,
    },
    /// Nothing before this media time will come any more.
    Bound(Nanos),
    /// Forget state, continue in this epoch (seek, restart).
    Flush(u32),
    /// The end.
    Eos(EosReason),
}

/// One item of an edge.
#[derive(Debug, Clone)]
pub enum Item {
    /// A payload with its stamp.
    Data(Header, Payload),
    /// Time without data.
    Gap(Gap),
    /// A point in the order.
    Mark(Mark),
}

impl Item {
    /// A payload with its stamp.
    pub fn data<T: crate::payload::PayloadType>(pts: Nanos, dur: Nanos, value: T) -> Self {
        Self::Data(Header::at(pts, dur), value.into_payload())
    }

    /// Media time where the item stands, when it has one.
    pub fn time(&self) -> Option<Nanos> {
        match self {
            Self::Data(header, _) => Some(header.pts),
            Self::Gap(gap) => Some(gap.from),
            Self::Mark(Mark::Bound(at)) => Some(*at),
            Self::Mark(_) => None,
        }
    }
}
