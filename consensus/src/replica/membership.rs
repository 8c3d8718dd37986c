//! Changes of the group's members (M1): the leader's side, one Raft entry at a time.
//!
//! ```text
//!  Learn    AddLearner(new)                              the learner gets a snapshot, then the log
//!  Promote  joint: {new in, old out} ─► leave            both halves consent until the leave is committed
//!  Cancel   RemoveNode(new)
//! ```
//! The leave is never left to raft-rs (`auto_leave` can be lost with its leader): whoever leads a joint membership
//! leaves it. A learner that no change names is removed. A leader never removes itself (M4): it waits, also in a joint
//! membership, until it has handed over; the observers see to that.

use quorate_proto::control::{Change, ChangePhase, ChangeReport};
use quorate_proto::ids::ReplicaId;
use quorate_proto::time::BootTime;
use raft::eraftpb::{ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2};
use raft::ProgressState;

use super::{Out, Replica};
use crate::effect::Note;
use crate::policy::Policy;

/// Entries that a learner may lag behind the commit index and still count as caught up: what is in flight.
const IN_FLIGHT: u64 = 256;

fn single(kind: ConfChangeType, replica: ReplicaId) -> ConfChangeSingle {
    let mut change = ConfChangeSingle { node_id: replica.get(), ..ConfChangeSingle::default() };
    change.set_change_type(kind);
    change
}

impl<P: Policy> Replica<P> {
    /// This replica votes in the membership that it applied.
    #[must_use]
    pub fn is_voter(&self) -> bool {
        let me = self.cfg.me.get();
        self.conf.voters.contains(&me) || self.conf.voters_outgoing.contains(&me)
    }

    /// Leader: proposes the next step towards what `change` wants, if one is due and none is under way.
    pub fn steer_membership(&mut self, now: BootTime, change: Option<&Change>, out: &mut Out) {
        if self.lead.is_none() || self.stopped() || self.raw.raft.has_pending_conf() {
            return;
        }
        let Some(step) = self.next_step(change) else { return };
        // Dropped while leadership is being transferred, or for lack of room: tried again with the next turn.
        if self.raw.propose_conf_change(Vec::new(), step).is_ok() {
            Self::note(out, Note::MembershipStep);
        }
        self.drive(now, out);
    }

    fn next_step(&self, change: Option<&Change>) -> Option<ConfChangeV2> {
        let conf = &self.conf;
        if !conf.voters_outgoing.is_empty() {
            return conf.voters.contains(&self.cfg.me.get()).then(ConfChangeV2::default);
        }
        let learns = |replica: ReplicaId| conf.learners.contains(&replica.get());
        let votes = |replica: ReplicaId| conf.voters.contains(&replica.get());
        let mut step = ConfChangeV2::default();
        let stray = conf.learners.iter().map(|id| ReplicaId(*id)).find(|id| change.is_none_or(|c| c.add != *id));
        if let Some(stray) = stray {
            step.set_changes(vec![single(ConfChangeType::RemoveNode, stray)].into());
            return Some(step);
        }
        let change = change?;
        match change.phase {
            // Also while it is promoted: a leader that had not heard of the change may have removed it as a stray.
            ChangePhase::Learn | ChangePhase::Promote if !learns(change.add) && !votes(change.add) => {
                step.set_changes(vec![single(ConfChangeType::AddLearnerNode, change.add)].into());
            }
            ChangePhase::Promote if learns(change.add) && votes(change.remove) && change.remove != self.cfg.me => {
                step.set_transition(ConfChangeTransition::Explicit);
                step.set_changes(
                    vec![
                        single(ConfChangeType::AddNode, change.add),
                        single(ConfChangeType::RemoveNode, change.remove),
                    ]
                    .into(),
                );
            }
            ChangePhase::Cancel if learns(change.add) => {
                step.set_changes(vec![single(ConfChangeType::RemoveNode, change.add)].into());
            }
            _ => return None,
        }
        Some(step)
    }

    /// Leader: how far the change is.
    #[must_use]
    pub fn change_report(&self, change: &Change) -> Option<ChangeReport> {
        self.lead.as_ref()?;
        let ids = |ids: &[u64]| {
            let mut ids: Vec<ReplicaId> = ids.iter().map(|id| ReplicaId(*id)).collect();
            ids.sort_unstable();
            ids
        };
        let progress = self.raw.raft.prs().get(change.add.get());
        let caught_up = progress.is_some_and(|pr| {
            pr.state == ProgressState::Replicate && pr.matched + IN_FLIGHT >= self.raw.raft.raft_log.committed
        });
        Some(ChangeReport {
            task: change.task,
            phase: change.phase,
            voters: ids(&self.conf.voters),
            outgoing: ids(&self.conf.voters_outgoing),
            learners: ids(&self.conf.learners),
            caught_up,
        })
    }
}
