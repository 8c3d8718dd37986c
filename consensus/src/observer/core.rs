//! The observer's core: takes events, keeps the directory's replica going, decides while it leads.
//!
//! Every observer keeps what it heard (`view`), so that a new leader decides at once; only the leader proposes, permits
//! and answers leases, and nothing leaves it that is not committed and applied (P1, L3).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use quorate_proto::control::{LastHeard, ObserverInfo, SessionDown};
use quorate_proto::ids::{GroupId, Incarnation, LogIndex, NodeId, PersistId, ReplicaId, Term, Ticket};
use quorate_proto::refusal::Refusal;
use quorate_proto::time::{BootTime, LogTime};
use quorate_proto::v1::Reason;

use super::attendance::Memories;
use super::clock::ClusterClock;
use super::config::{observer_of, replica_of, ObserverConfig, StartError};
use super::disk::Disk;
use super::failover::Failovers;
use super::handoff::Moves;
use super::leases::Leases;
use super::pending::Pending;
use super::repair::Repairs;
use super::session::Session;
use super::{ObserverEffect, ObserverEvent};
use crate::arbiter::{Arbiter, ClusterView};
use crate::directory::Directory;
use crate::effect::{Note, ReplicaEffect, Restored};
use crate::envelope::{Envelope, Lane};
use crate::policy::{Policy, Production};
use crate::replica::{bootstrap, Mode, ObserverLoss, Replica, ReplicaConfig};

/// The directory's log is compacted at every snapshot; what is younger fits this cache, so nothing is ever fetched.
const CACHE_BYTES: usize = 64 * 1024 * 1024;

pub(super) type Out = Vec<ObserverEffect>;

/// One observer. `now` is read after its event was taken from the queue (V2); effects are executed in order.
#[derive(Debug)]
pub struct ObserverCore<P: Policy = Production> {
    pub(super) cfg: ObserverConfig,
    pub(super) replica: Replica<P>,
    /// Effects of the replica that are not yet carried out.
    pub(super) queue: VecDeque<ReplicaEffect>,
    pub(super) directory: Directory,
    pub(super) view: ClusterView,
    pub(super) clock: ClusterClock,
    pub(super) sessions: BTreeMap<Ticket, Session>,
    /// It leads and has applied everything of earlier leaders.
    pub(super) leading: bool,
    pub(super) known_leader: Option<NodeId>,
    pub(super) arbiter: Arbiter,
    pub(super) leases: Leases,
    pub(super) failovers: Failovers,
    pub(super) moves: Moves,
    pub(super) repairs: Repairs,
    pub(super) pending: BTreeMap<LogIndex, (Term, Pending)>,
    /// Nodes whose registration is proposed.
    pub(super) registering: BTreeSet<NodeId>,
    /// Exit notices that wait for their record.
    pub(super) exits: BTreeMap<(NodeId, Incarnation), Vec<Ticket>>,
    /// Releases proposed.
    pub(super) releasing: BTreeSet<(ReplicaId, Term)>,
    next_round: BootTime,
    /// Position of the newest snapshot file, and of the one being written.
    pub(super) snapshot: LogIndex,
    pub(super) saving: Option<LogIndex>,
    /// A received snapshot whose file is being written.
    pub(super) restoring: Option<(LogIndex, Box<Directory>)>,
    pub(super) failed: bool,
    pub(super) disk: Disk,
    pub(super) memories: Memories,
    /// When this life began.
    pub(super) started: BootTime,
}

