//! Weights whose integers, scales and offsets are tensors of their own, joined under one name.
//!
//! MLX has `x.weight` (u32), `x.scales` and `x.biases`; checkpoints this program writes have
//! `x.weight.q8` with `x.weight.q8s`, or `x.weight.q4` with `x.weight.q4s`.

use std::collections::{HashMap, HashSet};

use oxiline_kernels::quant::Affine;
use serde_json::Value;

use crate::checkpoint::Entry;
use crate::dtype::Dtype;
use crate::error::{Error, Result, shown};

/// Longest group of weights accepted.
const MAX_GROUP: u64 = 1 << 16;

/// The other tensors of a quantised weight.
#[derive(Debug, Clone)]
pub(crate) struct Parts {
    pub scales: Entry,
    /// MLX only.
    pub biases: Option<Entry>,
}

/// What `config.json` says of MLX's quantisation.
struct Quantization {
    /// Bits and group of tensors that aren't named; None when only named ones are quantised.
    all: Option<(u64, u64)>,
    /// By the module's path; None: not quantised.
    named: HashMap<String, Option<(u64, u64)>>,
}

impl Quantization {
    /// From `config.json`; None when it speaks of no quantisation of MLX.
    fn of(config: &Value) -> Result<Option<Self>> {
        let found = ["quantization", "quantization_config"].into_iter().find_map(|key| {
            let value = config.get(key)?.as_object()?;
            // Other tools' quantisations name their method.
            (!value.contains_key("quant_method")).then_some((key, value))
        });
        let Some((key, map)) = found else { return Ok(None) };
        let number = |map: &serde_json::Map<String, Value>, name: &str| -> Result<Option<u64>> {
            match map.get(name) {
                None => Ok(None),
                Some(v) => v
                    .as_u64()
                    .map(Some)
                    .ok_or_else(|| Error::malformed(format!("config.json: {name} in {key} is no whole number"))),
            }
        };
        let mode = |map: &serde_json::Map<String, Value>| match map.get("mode") {
            None => Ok(()),
            Some(Value::String(mode)) if mode == "affine" => Ok(()),
            Some(other) => Err(Error::unsupported(format!(
                "config.json: {key} has the mode {}; of MLX's only affine is read",
                shown(&other.to_string())
            ))),
        };
        mode(map)?;
        let (bits, group) = (number(map, "bits")?, number(map, "group_size")?);
        let mut named = HashMap::new();
        for (path, value) in map {
            match value {
                Value::Object(own) => {
                    mode(own)?;
                    let pair = number(own, "bits")?.or(bits).zip(number(own, "group_size")?.or(group));
                    let pair = pair.ok_or_else(|| {
                        Error::malformed(format!("config.json: {} in {key} lacks bits or group_size", shown(path)))
                    })?;
                    named.insert(path.clone(), Some(pair));
                }
                Value::Bool(false) => drop(named.insert(path.clone(), None)),
                _ => {}
            }
        }
        Ok(Some(Self { all: bits.zip(group), named }))
    }
}

