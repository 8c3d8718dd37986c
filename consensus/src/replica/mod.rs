//! One replica of one Raft group: raft-rs under the protocol's rules, without IO.
//!
//! ```text
//!   events (now, …)             Replica                              effects, in order
//!   receive ───────► receive.rs: M3, C1, V2, facts ──┐
//!   permit, tick ──► vote.rs: V1–V3, P1 ─────────────┤► raft-rs ─► ready.rs: Send now (leader), Persist, then Send
//!   lease_…, tick ─► fence.rs: F1–F3, L2, L6 ────────┤             Apply up to the commit index, in the same turn
//!   propose, read ─► ready.rs, reads.rs (R1) ────────┘             ServeUntil, Released, RoleChanged, ReportNow
//!   persisted, applied, compact, snapshots ─► outbox.rs, catch_up.rs, storage.rs
//! ```
//!
//! - W1, W2: the leader's messages leave before its own flush, everybody else's after it; nothing counts before.
//! - Entries are applied up to `committed` from the entry cache, not from raft-rs's `committed_entries`, which wait
//!   for the leader's own flush; raft-rs is told of it only up to what is flushed here.
//! - Every method ends with `drive`: no `Ready` is left behind, so raft-rs's rule (no `step` between `ready`
//!   and `advance`) holds by construction.
//! - raft-rs draws election time-outs from a thread-local generator: they are overridden before each tick by draws from
//!   a counter-based generator, so that a run can be repeated.
//! - While a received snapshot is installed, no election may start here: raft-rs would panic in `hup`.
//!
//! In [`Mode::SelfElecting`] (the observers' own group) the gate, permits, leases and resigning are left out; contact
//! and read-index are there.

mod catch_up;
mod config;
mod durable;
mod fence;
mod gate;
mod handoff;
mod lead;
mod membership;
mod outbox;
mod reads;
mod ready;
mod receive;
mod rejoin;
mod report;
mod room;
mod storage;
mod vote;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use bytes::Bytes;
use quorate_proto::control::{Role, Room};
use quorate_proto::ids::{Incarnation, LogIndex, PermitEpoch, ReplicaId, Term};
use quorate_proto::time::BootTime;
use raft::eraftpb::{ConfState, HardState};
use raft::{Config, RawNode, ReadOnlyOption, StateRole};

pub use config::{Mode, ObserverLoss, ProposeError, Quarantine, ReplicaConfig, CACHE_BYTES};
pub use durable::{bootstrap, encode_meta, learner, restored, BOOTSTRAP_INDEX, BOOTSTRAP_TERM, META_KEY};
pub use room::without_records;

use crate::effect::{Note, ReplicaEffect, Restored};
use crate::policy::{Policy, Production};
use gate::{AckBook, Facts, Permits};
use lead::Lead;
use outbox::Outbox;
use reads::Reads;
use rejoin::Rejoin;
use report::Flags;
use storage::LogStore;
use vote::Candidacy;

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

/// One `MsgAppend` at most, bytes.
const MAX_MESSAGE: u64 = 1024 * 1024;
/// Appends under way to one follower at most.
const MAX_INFLIGHT: usize = 256;
/// Appended and not yet committed at most, bytes; more is refused (`ProposeError::Full`).
const MAX_UNCOMMITTED: u64 = 64 * 1024 * 1024;

/// Newest stamp processed from the leader of a term (C1), or from a candidate voted for (V2).
#[derive(Clone, Copy, Debug)]
struct Heard {
    from: ReplicaId,
    term: Term,
    stamp: BootTime,
}

/// One replica. Every method takes a clock read *after* its event was taken from the queue (V2) and pushes effects in
/// the order in which they must be executed.
pub struct Replica<P: Policy = Production> {
    cfg: ReplicaConfig,
    raw: RawNode<LogStore>,
    outbox: Outbox,
    reads: Reads,

    /// Membership now, and by the applied index that changed it, back to the last checkpoint.
    conf: ConfState,
    conf_history: BTreeMap<u64, ConfState>,
    /// The first write of a process repeats the group's meta record.
    meta_unwritten: bool,
    checkpoint: u64,
    /// Last index handed out by `Apply`, last one the owner reported, last one raft-rs handed out in a `Ready`.
    apply_emitted: u64,
    applied: u64,
    ready_mark: u64,
    /// Snapshot being installed: until it is flushed here and raft-rs knows it as applied.
    installing: Option<u64>,
    /// Snapshots on their way to followers: position, and how often they were looked at.
    sending: BTreeMap<u64, (u64, u32)>,
    /// The owner has not yet answered `Restore`.
    awaiting_restore: bool,

