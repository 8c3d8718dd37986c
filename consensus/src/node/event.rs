//! What happens to a data node.

use std::time::Duration;

use bytes::Bytes;
use quorate_proto::control::SessionDown;
use quorate_proto::ids::{GroupId, LogIndex, NodeId, OperationId, PersistId, ReplicaId, Term, Ticket};
use quorate_proto::time::BootTime;
use raft::eraftpb::{ConfState, Entry};

use super::config::MachineImage;
use crate::envelope::Envelope;
use crate::space::Free;

/// One publish: a verified batch that waits for its fate. The answer names `ticket`, exactly once.
#[derive(Clone, Debug)]
pub struct Publish {
    /// Unique within the process.
    pub ticket: Ticket,
    /// The partition.
    pub group: GroupId,
    /// Record batch as it came; the shell checked its header and CRC with `proto::batch`.
    pub batch: Bytes,
    /// Who sent it, e.g. `anonymous@127.0.0.1`.
    pub principal: Bytes,
    /// Application instance, as it names itself.
    pub client_id: Bytes,
    /// Connection it came on.
    pub connection: u64,
    /// Identity of this request over retries of the transport.
    pub operation: OperationId,
    /// Not admitted any more after this.
    pub deadline: BootTime,
}

/// An event with everything a [`super::NodeEffect`] of earlier asked for, or from outside.
#[derive(Debug)]
pub enum NodeEvent {
    /// At least every `Timing::tick`/2; the core keeps its own deadlines.
    Tick,
    /// A Raft message from a peer.
    Peer {
        /// The node that it came from: where an answer goes that no replica can give (M3).
        from: NodeId,
        /// The message.
        envelope: Box<Envelope>,
    },
    /// The connection to a peer broke: suspicion may start, proof it is not (S2).
    PeerLost(NodeId),
    /// The write `id` of `group` is flushed. `at`: when the flush ended.
    Persisted {
        /// The group.
        group: GroupId,
        /// Which write.
        id: PersistId,
        /// When its flush ended.
        at: BootTime,
    },
    /// The heartbeat token came back through the WAL queue (B4). `age`: of the oldest flush in flight then.
    TokenBack {
        /// Which token.
        seq: u64,
        /// Age of the oldest flush in flight.
        age: Duration,
    },
    /// The canary flush ended (L4).
    CanaryFlushed {
        /// When.
        at: BootTime,
    },
    /// An append or flush failed (B3): serve no more, release all leases. The shell exits with 74 afterwards.
    WalPoisoned,
    /// The WAL was found damaged by reading it back (B6): lead nothing any more. The next start takes it for suspect.
    LogDamaged,
    /// A publish.
    Publish(Publish),
    /// A linearizable end offset is wanted (R1).
    ReadLatest {
        /// Names the answer.
        ticket: Ticket,
        /// The partition.
        group: GroupId,
    },
    /// The session with an observer is open (send `Hello` first: the effect for it is emitted).
    SessionUp(NodeId),
    /// It broke.
    SessionLost(NodeId),
    /// A message from an observer.
    Session {
        /// Who.
        observer: NodeId,
        /// What.
        message: Box<SessionDown>,
    },
    /// Entries asked for by `Fetch`; `None` if they are compacted away (a snapshot follows).
    EntriesFetched {
        /// The group.
        group: GroupId,
        /// First index asked for.
        from: LogIndex,
        /// The entries.
        entries: Option<Vec<Entry>>,
    },
    /// The storage has everything of `group` up to `index` on disk (segments flushed) and `state` describes it:
    /// the log may be compacted to there.
    Checkpointed {
        /// The group.
        group: GroupId,
        /// Applied index of the checkpoint.
        index: LogIndex,
        /// Key–value pairs to put in the same write as the compaction.
        puts: Vec<(&'static str, Bytes)>,
    },
    /// The snapshot asked for by `BuildSnapshot` stands ready in storage; `data` is the machine's state in it.
    SnapshotBuilt {
        /// The group.
        group: GroupId,
        /// For whom.
        to: ReplicaId,
        /// Its position.
        index: LogIndex,
        /// Its term.
        term: Term,
        /// Membership at `index`.
        conf_state: ConfState,
        /// Machine state (what `Restore` gets on the other side).
        data: Bytes,
    },
    /// Sending it ended.
    SnapshotSent {
        /// The group.
        group: GroupId,
        /// To whom.
        to: ReplicaId,
        /// It arrived whole and was taken.
        ok: bool,
    },
    /// The storage installed what `InstallSnapshot` asked for: its files stand in place and are flushed.
    SnapshotInstalled {
        /// The group.
        group: GroupId,
        /// Its position.
        index: LogIndex,
        /// The machine as it stands in the snapshot, key runs included.
        image: MachineImage,
        /// Key–value pairs (the storage's checkpoint) for the same write that makes the log start at the snapshot.
        puts: Vec<(&'static str, Bytes)>,
    },
    /// The storage's queue for `group` holds this many bytes not yet written (back-pressure).
    StorageBacklog {
        /// The group.
        group: GroupId,
        /// Bytes waiting.
        bytes: u64,
    },
    /// The stored records of `group` are damaged (B6): its replica is set aside.
    Damaged {
        /// The group.
        group: GroupId,
        /// What was found.
        reason: String,
    },
    /// What is free on the node's disks, once a second (B5). The first one before anything else.
    Space(Vec<Free>),
    /// Ask the observers to hand this node's leaders over (H2); it goes on serving meanwhile.
    Drain,
    /// Stop taking publishes; leaders that are left resign.
    Shutdown,
}