impl<P: Policy> ObserverCore<P> {
    /// Takes up an observer where its disk left it: `restored` is the directory group's log (`None` on an empty disk),
    /// `snapshot` the newest `DirectoryState` file whose position lies within the log (`None` if there is none).
    ///
    /// # Errors
    /// [`StartError`] if they do not fit.
    pub fn new(
        cfg: ObserverConfig,
        restored: Option<Restored>,
        snapshot: Option<&[u8]>,
        now: BootTime,
    ) -> Result<Self, StartError> {
        let members: Vec<ReplicaId> = cfg.members.iter().map(|m| replica_of(*m)).collect();
        let mut restored = restored.unwrap_or_else(|| bootstrap(&members));
        let start = restored.compacted.0;
        let directory = match snapshot {
            Some(bytes) => Directory::decode(bytes).map_err(|e| StartError::BadSnapshot(e.to_string()))?,
            None => Directory::starting_at(restored.compacted.0, restored.compacted.1),
        };
        let at = directory.applied().0;
        let last = restored.entries.last().map_or(start, |e| LogIndex(e.index));
        if snapshot.is_none() && start > crate::replica::BOOTSTRAP_INDEX {
            return Err(StartError::Gap(format!("the log begins after {start} and there is no snapshot")));
        }
        if at < start || at > last {
            return Err(StartError::Gap(format!("the snapshot is at {at}, the log holds {start} to {last}")));
        }
        restored.applied = at;
        let replica = Replica::new(replica_config(&cfg, now), restored, now)
            .map_err(|q| StartError::Quarantined(q.to_string()))?;
        let view = ClusterView::new(cfg.members.len(), &cfg.timing, now);
        Ok(Self {
            replica,
            queue: VecDeque::new(),
            directory,
            view,
            clock: ClusterClock::default(),
            sessions: BTreeMap::new(),
            leading: false,
            known_leader: None,
            arbiter: Arbiter::default(),
            leases: Leases::default(),
            failovers: Failovers::default(),
            moves: Moves::default(),
            repairs: Repairs::default(),
            pending: BTreeMap::new(),
            registering: BTreeSet::new(),
            exits: BTreeMap::new(),
            releasing: BTreeSet::new(),
            next_round: now,
            snapshot: at,
            saving: None,
            restoring: None,
            failed: false,
            disk: Disk::default(),
            memories: Memories::new(cfg.memory),
            started: now,
            cfg,
        })
    }

    /// Something happened.
    pub fn handle(&mut self, now: BootTime, event: ObserverEvent, out: &mut Out) {
        if self.failed {
            return;
        }
        match event {
            ObserverEvent::Tick { wall } => self.tick(now, wall, out),
            ObserverEvent::Peer(envelope) => self.peer(now, *envelope, out),
            ObserverEvent::LastHeard(table) => self.table(now, table, out),
            ObserverEvent::Persisted { group, id } => {
                debug_assert_eq!(group, GroupId::DIRECTORY, "an observer hosts one group");
                self.disk.flushed(id);
                self.with_replica(|replica, fx| replica.persisted(now, id, fx));
            }
            ObserverEvent::SessionOpened { session } => {
                self.sessions.insert(session, Session::default());
            }
            ObserverEvent::Session { session, message } => self.session_message(now, session, *message, out),
            ObserverEvent::SessionClosed { session } => self.session_closed(now, session),
            ObserverEvent::ExitNotice { ticket, notice } => self.exit_notice(now, ticket, &notice, out),
            ObserverEvent::Admin { ticket, request } => self.admin(now, ticket, request, out),
            ObserverEvent::SnapshotSaved { index, term, .. } => self.snapshot_saved(now, index, term, out),
            ObserverEvent::Space(disks) => self.measured(now, &disks, out),
            ObserverEvent::RoutesPushed { version } => self.failovers.routes_pushed(version, now),
            ObserverEvent::PeerLost(node) => {
                self.with_replica(|replica, fx| replica.peer_lost(now, replica_of(node), fx));
            }
        }
        self.run(now, out);
    }

    /// When a [`ObserverEvent::Tick`] is due at the latest.
    #[must_use]
    pub fn next_deadline(&self, now: BootTime) -> BootTime {
        self.replica.next_deadline(now).min(self.next_round).min(now + self.cfg.timing.observer_tick)
    }

    /// The directory as applied here.
    #[must_use]
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// What this observer heard of nodes and of the other observers.
    #[must_use]
    pub fn view(&self) -> &ClusterView {
        &self.view
    }

    /// The observer that leads, if known.
    #[must_use]
    pub fn leader(&self) -> Option<NodeId> {
        self.known_leader
    }

    /// This observer leads and has applied everything of earlier leaders: it may decide.
    #[must_use]
    pub fn is_leading(&self) -> bool {
        self.leading
    }

