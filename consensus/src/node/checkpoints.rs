//! When a partition's machine is checkpointed: the applied log that no checkpoint covers stays bounded, so that
//! a restart replays a bounded tail and the WAL can drop the rest.

use std::collections::VecDeque;
use std::time::Duration;

use quorate_proto::ids::LogIndex;
use quorate_proto::time::BootTime;

/// What an applied entry costs in the log beside its payload; lets idle terms (no-ops) count as well.
const ENTRY_OVERHEAD: u64 = 64;

/// Bookkeeping of one partition's checkpoints.
#[derive(Debug)]
pub(super) struct Checkpoints {
    /// Newest one that is durable.
    durable: LogIndex,
    /// Asked for, not yet durable, with the bytes that it will cover.
    asked: Option<(LogIndex, u64)>,
    /// Applied bytes that `durable` does not cover.
    tail: u64,
    /// When the last one was asked for.
    last: BootTime,
    /// Applied entries that are still in the log, with their cost; what was there at the start counts as one.
    log: VecDeque<(LogIndex, u64)>,
    /// Sum of the costs.
    log_bytes: u64,
    /// A follower needs one that is newer than any.
    wanted: bool,
}

impl Checkpoints {
    pub(super) fn new(durable: LogIndex, now: BootTime) -> Self {
        let log = VecDeque::from([(durable, 0)]);
        Self { durable, asked: None, tail: 0, last: now, log, log_bytes: 0, wanted: false }
    }

    /// The entry at `index` was applied.
    pub(super) fn applied(&mut self, index: LogIndex, payload: usize) {
        let cost = payload as u64 + ENTRY_OVERHEAD;
        self.tail += cost;
        self.log_bytes += cost;
        self.log.push_back((index, cost));
    }

    /// Applied bytes without checkpoint.
    pub(super) fn tail(&self) -> u64 {
        self.tail
    }

    /// Newest durable checkpoint.
    pub(super) fn durable(&self) -> LogIndex {
        self.durable
    }

    /// One is due: the tail is over its bound, or old.
    pub(super) fn due(&self, now: BootTime, bound: u64, every: Duration) -> bool {
        self.asked.is_none() && self.tail > 0 && (self.wanted || self.tail > bound || now.since(self.last) >= every)
    }

    /// One is due as soon as there is something new in it.
    pub(super) fn want(&mut self) {
        self.wanted = true;
    }

    /// One at `index` is being made.
    pub(super) fn ask(&mut self, index: LogIndex, now: BootTime) {
        self.wanted = false;
        self.asked = Some((index, self.tail));
        self.last = now;
    }

    /// The one at `index` is durable in storage. Tells through which index the log may go, `retain` bytes of it being
    /// kept for followers; `None` if the checkpoint is not the one that was asked for.
    pub(super) fn done(&mut self, index: LogIndex, retain: u64) -> Option<LogIndex> {
        let (asked, bytes) = self.asked.filter(|(asked, _)| *asked == index)?;
        self.asked = None;
        self.tail = self.tail.saturating_sub(bytes);
        self.durable = asked;
        let mut through = LogIndex::ZERO;
        while let Some((first, cost)) = self.log.front().copied() {
            if first > index || self.log_bytes - cost < retain {
                break;
            }
            self.log.pop_front();
            self.log_bytes -= cost;
            through = first;
        }
        Some(through)
    }

    /// A snapshot at `index` took the machine's place.
    pub(super) fn replaced(&mut self, index: LogIndex, now: BootTime) {
        *self = Self::new(index, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_secs(30);

    #[test]
    fn a_long_tail_or_an_old_one_asks_for_a_checkpoint_once() {
        let start = BootTime(1);
        let mut points = Checkpoints::new(LogIndex(5), start);
        assert!(!points.due(start + EVERY, 1_000, EVERY), "nothing was applied");
        points.applied(LogIndex(6), 10);
        assert!(!points.due(start, 1_000, EVERY));
        assert!(points.due(start + EVERY, 1_000, EVERY));
        points.applied(LogIndex(7), 1_000);
        assert!(points.due(start, 1_000, EVERY));
        points.ask(LogIndex(7), start);
        assert!(!points.due(start + EVERY, 1_000, EVERY));
        points.applied(LogIndex(8), 5);
        assert_eq!(points.done(LogIndex(7), 0), Some(LogIndex(7)));
        assert_eq!(points.tail(), 5 + ENTRY_OVERHEAD);
        assert_eq!(points.durable(), LogIndex(7));
    }

    #[test]
    fn a_checkpoint_from_before_a_snapshot_is_ignored() {
        let mut points = Checkpoints::new(LogIndex(5), BootTime(1));
        points.applied(LogIndex(6), 10);
        points.ask(LogIndex(6), BootTime(1));
        points.replaced(LogIndex(90), BootTime(2));
        assert_eq!(points.done(LogIndex(6), 0), None);
        assert_eq!(points.durable(), LogIndex(90));
    }

    #[test]
    fn a_stretch_of_the_log_is_kept_for_followers() {
        let mut points = Checkpoints::new(LogIndex(5), BootTime(1));
        for index in 6..=15 {
            points.applied(LogIndex(index), 100 - ENTRY_OVERHEAD as usize);
        }
        points.ask(LogIndex(15), BootTime(1));
        assert_eq!(points.done(LogIndex(15), 300), Some(LogIndex(12)));
        points.applied(LogIndex(16), 100);
        points.ask(LogIndex(16), BootTime(2));
        assert_eq!(points.done(LogIndex(16), 10_000), Some(LogIndex::ZERO), "nothing more may go");
    }
}