    acks: AckBook,
    facts: Facts,
    permits: Permits,
    candidacy: Option<Candidacy>,
    next_campaign: BootTime,
    suspect: bool,
    /// First leader's term heard in this process, for B2: a later leader was elected after this start.
    first_leader_term: Option<Term>,
    /// First permit that the observers pushed to this process, for B2: whoever wins with it or a later one was elected
    /// after this start. (One that came with a vote request may be older.)
    first_pushed: Option<PermitEpoch>,
    restored_term: Term,
    /// Where a suspect log is sound again once it is flushed.
    caught_up_at: Option<(Term, u64)>,
    /// Self-electing groups: what the others told a suspect replica.
    rejoin: Rejoin,

    lead: Option<Lead>,
    own_release: Option<(Term, BootTime)>,
    resigned_for_fence: Option<BootTime>,
    held: bool,
    /// Room on the own disks and, unless ample, on the peers' (B5).
    room: Room,
    peer_rooms: BTreeMap<ReplicaId, Room>,
    poisoned: bool,
    published: BootTime,

    heard: Option<Heard>,
    vote_heard: Option<Heard>,
    leader_frame: Option<BootTime>,
    leader_won: (Term, PermitEpoch),
    frames: BTreeMap<ReplicaId, BootTime>,
    /// When the connection to each peer broke last.
    losses: BTreeMap<ReplicaId, BootTime>,
    incarnations: BTreeMap<ReplicaId, Incarnation>,

    next_tick: BootTime,
    wants_checked: BootTime,
    election_timeout: usize,
    draws: u64,
    wants_permit: bool,
    quarantined: bool,
    seen: (StateRole, Term, Option<ReplicaId>),
    flags: Flags,
    policy: PhantomData<P>,
}

impl<P: Policy> fmt::Debug for Replica<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replica")
            .field("group", &self.cfg.group)
            .field("me", &self.cfg.me)
            .field("role", &self.role())
            .field("term", &self.term())
            .field("leader", &self.leader())
            .field("last", &self.last_index())
            .field("committed", &self.committed())
            .field("applied", &self.applied)
            .finish_non_exhaustive()
    }
}

impl<P: Policy> Replica<P> {
    /// Takes up a replica where its log left it. Committed entries after `restored.applied` are emitted with the first
    /// [`Self::tick`].
    ///
    /// # Errors
    /// [`Quarantine`] where raft-rs would panic or the log contradicts itself.
    pub fn new(cfg: ReplicaConfig, restored: Restored, now: BootTime) -> Result<Self, Quarantine> {
        let hard_state = checked_hard_state(&cfg, &restored)?;
        let start = (restored.compacted.0 .0, restored.compacted.1 .0);
        let mut store = LogStore::new(hard_state.clone(), restored.conf_state.clone(), start, cfg.cache_bytes);
        store.append(&restored.entries);
        store.evict(restored.applied.0);
        let applied = restored.applied.0;
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let raw = RawNode::new(&raft_config(&cfg, applied), store, &logger)
            .map_err(|e| Quarantine::new(format!("raft refuses the restored state: {e}")))?;
        let seen = (raw.raft.state, Term(raw.raft.term), None);
        Ok(Self {
            outbox: Outbox::new(cfg.group, cfg.first_write),
            reads: Reads::default(),
            conf_history: BTreeMap::from([(applied, restored.conf_state.clone())]),
            conf: restored.conf_state,
            meta_unwritten: true,
            checkpoint: applied,
            apply_emitted: applied,
            applied,
            ready_mark: applied,
            installing: None,
            sending: BTreeMap::new(),
            awaiting_restore: false,
            acks: AckBook::default(),
            facts: Facts::default(),
            permits: Permits::default(),
            candidacy: None,
            next_campaign: BootTime::ZERO,
            suspect: cfg.suspect_log,
            first_leader_term: None,
            first_pushed: None,
            restored_term: Term(hard_state.term),
            caught_up_at: None,
            rejoin: Rejoin::default(),
            lead: None,
            own_release: None,
            resigned_for_fence: None,
            held: false,
            room: Room::Ample,
            peer_rooms: BTreeMap::new(),
            poisoned: false,
            published: BootTime::ZERO,
            heard: None,
            vote_heard: None,
            leader_frame: None,
            leader_won: (Term::ZERO, PermitEpoch::ZERO),
            frames: BTreeMap::new(),
            losses: BTreeMap::new(),
            incarnations: BTreeMap::new(),
            next_tick: now + tick_of(&cfg),
            wants_checked: now,
            election_timeout: election_bounds(&cfg).clamp(cfg.election_ticks),
            draws: 0,
            wants_permit: false,
            quarantined: false,
            seen,
            flags: Flags::default(),
            policy: PhantomData,
            raw,
            cfg,
        })
    }

