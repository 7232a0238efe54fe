//! `oxiline dump dequantize`, `quantize` and `matvec`, through the command line.

mod common;

use std::path::Path;

use common::{Tensors, root, run, sentence, stdout};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

type Tensor = (&'static str, Dtype, Vec<usize>, Vec<u8>);

fn write(path: &Path, tensors: &[Tensor]) {
    let view = |t: &Tensor| TensorView::new(t.1, t.2.clone(), &t.3).expect("view").data().len();
    tensors.iter().for_each(|t| assert_eq!(view(t), t.3.len()));
    let views = tensors.iter().map(|t| (t.0, TensorView::new(t.1, t.2.clone(), &t.3).expect("view")));
    std::fs::write(path, safetensors::serialize(views, None).expect("serialised")).expect("written");
}

/// A tensor of the kernels' fixtures under another name.
fn golden(file: &str, name: &str, rename: &'static str) -> Tensor {
    let bytes = std::fs::read(root().join(format!("kernels/tests/fixtures/quant/{file}.safetensors"))).expect("file");
    let file = SafeTensors::deserialize(&bytes).expect("safetensors");
    let tensor = file.tensor(name).unwrap_or_else(|_| panic!("tensor {name}"));
    (rename, tensor.dtype(), tensor.shape().to_vec(), tensor.data().to_vec())
}

fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn f64s(bytes: &[u8]) -> Vec<f64> {
    bytes.as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b)).collect()
}

/// Runs a dump over tensors; what it prints on standard error when it fails.
fn dump(flags: &[&str], tensors: &[Tensor]) -> Result<Tensors, String> {
    let dir = tempfile::tempdir().expect("temporary folder");
    let (input, output) = (dir.path().join("in.safetensors"), dir.path().join("out.safetensors"));
    write(&input, tensors);
    let (from, to) = (input.to_str().expect("path"), output.to_str().expect("path"));
    let result = run([&["dump"], flags, &["--input", from, "--output", to]].concat());
    if result.status.success() {
        stdout(&result);
        return Ok(Tensors::read(&output));
    }
    assert!(!output.exists(), "a failed dump leaves nothing behind");
    Err(sentence(&result))
}

fn fails(flags: &[&str], tensors: &[Tensor], part: &str) {
    let said = dump(flags, tensors).err().unwrap_or_else(|| panic!("{flags:?} went well"));
    assert!(said.contains(part) && said.lines().count() == 1, "{flags:?}: {said}");
}

#[test]
fn blocks_become_the_references_weights() {
    for name in ["Q4_K", "q6_k", "IQ3_XXS", "F16"] {
        let upper = name.to_uppercase();
        let blocks = golden("blocks", &format!("{upper}.blocks"), "blocks");
        let values = golden("blocks", &format!("{upper}.values"), "values");
        let got = dump(&["dequantize", "--type", name], &[blocks]).expect("dequantised");
        assert_eq!(got.shape("values"), values.2, "{name}");
        assert_eq!(got.f32("values"), f32s(&values.3), "{name}");
    }
    // A last axis that isn't whole blocks: the total is.
    let (_, dtype, _, bytes) = golden("blocks", "Q8_0.blocks", "blocks");
    let odd = ("blocks", dtype, vec![17, bytes.len() / 17], bytes);
    assert_eq!(dump(&["dequantize", "--type", "Q8_0"], &[odd]).expect("dequantised").shape("values"), [6 * 1024]);
}

#[test]
fn mlx_groups_become_mlxs_weights() {
    for (case, bits) in [("q4_g32", "4"), ("q3_g64", "3"), ("q8_g128", "8")] {
        let tensors = [("weight", "weight"), ("scales", "scales"), ("biases", "biases")]
            .map(|(from, to)| golden("affine", &format!("{case}.{from}"), to));
        let values = f32s(&golden("affine", &format!("{case}.values"), "values").3);
        let group = case.split_once("_g").expect("a group").1;
        for flags in [&["--group", group][..], &[]] {
            let flags = [&["dequantize", "--type", "mlx", "--bits", bits], flags].concat();
            let got = dump(&flags, &tensors).expect("dequantised");
            assert_eq!(got.shape("values"), [12, 256]);
            assert_eq!(got.f32("values"), values, "{case}");
        }
        fails(&["dequantize", "--type", "mlx"], &tensors, "--bits");
        fails(&["dequantize", "--type", "mlx", "--bits", "7"], &tensors, "7 bits");
        fails(&["dequantize", "--type", "mlx", "--bits", bits, "--group", "0"], &tensors, "group");
        fails(&["dequantize", "--type", "mlx", "--bits", bits, "--group", "48"], &tensors, "groups of 48");
        fails(&["dequantize", "--type", "mlx", "--bits", bits], &tensors[..2], "`biases`");
    }
}

#[test]
fn values_become_the_references_blocks() {
    for name in ["Q8_0", "Q4_0", "Q5_1", "BF16"] {
        let blocks = golden("quantize", &format!("{name}.blocks"), "blocks");
        let got = dump(&["quantize", "--type", name], &[golden("quantize", "input", "values")]).expect("quantised");
        assert_eq!(got.shape("blocks"), blocks.2, "{name}");
        assert_eq!(got.u8("blocks"), blocks.3, "{name}");
    }
}

