//! An observer's disk: one that stalls (B4) or is nearly full (B5) does not lead.
//!
//! A leader can go on without its own flushes as long as both followers flush: leases are renewed, permits committed. But
//! it is then one failure from standing still, so it passes its leadership on and does not campaign until its flushes end
//! again. Nothing on that path waits for its own disk.
//!
//! With little room it passes its leadership on to an observer with more, and a leader refuses what administrators want to
//! be added. What the protocol itself logs (permits, leases, releases, deaths: a hundred bytes each, compacted) goes on even
//! on a full disk, out of the ballast: stopping it would stop every leader within a lease.

use std::collections::VecDeque;
use std::time::Duration;

use quorate_proto::control::Room;
use quorate_proto::ids::PersistId;
use quorate_proto::refusal::{Reason, Refusal};
use quorate_proto::time::BootTime;

use super::config::replica_of;
use super::core::{ObserverCore, Out};
use super::ObserverEffect;
use crate::policy::Policy;
use crate::replica::Replica;
use crate::space::{Free, Space};
use crate::timing::Timing;

/// A gap of more ticks than this between two ticks is a pause of the process, not of the disk.
const PAUSE_TICKS: u32 = 4;

/// Advice while there is no room: leadership may have moved by then.
const RETRY: Duration = Duration::from_millis(500);

/// What events showed of the disk.
#[derive(Debug, Default)]
pub(super) struct Disk {
    /// Writes not yet flushed, and when they were handed out.
    writes: VecDeque<(PersistId, BootTime)>,
    last_tick: BootTime,
    stalled: bool,
    /// When leadership may be passed on once more.
    next_transfer: BootTime,
    space: Space,
}

impl Disk {
    /// A write was handed out.
    pub(super) fn written(&mut self, id: PersistId, now: BootTime) {
        self.writes.push_back((id, now));
    }

    /// Everything up to `id` is flushed.
    pub(super) fn flushed(&mut self, id: PersistId) {
        while self.writes.front().is_some_and(|(first, _)| *first <= id) {
            self.writes.pop_front();
        }
    }

    /// The oldest write in flight takes too long.
    pub(super) fn stalled(&self) -> bool {
        self.stalled
    }

    /// Room there is (B5).
    pub(super) fn room(&self) -> Room {
        self.space.room()
    }

    /// Judges at a tick. True if the verdict changed.
    fn judge(&mut self, now: BootTime, timing: &Timing) -> bool {
        let paused = now.since(self.last_tick) > timing.tick * PAUSE_TICKS;
        self.last_tick = now;
        if paused {
            return false;
        }
        let stalled = self.writes.front().is_some_and(|(_, since)| now.since(*since) > timing.wal_stall);
        std::mem::replace(&mut self.stalled, stalled) != stalled
    }

    /// Leadership may be passed on now; a transfer that came to nothing is repeated later.
    fn transfer_due(&mut self, now: BootTime, timing: &Timing) -> bool {
        let due = now >= self.next_transfer;
        if due {
            self.next_transfer = now + timing.observer_election_max * 2;
        }
        due
    }
}

impl<P: Policy> ObserverCore<P> {
    /// B4, at every tick.
    pub(super) fn judge_disk(&mut self, now: BootTime) {
        if self.disk.judge(now, &self.cfg.timing) {
            let stalled = self.disk.stalled();
            self.with_replica(|replica, fx| replica.hold_serving(now, stalled, fx));
        }
        if self.disk.stalled() || self.disk.room() != Room::Ample {
            self.pass_leadership_on(now);
        }
    }

    /// B5.
    pub(super) fn measured(&mut self, now: BootTime, disks: &[Free], out: &mut Out) {
        let marks = self.cfg.marks;
        if self.disk.space.measured(now, disks, &marks) {
            let room = self.disk.room();
            out.push(ObserverEffect::Room(room));
            self.replica.set_room(room);
        }
        out.extend(self.disk.space.ballast(disks, &marks).map(ObserverEffect::Ballast));
    }

    fn pass_leadership_on(&mut self, now: BootTime) {
        // Not to one that would only pass it on.
        let (stalled, room) = (self.disk.stalled(), self.disk.room());
        let forgetful = self.forgetful(now);
        let better = |replica: &Replica<P>, peer| match replica.room_of(peer) {
            // B2: it does not lead.
            _ if forgetful.iter().any(|(node, _)| replica_of(*node) == peer) => false,
            Room::Ample => true,
            theirs => stalled && theirs <= room.max(Room::Scarce),
        };
        let Some(to) = self.replica.successor(|peer| better(&self.replica, peer)) else { return };
        if self.disk.transfer_due(now, &self.cfg.timing) {
            self.with_replica(|replica, fx| replica.transfer(now, to, fx));
        }
    }

    /// B5: nothing is added to the directory while the leader's disk is nearly full, nor while a majority's are full.
    pub(super) fn room_to_add(&self, subject: &str) -> Result<(), Refusal> {
        let what = match self.disk.room() {
            Room::Ample if self.replica.majority_has_room() => return Ok(()),
            Room::Ample => "the disks of a majority of the observers are full".to_owned(),
            room => format!("the disk of the observer that leads is {room}"),
        };
        let action = "make room there, see `quorate node list` and docs/runbooks/disk-full.md";
        Err(Refusal::new(Reason::StorageFull, what, subject.to_owned(), action).retry_after(RETRY))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_write_that_is_not_flushed_within_a_second_is_a_stall_until_it_is() {
        let (mut disk, timing) = (Disk::default(), Timing::default());
        let mut now = BootTime(1_000_000_000);
        disk.judge(now, &timing);
        disk.written(PersistId(1), now);
        for _ in 0..10 {
            now += 100 * MS;
            assert!(!disk.judge(now, &timing) && !disk.stalled());
        }
        now += 100 * MS;
        assert!(disk.judge(now, &timing) && disk.stalled());
        assert!(disk.transfer_due(now, &timing) && !disk.transfer_due(now + MS, &timing));
        disk.flushed(PersistId(1));
        assert!(disk.judge(now + 100 * MS, &timing) && !disk.stalled());
    }

    #[test]
    fn a_pause_of_the_process_is_no_stall() {
        let (mut disk, timing) = (Disk::default(), Timing::default());
        let now = BootTime(1_000_000_000);
        disk.judge(now, &timing);
        disk.written(PersistId(1), now);
        assert!(!disk.judge(now + 5_000 * MS, &timing) && !disk.stalled(), "the flush may have ended meanwhile");
        disk.flushed(PersistId(1));
        assert!(!disk.judge(now + 5_100 * MS, &timing) && !disk.stalled());
    }
}