    /// Who this observer is.
    #[must_use]
    pub fn me(&self) -> ObserverInfo {
        let (room, stalled) = (self.disk.room(), self.disk.stalled());
        ObserverInfo { room, stalled, memory: self.memory(), ..self.cfg.me.clone() }
    }

    /// The protocol's durations.
    #[must_use]
    pub fn timing(&self) -> &crate::timing::Timing {
        &self.cfg.timing
    }

    /// Raft term of the directory's group.
    #[must_use]
    pub fn term(&self) -> Term {
        self.replica.term()
    }

    /// Its disk takes writes in time (B4).
    #[must_use]
    pub fn disk_ok(&self) -> bool {
        !self.disk.stalled()
    }

    /// Cluster time (W5).
    #[must_use]
    pub fn cluster_time(&self, now: BootTime) -> LogTime {
        self.clock.read(now)
    }

    /// Rest of a partition's lease. Only the observer leader knows.
    #[must_use]
    pub fn lease_remaining(&self, group: GroupId, now: BootTime) -> Option<Duration> {
        if self.leading {
            self.leases.table.remaining(group, now)
        } else {
            None
        }
    }

    fn peer(&mut self, now: BootTime, envelope: Envelope, out: &mut Out) {
        let node = observer_of(envelope.from);
        if envelope.stale {
            out.push(ObserverEffect::Note(Note::ToldStale { by: node }));
            return;
        }
        if let Some(why) = self.replica.stranger(&envelope) {
            out.push(ObserverEffect::Note(Note::Dropped(why)));
            let answer = Box::new(envelope.stale_answer(self.cfg.incarnation()));
            out.push(ObserverEffect::Send { node, lane: Lane::Control, envelope: answer });
            return;
        }
        self.replica.peer_heard(now, envelope.from);
        self.with_replica(|replica, fx| replica.receive(now, envelope, fx));
    }

    /// Calls the replica and queues what it asks for.
    pub(super) fn with_replica<R>(&mut self, call: impl FnOnce(&mut Replica<P>, &mut Vec<ReplicaEffect>) -> R) -> R {
        let mut effects = Vec::new();
        let result = call(&mut self.replica, &mut effects);
        self.queue.extend(effects);
        result
    }

    /// Carries out the replica's effects until none is left, then what follows from a change of leadership.
    pub(super) fn run(&mut self, now: BootTime, out: &mut Out) {
        loop {
            while let Some(effect) = self.queue.pop_front() {
                self.carry_out(now, effect, out);
                if self.failed {
                    return;
                }
            }
            self.observe_leadership(now, out);
            if self.queue.is_empty() {
                break;
            }
        }
    }

    fn carry_out(&mut self, now: BootTime, effect: ReplicaEffect, out: &mut Out) {
        match effect {
            ReplicaEffect::Persist(write) => {
                self.disk.written(write.id, now);
                out.push(ObserverEffect::Persist(write));
            }
            ReplicaEffect::Send { lane, envelope } => self.send(now, lane, envelope, out),
            ReplicaEffect::Apply(entries) => self.apply(now, entries, out),
            ReplicaEffect::Restore { index, data, term } => self.restore(index, term, data, out),
            // Compaction follows the snapshot file, so what is wanted here is older than it: send the snapshot.
            ReplicaEffect::Fetch { from, .. } => {
                self.with_replica(|replica, fx| replica.entries_fetched(now, from, None, fx));
            }
            ReplicaEffect::BuildSnapshot { to } => self.build_snapshot(now, to),
            ReplicaEffect::ReadReady { read, index } => self.leases.confirmed(read, index),
            ReplicaEffect::ReadLost { read } => self.leases.lost(read),
            // Its log contradicts what the others know: it is not to be trusted, but no reason to stay away.
            ReplicaEffect::Quarantine(reason) => self.forget_all(reason, out),
            ReplicaEffect::Note(note) => out.push(ObserverEffect::Note(note)),
            // Leadership is looked at after every event; the rest belongs to governed groups.
            ReplicaEffect::RoleChanged { .. }
            | ReplicaEffect::ServeUntil(_)
            | ReplicaEffect::Released { .. }
            | ReplicaEffect::AskPermit
            | ReplicaEffect::ReportNow => {}
        }
        self.answer_renewals(now, out);
    }