    /// What it is doing.
    #[must_use]
    pub fn role(&self) -> Role {
        if self.quarantined {
            return Role::Quarantined;
        }
        role_of(self.raw.raft.state)
    }

    /// Its Raft term.
    #[must_use]
    pub fn term(&self) -> Term {
        Term(self.raw.raft.term)
    }

    /// The leader it follows, itself included.
    #[must_use]
    pub fn leader(&self) -> Option<ReplicaId> {
        ReplicaId(self.raw.raft.leader_id).non_zero()
    }

    /// Its own id.
    #[must_use]
    pub fn me(&self) -> ReplicaId {
        self.cfg.me
    }

    /// Commit index (R1: note it at arrival).
    #[must_use]
    pub fn committed(&self) -> LogIndex {
        LogIndex(self.raw.raft.raft_log.committed)
    }

    /// What the owner said to have applied.
    #[must_use]
    pub fn applied_index(&self) -> LogIndex {
        LogIndex(self.applied)
    }

    /// Last index flushed here. Checkpoints and segments are flushed only up to it.
    #[must_use]
    pub fn persisted_index(&self) -> LogIndex {
        LogIndex(self.raw.raft.raft_log.persisted)
    }

    /// Last index appended.
    #[must_use]
    pub fn last_index(&self) -> LogIndex {
        LogIndex(self.raw.raft.raft_log.last_index())
    }

    /// Term of an index of the live log.
    #[must_use]
    pub fn term_at(&self, index: LogIndex) -> Option<Term> {
        self.raw.raft.raft_log.term(index.0).ok().and_then(|t| Term(t).non_zero())
    }

    /// Membership as of an applied index not older than the last checkpoint.
    #[must_use]
    pub fn membership_at(&self, index: LogIndex) -> ConfState {
        self.conf_history.range(..=index.0).next_back().map_or_else(|| self.conf.clone(), |(_, conf)| conf.clone())
    }

