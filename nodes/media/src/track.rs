//! What the demuxer hands to the decoder: the native description behind [`StreamInfo::native`].

use oxideav_core::CodecParameters;
use oxiline_graph::Nanos;
use symphonia::core::codecs::audio::AudioCodecParameters;
use symphonia::core::codecs::audio::well_known as sym;

/// A length in ticks of `1/per_second` s: exact whatever the sample rate turns out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Ticks {
    pub n: u64,
    pub per_second: u64,
}

impl Ticks {
    pub fn new(n: u64, per_second: u64) -> Self {
        Self { n, per_second }
    }
    /// The nearest count of samples at `rate`.
    pub fn frames(self, rate: u32) -> u64 {
        if self.per_second == 0 {
            return 0;
        }
        let scaled = u128::from(self.n) * u128::from(rate) + u128::from(self.per_second) / 2;
        u64::try_from(scaled / u128::from(self.per_second)).unwrap_or(u64::MAX)
    }
    pub fn seconds(self) -> f64 {
        if self.per_second == 0 { 0.0 } else { self.n as f64 / self.per_second as f64 }
    }
}

/// Which decoder gets the packets.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Engine {
    OxideAv,
    Symphonia,
    Opus,
}

/// One coded track.
#[derive(Debug, Clone)]
pub(crate) struct Coded {
    /// File name for messages.
    pub file: String,
    /// Codec name.
    pub codec: String,
    pub engine: Engine,
    pub oxide: CodecParameters,
    pub symphonia: AudioCodecParameters,
    /// Samples to cut from the start.
    pub skip: Ticks,
    /// Samples to keep after that, when the container knows exactly.
    pub keep: Option<Ticks>,
    /// Media time of the first sample kept.
    pub start: Nanos,
}

/// Symphonia's codec for a name, for the codecs it decodes for us.
pub(crate) fn symphonia_codec(name: &str) -> Option<symphonia::core::codecs::audio::AudioCodecId> {
    CODECS.iter().find(|(n, _, ours)| *n == name && *ours).map(|(_, id, _)| *id)
}

/// The name of a codec Symphonia's demuxers know.
pub(crate) fn codec_name(id: symphonia::core::codecs::audio::AudioCodecId) -> String {
    match CODECS.iter().find(|(_, i, _)| *i == id) {
        Some((name, _, _)) => (*name).to_string(),
        None if (sym::CODEC_ID_PCM_S32LE..=sym::CODEC_ID_PCM_MULAW).contains(&id) => "pcm".into(),
        None => "of an unknown codec".into(),
    }
}

/// Name, Symphonia's id, decoded by Symphonia.
const CODECS: &[(&str, symphonia::core::codecs::audio::AudioCodecId, bool)] = &[
    ("aac", sym::CODEC_ID_AAC, true),
    ("mp3", sym::CODEC_ID_MP3, true),
    ("mp2", sym::CODEC_ID_MP2, true),
    ("mp1", sym::CODEC_ID_MP1, true),
    ("alac", sym::CODEC_ID_ALAC, true),
    ("pcm_alaw", sym::CODEC_ID_PCM_ALAW, true),
    ("pcm_mulaw", sym::CODEC_ID_PCM_MULAW, true),
    ("adpcm_ms", sym::CODEC_ID_ADPCM_MS, true),
    ("adpcm_ima_wav", sym::CODEC_ID_ADPCM_IMA_WAV, true),
    ("adpcm_ima_qt", sym::CODEC_ID_ADPCM_IMA_QT, true),
    ("vorbis", sym::CODEC_ID_VORBIS, false),
    ("opus", sym::CODEC_ID_OPUS, false),
    ("flac", sym::CODEC_ID_FLAC, false),
    ("speex", sym::CODEC_ID_SPEEX, false),
    ("ac3", sym::CODEC_ID_AC3, false),
    ("eac3", sym::CODEC_ID_EAC3, false),
    ("ac4", sym::CODEC_ID_AC4, false),
    ("dts", sym::CODEC_ID_DCA, false),
    ("wma", sym::CODEC_ID_WMA, false),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_round_to_the_nearest_sample_without_overflow() {
        // Microseconds that were rounded down give the sample count back.
        for samples in [1u64, 52_919, 52_920, 158_760_000_000] {
            let us = samples * 1_000_000 / 44_100;
            assert_eq!(Ticks::new(us, 1_000_000).frames(44_100), samples);
        }
        assert_eq!(Ticks::new(u64::MAX, 1).frames(192_000), u64::MAX);
        assert_eq!(Ticks::default().frames(8000), 0);
    }
}
