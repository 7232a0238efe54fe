//! The decoder: streams with their caches, and steps over many streams as one batch.

use std::sync::Arc;

use oxiline_graph::{Result, bail};
use oxiline_kernels::{
    Matrix, Pool,
    attention::{self, Kv, Query},
};

use super::Config;
use super::encoder::{Linear, Norm, scale};

/// One decoding stream: the keys and values of its window (shared by its forks) and of the tokens
/// fed so far.
pub struct Stream {
    /// Cross-attention, per layer.
    window: Arc<Vec<Kv>>,
    /// Self-attention, per layer.
    tokens: Vec<Kv>,
}

impl Stream {
    /// Tokens fed so far.
    pub fn len(&self) -> usize {
        self.tokens.first().map_or(0, Kv::len)
    }
    /// Nothing fed yet?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Forgets the tokens from `len` on.
    pub fn truncate(&mut self, len: usize) {
        for kv in &mut self.tokens {
            kv.truncate(len);
        }
    }
    /// A second stream that goes on from here (for beams): shares the window, copies the rest.
    pub fn fork(&self) -> Self {
        Self { window: self.window.clone(), tokens: self.tokens.iter().map(Kv::fork).collect() }
    }
}

/// Which of the fed tokens' logits are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rows<'a> {
    /// None: the tokens only fill the cache.
    None,
    /// The last token's.
    #[default]
    Last,
    /// Every token's.
    All,
    /// Those of these indices into the fed tokens, in this order.
    At(&'a [usize]),
}

/// Cross-attention (after softmax) of chosen heads, one row a fed token.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CrossAttention {
    /// `[layer, head]` of each recorded head.
    pub heads: Vec<(usize, usize)>,
    /// Encoder positions kept of each row (the softmax runs over all of them).
    pub columns: usize,
    /// `[tokens, heads, columns]`; every step appends its tokens.
    pub data: Vec<f32>,
}

impl CrossAttention {
    /// Records these heads, the first `columns` encoder positions of each.
    pub fn new(heads: &[(usize, usize)], columns: usize) -> Self {
        Self { heads: heads.to_vec(), columns, data: Vec::new() }
    }
    /// Tokens recorded.
    pub fn tokens(&self) -> usize {
        self.data.len() / (self.heads.len() * self.columns).max(1)
    }
    /// The row of one token and recorded head, `[columns]`.
    pub fn row(&self, token: usize, head: usize) -> &[f32] {
        let at = (token * self.heads.len() + head) * self.columns;
        &self.data[at..at + self.columns]
    }
    /// Forgets the tokens from `tokens` on.
    pub fn truncate(&mut self, tokens: usize) {
        self.data.truncate(tokens * self.heads.len() * self.columns);
    }
}

/// New tokens for one stream of a step.
pub struct Feed<'a> {
    /// The stream.
    pub stream: &'a mut Stream,
    /// Its next tokens, at least one.
    pub tokens: &'a [u32],
    /// Which logits are wanted.
    pub rows: Rows<'a>,
    /// Records the cross-attention of these tokens.
    pub attention: Option<&'a mut CrossAttention>,
    /// Result: raw logits `[wanted rows, vocab]`.
    pub logits: Vec<f32>,
}

impl<'a> Feed<'a> {
    /// Feeds `tokens`, wants the last one's logits.
    pub fn new(stream: &'a mut Stream, tokens: &'a [u32]) -> Self {
        Self { stream, tokens, rows: Rows::Last, attention: None, logits: Vec::new() }
    }
}

pub(crate) struct DecoderLayer {
    pub(crate) attention_norm: Norm,
    /// Queries, keys and values of one row side by side.
    pub(crate) qkv: Linear,
    pub(crate) out: Linear,
    pub(crate) cross_norm: Norm,
    pub(crate) cross_q: Linear,
    pub(crate) cross_k: Linear,
    pub(crate) cross_v: Linear,
    pub(crate) cross_out: Linear,
    pub(crate) ffn_norm: Norm,
    pub(crate) up: Linear,
    pub(crate) down: Linear,
}

pub(crate) struct Decoder {
    /// Token embedding, and the output head tied to it.
    pub(crate) embedding: Matrix,
    /// `[target_positions, width]`.
    pub(crate) positions: Vec<f32>,
    pub(crate) layers: Vec<DecoderLayer>,
    pub(crate) norm: Norm,
    /// Keys and values of windows are kept as halves.
    pub(crate) half: bool,
}

impl Decoder {
    pub(crate) fn start(&self, pool: &Pool, config: &Config, encoded: &[f32]) -> Stream {
        let head_dim = config.width / config.decoder_heads;
        let mut k = vec![0.0; encoded.len()];
        let mut v = vec![0.0; encoded.len()];
        let window = self
            .layers
            .iter()
            .map(|layer| {
                layer.cross_k.run(pool, encoded, &mut k);
                layer.cross_v.run(pool, encoded, &mut v);
                let make = if self.half { Kv::new_f16 } else { Kv::new };
                let mut kv = make(config.decoder_heads, head_dim, encoded.len() / config.width);
                kv.push(&k, &v);
                kv
            })
            .collect();
        let tokens = self.layers.iter().map(|_| Kv::new(config.decoder_heads, head_dim, 64)).collect();
        Stream { window: Arc::new(window), tokens }
    }

