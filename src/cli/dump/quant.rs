//! `oxiline dump dequantize`, `matvec` and `quantize`: the quantised formats alone.

use oxiline::graph::{Error, Result};
use oxiline::kernels::quant::Affine;
use oxiline::kernels::{BlockType, Matrix, Pool, Storage};
use safetensors::Dtype;

use super::file::{self, Out};
use super::input::Input;
use crate::cli::args::{DumpDequantize, DumpMatvec, DumpQuantize};

/// `dump dequantize`
pub fn dequantize(args: DumpDequantize) -> Result<()> {
    file::apart(&args.io.input, &args.io.output)?;
    if args.kind.eq_ignore_ascii_case("mlx") {
        return affine(&args);
    }
    if args.bits.is_some() || args.group.is_some() {
        return Err(Error::msg("`--bits` and `--group` belong to `--type mlx`; GGUF's types have theirs"));
    }
    let kind = kind(&args.kind, true)?;
    let input = Input::open(&args.io.input)?;
    let (shape, blocks) = blocks(&input, kind)?;
    let mut values = vec![0.0; blocks.len() / kind.bytes() * kind.block()];
    kind.dequantize_on(Pool::global(), blocks, &mut values);
    let shape = reshaped(&shape, kind.bytes(), kind.block(), values.len());
    file::write(&args.io.output, &[Out::f32("values", &shape, &values)], Vec::new())
}

/// `dump quantize`
pub fn quantize(args: DumpQuantize) -> Result<()> {
    file::apart(&args.io.input, &args.io.output)?;
    let kind = kind(&args.kind, false)?;
    let input = Input::open(&args.io.input)?;
    let (shape, values) = input.floats("values")?;
    if !values.len().is_multiple_of(kind.block()) {
        return Err(input.error(format_args!(
            "`values` holds {} numbers, not whole blocks of {} as {} has them",
            values.len(),
            kind.block(),
            kind.name()
        )));
    }
    let blocks = kind.quantize(&values).ok_or_else(|| only_read(kind))?;
    let shape = reshaped(&shape, kind.block(), kind.bytes(), blocks.len());
    file::write(&args.io.output, &[Out::u8("blocks", &shape, blocks)], Vec::new())
}

/// `dump matvec`
pub fn matvec(args: DumpMatvec) -> Result<()> {
    file::apart(&args.io.input, &args.io.output)?;
    let kind = kind(&args.kind, true)?;
    let input = Input::open(&args.io.input)?;
    let (shape, blocks) = blocks(&input, kind)?;
    let (x_shape, x) = input.floats("x")?;
    let Some((&in_dim, tokens)) = x_shape.split_last().filter(|_| !x.is_empty()) else {
        return Err(input.error(format_args!("`x` has shape {x_shape:?}; give [in] or [tokens, in]")));
    };
    let row = kind.row_bytes(in_dim).ok_or_else(|| {
        input.error(format_args!(
            "`x` has rows of {in_dim}, not whole blocks of {} as {} has them",
            kind.block(),
            kind.name()
        ))
    })?;
    // One axis says nothing of rows; more say how long one is.
    let fits = if shape.len() > 1 { shape.last() == Some(&row) } else { blocks.len().is_multiple_of(row) };
    if !fits {
        return Err(input.error(format_args!(
            "`blocks` has shape {shape:?}, but {in_dim} weights, one for each number of a row of `x`, are {row} bytes of {}",
            kind.name()
        )));
    }
    let out_dim = blocks.len() / row;
    let matrix = if args.exact {
        let mut weights = vec![0.0; out_dim * in_dim];
        kind.dequantize_on(Pool::global(), blocks, &mut weights);
        Matrix::from_f32(out_dim, in_dim, &weights, Storage::F32)
    } else {
        Matrix::from_blocks(out_dim, in_dim, kind, blocks)
    };
    let mut y = vec![0.0; x.len() / in_dim * out_dim];
    matrix.matmul(Pool::global(), &x, None, &mut y);
    let shape = [tokens, &[out_dim]].concat();
    file::write(&args.io.output, &[Out::f32("y", &shape, &y)], Vec::new())
}

