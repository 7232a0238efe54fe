//! The bounded edge: one totally ordered sequence of data, gaps and marks.
//!
//! A [`Link`] is a plain data structure without locks: the engine keeps all links of a
//! graph under the graph's one lock (so that waiting, policies, virtual time and deadlock
//! detection see one consistent state), and parks threads on a condition variable per node.
//! kanal, the channel first chosen for edges, cannot evict from the middle, replace by key or
//! keep room for marks, and an item cost 250-1300 ns with it from thread to thread on two cores
//! (std's channel: 175-195 ns), so it is not used; `benches/hop.rs` measures this one.
//!
//! Rules:
//! - Capacity is counted in data items, media time and payload bytes; the first limit reached
//!   holds. An item larger than the whole capacity is admitted when the link is empty.
//! - Marks are never dropped and do not count: they have [`RESERVE`] places of their own.
//! - A gap counts as one item on a `block` edge (merging there would make what a consumer sees
//!   depend on timing); on other edges touching gaps of one reason merge.
//! - `sent = received + dropped + queued`, always: [`Counts::conserved`].

use std::collections::VecDeque;

use crate::histogram::{Histogram, Percentiles};
use crate::item::{EosReason, Gap, GapReason, Header, Item, Mark};
use crate::payload::Payload;
use crate::plan::{Cap, Full};
use crate::time::Nanos;

/// Places for marks (and, on edges that drop, gaps) beside the capacity for data.
pub const RESERVE: usize = 1024;

/// Why a data item of an edge was not delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropReason {
    /// `drop-oldest` made room.
    Evicted = 0,
    /// `drop-newest` had no room.
    Refused = 1,
    /// `latest` has a newer one of the same key.
    Replaced = 2,
    /// Its scope was cancelled.
    Stale = 3,
    /// The consumer ended before reading it.
    Unread = 4,
}

/// Names of [`DropReason`] in order, as statistics show them.
pub const DROP_REASONS: [&str; 5] = ["evicted", "refused", "replaced", "stale", "unread"];

/// Counters of a link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Data items given to the link.
    pub sent: u64,
    /// Data items taken by the consumer.
    pub received: u64,
    /// Data items not delivered, by [`DropReason`].
    pub dropped: [u64; 5],
    /// Payload bytes given to the link.
    pub bytes: u64,
    /// Gaps taken by the consumer.
    pub gaps: u64,
    /// Marks taken by the consumer.
    pub marks: u64,
    /// Most data items queued at once.
    pub max_items: u64,
    /// Most payload bytes queued at once.
    pub max_bytes: u64,
    /// Most media time queued at once, nanoseconds.
    pub max_time: Nanos,
    /// How often the sender had to wait for room.
    pub blocked: u64,
    /// How long it waited, nanoseconds of real time.
    pub blocked_ns: u64,
}

impl Counts {
    /// Does `sent = received + dropped + queued` hold?
    pub fn conserved(&self, queued: u64) -> bool {
        self.sent == self.received + self.dropped.iter().sum::<u64>() + queued
    }
}

/// What became of a pushed item.
#[derive(Debug)]
pub enum Push {
    /// It is in the link, or counted as dropped.
    Done,
    /// There is no room: wait and push it again.
    Full(Item),
    /// There is no room and the policy is `fail`.
    Overflow,
}

struct Entry {
    item: Item,
    bytes: u64,
    /// A gap made by the policy: media time of the last item it stands for. Items may overlap,
    /// so only this much is certain to be past when nothing queued behind it says more.
    made: Option<Nanos>,
}

impl Entry {
    fn of(item: Item) -> Self {
        Self { item, bytes: 0, made: None }
    }
}

