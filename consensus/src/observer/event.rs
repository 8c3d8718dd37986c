//! What happens to an observer.

use bytes::Bytes;
use quorate_proto::control::{ExitNotice, LastHeard, SessionUp};
use quorate_proto::ids::{GroupId, LogIndex, NodeId, OperationId, PartitionNo, PersistId, TaskId, Term, Ticket};
use quorate_proto::time::LogTime;

use crate::envelope::Envelope;
use crate::space::Free;

/// A change asked for by an administrator; answered once applied.
#[derive(Clone, Debug)]
pub enum AdminRequest {
    /// Make a topic.
    CreateTopic {
        /// `namespace/name`, already checked.
        name: String,
        /// How many partitions.
        partitions: u32,
        /// Random ids drawn by the shell: of the operation and of the topic to be.
        operation: OperationId,
        /// Topic id if it is new.
        topic_id: quorate_proto::ids::TopicId,
    },
    /// Move a partition's leader (H1). Answered once the target serves, or once it is clear that it will not.
    Handoff {
        /// `namespace/name`.
        topic: String,
        /// Which partition.
        partition: PartitionNo,
        /// Name or number of the node.
        to: String,
        /// It belongs there from now on.
        pin: bool,
    },
    /// Drain a node, or take that back (H2). Answered once logged; the leaders follow.
    Drain {
        /// Name or number of the node.
        node: String,
        /// Drain it.
        draining: bool,
    },
    /// Give a replica of a partition a new place, or the same place anew (M1). Answered once the task is logged.
    Replace {
        /// `namespace/name`.
        topic: String,
        /// Which partition.
        partition: PartitionNo,
        /// Name or number of the node whose replica goes.
        from: String,
        /// Name or number of the node where the new one is to be; may be the same.
        to: String,
    },
    /// Permit the replica on a node although too few logs may vote (B2), by a plan that was shown before.
    BreakGlass {
        /// `namespace/name`.
        topic: String,
        /// Which partition.
        partition: PartitionNo,
        /// Name or number of the node.
        node: String,
        /// The plan's token.
        plan: String,
        /// Who asks, for the audit record.
        principal: String,
    },
    /// Make the directory anew from what the data nodes know (M5).
    Rebuild {
        /// The plan's token.
        plan: String,
        /// Who asks, for the audit record.
        principal: String,
    },
    /// Give a change of members up, as long as it only learns.
    CancelTask(TaskId),
    /// Leave the place of a partition's leader to the cluster again.
    Unpin {
        /// `namespace/name`.
        topic: String,
        /// Which partition.
        partition: PartitionNo,
    },
}

/// An event of an observer.
#[derive(Debug)]
pub enum ObserverEvent {
    /// At least every `Timing::observer_tick`. `wall`: this observer's wall clock (only for the median, W5).
    Tick {
        /// Wall clock.
        wall: LogTime,
    },
    /// A Raft message from another observer.
    Peer(Box<Envelope>),
    /// Another observer's table.
    LastHeard(LastHeard),
    /// The write `id` is flushed.
    Persisted {
        /// Always [`GroupId::DIRECTORY`].
        group: GroupId,
        /// Which write.
        id: PersistId,
    },
    /// A data node's session opened. `session` is unique within the process.
    SessionOpened {
        /// Names the session.
        session: Ticket,
    },
    /// A message on it; the first is `Hello`.
    Session {
        /// Which session.
        session: Ticket,
        /// What.
        message: Box<SessionUp>,
    },
    /// It broke: suspicion may start early, proof it is not (S2).
    SessionClosed {
        /// Which.
        session: Ticket,
    },
    /// A supervisor's word. Answered once logged (or refused).
    ExitNotice {
        /// Names the answer.
        ticket: Ticket,
        /// What.
        notice: ExitNotice,
    },
    /// An administrator's request.
    Admin {
        /// Names the answer.
        ticket: Ticket,
        /// What.
        request: AdminRequest,
    },
    /// The snapshot file asked for is durable.
    SnapshotSaved {
        /// Position.
        index: LogIndex,
        /// Term.
        term: Term,
        /// Same bytes as in the effect.
        data: Bytes,
    },
    /// The routes of this version went out to the connected clients (for the failover record).
    RoutesPushed {
        /// Directory version.
        version: quorate_proto::ids::DirectoryVersion,
    },
    /// What is free on the observer's disk, once a second (B5). The first one before anything else.
    Space(Vec<Free>),
    /// A connection to another observer broke.
    PeerLost(NodeId),
}
