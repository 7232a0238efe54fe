//! The decoder: streams with their caches, and steps over many streams as one batch.

/// One decoding stream: the keys and values of its window (shared by its forks) and of the tokens
/// fed so far.
#[derive(Clone)]
pub struct Stream {
    len: usize,
}

impl Stream {
    /// Tokens fed so far.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Nothing fed yet?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Forgets the tokens from `len` on.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
    /// A second stream that goes on from here (for beams): shares the window, copies the rest.
    pub fn fork(&self) -> Self {
        self.clone()
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
