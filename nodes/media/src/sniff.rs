//! What a file is, by its first bytes. Extensions lie; content does not.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use oxiline_graph::{Error, Result};

use crate::mpeg;

/// What is read in one sentence, for messages.
pub const SUPPORTED: &str = "WAV, AIFF, CAF, FLAC, MP3, AAC (M4A, MP4, MOV, ADTS), ALAC, Ogg (Vorbis, Opus, FLAC), \
     Matroska/WebM and AVI";

/// A container that can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Container {
    Wav,
    Avi,
    Flac,
    Ogg,
    Matroska,
    Mp4,
    Aiff,
    Caf,
    /// MPEG audio layer 1, 2 or 3 without a container.
    Mpeg,
    /// AAC without a container.
    Adts,
}

/// How many bytes are looked at.
const HEAD: u64 = 64 * 1024;

/// Looks at the start of a file, past an ID3 tag if there is one. The position afterwards is
/// anywhere. `name` is for messages.
///
/// # Errors
/// A sentence that says what the file is, when that can be told, and what can be read.
pub fn sniff(file: &mut File, name: &str) -> Result<Container> {
    let io = |e: std::io::Error| Error::msg(format_args!("`{name}` cannot be read: {e}"));
    let mut head = Vec::new();
    file.seek(SeekFrom::Start(0)).map_err(io)?;
    file.take(HEAD).read_to_end(&mut head).map_err(io)?;
    if head.is_empty() {
        return Err(Error::msg(format_args!("`{name}` is empty: there is nothing to decode")));
    }
    let tag = id3_length(&head);
    if tag > 0 {
        let mut after = Vec::new();
        file.seek(SeekFrom::Start(tag)).map_err(io)?;
        file.take(HEAD).read_to_end(&mut after).map_err(io)?;
        head = after;
        if let Some(container) = by_magic(&head) {
            return Ok(container);
        }
        // An ID3 tag without anything else recognisable is an MP3 file that starts with rubbish.
        return Ok(by_frames(&head).unwrap_or(Container::Mpeg));
    }
    if let Some(container) = by_magic(&head).or_else(|| by_frames(&head)) {
        return Ok(container);
    }
    Err(match what_else(&head) {
        Some(what) => {
            Error::msg(format_args!("`{name}` is {what}, which is not supported: convert it to one of {SUPPORTED}"))
        }
        None => Error::msg(format_args!("`{name}` is of no known media format: supported are {SUPPORTED}")),
    })
}

/// Bytes of the ID3v2 tag at the start, 0 if there is none.
fn id3_length(head: &[u8]) -> u64 {
    match head {
        [b'I', b'D', b'3', _, _, flags, a, b, c, d, ..] if (a | b | c | d) & 0x80 == 0 => {
            let size = u64::from(*a) << 21 | u64::from(*b) << 14 | u64::from(*c) << 7 | u64::from(*d);
            size + if flags & 0x10 != 0 { 20 } else { 10 }
        }
        _ => 0,
    }
}

fn at<const N: usize>(head: &[u8], offset: usize, magic: &[u8; N]) -> bool {
    head.get(offset..offset + N) == Some(&magic[..])
}

fn by_magic(head: &[u8]) -> Option<Container> {
    let riff = at(head, 0, b"RIFF") || at(head, 0, b"RF64") || at(head, 0, b"BW64");
    Some(if riff && at(head, 8, b"WAVE") {
        Container::Wav
    } else if riff && at(head, 8, b"AVI ") {
        Container::Avi
    } else if at(head, 0, b"fLaC") {
        Container::Flac
    } else if at(head, 0, b"OggS") {
        Container::Ogg
    } else if at(head, 0, &[0x1a, 0x45, 0xdf, 0xa3]) {
        Container::Matroska
    } else if at(head, 4, b"ftyp") || at(head, 4, b"moov") || (at(head, 4, b"wide") && at(head, 12, b"mdat")) {
        Container::Mp4
    } else if at(head, 0, b"FORM") && (at(head, 8, b"AIFF") || at(head, 8, b"AIFC")) {
        Container::Aiff
    } else if at(head, 0, b"caff") {
        Container::Caf
    } else {
        return None;
    })
}

/// Formats without a magic number: two frames in a row at the very start, or three anywhere
/// in the head (a file that was cut out of a stream).
fn by_frames(head: &[u8]) -> Option<Container> {
    for offset in 0..head.len().saturating_sub(8).min(16 * 1024) {
        if head[offset] != 0xff {
            continue;
        }
        let need = if offset == 0 { 2 } else { 3 };
        if mpeg::run(&head[offset..], need) {
            return Some(Container::Mpeg);
        }
        if adts_run(&head[offset..], need) {
            return Some(Container::Adts);
        }
    }
    None
}

