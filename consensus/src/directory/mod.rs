//! The observers' machine: nodes, topics, partitions, permits, leases, releases, deaths and the record of failovers.
//! Changed by committed commands only, identically on every observer (`docs/protocol`: P1, L1, S2).
//!
//! Identifiers are counters of the machine and never reused. Versions only grow. Facts only accumulate: a death, a
//! release or a grant is never taken back, so an observer that lags may refuse by what it knows, but must not consent.

mod apply;
mod change;
mod command;
mod model;
mod placement;
mod rebuild;
mod state;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use quorate_proto::control::{Assignment, Assignments, PeerInfo};
use quorate_proto::ids::{
    ClusterId, DirectoryVersion, GroupId, LogIndex, NodeId, OperationId, ReplicaId, TaskId, Term, TopicId,
};
use quorate_proto::time::LogTime;
use quorate_proto::v1::{AuditRecord, Failover};

pub use apply::{Applied, Outcome};
pub use change::{Task, TASKS_KEPT};
pub use command::{CommandError, CommandKind, Death, DirectoryCommand, Lease, Placement, REPLICAS, SCHEMA};
pub use model::{Node, Partition, Topic};
pub use placement::place;
pub use rebuild::Traces;
pub use state::StateError;

/// Failover records kept.
pub const FAILOVERS_KEPT: usize = 1_000;
/// Audit records kept.
pub const AUDIT_KEPT: usize = 10_000;
/// Operation ids remembered, so that a repeated call changes nothing.
pub const OPERATIONS_KEPT: usize = 10_000;
/// Partitions of one topic.
pub const PARTITIONS_MAX: u32 = 1_024;

/// The machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Directory {
    applied: (LogIndex, Term),
    version: DirectoryVersion,
    /// `version` of the last change of nodes or of where replicas live.
    topology: DirectoryVersion,
    cluster: ClusterId,
    /// When it was begun: another one, begun later, is no successor of it (M5). Zero: written before this was kept.
    born: LogTime,
    next_group: GroupId,
    next_replica: ReplicaId,
    nodes: BTreeMap<NodeId, Node>,
    topics: BTreeMap<TopicId, Topic>,
    names: BTreeMap<String, TopicId>,
    partitions: BTreeMap<GroupId, Partition>,
    failovers: VecDeque<Failover>,
    operations: VecDeque<OperationId>,
    known_operations: BTreeSet<OperationId>,
    next_task: TaskId,
    tasks: VecDeque<Task>,
    audit: VecDeque<AuditRecord>,
}

impl Default for Directory {
    fn default() -> Self {
        Self {
            applied: (LogIndex::ZERO, Term::ZERO),
            version: DirectoryVersion::ZERO,
            topology: DirectoryVersion::ZERO,
            cluster: ClusterId::NONE,
            born: LogTime::ZERO,
            next_group: GroupId::DIRECTORY.next(),
            next_replica: ReplicaId(1),
            nodes: BTreeMap::new(),
            topics: BTreeMap::new(),
            names: BTreeMap::new(),
            partitions: BTreeMap::new(),
            failovers: VecDeque::new(),
            operations: VecDeque::new(),
            known_operations: BTreeSet::new(),
            next_task: TaskId(1),
            tasks: VecDeque::new(),
            audit: VecDeque::new(),
        }
    }
}

impl Directory {
    /// An empty directory that the log after `index` applies to.
    #[must_use]
    pub fn starting_at(index: LogIndex, term: Term) -> Self {
        Self { applied: (index, term), ..Self::default() }
    }

    /// Position of the last applied entry.
    #[must_use]
    pub fn applied(&self) -> (LogIndex, Term) {
        self.applied
    }

    /// Grows with every change; readers ignore older pictures.
    #[must_use]
    pub fn version(&self) -> DirectoryVersion {
        self.version
    }

    /// Version of the last change of nodes, or of where replicas live: only then do assignments change.
    #[must_use]
    pub fn topology(&self) -> DirectoryVersion {
        self.topology
    }

