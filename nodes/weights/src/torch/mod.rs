//! Files of `torch.save`: a state dict pickled beside its raw storages.
//!
//! Two containers: a zip of stored records (since torch 1.6), and the older sequence of pickles
//! followed by storages. The pickle is read by [`pickle`], which builds data and calls nothing.

mod pickle;
mod zip;

use std::collections::HashMap;

use self::pickle::{Machine, Tensor};
use crate::checkpoint::Entry;
use crate::error::{Error, Result, shown};

/// First bytes of a zip archive.
pub(crate) const ZIP: &[u8] = b"PK\x03\x04";
/// First byte of a pickle of protocol 2 or later.
pub(crate) const PICKLE: &[u8] = b"\x80";
/// Largest pickle read; a state dict takes some hundred bytes a tensor.
const MAX_PICKLE: usize = 64 << 20;
/// A view may repeat elements (`expand`), up to this many when they are more than stored.
const MAX_EXPANDED: usize = 1 << 20;
/// What `torch.save` wrote before zip archives, as the first pickled number.
const LEGACY_MAGIC: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];

/// Tensors of a zip archive.
pub(crate) fn parse_zip(bytes: &[u8]) -> Result<Vec<(String, Entry)>> {
    let archive = zip::Archive::read(bytes)?;
    let mut pickles = archive.names().filter(|n| n.ends_with("/data.pkl") || *n == "data.pkl");
    let name = pickles.next().ok_or_else(|| Error::malformed("a zip archive without data.pkl: not a torch model"))?;
    if pickles.next().is_some() {
        return Err(Error::malformed("the archive has two data.pkl; a torch model has one"));
    }
    let root = &name[..name.len() - "data.pkl".len()];
    if let Some(order) = archive.get(&format!("{root}byteorder"))?
        && &bytes[order.clone()] != b"little"
    {
        return Err(Error::unsupported("the record byteorder isn't little; save the model again on a common machine"));
    }
    let span = archive.record(name)?;
    let start = span.start;
    if span.len() > MAX_PICKLE {
        return Err(Error::malformed(format!("data.pkl takes {} bytes; at most {MAX_PICKLE} are read", span.len())));
    }
    let mut machine = Machine::new(&bytes[span], start);
    let top = machine.run()?;
    let mut out = Vec::new();
    for (name, tensor) in machine.tensors(top)? {
        let key = &tensor.key;
        if key.is_empty() || !key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            return Err(Error::malformed(format!("tensor {}: {} is no storage's name", shown(&name), shown(key))));
        }
        let span = archive.record(&format!("{root}data/{key}")).map_err(|e| named(&name, &e))?;
        let wanted = tensor.numel.checked_mul(tensor.dtype.size());
        if wanted != Some(span.len()) {
            return Err(Error::malformed(format!(
                "tensor {}: its storage {} has {} bytes, the pickle says {} elements of {}",
                shown(&name),
                shown(key),
                span.len(),
                tensor.numel,
                tensor.dtype.name()
            )));
        }
        out.push((name.clone(), entry(&name, tensor, span.start)?));
    }
    Ok(out)
}

