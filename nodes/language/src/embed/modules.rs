//! A sentence-transformers folder: the modules after the encoder, prompts, lengths.

use std::path::{Component, Path, PathBuf};

use oxiline_graph::{Error, Result, bail};
use oxiline_kernels::{Pool, ops};
use oxiline_weights::{Checkpoint, Mode as Open};
use serde_json::Value;

use super::pooling::{Mode, Pooling, normalise};
use crate::encoder::{Linear, head, project};
use crate::families::keys::{Json, Keys};

/// A function after a dense layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Activation {
    Identity,
    Tanh,
    Gelu,
    Relu,
    Sigmoid,
}

/// What happens to a pooled vector.
enum Module {
    Dense(Linear, Activation),
    Normalise,
}

/// What comes after the encoder.
pub(super) struct Modules {
    pub pooling: Pooling,
    modules: Vec<Module>,
    /// Dimensions of the result.
    pub dim: usize,
    /// Prompts by name, in the order of the file.
    pub prompts: Vec<(String, String)>,
    pub default_prompt: Option<String>,
    /// Most tokens of a text, when the folder says so.
    pub most: Option<usize>,
    pub lower: bool,
}

fn read(path: &Path) -> Result<Value> {
    let bytes = std::fs::read(path).map_err(|e| Error::msg(format_args!("cannot read {}: {e}", path.display())))?;
    serde_json::from_slice(&bytes)
        .map_err(|e| Error::msg(format_args!("{}: not JSON: {e}; download it again", path.display())))
}

fn object(path: &Path) -> Result<Option<Json>> {
    if path.is_file() { Json::new(path.into(), read(path)?).map(Some) } else { Ok(None) }
}

/// The folder of a module: inside the model's.
fn inside(folder: &Path, path: &str) -> Result<PathBuf> {
    if Path::new(path).components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir)) {
        return Ok(folder.join(path));
    }
    bail!("{}: a module lies at `{}`, outside the folder", folder.join("modules.json").display(), path.escape_debug())
}

impl Modules {
    /// Reads the modules of a folder; `hidden` is the encoder's width.
    pub(super) fn load(folder: &Path, hidden: usize) -> Result<Self> {
        let file = folder.join("modules.json");
        if !file.is_file() {
            bail!(
                "{}: there is no modules.json: this is not a sentence-transformers folder; download the whole model",
                folder.display()
            );
        }
        let list = read(&file)?;
        let Some(list) = list.as_array() else { bail!("{}: not a list of modules", file.display()) };
        let (mut pooling, mut modules, mut dim) = (None, Vec::new(), hidden);
        for (i, module) in list.iter().enumerate() {
            let text = |key: &str| module.get(key).and_then(Value::as_str);
            let (Some(kind), Some(path)) = (text("type"), text("path")) else {
                bail!("{}: module {i} has no `type` and `path`", file.display());
            };
            let at = inside(folder, path)?;
            let config = || match object(&at.join("config.json"))? {
                Some(config) => Ok(config),
                None => bail!("{} is missing, which modules.json names; download the whole model", at.display()),
            };
            match kind.rsplit('.').next().unwrap_or(kind) {
                "Transformer" if i == 0 => {}
                "Pooling" if pooling.is_none() => {
                    let p = Pooling::read(&config()?)?;
                    dim = hidden * p.modes.len();
                    pooling = Some(p);
                }
                "Dense" if pooling.is_some() => {
                    let (linear, activation) = dense(&at, &config()?, dim)?;
                    dim = linear.weight.out_dim();
                    modules.push(Module::Dense(linear, activation));
                }
                "Normalize" if pooling.is_some() => modules.push(Module::Normalise),
                "Dropout" => {}
                _ => bail!(
                    "{}: module {i} is `{}`; supported are Transformer, then Pooling, then Dense and Normalize",
                    file.display(),
                    kind.chars().take(80).flat_map(char::escape_debug).collect::<String>()
                ),
            }
        }
        let Some(pooling) = pooling else { bail!("{}: there is no Pooling module", file.display()) };
        let mut found =
            Self { pooling, modules, dim, prompts: Vec::new(), default_prompt: None, most: None, lower: false };
        found.settings(folder)?;
        Ok(found)
    }

