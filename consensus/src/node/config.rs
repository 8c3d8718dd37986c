//! What a data node's core is told at its start, and its bounds.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use quorate_proto::control::Hello;
use quorate_proto::ids::{GroupId, NodeId};

use crate::replica::ObserverLoss;
use crate::space::Marks;
use crate::timing::Timing;

/// What a data node's core is told at its start.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Who the node is; sent first on every session. Its incarnation is already durable (B1).
    pub hello: Hello,
    /// The observers that the shell holds sessions with.
    pub observers: Vec<NodeId>,
    /// Durations of the protocol.
    pub timing: Timing,
    /// Bounds of queues and logs.
    pub limits: NodeLimits,
    /// Jitter of the election time-outs is drawn from this (the core has no randomness of its own).
    pub seed: u64,
    /// The WAL may have lost flushed entries (B2): replicas opened from it only veto until they caught up.
    pub suspect_log: bool,
    /// Groups whose files are here but whose log is gone: made anew under their old ids they only veto, until they have
    /// caught up with a leader elected since (B2).
    pub lost_groups: BTreeSet<GroupId>,
    /// The newest directory that the node keeps, encoded; empty = none (M5).
    pub directory: Bytes,
    /// The log lost flushed writes, perhaps whole groups: what is not found may have been there (B2).
    pub log_lost: bool,
    /// What leaders do that cannot renew their lease (L6).
    pub observer_loss: ObserverLoss,
}

/// Every bound of the node's core. All in bytes unless said otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLimits {
    /// Publishes admitted and undecided, per partition; beyond it `BUSY`.
    pub partition_pending_bytes: u64,
    /// The same for the whole node: one budget, lowest priority refused first.
    pub node_pending_bytes: u64,
    /// Publishes admitted and undecided, per partition, as a count.
    pub partition_pending_requests: usize,
    /// An entry gathers batches up to this; a larger batch is an entry of its own.
    pub entry_bytes: usize,
    /// Entries proposed and not yet flushed locally; what comes meanwhile gathers.
    pub unflushed_entries: usize,
    /// Entries proposed and not yet committed.
    pub uncommitted_bytes: u64,
    /// Applied log that no checkpoint covers, per partition; beyond it one is asked for.
    pub checkpoint_bytes: u64,
    /// The same summed over the node; beyond it the largest tail is asked for.
    pub node_checkpoint_bytes: u64,
    /// Log that a checkpoint covers and that is kept all the same, per partition: a follower that is a little behind
    /// then needs no snapshot.
    pub retain_bytes: u64,
    /// A partition that applied anything gets a checkpoint at least this often.
    pub checkpoint_every: Duration,
    /// Bytes waiting in the storage queue of one partition beyond which publishes are refused `BUSY`.
    pub storage_backlog_bytes: u64,
    /// Linearizable reads waiting, per partition.
    pub partition_reads: usize,
    /// Free space at which the node changes what it does (B5).
    pub marks: Marks,
}

impl Default for NodeLimits {
    fn default() -> Self {
        const MIB: u64 = 1024 * 1024;
        Self {
            partition_pending_bytes: 32 * MIB,
            node_pending_bytes: 64 * MIB,
            partition_pending_requests: 65_536,
            entry_bytes: 512 * 1024,
            unflushed_entries: 2,
            uncommitted_bytes: 16 * MIB,
            checkpoint_bytes: 8 * MIB,
            node_checkpoint_bytes: 128 * MIB,
            retain_bytes: 4 * MIB,
            checkpoint_every: Duration::from_secs(30),
            storage_backlog_bytes: 32 * MIB,
            partition_reads: 4_096,
            marks: Marks::default(),
        }
    }
}

/// The machine of a replica as storage recovered it: a `Checkpoint` effect's `state` and the key runs
/// (`AppliedEntry::keys`) up to the same index, oldest first.
#[derive(Clone, Debug, Default)]
pub struct MachineImage {
    /// `PartitionState`, encoded, as in the last `Checkpointed`.
    pub state: Bytes,
    /// Key runs of the entries up to it.
    pub key_runs: Vec<Bytes>,
}
