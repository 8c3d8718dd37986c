//! What an observer's core is told at its start, and its bounds.

use std::fmt;

use quorate_proto::control::{Memory, ObserverInfo};
use quorate_proto::ids::{ClusterId, DiskId, Incarnation, NodeId, ReplicaId};

use crate::space::Marks;
use crate::timing::Timing;

/// What an observer's core is told at its start.
#[derive(Clone, Debug)]
pub struct ObserverConfig {
    /// The cluster; sessions of another one are refused.
    pub cluster: ClusterId,
    /// Who this observer is, as the others and operators see it. Its incarnation is already durable (B1).
    pub me: ObserverInfo,
    /// All observers, this one included: the members of the directory's group.
    pub members: Vec<NodeId>,
    /// Durations of the protocol.
    pub timing: Timing,
    /// Jitter of the election time-out is drawn from this.
    pub seed: u64,
    /// A snapshot file is asked for after this many applied entries.
    pub snapshot_entries: u64,
    /// Free space at which the observer changes what it does (B5).
    pub marks: Marks,
    /// Its disk: another one is another memory (M1).
    pub disk: DiskId,
    /// What its log is worth (B2); not [`Memory::Sound`]: it votes only after all others answered.
    pub memory: Memory,
}

/// Default of [`ObserverConfig::snapshot_entries`]: a restart replays in milliseconds, the log stays below a few MiB.
pub const SNAPSHOT_ENTRIES: u64 = 2_000;

impl ObserverConfig {
    /// With the default bounds.
    #[must_use]
    pub fn new(cluster: ClusterId, me: ObserverInfo, members: Vec<NodeId>, seed: u64) -> Self {
        let (timing, marks) = (Timing::default(), Marks::default());
        let (disk, memory) = (DiskId::NONE, Memory::Sound);
        Self { cluster, me, members, timing, seed, snapshot_entries: SNAPSHOT_ENTRIES, marks, disk, memory }
    }

    /// This observer.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.me.node
    }

    /// This observer's incarnation.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.me.incarnation
    }
}

/// Replica of the directory's group that an observer hosts: numbered like its node, as the group's membership is
/// its configuration.
#[must_use]
pub fn replica_of(observer: NodeId) -> ReplicaId {
    ReplicaId(observer.get())
}

/// The observer that hosts a replica of the directory's group.
#[must_use]
pub fn observer_of(replica: ReplicaId) -> NodeId {
    NodeId(replica.get())
}

/// Why an observer can't start from what its disk holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartError {
    /// The snapshot file does not decode.
    BadSnapshot(String),
    /// The log begins after the newest snapshot: entries between them are missing.
    Gap(String),
    /// raft-rs would not run on this log.
    Quarantined(String),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadSnapshot(why) => write!(f, "directory snapshot can't be read: {why}"),
            Self::Gap(why) => write!(f, "directory log and snapshot do not meet: {why}"),
            Self::Quarantined(why) => write!(f, "directory log can't be used: {why}"),
        }
    }
}

impl std::error::Error for StartError {}
