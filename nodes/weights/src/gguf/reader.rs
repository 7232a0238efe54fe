//! The header of a GGUF file: counts, metadata, the list of tensors, then aligned data.
//!
//! Every count is bounded by the bytes left before anything is allocated for it, and every message
//! names the byte it is about.

use std::collections::{BTreeMap, HashSet};

use oxiline_kernels::BlockType;

use super::metadata::{Metadata, Value};
use crate::checkpoint::Entry;
use crate::dtype::Dtype;
use crate::error::{Error, Result, shown};

/// First bytes of a file.
pub(crate) const MAGIC: &[u8] = b"GGUF";
/// Most dimensions a tensor of a GGUF file has.
const MAX_DIMS: u32 = 4;
/// Longest key (the format's own limit).
const MAX_KEY: u64 = 65535;
/// Longest tensor name; the usual limit is 64, builds that raise it exist.
const MAX_NAME: u64 = 1024;
/// Most entries of metadata and most tensors, far beyond what any model has.
const MAX_ENTRIES: u64 = 1 << 20;
/// Most strings in all arrays together: each takes more memory than bytes of the file.
const MAX_STRINGS: usize = 4 << 20;
/// Most numbers in all arrays together, for the same reason.
const MAX_NUMBERS: usize = 16 << 20;
/// Alignment of the data when the metadata doesn't say.
const ALIGNMENT: u64 = 32;

/// What a file holds.
pub(crate) struct File {
    pub metadata: Metadata,
    pub tensors: Vec<(String, Entry)>,
}

/// Reads a file given as its bytes. Messages start without the file's name.
pub(crate) fn parse(bytes: &[u8]) -> Result<File> {
    let mut r = Reader { bytes, at: 0, strings: MAX_STRINGS, numbers: MAX_NUMBERS };
    r.start()?;
    let tensors_at = r.at;
    let tensor_count = r.u64("the number of tensors")?;
    let keys_at = r.at;
    let key_count = r.u64("the number of metadata entries")?;
    // Key length, value type and one byte; name length, dimensions, one of them, type, offset.
    r.bounded(tensor_count, 32, tensors_at, "tensors")?;
    r.bounded(key_count, 13, keys_at, "metadata entries")?;
    let mut map = BTreeMap::new();
    for _ in 0..key_count {
        let at = r.at;
        let key = r.string(MAX_KEY, "a key")?;
        let value = r.value(&key)?;
        if map.insert(key.clone(), value).is_some() {
            return Err(Error::malformed(format!("the key {} (byte {at}) is there twice", shown(&key))));
        }
    }
    let metadata = Metadata(map);
    let alignment = alignment(&metadata)?;
    let mut list = Vec::new();
    let mut seen = HashSet::new();
    for _ in 0..tensor_count {
        let tensor = r.tensor()?;
        if !seen.insert(tensor.name.clone()) {
            return Err(Error::malformed(format!(
                "tensor {} (byte {}) is there twice",
                shown(&tensor.name),
                tensor.at
            )));
        }
        list.push(tensor);
    }
    let tensors = place(list, r.at as u64, alignment, bytes.len() as u64)?;
    Ok(File { metadata, tensors })
}

fn alignment(metadata: &Metadata) -> Result<u64> {
    let key = "general.alignment";
    match metadata.get(key) {
        None => Ok(ALIGNMENT),
        Some(_) => metadata.u64(key).filter(|a| a.is_power_of_two() && *a <= 1 << 30).ok_or_else(|| {
            Error::malformed(format!("{key} is not a power of two up to 2^30; download the file again"))
        }),
    }
}

/// A tensor as the header lists it.
struct Listed {
    name: String,
    /// Where the header lists it.
    at: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: usize,
    offset: u64,
}

