//! The model actors: any number of sessions, one batch.

use oxiline_graph::protocol::embed::{EmbedOptions, EmbedReply, EmbedRequest, EmbedText, Rerank, RerankRequest};
use oxiline_graph::{Error, Job, Load, Model, Result, Whereabouts};
use oxiline_kernels::{Pool, Storage};
use oxiline_weights::hub;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::embedder::{Prepared, ROWS, TextEmbedder};
use super::reranker::{Pair, TextReranker};
use crate::encoder::LoadOptions;

/// How matrices are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32-bit floats.
    F32,
    /// bfloat16.
    Bf16,
    /// 8-bit integers in blocks of 32, activations too: faster, the vectors change a little.
    Q8,
}

/// Options of an `embedder` or `reranker` model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EmbedderOptions {
    /// Folder, GGUF file, `org/name` or a known name.
    pub weights: String,
    /// How matrices are kept; as the file stores them when left out.
    #[serde(default)]
    pub precision: Option<Precision>,
}

impl EmbedderOptions {
    fn load(&self) -> LoadOptions {
        LoadOptions {
            keep: self.precision.map(|precision| match precision {
                Precision::F32 => Storage::F32,
                Precision::Bf16 => Storage::BF16,
                Precision::Q8 => Storage::Q8,
            }),
        }
    }

    fn identity(&self) -> Result<String> {
        let place = hub::place(&self.weights, &hub::process_options()).map_err(Error::msg)?;
        Ok(format!("{} {:?}", place.display(), self.precision))
    }

    fn whereabouts(&self) -> Result<Whereabouts> {
        let (hub, name) = (hub::process_options(), self.weights.clone());
        Ok(match hub::local(&name, &hub).map_err(Error::msg)? {
            Some(_) => Whereabouts::Here,
            None if hub.fetches() => Whereabouts::Fetched(name),
            None => Whereabouts::Missing(name),
        })
    }

    fn place(&self) -> Result<std::path::PathBuf> {
        hub::resolve(&self.weights, &hub::process_options()).map_err(Error::msg)
    }
}

/// Work of one request: what is prepared and how much of it is done.
pub struct Queue<T> {
    items: Vec<T>,
    next: usize,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { items: Vec::new(), next: 0 }
    }
}

