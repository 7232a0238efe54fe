//! Speech to text in a few lines: `cargo run --release --example transcribe -- MODEL FILE`.

use oxiline::{TranscribeOptions, Transcriber};

fn main() -> Result<(), oxiline::Error> {
    let mut args = std::env::args().skip(1);
    let (Some(model), Some(file)) = (args.next(), args.next()) else {
        eprintln!("usage: transcribe MODEL FILE");
        std::process::exit(2);
    };
    let mut transcriber = Transcriber::load(&model)?;
    let options = TranscribeOptions { timestamps: true, ..Default::default() };
    let result = transcriber.transcribe_file(&file, &options, |segment| {
        println!("[{:7.2} {:7.2}] {}", segment.start, segment.end, segment.text.trim());
    })?;
    let stats = &result.stats;
    eprintln!(
        "{}: {:.1} s of audio in {:.2} s",
        result.language,
        stats.audio_s,
        stats.features_s + stats.encode_s + stats.decode_s
    );
    Ok(())
}
