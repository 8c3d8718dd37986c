//! What the observers hear of a replica (P2), and when they must hear it at once.
//!
//! A change of {leader, fence, lease, silence} asks for a report right away (`ReportNow`); everything else rides
//! on the next heartbeat. `hears_quorum` counts frames of the nodes, not of this group alone: followers of one group
//! exchange none.

use std::time::Duration;

use quorate_proto::control::ReplicaReport;
use quorate_proto::ids::{ConfigVersion, LogIndex, Offset, ReplicaId};
use quorate_proto::time::BootTime;

use super::lead::newest_of_majority;
use super::{Out, Replica};
use crate::effect::ReplicaEffect;
use crate::policy::Policy;

/// How long a resignation for lack of contact counts against a candidate (P2).
const RESIGNED_COUNTS: Duration = Duration::from_secs(10);

/// What must be reported at once when it changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flags {
    leader: Option<ReplicaId>,
    fence_lost: bool,
    has_lease: bool,
    leader_silent: bool,
}

impl<P: Policy> Replica<P> {
    /// Report for the observers. The owner fills high watermark, digest and configuration version, and may know better
    /// about `hears_quorum`.
    #[must_use]
    pub fn report(&self, now: BootTime) -> ReplicaReport {
        let (last_term, last_index) = self.last_flushed();
        let serving = self.serving(now);
        let lease_end = self.lead.as_ref().map_or(BootTime::ZERO, |lead| lead.lease_end(&self.cfg.timing));
        ReplicaReport {
            group: self.cfg.group,
            replica: self.cfg.me,
            term: self.term(),
            role: self.role(),
            leader: self.leader(),
            won_epoch: self.won_epoch(),
            last_term,
            last_index,
            committed: self.committed(),
            applied: self.applied_index(),
            hears_quorum: self.hears_quorum(now),
            fence_lost: self.fenced(now),
            leader_silent: self.leader_silent(now),
            suspect_log: self.suspect,
            resigned_for_fence: self.resigned_for_fence.is_some_and(|at| now.since(at) < RESIGNED_COUNTS),
            seen_epoch: self.permits.seen(),
            serving,
            lease_remaining: lease_end.since(now),
            high_watermark: Offset::ZERO,
            digest: bytes::Bytes::new(),
            wants_permit: self.wants_permit,
            matched: self.matched(),
            config_version: ConfigVersion::ZERO,
            learner: !self.is_voter(),
            change: None,
        }
    }

    fn matched(&self) -> Vec<(ReplicaId, LogIndex)> {
        if self.lead.is_none() {
            return Vec::new();
        }
        let prs = self.raw.raft.prs();
        let mut all: Vec<_> = prs.iter().map(|(&id, pr)| (ReplicaId(id), LogIndex(pr.matched))).collect();
        all.sort_unstable();
        all
    }

    /// Frames came from the nodes of a majority (of both halves, if joint) within F, itself included.
    fn hears_quorum(&self, now: BootTime) -> bool {
        let heard = |id: u64| {
            if id == self.cfg.me.0 {
                now
            } else {
                self.frames.get(&ReplicaId(id)).copied().unwrap_or_default()
            }
        };
        let mut oldest = newest_of_majority(&self.conf.voters, heard);
        if !self.conf.voters_outgoing.is_empty() {
            oldest = oldest.min(newest_of_majority(&self.conf.voters_outgoing, heard));
        }
        oldest > BootTime::ZERO && now.since(oldest) < self.cfg.timing.fence
    }

    /// A replica that does not lead and has heard no leader for more than F.
    fn leader_silent(&self, now: BootTime) -> bool {
        let last = self.leader_frame.unwrap_or(self.cfg.started);
        self.lead.is_none() && now.since(last) >= self.cfg.timing.fence
    }

    /// Asks for a report when something changed that observers must hear at once.
    pub(super) fn flag_changes(&mut self, now: BootTime, out: &mut Out) {
        let has_lease = self.lead.as_ref().is_some_and(|lead| lead.lease_end(&self.cfg.timing) > now);
        let flags = Flags {
            leader: self.leader(),
            fence_lost: self.fenced(now),
            has_lease,
            leader_silent: self.leader_silent(now),
        };
        if flags == self.flags {
            return;
        }
        if self.governed() {
            if flags.fence_lost != self.flags.fence_lost {
                Self::note_fence(flags.fence_lost, out);
            }
            out.push(ReplicaEffect::ReportNow);
        }
        self.flags = flags;
    }
}
