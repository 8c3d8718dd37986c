//! What a [`crate::replica`] asks its owner to do, in order.

use bytes::Bytes;
use quorate_proto::control::Role;
use quorate_proto::ids::{GroupId, LogIndex, NodeId, PermitEpoch, PersistId, ReplicaId, Term, Ticket};
use quorate_proto::time::BootTime;
use raft::eraftpb::{ConfState, Entry, HardState};

use crate::envelope::{Envelope, Lane};

/// One durable write of one group. The WAL executes the writes of a group in order, merges writes of many
/// groups into one flush, and reports `Persisted{group, id}` only after that flush returned without error (W1).
///
/// Order of the parts within one atomic write: `clear`, `entries`, `compact_through`, `hard_state`, `puts`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PersistWrite {
    /// The group.
    pub group: GroupId,
    /// Given back on completion; grows by one per write of a group.
    pub id: PersistId,
    /// Forget the group's whole log first (before a snapshot takes its place). Key–value pairs stay.
    pub clear: bool,
    /// Appended; an overlap replaces the old suffix.
    pub entries: Vec<Entry>,
    /// Entries up to and including this one may be dropped.
    pub compact_through: Option<LogIndex>,
    /// Raft's term, vote, commit. Always with `commit >=` the first index − 1.
    pub hard_state: Option<HardState>,
    /// Key–value pairs of the group (configuration, checkpoint, snapshot position …).
    pub puts: Vec<(&'static str, Bytes)>,
}

impl PersistWrite {
    /// Nothing to write: such a write needs no flush.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.clear
            && self.entries.is_empty()
            && self.compact_through.is_none()
            && self.hard_state.is_none()
            && self.puts.is_empty()
    }
}

/// What a group's log held when the process started, as recovered from the WAL.
#[derive(Clone, Debug, Default)]
pub struct Restored {
    /// Term, vote, commit.
    pub hard_state: HardState,
    /// Membership as of `applied`.
    pub conf_state: ConfState,
    /// Position that the log starts after: everything up to it is in the machine's checkpoint.
    pub compacted: (LogIndex, Term),
    /// Entries after `compacted.0`, contiguous, complete.
    pub entries: Vec<Entry>,
    /// Applied index of the machine's checkpoint; the replica re-emits what is committed after it.
    pub applied: LogIndex,
}

/// Names a linearizable read within its replica.
pub type ReadId = Ticket;

/// What a replica asks for. Effects are executed in order. Those that must wait for a flush are not emitted
/// before [`crate::replica`] was told of it: the core itself holds them back.
#[derive(Clone, Debug)]
pub enum ReplicaEffect {
    /// Write and flush; then call `persisted(id)`.
    Persist(PersistWrite),
    /// Hand to the transport.
    Send {
        /// Which connection.
        lane: Lane,
        /// What. The receiver's node follows from `envelope.to`.
        envelope: Box<Envelope>,
    },
    /// Committed entries in order without gaps, empty and configuration entries included. Apply them in this
    /// turn, then call `applied(last index)`.
    Apply(Vec<Entry>),
    /// Replace the machine by this snapshot; then call `restored(index)`.
    Restore {
        /// Position of the snapshot.
        index: LogIndex,
        /// Its term.
        term: Term,
        /// The machine's state.
        data: Bytes,
    },
    /// Entries older than the cache are wanted for a follower: read them and call `entries_fetched`.
    Fetch {
        /// First index wanted.
        from: LogIndex,
        /// One past the last.
        to: LogIndex,
        /// Bytes at most (at least one entry).
        max_bytes: u64,
    },
    /// A follower needs a snapshot: build one at the machine's applied index and call `snapshot_built`.
    BuildSnapshot {
        /// For whom.
        to: ReplicaId,
    },
    /// A linearizable read may be answered once applied ≥ `index` (R1).
    ReadReady {
        /// Which read.
        read: ReadId,
        /// Applied index to wait for.
        index: LogIndex,
    },
    /// The read can't be answered by this replica any more.
    ReadLost {
        /// Which read.
        read: ReadId,
    },
    /// Role, leader or term changed. Pending requests of an older term are undecided (W4).
    RoleChanged {
        /// New role.
        role: Role,
        /// Term.
        term: Term,
        /// Leader, if known.
        leader: Option<ReplicaId>,
    },
    /// New value for the readers' atomic word (F1). Emitted *before* any effect that gives leadership up.
    ServeUntil(BootTime),
    /// This replica released `term` (F3, H1): tell the observers at once.
    Released {
        /// The term that is over.
        term: Term,
        /// For lack of contact.
        for_fence: bool,
    },
    /// Ask the observers for a permit (V4).
    AskPermit,
    /// Something in the report changed that observers must hear at once (P2).
    ReportNow,
    /// This replica's data cannot be trusted; it takes no further part (M3). Log, report, repair.
    Quarantine(String),
    /// For operators, metrics and the simulator's coverage counters.
    Note(Note),
}

/// Things worth counting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// The vote gate refused.
    Vetoed {
        /// Rule: "permit", "spent", "silence", "boot", "suspect", "serving".
        rule: &'static str,
        /// Candidate refused.
        candidate: ReplicaId,
    },
    /// A planned handoff did not come to its end (H2).
    HandoffFailed(&'static str),
    /// A permit was received and recorded.
    PermitSeen(PermitEpoch),
    /// This replica won an election.
    Elected(Term),
    /// Leader resigned (F3).
    Resigned(&'static str),
    /// Fence closed or opened for contact.
    Fenced(bool),
    /// A message that may not be stepped was dropped (M3).
    Dropped(&'static str),
    /// The leader proposed a step of a change of members (M1).
    MembershipStep,
    /// A peer has no receiver for what this node sent it: another group, replica or incarnation lives there (M3).
    ToldStale {
        /// The peer's node.
        by: NodeId,
    },
}