    /// Voters of the current membership (both halves if joint).
    #[must_use]
    pub fn voters(&self) -> Vec<ReplicaId> {
        let mut all: Vec<_> =
            self.conf.voters.iter().chain(&self.conf.voters_outgoing).map(|&v| ReplicaId(v)).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Epoch with which the current leader won, if known.
    #[must_use]
    pub fn won_epoch(&self) -> PermitEpoch {
        match &self.lead {
            Some(lead) => lead.won_epoch,
            None if self.leader_won.0 == self.term() => self.leader_won.1,
            None => PermitEpoch::ZERO,
        }
    }

    fn governed(&self) -> bool {
        self.cfg.mode == Mode::Governed
    }

    fn note(out: &mut Out, note: Note) {
        out.push(ReplicaEffect::Note(note));
    }

    /// M3: takes no further part; never a crash loop.
    fn quarantine(&mut self, reason: String, out: &mut Out) {
        if self.lead.take().is_some() || self.published != BootTime::ZERO {
            self.published = BootTime::ZERO;
            out.push(ReplicaEffect::ServeUntil(BootTime::ZERO));
        }
        self.reads.fail_all(out);
        self.quarantined = true;
        out.push(ReplicaEffect::Quarantine(reason));
        out.push(ReplicaEffect::ReportNow);
    }
}

fn role_of(state: StateRole) -> Role {
    match state {
        StateRole::Leader => Role::Leader,
        StateRole::Follower => Role::Follower,
        StateRole::Candidate | StateRole::PreCandidate => Role::Candidate,
    }
}

fn tick_of(cfg: &ReplicaConfig) -> std::time::Duration {
    match cfg.mode {
        Mode::Governed => cfg.timing.tick,
        Mode::SelfElecting => cfg.timing.observer_tick,
    }
}

/// Election time-outs in ticks: `low..high`.
#[derive(Clone, Copy)]
struct Bounds {
    low: usize,
    high: usize,
}

impl Bounds {
    fn clamp(self, ticks: usize) -> usize {
        ticks.clamp(self.low, self.high - 1)
    }
}

fn ticks_in(span: std::time::Duration, tick: std::time::Duration) -> usize {
    usize::try_from(span.as_nanos() / tick.as_nanos().max(1)).unwrap_or(usize::MAX)
}

fn election_bounds(cfg: &ReplicaConfig) -> Bounds {
    let (low, high) = match cfg.mode {
        Mode::Governed => (cfg.timing.election_min, cfg.timing.election_max),
        Mode::SelfElecting => (cfg.timing.observer_election_min, cfg.timing.observer_election_max),
    };
    let low = ticks_in(low, tick_of(cfg)).max(3);
    Bounds { low, high: ticks_in(high, tick_of(cfg)).max(low + 1) }
}

fn heartbeat_ticks(cfg: &ReplicaConfig) -> usize {
    let beat = match cfg.mode {
        Mode::Governed => cfg.timing.raft_heartbeat,
        // Six chances within the shortest election time-out.
        Mode::SelfElecting => cfg.timing.observer_election_min / 6,
    };
    ticks_in(beat, tick_of(cfg)).clamp(1, election_bounds(cfg).low - 1)
}

fn raft_config(cfg: &ReplicaConfig, applied: u64) -> Config {
    let bounds = election_bounds(cfg);
    Config {
        id: cfg.me.0,
        election_tick: bounds.low,
        heartbeat_tick: heartbeat_ticks(cfg),
        applied,
        max_size_per_msg: MAX_MESSAGE,
        max_inflight_msgs: MAX_INFLIGHT,
        check_quorum: true,
        pre_vote: true,
        min_election_tick: bounds.low,
        max_election_tick: bounds.high,
        read_only_option: ReadOnlyOption::Safe,
        // Followers of a partition serve no reads: the commit index rides on the next append or heartbeat.
        skip_bcast_commit: cfg.mode == Mode::Governed,
        batch_append: true,
        priority: 0,
        max_uncommitted_size: MAX_UNCOMMITTED,
        max_committed_size_per_ready: raft::NO_LIMIT,
    }
}

/// What raft-rs would panic on, or what shows that the log lost something (M3, B2).
fn checked_hard_state(cfg: &ReplicaConfig, restored: &Restored) -> Result<HardState, Quarantine> {
    let (start, start_term) = restored.compacted;
    for (entry, index) in restored.entries.iter().zip(start.0 + 1..) {
        if entry.index != index {
            return Err(Quarantine::new(format!("log has index {} where {index} belongs", entry.index)));
        }
    }
    let last = start.0 + restored.entries.len() as u64;
    let last_term = restored.entries.last().map_or(start_term.0, |e| e.term);
    let mut hard_state = restored.hard_state.clone();
    if hard_state == HardState::default() {
        if !restored.entries.is_empty() || start != BOOTSTRAP_INDEX {
            return Err(Quarantine::new("a log without a hard state"));
        }
        hard_state.term = start_term.0;
    }
    // What is compacted or in a checkpoint was committed; a write of the commit index alone is never made.
    hard_state.commit = hard_state.commit.max(start.0).max(restored.applied.0);
    if restored.applied < start {
        return Err(Quarantine::new(format!("checkpoint at {} is older than the log after {start}", restored.applied)));
    }
    if hard_state.commit > last {
        let commit = LogIndex(hard_state.commit);
        return Err(Quarantine::new(format!("committed up to {commit}, but the log ends at {}", LogIndex(last))));
    }
    if hard_state.term < last_term.max(start_term.0) {
        return Err(Quarantine::new(format!(
            "hard state of {} with entries of {}",
            Term(hard_state.term),
            Term(last_term)
        )));
    }
    let conf = &restored.conf_state;
    let member = [&conf.voters, &conf.learners, &conf.voters_outgoing, &conf.learners_next]
        .iter()
        .any(|ids| ids.contains(&cfg.me.0));
    // A learner that waits for its first snapshot knows no members.
    let waiting = *conf == ConfState::default() && last == 0;
    if !member && !waiting {
        return Err(Quarantine::new(format!("{} is not in the membership of its own log", cfg.me)));
    }
    Ok(hard_state)
}
