//! The thread of a model actor: which jobs get the next step, and what comes of it.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Condvar, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Opening, Pending, Seat, Serving, WINDOW, Work, panic_text};
use crate::error::{Error, Result};
use crate::model::{Job, Model};
use crate::stats::{ClassStats, ModelStats};

impl<M: Model> Serving<M> {
    pub(super) fn run(mut self, mut model: M) {
        let ended = catch_unwind(AssertUnwindSafe(|| self.serve(&mut model)));
        let name = &self.shared.config.name;
        let error = match ended {
            Ok(()) => Error::msg(format_args!("model `{name}` has been unloaded")),
            Err(panic) => Error::msg(format_args!("model `{name}` panicked: {}", panic_text(&*panic))),
        };
        let mut mail = self.shared.lock();
        mail.dead = Some(error.clone());
        for opening in mail.opens.drain(..) {
            opening.answer.finish(Err(error.clone()));
        }
        for pending in mail.requests.drain(..) {
            pending.replies.finish(Err(error.clone()));
        }
        drop(mail);
        for work in self.seats.values().flat_map(|seat| &seat.jobs) {
            work.replies.finish(Err(error.clone()));
        }
        self.shared.room.notify_all();
    }

    fn serve(&mut self, model: &mut M) {
        let shared = self.shared.clone();
        let mut used = false;
        let mut idle_since = Instant::now();
        let mut mail = shared.lock();
        loop {
            used |= mail.users > 0;
            let opens = std::mem::take(&mut mail.opens);
            let requests = std::mem::take(&mut mail.requests);
            if !opens.is_empty() || !requests.is_empty() {
                drop(mail);
                self.open_all(model, opens);
                self.sort_in(requests);
                mail = shared.lock();
            }
            for id in std::mem::take(&mut mail.closes) {
                mail.sessions = mail.sessions.saturating_sub(1);
                if let Some(seat) = self.seats.remove(&id) {
                    let waiting = seat.jobs.iter().filter(|job| job.started.is_none()).count();
                    mail.waiting -= waiting;
                    for job in seat.jobs {
                        job.replies.finish(Err(Error::Cancelled));
                    }
                }
            }
            if !mail.opens.is_empty() || !mail.requests.is_empty() {
                continue;
            }
            mail.waiting -= self.drop_cancelled();
            shared.room.notify_all();
            if mail.users > 0 {
                idle_since = Instant::now();
            }
            match self.choose() {
                Some(batch) => {
                    if let Some(rest) = self.batch_rest(&batch) {
                        mail = wait(&shared.wake, mail, Some(rest));
                        continue;
                    }
                    let fresh = batch.iter().filter(|id| self.is_fresh(**id)).count();
                    mail.waiting -= fresh;
                    shared.room.notify_all();
                    drop(mail);
                    self.step(model, &batch);
                    mail = shared.lock();
                }
                None if used && mail.users == 0 => {
                    let rest = shared.config.keep.saturating_sub(idle_since.elapsed());
                    if rest.is_zero() {
                        // Under the lock: nobody can become a user between looking and ending.
                        mail.dead = Some(Error::msg(format_args!("model `{}` has been unloaded", shared.config.name)));
                        return;
                    }
                    mail = wait(&shared.wake, mail, Some(rest));
                }
                None => mail = wait(&shared.wake, mail, None),
            }
        }
    }

    fn open_all(&mut self, model: &mut M, opens: VecDeque<Opening<M::Protocol>>) {
        for Opening { id, open, class, answer } in opens {
            let result = catch_unwind(AssertUnwindSafe(|| model.open(open))).unwrap_or_else(|panic| {
                Err(Error::msg(format_args!("opening a session panicked: {}", panic_text(&*panic))))
            });
            match result {
                Ok(state) => {
                    self.seats.insert(id, Seat { state, class, jobs: VecDeque::new(), served: self.turn });
                    self.with_stats(|stats| stats.sessions += 1);
                    answer.finish(Ok(()));
                }
                Err(error) => answer.finish(Err(error)),
            }
        }
    }

    fn sort_in(&mut self, requests: VecDeque<Pending<M::Protocol>>) {
        for Pending { session, request, replies, arrived } in requests {
            let Some(seat) = self.seats.get_mut(&session) else {
                let name = &self.shared.config.name;
                replies.finish(Err(Error::msg(format_args!(
                    "this session of model `{name}` was closed by an earlier failure; open a new one"
                ))));
                self.shared.lock().waiting -= 1;
                continue;
            };
            let class = seat.class as usize;
            seat.jobs.push_back(Work { request, replies, arrived, started: None });
            // A class that was idle must not have saved up turns.
            self.pass[class] = self.pass[class].max(self.global);
        }
    }

    /// Ends requests that were given up before they were begun; returns how many.
    fn drop_cancelled(&mut self) -> usize {
        let mut dropped = 0;
        for seat in self.seats.values_mut() {
            seat.jobs.retain(|job| {
                let gone = job.started.is_none() && job.replies.cancelled.load(SeqCst);
                if gone {
                    job.replies.finish(Err(Error::Cancelled));
                    dropped += 1;
                }
                !gone
            });
        }
        dropped
    }

    fn is_fresh(&self, id: u64) -> bool {
        self.seats.get(&id).and_then(|seat| seat.jobs.front()).is_some_and(|job| job.started.is_none())
    }

