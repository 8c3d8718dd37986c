//! Records of the directory and what can be read off them.

use std::collections::{BTreeMap, BTreeSet};

use quorate_proto::control::{Change, Ended, Hello, Permit};
use quorate_proto::ids::{
    ConfigVersion, GroupId, Incarnation, NodeId, PartitionNo, PermitEpoch, ReplicaId, Term, TopicId,
};
use quorate_proto::time::LogTime;

use super::command::Lease;

/// A data node.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// What it said when it last registered; `cluster` is left out.
    pub registered: Hello,
    /// This incarnation and all older ones are dead (S2).
    pub dead: Incarnation,
    /// An operator drains it: its leaders are handed over, and it gets none (H2).
    pub draining: bool,
}

impl Node {
    /// Its registered process is not known to be dead.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.registered.incarnation > self.dead
    }

    /// Its registered incarnation.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.registered.incarnation
    }
}

/// A topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topic {
    /// Identity; a re-created namesake has another one.
    pub id: TopicId,
    /// `namespace/name`.
    pub name: String,
    /// By partition number.
    pub groups: Vec<GroupId>,
    /// Cluster time of its creation.
    pub created: LogTime,
}

/// A partition.
#[derive(Clone, Debug, PartialEq)]
pub struct Partition {
    /// Its incarnation.
    pub group: GroupId,
    /// Topic that it is part of.
    pub topic: TopicId,
    /// Which part.
    pub number: PartitionNo,
    /// Replicas with their nodes; the first is the preferred first leader.
    pub replicas: Vec<(ReplicaId, NodeId)>,
    /// Version of `replicas`.
    pub config_version: ConfigVersion,
    /// Newest permit epoch; zero = never permitted.
    pub permit_epoch: PermitEpoch,
    /// Newest permit of each holder that is neither released nor dead (V1c).
    pub uncleared: Vec<Permit>,
    /// Newest permit.
    pub newest: Option<Permit>,
    /// Newest lease ever granted.
    pub lease: Option<Lease>,
    /// Newest released term by replica (H1).
    pub released: BTreeMap<ReplicaId, Term>,
    /// Node that an operator placed the leader on.
    pub pin: Option<NodeId>,
    /// The change of members that is under way (M1).
    pub change: Option<Change>,
    /// Replicas whose disk was replaced by an empty one.
    pub lost: BTreeSet<ReplicaId>,
    /// Replicas that were removed, with their nodes, oldest first.
    pub retired: Vec<(ReplicaId, NodeId)>,
}

impl Partition {
    /// Node of a replica, also of one that is to become a member.
    #[must_use]
    pub fn node_of(&self, replica: ReplicaId) -> Option<NodeId> {
        self.all().find(|(r, _)| *r == replica).map(|(_, node)| node)
    }

    /// Replica that a node hosts: the one that is to become a member, before one that it replaces in the same place.
    #[must_use]
    pub fn replica_on(&self, node: NodeId) -> Option<ReplicaId> {
        self.all().filter(|(_, n)| *n == node).last().map(|(replica, _)| replica)
    }

    /// Replica that a node is to host now. One that leads hands over before another takes its place on its node (M4).
    #[must_use]
    pub fn assigned_to(&self, node: NodeId, nodes: &BTreeMap<NodeId, Node>) -> Option<ReplicaId> {
        let here = self.replica_on(node)?;
        let leads = self.leader(nodes).map(|(_, lease)| lease.replica);
        match self.change {
            Some(change) if change.add == here && leads == Some(change.remove) => {
                let old = self.replicas.iter().find(|(replica, on)| *replica == change.remove && *on == node);
                Some(old.map_or(here, |(replica, _)| *replica))
            }
            _ => Some(here),
        }
    }

    /// Replicas of the node whose data may go.
    pub fn retired_on(&self, node: NodeId) -> impl Iterator<Item = (GroupId, ReplicaId)> + '_ {
        self.retired.iter().filter(move |(_, on)| *on == node).map(|(replica, _)| (self.group, *replica))
    }

    /// Replicas that make a majority.
    #[must_use]
    pub fn majority(&self) -> usize {
        self.replicas.len() / 2 + 1
    }

    /// (replica, term) was given up for good (H1).
    #[must_use]
    pub fn is_released(&self, replica: ReplicaId, term: Term) -> bool {
        self.released.get(&replica).is_some_and(|newest| term <= *newest)
    }

    /// The basis of a permit: what ended earlier leaders, by the log (P1).
    #[must_use]
    pub fn basis(&self, nodes: &BTreeMap<NodeId, Node>) -> Vec<Ended> {
        let mut facts = Vec::new();
        for (replica, node) in self.all() {
            if let Some(term) = self.released.get(&replica) {
                facts.push(Ended::Released { replica, term: *term });
            }
            if let Some(dead) = nodes.get(&node).and_then(|n| n.dead.non_zero()) {
                facts.push(Ended::Dead { replica, incarnation: dead });
            }
        }
        facts
    }

    /// The holder of `permit` is released or dead: it leads no more and never will under it. A release of term T
    /// covers the epoch that T was won with and all older ones; an unspent permit is covered by death only.
    fn is_over(&self, permit: &Permit, nodes: &BTreeMap<NodeId, Node>) -> bool {
        let dead = self.node_of(permit.candidate).and_then(|n| nodes.get(&n)).map_or(Incarnation::ZERO, |n| n.dead);
        let released = self.lease.is_some_and(|lease| {
            lease.replica == permit.candidate
                && lease.epoch >= permit.epoch
                && self.is_released(lease.replica, lease.term)
        });
        permit.candidate_incarnation <= dead || released
    }

    /// Forgets permits whose holder is released or dead.
    pub(super) fn clear_permits(&mut self, nodes: &BTreeMap<NodeId, Node>) {
        let mut uncleared = std::mem::take(&mut self.uncleared);
        uncleared.retain(|permit| !self.is_over(permit, nodes));
        self.uncleared = uncleared;
    }

    /// Remembers `permit` as not yet over. One per holder is enough: whatever covers a newer one of the same replica
    /// covers the older.
    pub(super) fn remember(&mut self, permit: Permit) {
        self.uncleared.retain(|p| p.candidate != permit.candidate);
        self.uncleared.push(permit.clone());
        self.permit_epoch = permit.epoch;
        self.newest = Some(permit);
    }

    /// The newest lease was won in a planned handoff (H1): its predecessor answers what was sent to it.
    #[must_use]
    pub fn handed_over(&self) -> bool {
        let won = |lease: &Lease| self.newest.as_ref().is_some_and(|p| p.epoch == lease.epoch && p.planned.is_some());
        self.lease.as_ref().is_some_and(won)
    }

    /// The leader that serves by the log: holder of the newest lease, if it is neither released nor dead.
    #[must_use]
    pub fn leader(&self, nodes: &BTreeMap<NodeId, Node>) -> Option<(NodeId, Lease)> {
        let lease = self.lease?;
        let node = self.node_of(lease.replica)?;
        let dead = nodes.get(&node).is_some_and(|n| lease.incarnation <= n.dead);
        (!dead && !self.is_released(lease.replica, lease.term)).then_some((node, lease))
    }
}
