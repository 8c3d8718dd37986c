//! When each step of an election was done, on the new leader's clock (the failover's phases).

use std::time::Duration;

use quorate_proto::control::{ElectionMarks, LastServed};
use quorate_proto::ids::{GroupId, PermitEpoch, Term};
use quorate_proto::time::BootTime;

/// Marks of the newest election that this replica won.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// Newest permit that names this replica, and its first receipt.
    permit: Option<(PermitEpoch, BootTime)>,
    election: Option<Election>,
    /// Newest record that a leader committed was applied here.
    record: Option<BootTime>,
    /// Everything in the log was committed then.
    whole: Option<BootTime>,
}

#[derive(Debug)]
struct Election {
    term: Term,
    epoch: PermitEpoch,
    permitted: BootTime,
    elected: BootTime,
    noop: Option<BootTime>,
    lease: Option<BootTime>,
    /// The former leader's last record, and whether entries waited behind it.
    served: Option<(BootTime, bool)>,
}

impl Marks {
    /// A record that the present leader committed was applied: it was acknowledged at this moment, or a message later.
    pub(super) fn record_applied(&mut self, now: BootTime) {
        self.record = Some(now);
    }

    /// Everything in the log is committed: nothing waits.
    pub(super) fn log_whole(&mut self, now: BootTime) {
        self.whole = Some(now);
    }

    /// A permit that names this replica came.
    pub(super) fn permitted(&mut self, epoch: PermitEpoch, now: BootTime) {
        if self.permit.is_none_or(|(known, _)| epoch > known) {
            self.permit = Some((epoch, now));
        }
    }

    /// It won `term`; `waited`: its log holds entries of former leaders that are not committed.
    pub(super) fn elected(&mut self, term: Term, epoch: PermitEpoch, waited: bool, now: BootTime) {
        let permitted = self.permit.filter(|(known, _)| *known == epoch).map_or(now, |(_, at)| at);
        // On a partition at rest the last record says nothing of when its leader stopped to serve.
        let served = self.record.max(self.whole.filter(|_| waited)).map(|at| (at, waited));
        self.election = Some(Election { term, epoch, permitted, elected: now, noop: None, lease: None, served });
    }

    /// It leads no more: an election without any acknowledgement is not reported.
    pub(super) fn deposed(&mut self) {
        self.election = None;
    }

    /// The no-op of `term` is applied.
    pub(super) fn noop_applied(&mut self, term: Term, now: BootTime) {
        if let Some(election) = self.election.as_mut().filter(|e| e.term == term) {
            election.noop.get_or_insert(now);
        }
    }

    /// The lease of `term` is in hand.
    pub(super) fn leased(&mut self, term: Term, now: BootTime) {
        if let Some(election) = self.election.as_mut().filter(|e| e.term == term) {
            election.lease.get_or_insert(now);
        }
    }

    /// A publish was acknowledged: the first one of an election completes its marks.
    pub(super) fn acknowledged(&mut self, group: GroupId, now: BootTime) -> Option<ElectionMarks> {
        let election = self.election.take()?;
        let since = |at: Option<BootTime>| at.map_or(Duration::ZERO, |at| at.since(election.permitted));
        Some(ElectionMarks {
            group,
            term: election.term,
            permit_epoch: election.epoch,
            elected: election.elected.since(election.permitted),
            noop_committed: since(election.noop),
            lease: since(election.lease),
            first_ack: now.since(election.permitted),
            served: election
                .served
                .map(|(at, waited)| LastServed { last_us: at.micros_after(election.permitted), waited }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn marks_count_from_the_permit_and_are_told_once() {
        let mut marks = Marks::default();
        marks.record_applied(BootTime(4 * MS));
        marks.permitted(PermitEpoch(3), BootTime(10 * MS));
        marks.permitted(PermitEpoch(3), BootTime(99 * MS));
        marks.elected(Term(7), PermitEpoch(3), true, BootTime(12 * MS));
        marks.noop_applied(Term(7), BootTime(15 * MS));
        marks.leased(Term(7), BootTime(16 * MS));
        let told = marks.acknowledged(GroupId(2), BootTime(20 * MS)).expect("the election is complete");
        assert_eq!(told.elected, Duration::from_millis(2));
        assert_eq!(told.noop_committed, Duration::from_millis(5));
        assert_eq!(told.lease, Duration::from_millis(6));
        assert_eq!(told.first_ack, Duration::from_millis(10));
        assert_eq!(told.served, Some(LastServed { last_us: -6_000, waited: true }));
        assert_eq!(marks.acknowledged(GroupId(2), BootTime(21 * MS)), None);
    }

    #[test]
    fn a_deposed_leader_tells_nothing() {
        let mut marks = Marks::default();
        marks.elected(Term(7), PermitEpoch(3), true, BootTime(12 * MS));
        marks.deposed();
        assert_eq!(marks.acknowledged(GroupId(2), BootTime(20 * MS)), None);
    }
}
