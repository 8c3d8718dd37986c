//! A partition's publishes between arrival and answer, on its leader.
//!
//! ```text
//!   admitted ─► gathering ──(end of turn, ≤ 2 entries unflushed)──► proposed ──(applied)──► answered
//!                  │                                                   │
//!                  └── leadership ends: not applied                    └── leadership ends: fate unknown (W4)
//! ```
//! There is no timer: whatever waits at the end of a turn goes into the log as soon as a slot is free, so batches
//! grow by themselves while a flush is under way. Costs are per batch, never per record.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use quorate_proto::batch::{BatchHeader, Priority};
use quorate_proto::entry::{BatchMeta, EntryBuilder, EntryTime, FEATURE_LEVEL};
use quorate_proto::ids::{LogIndex, Term, Ticket};
use quorate_proto::time::BootTime;

use super::config::NodeLimits;
use crate::partition::InFlight;

/// What a request costs beside its batch: its place in the queues and in the entry's metadata.
const REQUEST_OVERHEAD: u64 = 256;
/// Shortest and longest advice of `BUSY`.
const DELAY_MIN: Duration = Duration::from_millis(20);
const DELAY_MAX: Duration = Duration::from_secs(2);
/// The drain rate is measured over spans of at least this length.
const RATE_SPAN: Duration = Duration::from_millis(100);

/// One admitted publish.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) ticket: Ticket,
    pub(super) header: BatchHeader,
    pub(super) meta: BatchMeta,
    pub(super) batch: Bytes,
}

impl Request {
    fn cost(&self) -> u64 {
        self.batch.len() as u64 + REQUEST_OVERHEAD
    }
}

/// One batch of a proposed entry: whom to answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) ticket: Ticket,
    pub(super) header: BatchHeader,
}

/// One entry in the log whose fate is open.
#[derive(Debug)]
struct Proposed {
    term: Term,
    index: LogIndex,
    batches: Vec<Pending>,
    cost: u64,
}

/// An entry ready to be proposed.
#[derive(Debug)]
pub(super) struct Gathered {
    pub(super) data: Bytes,
    batches: usize,
}

/// What is admitted and undecided.
#[derive(Debug, Default)]
pub(super) struct Pipeline {
    gathering: VecDeque<Request>,
    proposed: VecDeque<Proposed>,
    /// Indexes of own entries that are not flushed locally yet.
    unflushed: VecDeque<LogIndex>,
    in_flight: InFlight,
    bytes: u64,
    uncommitted: u64,
    requests: usize,
    rate: DrainRate,
}

impl Pipeline {
    /// Bytes admitted and undecided.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Requests admitted and undecided.
    pub(super) fn requests(&self) -> usize {
        self.requests
    }

    /// Something waits to be proposed.
    pub(super) fn waiting(&self) -> bool {
        !self.gathering.is_empty()
    }

    /// Nothing is undecided.
    pub(super) fn is_empty(&self) -> bool {
        self.requests == 0
    }

    /// Batches in flight by producer (I6).
    pub(super) fn in_flight(&self) -> &InFlight {
        &self.in_flight
    }

    /// Takes an admitted publish.
    pub(super) fn admit(&mut self, request: Request) {
        self.in_flight.add(&request.header);
        self.bytes += request.cost();
        self.requests += 1;
        self.gathering.push_back(request);
    }

    /// Builds the next entry out of what waits, if a slot is free: the one copy of the batches' bytes. Nothing is
    /// taken out before [`Self::proposed`].
    pub(super) fn gather(&self, time: EntryTime, limits: &NodeLimits) -> Option<Gathered> {
        if self.gathering.is_empty()
            || self.unflushed.len() >= limits.unflushed_entries
            || self.uncommitted >= limits.uncommitted_bytes
        {
            return None;
        }
        let mut builder = EntryBuilder::new();
        for request in &self.gathering {
            let fits = builder.size() + request.batch.len() <= limits.entry_bytes;
            let room = builder.has_room_for(&request.meta, &request.batch);
            if !builder.is_empty() && (!fits || !room) {
                break;
            }
            builder.push(request.meta.clone(), request.batch.clone());
        }
        let batches = builder.count();
        Some(Gathered { data: builder.finish(time, FEATURE_LEVEL), batches })
    }

