//! Languages: codes, English names, and detection from the first logits.

use oxiline_graph::protocol::speech::Task;
use oxiline_graph::{Result, bail};

use super::Config;

/// Code and English name of every language a Whisper tokenizer may hold, in the order of the
/// ids of large-v3.
pub const LANGUAGES: [(&str, &str); 100] = [
    ("en", "english"),
    ("zh", "chinese"),
    ("de", "german"),
    ("es", "spanish"),
    ("ru", "russian"),
    ("ko", "korean"),
    ("fr", "french"),
    ("ja", "japanese"),
    ("pt", "portuguese"),
    ("tr", "turkish"),
    ("pl", "polish"),
    ("ca", "catalan"),
    ("nl", "dutch"),
    ("ar", "arabic"),
    ("sv", "swedish"),
    ("it", "italian"),
    ("id", "indonesian"),
    ("hi", "hindi"),
    ("fi", "finnish"),
    ("vi", "vietnamese"),
    ("he", "hebrew"),
    ("uk", "ukrainian"),
    ("el", "greek"),
    ("ms", "malay"),
    ("cs", "czech"),
    ("ro", "romanian"),
    ("da", "danish"),
    ("hu", "hungarian"),
    ("ta", "tamil"),
    ("no", "norwegian"),
    ("th", "thai"),
    ("ur", "urdu"),
    ("hr", "croatian"),
    ("bg", "bulgarian"),
    ("lt", "lithuanian"),
    ("la", "latin"),
    ("mi", "maori"),
    ("ml", "malayalam"),
    ("cy", "welsh"),
    ("sk", "slovak"),
    ("te", "telugu"),
    ("fa", "persian"),
    ("lv", "latvian"),
    ("bn", "bengali"),
    ("sr", "serbian"),
    ("az", "azerbaijani"),
    ("sl", "slovenian"),
    ("kn", "kannada"),
    ("et", "estonian"),
    ("mk", "macedonian"),
    ("br", "breton"),
    ("eu", "basque"),
    ("is", "icelandic"),
    ("hy", "armenian"),
    ("ne", "nepali"),
    ("mn", "mongolian"),
    ("bs", "bosnian"),
    ("kk", "kazakh"),
    ("sq", "albanian"),
    ("sw", "swahili"),
    ("gl", "galician"),
    ("mr", "marathi"),
    ("pa", "punjabi"),
    ("si", "sinhala"),
    ("km", "khmer"),
    ("sn", "shona"),
    ("yo", "yoruba"),
    ("so", "somali"),
    ("af", "afrikaans"),
    ("oc", "occitan"),
    ("ka", "georgian"),
    ("be", "belarusian"),
    ("tg", "tajik"),
    ("sd", "sindhi"),
    ("gu", "gujarati"),
    ("am", "amharic"),
    ("yi", "yiddish"),
    ("lo", "lao"),
    ("uz", "uzbek"),
    ("fo", "faroese"),
    ("ht", "haitian creole"),
    ("ps", "pashto"),
    ("tk", "turkmen"),
    ("nn", "nynorsk"),
    ("mt", "maltese"),
    ("sa", "sanskrit"),
    ("lb", "luxembourgish"),
    ("my", "myanmar"),
    ("bo", "tibetan"),
    ("tl", "tagalog"),
    ("mg", "malagasy"),
    ("as", "assamese"),
    ("tt", "tatar"),
    ("haw", "hawaiian"),
    ("ln", "lingala"),
    ("ha", "hausa"),
    ("ba", "bashkir"),
    ("jw", "javanese"),
    ("su", "sundanese"),
    ("yue", "cantonese"),
];

/// Other names people use for the same languages.
const OTHER_NAMES: [(&str, &str); 13] = [
    ("burmese", "my"),
    ("valencian", "ca"),
    ("flemish", "nl"),
    ("haitian", "ht"),
    ("letzeburgesch", "lb"),
    ("pushto", "ps"),
    ("panjabi", "pa"),
    ("moldavian", "ro"),
    ("moldovan", "ro"),
    ("sinhalese", "si"),
    ("castilian", "es"),
    ("mandarin", "zh"),
    ("javanese", "jw"),
];

