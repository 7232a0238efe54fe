//! Which of a repository's GGUF files is meant.

use crate::error::{Error, Result, shown};
use crate::gguf::Parts;

/// A model among the files: one file, or the parts of a split one in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Model<'a> {
    /// The file to open.
    pub first: &'a str,
    /// Name without parts and `.gguf`.
    stem: String,
    /// Names of all its files.
    pub files: Vec<&'a str>,
    /// Are all parts there?
    pub complete: bool,
}

impl Model<'_> {
    /// What to write after the colon.
    fn quant(&self) -> &str {
        let base = self.stem.rsplit('/').next().unwrap_or(&self.stem);
        base.rsplit(['-', '.']).next().unwrap_or(base)
    }

    fn ends_with(&self, quant: &str) -> bool {
        let (stem, quant) = (self.stem.to_ascii_lowercase(), quant.to_ascii_lowercase());
        // `Q4_K` is not the end of `IQ4_K`.
        stem.strip_suffix(&quant).is_some_and(|rest| !rest.ends_with(|c: char| c.is_ascii_alphanumeric()))
    }
}

/// The GGUF models among files; projectors of vision models (`mmproj...`) are none.
pub(super) fn models<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<Model<'a>> {
    let mut names: Vec<&str> = names
        .into_iter()
        .filter(|n| n.to_ascii_lowercase().ends_with(".gguf"))
        .filter(|n| !n.rsplit('/').next().unwrap_or(n).to_ascii_lowercase().starts_with("mmproj"))
        .collect();
    names.sort_unstable();
    let mut out: Vec<Model<'_>> = Vec::new();
    let mut last: Option<Parts> = None;
    for name in names {
        let parts = Parts::of(name).filter(|p| p.count > 1);
        let same = |a: &Parts, b: &Parts| a.stem == b.stem && a.count == b.count;
        match (&parts, &last, out.last_mut()) {
            (Some(parts), Some(before), Some(model)) if same(parts, before) => {
                model.files.push(name);
                model.complete = model.files.len() == parts.count as usize;
            }
            _ => {
                let stem = parts.as_ref().map_or_else(|| name[..name.len() - 5].to_string(), |p| p.stem.clone());
                out.push(Model { first: name, stem, files: vec![name], complete: parts.is_none() });
            }
        }
        last = parts;
    }
    out
}

/// The model meant by `quant`, or the only one; a sentence without the repository's name otherwise.
pub(super) fn pick<'a, 'b>(models: &'b [Model<'a>], quant: Option<&str>, repo: &str) -> Result<&'b Model<'a>> {
    let found: Vec<&Model<'_>> = models.iter().filter(|m| quant.is_none_or(|q| m.ends_with(q))).collect();
    match (&found[..], quant) {
        ([one], _) if one.complete => Ok(one),
        ([one], _) => Err(Error::missing(format!("not all parts of {} are in it", shown(one.first)))),
        ([], Some(quant)) => Err(Error::missing(format!(
            "no file in it ends {}.gguf; {}",
            shown(quant),
            if models.is_empty() {
                "it has no GGUF files".to_string()
            } else {
                format!("it has {}", choice(models, repo))
            }
        ))),
        ([], None) => Err(Error::missing("it has no GGUF files")),
        (several, Some(quant)) => {
            let names: Vec<String> = several.iter().take(8).map(|m| shown(m.first)).collect();
            let quant = shown(quant);
            Err(Error::missing(format!(
                "several files in it end {quant}.gguf; write more of the name: {}",
                names.join(", ")
            )))
        }
        (_, None) => Err(Error::missing(format!("it holds several GGUF models; name one: {}", choice(models, repo)))),
    }
}

fn choice(models: &[Model<'_>], repo: &str) -> String {
    let mut quants: Vec<String> = models.iter().map(|m| format!("{repo}:{}", shown(m.quant()))).collect();
    quants.sort_unstable();
    quants.dedup();
    let more = if quants.len() > 24 { " ..." } else { "" };
    quants.truncate(24);
    quants.join(", ") + more
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_name_decides() {
        let names = [
            "m-Q4_K_M.gguf",
            "m-IQ4_XS.gguf",
            "m-Q8_0-00002-of-00002.gguf",
            "m-Q8_0-00001-of-00002.gguf",
            "F16/m-F16-00001-of-00002.gguf",
            "UD/m-UD-Q4_K_M.gguf",
            "mmproj-Q8_0.gguf",
            "README.md",
        ];
        let models = models(names);
        let pick = |q: &str| pick(&models, Some(q), "a/b").map(|m| m.first).map_err(|e| e.to_string());
        assert_eq!(pick("iq4_xs"), Ok("m-IQ4_XS.gguf"));
        assert_eq!(pick("Q8_0"), Ok("m-Q8_0-00001-of-00002.gguf"));
        assert_eq!(pick("UD-Q4_K_M"), Ok("UD/m-UD-Q4_K_M.gguf"));
        assert_eq!(pick("m-Q4_K_M"), Ok("m-Q4_K_M.gguf"));
        assert!(pick("Q4_K_M").unwrap_err().contains("several"));
        assert!(pick("Q4_XS").is_err(), "not the end of IQ4_XS");
        let error = pick("Q5_K").unwrap_err();
        assert!(error.contains("a/b:F16, a/b:IQ4_XS, a/b:Q4_K_M, a/b:Q8_0"), "{error}");
        assert!(pick("F16").unwrap_err().contains("not all parts"));
        assert!(super::pick(&models, None, "a/b").unwrap_err().to_string().contains("several GGUF models"));
    }
}
