//! The kinds of splitting that byte-level vocabularies were trained with, by the name GGUF files use.

use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{PreTokenizerWrapper, SplitDelimiterBehavior};

use crate::error::{Error, Result, shown};

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DIGIT: &str = r"\p{N}";

/// What a kind means.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// Applied in this order, each to the pieces of the one before.
    splits: &'static [&'static str],
    /// Text is composed first (Unicode NFC).
    pub nfc: bool,
    /// A whole piece that is a token is taken without merging.
    pub ignore_merges: bool,
    /// Texts begin with the beginning-of-text token unless the file says otherwise.
    pub add_bos: bool,
}

const PLAIN: Kind = Kind { splits: &[GPT2], nfc: false, ignore_merges: false, add_bos: false };

impl Kind {
    /// The kind of a name; `architecture` helps with files from before kinds were written down.
    ///
    /// # Errors
    /// A kind that isn't known: splitting by another one would give wrong tokens silently.
    pub fn named(name: Option<&str>, architecture: Option<&str>) -> Result<Self> {
        let name = match (name, architecture) {
            (Some(name), _) => name,
            (None, Some("qwen2" | "qwen2moe" | "qwen3" | "qwen3moe")) => "qwen2",
            (None, Some("qwen35" | "qwen35moe")) => "qwen35",
            (None, _) => "default",
        };
        Ok(match name {
            "llama3" | "llama-v3" | "llama-bpe" | "falcon3" => {
                Kind { splits: &[LLAMA3], ignore_merges: true, add_bos: true, ..PLAIN }
            }
            "dbrx" | "smaug-bpe" => Kind { splits: &[LLAMA3], ..PLAIN },
            "qwen2" | "deepseek-r1-qwen" => Kind { splits: &[QWEN2], nfc: true, ..PLAIN },
            "stablelm2" => Kind { splits: &[QWEN2], ..PLAIN },
            "qwen35" => Kind { splits: &[QWEN35], nfc: true, ..PLAIN },
            "tekken" | "pixtral" => Kind { splits: &[TEKKEN], ignore_merges: true, add_bos: true, ..PLAIN },
            "gpt-4o" | "llama4" => Kind { splits: &[O200K], ..PLAIN },
            "gpt-2" | "gpt2" | "phi-2" | "mpt" | "olmo" | "jais" | "jina-es" | "jina-de" | "modern-bert"
            | "gigachat" => PLAIN,
            "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone" | "minerva-7b" => {
                Kind { splits: &[DIGIT, GPT2], ..PLAIN }
            }
            "default" => Kind { splits: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"], ..PLAIN },
            other => {
                return Err(Error::unsupported(format!(
                    "tokenizer.ggml.pre is `{}`, a way of splitting text that is not known here; use the model's safetensors files, whose tokenizer.json says how",
                    shown(other)
                )));
            }
        })
    }

    /// The splitter, ending in bytes written as printable characters.
    ///
    /// # Errors
    /// An expression the engine refuses.
    pub fn splitter(&self) -> Result<PreTokenizerWrapper> {
        let mut steps: Vec<PreTokenizerWrapper> = Vec::new();
        for &pattern in self.splits {
            let split = Split::new(SplitPattern::Regex(pattern.into()), SplitDelimiterBehavior::Isolated, false);
            steps
                .push(split.map_err(|e| Error::malformed(format!("the splitting expression is refused: {e}")))?.into());
        }
        steps.push(ByteLevel::new(false, false, false).into());
        Ok(Sequence::new(steps).into())
    }
}