/// A bounded edge.
pub struct Link {
    cap: Cap,
    full: Full,
    queue: VecDeque<Entry>,
    /// Data items queued; on `block` edges gaps count too.
    slots: u64,
    data: u64,
    // Wider than any sum of durations: nodes may send absurd ones.
    time: i128,
    bytes: u64,
    counts: Counts,
    /// Media time that nothing to come lies before, and how many items were taken at it.
    bound: Nanos,
    at_bound: u64,
    /// The smallest turn (segment) the next item can belong to.
    turn: u64,
    closed: bool,
    sealed: bool,
    end: Option<EosReason>,
    /// Ages of taken items (statistics).
    ages: Option<Histogram>,
}

impl Link {
    /// An empty link. A capacity without any limit counts as one item.
    pub fn new(cap: Cap, full: Full) -> Self {
        let none = cap.items.is_none() && cap.time.is_none() && cap.bytes.is_none();
        let cap = if none { Cap { items: Some(1), ..cap } } else { cap };
        Self {
            cap,
            full,
            queue: VecDeque::new(),
            slots: 0,
            data: 0,
            time: 0,
            bytes: 0,
            counts: Counts::default(),
            bound: Nanos::MIN,
            at_bound: 0,
            turn: 0,
            closed: false,
            sealed: false,
            end: None,
            ages: None,
        }
    }

    /// The counters.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// The counters, to add what only the engine knows (blocked time, age).
    pub(crate) fn counts_mut(&mut self) -> &mut Counts {
        &mut self.counts
    }

    /// Notes the age (now - born) of an item that was taken.
    pub(crate) fn measure(&mut self, age: Nanos, seq: u64) {
        self.ages.get_or_insert_default().add(u64::try_from(age).unwrap_or(0), seq);
    }

    /// Ages of taken items, when they were noted.
    pub(crate) fn ages(&self) -> Option<Percentiles> {
        self.ages.as_ref().and_then(Histogram::percentiles)
    }

    /// When the oldest queued item was born.
    pub(crate) fn oldest(&self) -> Option<Nanos> {
        self.queue.iter().find_map(|entry| match &entry.item {
            Item::Data(header, _) => Some(header.born),
            _ => None,
        })
    }

    /// Data items queued.
    pub fn queued(&self) -> u64 {
        self.data
    }

    /// Payload bytes queued.
    pub fn queued_bytes(&self) -> u64 {
        self.bytes
    }

    /// Is nothing at all queued?
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// The policy.
    pub fn policy(&self) -> Full {
        self.full
    }

    /// How the consumer's side ended, once it has taken the end of the stream.
    pub fn end(&self) -> Option<&EosReason> {
        self.end.as_ref()
    }

    /// Has the consumer left?
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Media time that nothing to come lies before.
    pub fn bound(&self) -> Nanos {
        self.bound
    }

    /// Depth against capacity, for messages: `8/8 items`.
    pub fn depth(&self) -> String {
        let mut parts = Vec::new();
        if let Some(items) = self.cap.items {
            parts.push(format!("{}/{items} items", self.slots));
        }
        if let Some(span) = self.cap.time {
            parts.push(format!("{} ms/{span}", self.time / 1_000_000));
        }
        if let Some(bytes) = self.cap.bytes {
            parts.push(format!("{}/{bytes} bytes", self.bytes));
        }
        parts.join(", ")
    }

    fn admits(&self, dur: Nanos, bytes: u64) -> bool {
        if self.slots == 0 {
            return true;
        }
        self.cap.items.is_none_or(|max| self.slots < max)
            && self.cap.time.is_none_or(|max| self.time + i128::from(dur.max(0)) <= i128::from(max.nanos()))
            && self.cap.bytes.is_none_or(|max| self.bytes.saturating_add(bytes) <= max)
    }

