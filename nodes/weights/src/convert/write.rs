//! Writes the files of a plan, a few rows at a time.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use oxiline_kernels::{BlockType, quantise_q8};
use serde_json::{Map, Value, json};

use super::plan::{ALIGN, Item, Plan, Shard};
use super::{Converted, Quant};
use crate::checkpoint::Checkpoint;
use crate::error::{Error, ErrorKind, Result};
use crate::matrix::each_row;

/// Weights quantised before they are written.
const PIECE: usize = 4 << 20;
const ZEROS: [u8; ALIGN as usize] = [0; ALIGN as usize];

/// Writes all shards and their index.
pub(super) fn shards(
    checkpoint: &Checkpoint,
    plan: &Plan,
    folder: &Path,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<Converted> {
    let mut out = Converted { quantised: 0, kept: 0, bytes: 0, files: plan.shards.len() };
    let (mut map, mut done) = (Map::new(), 0);
    for shard in &plan.shards {
        let path = folder.join(&shard.file);
        let failed = |e: std::io::Error| Error::io("write it", &path, &e);
        let mut file = BufWriter::with_capacity(1 << 20, File::create_new(&path).map_err(failed)?);
        let header = header(plan, shard);
        file.write_all(&header).map_err(failed)?;
        out.bytes += header.len() as u64;
        for item in &shard.items {
            let written = tensor(checkpoint, item, &mut |bytes| file.write_all(bytes).map_err(failed))?;
            out.bytes += written;
            match item.quant {
                Some(_) => out.quantised += 1,
                None => out.kept += 1,
            }
            for output in &item.outputs {
                map.insert(output.name.clone(), shard.file.clone().into());
            }
            done += item.read;
            if !progress(done, plan.total) {
                return Err(Error::new(ErrorKind::Cancelled, "stopped; nothing was kept"));
            }
        }
        let file = file.into_inner().map_err(|e| failed(e.into_error()))?;
        file.sync_all().map_err(failed)?;
    }
    let metadata = json!({"total_size": out.bytes, "quant": plan.options.quant.name()});
    let index = json!({"metadata": metadata, "weight_map": map});
    whole(&folder.join("model.safetensors.index.json"), format!("{index:#}").as_bytes())?;
    Ok(out)
}

/// Writes a file that was not there and waits for the disk.
pub(super) fn whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let write = || {
        let mut file = File::create_new(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(|e| Error::io("write it", path, &e))
}

/// Length and JSON; the data after it starts at a multiple of [`ALIGN`]. Between tensors there are
/// others that fill up to the next multiple: the format has no holes.
fn header(plan: &Plan, shard: &Shard) -> Vec<u8> {
    let mut tensors = Map::new();
    let tables = plan.options.tables.map_or("stored", Quant::name);
    let about = json!({"format": "oxiline", "version": "1", "quant": plan.options.quant.name(), "tables": tables});
    tensors.insert("__metadata__".into(), about);
    let mut at = 0;
    for output in shard.items.iter().flat_map(|i| &i.outputs) {
        let end = at + output.bytes;
        tensors.insert(
            output.name.clone(),
            json!({"dtype": output.dtype.name(), "shape": output.shape, "data_offsets": [at, end]}),
        );
        at = end.next_multiple_of(ALIGN);
        if at > end {
            tensors.insert(
                format!("__fill__.{end}"),
                json!({"dtype": "U8", "shape": [at - end], "data_offsets": [end, at]}),
            );
        }
    }
    let mut text = Value::Object(tensors).to_string().into_bytes();
    let size = (text.len() as u64 + 8).next_multiple_of(ALIGN) - 8;
    text.resize(size as usize, b' ');
    let mut out = size.to_le_bytes().to_vec();
    out.extend(text);
    out
}

/// One tensor with what fills up behind each of its outputs; the bytes written.
fn tensor(checkpoint: &Checkpoint, item: &Item, put: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<u64> {
    let mut total = 0;
    let mut fill = |bytes: u64, put: &mut dyn FnMut(&[u8]) -> Result<()>| {
        let end = bytes.next_multiple_of(ALIGN);
        total += end;
        put(&ZEROS[..(end - bytes) as usize])
    };
    let Some(quant) = item.quant else {
        let info = checkpoint.info(&item.name)?;
        if info.dtype.is_quantised() {
            for piece in checkpoint.f32(&item.name)?.chunks(PIECE) {
                put(&piece.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>())?;
            }
        } else {
            put(&checkpoint.bytes(&item.name)?)?;
        }
        for output in &item.outputs {
            fill(output.bytes, put)?;
        }
        return Ok(total);
    };
    let row = checkpoint.info(&item.name)?.shape.last().copied().unwrap_or(1);
    let (code_bytes, scale_bytes) = match quant {
        Quant::Q8 => (row, row / 32 * 4),
        Quant::Q4 => (row / 2, row / 32 * 2),
    };
    let mut all_scales = Vec::new();
    checkpoint.f32_rows(&item.name, (PIECE / row).max(1), &mut |values| {
        // Codes and scales of a row side by side, so that rows can be made in parallel.
        let size = code_bytes + scale_bytes;
        let mut both = vec![0u8; values.len() / row * size];
        each_row(&mut both, size, |i, into| {
            let (codes, scales) = into.split_at_mut(code_bytes);
            quantise(quant, &values[i * row..(i + 1) * row], codes, scales);
        });
        let mut codes = Vec::with_capacity(values.len() / row * code_bytes);
        for row in both.chunks_exact(size) {
            codes.extend_from_slice(&row[..code_bytes]);
            all_scales.extend_from_slice(&row[code_bytes..]);
        }
        put(&codes)
    })?;
    fill(item.outputs[0].bytes, put)?;
    put(&all_scales)?;
    fill(item.outputs[1].bytes, put)?;
    Ok(total)
}

fn quantise(quant: Quant, values: &[f32], codes: &mut [u8], scales: &mut [u8]) {
    match quant {
        Quant::Q8 => {
            let scales = scales.chunks_exact_mut(4);
            for ((x, codes), scale) in values.chunks_exact(32).zip(codes.chunks_exact_mut(32)).zip(scales) {
                let mut q = [0; 32];
                scale.copy_from_slice(&quantise_q8(x, &mut q).to_le_bytes());
                for (to, q) in codes.iter_mut().zip(q) {
                    *to = q as u8;
                }
            }
        }
        Quant::Q4 => {
            let blocks = BlockType::Q4_0.quantize(values).unwrap_or_default();
            let scales = scales.chunks_exact_mut(2);
            for ((block, codes), scale) in blocks.chunks_exact(18).zip(codes.chunks_exact_mut(16)).zip(scales) {
                scale.copy_from_slice(&block[..2]);
                codes.copy_from_slice(&block[2..]);
            }
        }
    }
}
