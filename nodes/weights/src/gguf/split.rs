//! Models in several GGUF files: `NAME-00001-of-00003.gguf` and so on.

use std::path::{Path, PathBuf};

use super::Metadata;
use crate::error::{Error, Result, shown};

/// The parts a file's name says it is one of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Parts {
    /// Name up to the number.
    pub stem: String,
    /// Which part, from 1.
    pub number: u32,
    /// Parts in all.
    pub count: u32,
}

impl Parts {
    /// From a file's name.
    pub(crate) fn of(name: &str) -> Option<Self> {
        let number = |text: &str| {
            (text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse::<u32>().ok()).flatten()
        };
        let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
        let (stem, this) = rest.rsplit_once('-')?;
        let (number, count) = (number(this)?, number(count)?);
        (1..=count).contains(&number).then(|| Self { stem: stem.to_string(), number, count })
    }

    /// Name of part `number`.
    pub(crate) fn name(&self, number: u32) -> String {
        format!("{}-{number:05}-of-{:05}.gguf", self.stem, self.count)
    }
}

/// The files of the model that `path` (with this metadata) is or is a part of, in order.
pub(crate) fn files(path: &Path, metadata: &Metadata) -> Result<Vec<PathBuf>> {
    let count = metadata.u64("split.count").unwrap_or(1);
    if count <= 1 {
        return Ok(vec![path.to_path_buf()]);
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let parts = Parts::of(&name).ok_or_else(|| {
        Error::malformed(format!(
            "part {} of {count} of a split model, but not named like ...-00001-of-{count:05}.gguf, so the others \
             cannot be found; give the parts their names back",
            metadata.u64("split.no").map_or_else(|| "one".to_string(), |n| n.saturating_add(1).to_string())
        ))
        .at(path)
    })?;
    if u64::from(parts.count) != count {
        return Err(Error::malformed(format!(
            "its name says {} parts, its key split.count {count}; give the parts their names back",
            parts.count
        ))
        .at(path));
    }
    let folder = path.parent().unwrap_or(Path::new(""));
    let out: Vec<PathBuf> = (1..=parts.count).map(|n| folder.join(parts.name(n))).collect();
    match out.iter().find(|p| !p.is_file()) {
        None => Ok(out),
        Some(missing) => {
            let name = missing.file_name().unwrap_or_default().to_string_lossy();
            Err(Error::missing(format!("{} is not beside it; download all {count} parts", shown(&name))).at(path))
        }
    }
}

/// Checks that a file is part `number` (from 1) of `count`.
pub(crate) fn check(metadata: &Metadata, number: usize, count: usize) -> Result<()> {
    let (no, of) = (metadata.u64("split.no"), metadata.u64("split.count"));
    if no == Some(number as u64 - 1) && of == Some(count as u64) {
        return Ok(());
    }
    let say = |v: Option<u64>| v.map_or_else(|| "nothing".to_string(), |v| v.to_string());
    Err(Error::malformed(format!(
        "its keys say split.no {} and split.count {}, by its name it is part {number} of {count}; download it again",
        say(no),
        say(of)
    )))
}
