//! How alike texts are: `cargo run --release --example embed -- MODEL [TEXT...]` prints the matrix of cosines.
//!
//! MODEL is a sentence-transformers folder, `org/name` or a known name.

use oxiline::{EmbedOptions, Embedder, cosine};

fn main() -> oxiline::Result<()> {
    let mut words = std::env::args().skip(1);
    let Some(model) = words.next() else {
        eprintln!("usage: embed MODEL [TEXT...]");
        std::process::exit(2);
    };
    let mut texts: Vec<String> = words.collect();
    if texts.is_empty() {
        texts = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
            .map(Into::into)
            .into();
    }
    let mut embedder = Embedder::load(&model)?;
    eprintln!("{} dimensions, at most {} tokens", embedder.about().dim, embedder.about().max_tokens);
    let vectors = embedder.embed(&texts, &EmbedOptions::default())?;
    for a in &vectors {
        let row: Vec<String> = vectors.iter().map(|b| format!("{:.4}", cosine(&a.dense, &b.dense))).collect();
        println!("{}", row.join(" "));
    }
    Ok(())
}