    /// The cluster; `NONE` before its first command.
    #[must_use]
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// All data nodes.
    #[must_use]
    pub fn nodes(&self) -> &BTreeMap<NodeId, Node> {
        &self.nodes
    }

    /// One data node.
    #[must_use]
    pub fn node(&self, node: NodeId) -> Option<&Node> {
        self.nodes.get(&node)
    }

    /// The node of this name, or of this number.
    #[must_use]
    pub fn node_named(&self, text: &str) -> Option<&Node> {
        let number = text.parse().ok().map(NodeId);
        self.nodes.values().find(|node| node.registered.name == text || Some(node.registered.node) == number)
    }

    /// All topics.
    pub fn topics(&self) -> impl Iterator<Item = &Topic> {
        self.topics.values()
    }

    /// One topic.
    #[must_use]
    pub fn topic(&self, topic: TopicId) -> Option<&Topic> {
        self.topics.get(&topic)
    }

    /// The topic of a full name (`namespace/name`).
    #[must_use]
    pub fn topic_named(&self, name: &str) -> Option<&Topic> {
        self.names.get(name).and_then(|id| self.topics.get(id))
    }

    /// All partitions.
    #[must_use]
    pub fn partitions(&self) -> &BTreeMap<GroupId, Partition> {
        &self.partitions
    }

    /// One partition.
    #[must_use]
    pub fn partition(&self, group: GroupId) -> Option<&Partition> {
        self.partitions.get(&group)
    }

    /// The node that leads a partition by the log, with its lease.
    #[must_use]
    pub fn leader_of(&self, group: GroupId) -> Option<(NodeId, Lease)> {
        self.partitions.get(&group).and_then(|p| p.leader(&self.nodes))
    }

    /// When it was begun.
    #[must_use]
    pub fn born(&self) -> LogTime {
        self.born
    }

    /// Recorded failovers, oldest first.
    #[must_use]
    pub fn failovers(&self) -> &VecDeque<Failover> {
        &self.failovers
    }

    /// What operators did that is dangerous, oldest first.
    #[must_use]
    pub fn audit(&self) -> &VecDeque<AuditRecord> {
        &self.audit
    }

    /// An operator's call with this id was applied before.
    #[must_use]
    pub fn knows_operation(&self, operation: OperationId) -> bool {
        self.known_operations.contains(&operation)
    }

    /// `topic/partition` for people.
    #[must_use]
    pub fn label(&self, group: GroupId) -> String {
        let named = self.partitions.get(&group).and_then(|p| self.topics.get(&p.topic).map(|t| (t, p)));
        named.map_or_else(|| group.to_string(), |(topic, p)| format!("{}/{}", topic.name, p.number.get()))
    }

    /// What a node is to host, and who its peers are.
    #[must_use]
    pub fn assignments_for(&self, node: NodeId) -> Assignments {
        let peer = |peer: &Node| PeerInfo {
            node: peer.registered.node,
            name: peer.registered.name.clone(),
            peer_address: peer.registered.peer_address.clone(),
            address: peer.registered.address.clone(),
            incarnation: peer.registered.incarnation,
        };
        let hosted = self.partitions.values().filter_map(|p| {
            let replica = p.assigned_to(node, &self.nodes)?;
            // An empty disk hosts nothing of what was lost with the old one, and waits for its successor (M1).
            if p.lost.contains(&replica) {
                return None;
            }
            Some(Assignment {
                group: p.group,
                replica,
                topic: self.topics.get(&p.topic).map(|t| t.name.clone()).unwrap_or_default(),
                topic_id: p.topic,
                partition: p.number,
                members: p.all().collect(),
                config_version: p.config_version,
                change: p.change,
            })
        });
        Assignments {
            version: self.topology,
            peers: self.nodes.values().map(peer).collect(),
            replicas: hosted.collect(),
            retired: self.partitions.values().flat_map(|p| p.retired_on(node)).collect(),
        }
    }
}

#[cfg(test)]
mod tests;
