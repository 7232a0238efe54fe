//! Cancelling a call of the library from another thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use oxiline_graph::{Call, Protocol};

/// Cancels the running call.
type Cancel = Box<dyn Fn() + Send>;

/// Cancels a transcription or an answer from another thread: the call returns what is finished, marked
/// as stopped.
#[derive(Clone, Default)]
pub struct CancelHandle {
    asked: Arc<AtomicBool>,
    current: Arc<Mutex<Option<Cancel>>>,
}

impl CancelHandle {
    /// Cancels what runs now (or the next call, if none does).
    pub fn cancel(&self) {
        self.asked.store(true, Ordering::SeqCst);
        if let Some(cancel) = &*self.current.lock().unwrap_or_else(PoisonError::into_inner) {
            cancel();
        }
    }

    /// Was a cancel asked for that nothing has used up yet?
    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }

    /// Makes `call` what a cancel cancels; true if one came just before. Then what the call still sends,
    /// which may be all of a short answer, is not to be told.
    pub(crate) fn begin<P: Protocol>(&self, call: &Call<'_, P>) -> bool
    where
        P::Reply: Send,
    {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(call.canceller()));
        let asked = self.is_asked();
        if asked {
            call.cancel();
        }
        asked
    }

    /// Nothing runs any more.
    pub(crate) fn end(&self) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// A cancel is used up.
    pub(crate) fn clear(&self) {
        self.asked.store(false, Ordering::SeqCst);
    }
}
