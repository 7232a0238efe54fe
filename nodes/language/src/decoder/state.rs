//! The caches of a sequence.

use super::SequenceState;
use super::local::KvCache;
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
    pub(super) fn new(spec: &Spec) -> Self {
        let layers = spec.layers.iter().map(|layer| {
            let Mixer::Attention(a) = &layer.mixer;
            Cache::Attention(KvCache::new(a.kv_width()))
        });
        Self { layers: layers.collect(), len: 0 }
    }
}

impl SequenceState for State {
    fn len(&self) -> usize {
        self.len
    }

    fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        self.layers.iter_mut().for_each(|cache| cache.kv_mut().truncate(len));
    }

    fn fork(&self) -> Self {
        let layers = self.layers.iter().map(|cache| Cache::Attention(cache.kv().clone()));
        Self { layers: layers.collect(), len: self.len }
    }

    fn bytes(&self) -> usize {
        self.layers.iter().map(|cache| cache.kv().bytes()).sum()
    }
}
