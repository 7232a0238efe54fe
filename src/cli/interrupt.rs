//! Ctrl-C: the first asks for a graceful stop, the second stops at once, the third kills.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, Once};

type Action = Box<dyn Fn(u8) + Send>;

static PRESSED: AtomicU8 = AtomicU8::new(0);
static ACTION: Mutex<Option<Action>> = Mutex::new(None);
static INSTALL: Once = Once::new();

/// While it lives, `action(n)` is called at the n-th Ctrl-C (or TERM).
pub struct Guard;

/// Sets what an interrupt does. One guard at a time: the last one wins.
pub fn on_interrupt(action: impl Fn(u8) + Send + 'static) -> Guard {
    *ACTION.lock().unwrap_or_else(|e| e.into_inner()) = Some(Box::new(action));
    INSTALL.call_once(|| {
        // Failing to install leaves the system's default: Ctrl-C kills, which is what it says.
        let _ = ctrlc::set_handler(|| {
            let n = PRESSED.fetch_add(1, Ordering::SeqCst) + 1;
            if n >= 3 {
                std::process::exit(super::STOPPED.into());
            }
            match &*ACTION.lock().unwrap_or_else(|e| e.into_inner()) {
                Some(action) => action(n),
                None => std::process::exit(super::STOPPED.into()),
            }
        });
    });
    Guard
}

/// A new piece of work begins: its first Ctrl-C is a first one again.
pub fn reset() {
    PRESSED.store(0, Ordering::SeqCst);
}

impl Drop for Guard {
    fn drop(&mut self) {
        *ACTION.lock().unwrap_or_else(|e| e.into_inner()) = None;
    }
}