/// The code of a wanted language (a code or an English name), once the checkpoint is known to speak
/// it. None: it is to be detected (nothing wanted, or `auto`).
///
/// # Errors
/// An unknown language, or one the checkpoint does not know.
pub fn wanted(config: &Config, language: &str) -> Result<Option<&'static str>> {
    let language = language.trim();
    if language.is_empty() || language.eq_ignore_ascii_case("auto") {
        return Ok(None);
    }
    let code = code(language)?;
    if !config.multilingual || config.languages.is_empty() {
        if code != "en" {
            bail!(
                "this checkpoint knows English only, not `{code}`; choose a multilingual one or leave the language out"
            );
        }
    } else if !config.languages.iter().any(|l| l.code == code) {
        bail!("this checkpoint does not know the language `{code}`");
    }
    Ok(Some(code))
}

/// Fails when the checkpoint cannot do the task.
///
/// # Errors
/// A translation asked of a checkpoint that knows English only.
pub fn can(config: &Config, task: Task) -> Result<()> {
    if task == Task::Translate && (!config.multilingual || config.ids.translate.is_none()) {
        bail!("this checkpoint knows English only and cannot translate; choose a multilingual one");
    }
    Ok(())
}

/// The code of a language given by code or English name, in any case.
///
/// Err: a sentence that names the closest known language.
pub fn code(language: &str) -> Result<&'static str> {
    let wanted = language.trim().to_lowercase();
    if let Some((code, _)) = LANGUAGES.iter().find(|(code, name)| *code == wanted || *name == wanted) {
        return Ok(code);
    }
    if let Some((_, code)) = OTHER_NAMES.iter().find(|(name, _)| *name == wanted) {
        return Ok(code);
    }
    // "jv" is the ISO code of what the vocabulary spells "jw".
    if wanted == "jv" {
        return Ok("jw");
    }
    let near = LANGUAGES
        .iter()
        .flat_map(|(code, name)| [(*code, distance(code, &wanted)), (*name, distance(name, &wanted))])
        .filter(|&(known, d)| d <= 2.min(known.len() / 3))
        .min_by_key(|&(_, d)| d);
    match near {
        Some((near, _)) => bail!("language `{language}` is not known; did you mean `{near}`?"),
        None => bail!(
            "language `{language}` is not known; give a code such as `de`, an English name such as `german`, or `auto`"
        ),
    }
}

/// The English name of a code, when known.
pub fn name(code: &str) -> Option<&'static str> {
    LANGUAGES.iter().find(|(known, _)| *known == code).map(|(_, name)| *name)
}

/// Is the language written without spaces between words?
pub fn without_spaces(code: &str) -> bool {
    matches!(code, "zh" | "ja" | "th" | "lo" | "my" | "yue")
}

/// Probability of every language of the checkpoint, in the order of [`Config::languages`], from the
/// raw logits after `<|startoftranscript|>`: a softmax over the language tokens alone.
pub fn probabilities(config: &Config, logits: &[f32]) -> Vec<f32> {
    let of = |id: u32| logits.get(id as usize).copied().unwrap_or(f32::NEG_INFINITY);
    let top = config.languages.iter().map(|l| of(l.id)).fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f64> = config.languages.iter().map(|l| f64::from(of(l.id) - top).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|w| (w / sum) as f32).collect()
}

/// The likeliest language's place in [`Config::languages`] and its probability.
pub fn likeliest(probabilities: &[f32]) -> Option<(usize, f32)> {
    let mut best: Option<(usize, f32)> = None;
    for (i, &p) in probabilities.iter().enumerate() {
        if best.is_none_or(|(_, b)| p > b) {
            best = Some((i, p));
        }
    }
    best
}

/// Edit distance, for suggestions.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &y) in b.iter().enumerate() {
            let cost = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = cost.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_names_and_other_names() {
        assert_eq!(code("de").unwrap(), "de");
        assert_eq!(code(" German ").unwrap(), "de");
        assert_eq!(code("Castilian").unwrap(), "es");
        assert_eq!(code("haitian creole").unwrap(), "ht");
        assert_eq!(name("yue"), Some("cantonese"));
        let message = code("germna").unwrap_err().to_string();
        assert!(message.contains("did you mean `german`"), "{message}");
        assert!(code("klingon").unwrap_err().to_string().contains("auto"));
        let mut codes: Vec<_> = LANGUAGES.iter().map(|(code, _)| *code).collect();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), LANGUAGES.len());
    }
}
