//! The caches of a sequence.

use oxiline_kernels::{KvCache, KvFormat};

use super::SequenceState;
use super::spec::{Mixer, Spec};

/// The caches of one sequence, layer by layer.
pub struct State {
    pub(super) layers: Vec<Cache>,
    pub(super) len: usize,
}

/// What one layer remembers of a sequence.
pub(super) enum Cache {
    /// Keys and values of attention.
    Attention(KvCache),
}

impl Cache {
    pub(super) fn kv(&self) -> &KvCache {
        let Self::Attention(kv) = self;
        kv
    }

    pub(super) fn kv_mut(&mut self) -> &mut KvCache {
        let Self::Attention(kv) = self;
        kv
    }
}

impl State {
    pub(super) fn new(spec: &Spec, format: KvFormat) -> Self {
        let layers = spec.layers.iter().map(|layer| {
            let Mixer::Attention(a) = &layer.mixer;
            Cache::Attention(KvCache::new(format, a.kv_heads, a.head_dim).with_window(a.window))
        });
        Self { layers: layers.collect(), len: 0 }
    }
}

impl SequenceState for State {
    fn len(&self) -> usize {
        self.len
    }

    /// With sliding windows positions far behind are dropped; going back to where they would be seen
    /// again forgets everything.
    fn truncate(&mut self, len: usize) {
        let len = len.min(self.len);
        self.len = self.layers.iter().map(|cache| cache.kv().reachable(len)).min().unwrap_or(len);
        self.layers.iter_mut().for_each(|cache| cache.kv_mut().truncate(self.len));
    }

    fn fork(&self) -> Self {
        let layers = self.layers.iter().map(|cache| Cache::Attention(cache.kv().fork()));
        Self { layers: layers.collect(), len: self.len }
    }

    fn bytes(&self) -> usize {
        self.layers.iter().map(|cache| cache.kv().bytes()).sum()
    }
}
