//! One replica of one Raft group: raft-rs under the protocol's rules.

mod config;
mod durable;

use std::marker::PhantomData;

use bytes::Bytes;
use quorate_proto::control::{LeaseItem, Permit, ReplicaReport, Role};
use quorate_proto::ids::{LogIndex, PersistId, ReplicaId, Term};
use quorate_proto::time::BootTime;
use raft::eraftpb::{ConfState, Entry};

pub use config::{Mode, ObserverLoss, ProposeError, Quarantine, ReplicaConfig, CACHE_BYTES};
pub use durable::{bootstrap, encode_meta, restored, BOOTSTRAP_INDEX, BOOTSTRAP_TERM, META_KEY};

use crate::effect::{ReadId, ReplicaEffect, Restored};
use crate::envelope::Envelope;
use crate::policy::{Policy, Production};

/// A machine's state at a position of the log, for a follower that needs a snapshot.
#[derive(Clone, Debug, Default)]
pub struct SnapshotImage {
    /// Position.
    pub index: LogIndex,
    /// Its term.
    pub term: Term,
    /// Membership at `index`; see [`Replica::membership_at`].
    pub conf_state: ConfState,
    /// The machine's state; `Restore` gets it on the other side.
    pub data: Bytes,
}

type Out = Vec<ReplicaEffect>;

/// One replica. Every method takes a clock read *after* its event was taken from the queue (V2) and pushes effects in
/// the order in which they must be executed.
#[derive(Debug)]
pub struct Replica<P: Policy = Production> {
    cfg: ReplicaConfig,
    policy: PhantomData<P>,
}