    /// Would this item be taken without waiting?
    pub fn has_room(&self, item: &Item) -> bool {
        if self.closed || self.sealed {
            return true;
        }
        match item {
            Item::Data(header, payload) => match self.full {
                Full::Block => self.admits(header.dur, payload.bytes()),
                Full::Latest => self.replaceable(key(payload)).is_some() || self.admits(header.dur, payload.bytes()),
                _ => true,
            },
            Item::Gap(_) => self.full != Full::Block || self.admits(0, 0),
            Item::Mark(Mark::Eos(_) | Mark::Flush(_) | Mark::SegmentEnd { cancelled: true, .. }) => true,
            Item::Mark(_) => self.others() < RESERVE,
        }
    }

    fn others(&self) -> usize {
        self.queue.len() - usize::try_from(self.slots).unwrap_or(usize::MAX).min(self.queue.len())
    }

    /// Gives an item to the link.
    pub fn push(&mut self, item: Item) -> Push {
        match item {
            Item::Data(header, payload) => self.push_data(header, payload),
            Item::Gap(gap) => {
                if self.closed || self.sealed {
                    return Push::Done;
                }
                if self.full == Full::Block {
                    if !self.admits(0, 0) {
                        return Push::Full(Item::Gap(gap));
                    }
                    self.slots += 1;
                    self.queue.push_back(Entry::of(Item::Gap(gap)));
                } else {
                    self.push_gap(gap, None);
                }
                Push::Done
            }
            Item::Mark(mark) => {
                if self.closed || self.sealed {
                    return Push::Done;
                }
                match mark {
                    Mark::Eos(_) => self.sealed = true,
                    Mark::Flush(_) | Mark::SegmentEnd { cancelled: true, .. } => {}
                    Mark::Bound(at) if self.full != Full::Block => {
                        if let Some(Entry { item: Item::Mark(Mark::Bound(last)), .. }) = self.queue.back_mut() {
                            *last = at.max(*last);
                            return Push::Done;
                        }
                    }
                    _ if self.others() >= RESERVE => return Push::Full(Item::Mark(mark)),
                    _ => {}
                }
                self.queue.push_back(Entry::of(Item::Mark(mark)));
                Push::Done
            }
        }
    }

    fn push_data(&mut self, header: Header, payload: Payload) -> Push {
        let bytes = payload.bytes();
        if self.closed || self.sealed {
            self.counts.sent += 1;
            self.counts.bytes += bytes;
            self.drop_one(DropReason::Unread);
            return Push::Done;
        }
        if self.full == Full::Latest {
            let place = self.replaceable(key(&payload));
            // The older revision goes only when the newer one certainly comes.
            if let Some(at) = place {
                self.remove_data(at, DropReason::Replaced);
            } else if !self.admits(header.dur, bytes) {
                return Push::Full(Item::Data(header, payload));
            }
        } else if !self.admits(header.dur, bytes) {
            match self.full {
                Full::Block | Full::Latest => return Push::Full(Item::Data(header, payload)),
                Full::Fail => return Push::Overflow,
                Full::DropOldest => while !self.admits(header.dur, bytes) && self.evict_oldest() {},
                Full::DropNewest => {
                    self.counts.sent += 1;
                    self.counts.bytes += bytes;
                    self.drop_one(DropReason::Refused);
                    self.push_gap(lost(&header), Some(header.pts));
                    return Push::Done;
                }
            }
        }
        self.counts.sent += 1;
        self.counts.bytes += bytes;
        self.slots += 1;
        self.data += 1;
        self.time += i128::from(header.dur.max(0));
        self.bytes += bytes;
        self.counts.max_items = self.counts.max_items.max(self.data);
        self.counts.max_bytes = self.counts.max_bytes.max(self.bytes);
        self.counts.max_time = self.counts.max_time.max(Nanos::try_from(self.time).unwrap_or(Nanos::MAX));
        self.queue.push_back(Entry { item: Item::Data(header, payload), bytes, made: None });
        Push::Done
    }

    fn drop_one(&mut self, reason: DropReason) {
        self.counts.dropped[reason as usize] += 1;
    }