/// Joins what belongs together. `config` is asked for `config.json` only when there are tensors
/// that look like MLX's.
pub(crate) fn join(
    names: &mut Vec<String>,
    entries: &mut HashMap<String, Entry>,
    config: impl FnOnce() -> Result<Option<Value>>,
) -> Result<()> {
    let mut gone: HashSet<String> = HashSet::new();
    let mut renamed: HashMap<String, String> = HashMap::new();
    for name in names.iter() {
        let (dtype, end) = match name.rsplit_once('.') {
            Some((_, "q8")) => (Dtype::Q8, "q8s"),
            Some((_, "q4")) => (Dtype::Q4, "q4s"),
            _ => continue,
        };
        let stem = &name[..name.len() - 3];
        let scales_name = format!("{stem}.{end}");
        let Some(scales) = entries.get(&scales_name).cloned() else { continue };
        if entries.contains_key(stem) {
            return Err(Error::malformed(format!("tensor {} is there both as it is and as {end}", shown(stem))));
        }
        let mut entry = entries[name].clone();
        entry.shape = own_shape(&entry, &scales, dtype)
            .ok_or_else(|| misfit(name, &entry, &[(scales_name.as_str(), &scales)], "this program's layout"))?;
        entry.dtype = dtype;
        entry.parts = Some(Box::new(Parts { scales, biases: None }));
        entries.insert(stem.to_string(), entry);
        gone.insert(scales_name);
        renamed.insert(name.clone(), stem.to_string());
    }
    let mlx: Vec<String> = names
        .iter()
        .filter_map(|n| n.strip_suffix(".weight"))
        .filter(|n| entries[&format!("{n}.weight")].dtype == Dtype::U32 && entries.contains_key(&format!("{n}.scales")))
        .map(str::to_string)
        .collect();
    let quantization =
        if mlx.is_empty() { None } else { config()?.map(|c| Quantization::of(&c)).transpose()?.flatten() };
    if let Some(quantization) = quantization {
        for module in mlx {
            let pair = quantization.named.get(&module).copied().unwrap_or(quantization.all);
            let Some((bits, group)) = pair else { continue };
            let name = format!("{module}.weight");
            let side = |end: &str| {
                let name = format!("{module}.{end}");
                let entry = entries.get(&name).cloned();
                entry.ok_or_else(|| Error::malformed(format!("tensor {} is missing beside its weight", shown(&name))))
            };
            let (scales, biases) = (side("scales")?, side("biases")?);
            let affine = u32::try_from(bits).ok().and_then(|b| Affine::new(b, group.min(MAX_GROUP) as usize));
            let affine = affine.filter(|_| group <= MAX_GROUP).ok_or_else(|| {
                Error::unsupported(format!(
                    "config.json gives tensor {} {bits} bits in groups of {group}; 2, 3, 4, 5, 6 and 8 bits are read",
                    shown(&name)
                ))
            })?;
            let mut entry = entries[&name].clone();
            entry.shape = affine_shape(&entry, &scales, &biases, affine).ok_or_else(|| {
                let sides = [("its scales", &scales), ("its biases", &biases)];
                misfit(&name, &entry, &sides, &format!("{bits} bits in groups of {group} (config.json)"))
            })?;
            entry.dtype = Dtype::Affine { bits: bits as u8, group: group as u32 };
            entry.parts = Some(Box::new(Parts { scales, biases: Some(biases) }));
            entries.insert(name, entry);
            gone.extend([format!("{module}.scales"), format!("{module}.biases")]);
        }
    }
    for name in gone.iter().chain(renamed.keys()) {
        entries.remove(name);
    }
    names.retain(|n| !gone.contains(n));
    for name in names {
        if let Some(stem) = renamed.get(name) {
            name.clone_from(stem);
        }
    }
    Ok(())
}

fn misfit(name: &str, entry: &Entry, sides: &[(&str, &Entry)], of: &str) -> Error {
    let sides: Vec<String> =
        sides.iter().map(|(n, e)| format!("{} {} {:?}", shown(n), e.dtype.name(), e.shape)).collect();
    Error::malformed(format!(
        "tensor {} {} {:?} does not fit {of}: {}",
        shown(name),
        entry.dtype.name(),
        entry.shape,
        sides.join(", ")
    ))
}

fn plain(entry: &Entry) -> bool {
    entry.strides.is_none()
}

/// Logical shape of one of our own tensors.
fn own_shape(entry: &Entry, scales: &Entry, dtype: Dtype) -> Option<Vec<usize>> {
    let (codes, scale, per) = match dtype {
        Dtype::Q8 => (Dtype::I8, Dtype::F32, 1),
        _ => (Dtype::U8, Dtype::F16, 2),
    };
    let (last, outer) = entry.shape.split_last()?;
    let (groups, outer_scales) = scales.shape.split_last()?;
    let row = last.checked_mul(per)?;
    let fits = entry.dtype == codes && scales.dtype == scale && plain(entry) && plain(scales);
    let fits = fits && !outer.is_empty() && outer == outer_scales && groups.checked_mul(32) == Some(row);
    fits.then(|| [outer, &[row]].concat())
}

/// Logical shape of one of MLX's.
fn affine_shape(entry: &Entry, scales: &Entry, biases: &Entry, affine: Affine) -> Option<Vec<usize>> {
    let (words, outer) = entry.shape.split_last()?;
    let (groups, outer_scales) = scales.shape.split_last()?;
    let bits = words.checked_mul(32)?;
    let row = bits / affine.bits() as usize;
    let float = |e: &Entry| matches!(e.dtype, Dtype::F16 | Dtype::BF16 | Dtype::F32) && plain(e);
    let fits = float(scales) && float(biases) && plain(entry) && scales.shape == biases.shape;
    let fits = fits && bits.is_multiple_of(affine.bits() as usize) && !outer.is_empty() && outer == outer_scales;
    let fits = fits && groups.checked_mul(affine.group()) == Some(row);
    fits.then(|| [outer, &[row]].concat())
}