fn adts_run(mut bytes: &[u8], frames: usize) -> bool {
    for _ in 0..frames {
        let [0xff, second, third, fourth, fifth, sixth, ..] = *bytes else { return false };
        let length = usize::from(fourth & 3) << 11 | usize::from(fifth) << 3 | usize::from(sixth) >> 5;
        if second & 0xf6 != 0xf0 || (third >> 2) & 15 > 12 || length < 7 {
            return false;
        }
        match bytes.get(length..) {
            Some(rest) => bytes = rest,
            None => return false,
        }
    }
    true
}

/// Names what is not supported, for the message.
fn what_else(head: &[u8]) -> Option<&'static str> {
    let ts = |step: usize, from: usize| (0..3).all(|i| head.get(from + i * step) == Some(&0x47));
    let known: &[(usize, &[u8], &str)] = &[
        (0, b"\x89PNG", "a PNG image"),
        (0, b"\xff\xd8\xff", "a JPEG image"),
        (0, b"GIF8", "a GIF image"),
        (8, b"WEBP", "a WebP image"),
        (0, b"BM", "a BMP image"),
        (0, b"%PDF", "a PDF document"),
        (0, b"PK\x03\x04", "a ZIP archive (or an office document)"),
        (0, b"\x1f\x8b", "a gzip archive"),
        (0, b"7z\xbc\xaf", "a 7-Zip archive"),
        (0, b"\x30\x26\xb2\x75", "a Windows Media (ASF, WMA, WMV) file"),
        (0, b"FLV", "a Flash video"),
        (0, b"\x0b\x77", "an AC-3 stream"),
        (0, b"\x7f\xfe\x80\x01", "a DTS stream"),
        (0, b"\x00\x00\x01\xba", "an MPEG programme stream (VOB, MPG)"),
        (0, b"wvpk", "a WavPack file"),
        (0, b"MAC ", "a Monkey's Audio file"),
        (0, b"MPCK", "a Musepack file"),
        (0, b"MP+", "a Musepack file"),
        (0, b"TTA1", "a True Audio file"),
        (0, b"DSD ", "a DSD file"),
        (0, b"FRM8", "a DSD file"),
        (0, b"MThd", "a MIDI file"),
        (0, b"#!AMR", "an AMR recording"),
        (0, b".RMF", "a RealMedia file"),
        (0, b".snd", "a Sun AU file"),
        (0, b"riff\x2e\x91\xcf\x11", "a Sony Wave64 file"),
        (0, b"ADIF", "an AAC file in ADIF form"),
        (0, b"\x7fELF", "a program"),
        (0, b"MZ", "a program"),
        (0, b"<!DOCTYPE", "an HTML page"),
        (0, b"<html", "an HTML page"),
        (0, b"GGUF", "a GGUF model file"),
    ];
    if ts(188, 0) || ts(192, 4) {
        return Some("an MPEG transport stream (TS, MTS)");
    }
    if let Some((_, _, what)) =
        known.iter().find(|(offset, magic, _)| head.get(*offset..).is_some_and(|h| h.starts_with(magic)))
    {
        return Some(what);
    }
    let start = &head[..head.len().min(512)];
    let text = std::str::from_utf8(start).is_ok_and(|s| !s.chars().any(|c| c.is_control() && !"\r\n\t".contains(c)));
    text.then_some("a text file")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id3_tag_is_skipped_by_its_syncsafe_size() {
        assert_eq!(id3_length(b"ID3\x04\x00\x00\x00\x00\x02\x01rest"), 257 + 10);
        assert_eq!(id3_length(b"ID3\x04\x00\x10\x00\x00\x00\x05rest"), 25);
        assert_eq!(id3_length(b"ID3\x04\x00\x00\x80\x00\x00\x05rest"), 0);
        assert_eq!(id3_length(b"ID"), 0);
    }

    #[test]
    fn one_sync_word_in_rubbish_is_not_an_mp3() {
        let mut bytes = vec![0u8; 4000];
        bytes[100..104].copy_from_slice(&[0xff, 0xfb, 0x90, 0x00]);
        assert_eq!(by_frames(&bytes), None);
        // Three frames of 417 bytes each (128 kb/s, 44.1 kHz) are one.
        for i in 0..3 {
            bytes[100 + 417 * i..104 + 417 * i].copy_from_slice(&[0xff, 0xfb, 0x90, 0x00]);
        }
        assert_eq!(by_frames(&bytes), Some(Container::Mpeg));
    }

    #[test]
    fn unsupported_files_are_named() {
        assert_eq!(what_else(b"\x89PNG\r\n\x1a\n0000"), Some("a PNG image"));
        assert_eq!(what_else(b"just words\n"), Some("a text file"));
        let mut ts = vec![0u8; 600];
        for i in 0..4 {
            ts[188 * i] = 0x47;
        }
        assert_eq!(what_else(&ts), Some("an MPEG transport stream (TS, MTS)"));
        assert_eq!(what_else(&[1, 2, 3, 0, 0]), None);
    }
}
