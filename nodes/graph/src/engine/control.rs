//! The control lane beside the data: pausing scopes, setting options of running nodes.
//!
//! Control never waits on data and is seen before the next item: a pause is a flag that every receive
//! and send looks at, a setting replaces an older one of the same name, so there is nothing to queue.

use std::sync::atomic::Ordering::SeqCst;

use super::{Engine, Locked, Status, Want};
use crate::error::{Error, Result};

impl Engine {
    /// Is the scope of this node paused?
    pub fn is_paused(&self, me: usize) -> bool {
        self.nodes[me].scope.is_some_and(|scope| self.paused[scope].load(SeqCst))
    }

    /// Keeps a member of a paused scope until it goes on or is cancelled. A node that handles pauses
    /// itself (a loudspeaker that has to fade) is not kept.
    pub fn hold<'a>(&self, mut st: Locked<'a>, me: usize) -> Locked<'a> {
        while self.is_paused(me) && !self.nodes[me].declared.handles_pause && self.check(me).is_ok() {
            st = st.suspend(me, Status::Waiting, Want::Resume, None);
        }
        st
    }

    /// Pauses a scope or lets it go on; `by` is the node that does it, whose end undoes it.
    pub fn pause_scope(&self, scope: usize, pause: bool, by: Option<usize>) {
        let mut st = self.lock();
        if let Some(by) = by {
            st.nodes[by].pausing.retain(|s| *s != scope);
            if pause {
                st.nodes[by].pausing.push(scope);
            }
        }
        st.set_paused(scope, pause);
        st.schedule();
    }

    /// The number of a scope.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn scope_named(&self, name: &str) -> Result<usize> {
        self.scopes.iter().position(|scope| *scope.0 == *name).ok_or_else(|| {
            let known: Vec<&str> = self.scopes.iter().map(|scope| &*scope.0).collect();
            Error::msg(format_args!(
                "graph `{}` has no scope `{name}`; it has: {}",
                self.name,
                if known.is_empty() { "none".into() } else { known.join(", ") }
            ))
        })
    }

    /// Gives a running node a new value of one of its settable options.
    ///
    /// # Errors
    /// No such node, or none of its settable options.
    pub fn set(&self, node: &str, key: &str, value: serde_json::Value) -> Result<()> {
        let Some(n) = self.nodes.iter().position(|info| *info.name == *node) else {
            return Err(Error::msg(format_args!("graph `{}` has no node `{node}`", self.name)));
        };
        let settable = &self.nodes[n].declared.settable;
        let Some(key) = settable.iter().find(|known| **known == key) else {
            return Err(Error::msg(format_args!(
                "`{key}` of node `{node}` cannot be set while it runs; {}",
                if settable.is_empty() {
                    "nothing of it can".into()
                } else {
                    format!("these can: {}", settable.join(", "))
                }
            )));
        };
        let mut st = self.lock();
        st.nodes[n].settings.insert(key, value);
        self.nodes[n].settings.store(true, SeqCst);
        Ok(())
    }

    /// A node is restarted: so are its companions, at their next step.
    pub fn renew_companions(&self, me: usize) {
        if self.nodes[me].companions.is_empty() {
            return;
        }
        let mut st = self.lock();
        for &n in &self.nodes[me].companions {
            self.nodes[n].renew.store(true, SeqCst);
            st.ready(n);
            let waker = st.nodes[n].waker.clone();
            st.calls.extend(waker);
        }
        st.schedule();
    }

    /// The settings that came since the last call.
    pub fn settings(&self, me: usize) -> Vec<(&'static str, serde_json::Value)> {
        if !self.nodes[me].settings.swap(false, SeqCst) {
            return Vec::new();
        }
        std::mem::take(&mut self.lock().nodes[me].settings).into_iter().collect()
    }
}

impl Locked<'_> {
    /// Sets the flag and wakes whom it kept.
    pub(super) fn set_paused(&mut self, scope: usize, pause: bool) {
        self.engine().paused[scope].store(pause, SeqCst);
        for n in 0..self.nodes.len() {
            let kept = self.nodes[n].status == Status::Waiting && self.nodes[n].want == Want::Resume;
            if !pause && kept && self.engine().nodes[n].scope == Some(scope) {
                self.ready(n);
            }
        }
    }
}
