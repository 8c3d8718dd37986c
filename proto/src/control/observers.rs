//! What observers tell each other: whom they heard, and what they remember (S1, B2).

use std::time::Duration;

use super::Room;
use crate::ids::{DiskId, Incarnation, LogIndex, NodeId, Term};
use crate::time::LogTime;

/// An observer as operators see it; part of its last-heard table, so that every observer can list all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObserverInfo {
    /// Number of the observer.
    pub node: NodeId,
    /// Its name.
    pub name: String,
    /// host:port for clients and data nodes.
    pub address: String,
    /// Raised at every start.
    pub incarnation: Incarnation,
    /// Process id, for operators on the same host.
    pub pid: u32,
    /// Software version.
    pub version: String,
    /// Room on its disk (B5).
    pub room: Room,
    /// Its flushes do not end in time (B4).
    pub stalled: bool,
    /// What its log is worth (B2).
    pub memory: Memory,
}

/// What an observer's log is worth (B2, M1). Only a sound one may help to elect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Memory {
    /// Everything that it ever flushed is there.
    #[default]
    Sound,
    /// Flushed entries may be missing: damaged, cut back, an older one.
    Suspect,
    /// It is gone, or cannot be read.
    Lost,
    /// There never was one on this disk.
    Empty,
}

impl Memory {
    /// All of them, by number.
    pub const ALL: [Self; 4] = [Self::Sound, Self::Suspect, Self::Lost, Self::Empty];

    /// Its number on the wire.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::Sound => 0,
            Self::Suspect => 1,
            Self::Lost => 2,
            Self::Empty => 3,
        }
    }

    /// The memory of this number; one that is not known proves nothing.
    #[must_use]
    pub fn from_number(number: u32) -> Self {
        Self::ALL.into_iter().find(|memory| memory.number() == number).unwrap_or(Self::Lost)
    }

    /// In one word, for files and people.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Sound => "sound",
            Self::Suspect => "suspect",
            Self::Lost => "lost",
            Self::Empty => "empty",
        }
    }
}

/// One life of an observer: a process on a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Life {
    /// Which observer.
    pub node: NodeId,
    /// Raised at every start on a disk.
    pub incarnation: Incarnation,
    /// Drawn when the data directory was made.
    pub disk: DiskId,
}

/// What an observer remembers, and whom it heard (B2, M1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attendance {
    /// Its disk; with node and incarnation it names its life.
    pub disk: DiskId,
    /// Raft term of the directory's group.
    pub term: Term,
    /// Newest flushed entry.
    pub last: (Term, LogIndex),
    /// The newest life of each other observer that it heard.
    pub heard: Vec<Life>,
}

/// When an observer last heard each data node (S1) and what its wall clock says (W5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastHeard {
    /// Who heard.
    pub observer: ObserverInfo,
    /// Its wall clock; the median over the observers is cluster time.
    pub wall: LogTime,
    /// Node, the incarnation heard, and how long ago.
    pub nodes: Vec<(NodeId, Incarnation, Duration)>,
    /// What it remembers itself.
    pub attendance: Attendance,
}
