//! Which node the current thread runs, so that waiting for a model is seen by its graph.

use std::cell::RefCell;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::engine::{Engine, Waker};

thread_local! {
    static CURRENT: RefCell<Option<(Arc<Engine>, usize)>> = const { RefCell::new(None) };
}

/// From here on this thread runs the node `me` of `engine`.
pub(crate) fn enter(engine: Arc<Engine>, me: usize) {
    CURRENT.with(|current| *current.borrow_mut() = Some((engine, me)));
}

/// How far the waiting node is cancelled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cancel {
    No,
    /// Its scope or graph is cancelled: finish what is whole.
    Soft,
    /// Leave at once.
    Hard,
}

/// Waits under `mutex` until `ready` gives a value; tells the graph of the calling node that
/// it waits for a model, and asks `ready` again when the node is cancelled.
pub(crate) fn wait<T, R>(
    mutex: &Mutex<T>,
    condvar: &Condvar,
    waker: impl FnOnce() -> Waker,
    mut ready: impl FnMut(&mut T, Cancel) -> Option<R>,
) -> R {
    let node = CURRENT.with(|current| current.borrow().clone());
    let cancel = || match &node {
        Some((engine, _)) if engine.killed.load(SeqCst) => Cancel::Hard,
        Some((engine, me)) if engine.check(*me).is_err() => Cancel::Soft,
        _ => Cancel::No,
    };
    {
        let mut state = mutex.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = ready(&mut state, cancel()) {
            return value;
        }
    }
    if let Some((engine, me)) = &node {
        engine.model_begin(*me, waker());
    }
    let mut state = mutex.lock().unwrap_or_else(PoisonError::into_inner);
    let value = loop {
        if let Some(value) = ready(&mut state, cancel()) {
            break value;
        }
        state = condvar.wait(state).unwrap_or_else(PoisonError::into_inner);
    };
    drop(state);
    if let Some((engine, me)) = &node {
        engine.model_end(*me);
    }
    value
}