    /// `gathered` stands in the log now.
    pub(super) fn proposed(&mut self, gathered: &Gathered, term: Term, index: LogIndex) {
        let mut cost = 0;
        let batches = self
            .gathering
            .drain(..gathered.batches)
            .map(|request| {
                cost += request.cost();
                Pending { ticket: request.ticket, header: request.header }
            })
            .collect();
        self.uncommitted += cost;
        self.unflushed.push_back(index);
        self.proposed.push_back(Proposed { term, index, batches, cost });
    }

    /// Everything up to `index` is flushed here: slots become free.
    pub(super) fn flushed(&mut self, index: LogIndex) {
        while self.unflushed.front().is_some_and(|first| *first <= index) {
            self.unflushed.pop_front();
        }
    }

    /// The entry at (`term`, `index`) was applied: whom to answer, in the order of its batches. Empty if it was not
    /// proposed here in this term.
    pub(super) fn applied(&mut self, term: Term, index: LogIndex, now: BootTime) -> Vec<Pending> {
        if self.proposed.front().is_none_or(|first| first.index != index || first.term != term) {
            return Vec::new();
        }
        let Some(entry) = self.proposed.pop_front() else {
            return Vec::new();
        };
        for pending in &entry.batches {
            self.in_flight.done(&pending.header);
        }
        self.bytes -= entry.cost;
        self.uncommitted -= entry.cost;
        self.requests -= entry.batches.len();
        self.rate.drained(entry.cost, now);
        entry.batches
    }

    /// Leadership ended. First: in the log with unknown fate (W4). Second: never proposed, so not applied.
    pub(super) fn end(&mut self) -> (Vec<Pending>, Vec<Pending>) {
        let undecided = self.proposed.drain(..).flat_map(|entry| entry.batches).collect();
        let waiting = self.take_waiting();
        self.unflushed.clear();
        self.in_flight.clear();
        (self.bytes, self.uncommitted, self.requests) = (0, 0, 0);
        (undecided, waiting)
    }

    /// Gives up what was not proposed yet.
    pub(super) fn give_up_waiting(&mut self) -> Vec<Pending> {
        self.bytes -= self.gathering.iter().map(Request::cost).sum::<u64>();
        self.requests -= self.gathering.len();
        let waiting = self.take_waiting();
        for pending in &waiting {
            self.in_flight.done(&pending.header);
        }
        waiting
    }

    /// Nothing is in the log whose fate is open.
    pub(super) fn nothing_proposed(&self) -> bool {
        self.proposed.is_empty()
    }

    /// Takes out what was admitted and not proposed, as it came: another leader gets it (H1).
    pub(super) fn take_held(&mut self) -> Vec<Request> {
        let held: Vec<Request> = self.gathering.drain(..).collect();
        self.bytes -= held.iter().map(Request::cost).sum::<u64>();
        self.requests -= held.len();
        for request in &held {
            self.in_flight.done(&request.header);
        }
        held
    }

    fn take_waiting(&mut self) -> Vec<Pending> {
        self.gathering.drain(..).map(|request| Pending { ticket: request.ticket, header: request.header }).collect()
    }

    /// When a refused request makes sense again: once what is ahead of it was drained at the measured rate.
    pub(super) fn busy_delay(&self) -> Duration {
        self.rate.time_for(self.bytes)
    }
}

/// Share of a bound that a priority may fill: the lowest is refused first, core last (mission, Q29).
pub(super) fn share(limit: u64, priority: Priority) -> u64 {
    match priority {
        Priority::Low => limit / 2,
        Priority::Normal => limit / 10 * 9,
        Priority::Core => limit,
    }
}

/// Bytes decided per second, smoothed.
#[derive(Debug, Default)]
struct DrainRate {
    since: BootTime,
    bytes: u64,
    per_second: u64,
}

impl DrainRate {
    fn drained(&mut self, bytes: u64, now: BootTime) {
        self.bytes += bytes;
        let span = now.since(self.since);
        if span < RATE_SPAN {
            return;
        }
        // A pause between two bursts says nothing about the speed: spans count for a second at most.
        let millis = u64::try_from(span.as_millis()).unwrap_or(u64::MAX).min(1_000);
        let rate = self.bytes * 1_000 / millis;
        self.per_second = if self.per_second == 0 { rate } else { (self.per_second * 3 + rate) / 4 };
        (self.since, self.bytes) = (now, 0);
    }

    fn time_for(&self, bytes: u64) -> Duration {
        match self.per_second {
            0 => DELAY_MIN * 5,
            rate => Duration::from_millis(bytes.saturating_mul(1_000) / rate).clamp(DELAY_MIN, DELAY_MAX),
        }
    }
}

#[cfg(test)]
mod tests;
