//! What a leader knows about its right to serve: contact (C1, C2), lease (L2), its own no-op (F1).
//!
//! ```text
//!   stamp sent ── follower processes ── echo returns          contact[p] = newest stamp returned (C1)
//!   │◄──────────────── F ────────────────►│                   group = newest stamp that a quorum has (C2)
//!   └ serves ─────────────────────────────┘ fenced ── R ──► resigns (F3)
//! ```
//!
//! Times are this node's own clock throughout; a stamp that comes back from a follower was read here. Contact is never
//! the time at which a response came in: a response may have waited in a queue or a stopped process.

use std::collections::BTreeMap;
use std::time::Duration;

use quorate_proto::ids::{PermitEpoch, Term};
use quorate_proto::time::BootTime;
use raft::eraftpb::ConfState;

use super::config::ObserverLoss;
use crate::timing::Timing;

/// A first lease not answered is asked for again after a fraction of `lease_retry`: without it nothing is served.
const FIRST_LEASE_RETRIES: u32 = 5;

/// State of one leadership, from election to its end.
#[derive(Clone, Debug)]
pub(super) struct Lead {
    pub(super) term: Term,
    pub(super) won_epoch: PermitEpoch,
    pub(super) elected: BootTime,
    /// Index of the leader's own no-op: F1 wants it applied.
    pub(super) noop: u64,
    contact: BTreeMap<u64, BootTime>,
    asked: Option<BootTime>,
    lease: Option<BootTime>,
    /// The observers have logged a lease of this very term; one that came with a planned permit (H1) is not logged yet.
    logged: bool,
}

impl Lead {
    pub(super) fn new(term: Term, won_epoch: PermitEpoch, elected: BootTime, noop: u64) -> Self {
        Self { term, won_epoch, elected, noop, contact: BTreeMap::new(), asked: None, lease: None, logged: false }
    }

    /// Newest stamp that `peer` returned.
    pub(super) fn contacted(&mut self, peer: u64, stamp: BootTime) {
        let known = self.contact.entry(peer).or_default();
        *known = stamp.max(*known);
    }

    /// C2: the newest stamp such that a quorum (of both halves, if joint; learners excluded; itself included) has at
    /// least that. `now` if it is the only voter.
    pub(super) fn group_contact(&self, conf: &ConfState, me: u64, now: BootTime) -> BootTime {
        let half = |voters: &[u64]| newest_of_majority(voters, |id| self.stamp(id, me, now));
        let incoming = half(&conf.voters);
        if conf.voters_outgoing.is_empty() {
            incoming
        } else {
            incoming.min(half(&conf.voters_outgoing))
        }
    }

    fn stamp(&self, id: u64, me: u64, now: BootTime) -> BootTime {
        if id == me {
            now
        } else {
            self.contact.get(&id).copied().unwrap_or_default()
        }
    }

    /// H1: the permit contained the first lease, counted from `sent` on this clock. It is asked for all the same, so
    /// that the observers log who won.
    pub(super) fn promised(&mut self, sent: BootTime) {
        self.lease = Some(sent);
    }

    /// L2: counted from the moment the request was *sent*.
    pub(super) fn granted(&mut self, sent: BootTime) {
        self.logged = true;
        self.lease = Some(self.lease.map_or(sent, |known| known.max(sent)));
    }

    pub(super) fn asked(&mut self, now: BootTime) {
        self.asked = Some(now);
    }

    /// End of the lease as the holder counts it; `ZERO` before the first.
    pub(super) fn lease_end(&self, timing: &Timing) -> BootTime {
        self.lease.map_or(BootTime::ZERO, |sent| sent + timing.lease.saturating_sub(timing.lease_margin))
    }

    /// End of the right to serve that leases give (L6).
    pub(super) fn lease_allows_until(&self, timing: &Timing, loss: ObserverLoss) -> BootTime {
        match (loss, self.lease) {
            (ObserverLoss::ReadIndex, Some(_)) => BootTime::MAX,
            _ => self.lease_end(timing),
        }
    }

    /// When a lease is to be asked for.
    pub(super) fn lease_deadline(&self, timing: &Timing) -> BootTime {
        match (self.lease.filter(|_| self.logged), self.asked) {
            (None, None) => self.elected,
            (None, Some(asked)) => asked + timing.lease_retry / FIRST_LEASE_RETRIES,
            (Some(sent), asked) => {
                let renew = sent + timing.lease_renew;
                asked.filter(|&a| a > sent).map_or(renew, |a| renew.max(a + timing.lease_retry))
            }
        }
    }

    /// F3: when a leader without a valid lease resigns.
    pub(super) fn lease_resign_at(&self, timing: &Timing, loss: ObserverLoss) -> BootTime {
        let without_since = self.lease_allows_until(timing, loss).max(self.elected);
        without_since + timing.lease_resign
    }

    /// F1 without its no-op: until when it may serve.
    pub(super) fn may_serve_until(
        &self,
        contact: BootTime,
        timing: &Timing,
        loss: ObserverLoss,
        lease: bool,
    ) -> BootTime {
        let fence = contact + timing.fence;
        if lease {
            fence.min(self.lease_allows_until(timing, loss))
        } else {
            fence
        }
    }

