//! Edit lists of MP4 files (ISO 14496-12, 8.6.6): which part of a track is to be heard.
//!
//! The demuxer ignores them, and without them every AAC track starts with its encoder's
//! priming (1024 or 2112 samples of nearly nothing).

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

/// The part of one track that is to be heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edit {
    /// `tkhd` track id.
    pub track: u32,
    /// Media time the presentation starts at, in media units.
    pub start: u64,
    /// Silence before it, in movie units.
    pub empty: u64,
    /// Length of the presentation in movie units; 0: to the end.
    pub length: u64,
    /// Movie units a second.
    pub movie_scale: u32,
    /// Media units a second.
    pub media_scale: u32,
}

/// `moov` boxes larger than this are not looked at (the table of a day of audio is about 20 MB).
const MOOV_LIMIT: u64 = 128 << 20;

/// The edits of every track that has a simple edit list. Damage means fewer edits, never an error:
/// the demuxer reports what is wrong with the file.
pub fn read(file: &mut File) -> Vec<Edit> {
    let Some(moov) = find_moov(file) else { return Vec::new() };
    let movie_scale = child(&moov, b"mvhd").and_then(scale_of).unwrap_or(0);
    let mut edits = Vec::new();
    for (kind, trak) in boxes(&moov) {
        if &kind == b"trak" {
            edits.extend(edit_of(trak, movie_scale));
        }
    }
    edits
}

fn find_moov(file: &mut File) -> Option<Vec<u8>> {
    let mut at = 0u64;
    // A file has a handful of top-level boxes, a fragmented one two for each fragment.
    for _ in 0..100_000 {
        file.seek(SeekFrom::Start(at)).ok()?;
        let mut head = [0u8; 16];
        file.read_exact(&mut head[..8]).ok()?;
        let mut size = u64::from(u32::from_be_bytes(head[..4].try_into().ok()?));
        let mut header = 8;
        if size == 1 {
            file.read_exact(&mut head[8..]).ok()?;
            size = u64::from_be_bytes(head[8..].try_into().ok()?);
            header = 16;
        }
        if &head[4..8] == b"moov" {
            let length = size.checked_sub(header).filter(|&l| l <= MOOV_LIMIT)?;
            let mut moov = Vec::new();
            file.take(length).read_to_end(&mut moov).ok()?;
            return Some(moov);
        }
        if size < header {
            return None;
        }
        at = at.checked_add(size)?;
    }
    None
}

/// The boxes inside a box's payload; a box that claims more than there is ends the walk.
fn boxes(mut bytes: &[u8]) -> impl Iterator<Item = ([u8; 4], &[u8])> {
    std::iter::from_fn(move || {
        let (head, rest) = bytes.split_first_chunk::<8>()?;
        let size = usize::try_from(u32::from_be_bytes(*head.first_chunk::<4>()?)).ok()?;
        let payload = rest.get(..size.checked_sub(8)?)?;
        bytes = &rest[payload.len()..];
        Some((*head.last_chunk::<4>()?, payload))
    })
}

fn child<'a>(bytes: &'a [u8], kind: &[u8; 4]) -> Option<&'a [u8]> {
    boxes(bytes).find(|(k, _)| k == kind).map(|(_, b)| b)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk::<4>().map(|b| u32::from_be_bytes(*b))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk::<8>().map(|b| u64::from_be_bytes(*b))
}

/// The time scale of an `mvhd` or `mdhd`.
fn scale_of(bytes: &[u8]) -> Option<u32> {
    u32_at(bytes, if *bytes.first()? == 1 { 20 } else { 12 })
}

fn edit_of(trak: &[u8], movie_scale: u32) -> Option<Edit> {
    let tkhd = child(trak, b"tkhd")?;
    let track = u32_at(tkhd, if *tkhd.first()? == 1 { 20 } else { 12 })?;
    let media_scale = scale_of(child(child(trak, b"mdia")?, b"mdhd")?)?;
    let elst = child(child(trak, b"edts")?, b"elst")?;
    let wide = *elst.first()? == 1;
    let count = u32_at(elst, 4)?;
    let mut empty = 0u64;
    let mut heard = None;
    for i in 0..usize::try_from(count).ok()?.min(1000) {
        let (length, start) = if wide {
            (u64_at(elst, 8 + 20 * i)?, u64_at(elst, 16 + 20 * i)? as i64)
        } else {
            (u64::from(u32_at(elst, 8 + 12 * i)?), i64::from(u32_at(elst, 12 + 12 * i)? as i32))
        };
        match u64::try_from(start) {
            Err(_) if heard.is_none() => empty = empty.checked_add(length)?,
            // An edited film: several parts. Everything is decoded, in media order.
            _ if heard.is_some() => return None,
            Ok(start) => heard = Some((start, length)),
            Err(_) => {}
        }
    }
    let (start, length) = heard?;
    Some(Edit { track, start, empty, length, movie_scale, media_scale }).filter(|_| movie_scale > 0 && media_scale > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn boxed(kind: &[u8; 4], payload: &[u8]) -> Vec<u8> {
        [&(payload.len() as u32 + 8).to_be_bytes()[..], kind, payload].concat()
    }

    fn movie(edits: &[(u32, i32)], lie: u32) -> Vec<u8> {
        let mut scale = vec![0u8; 20];
        scale[12..16].copy_from_slice(&1000u32.to_be_bytes());
        let mut media = vec![0u8; 20];
        media[12..16].copy_from_slice(&44_100u32.to_be_bytes());
        let mut tkhd = vec![0u8; 20];
        tkhd[12..16].copy_from_slice(&7u32.to_be_bytes());
        let mut elst = vec![0u8; 4];
        elst.extend((edits.len() as u32 + lie).to_be_bytes());
        for (length, start) in edits {
            elst.extend(length.to_be_bytes());
            elst.extend(start.to_be_bytes());
            elst.extend(0x10000u32.to_be_bytes());
        }
        let trak =
            [boxed(b"tkhd", &tkhd), boxed(b"edts", &boxed(b"elst", &elst)), boxed(b"mdia", &boxed(b"mdhd", &media))]
                .concat();
        let moov = [boxed(b"mvhd", &scale), boxed(b"trak", &trak)].concat();
        [boxed(b"ftyp", b"isom"), boxed(b"free", &[0; 9]), boxed(b"moov", &moov)].concat()
    }

    fn read_bytes(bytes: &[u8]) -> Vec<Edit> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        read(&mut file)
    }

    #[test]
    fn priming_and_leading_silence_are_found() {
        let edit = Edit { track: 7, start: 1024, empty: 500, length: 1200, movie_scale: 1000, media_scale: 44_100 };
        assert_eq!(read_bytes(&movie(&[(500, -1), (1200, 1024)], 0)), [edit]);
        assert_eq!(read_bytes(&movie(&[(1200, 1024), (1200, 1024)], 0)), [], "edited films are left alone");
    }

    #[test]
    fn lying_counts_and_cut_files_are_no_edits() {
        assert_eq!(read_bytes(&movie(&[(1200, 1024)], 5)), []);
        let whole = movie(&[(1200, 1024)], 0);
        for cut in 0..whole.len() {
            assert!(read_bytes(&whole[..cut]).len() <= 1);
        }
    }
}
