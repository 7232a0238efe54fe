//! Signs by which a file tells that its end is missing, where the demuxer just ends.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

/// What the file says about its own end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Promise {
    /// Nothing that can be relied on.
    Nothing,
    /// So many seconds of sound, up to half of one.
    Seconds(f64),
    /// The mark of the last page is not there.
    Unfinished,
}

impl Promise {
    /// What is wrong with a file whose last packet starts at `at` seconds, as the end of a sentence.
    pub fn broken(self, at: f64) -> Option<String> {
        match self {
            Self::Seconds(total) if total - at > 0.5 => Some(format!("its header promises {total:.1} s")),
            Self::Unfinished => Some("its last page is not there".into()),
            Self::Nothing | Self::Seconds(_) => None,
        }
    }
}

/// Does an MPEG audio file start with a frame that counts its frames (Xing, Info or VBRI)? Otherwise
/// its length is only guessed from the first frame.
pub(crate) fn counts_frames(file: &mut File) -> io::Result<bool> {
    let mut head = [0; 10];
    let mut start = 0;
    file.rewind()?;
    if file.read_exact(&mut head).is_ok() && head.starts_with(b"ID3") {
        let size = head[6..].iter().fold(0u64, |size, byte| size << 7 | u64::from(byte & 0x7f));
        start = size + 10;
    }
    file.seek(SeekFrom::Start(start))?;
    let mut frame = Vec::new();
    file.take(256).read_to_end(&mut frame)?;
    Ok(frame.windows(4).any(|tag| matches!(tag, b"Xing" | b"Info" | b"VBRI")))
}

/// Does an Ogg file end with a page that says it is the last?
pub(crate) fn has_last_page(file: &mut File) -> io::Result<bool> {
    // A page is at most 65,307 bytes.
    let length = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(length.saturating_sub(1 << 16)))?;
    let mut tail = Vec::new();
    file.take(1 << 16).read_to_end(&mut tail)?;
    // Magic, version 0, flags (4: last page of its stream).
    Ok(tail.windows(6).any(|w| w.starts_with(b"OggS\0") && w[5] & 4 != 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn a_header_that_counts_is_found_behind_a_tag() {
        let frame = [&[0xff, 0xfb, 0x90, 0][..], &[0; 32], b"Info", &[0; 300]].concat();
        assert!(counts_frames(&mut file(&frame)).unwrap());
        let tagged = [b"ID3\x04\0\0\0\0\x01\x02", &[7; 130][..], &frame].concat();
        assert!(counts_frames(&mut file(&tagged)).unwrap());
        assert!(!counts_frames(&mut file(&[0xff, 0xfb, 0x90, 0, 1, 2, 3])).unwrap());
        assert!(!counts_frames(&mut file(b"")).unwrap());
    }

    #[test]
    fn what_is_promised_is_compared() {
        assert_eq!(Promise::Seconds(11.0).broken(10.97), None);
        assert_eq!(Promise::Seconds(11.0).broken(6.1).as_deref(), Some("its header promises 11.0 s"));
        assert_eq!(Promise::Nothing.broken(0.0), None);
        assert!(
            has_last_page(&mut file(b"OggS\0\x04....")).unwrap() && !has_last_page(&mut file(b"OggS\0\0..")).unwrap()
        );
    }
}