#[test]
fn products_are_within_the_references_bounds() {
    let types: Vec<&str> =
        "F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S \
         IQ4_NL IQ4_XS TQ1_0 TQ2_0 MXFP4 NVFP4"
            .split_whitespace()
            .collect();
    for name in types {
        let [blocks, x, y, yabs] = [("blocks", "blocks"), ("x", "x"), ("y", "y"), ("yabs", "yabs")]
            .map(|(from, to)| golden("blocks", &format!("{name}.{from}"), to));
        let (y, yabs) = (f64s(&y.3), f64s(&yabs.3));
        for (flags, bound) in [(&["--exact"][..], 1e-6), (&[], 2e-2)] {
            let flags = [&["matvec", "--type", name], flags].concat();
            let got = dump(&flags, &[blocks.clone(), x.clone()]).expect("computed");
            assert_eq!(got.shape("y"), [6]);
            for (i, got) in got.f32("y").into_iter().enumerate() {
                let off = (f64::from(got) - y[i]).abs();
                assert!(off <= bound * yabs[i], "{flags:?}: y[{i}] is off by {off}, |W||x| = {}", yabs[i]);
            }
        }
    }
    // Two tokens, rows in one axis.
    let [blocks, x] = ["blocks", "x"].map(|part| golden("blocks", &format!("Q8_0.{part}"), part));
    let flat = ("blocks", Dtype::U8, vec![blocks.3.len()], blocks.3.clone());
    let two = ("x", Dtype::F32, vec![2, 1024], x.3.repeat(2));
    let one = dump(&["matvec", "--type", "Q8_0"], &[blocks, x]).expect("computed").f32("y");
    let got = dump(&["matvec", "--type", "Q8_0"], &[flat, two]).expect("computed");
    assert_eq!(got.shape("y"), [2, 6]);
    assert_eq!(got.f32("y"), one.repeat(2));
}

#[test]
fn what_cannot_be_is_one_sentence() {
    let u8s = |n: usize| ("blocks", Dtype::U8, vec![n], vec![0; n]);
    let x = |n: usize| ("x", Dtype::F32, vec![n], vec![0; 4 * n]);
    let values = |n: usize| ("values", Dtype::F32, vec![n], vec![0; 4 * n]);
    fails(&["dequantize", "--type", "Q9_K"], &[u8s(144)], "Q4_K");
    fails(&["dequantize", "--type", "Q4_K"], &[u8s(145)], "145 bytes");
    fails(&["dequantize", "--type", "Q4_K"], &[values(144)], "no tensor `blocks`");
    fails(&["dequantize", "--type", "Q4_K"], &[("blocks", Dtype::F32, vec![36], vec![0; 144])], "uint8");
    fails(&["dequantize", "--type", "Q4_K", "--bits", "4"], &[u8s(144)], "--bits");
    fails(&["quantize", "--type", "Q6_K"], &[values(256)], "only read");
    fails(&["quantize", "--type", "Q8_1"], &[values(256)], "Q8_0");
    fails(&["quantize", "--type", "Q8_0"], &[values(33)], "33 numbers");
    fails(&["quantize", "--type", "Q8_0"], &[("values", Dtype::I64, vec![4], vec![0; 32])], "float32");
    fails(&["matvec", "--type", "Q8_0"], &[u8s(34)], "no tensor `x`");
    fails(&["matvec", "--type", "Q8_0"], &[u8s(34), x(31)], "rows of 31");
    fails(&["matvec", "--type", "Q8_0"], &[u8s(34), x(64)], "68 bytes");
    fails(&["matvec", "--type", "Q8_0"], &[u8s(34), x(0)], "shape [0]");
    let words = ("weight", Dtype::U32, vec![], vec![0; 4]);
    let one = |name| (name, Dtype::F32, vec![], vec![0; 4]);
    fails(&["dequantize", "--type", "mlx", "--bits", "4"], &[words, one("scales"), one("biases")], "single numbers");
    // Nothing is nothing.
    assert_eq!(dump(&["dequantize", "--type", "Q4_K"], &[u8s(0)]).expect("empty").shape("values"), [0]);
    let none = |name, dtype| (name, dtype, vec![0, 4], vec![]);
    let empty = [none("weight", Dtype::U32), none("scales", Dtype::F32), none("biases", Dtype::F32)];
    assert_eq!(dump(&["dequantize", "--type", "mlx", "--bits", "4"], &empty).expect("empty").shape("values"), [0, 32]);

    let dir = tempfile::tempdir().expect("temporary folder");
    let (input, output) = (dir.path().join("in.safetensors"), dir.path().join("out.safetensors"));
    let (from, to) = (input.to_str().expect("path"), output.to_str().expect("path"));
    let at = |to| run(["dump", "dequantize", "--type", "Q4_K", "--input", from, "--output", to]);
    assert!(sentence(&at(to)).contains("cannot read"));
    std::fs::write(&input, b"\xff\xff\xff\xff\xff\xff\xff\xff{}").expect("written");
    assert!(sentence(&at(to)).contains("not a safetensors file"));
    assert!(sentence(&at(from)).contains("another"));
}
