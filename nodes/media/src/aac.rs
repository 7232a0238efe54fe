//! What an AudioSpecificConfig (ISO 14496-3, 1.6.2.1) says, in the form that Symphonia's decoder takes.
//!
//! The decoder knows AAC-LC with one or two channels. HE-AAC is AAC-LC of half the rate with side data
//! that it skips, but it refuses the config that announces them: the core is announced alone.

use symphonia::core::codecs::audio::AudioCodecParameters;

/// Reads a config from its highest bit on.
struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Bits<'_> {
    fn take(&mut self, count: usize) -> Option<u32> {
        let mut value = 0;
        for at in self.at..self.at + count {
            let byte = *self.bytes.get(at / 8)?;
            value = value << 1 | u32::from(byte >> (7 - at % 8) & 1);
        }
        self.at += count;
        Some(value)
    }

    fn object(&mut self) -> Option<u32> {
        match self.take(5)? {
            31 => Some(32 + self.take(6)?),
            plain => Some(plain),
        }
    }

    /// An index of the table of rates, or 15 and the rate itself.
    fn rate(&mut self) -> Option<(u32, u32)> {
        let index = self.take(4)?;
        Some((index, if index == 15 { self.take(24)? } else { 0 }))
    }
}

/// What is wrong with a stream, as the end of a sentence.
fn core(config: &[u8]) -> Result<Vec<u8>, String> {
    let mut bits = Bits { bytes: config, at: 0 };
    let read = (|| {
        let (mut object, rate, channels) = (bits.object()?, bits.rate()?, bits.take(4)?);
        // SBR or parametric stereo in front of what they extend.
        if object == 5 || object == 29 {
            bits.rate()?;
            object = bits.object()?;
        }
        Some((object, rate, channels, bits.take(1)?))
    })();
    let Some((object, (index, rate), channels, short)) = read else {
        return Err("their description of the stream is cut off".into());
    };
    match object {
        2 => {}
        42 => return Err("it is xHE-AAC, and only AAC-LC and the core of HE-AAC are read; convert it first".into()),
        other => {
            return Err(format!(
                "it is AAC of type {other}, and only AAC-LC and the core of HE-AAC are read; convert it first"
            ));
        }
    }
    mono_or_stereo(match channels {
        0 => return Err("its channels are described in a way that is not read; convert it first".into()),
        7 => 8,
        n => n as usize,
    })?;
    // Object 2, the rate, the channels, the length of a frame, and two bits that say "nothing more".
    let mut out = 2u64 << 4 | u64::from(index);
    let mut length = 9;
    if index == 15 {
        out = out << 24 | u64::from(rate);
        length += 24;
    }
    out = (out << 5 | u64::from(channels << 1 | short)) << 2;
    length += 7;
    out <<= 64 - length;
    Ok(out.to_be_bytes()[..usize::div_ceil(length, 8)].to_vec())
}

fn mono_or_stereo(channels: usize) -> Result<(), String> {
    match channels {
        ..=2 => Ok(()),
        n => Err(format!("it has {n} channels, and AAC is read with one or two; mix it down or convert it first")),
    }
}

/// The parameters of an AAC track as its decoder takes them.
///
/// # Errors
/// The end of a sentence that says what is not read.
pub(crate) fn plain(track: &AudioCodecParameters) -> Result<AudioCodecParameters, String> {
    let mut track = track.clone();
    match track.extra_data.take() {
        Some(config) => {
            track.with_extra_data(core(&config)?.into());
        }
        None => mono_or_stereo(track.channels.as_ref().map_or(2, |channels| channels.count()))?,
    }
    Ok(track)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn he_aac_is_announced_as_its_core() {
        // LC, 44.1 kHz, stereo: as it is.
        assert_eq!(core(&[0x12, 0x10]), Ok(vec![0x12, 0x10]));
        // LC at 24 kHz, then the sync extension that says SBR.
        assert_eq!(core(&[0x13, 0x10, 0x56, 0xe5, 0x98]), Ok(vec![0x13, 0x10]));
        // SBR in front: 5, 24 kHz, stereo, 48 kHz, 2, nothing more.
        assert_eq!(core(&[0x2b, 0x11, 0x88, 0x00]), Ok(vec![0x13, 0x10]));
        // Parametric stereo of a mono core.
        assert_eq!(core(&[0xeb, 0x09, 0x88, 0x00]), Ok(vec![0x13, 0x08]));
        // A rate that is not in the table, 0x001234 Hz.
        assert_eq!(core(&[0x17, 0x80, 0x09, 0x1a, 0x10]), Ok(vec![0x17, 0x80, 0x09, 0x1a, 0x10]));
    }

    #[test]
    fn what_is_not_read_is_said() {
        assert!(core(&[0x12, 0x30]).unwrap_err().contains("6 channels"));
        assert!(core(&[0x12, 0x38]).unwrap_err().contains("8 channels"));
        assert!(core(&[0x12]).unwrap_err().contains("cut off"));
        assert!(core(&[0x0a, 0x10]).unwrap_err().contains("type 1"));
        assert!(core(&[0xf9, 0x48, 0x84, 0x00]).unwrap_err().contains("xHE-AAC"));
    }
}
