//! The little of zip that torch uses: stored records, with 64-bit sizes where needed.
//!
//! After APPNOTE 6.3: end record (4.3.16), its 64-bit form (4.3.14, 4.3.15), central directory
//! (4.3.12), local header (4.3.7), extra field 1 (4.5.3).

use std::collections::HashMap;
use std::ops::Range;

use crate::error::{Error, Result, shown};

pub(super) struct Archive<'a> {
    bytes: &'a [u8],
    order: Vec<String>,
    records: HashMap<String, Record>,
}

struct Record {
    method: u16,
    flags: u16,
    packed: u64,
    size: u64,
    local: u64,
}

fn u16_at(b: &[u8], at: usize) -> u16 {
    b.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u16::from_le_bytes(*b))
}
fn u32_at(b: &[u8], at: usize) -> u32 {
    b.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_le_bytes(*b))
}
fn u64_at(b: &[u8], at: usize) -> u64 {
    b.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u64::from_le_bytes(*b))
}

/// `size` bytes at `at`, beginning with `magic`.
fn part<'a>(bytes: &'a [u8], at: u64, size: usize, magic: &[u8; 4]) -> Option<&'a [u8]> {
    let at = usize::try_from(at).ok()?;
    bytes.get(at..at.checked_add(size)?).filter(|b| b.starts_with(magic))
}

impl<'a> Archive<'a> {
    pub(super) fn read(bytes: &'a [u8]) -> Result<Self> {
        let from = bytes.len().saturating_sub(22 + 65535);
        let end = (from..=bytes.len().saturating_sub(22)).rev().find(|&at| {
            bytes[at..].starts_with(b"PK\x05\x06") && at + 22 + usize::from(u16_at(bytes, at + 20)) == bytes.len()
        });
        let end = end.ok_or_else(|| Error::malformed("a zip archive without its end; download it again"))?;
        let head = &bytes[end..];
        let mut count = u64::from(u16_at(head, 10));
        let mut size = u64::from(u32_at(head, 12));
        let mut offset = u64::from(u32_at(head, 16));
        if let Some(locator) = (end as u64).checked_sub(20).and_then(|at| part(bytes, at, 20, b"PK\x06\x07")) {
            let at = u64_at(locator, 8);
            let wide = part(bytes, at, 56, b"PK\x06\x06").ok_or_else(|| {
                Error::malformed(format!("the zip's 64-bit end record is not at byte {at}; download it again"))
            })?;
            (count, size, offset) = (u64_at(wide, 32), u64_at(wide, 40), u64_at(wide, 48));
        }
        let directory = offset
            .checked_add(size)
            .filter(|stop| *stop <= end as u64)
            .map(|stop| &bytes[offset as usize..stop as usize])
            .ok_or_else(|| {
                Error::malformed(format!("the zip's directory (byte {offset}, {size} bytes) is not inside the file"))
            })?;
        let mut out = Self { bytes, order: Vec::new(), records: HashMap::new() };
        let mut at = 0usize;
        for _ in 0..count {
            at = out.entry(directory, at, offset)?;
        }
        if at != directory.len() {
            return Err(Error::malformed(format!(
                "the zip's directory has {} bytes beyond its {count} entries; download it again",
                directory.len() - at
            )));
        }
        Ok(out)
    }

    fn entry(&mut self, directory: &[u8], at: usize, base: u64) -> Result<usize> {
        let broken = || {
            Error::malformed(format!("the zip's directory is broken at byte {}; download it again", base + at as u64))
        };
        let head = part(directory, at as u64, 46, b"PK\x01\x02").ok_or_else(broken)?;
        let [name, extra, comment] = [28, 30, 32].map(|p| usize::from(u16_at(head, p)));
        let next = at + 46 + name + extra + comment;
        if next > directory.len() {
            return Err(broken());
        }
        let name = std::str::from_utf8(&directory[at + 46..at + 46 + name]).map_err(|_| broken())?;
        let mut fields = &directory[at + 46 + name.len()..at + 46 + name.len() + extra];
        let mut r = Record {
            method: u16_at(head, 10),
            flags: u16_at(head, 8),
            packed: u32_at(head, 20).into(),
            size: u32_at(head, 24).into(),
            local: u32_at(head, 42).into(),
        };
        while fields.len() >= 4 {
            let (kind, size) = (u16_at(fields, 0), usize::from(u16_at(fields, 2)));
            let mut body = fields.get(4..4 + size).ok_or_else(broken)?;
            if kind == 1 {
                for value in [&mut r.size, &mut r.packed, &mut r.local] {
                    if *value == u64::from(u32::MAX) {
                        *value = body.first_chunk().map(|b| u64::from_le_bytes(*b)).ok_or_else(broken)?;
                        body = &body[8..];
                    }
                }
            }
            fields = &fields[4 + size..];
        }
        if self.records.insert(name.to_string(), r).is_some() {
            return Err(Error::malformed(format!("the archive has the record {} twice", shown(name))));
        }
        self.order.push(name.to_string());
        Ok(next)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.order.iter().map(String::as_str)
    }

    /// Where the bytes of a record are; it must exist.
    pub(super) fn record(&self, name: &str) -> Result<Range<usize>> {
        self.get(name)?.ok_or_else(|| Error::malformed(format!("the archive has no record {}", shown(name))))
    }

    /// Where the bytes of a record are.
    pub(super) fn get(&self, name: &str) -> Result<Option<Range<usize>>> {
        let Some(r) = self.records.get(name) else { return Ok(None) };
        let name = shown(name);
        if r.flags & 1 != 0 {
            return Err(Error::unsupported(format!(
                "the record {name} is encrypted; save the model without a password"
            )));
        }
        // torch.save never compresses, and unpacking could take any amount of memory.
        if r.method != 0 {
            return Err(Error::unsupported(format!(
                "the record {name} is compressed (method {}); save the model again with torch.save",
                r.method
            )));
        }
        let span = part(self.bytes, r.local, 30, b"PK\x03\x04").and_then(|head| {
            let skip = 30 + u64::from(u16_at(head, 26)) + u64::from(u16_at(head, 28));
            let start = r.local.checked_add(skip)?;
            let end = start.checked_add(r.size).filter(|end| *end <= self.bytes.len() as u64)?;
            Some(start as usize..end as usize)
        });
        match span {
            Some(span) if r.packed == r.size => Ok(Some(span)),
            _ => Err(Error::malformed(format!(
                "the record {name} (byte {}, {} bytes) is not inside the file; download it again",
                r.local, r.size
            ))),
        }
    }
}