/// Checks that the tensors lie in the file, aligned and apart.
fn place(list: Vec<Listed>, header: u64, alignment: u64, size: u64) -> Result<Vec<(String, Entry)>> {
    let start = header.next_multiple_of(alignment);
    let mut spans = Vec::with_capacity(list.len());
    for (i, t) in list.iter().enumerate() {
        let bad = |what: String| Error::malformed(format!("tensor {} (byte {}): {what}", shown(&t.name), t.at));
        if !t.offset.is_multiple_of(alignment) {
            return Err(bad(format!("its offset {} is no multiple of the alignment {alignment}", t.offset)));
        }
        let from = start.checked_add(t.offset);
        let to = from.and_then(|from| from.checked_add(t.bytes as u64)).filter(|to| *to <= size);
        let (Some(from), Some(_)) = (from, to) else {
            return Err(bad(format!(
                "its {} bytes at offset {} (data starts at byte {start}) reach past the end of the file ({size} \
                 bytes); download it again",
                t.bytes, t.offset
            )));
        };
        // At most `size`, the length of a slice.
        spans.push((from as usize, t.bytes, i));
    }
    let mut order = spans.clone();
    order.retain(|s| s.1 > 0);
    order.sort_unstable();
    for pair in order.windows(2) {
        if pair[0].0 + pair[0].1 > pair[1].0 {
            return Err(Error::malformed(format!(
                "tensor {} at byte {} overlaps tensor {} at byte {}",
                shown(&list[pair[1].2].name),
                pair[1].0,
                shown(&list[pair[0].2].name),
                pair[0].0
            )));
        }
    }
    let entry = |(t, span): (Listed, (usize, usize, usize))| {
        let Listed { name, dtype, shape, bytes, .. } = t;
        (name, Entry { dtype, shape, blob: 0, offset: span.0, bytes, strides: None, parts: None })
    };
    Ok(list.into_iter().zip(spans).map(entry).collect())
}

/// The element type of a number in the header.
fn dtype(number: u32) -> Option<Dtype> {
    Some(match number {
        24 => Dtype::I8,
        25 => Dtype::I16,
        26 => Dtype::I32,
        27 => Dtype::I64,
        28 => Dtype::F64,
        _ => match BlockType::from_ggml(number)? {
            BlockType::F32 => Dtype::F32,
            BlockType::F16 => Dtype::F16,
            BlockType::BF16 => Dtype::BF16,
            block => Dtype::Block(block),
        },
    })
}

/// Bytes of a tensor of this shape (outermost first); None when the product overflows or rows
/// aren't whole blocks.
fn byte_size(dtype: Dtype, shape: &[usize]) -> Option<usize> {
    let (row, outer) = shape.split_last()?;
    if !row.is_multiple_of(dtype.block()) {
        return None;
    }
    let factors = outer.iter().chain(std::iter::once(row));
    // The number of weights must be representable too, though blocks may take fewer bytes.
    factors.clone().try_fold(4usize, |n, d| n.checked_mul((*d).max(1)))?;
    let row = (row / dtype.block()).checked_mul(dtype.size())?;
    outer.iter().try_fold(row, |n, d| n.checked_mul(*d))
}

/// Steps through the bytes of a header.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Array items still accepted.
    strings: usize,
    numbers: usize,
}

impl<'a> Reader<'a> {
    /// Magic and version.
    fn start(&mut self) -> Result<()> {
        let head = self.bytes.get(..4).unwrap_or(self.bytes);
        if head != MAGIC {
            let what = match head {
                b"FUGG" => "a big-endian GGUF file; only little-endian ones are read, convert it anew".to_string(),
                b"tjgg" | b"fmgg" | b"lmgg" | b"ggjt" | b"ggmf" | b"ggml" => {
                    "a file of the format before GGUF; convert the model anew".to_string()
                }
                [] => "the file is empty; download it again".to_string(),
                _ => format!("it starts with \"{}\" at byte 0, not with GGUF; download it again", head.escape_ascii()),
            };
            return Err(Error::malformed(what));
        }
        self.at = 4;
        let version = u32::from_le_bytes(self.array("the version")?);
        match version {
            2 | 3 => Ok(()),
            v if matches!(v.swap_bytes(), 1..=3) => Err(Error::unsupported(format!(
                "a big-endian GGUF file (version {} at byte 4); only little-endian ones are read, convert it anew",
                v.swap_bytes()
            ))),
            v => Err(Error::unsupported(format!(
                "GGUF version {v} at byte 4; versions 2 and 3 are read, convert the model anew"
            ))),
        }
    }

    fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    /// Refuses a count of things that take at least `least` bytes each and can't be there.
    fn bounded(&self, count: u64, least: u64, at: usize, what: &str) -> Result<()> {
        let room = self.left() / least;
        if count <= room.min(MAX_ENTRIES) {
            return Ok(());
        }
        Err(Error::malformed(format!(
            "{count} {what} (byte {at}) are more than the {} bytes left can hold; download the file again",
            self.left()
        )))
    }

    fn take(&mut self, size: u64, what: &str) -> Result<&'a [u8]> {
        if size > self.left() {
            return Err(Error::malformed(format!(
                "the file ends inside {what}: {size} bytes needed at byte {}, {} left; download it again",
                self.at,
                self.left()
            )));
        }
        let out = &self.bytes[self.at..self.at + size as usize];
        self.at += size as usize;
        Ok(out)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        let bytes = self.take(N as u64, what)?;
        let mut out = [0; N];
        out.copy_from_slice(bytes);
        Ok(out)
    }

    fn u32(&mut self, what: &str) -> Result<u32> {
        self.array(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &str) -> Result<u64> {
        self.array(what).map(u64::from_le_bytes)
    }

    fn str(&mut self, longest: u64, what: &str) -> Result<&'a str> {
        let at = self.at;
        let length = self.u64(what)?;
        if length > longest {
            return Err(Error::malformed(format!(
                "{what} of {length} bytes at byte {at}; at most {longest} are accepted"
            )));
        }
        let start = self.at;
        let bytes = self.take(length, what)?;
        std::str::from_utf8(bytes).map_err(|e| {
            Error::malformed(format!("{what} at byte {start} is not UTF-8 (byte {})", start + e.valid_up_to()))
        })
    }

    fn string(&mut self, longest: u64, what: &str) -> Result<String> {
        self.str(longest, what).map(str::to_string)
    }

    fn value(&mut self, key: &str) -> Result<Value> {
        let at = self.at;
        let what = format!("the value of {}", shown(key));
        let kind = self.u32(&what)?;
        Ok(match kind {
            0 => Value::U64(self.array::<1>(&what)?[0].into()),
            1 => Value::I64(i8::from_le_bytes(self.array(&what)?).into()),
            2 => Value::U64(u16::from_le_bytes(self.array(&what)?).into()),
            3 => Value::I64(i16::from_le_bytes(self.array(&what)?).into()),
            4 => Value::U64(self.u32(&what)?.into()),
            5 => Value::I64(i32::from_le_bytes(self.array(&what)?).into()),
            6 => Value::F64(f32::from_le_bytes(self.array(&what)?).into()),
            7 => Value::Bool(self.bool(&what)?),
            8 => Value::String(self.string(u64::MAX, &what)?),
            9 => self.items(key, &what)?,
            10 => Value::U64(self.u64(&what)?),
            11 => Value::I64(i64::from_le_bytes(self.array(&what)?)),
            12 => Value::F64(f64::from_le_bytes(self.array(&what)?)),
            _ => {
                return Err(Error::malformed(format!("{what} has the unknown type {kind} (byte {at})")));
            }
        })
    }

    fn bool(&mut self, what: &str) -> Result<bool> {
        let at = self.at;
        match self.array::<1>(what)? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => Err(Error::malformed(format!("{what}: {other} at byte {at} is no truth value"))),
        }
    }

    /// An array.
    fn items(&mut self, key: &str, what: &str) -> Result<Value> {
        let at = self.at;
        let kind = self.u32(what)?;
        let count_at = self.at;
        let count = self.u64(what)?;
        let size = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            // The length of each.
            8 => 8,
            10..=12 => 8,
            9 => {
                return Err(Error::unsupported(format!("{what} is an array of arrays (byte {at}), which is not read")));
            }
            _ => return Err(Error::malformed(format!("{what} is an array of the unknown type {kind} (byte {at})"))),
        };
        if count > self.left() / size {
            return Err(Error::malformed(format!(
                "{what}: {count} items (byte {count_at}) are more than the {} bytes left can hold; download the file again",
                self.left()
            )));
        }
        // At most the bytes of a slice.
        let n = count as usize;
        let budget = if kind == 8 { &mut self.strings } else { &mut self.numbers };
        *budget = budget.checked_sub(n).ok_or_else(|| {
            Error::unsupported(format!("{what}: {count} items (byte {count_at}) are more than any model has"))
        })?;
        if kind == 8 {
            let mut out = Vec::with_capacity(n);
            for i in 0..n {
                let item = self
                    .str(u64::MAX, "an item")
                    .map_err(|e| Error::new(e.kind(), format!("{}, item {i}: {e}", shown(key))))?;
                out.push(item.to_string());
            }
            return Ok(Value::Strings(out));
        }
        if kind == 7 {
            let mut out = Vec::with_capacity(n);
            for _ in 0..n {
                out.push(self.bool(what)?);
            }
            return Ok(Value::Bools(out));
        }
        let bytes = self.take(count * size, what)?;
        fn each<const N: usize, T>(bytes: &[u8], read: impl Fn([u8; N]) -> T) -> Vec<T> {
            bytes.as_chunks::<N>().0.iter().map(|b| read(*b)).collect()
        }
        Ok(match kind {
            0 => Value::U64s(each(bytes, |[b]| b.into())),
            1 => Value::I64s(each(bytes, |b| i8::from_le_bytes(b).into())),
            2 => Value::U64s(each(bytes, |b| u16::from_le_bytes(b).into())),
            3 => Value::I64s(each(bytes, |b| i16::from_le_bytes(b).into())),
            4 => Value::U64s(each(bytes, |b| u32::from_le_bytes(b).into())),
            5 => Value::I64s(each(bytes, |b| i32::from_le_bytes(b).into())),
            6 => Value::F32s(each(bytes, f32::from_le_bytes)),
            10 => Value::U64s(each(bytes, u64::from_le_bytes)),
            11 => Value::I64s(each(bytes, i64::from_le_bytes)),
            _ => Value::F32s(each(bytes, |b| f64::from_le_bytes(b) as f32)),
        })
    }

    fn tensor(&mut self) -> Result<Listed> {
        let at = self.at;
        let name = self.string(MAX_NAME, "a tensor's name")?;
        let what = format!("the description of tensor {}", shown(&name));
        let bad = |what: String| Error::malformed(format!("tensor {} (byte {at}) {what}", shown(&name)));
        let dims = self.u32(&what)?;
        if dims == 0 || dims > MAX_DIMS {
            return Err(bad(format!("has {dims} dimensions; 1 to {MAX_DIMS} are possible")));
        }
        let mut shape = Vec::with_capacity(dims as usize);
        for _ in 0..dims {
            let d = usize::try_from(self.u64(&what)?);
            shape.push(d.map_err(|_| bad("has a dimension that is too large".into()))?);
        }
        // The file has the fastest dimension first.
        shape.reverse();
        let number = self.u32(&what)?;
        let offset = self.u64(&what)?;
        let dtype = dtype(number).ok_or_else(|| {
            Error::unsupported(format!(
                "tensor {} (byte {at}) has the element type {number}, which is not known",
                shown(&name)
            ))
        })?;
        let bytes = byte_size(dtype, &shape).ok_or_else(|| match shape.last() {
            Some(row) if !row.is_multiple_of(dtype.block()) => {
                bad(format!("has rows of {row} weights, not whole blocks of {} ({})", dtype.block(), dtype.name()))
            }
            _ => bad(format!("has the shape {shape:?}, whose product overflows")),
        })?;
        Ok(Listed { name, at, dtype, shape, bytes, offset })
    }
}
