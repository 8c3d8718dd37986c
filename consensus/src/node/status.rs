//! Read-only views of the node's core, for metrics and for operators.

use std::time::Duration;

use quorate_proto::control::{Assignment, ReplicaReport, Room};
use quorate_proto::ids::{GroupId, LogIndex};
use quorate_proto::time::BootTime;

/// One replica as metrics see it.
#[derive(Clone, Debug)]
pub struct PartitionStatus {
    /// What the node hosts.
    pub assignment: Assignment,
    /// As reported to the observers.
    pub report: ReplicaReport,
    /// F1 holds before this; `ZERO` = the replica does not serve.
    pub serve_until: BootTime,
    /// Age of the contact with a majority, on a leader (C2).
    pub contact_age: Option<Duration>,
    /// Bytes of publishes admitted and undecided.
    pub pending_bytes: u64,
    /// Requests admitted and undecided.
    pub pending_requests: usize,
    /// Bytes applied since the last checkpoint.
    pub unchecked_bytes: u64,
    /// Index of the last checkpoint.
    pub checkpoint: LogIndex,
    /// Cluster time leapt: nothing is deleted and no key expires (W5).
    pub ageing_stopped: bool,
}

/// Counters of the whole node since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeCounters {
    /// Publishes admitted.
    pub admitted: u64,
    /// Publishes answered with a receipt.
    pub committed: u64,
    /// Publishes refused.
    pub refused: u64,
    /// Entries proposed.
    pub proposed: u64,
    /// Entries applied.
    pub applied: u64,
    /// Answers that waited for nothing: the batch was known (I3).
    pub duplicates: u64,
    /// Elections won.
    pub elected: u64,
    /// Times that a leader released its term.
    pub released: u64,
    /// Peer messages for groups, replicas or incarnations that are not here (M3).
    pub strangers: u64,
    /// Messages of this node that a peer answered with `STALE_INCARNATION` (M3).
    pub stale_answers: u64,
}

/// State of the whole node.
#[derive(Clone, Debug, Default)]
pub struct NodeStatus {
    /// Replicas hosted.
    pub replicas: usize,
    /// Those that lead.
    pub leaders: usize,
    /// It is draining, and the observer leader knows no other node that could take its leaders.
    pub nobody_else: bool,
    /// Age of the oldest flush in flight, as the last token saw it (B4).
    pub wal_age: Duration,
    /// The WAL failed (B3) or stalls (B4).
    pub disk_ok: bool,
    /// Room on the disks (B5).
    pub room: Room,
    /// Publishes admitted and undecided, bytes.
    pub pending_bytes: u64,
    /// Groups set aside (M3).
    pub quarantined: Vec<GroupId>,
    /// Since the start.
    pub counters: NodeCounters,
}
