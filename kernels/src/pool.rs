//! The thread pool: workers spin briefly, then park; the caller works too.
//!
//! A parallel region is a counter of chunks: whoever is awake takes the next chunk, so a worker
//! the system has put aside never holds a region up unless it is inside a chunk. Regions of several
//! threads and regions inside regions are queued beside one another; idle workers take the oldest
//! that still has chunks. A thread only ever waits for chunks that are being run, so nesting cannot
//! lock up.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long an idle thread looks for work before it parks.
const SPIN: Duration = Duration::from_micros(50);

/// A pool of compute threads. One a process; see [`Pool::global`].
pub struct Pool {
    threads: usize,
    /// How many workers can be at work at once: more than the machine has cores would only take
    /// turns.
    useful: usize,
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

/// What the pool's threads share.
struct Shared {
    queue: Mutex<Vec<Arc<Region>>>,
    wake: Condvar,
    /// Regions ever queued: what a spinning worker watches.
    queued: AtomicUsize,
    spinning: AtomicUsize,
    sleeping: AtomicUsize,
    stop: AtomicBool,
    /// Spinning only helps when every thread can have a core.
    spin: Duration,
}

/// One parallel region.
struct Region {
    /// Next index not yet taken.
    next: AtomicUsize,
    count: usize,
    /// Indices taken at once.
    grain: usize,
    /// Indices finished or skipped.
    done: AtomicUsize,
    panicked: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    caller: Thread,
    task: Task,
}

/// The caller's closure with its lifetime forgotten.
struct Task(*const (dyn Fn(usize) + Sync));

// SAFETY: the closure is `Sync`, and it is only called between a successful take of an index and
// the count of that index as done; the caller stays inside `run` until every index is done.
unsafe impl Send for Task {}
// SAFETY: as above.
unsafe impl Sync for Task {}

impl Region {
    fn has_work(&self) -> bool {
        self.next.load(Ordering::Relaxed) < self.count
    }

    /// Takes and runs chunks until none is left.
    fn work(&self) {
        while self.has_work() {
            let start = self.next.fetch_add(self.grain, Ordering::Relaxed);
            if start >= self.count {
                return;
            }
            let end = (start + self.grain).min(self.count);
            if !self.panicked.load(Ordering::Relaxed) {
                // SAFETY: indices `start..end` are taken and not yet counted as done, so the
                // caller is still inside `run` and its closure alive.
                let task = unsafe { &*self.task.0 };
                let result = catch_unwind(AssertUnwindSafe(|| {
                    for i in start..end {
                        task(i);
                    }
                }));
                if let Err(panic) = result {
                    self.panicked.store(true, Ordering::Relaxed);
                    lock(&self.panic).get_or_insert(panic);
                }
            }
            // Release: the caller, who reads with acquire, sees everything the tasks wrote.
            let before = self.done.fetch_add(end - start, Ordering::AcqRel);
            if before + (end - start) == self.count {
                self.caller.unpark();
            }
        }
    }