    /// F3: when a leader without contact resigns. One that was elected by votes that took long to flush has no fresh
    /// contact yet: it does not serve, but is given the same time to find some.
    pub(super) fn fence_resign_at(&self, contact: BootTime, timing: &Timing) -> BootTime {
        contact.max(self.elected) + timing.fence + timing.resign
    }

    /// Time since `contact`, for the fence.
    pub(super) fn is_fenced(contact: BootTime, now: BootTime, fence: Duration) -> bool {
        now.since(contact) >= fence
    }
}

/// Newest value that a majority of `ids` reaches; `ZERO` for nobody (a learner's empty membership proves nothing).
pub(super) fn newest_of_majority(ids: &[u64], value: impl Fn(u64) -> BootTime) -> BootTime {
    if ids.is_empty() {
        return BootTime::ZERO;
    }
    // Asked on every message: no allocation for a membership of usual size.
    let mut few = [BootTime::ZERO; 8];
    let mut many = Vec::new();
    let values = if let Some(few) = few.get_mut(..ids.len()) {
        few
    } else {
        many.resize(ids.len(), BootTime::ZERO);
        &mut many[..]
    };
    for (slot, &id) in values.iter_mut().zip(ids) {
        *slot = value(id);
    }
    values.sort_unstable_by(|a, b| b.cmp(a));
    values[ids.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> BootTime {
        BootTime(ms * 1_000_000)
    }

    fn conf(voters: &[u64], outgoing: &[u64]) -> ConfState {
        let mut conf = ConfState::default();
        conf.set_voters(voters.to_vec());
        conf.set_voters_outgoing(outgoing.to_vec());
        conf
    }

    fn lead() -> Lead {
        Lead::new(Term(3), PermitEpoch(1), at(1000), 7)
    }

    #[test]
    fn contact_is_the_newest_stamp_that_a_quorum_of_both_halves_returned() {
        let mut lead = lead();
        lead.contacted(2, at(500));
        lead.contacted(3, at(700));
        lead.contacted(2, at(400));
        assert_eq!(lead.group_contact(&conf(&[1, 2, 3], &[]), 1, at(900)), at(700));
        assert_eq!(lead.group_contact(&conf(&[1, 2, 3, 4, 5], &[]), 1, at(900)), at(500));
        assert_eq!(lead.group_contact(&conf(&[1, 2, 3], &[1, 4, 5]), 1, at(900)), BootTime::ZERO);
        lead.contacted(4, at(600));
        assert_eq!(lead.group_contact(&conf(&[1, 2, 3], &[1, 4, 5]), 1, at(900)), at(600));
        assert_eq!(lead.group_contact(&conf(&[1], &[]), 1, at(900)), at(900));
        assert_eq!(lead.group_contact(&conf(&[], &[]), 1, at(900)), BootTime::ZERO);
    }

    #[test]
    fn a_lease_counts_from_its_sending_and_is_renewed_at_five_seconds_then_every_half() {
        let (timing, mut lead) = (Timing::default(), lead());
        assert_eq!(lead.lease_deadline(&timing), at(1000));
        lead.asked(at(1000));
        assert_eq!(lead.lease_deadline(&timing), at(1100));
        lead.granted(at(1000));
        assert_eq!(lead.lease_end(&timing), at(8750));
        assert_eq!(lead.lease_deadline(&timing), at(6000));
        lead.asked(at(6000));
        assert_eq!(lead.lease_deadline(&timing), at(6500));
        lead.granted(at(6000));
        assert_eq!((lead.lease_end(&timing), lead.lease_deadline(&timing)), (at(13_750), at(11_000)));
        lead.granted(at(1000));
        assert_eq!(lead.lease_end(&timing), at(13_750), "a late answer to an old request shortens nothing");
    }

    #[test]
    fn a_promised_lease_counts_from_its_report_and_is_asked_for_at_once() {
        let (timing, mut lead) = (Timing::default(), lead());
        lead.promised(at(600));
        assert_eq!(lead.lease_end(&timing), at(8350));
        assert_eq!(lead.lease_deadline(&timing), at(1000));
        lead.asked(at(1000));
        assert_eq!(lead.lease_deadline(&timing), at(1100));
        lead.granted(at(1000));
        assert_eq!((lead.lease_end(&timing), lead.lease_deadline(&timing)), (at(8750), at(6000)));
    }

    #[test]
    fn without_a_lease_it_resigns_after_a_second_and_under_read_index_only_before_the_first() {
        let (timing, mut lead) = (Timing::default(), lead());
        assert_eq!(lead.lease_resign_at(&timing, ObserverLoss::Stop), at(2000));
        assert_eq!(lead.lease_resign_at(&timing, ObserverLoss::ReadIndex), at(2000));
        lead.granted(at(1000));
        assert_eq!(lead.lease_resign_at(&timing, ObserverLoss::Stop), at(9750));
        assert_eq!(lead.lease_resign_at(&timing, ObserverLoss::ReadIndex), BootTime::MAX);
    }
}
