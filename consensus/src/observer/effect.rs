//! What an observer's core asks its shell to do, in order.

use bytes::Bytes;
use quorate_proto::control::{LastHeard, Memory, Room, SessionDown};
use quorate_proto::ids::{DirectoryVersion, Incarnation, LogIndex, NodeId, Term, Ticket};
use quorate_proto::refusal::Refusal;

use crate::effect::{Note, PersistWrite};
use crate::envelope::{Envelope, Lane};
use crate::space::Ballast;

/// An order to the observer's shell.
#[derive(Debug)]
pub enum ObserverEffect {
    /// Write and flush; then `Persisted`.
    Persist(PersistWrite),
    /// To another observer.
    Send {
        /// Which.
        node: NodeId,
        /// Which connection.
        lane: Lane,
        /// What.
        envelope: Box<Envelope>,
    },
    /// Last-heard table for the observer leader (every observer gets it).
    Gossip(LastHeard),
    /// To a data node's session.
    Session {
        /// Which session.
        session: Ticket,
        /// What.
        message: Box<SessionDown>,
    },
    /// Close the session.
    CloseSession {
        /// Which.
        session: Ticket,
    },
    /// The directory changed: push route deltas, refresh the view. Read it through `ObserverCore::directory()`.
    DirectoryChanged {
        /// New version.
        version: DirectoryVersion,
    },
    /// Answer to an exit notice: logged, or why not.
    ExitAnswer {
        /// Which.
        ticket: Ticket,
        /// Ok = logged.
        result: Result<(), Refusal>,
    },
    /// Answer to an administrator.
    AdminAnswer {
        /// Which.
        ticket: Ticket,
        /// Version in which the change is applied.
        result: Result<DirectoryVersion, Refusal>,
    },
    /// Write the snapshot file (beside, flush, rename, keep two); then `SnapshotSaved`: the log is compacted after it.
    SaveSnapshot {
        /// Position.
        index: LogIndex,
        /// Term.
        term: Term,
        /// `DirectoryState`, encoded.
        data: Bytes,
    },
    /// The directory was replaced by a received snapshot: rebuild every view.
    Restored {
        /// Position.
        index: LogIndex,
    },
    /// This observer can't go on (its log or a command of it means nothing to this software): stop the process.
    Fatal(String),
    /// Its memory (B2): tell the operator. A sound one needs no marker any more at the next start.
    Memory {
        /// What its log is worth.
        memory: Memory,
        /// What that means now.
        text: String,
    },
    /// End this life and start anew, with an incarnation greater than this one.
    StartAgain {
        /// The incarnation to exceed.
        above: Incarnation,
        /// Its log is not to be trusted, for this reason: the next start must know.
        forgot: Option<String>,
    },
    /// Who leads the observers changed.
    LeaderChanged {
        /// Who.
        leader: Option<NodeId>,
    },
    /// The room on the disk changed (B5).
    Room(Room),
    /// Remove the ballast, or make it again (B5).
    Ballast(Ballast),
    /// For operators, metrics and coverage.
    Note(Note),
}
