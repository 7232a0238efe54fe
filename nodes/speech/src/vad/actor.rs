//! Silero as a model actor.

use std::path::PathBuf;

use oxiline_graph::protocol::speech::{VoiceActivity, VoiceReply, VoiceRequest};
use oxiline_graph::{Job, Load, Model, Result};
use oxiline_kernels::Pool;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Silero, State};

/// Options of a `silero-vad` model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SileroOptions {
    /// A safetensors file with other weights of the same network; left out: the ones that come
    /// with the program.
    pub weights: Option<PathBuf>,
}

/// The voice activity network, shared by any number of streams.
pub struct SileroModel {
    silero: Silero,
}

impl Model for SileroModel {
    const KIND: &'static str = "silero-vad";
    const ABOUT: &'static str = "Silero's voice activity network (16 kHz): the probability of speech every 32 ms.";
    type Options = SileroOptions;
    type Protocol = VoiceActivity;
    type Session = State;

    fn identity(options: &SileroOptions) -> Result<String> {
        Ok(options.weights.as_ref().map_or_else(|| "bundled".into(), |path| path.display().to_string()))
    }

    fn load(options: SileroOptions, _load: &Load) -> Result<Self> {
        let silero = match options.weights {
            Some(path) => Silero::load(&path)?,
            None => Silero::bundled()?,
        };
        Ok(Self { silero })
    }

    fn open(&mut self, (): ()) -> Result<State> {
        Ok(State::default())
    }

    fn step(&mut self, jobs: &mut [Job<'_, Self>]) {
        let pool = Pool::global();
        for job in jobs {
            let probabilities = match job.request {
                VoiceRequest::Samples(samples) => self.silero.push(pool, job.session, samples),
                VoiceRequest::Finish => self.silero.finish(pool, job.session).into_iter().collect(),
                VoiceRequest::Reset => {
                    *job.session = State::default();
                    Vec::new()
                }
            };
            job.reply(VoiceReply(probabilities));
            job.finish(Ok(()));
        }
    }

    fn memory(&self) -> u64 {
        self.silero.bytes()
    }
}
