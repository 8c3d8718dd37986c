//! What a replica is made with, and what can be wrong with it.

use std::fmt;

use quorate_proto::ids::{GroupId, Incarnation, PersistId, ReplicaId};
use quorate_proto::time::BootTime;

use crate::timing::Timing;

/// Who decides about elections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A partition: joint consent (P1, V1–V4), leases and fence (F1–F3, L2).
    Governed,
    /// The observers' own group: plain Raft with pre-vote and check-quorum.
    SelfElecting,
}

/// What a leader does that cannot renew its lease (L6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ObserverLoss {
    /// It stops serving when its lease ends.
    #[default]
    Stop,
    /// It goes on while it has its data majority.
    ReadIndex,
}

/// Entries kept in memory besides those not yet applied, bytes.
pub const CACHE_BYTES: usize = 16 * 1024 * 1024;

/// What a [`super::Replica`] is made with.
#[derive(Clone, Debug)]
pub struct ReplicaConfig {
    /// The group; messages of another one are never stepped (M3).
    pub group: GroupId,
    /// This replica.
    pub me: ReplicaId,
    /// Incarnation of this replica's node (B1).
    pub incarnation: Incarnation,
    /// Durations.
    pub timing: Timing,
    /// Who decides about elections.
    pub mode: Mode,
    /// First election time-out in ticks, drawn by the owner between the bounds of `timing`; later ones are drawn
    /// from it, deterministically.
    pub election_ticks: usize,
    /// When this process started (V1c).
    pub started: BootTime,
    /// The log may have lost flushed entries (B2): it only vetoes.
    pub suspect_log: bool,
    /// L6.
    pub observer_loss: ObserverLoss,
    /// Id of its first write: above those of every replica of the group that this process hosted before, so that a late
    /// word about one of their writes says nothing about this one's.
    pub first_write: PersistId,
    /// Entries kept in memory besides those not yet applied, bytes; [`CACHE_BYTES`] by default.
    pub cache_bytes: usize,
}

/// This replica's data cannot be trusted: it takes no part until repaired (M3, B2). Never a crash loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quarantine {
    /// What was found.
    pub reason: String,
}

impl Quarantine {
    pub(super) fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into() }
    }
}

impl fmt::Display for Quarantine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "replica quarantined: {}", self.reason)
    }
}

impl std::error::Error for Quarantine {}

/// Why a proposal was not appended. Nothing of it was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProposeError {
    /// This replica does not lead.
    NotLeader {
        /// Who leads, if known.
        leader: Option<ReplicaId>,
    },
    /// Too many bytes are appended and not yet committed: wait for `Apply`.
    Full,
}

impl fmt::Display for ProposeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLeader { leader: Some(leader) } => write!(f, "not the leader; {leader} is"),
            Self::NotLeader { leader: None } => f.write_str("not the leader; none is known"),
            Self::Full => f.write_str("too many uncommitted bytes"),
        }
    }
}

impl std::error::Error for ProposeError {}
