//! MPEG audio frame headers (ISO 11172-3, 13818-3): to recognise MP3 and to cut AVI chunks into frames.

/// Length in bytes and samples of the frame whose header these bytes start with.
pub fn frame(bytes: &[u8]) -> Option<(usize, u32)> {
    const V1: [[u32; 15]; 3] = [
        [0, 32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448],
        [0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384],
        [0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320],
    ];
    const V2: [[u32; 15]; 2] = [
        [0, 32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256],
        [0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160],
    ];
    let [0xff, second, third, _, ..] = *bytes else { return None };
    if second & 0xe0 != 0xe0 {
        return None;
    }
    let version = (second >> 3) & 3;
    let layer = 4 - ((second >> 1) & 3);
    let rate_index = usize::from((third >> 2) & 3);
    let bit_index = usize::from(third >> 4);
    if version == 1 || layer == 4 || rate_index == 3 || bit_index == 0 || bit_index == 15 {
        return None;
    }
    let first = version == 3;
    let rate = [44_100, 48_000, 32_000][rate_index] >> [2, 0, 1, 0][usize::from(version)];
    let layer = usize::from(layer);
    let kbit = if first { V1[layer - 1][bit_index] } else { V2[usize::from(layer > 1)][bit_index] };
    let padding = u32::from((third >> 1) & 1);
    let (length, samples) = match layer {
        1 => ((12_000 * kbit / rate + padding) * 4, 384),
        2 => (144_000 * kbit / rate + padding, 1152),
        _ if first => (144_000 * kbit / rate + padding, 1152),
        _ => (72_000 * kbit / rate + padding, 576),
    };
    (length >= 21).then_some((length as usize, samples))
}

/// Do the bytes start with `frames` headers, each where the frame before ends?
pub fn run(mut bytes: &[u8], frames: usize) -> bool {
    let kind = |b: &[u8]| (b[1] & 0x1e, b[2] & 0x0c);
    if bytes.len() < 4 {
        return false;
    }
    let first = kind(bytes);
    for _ in 0..frames {
        if bytes.len() < 4 || kind(bytes) != first {
            return false;
        }
        let Some((length, _)) = frame(bytes) else { return false };
        match bytes.get(length..) {
            Some(rest) => bytes = rest,
            None => return false,
        }
    }
    true
}

/// Cuts a byte stream into frames: AVI chunks hold parts of frames or several.
#[derive(Default)]
pub struct Framer {
    pending: Vec<u8>,
}

impl Framer {
    /// Takes more bytes and returns the frames that are whole now.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        self.pending.extend_from_slice(bytes);
        let mut frames = Vec::new();
        let mut at = 0;
        while at + 4 <= self.pending.len() {
            match frame(&self.pending[at..]) {
                Some((length, _)) if at + length <= self.pending.len() => {
                    frames.push(self.pending[at..at + length].to_vec());
                    at += length;
                }
                Some(_) => break,
                None => at += 1,
            }
        }
        self.pending.drain(..at);
        frames
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_lengths_follow_the_standard() {
        assert_eq!(frame(&[0xff, 0xfb, 0x90, 0]), Some((417, 1152)));
        assert_eq!(frame(&[0xff, 0xfb, 0x92, 0]), Some((418, 1152)));
        // MPEG-2 layer 3, 64 kb/s at 22.05 kHz.
        assert_eq!(frame(&[0xff, 0xf3, 0x80, 0]), Some((208, 576)));
        assert_eq!(frame(&[0xff, 0xfb, 0xf0, 0]), None);
        assert_eq!(frame(&[0xff, 0xe9, 0x90, 0]), None);
        assert_eq!(frame(&[0xff, 0xff, 0xff]), None);
    }

    #[test]
    fn the_framer_finds_frames_across_chunks_and_past_rubbish() {
        let mut one = vec![0u8; 417];
        one[..4].copy_from_slice(&[0xff, 0xfb, 0x90, 0]);
        let stream = [&[1u8, 2, 3][..], &one, &one, &one].concat();
        let mut framer = Framer::default();
        let mut found = 0;
        for chunk in stream.chunks(100) {
            for frame in framer.push(chunk) {
                assert_eq!(frame, one);
                found += 1;
            }
        }
        assert_eq!(found, 3);
    }
}
