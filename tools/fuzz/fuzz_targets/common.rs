use std::path::Path;

use oxiline_weights::{Checkpoint, Keep, MatrixRequest, Tokenizer};

/// Everything a caller does with a checkpoint.
pub fn read(name: &str, bytes: &[u8], config: Option<serde_json::Value>) {
    let Ok(c) = Checkpoint::from_bytes(Path::new(name), bytes.to_vec(), config) else { return };
    for name in c.names().take(64) {
        let Ok(info) = c.info(name) else { continue };
        let _ = c.f32(name);
        let _ = c.bytes(name);
        if let [rows, row] = info.shape[..] {
            let _ = c.load_matrix(&MatrixRequest::whole(name, rows, row), Keep::Stored);
        }
    }
    if let Some(metadata) = c.gguf() {
        let _ = Tokenizer::from_gguf(metadata).map(|t| t.encode("hello world", true));
    }
}
