//! Random checkpoints in MLX's affine groups.

use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

use super::tiny::{self, Random};

/// Writes a checkpoint whose matrices are random codes of `bits` bits in groups of `group`.
pub fn write(folder: &Path, config: &Value, bits: usize, group: usize, random: &mut Random) {
    let mut stored: Vec<(String, Vec<usize>, Dtype, Vec<u8>)> = Vec::new();
    let offset = if config["model_type"] == "gemma3_text" { 0.0 } else { 1.0 };
    for (name, shape) in tiny::shapes(config) {
        let count: usize = shape.iter().product();
        let matrix = name.strip_suffix(".weight").filter(|_| shape.len() == 2 && shape[1].is_multiple_of(group));
        let Some(matrix) = matrix else {
            let middle = if name.contains("norm") { offset } else { 0.0 };
            let bytes = (0..count).flat_map(|_| ((middle + 0.3 * random.unit()) as f32).to_le_bytes()).collect();
            stored.push((name, shape, Dtype::F32, bytes));
            continue;
        };
        let (rows, groups) = (shape[0], shape[1] / group);
        let codes = (0..count * bits / 32).flat_map(|_| (random.next() as u32).to_le_bytes()).collect();
        stored.push((name.clone(), vec![rows, shape[1] * bits / 32], Dtype::U32, codes));
        let scales: Vec<f32> = (0..rows * groups)
            .map(|_| (2.0 + random.unit()) as f32 / (shape[1] as f32).sqrt() / (1_u32 << bits) as f32)
            .collect();
        let float = |values: Vec<f32>| values.into_iter().flat_map(f32::to_le_bytes).collect::<Vec<u8>>();
        let biases = scales.iter().map(|scale| -scale * (1_u32 << (bits - 1)) as f32).collect();
        stored.push((format!("{matrix}.scales"), vec![rows, groups], Dtype::F32, float(scales)));
        stored.push((format!("{matrix}.biases"), vec![rows, groups], Dtype::F32, float(biases)));
    }
    let views = stored.iter().map(|(name, shape, dtype, bytes)| {
        (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).expect("a tensor"))
    });
    std::fs::write(folder.join("model.safetensors"), safetensors::serialize(views, None).expect("a file")).unwrap();
    let mut config = config.clone();
    config["quantization"] = json!({"group_size": group, "bits": bits, "mode": "affine"});
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
}
