//! Raft messages with what the protocol adds to them.

use std::time::Duration;

use quorate_proto::control::{Ended, Permit};
use quorate_proto::ids::{GroupId, Incarnation, LogIndex, PermitEpoch, ReplicaId, Term};
use quorate_proto::time::BootTime;
use raft::eraftpb::Message;

/// Which connection a message takes. Order is kept within a lane only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// Votes, heartbeats, responses, read-index: small, never behind a backlog.
    Control,
    /// Appends.
    Bulk,
    /// Snapshots; opened when needed.
    Snapshot,
}

/// A Raft message between two replicas of one group. `message.from` and `.to` equal `from` and `to`.
#[derive(Clone, Debug, PartialEq)]
pub struct Envelope {
    /// Partition incarnation; another one is answered `STALE_INCARNATION` and never stepped (M3).
    pub group: GroupId,
    /// Sending replica.
    pub from: ReplicaId,
    /// Receiving replica.
    pub to: ReplicaId,
    /// Incarnation of the sender's node.
    pub from_incarnation: Incarnation,
    /// Sender's clock, read before the message was handed over (C1, V2). On appends, heartbeats, vote requests.
    pub stamp: Option<BootTime>,
    /// On responses: newest stamp of the receiver that the sender processed in this term (C1).
    pub echo: Option<BootTime>,
    /// On messages of a leader: the epoch it won with (P1).
    pub won_epoch: PermitEpoch,
    /// On vote and pre-vote requests: the permit (V1a).
    pub permit: Option<Permit>,
    /// Releases relayed with a vote request or time-out-now (P1, H1), or the sender's own (F3).
    pub ended: Vec<Ended>,
    /// On a crafted pre-vote reject: how long until this voter's gate may pass (P2).
    pub veto_wait: Option<Duration>,
    /// On a reject: the voter's last flushed position (P2).
    pub last: Option<(Term, LogIndex)>,
    /// The message itself.
    pub message: Message,
}