#[allow(unused_variables, missing_docs, clippy::unused_self)]
impl<P: Policy> Replica<P> {
    /// Takes up a replica where its log left it. Committed entries after `restored.applied` are emitted with the first
    /// [`Self::tick`].
    ///
    /// # Errors
    /// [`Quarantine`] where raft-rs would panic or the log contradicts itself.
    pub fn new(cfg: ReplicaConfig, restored: Restored, now: BootTime) -> Result<Self, Quarantine> {
        Ok(Self { cfg, policy: PhantomData })
    }
    /// Time passes. Call at least every half tick and at [`Self::next_deadline`].
    pub fn tick(&mut self, now: BootTime, out: &mut Out) {}
    /// When [`Self::tick`] has something to do.
    pub fn next_deadline(&self, now: BootTime) -> BootTime {
        BootTime::MAX
    }
    /// A message from a peer.
    pub fn receive(&mut self, now: BootTime, envelope: Envelope, out: &mut Out) {}
    /// Any frame came from the node that hosts `peer` (for `hears_quorum`).
    pub fn peer_heard(&mut self, now: BootTime, peer: ReplicaId) {}
    /// The connection to a peer broke.
    pub fn peer_lost(&mut self, now: BootTime, peer: ReplicaId, out: &mut Out) {}
    /// Appends to the log as leader; sent to the followers at once, persisted meanwhile.
    ///
    /// # Errors
    /// Nothing was appended.
    pub fn propose(&mut self, now: BootTime, data: Bytes, out: &mut Out) -> Result<(Term, LogIndex), ProposeError> {
        Err(ProposeError::NotLeader { leader: None })
    }
    /// Wants a linearizable read (R1): answered by `ReadReady` or `ReadLost`, exactly once.
    pub fn read_index(&mut self, now: BootTime, read: ReadId, out: &mut Out) {}
    /// The write `id` and every earlier one are flushed.
    pub fn persisted(&mut self, now: BootTime, id: PersistId, out: &mut Out) {}
    /// The owner's machine has applied everything up to `index`.
    pub fn applied(&mut self, now: BootTime, index: LogIndex, out: &mut Out) {}
    /// The machine was replaced as `Restore` asked; `puts` go into the write that makes the snapshot the group's log.
    pub fn restored(&mut self, now: BootTime, index: LogIndex, puts: Vec<(&'static str, Bytes)>, out: &mut Out) {}
    /// What `Fetch` asked for; `None` = compacted away.
    pub fn entries_fetched(&mut self, now: BootTime, from: LogIndex, entries: Option<Vec<Entry>>, out: &mut Out) {}
    /// The snapshot that `BuildSnapshot` asked for, or `None` if it could not be made.
    pub fn snapshot_built(&mut self, now: BootTime, to: ReplicaId, image: Option<SnapshotImage>, out: &mut Out) {}
    /// Sending a snapshot ended.
    pub fn snapshot_sent(&mut self, now: BootTime, to: ReplicaId, ok: bool, out: &mut Out) {}
    /// The machine's checkpoint at `applied` is to be made durable with `puts`; the log before it is given up.
    /// Emits one `Persist`; its id is returned.
    pub fn compact(
        &mut self,
        now: BootTime,
        applied: LogIndex,
        puts: Vec<(&'static str, Bytes)>,
        out: &mut Out,
    ) -> PersistId {
        PersistId(0)
    }
    /// A committed permit came from the observers (P1).
    pub fn permit(&mut self, now: BootTime, permit: Permit, out: &mut Out) {}
    /// The lease to ask for now, if any.
    pub fn lease_due(&self, now: BootTime) -> Option<LeaseItem> {
        None
    }
    /// It was put into a request.
    pub fn lease_asked(&mut self, now: BootTime) {}
    /// Granted: valid from `sent`, which was read before the request was handed over (L2).
    pub fn lease_granted(&mut self, now: BootTime, term: Term, sent: BootTime, out: &mut Out) {}
    /// Refused as superseded or released: final (F3).
    pub fn lease_superseded(&mut self, now: BootTime, term: Term, out: &mut Out) {}
    /// Gives leadership up for good, if it leads.
    pub fn release(&mut self, now: BootTime, why: &'static str, out: &mut Out) {}
    /// Serve no more (`true`) although contact and lease hold, or again (B4).
    pub fn hold_serving(&mut self, now: BootTime, hold: bool, out: &mut Out) {}
    /// An append or flush failed (B3).
    pub fn wal_poisoned(&mut self, now: BootTime, out: &mut Out) {}
    /// F1 holds at `now`. Test after the state was read (F2).
    pub fn serving(&self, now: BootTime) -> bool {
        false
    }
    /// F1 holds before this; `ZERO` = not at all.
    pub fn serve_until(&self) -> BootTime {
        BootTime::ZERO
    }
    /// A leader with majority contact within the fence window (observers: within their longest election time-out).
    pub fn has_quorum_contact(&self, now: BootTime) -> bool {
        false
    }
    /// Contact time of the group (C2), if it leads.
    pub fn contact(&self, now: BootTime) -> Option<BootTime> {
        None
    }
    /// Report for the observers. The owner fills high watermark, digest and configuration version.
    pub fn report(&self, now: BootTime) -> ReplicaReport {
        ReplicaReport::default()
    }
    pub fn role(&self) -> Role {
        Role::Follower
    }
    pub fn term(&self) -> Term {
        Term(0)
    }
    /// The leader it follows, itself included.
    pub fn leader(&self) -> Option<ReplicaId> {
        None
    }
    pub fn me(&self) -> ReplicaId {
        self.cfg.me
    }
    /// Commit index (R1: note it at arrival).
    pub fn committed(&self) -> LogIndex {
        LogIndex(0)
    }
    /// What the owner said to have applied.
    pub fn applied_index(&self) -> LogIndex {
        LogIndex(0)
    }
    /// Last index flushed here. Checkpoints and segments are flushed only up to it.
    pub fn persisted_index(&self) -> LogIndex {
        LogIndex(0)
    }
    /// Last index appended.
    pub fn last_index(&self) -> LogIndex {
        LogIndex(0)
    }
    /// Term of an index of the live log.
    pub fn term_at(&self, index: LogIndex) -> Option<Term> {
        None
    }
    /// Membership as of an applied index not older than the last checkpoint.
    pub fn membership_at(&self, index: LogIndex) -> ConfState {
        ConfState::default()
    }
    /// Voters of the current membership (both halves if joint).
    pub fn voters(&self) -> Vec<ReplicaId> {
        Vec::new()
    }
    /// Epoch with which the current leader won, if known.
    pub fn won_epoch(&self) -> quorate_proto::ids::PermitEpoch {
        quorate_proto::ids::PermitEpoch(0)
    }
}
