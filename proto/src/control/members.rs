//! Which replicas a node hosts, and how the members of a partition change (M1).

use crate::ids::{
    ConfigVersion, DirectoryVersion, GroupId, Incarnation, NodeId, PartitionNo, ReplicaId, TaskId, TopicId,
};

/// How far the change of a partition's members is (M1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangePhase {
    /// The new replica learns: snapshot, then the log. It may still be given up.
    #[default]
    Learn,
    /// It is promoted and the old one removed, by joint consensus: this is finished, not given up.
    Promote,
    /// The learner is being removed again.
    Cancel,
}

/// A replica takes the place of another one (M1). One at a time per partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Change {
    /// The task that it is.
    pub task: TaskId,
    /// The replica to be …
    pub add: ReplicaId,
    /// … on this node.
    pub node: NodeId,
    /// The replica whose place it takes.
    pub remove: ReplicaId,
    /// How far it is.
    pub phase: ChangePhase,
}

/// What a leader that knows of a change says about it: membership as it applied it, and the learner's state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangeReport {
    /// The task that the leader knows of …
    pub task: TaskId,
    /// … and its phase.
    pub phase: ChangePhase,
    /// Voters.
    pub voters: Vec<ReplicaId>,
    /// Voters of the outgoing half; empty unless joint.
    pub outgoing: Vec<ReplicaId>,
    /// Learners.
    pub learners: Vec<ReplicaId>,
    /// The learner is as far as what was committed when this was written, but for what is in flight.
    pub caught_up: bool,
}

/// A replica that a node hosts, by the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The partition's incarnation.
    pub group: GroupId,
    /// The replica that this node hosts.
    pub replica: ReplicaId,
    /// `namespace/name`.
    pub topic: String,
    /// The topic's identity.
    pub topic_id: TopicId,
    /// Which partition of it.
    pub partition: PartitionNo,
    /// All replicas with their nodes.
    pub members: Vec<(ReplicaId, NodeId)>,
    /// Version of `members`.
    pub config_version: ConfigVersion,
    /// The change that is under way; its new replica is among `members`.
    pub change: Option<Change>,
}

/// How to reach a node, and which incarnation of it registered last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// The node.
    pub node: NodeId,
    /// Its name.
    pub name: String,
    /// host:port for other nodes.
    pub peer_address: String,
    /// host:port for clients.
    pub address: String,
    /// Registered incarnation.
    pub incarnation: Incarnation,
}

/// What the directory wants a node to host, and who its peers are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assignments {
    /// Older ones are ignored.
    pub version: DirectoryVersion,
    /// All data nodes.
    pub peers: Vec<PeerInfo>,
    /// Replicas of the receiving node.
    pub replicas: Vec<Assignment>,
    /// Replicas that the receiving node hosted and whose successors are promoted: their data may go (M1).
    pub retired: Vec<(GroupId, ReplicaId)>,
}
