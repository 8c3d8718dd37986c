//! Members of a partition change (M1): what a data node does about it.
//!
//! The directory's picture is the wish, Raft's membership the fact: the leader takes the next step whenever the two
//! differ and no step is under way (`replica/membership.rs`), and reports how far it is.

use quorate_proto::control::{Assignment, ChangeReport};
use quorate_proto::ids::{GroupId, LogIndex, NodeId, ReplicaId};
use quorate_proto::time::BootTime;

use super::dispatch::NodeCore;
use super::effect::NodeEffect;
use super::hosting::Hosted;
use super::partition_replica::{PartitionReplica, Turn};
use super::stored::{encode_assignment, ASSIGNMENT};
use crate::envelope::Envelope;
use crate::policy::Policy;

impl<P: Policy> PartitionReplica<P> {
    /// Why a message has no receiver here (M3). Replica ids grow: a sender beyond all known ones is one that the
    /// directory made since, and its node is the one that the message came from.
    pub(super) fn stranger(&mut self, from: NodeId, envelope: &Envelope) -> Option<&'static str> {
        let why = self.replica.stranger(envelope);
        if why.is_some() || self.nodes.contains_key(&envelope.from) {
            return why;
        }
        let newest = self.nodes.keys().next_back().copied().unwrap_or_default();
        if envelope.from < newest {
            return Some("not a member");
        }
        self.nodes.insert(envelope.from, from);
        None
    }

    /// The directory's newer picture of this very replica.
    pub(super) fn reassigned(&mut self, assignment: Assignment, turn: &Turn<'_>) {
        if assignment == self.assignment {
            return;
        }
        self.nodes = assignment.members.iter().copied().collect();
        self.replica.store(turn.now, vec![(ASSIGNMENT, encode_assignment(&assignment))], &mut self.effects);
        self.assignment = assignment;
        self.steer(turn);
        self.report_now = true;
    }

    /// Leader: the next step of a change, or the end of what an earlier leader began.
    pub(super) fn steer(&mut self, turn: &Turn<'_>) {
        if self.leading.is_some() {
            self.replica.steer_membership(turn.now, self.assignment.change.as_ref(), &mut self.effects);
        }
        let report = self.change_report();
        if report != self.change_told {
            self.change_told = report;
            self.report_now = true;
        }
    }

    pub(super) fn change_report(&self) -> Option<ChangeReport> {
        self.assignment.change.as_ref().and_then(|change| self.replica.change_report(change))
    }

    /// A follower needs a snapshot. One that became a member after the last checkpoint could not take it (raft-rs
    /// ignores a snapshot whose membership lacks the receiver): a newer checkpoint comes first, and Raft asks again.
    pub(super) fn build_snapshot(&mut self, to: ReplicaId, turn: &mut Turn<'_>) {
        let durable = self.checkpoints.durable();
        let conf = self.replica.membership_at(durable);
        // A young partition has no checkpoint at all.
        let known = durable > LogIndex::ZERO
            && [&conf.voters, &conf.learners, &conf.voters_outgoing].iter().any(|ids| ids.contains(&to.get()));
        if known {
            self.building.insert(to);
            turn.out.push(NodeEffect::BuildSnapshot { group: self.group(), to });
        } else {
            self.checkpoints.want();
            self.replica.snapshot_built(turn.now, to, None, &mut self.effects);
        }
    }
}

impl<P: Policy> NodeCore<P> {
    /// Ends what the node does for a replica: it gives leadership up, and everybody who waits is answered. Its data
    /// stay.
    pub(super) fn stop_replica(&mut self, group: GroupId, now: BootTime, out: &mut Vec<NodeEffect>) {
        self.visit(group, now, out, |partition, turn| {
            partition.replica.release(turn.now, "replaced", &mut partition.effects);
            partition.run(turn);
            partition.end_leadership(None, turn);
        });
        if let Some(Hosted::Live(partition)) = self.partitions.remove(&group) {
            self.forget_totals(&partition);
        }
        out.push(NodeEffect::ServeUntil { group, until: BootTime::ZERO });
    }

    /// The directory says that a replica's successor is promoted: its data may go (M1).
    pub(super) fn retire(&mut self, group: GroupId, replica: ReplicaId, now: BootTime, out: &mut Vec<NodeEffect>) {
        if self.partitions.get(&group).is_some_and(|hosted| hosted.replica() == replica) {
            self.stop_replica(group, now, out);
        }
        self.kept.remove(&(group, replica));
        out.push(NodeEffect::Retire { group, replica });
    }
}