    fn tick(&mut self, now: BootTime, wall: LogTime, out: &mut Out) {
        self.clock.observe(self.cfg.node(), wall, now);
        self.judge_disk(now);
        self.with_replica(|replica, fx| replica.tick(now, fx));
        self.run(now, out);
        if now < self.next_round {
            return;
        }
        self.next_round = now + self.cfg.timing.arbiter_tick;
        let nodes = self.view.own_table(&self.directory, now);
        self.remember(now, out);
        let attendance = self.attendance();
        out.push(ObserverEffect::Gossip(LastHeard { observer: self.me(), wall, nodes, attendance }));
        if self.leading {
            self.round(now, out);
        }
    }

    fn table(&mut self, now: BootTime, table: LastHeard, out: &mut Out) {
        if !self.cfg.members.contains(&table.observer.node) || table.observer.node == self.cfg.node() {
            return;
        }
        self.clock.observe(table.observer.node, table.wall, now);
        self.attended(now, &table, out);
        let before = self.view.suspects(&self.directory, now);
        self.view.table(table, now);
        if self.leading && self.view.suspects(&self.directory, now) != before {
            self.examine_all(now, out);
        }
    }

    /// Refusal of what only the observer leader can do.
    pub(super) fn not_leading(&self, subject: String) -> Refusal {
        let leader = self.known_leader.filter(|leader| *leader != self.cfg.node());
        let (reason, action) = match leader {
            Some(_) => (Reason::NotLeader, "ask the observer that leads"),
            None => (Reason::NoLeader, "repeat the call, the observers elect a leader within a second"),
        };
        Refusal::new(reason, "this observer does not lead", subject, action)
            .led_by(leader)
            .retry_after(Duration::from_millis(200))
    }

    pub(super) fn say(session: Ticket, message: SessionDown, out: &mut Out) {
        out.push(ObserverEffect::Session { session, message: Box::new(message) });
    }

    pub(super) fn fail(&mut self, reason: String, out: &mut Out) {
        self.failed = true;
        out.push(ObserverEffect::Fatal(reason));
    }

    fn forget_all(&mut self, reason: String, out: &mut Out) {
        self.failed = true;
        let above = self.cfg.incarnation();
        out.push(ObserverEffect::StartAgain { above, forgot: Some(reason) });
    }

    fn observe_leadership(&mut self, now: BootTime, out: &mut Out) {
        let leader = self.replica.leader().map(observer_of);
        if leader != self.known_leader {
            self.known_leader = leader;
            out.push(ObserverEffect::LeaderChanged { leader });
        }
        let leads = self.replica.role() == quorate_proto::control::Role::Leader;
        let ready = leads && self.replica.term_at(self.directory.applied().0) == Some(self.replica.term());
        match (self.leading, ready && self.restoring.is_none()) {
            (false, true) => self.take_over(now, out),
            (true, false) => self.step_down(out),
            _ => {}
        }
    }
}

fn replica_config(cfg: &ObserverConfig, now: BootTime) -> ReplicaConfig {
    let tick = cfg.timing.observer_tick.as_nanos().max(1);
    let ticks = |span: Duration| usize::try_from(span.as_nanos() / tick).unwrap_or(usize::MAX);
    let (min, max) = (ticks(cfg.timing.observer_election_min), ticks(cfg.timing.observer_election_max));
    let spread = u64::try_from(max.saturating_sub(min).max(1)).unwrap_or(1);
    let drawn = usize::try_from(mix(cfg.seed ^ cfg.node().get()) % spread).unwrap_or(0);
    ReplicaConfig {
        group: GroupId::DIRECTORY,
        me: replica_of(cfg.node()),
        incarnation: cfg.incarnation(),
        timing: cfg.timing.clone(),
        mode: Mode::SelfElecting,
        election_ticks: min + drawn,
        started: now,
        suspect_log: cfg.memory != quorate_proto::control::Memory::Sound,
        observer_loss: ObserverLoss::default(),
        cache_bytes: CACHE_BYTES,
        first_write: PersistId(1),
    }
}

/// SplitMix64's finaliser: spreads a seed over all bits.
fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