    /// Of a model without such files: one way of pooling, and vectors of length 1.
    pub(super) fn plain(mode: Mode, hidden: usize) -> Self {
        Self {
            pooling: Pooling::new(mode),
            modules: vec![Module::Normalise],
            dim: hidden,
            prompts: Vec::new(),
            default_prompt: None,
            most: None,
            lower: false,
        }
    }

    fn settings(&mut self, folder: &Path) -> Result<()> {
        for name in ["sentence_bert_config.json", "sentence_roberta_config.json", "sentence_xlm-roberta_config.json"] {
            if let Some(j) = object(&folder.join(name))? {
                self.most = j.size("max_seq_length", 4..=1 << 30)?;
                self.lower = j.flag("do_lower_case")?.unwrap_or(false);
                break;
            }
        }
        if self.most.is_none()
            && let Some(j) = object(&folder.join("tokenizer_config.json"))?
        {
            // Absurdly large numbers mean that there is no limit.
            self.most = j.number("model_max_length")?.filter(|n| (4.0..1e9).contains(n)).map(|n| n as usize);
        }
        let path = folder.join("config_sentence_transformers.json");
        let Some(j) = object(&path)? else { return Ok(()) };
        if let Some(prompts) = read(&path)?.get("prompts").and_then(Value::as_object) {
            let text = |(name, v): (&String, &Value)| Some((name.clone(), v.as_str()?.to_string()));
            self.prompts = prompts.iter().filter_map(text).collect();
        }
        self.default_prompt = j.text("default_prompt_name")?;
        Ok(())
    }

    /// The result of pooled vectors `[texts, width]`: `[texts, dim]`.
    pub(super) fn run(&self, pool: &Pool, mut x: Vec<f32>) -> Vec<f32> {
        let mut width = match self.modules.iter().find_map(|m| match m {
            Module::Dense(linear, _) => Some(linear.weight.in_dim()),
            Module::Normalise => None,
        }) {
            Some(width) => width,
            None => self.dim,
        };
        for module in &self.modules {
            match module {
                Module::Normalise => x.chunks_exact_mut(width).for_each(normalise),
                Module::Dense(linear, activation) => {
                    x = project(pool, linear, &x);
                    width = linear.weight.out_dim();
                    match activation {
                        Activation::Identity => {}
                        Activation::Tanh => x.iter_mut().for_each(|v| *v = v.tanh()),
                        Activation::Gelu => ops::gelu(pool, &mut x),
                        Activation::Relu => x.iter_mut().for_each(|v| *v = v.max(0.0)),
                        Activation::Sigmoid => x.iter_mut().for_each(|v| *v = 1.0 / (1.0 + (-*v).exp())),
                    }
                }
            }
        }
        x
    }

    /// Is the last step a normalisation?
    pub(super) fn normalised(&self) -> bool {
        matches!(self.modules.last(), Some(Module::Normalise))
    }
}

fn dense(at: &Path, j: &Json, width: usize) -> Result<(Linear, Activation)> {
    let name = j.text("activation_function")?.unwrap_or_default();
    let activation = match name.rsplit('.').next().unwrap_or_default() {
        "" | "Identity" => Activation::Identity,
        "Tanh" => Activation::Tanh,
        "GELU" => Activation::Gelu,
        "ReLU" => Activation::Relu,
        "Sigmoid" => Activation::Sigmoid,
        _ => bail!("{} is `{}`, which is not supported", j.place("activation_function"), name.escape_debug()),
    };
    let checkpoint = Checkpoint::open(at, Open::Mmap).map_err(Error::msg)?;
    Ok((head(&checkpoint, "linear", width)?, activation))
}