    fn finished(&self) -> bool {
        self.done.load(Ordering::Acquire) == self.count
    }
}

/// A lock that a panic elsewhere does not spoil: nothing under our locks is left half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn take(&self, queue: &[Arc<Region>]) -> Option<Arc<Region>> {
        queue.iter().find(|r| r.has_work()).cloned()
    }

    fn worker(&self) {
        loop {
            let seen = self.queued.load(Ordering::Acquire);
            let found = self.take(&lock(&self.queue));
            if let Some(region) = found {
                region.work();
                continue;
            }
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            if self.spin(seen) {
                continue;
            }
            let mut queue = lock(&self.queue);
            self.sleeping.fetch_add(1, Ordering::AcqRel);
            while !self.stop.load(Ordering::Acquire) && self.take(&queue).is_none() {
                queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            self.sleeping.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Watches for a region newer than `seen` for a while.
    fn spin(&self, seen: usize) -> bool {
        self.spinning.fetch_add(1, Ordering::AcqRel);
        let found = spin_until(self.spin, || self.queued.load(Ordering::Acquire) != seen);
        self.spinning.fetch_sub(1, Ordering::AcqRel);
        found
    }
}

/// Spins at most `time` until `ready`.
fn spin_until(time: Duration, ready: impl Fn() -> bool) -> bool {
    if ready() {
        return true;
    }
    if time.is_zero() {
        return false;
    }
    let start = Instant::now();
    loop {
        for _ in 0..64 {
            if ready() {
                return true;
            }
            std::hint::spin_loop();
        }
        if start.elapsed() >= time {
            return ready();
        }
    }
}

static GLOBAL: OnceLock<Pool> = OnceLock::new();

impl Pool {
    /// A pool of `threads` threads, the caller included. When the system refuses a thread the
    /// pool has fewer.
    pub fn new(threads: usize) -> Self {
        let cores = cores();
        let wanted = threads.max(1);
        let shared = Arc::new(Shared {
            queue: Mutex::new(Vec::new()),
            wake: Condvar::new(),
            queued: AtomicUsize::new(0),
            spinning: AtomicUsize::new(0),
            sleeping: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            spin: if wanted <= cores { SPIN } else { Duration::ZERO },
        });
        let mut workers = Vec::new();
        for i in 1..wanted {
            let shared = Arc::clone(&shared);
            let spawned = std::thread::Builder::new().name(format!("compute-{i}")).spawn(move || shared.worker());
            match spawned {
                Ok(worker) => workers.push(worker),
                Err(_) => break,
            }
        }
        let threads = workers.len() + 1;
        Self { threads, useful: (cores - 1).max(1).min(threads - 1), shared, workers }
    }

    /// The process's pool; made with one thread a core unless [`Pool::init_global`] came first.
    pub fn global() -> &'static Self {
        GLOBAL.get_or_init(|| Self::new(cores()))
    }

    /// Sets the size of the global pool. False when it already exists.
    pub fn init_global(threads: usize) -> bool {
        let mut made = false;
        GLOBAL.get_or_init(|| {
            made = true;
            Self::new(threads)
        });
        made
    }

    /// Threads, the caller included.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Calls `task(i)` for every `i < count`, in any order, on any thread; returns when all are done.
    /// Nested calls and calls from several threads at once are allowed. A panic in a task is
    /// raised again in the caller once all tasks have stopped.
    pub fn run(&self, count: usize, task: impl Fn(usize) + Sync) {
        if count <= 1 || self.workers.is_empty() {
            for i in 0..count {
                task(i);
            }
            return;
        }
        self.region(count, &task);
    }

    /// Splits `0..len` into chunks of at least `min_chunk` (the last may be shorter) and calls
    /// `task` for each: enough chunks that a slow thread can be helped, few enough to be cheap.
    pub fn run_chunks(&self, len: usize, min_chunk: usize, task: impl Fn(Range<usize>) + Sync) {
        let chunk = len.div_ceil(self.threads * 4).max(min_chunk).max(1);
        if chunk >= len {
            if len > 0 {
                task(0..len);
            }
            return;
        }
        self.run(len.div_ceil(chunk), |i| task(i * chunk..((i + 1) * chunk).min(len)));
    }

    fn region(&self, count: usize, task: &(dyn Fn(usize) + Sync)) {
        // SAFETY: only the lifetime changes, and this function does not return (nor unwind) before
        // every index is done, after which nobody calls the task any more.
        let task =
            Task(unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(task) });
        let region = Arc::new(Region {
            next: AtomicUsize::new(0),
            count,
            grain: (count / (self.threads * 16)).max(1),
            done: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            panic: Mutex::new(None),
            caller: std::thread::current(),
            task,
        });
        lock(&self.shared.queue).push(Arc::clone(&region));
        self.shared.queued.fetch_add(1, Ordering::AcqRel);
        let wanted = (count - 1).min(self.useful);
        let spinning = self.shared.spinning.load(Ordering::Acquire);
        if spinning < wanted && self.shared.sleeping.load(Ordering::Acquire) > 0 {
            for _ in spinning..wanted {
                self.shared.wake.notify_one();
            }
        }
        region.work();
        lock(&self.shared.queue).retain(|r| !Arc::ptr_eq(r, &region));
        if !spin_until(self.shared.spin, || region.finished()) {
            while !region.finished() {
                std::thread::park();
            }
        }
        let panic = lock(&region.panic).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        {
            // Under the lock, so that no worker is between its last look and its sleep.
            let _queue = lock(&self.shared.queue);
            self.shared.stop.store(true, Ordering::Release);
        }
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A slice that several threads write disjoint parts of.
pub(crate) struct Parts<T> {
    start: *mut T,
    len: usize,
}

// SAFETY: parts are only handed out through `part`, whose caller promises that no two overlap.
unsafe impl<T: Send> Sync for Parts<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Parts<T> {}

impl<T> Parts<T> {
    /// Splits a slice, which stays borrowed as long as the caller keeps it in its region.
    pub(crate) fn new(slice: &mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len() }
    }

    /// One part.
    ///
    /// # Safety
    /// No two parts in use at once overlap, and the slice given to `new` outlives the part.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "a part inside its slice");
        // SAFETY: inside the slice; disjointness is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }

    /// Where the slice starts.
    pub(crate) fn start(&self) -> *mut T {
        self.start
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn every_index_once() {
        for threads in [1, 2, 3, 8] {
            let pool = Pool::new(threads);
            for count in [0, 1, 2, 3, 17, 1000, 5000] {
                let hits: Vec<AtomicU32> = (0..count).map(|_| AtomicU32::new(0)).collect();
                pool.run(count, |i| {
                    hits[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1), "{threads} threads, {count} tasks");
            }
        }
    }

    #[test]
    fn chunks_cover_the_length() {
        let pool = Pool::new(3);
        for len in [0, 1, 5, 100, 1001] {
            for min in [0, 1, 7, 64, 2000] {
                let hits: Vec<AtomicU32> = (0..len).map(|_| AtomicU32::new(0)).collect();
                pool.run_chunks(len, min, |range| {
                    assert!(range.len() >= min || range.end == len);
                    for i in range {
                        hits[i].fetch_add(1, Ordering::Relaxed);
                    }
                });
                assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn nested_and_concurrent_regions() {
        let pool = Pool::new(3);
        let total = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        pool.run(5, |_| {
                            pool.run(4, |_| {
                                pool.run(2, |_| {
                                    total.fetch_add(1, Ordering::Relaxed);
                                });
                            });
                        });
                    }
                });
            }
        });
        assert_eq!(total.load(Ordering::Relaxed), 4 * 200 * 5 * 4 * 2);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(3);
        for round in 0..50 {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                pool.run(20, |i| {
                    if i == round % 20 {
                        resume_unwind(Box::new("stop"));
                    }
                });
            }));
            assert_eq!(caught.unwrap_err().downcast_ref::<&str>(), Some(&"stop"));
            let sum = AtomicUsize::new(0);
            pool.run(20, |i| {
                sum.fetch_add(i, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 190);
        }
    }

    #[test]
    fn wakes_after_parking() {
        let pool = Pool::new(4);
        for _ in 0..20 {
            std::thread::sleep(Duration::from_micros(200));
            let sum = AtomicUsize::new(0);
            pool.run(64, |i| {
                sum.fetch_add(i, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 2016);
        }
    }

    #[test]
    fn what_tasks_wrote_is_seen() {
        let pool = Pool::new(4);
        let mut data = vec![0_usize; 4096];
        for round in 1..200 {
            let parts = Parts::new(&mut data);
            pool.run(64, |i| {
                // SAFETY: every task has its own 64 values.
                for v in unsafe { parts.part(i * 64..(i + 1) * 64) } {
                    *v += round;
                }
            });
        }
        assert!(data.iter().all(|&v| v == 199 * 200 / 2));
    }
}