    /// Appends a gap on an edge that drops: merges with a touching one, and with any one
    /// (as `dropped`) once the reserve is used up, so that gaps stay bounded.
    fn push_gap(&mut self, gap: Gap, made: Option<Nanos>) {
        let crowded = self.others() >= RESERVE;
        if let Some(Entry { item: Item::Gap(last), made: before, .. }) = self.queue.back_mut() {
            let same = last.reason == gap.reason;
            if crowded || same && (gap.from <= last.to || gap.reason == GapReason::Dropped) {
                if before.is_some() || made.is_some() {
                    *before = Some(before.unwrap_or(last.to).max(made.unwrap_or(gap.to)));
                }
                last.to = last.to.max(gap.to);
                if !same {
                    last.reason = GapReason::Dropped;
                }
                return;
            }
        }
        self.queue.push_back(Entry { item: Item::Gap(gap), bytes: 0, made });
    }

    /// Position of a queued item of this key that a newer one may replace.
    fn replaceable(&self, key: Option<u64>) -> Option<usize> {
        self.queue.iter().position(|entry| match &entry.item {
            Item::Data(header, payload) => {
                let last = matches!(payload, Payload::Transcript(t) if t.0.is_final);
                self::key(payload) == key && !last && header.flags & Header::STICKY == 0
            }
            _ => false,
        })
    }

    fn account_out(&mut self, header: &Header, bytes: u64) {
        self.slots -= 1;
        self.data -= 1;
        self.time -= i128::from(header.dur.max(0));
        self.bytes -= bytes;
    }

    fn remove_data(&mut self, at: usize, reason: DropReason) -> Option<Header> {
        let entry = self.queue.remove(at)?;
        let Item::Data(header, _) = entry.item else { return None };
        self.account_out(&header, entry.bytes);
        self.drop_one(reason);
        Some(header)
    }

    fn evict_oldest(&mut self) -> bool {
        let Some(at) = self.queue.iter().position(|e| matches!(e.item, Item::Data(..))) else { return false };
        let Some(header) = self.remove_data(at, DropReason::Evicted) else { return false };
        let gap = lost(&header);
        if let Some(before) = at.checked_sub(1)
            && let Entry { item: Item::Gap(last), made, .. } = &mut self.queue[before]
            && last.reason == GapReason::Dropped
        {
            *made = Some(made.unwrap_or(last.to).max(header.pts));
            last.to = last.to.max(gap.to);
        } else {
            self.queue.insert(at, Entry { item: Item::Gap(gap), bytes: 0, made: Some(header.pts) });
        }
        true
    }

    /// Drops stale data at the head; one gap takes its place, so that joins need not wait for
    /// time that was cancelled. `epoch`: the current one of the sender's scope.
    /// Returns whether anything was dropped.
    pub fn settle(&mut self, epoch: Option<u32>) -> bool {
        let Some(epoch) = epoch else { return false };
        let mut gap: Option<Gap> = None;
        let mut last = Nanos::MIN;
        while let Some(Entry { item: Item::Data(header, _), .. }) = self.queue.front() {
            if header.epoch == epoch || header.flags & Header::STICKY != 0 {
                break;
            }
            let Some(header) = self.remove_data(0, DropReason::Stale) else { break };
            let lost = lost(&header);
            last = last.max(header.pts);
            gap = Some(gap.map_or(lost, |g| Gap { to: g.to.max(lost.to), ..g }));
        }
        let Some(gap) = gap else { return false };
        self.slots += u64::from(self.full == Full::Block);
        self.queue.push_front(Entry { item: Item::Gap(gap), bytes: 0, made: Some(last) });
        true
    }

    /// Media time of the head: its own, or for marks without time that of what came before.
    pub fn head_time(&self) -> Option<Nanos> {
        self.queue.front().map(|entry| entry.item.time().unwrap_or(self.bound).max(self.bound))
    }