/// `dump dequantize --type mlx`
fn affine(args: &DumpDequantize) -> Result<()> {
    let Some(bits) = args.bits else {
        return Err(Error::msg("`--type mlx` needs `--bits`: 2, 3, 4, 5, 6 or 8"));
    };
    let input = Input::open(&args.io.input)?;
    let (shape, packed) = input.bytes("weight", Dtype::U32, "uint32 words")?;
    let (scales_shape, scales) = input.floats("scales")?;
    let (biases_shape, biases) = input.floats("biases")?;
    if scales_shape != biases_shape {
        return Err(
            input.error(format_args!("`scales` {scales_shape:?} and `biases` {biases_shape:?} differ in shape"))
        );
    }
    let (Some((&words, outer)), Some((&groups, outer_scales))) = (shape.split_last(), scales_shape.split_last()) else {
        return Err(input.error("`weight` and `scales` are single numbers; give rows of words and of groups"));
    };
    if outer != outer_scales {
        return Err(input.error(format_args!("`weight` {shape:?} and `scales` {scales_shape:?} differ in rows")));
    }
    let unfit = |what: &dyn std::fmt::Display| {
        input.error(format_args!("`weight` {shape:?} with `scales` {scales_shape:?} at {bits} bits: {what}"))
    };
    if !Affine::BITS.contains(&bits) {
        return Err(unfit(&"MLX packs 2, 3, 4, 5, 6 or 8"));
    }
    let row_bits = words.checked_mul(32).ok_or_else(|| unfit(&"too many"))?;
    let in_dim = row_bits / bits as usize;
    let group = match args.group {
        Some(group) => group,
        None if groups > 0 => in_dim / groups,
        None => 0,
    };
    let affine = Affine::new(bits, group).ok_or_else(|| unfit(&"a group holds one weight or more"))?;
    if affine.row_bytes(in_dim) != Some(words * 4) || in_dim / group != groups {
        return Err(unfit(&format_args!("rows of {words} words are not {groups} groups of {group}")));
    }
    let mut values = vec![0.0; packed.len() / (words * 4).max(1) * in_dim];
    affine.dequantize(packed, &scales, &biases, &mut values);
    let shape = [outer, &[in_dim]].concat();
    file::write(&args.io.output, &[Out::f32("values", &shape, &values)], Vec::new())
}

/// The block type of a name: any, or one that can be written.
fn kind(name: &str, any: bool) -> Result<BlockType> {
    let list = |types: &mut dyn Iterator<Item = BlockType>| types.map(BlockType::name).collect::<Vec<_>>().join(", ");
    match BlockType::from_name(name) {
        Some(kind) if any || BlockType::QUANTIZABLE.contains(&kind) => Ok(kind),
        Some(kind) => Err(only_read(kind)),
        None => {
            let known = if any { list(&mut BlockType::all()) } else { list(&mut BlockType::QUANTIZABLE.into_iter()) };
            Err(Error::msg(format_args!("`--type {name}` is not known; use one of {known}")))
        }
    }
}

fn only_read(kind: BlockType) -> Error {
    let names: Vec<_> = BlockType::QUANTIZABLE.iter().map(|kind| kind.name()).collect();
    Error::msg(format_args!("{} is only read; these can be made: {}", kind.name(), names.join(", ")))
}

/// `blocks`, whole blocks of the type.
fn blocks(input: &Input, kind: BlockType) -> Result<(Vec<usize>, &[u8])> {
    let (shape, bytes) = input.bytes("blocks", Dtype::U8, "uint8")?;
    if !bytes.len().is_multiple_of(kind.bytes()) {
        return Err(input.error(format_args!(
            "`blocks` is {} bytes long, not whole blocks of {} bytes as {} has them",
            bytes.len(),
            kind.bytes(),
            kind.name()
        )));
    }
    Ok((shape, bytes))
}

/// The shape with `from` of the last axis made `to`; one axis where the last isn't whole.
fn reshaped(shape: &[usize], from: usize, to: usize, total: usize) -> Vec<usize> {
    match shape.split_last() {
        Some((&last, outer)) if last.is_multiple_of(from) => [outer, &[last / from * to]].concat(),
        _ => vec![total],
    }
}
