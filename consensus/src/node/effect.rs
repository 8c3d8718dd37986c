//! What a data node's core asks its shell to do, in order.

use bytes::Bytes;
use quorate_proto::control::{Assignment, PeerInfo, Role, Room, SessionUp};
use quorate_proto::ids::{GroupId, Incarnation, LogIndex, NodeId, Offset, ReplicaId, Term, Ticket};
use quorate_proto::refusal::Refusal;
use quorate_proto::time::{BootTime, LogTime};
use quorate_proto::v1::Receipt;

use crate::effect::{Note, PersistWrite};
use crate::envelope::{Envelope, Lane};
use crate::space::Ballast;

/// To whom a session message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observers {
    /// Every observer with an open session.
    All,
    /// One of them.
    One(NodeId),
}

/// One entry as applied: what storage appends and the tail cache keeps.
#[derive(Clone, Debug)]
pub struct AppliedEntry {
    /// Raft index; entry boundaries are kept in segments.
    pub index: LogIndex,
    /// Raft term; also the batches' leader epoch.
    pub term: Term,
    /// Log time of the entry.
    pub log_time: LogTime,
    /// Batches that got at least one offset, in order; each is the stored form of `proto::batch` in two parts
    /// (what apply wrote, then the batch as it came, shared, not copied).
    pub batches: Vec<StoredBatch>,
    /// Keys that the entry added to the key window, for the key runs.
    pub keys: Bytes,
}

/// A batch with what apply wrote in front of it.
#[derive(Clone, Debug)]
pub struct StoredBatch {
    /// Offset of its first visible record.
    pub base_offset: Offset,
    /// Offset after its last visible record.
    pub end_offset: Offset,
    /// What apply wrote: base offset, leader epoch, log time, suppressed bitmap, checksum (`docs/format.md`).
    pub prefix: Bytes,
    /// The batch as it came.
    pub body: Bytes,
}

/// What readers on other threads need of a partition, published as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Offset after the last applied record.
    pub high_watermark: Offset,
    /// First offset that may still be read.
    pub low_watermark: Offset,
    /// Term.
    pub term: Term,
    /// What this replica is.
    pub role: Role,
    /// Node that leads, if known.
    pub leader: Option<NodeId>,
}

/// An order to the shell. Effects are executed in the order given.
#[derive(Debug)]
pub enum NodeEffect {
    /// Write and flush; then `NodeEvent::Persisted`.
    Persist(PersistWrite),
    /// Pass through the WAL queue without writing; then `NodeEvent::TokenBack` (B4).
    WalToken {
        /// Which.
        seq: u64,
    },
    /// Write and flush something small, because nothing else was flushed for a while; then `CanaryFlushed` (L4).
    Canary,
    /// To a peer's replica. Lost messages are allowed; order within a lane is kept.
    Send {
        /// Which node.
        node: NodeId,
        /// Which connection.
        lane: Lane,
        /// What.
        envelope: Box<Envelope>,
    },
    /// To observers.
    Session {
        /// To whom.
        to: Observers,
        /// What.
        message: Box<SessionUp>,
    },
    /// Addresses of the peers, when they change.
    Peers(Vec<PeerInfo>),
    /// The answer to a `Publish`. `Ok`: committed, and in this replica's machine.
    Answer {
        /// Which request.
        ticket: Ticket,
        /// Its fate.
        result: Result<Receipt, Refusal>,
    },
    /// The answer to a `ReadLatest`: the high watermark, linearizable.
    ReadAnswer {
        /// Which request.
        ticket: Ticket,
        /// Offset and leader epoch.
        result: Result<(Offset, Term), Refusal>,
    },
    /// A replica is hosted now: make its files and views. Emitted before any other effect of the group. If another
    /// replica of the group was hosted before, its data stay until it is retired, and are not mixed with these.
    Open(Assignment),
    /// Applied entries, in order: append to the segment, put into the tail cache.
    Append {
        /// The group.
        group: GroupId,
        /// The entries.
        entries: Vec<AppliedEntry>,
    },
    /// New view for readers. Emitted after the `Append` that it covers.
    View {
        /// The group.
        group: GroupId,
        /// The view.
        view: View,
    },
    /// Store in the readers' atomic word (F1). Emitted before any effect that gives leadership up.
    ServeUntil {
        /// The group.
        group: GroupId,
        /// Serve before this; `ZERO` = do not.
        until: BootTime,
    },
    /// Read entries from the WAL; then `EntriesFetched`.
    Fetch {
        /// The group.
        group: GroupId,
        /// First index.
        from: LogIndex,
        /// One past the last.
        to: LogIndex,
        /// Bytes at most.
        max_bytes: u64,
    },
    /// The applied tail grew past its bound: write a checkpoint. `state` is the machine at `index`
    /// (`PartitionState` without keys: they are in the key runs). Then `Checkpointed`.
    Checkpoint {
        /// The group.
        group: GroupId,
        /// Applied index.
        index: LogIndex,
        /// Its term.
        term: Term,
        /// The machine's state.
        state: Bytes,
    },
    /// Make a snapshot of the storage at its newest checkpoint for a follower; then `SnapshotBuilt`.
    BuildSnapshot {
        /// The group.
        group: GroupId,
        /// For whom.
        to: ReplicaId,
    },
    /// Put a received snapshot in place of the group's files; then `SnapshotInstalled`.
    InstallSnapshot {
        /// The group.
        group: GroupId,
        /// Its position.
        index: LogIndex,
        /// Its term.
        term: Term,
        /// The machine's state.
        data: Bytes,
    },
    /// The directory has no more use for this replica's data (M1): delete them, also if it was not hosted any more.
    /// May come again and again.
    Retire {
        /// The group.
        group: GroupId,
        /// The replica; another one of the group may be hosted now.
        replica: ReplicaId,
    },
    /// This replica is wanted again, because the one that was to take its place on this node was given up, and its data lie
    /// on this disk: hand the leaders over, end the process, start again; the start opens it. May come again and again.
    Reopen {
        /// The group.
        group: GroupId,
        /// The replica.
        replica: ReplicaId,
    },
    /// The node's incarnation must be greater than this (M1, a replaced disk): store it, end the process, start again.
    RaiseIncarnation(Incarnation),
    /// Keep the directory, for observers that lose theirs (M5); it replaces what was kept before.
    KeepDirectory(Bytes),
    /// The replica is set aside (M3): keep its files, report it.
    Quarantined {
        /// The group.
        group: GroupId,
        /// Why.
        reason: String,
    },
    /// The room on the disks changed (B5).
    Room(Room),
    /// Remove the ballast, or make it again (B5).
    Ballast(Ballast),
    /// The observers refuse this identity for good: stop the process, the supervisor must not restart it.
    Fatal(String),
    /// For operators, metrics and coverage.
    Note {
        /// The group.
        group: GroupId,
        /// What.
        note: Note,
    },
}