    /// Where a join sorts the head: by media time, then by how many items of this link came at
    /// the same time. (Without the count, a join of two paths from one fork would wait for more
    /// of the first path while the fork waits for room on the second.)
    pub fn head_key(&self) -> Option<(Nanos, u64)> {
        self.head_time().map(|time| (time, if time == self.bound { self.at_bound } else { 0 }))
    }

    /// The smallest key that the next item can have.
    pub fn next_key(&self) -> (Nanos, u64) {
        (self.bound, self.at_bound)
    }

    /// The turn the head belongs to: its segment, or for what names none that of what came before.
    pub fn head_turn(&self) -> Option<u64> {
        self.queue.front().map(|entry| turn_of(&entry.item).map_or(self.turn, |turn| turn.max(self.turn)))
    }

    /// The smallest turn that the next item can belong to.
    pub fn turn(&self) -> u64 {
        self.turn
    }

    fn advance(&mut self, to: Nanos, item: bool) {
        if to > self.bound {
            self.bound = to;
            self.at_bound = 0;
        }
        self.at_bound += u64::from(item);
    }

    /// Takes the head (call [`Link::settle`] first).
    pub fn pop(&mut self) -> Option<Item> {
        let mut entry = self.queue.pop_front()?;
        if let (Item::Gap(gap), Some(last)) = (&mut entry.item, entry.made) {
            let next = self.queue.iter().find_map(|e| e.item.time());
            gap.to = next.map_or(last, |next| gap.to.min(next)).max(last);
        }
        let over = matches!(entry.item, Item::Mark(Mark::SegmentEnd { .. }));
        if let Some(turn) = turn_of(&entry.item) {
            self.turn = self.turn.max(turn.saturating_add(u64::from(over)));
        }
        match &entry.item {
            Item::Data(header, _) => {
                self.account_out(header, entry.bytes);
                self.counts.received += 1;
                self.advance(header.pts, true);
            }
            Item::Gap(gap) => {
                if self.full == Full::Block {
                    self.slots -= 1;
                }
                self.counts.gaps += 1;
                let empty = gap.to <= self.bound.max(gap.from);
                self.advance(gap.to.max(gap.from), empty);
            }
            Item::Mark(mark) => {
                self.counts.marks += 1;
                match mark {
                    Mark::Bound(at) => self.advance(*at, false),
                    // A seek or restart may start earlier.
                    Mark::Flush(_) => (self.bound, self.at_bound) = (Nanos::MIN, 0),
                    Mark::Eos(reason) => self.end = Some(reason.clone()),
                    _ => {}
                }
            }
        }
        Some(entry.item)
    }

    /// The consumer leaves: what is queued and what still comes counts as unread.
    pub fn close(&mut self) {
        self.closed = true;
        for entry in std::mem::take(&mut self.queue) {
            match entry.item {
                Item::Data(header, _) => {
                    self.account_out(&header, entry.bytes);
                    self.drop_one(DropReason::Unread);
                }
                Item::Gap(_) if self.full == Full::Block => self.slots -= 1,
                Item::Mark(Mark::Eos(reason)) => self.end = Some(reason),
                _ => {}
            }
        }
    }

    /// Has the sender ended the stream (whether or not the consumer has come there)?
    pub fn is_sealed(&self) -> bool {
        self.sealed
    }
}

fn key(payload: &Payload) -> Option<u64> {
    match payload {
        Payload::Transcript(update) => Some(update.0.segment),
        _ => None,
    }
}

fn turn_of(item: &Item) -> Option<u64> {
    match item {
        Item::Data(header, _) => Some(header.segment).filter(|&segment| segment > 0),
        Item::Mark(Mark::SegmentStart(id) | Mark::SegmentEnd { id, .. }) => Some(*id),
        Item::Gap(_) | Item::Mark(_) => None,
    }
}

fn lost(header: &Header) -> Gap {
    Gap { from: header.pts, to: header.pts.saturating_add(header.dur.max(0)), reason: GapReason::Dropped }
}

#[cfg(test)]
mod tests;