/// One step of all jobs: every job's next items until the pass is full, at least one.
fn step<M: Model<Session = Queue<T>>, T>(
    jobs: &mut [Job<'_, M>],
    prepare: impl Fn(&<M::Protocol as oxiline_graph::Protocol>::Request) -> Result<Vec<T>>,
    tokens: impl Fn(&T) -> usize,
    run: impl Fn(&mut Job<'_, M>, &[&T]) -> Result<()>,
) {
    let mut room = ROWS;
    for job in jobs.iter_mut() {
        if job.cancelled() {
            job.finish(Err(Error::Cancelled));
            continue;
        }
        if job.first() {
            match prepare(job.request) {
                Ok(items) => *job.session = Queue { items, next: 0 },
                Err(error) => {
                    job.finish(Err(error));
                    continue;
                }
            }
        }
        let queue = std::mem::take(job.session);
        let (mut count, mut sum) = (0, 0);
        for item in &queue.items[queue.next..] {
            let more = tokens(item);
            if count > 0 && sum + more > room {
                break;
            }
            (count, sum) = (count + 1, sum + more);
        }
        room = room.saturating_sub(sum).max(1);
        let batch: Vec<&T> = queue.items[queue.next..queue.next + count].iter().collect();
        let result = if batch.is_empty() { Ok(()) } else { run(job, &batch) };
        let next = queue.next + count;
        let done = result.is_err() || next == queue.items.len();
        *job.session = Queue { next, ..queue };
        if done {
            *job.session = Queue::default();
            job.finish(result);
        }
    }
}

/// An embedding model, shared by any number of sessions.
pub struct EmbedderModel {
    model: TextEmbedder,
}

impl Model for EmbedderModel {
    const KIND: &'static str = "embedder";
    const ABOUT: &'static str =
        "An embedding model from a sentence-transformers folder or a GGUF file: texts to vectors.";
    type Options = EmbedderOptions;
    type Protocol = EmbedText;
    type Session = Queue<Prepared>;

    fn identity(options: &EmbedderOptions) -> Result<String> {
        options.identity()
    }

    fn whereabouts(options: &EmbedderOptions) -> Result<Whereabouts> {
        options.whereabouts()
    }

    fn load(options: EmbedderOptions, load: &Load) -> Result<Self> {
        let model = TextEmbedder::load(&options.place()?, &options.load(), &mut |done, total| {
            load.progress(done, total);
            load.check()
        })?;
        Ok(Self { model })
    }

    fn open(&mut self, (): ()) -> Result<Self::Session> {
        Ok(Queue::default())
    }

    fn step(&mut self, jobs: &mut [Job<'_, Self>]) {
        let (pool, model) = (Pool::global(), &self.model);
        let prepare = |request: &EmbedRequest| match request {
            EmbedRequest::About => Ok(Vec::new()),
            EmbedRequest::Texts(ask) => {
                model.check(&ask.options)?;
                prepared(pool, &ask.texts, |text| model.prepare(text, &ask.options))
            }
        };
        for job in jobs.iter_mut() {
            if matches!(job.request, EmbedRequest::About) {
                job.reply(EmbedReply::About(model.about()));
            }
        }
        step(jobs, prepare, Prepared::tokens, |job, batch| {
            let none = EmbedOptions::default();
            let options = if let EmbedRequest::Texts(ask) = job.request { &ask.options } else { &none };
            let vectors = model.run(pool, batch, options)?;
            job.reply(EmbedReply::Vectors(vectors));
            Ok(())
        });
    }

    fn memory(&self) -> u64 {
        self.model.encoder().bytes()
    }
}

/// A cross-encoder, shared by any number of sessions.
pub struct RerankerModel {
    model: TextReranker,
}

impl Model for RerankerModel {
    const KIND: &'static str = "reranker";
    const ABOUT: &'static str = "A cross-encoder from its folder: scores of texts against a query.";
    type Options = EmbedderOptions;
    type Protocol = Rerank;
    type Session = Queue<Pair>;

    fn identity(options: &EmbedderOptions) -> Result<String> {
        options.identity()
    }

    fn whereabouts(options: &EmbedderOptions) -> Result<Whereabouts> {
        options.whereabouts()
    }

    fn load(options: EmbedderOptions, load: &Load) -> Result<Self> {
        let model = TextReranker::load(&options.place()?, &options.load(), &mut |done, total| {
            load.progress(done, total);
            load.check()
        })?;
        Ok(Self { model })
    }

    fn open(&mut self, (): ()) -> Result<Self::Session> {
        Ok(Queue::default())
    }

    fn step(&mut self, jobs: &mut [Job<'_, Self>]) {
        let (pool, model) = (Pool::global(), &self.model);
        let prepare = |ask: &RerankRequest| prepared(pool, &ask.texts, |text| model.prepare(&ask.query, text));
        step(
            jobs,
            prepare,
            |pair: &Pair| pair.tokens.ids.len(),
            |job, batch| {
                let scored = model.run(pool, batch)?;
                job.reply(scored);
                Ok(())
            },
        );
    }

    fn memory(&self) -> u64 {
        self.model.bytes()
    }
}

/// Texts as tokens, by all threads.
fn prepared<T: Send + Sync>(
    pool: &Pool,
    texts: &[String],
    prepare: impl Fn(&str) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let places: Vec<std::sync::OnceLock<Result<T>>> = texts.iter().map(|_| std::sync::OnceLock::new()).collect();
    pool.run_chunks(texts.len(), 4, |range| {
        for i in range {
            // Every place is set once, by the chunk it belongs to.
            let _ = places[i].set(prepare(&texts[i]));
        }
    });
    places.into_iter().map(|place| place.into_inner().unwrap_or_else(|| Err(Error::Cancelled))).collect()
}