    /// The sessions of the next step.
    fn choose(&mut self) -> Option<Vec<u64>> {
        let mut ready: [Vec<(u64, u64)>; 3] = Default::default();
        for (&id, seat) in &self.seats {
            if let Some(job) = seat.jobs.front()
                && (job.replies.cancelled.load(SeqCst) || job.replies.lock().queue.len() < WINDOW)
            {
                ready[seat.class as usize].push((seat.served, id));
            }
        }
        let class = (0..3).filter(|&c| !ready[c].is_empty()).min_by_key(|&c| (self.pass[c], c))?;
        let mut chosen = std::mem::take(&mut ready[class]);
        chosen.sort_unstable();
        chosen.truncate(self.shared.config.batch_max.max(1));
        Some(chosen.into_iter().map(|(_, id)| id).collect())
    }

    /// How long to wait for a fuller batch: only while it consists of new requests.
    fn batch_rest(&self, batch: &[u64]) -> Option<Duration> {
        let config = &self.shared.config;
        if config.batch_wait.is_zero() || batch.len() >= config.batch_max.max(1) {
            return None;
        }
        let mut oldest: Option<Instant> = None;
        for id in batch {
            let job = self.seats.get(id)?.jobs.front()?;
            if job.started.is_some() || job.replies.cancelled.load(SeqCst) {
                return None;
            }
            oldest = Some(oldest.map_or(job.arrived, |o| o.min(job.arrived)));
        }
        let rest = config.batch_wait.saturating_sub(oldest?.elapsed());
        (!rest.is_zero()).then_some(rest)
    }

    fn step(&mut self, model: &mut M, batch: &[u64]) {
        let began = Instant::now();
        for id in batch {
            // In the order chosen, so that of equals the one served last time waits longer.
            self.turn += 1;
            if let Some(seat) = self.seats.get_mut(id) {
                seat.served = self.turn;
            }
        }
        let mut class = 0;
        let mut waits = Vec::new();
        let mut results: Vec<(u64, Option<Result<()>>)> = batch.iter().map(|&id| (id, None)).collect();
        // Seats come in ascending id, so results must too.
        results.sort_unstable_by_key(|(id, _)| *id);
        let panicked = {
            let mut results = results.iter_mut().peekable();
            let mut jobs: Vec<Job<'_, M>> = Vec::with_capacity(batch.len());
            for (id, seat) in &mut self.seats {
                let Some((_, done)) = results.next_if(|(wanted, _)| wanted == id) else { continue };
                let Some(work) = seat.jobs.front_mut() else { continue };
                class = seat.class as usize;
                let first = work.started.is_none();
                if first {
                    work.started = Some(began);
                    waits.push(began.saturating_duration_since(work.arrived));
                }
                jobs.push(Job {
                    session: &mut seat.state,
                    request: &work.request,
                    replies: &work.replies,
                    done,
                    first,
                    waited: work.started.unwrap_or(began).saturating_duration_since(work.arrived),
                });
            }
            catch_unwind(AssertUnwindSafe(|| model.step(&mut jobs))).err().map(|p| panic_text(&*p))
        };
        let share = u64::from(self.shared.config.share[class].max(1));
        self.global = self.pass[class];
        self.pass[class] += 1_000_000 / share;
        let service = began.elapsed();
        let size = batch.len();
        let (mut finished, mut failed) = (0, 0);
        // Clients are told last: who has an answer finds it in the statistics.
        let mut answers = Vec::with_capacity(size);
        for (id, result) in results {
            let result = match (&panicked, result) {
                (Some(text), _) => {
                    let name = &self.shared.config.name;
                    let error = Error::msg(format_args!("model `{name}` panicked: {text}; the session is closed"));
                    // Its state may be half changed: the session goes, the others stay.
                    if let Some(seat) = self.seats.remove(&id) {
                        let late = seat.jobs.iter().skip(1).count();
                        answers.extend(seat.jobs.into_iter().map(|job| (job.replies, Err(error.clone()))));
                        self.shared.lock().waiting -= late;
                    }
                    failed += 1;
                    continue;
                }
                (None, Some(result)) => result,
                (None, None) => continue,
            };
            finished += 1;
            failed += u64::from(matches!(&result, Err(e) if !e.is_cancelled()));
            if let Some(work) = self.seats.get_mut(&id).and_then(|seat| seat.jobs.pop_front()) {
                answers.push((work.replies, result));
            }
        }
        self.with_stats(|stats| {
            if stats.batches.len() <= size {
                stats.batches.resize(size + 1, 0);
            }
            stats.batches[size] += 1;
            stats.classes[class].step(&waits, service, finished, failed);
        });
        for (replies, result) in answers {
            replies.finish(result);
        }
    }

    fn with_stats(&self, change: impl FnOnce(&mut ModelStats)) {
        change(&mut self.shared.stats.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl ClassStats {
    fn step(&mut self, waits: &[Duration], service: Duration, finished: u64, failed: u64) {
        self.requests += waits.len() as u64;
        self.finished += finished;
        self.failed += failed;
        self.steps += 1;
        self.service_s += service.as_secs_f64();
        for wait in waits {
            self.wait_s += wait.as_secs_f64();
            self.wait_max_s = self.wait_max_s.max(wait.as_secs_f64());
        }
    }
}

fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>, timeout: Option<Duration>) -> MutexGuard<'a, T> {
    match timeout {
        None => condvar.wait(guard).unwrap_or_else(PoisonError::into_inner),
        Some(t) => condvar.wait_timeout(guard, t).unwrap_or_else(PoisonError::into_inner).0,
    }
}
