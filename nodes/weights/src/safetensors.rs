//! The header of a safetensors file: 8 bytes of length, JSON, then the tensors' bytes.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use crate::checkpoint::{Entry, MAX_RANK};
use crate::dtype::Dtype;
use crate::error::{Error, Result, shown};

/// Largest header accepted, the limit of the format's own reference reader.
pub(crate) const MAX_HEADER: u64 = 100_000_000;

/// The tensors of a file given as its bytes. Messages start without the file's name.
pub(crate) fn parse(bytes: &[u8]) -> Result<Vec<(String, Entry)>> {
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(Error::malformed(format!(
            "{} bytes are too few for a safetensors file (8 bytes of header length); download it again",
            bytes.len()
        )));
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER {
        return Err(Error::malformed(format!(
            "header length {length} at byte 0 is above the limit of {MAX_HEADER}; this is no safetensors file"
        )));
    }
    let header = usize::try_from(length).ok().and_then(|n| rest.get(..n)).ok_or_else(|| {
        Error::malformed(format!(
            "header length {length} at byte 0 reaches past the end of the file ({} bytes); download it again",
            bytes.len()
        ))
    })?;
    let start = 8 + header.len();
    let data = bytes.len() - start;
    if header.first() != Some(&b'{') {
        return Err(Error::malformed("the header at byte 8 is not a JSON object; this is no safetensors file"));
    }
    let Header(tensors) = serde_json::from_slice(header)
        .map_err(|e| Error::malformed(format!("the header is broken: {e} (counted from byte 8)")))?;
    let mut out = Vec::with_capacity(tensors.len());
    let mut spans = Vec::with_capacity(tensors.len());
    for (name, raw) in tensors {
        let entry = check(&name, raw, start, data)?;
        spans.push((entry.offset, entry.bytes, out.len()));
        out.push((name, entry));
    }
    // Tensors must fill the data exactly: a hole could hide anything, an overlap is an attack.
    spans.sort_unstable();
    let mut at = start;
    for (offset, size, index) in spans {
        if offset != at {
            let word = if offset < at { "overlaps the tensor before it" } else { "leaves a hole before it" };
            return Err(Error::malformed(format!("tensor {} at byte {offset} {word}", shown(&out[index].0))));
        }
        at += size;
    }
    if at != bytes.len() {
        return Err(Error::malformed(format!(
            "{} bytes after the last tensor (from byte {at}) belong to no tensor; download it again",
            bytes.len() - at
        )));
    }
    Ok(out)
}

fn check(name: &str, raw: RawTensor, start: usize, data: usize) -> Result<Entry> {
    let name = shown(name);
    let dtype = Dtype::from_name(&raw.dtype).ok_or_else(|| {
        Error::unsupported(format!("tensor {name} has the element type {}, which is not known", shown(&raw.dtype)))
    })?;
    if raw.shape.len() > MAX_RANK {
        return Err(Error::malformed(format!("tensor {name} has {} dimensions", raw.shape.len())));
    }
    let shape = raw
        .shape
        .iter()
        .map(|d| usize::try_from(*d))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| Error::malformed(format!("tensor {name}: a dimension is too large")))?;
    let size = byte_size(&shape, dtype)
        .ok_or_else(|| Error::malformed(format!("tensor {name}: the product of its shape {shape:?} overflows")))?;
    let [from, to] = raw.data_offsets;
    if from > to || to > data as u64 {
        return Err(Error::malformed(format!(
            "tensor {name}: its bytes {from}..{to} are not inside the {data} bytes of data (from byte {start})"
        )));
    }
    // Both fit in usize: they are at most `data`.
    let (from, to) = (from as usize, to as usize);
    if to - from != size {
        return Err(Error::malformed(format!(
            "tensor {name}: {} of shape {shape:?} takes {size} bytes, the header gives it {}",
            dtype.name(),
            to - from
        )));
    }
    Ok(Entry { dtype, shape, blob: 0, offset: start + from, bytes: size, strides: None, parts: None })
}

/// Bytes of a tensor; `None` when the product overflows, also when another factor is zero.
pub(crate) fn byte_size(shape: &[usize], dtype: Dtype) -> Option<usize> {
    let mut size = dtype.size();
    let mut empty = false;
    for &d in shape {
        empty |= d == 0;
        size = size.checked_mul(d.max(1))?;
    }
    Some(if empty { 0 } else { size })
}

struct Header(Vec<(String, RawTensor)>);

struct RawTensor {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// A map read key by key: `serde`'s own maps would let a duplicate key win silently.
impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys;
        impl<'de> Visitor<'de> for Keys {
            type Value = Header;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object of tensors")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut seen = std::collections::HashSet::new();
                let mut tensors = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if !seen.insert(name.clone()) {
                        return Err(A::Error::custom(format!("{} is there twice", shown(&name))));
                    }
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        tensors.push((name, map.next_value()?));
                    }
                }
                Ok(Header(tensors))
            }
        }
        deserializer.deserialize_map(Keys)
    }
}

impl<'de> Deserialize<'de> for RawTensor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Fields {
            dtype: String,
            shape: Vec<u64>,
            data_offsets: [u64; 2],
        }
        let Fields { dtype, shape, data_offsets } = Fields::deserialize(deserializer)?;
        Ok(Self { dtype, shape, data_offsets })
    }
}