    pub(crate) fn step(&self, pool: &Pool, config: &Config, feeds: &mut [Feed<'_>]) -> Result<()> {
        check(config, self.layers.len(), feeds)?;
        let width = config.width;
        let rows: usize = feeds.iter().map(|f| f.tokens.len()).sum();
        let mut hidden = vec![0.0; rows * width];
        self.embed(config, feeds, &mut hidden);

        let query_scale = ((width / config.decoder_heads) as f32).powf(-0.5);
        let mut buffers = Buffers::new(rows, width, config.decoder_ffn);
        let bases: Vec<usize> = feeds.iter().map(|f| f.stream.len()).collect();
        let mut recorders = Recorder::begin(feeds);
        for (index, layer) in self.layers.iter().enumerate() {
            let Buffers { normed, qkv, mixed, up } = &mut buffers;
            layer.attention_norm.run(pool, &hidden, normed);
            layer.qkv.run(pool, normed, qkv);
            let mut row = qkv.chunks_exact_mut(3 * width);
            for feed in feeds.iter_mut() {
                for qkv in row.by_ref().take(feed.tokens.len()) {
                    let (q, kv) = qkv.split_at_mut(width);
                    q.iter_mut().for_each(|v| *v *= query_scale);
                    let (k, v) = kv.split_at(width);
                    feed.stream.tokens[index].push(k, v);
                }
            }
            let mut queries = Vec::with_capacity(rows);
            let mut row = qkv.chunks_exact(3 * width).zip(mixed.chunks_exact_mut(width));
            for (feed, base) in feeds.iter().zip(&bases) {
                for (i, (qkv, out)) in row.by_ref().take(feed.tokens.len()).enumerate() {
                    let kv = &feed.stream.tokens[index];
                    queries.push(Query { q: &qkv[..width], kv, len: base + i + 1, out, weights: None });
                }
            }
            attention::rows(pool, &mut queries);
            drop(queries);
            layer.out.add(pool, mixed, &mut hidden);

            layer.cross_norm.run(pool, &hidden, normed);
            let q = &mut qkv[..rows * width];
            layer.cross_q.run(pool, normed, q);
            scale(pool, q, query_scale);
            for (recorder, feed) in recorders.iter_mut().zip(feeds.iter()) {
                recorder.begin_layer(index, feed);
            }
            let mut queries = Vec::with_capacity(rows);
            let mut row = q.chunks_exact(width).zip(mixed.chunks_exact_mut(width));
            for (feed, recorder) in feeds.iter().zip(&mut recorders) {
                let kv = &feed.stream.window[index];
                let mut weights = recorder.rows(kv.len());
                for (q, out) in row.by_ref().take(feed.tokens.len()) {
                    queries.push(Query { q, kv, len: kv.len(), out, weights: weights.next() });
                }
            }
            attention::rows(pool, &mut queries);
            drop(queries);
            for (recorder, feed) in recorders.iter().zip(feeds.iter_mut()) {
                recorder.end_layer(feed);
            }
            layer.cross_out.add(pool, mixed, &mut hidden);

            layer.ffn_norm.run(pool, &hidden, normed);
            layer.up.run_gelu(pool, normed, up);
            layer.down.add(pool, up, &mut hidden);
        }
        self.head(pool, config, &hidden, feeds);
        Ok(())
    }

    fn embed(&self, config: &Config, feeds: &[Feed<'_>], hidden: &mut [f32]) {
        let width = config.width;
        let factor = if config.scale_embedding { (width as f32).sqrt() } else { 1.0 };
        let mut row = hidden.chunks_exact_mut(width);
        for feed in feeds {
            let base = feed.stream.len();
            for ((i, token), row) in feed.tokens.iter().enumerate().zip(row.by_ref()) {
                self.embedding.row(*token as usize, row);
                let position = &self.positions[(base + i) * width..];
                for (x, p) in row.iter_mut().zip(position) {
                    *x = *x * factor + p;
                }
            }
        }
    }

    /// Logits of the wanted rows only.
    fn head(&self, pool: &Pool, config: &Config, hidden: &[f32], feeds: &mut [Feed<'_>]) {
        let width = config.width;
        let mut chosen = Vec::new();
        let mut first = 0;
        for feed in feeds.iter() {
            let n = feed.tokens.len();
            let mut take = |i: usize| chosen.extend_from_slice(&hidden[(first + i) * width..(first + i + 1) * width]);
            match feed.rows {
                Rows::None => {}
                Rows::Last => take(n - 1),
                Rows::All => (0..n).for_each(&mut take),
                Rows::At(rows) => rows.iter().copied().for_each(&mut take),
            }
            first += n;
        }
        if chosen.is_empty() {
            for feed in feeds {
                feed.logits.clear();
            }
            return;
        }
        let mut normed = vec![0.0; chosen.len()];
        self.norm.run(pool, &chosen, &mut normed);
        if let [feed] = feeds {
            feed.logits.resize(chosen.len() / width * config.vocab, 0.0);
            self.embedding.matmul(pool, &normed, None, &mut feed.logits);
            return;
        }
        let mut logits = vec![0.0; chosen.len() / width * config.vocab];
        self.embedding.matmul(pool, &normed, None, &mut logits);
        let mut rest = &logits[..];
        for feed in feeds {
            let (mine, others) = rest.split_at(feed.rows.count(feed.tokens.len()) * config.vocab);
            feed.logits.clear();
            feed.logits.extend_from_slice(mine);
            rest = others;
        }
    }
}

impl Rows<'_> {
    fn count(&self, tokens: usize) -> usize {
        match self {
            Self::None => 0,
            Self::Last => 1,
            Self::All => tokens,
            Self::At(rows) => rows.len(),
        }
    }
}

/// Everything that could go wrong is found before any stream changes.
fn check(config: &Config, layers: usize, feeds: &[Feed<'_>]) -> Result<()> {
    for feed in feeds {
        if feed.tokens.is_empty() {
            bail!("a decoder step got a stream without tokens");
        }
        if feed.stream.tokens.len() != layers || feed.stream.window.len() != layers {
            bail!("a decoder step got a stream that was started by another model");
        }
        if feed.stream.len() + feed.tokens.len() > config.target_positions {
            bail!(
                "{} tokens after {} do not fit into the {} positions of this model's decoder",
                feed.tokens.len(),
                feed.stream.len(),
                config.target_positions
            );
        }
        if let Some(id) = feed.tokens.iter().find(|id| **id as usize >= config.vocab) {
            bail!("token id {id} is not in the vocabulary of {} ids", config.vocab);
        }
        if let Rows::At(rows) = feed.rows
            && let Some(row) = rows.iter().find(|row| **row >= feed.tokens.len())
        {
            bail!("logits of fed token {row} wanted, but only {} tokens were fed", feed.tokens.len());
        }
        if let Some(attention) = &feed.attention {
            let positions = feed.stream.window.first().map_or(0, Kv::len);
            if attention.columns > positions {
                bail!("{} columns of cross-attention wanted of {positions}", attention.columns);
            }
            let heads = config.decoder_heads;
            if let Some((l, h)) = attention.heads.iter().find(|(l, h)| *l >= layers || *h >= heads) {
                bail!("cross-attention head [{l}, {h}] wanted of {layers} layers of {heads} heads");
            }
        }
    }
    Ok(())
}

struct Buffers {
    normed: Vec<f32>,
    qkv: Vec<f32>,
    mixed: Vec<f32>,
    up: Vec<f32>,
}

impl Buffers {
    fn new(rows: usize, width: usize, ffn: usize) -> Self {
        Self {
            normed: vec![0.0; rows * width],
            qkv: vec![0.0; rows * width * 3],
            mixed: vec![0.0; rows * width],
            up: vec![0.0; rows * ffn],
        }
    }
}

/// Collects one feed's cross-attention: the kernel hands out whole rows of one layer, the record
/// keeps the wanted columns of all layers.
#[derive(Default)]
struct Recorder {
    /// Where this step's tokens begin in the record, in values.
    start: usize,
    /// This layer's wanted heads, and each one's place in the record.
    heads: Vec<usize>,
    places: Vec<usize>,
    /// `[tokens, heads of this layer, positions]`.
    rows: Vec<f32>,
}

impl Recorder {
    fn begin(feeds: &mut [Feed<'_>]) -> Vec<Self> {
        let begin = |feed: &mut Feed<'_>| {
            let Some(record) = &mut feed.attention else { return Self::default() };
            let start = record.data.len();
            record.data.resize(start + feed.tokens.len() * record.heads.len() * record.columns, 0.0);
            Self { start, ..Self::default() }
        };
        feeds.iter_mut().map(begin).collect()
    }

    fn begin_layer(&mut self, layer: usize, feed: &Feed<'_>) {
        let Some(record) = &feed.attention else { return };
        self.places = (0..record.heads.len()).filter(|i| record.heads[*i].0 == layer).collect();
        self.heads = self.places.iter().map(|i| record.heads[*i].1).collect();
        self.rows.resize(feed.tokens.len() * self.heads.len() * feed.stream.window[layer].len(), 0.0);
    }

    fn rows(&mut self, positions: usize) -> impl Iterator<Item = (&[usize], &mut [f32])> {
        let size = (self.heads.len() * positions).max(1);
        let heads = &self.heads[..];
        self.rows.chunks_exact_mut(size).map(move |row| (heads, row))
    }

    fn end_layer(&self, feed: &mut Feed<'_>) {
        let Some(record) = &mut feed.attention else { return };
        if self.heads.is_empty() {
            return;
        }
        let positions = self.rows.len() / (feed.tokens.len() * self.heads.len());
        for (i, row) in self.rows.chunks_exact(positions).enumerate() {
            let (token, head) = (i / self.heads.len(), i % self.heads.len());
            let at = self.start + (token * record.heads.len() + self.places[head]) * record.columns;
            record.data[at..at + record.columns].copy_from_slice(&row[..record.columns]);
        }
    }
}
