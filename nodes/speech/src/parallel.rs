//! Work on disjoint chunks of one buffer over the thread pool.

use std::sync::Mutex;

use oxiline_kernels::Pool;

/// Calls `work(i, chunk)` for every chunk of `chunk` values of `data`, in parallel.
pub(crate) fn chunks<T: Send>(pool: &Pool, data: &mut [T], chunk: usize, work: impl Fn(usize, &mut [T]) + Sync) {
    let parts: Vec<Mutex<&mut [T]>> = data.chunks_mut(chunk.max(1)).map(Mutex::new).collect();
    pool.run(parts.len(), |i| {
        // Every part is taken by exactly one task, so the lock never waits and poisoning says nothing.
        let mut part = parts[i].lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        work(i, &mut part);
    });
}
