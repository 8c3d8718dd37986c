//! What the node knows of its WAL: the heartbeat token (B4), stalls, failure (B3), proof of life (L4).

use std::time::Duration;

use quorate_proto::time::BootTime;

use crate::timing::Timing;

/// State of the WAL as events showed it.
#[derive(Debug, Default)]
pub(super) struct Disk {
    /// Newest token handed out.
    seq: u64,
    /// The token in the queue, and since when. One at a time: a WAL that does not return it gets no more.
    token: Option<(u64, BootTime)>,
    /// When the next token is due.
    next_token: BootTime,
    /// Age of the oldest flush in flight as the last token saw it.
    token_age: Duration,
    /// End of the newest flush.
    last_flush: BootTime,
    /// A canary is in the queue since then; it counts as "at most one a second".
    canary: Option<BootTime>,
    stalled: bool,
    poisoned: bool,
    damaged: bool,
}

/// A change that the whole node must act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DiskChange {
    Stalled,
    Recovered,
}

impl Disk {
    /// A token to hand out now, if one is due (one beat = one token, B4).
    pub(super) fn token_due(&mut self, now: BootTime, timing: &Timing) -> Option<u64> {
        if now < self.next_token || self.poisoned {
            return None;
        }
        self.next_token = now + timing.node_heartbeat;
        if self.token.is_some() {
            return None;
        }
        self.seq += 1;
        self.token = Some((self.seq, now));
        Some(self.seq)
    }

    /// When the next token is due.
    pub(super) fn deadline(&self) -> BootTime {
        if self.poisoned {
            BootTime::MAX
        } else {
            self.next_token
        }
    }

    /// A new session should not wait for the next beat.
    pub(super) fn beat_soon(&mut self, now: BootTime) {
        self.next_token = self.next_token.min(now);
    }

    /// Number for a report outside the beat.
    pub(super) fn next_seq(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }

    /// The token is back. False for one that was not out.
    pub(super) fn token_back(&mut self, seq: u64, age: Duration) -> bool {
        if self.token.is_none_or(|(out, _)| out != seq) {
            return false;
        }
        self.token = None;
        self.token_age = age;
        true
    }

    /// A flush ended without error.
    pub(super) fn flushed(&mut self, at: BootTime) {
        self.last_flush = self.last_flush.max(at);
    }

    /// The canary is back.
    pub(super) fn canary_back(&mut self, at: BootTime) {
        self.canary = None;
        self.flushed(at);
    }

    /// An append or flush failed.
    pub(super) fn poison(&mut self) {
        self.poisoned = true;
    }

    /// Its files were found damaged (B6): as a stall that does not end.
    pub(super) fn damage(&mut self) {
        self.damaged = true;
    }

    /// No error and no stall.
    pub(super) fn ok(&self) -> bool {
        !self.poisoned && !self.stalled
    }

    /// Proof of life of the write path for a lease (L4).
    pub(super) fn write_proof(&self, now: BootTime, timing: &Timing) -> bool {
        self.ok() && self.last_flush != BootTime::ZERO && now.since(self.last_flush) <= timing.write_proof
    }

    /// True if a canary should be written to get that proof.
    pub(super) fn want_canary(&mut self, now: BootTime) -> bool {
        if self.canary.is_some() || !self.ok() {
            return false;
        }
        self.canary = Some(now);
        true
    }

    /// Age of the oldest thing in the WAL queue: `oldest_write` is when the oldest unflushed write was handed out.
    pub(super) fn age(&self, now: BootTime, oldest_write: Option<BootTime>) -> Duration {
        let token = self.token.map(|(_, at)| at);
        let oldest = [token, oldest_write, self.canary].into_iter().flatten().min();
        oldest.map_or(Duration::ZERO, |at| now.since(at)).max(self.token_age)
    }

    /// Judges stall and recovery (B4).
    pub(super) fn judge(&mut self, age: Duration, timing: &Timing) -> Option<DiskChange> {
        let stalled = self.damaged || age > timing.wal_stall;
        if stalled == self.stalled || self.poisoned {
            return None;
        }
        self.stalled = stalled;
        Some(if stalled { DiskChange::Stalled } else { DiskChange::Recovered })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_token_that_does_not_come_back_stops_the_beat_and_shows_the_stall() {
        let (mut disk, timing) = (Disk::default(), Timing::default());
        let start = BootTime(1_000_000_000);
        let seq = disk.token_due(start, &timing).expect("the first beat is due at once");
        assert_eq!(disk.token_due(start + 500 * MS, &timing), None);
        assert_eq!(disk.judge(disk.age(start + 900 * MS, None), &timing), None);
        let late = start + 1_100 * MS;
        assert_eq!(disk.judge(disk.age(late, None), &timing), Some(DiskChange::Stalled));
        assert!(!disk.ok());
        assert!(!disk.write_proof(late, &timing));
        assert!(disk.token_back(seq, Duration::ZERO));
        assert_eq!(disk.judge(disk.age(late, None), &timing), Some(DiskChange::Recovered));
        assert!(disk.token_due(late, &timing).is_some());
    }

    #[test]
    fn an_old_flush_in_flight_is_a_stall_though_tokens_return() {
        let (mut disk, timing) = (Disk::default(), Timing::default());
        let start = BootTime(1_000_000_000);
        let seq = disk.token_due(start, &timing).expect("due");
        assert!(disk.token_back(seq, 1_200 * MS));
        assert_eq!(disk.judge(disk.age(start, None), &timing), Some(DiskChange::Stalled));
    }

    #[test]
    fn proof_of_life_is_a_flush_within_the_last_second() {
        let (mut disk, timing) = (Disk::default(), Timing::default());
        let start = BootTime(5_000_000_000);
        assert!(!disk.write_proof(start, &timing));
        assert!(disk.want_canary(start));
        assert!(!disk.want_canary(start), "one at a time");
        disk.canary_back(start + MS);
        assert!(disk.write_proof(start + 900 * MS, &timing));
        assert!(!disk.write_proof(start + 1_100 * MS, &timing));
        disk.poison();
        assert!(!disk.write_proof(start + 2 * MS, &timing));
    }
}