/// Tensors of the older format.
pub(crate) fn parse_legacy(bytes: &[u8]) -> Result<Vec<(String, Entry)>> {
    let mut at = 0;
    let mut step = |what: &str| -> Result<(Machine<'_>, pickle::Id)> {
        let mut machine = Machine::new(bytes.get(at..).unwrap_or_default(), at);
        let top = machine.run().map_err(|e| Error::new(e.kind(), format!("in the {what}: {e}")))?;
        at += machine.consumed();
        Ok((machine, top))
    };
    let (magic, top) = step("first pickle")?;
    if magic.long(top) != Some(&LEGACY_MAGIC[..]) {
        return Err(Error::malformed("a pickle, but not of torch.save; save the model's state_dict with torch.save"));
    }
    let (version, top) = step("version")?;
    if version.int(top) != Some(1001) {
        return Err(Error::unsupported("an unknown version of torch's old format; save it again with a current torch"));
    }
    let (system, top) = step("system record")?;
    if system.field(top, "little_endian") != Some(true) {
        return Err(Error::unsupported("the numbers aren't little-endian; save the model again on a common machine"));
    }
    let (mut machine, top) = step("state dict")?;
    let tensors = machine.tensors(top)?;
    let (keys, top) = step("list of storages")?;
    let keys = keys.strings(top).ok_or_else(|| Error::malformed("the list of storages isn't a list of names"))?;
    let sizes: HashMap<String, (usize, usize)> =
        tensors.iter().map(|(_, t)| (t.key.clone(), (t.numel, t.dtype.size()))).collect();
    let mut spans = HashMap::new();
    for key in &keys {
        let (numel, size) = *sizes.get(key.as_str()).ok_or_else(|| {
            Error::malformed(format!("storage {} belongs to no tensor, so its size is unknown", shown(key)))
        })?;
        let head = bytes.get(at..).and_then(|b| b.first_chunk::<8>());
        let head = head.ok_or_else(|| Error::malformed(format!("the file ends at byte {at}, before a storage")))?;
        let stored = i64::from_le_bytes(*head);
        if usize::try_from(stored) != Ok(numel) {
            return Err(Error::malformed(format!(
                "storage {} at byte {at} has {stored} elements, the pickle says {numel}",
                shown(key)
            )));
        }
        let start = at + 8;
        let end = numel.checked_mul(size).and_then(|n| start.checked_add(n)).filter(|end| *end <= bytes.len());
        at = end.ok_or_else(|| {
            Error::malformed(format!("storage {} at byte {start} reaches past the end of the file", shown(key)))
        })?;
        if spans.insert(key.clone(), (start, numel)).is_some() {
            return Err(Error::malformed(format!("storage {} is listed twice", shown(key))));
        }
    }
    let mut out = Vec::new();
    for (name, tensor) in &tensors {
        let found = spans.get(&tensor.key).filter(|(_, numel)| *numel == tensor.numel);
        // Two tensors that read one storage as different types would make its size ambiguous.
        let same = sizes.get(tensor.key.as_str()).is_some_and(|(_, size)| *size == tensor.dtype.size());
        let (start, _) = *found.filter(|_| same).ok_or_else(|| {
            Error::malformed(format!("tensor {}: no storage {} as it says", shown(name), shown(&tensor.key)))
        })?;
        out.push((name.clone(), entry(name, tensor.clone(), start)?));
    }
    Ok(out)
}

fn named(tensor: &str, error: &Error) -> Error {
    Error::new(error.kind(), format!("tensor {}: {error}", shown(tensor)))
}

/// Places a tensor whose storage starts at byte `start` of the file.
fn entry(name: &str, tensor: Tensor, start: usize) -> Result<Entry> {
    let bad = |what: String| Error::malformed(format!("tensor {}: {what}", shown(name)));
    let Tensor { dtype, numel, offset, shape, strides, .. } = tensor;
    let bytes = crate::safetensors::byte_size(&shape, dtype)
        .ok_or_else(|| bad(format!("the product of its shape {shape:?} overflows")))?;
    if bytes == 0 {
        return Ok(Entry { dtype, shape, blob: 0, offset: start, bytes: 0, strides: None, parts: None });
    }
    let last = shape.iter().zip(&strides).try_fold(offset, |at, (d, s)| at.checked_add((d - 1).checked_mul(*s)?));
    if last.is_none_or(|last| last >= numel) {
        return Err(bad(format!(
            "shape {shape:?}, strides {strides:?} and offset {offset} reach past its storage of {numel} elements"
        )));
    }
    let elements = bytes / dtype.size();
    if elements > numel.max(MAX_EXPANDED) {
        return Err(bad(format!("shape {shape:?} repeats the {numel} stored elements too often")));
    }
    let mut step = 1;
    let mut contiguous = true;
    for (d, s) in shape.iter().zip(&strides).rev() {
        contiguous &= *d == 1 || *s == step;
        step *= d;
    }
    // `offset < numel`, and all of the storage lies inside the file: no overflow.
    let offset = start + offset * dtype.size();
    Ok(Entry { dtype, shape, blob: 0, offset, bytes, strides: (!contiguous).then_some(strides), parts: None })
}
