//! A simulated data node: the production core, its disk, its segments, and its supervisor.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use quorate_consensus::node::{stored, NodeConfig, NodeCore, NodeEffect, NodeEvent, NodeLimits};
use quorate_consensus::policy::Policy;
use quorate_consensus::replica::ObserverLoss;
use quorate_consensus::timing::Timing;
use quorate_proto::control::{Hello, LockProof};
use quorate_proto::ids::{ClusterId, DiskId, GroupId, Incarnation, LogIndex, NodeId, ReplicaId, Term};
use quorate_proto::time::BootTime;

use crate::disk::{Disk, GroupLog};
use crate::storage::{decode_checkpoint, Parcel, Segments, CHECKPOINT};
use crate::time::{HostClock, Instant};

/// Publishes that may wait at a leader in a tight run: fewer than two producers have in flight.
const TIGHT: usize = 5;

/// Secret that a supervisor proves itself with.
#[must_use]
pub fn secret(node: NodeId) -> String {
    format!("secret of {node}")
}

/// The process, while it runs.
#[derive(Debug)]
pub struct Process<P: Policy> {
    /// The production core.
    pub core: NodeCore<P>,
    /// Taken from sockets, not yet handled.
    pub mailbox: VecDeque<NodeEvent>,
    /// A turn is scheduled.
    pub turn_due: bool,
    /// Earliest tick scheduled.
    pub tick_due: Instant,
    /// Last word of F1 per group, as readers on other threads see it.
    pub serve_until: BTreeMap<GroupId, BootTime>,
    /// Term that this word was last published in.
    pub terms: BTreeMap<GroupId, Term>,
    /// A turn that was stopped in its middle.
    pub open_turn: Option<OpenTurn>,
    /// SIGTERM came.
    pub closing: bool,
}

/// A turn under way.
#[derive(Debug)]
pub struct OpenTurn {
    /// What the clock read when it began: only a mutant goes by it.
    pub began: BootTime,
    /// Events that it may still take.
    pub left: u64,
    /// Effects so far; executed when it ends.
    pub out: Vec<NodeEffect>,
}

/// What lies of a replica on the disk while another one is hosted in its place.
#[derive(Debug)]
pub struct Kept {
    /// Which.
    pub replica: ReplicaId,
    log: GroupLog,
    segments: Segments,
}

/// One data node's host.
#[derive(Debug)]
pub struct DataNode<P: Policy> {
    /// Who.
    pub id: NodeId,
    /// Its clock.
    pub clock: HostClock,
    /// Its WAL.
    pub disk: Disk,
    /// Its segments: the page cache keeps them over a crash of the process.
    pub segments: BTreeMap<GroupId, Segments>,
    /// Snapshots received, not yet installed.
    pub parcels: BTreeMap<(GroupId, LogIndex), Parcel>,
    /// How often it started.
    pub incarnation: Incarnation,
    /// Running, unless crashed.
    pub process: Option<Process<P>>,
    /// Stopped until then (SIGSTOP).
    pub paused_until: Option<Instant>,
    /// To be stopped in the middle of its next turn, for so long.
    pub stop_inside: Option<Duration>,
    /// Few publishes may wait.
    pub tight: bool,
    /// What it does when the observers are gone.
    pub loss: ObserverLoss,
    /// Checkpoints that this process made; which of them survives is told by the log.
    pub made: BTreeMap<GroupId, (LogIndex, Term, Bytes)>,
    /// How often the host lost its power.
    pub boots: u64,
    /// What logs held that are gone on purpose: term by index, and everything before the first index was compacted.
    pub former: BTreeMap<GroupId, BTreeMap<u64, u64>>,
    /// Replicas whose place another one takes: what lies of them on the disk until that one is promoted (M1).
    pub kept: BTreeMap<GroupId, Kept>,
    /// How often the disk was replaced by an empty one.
    pub wipes: u64,
    /// Exit by B3 leaves the log suspect (B2).
    pub suspect: bool,
}

impl<P: Policy> DataNode<P> {
    /// A host with an empty disk.
    #[must_use]
    pub fn new(id: NodeId, clock: HostClock) -> Self {
        Self {
            id,
            clock,
            disk: Disk::default(),
            segments: BTreeMap::new(),
            parcels: BTreeMap::new(),
            incarnation: Incarnation::ZERO,
            process: None,
            paused_until: None,
            stop_inside: None,
            tight: false,
            loss: ObserverLoss::default(),
            made: BTreeMap::new(),
            boots: 0,
            wipes: 0,
            former: BTreeMap::new(),
            kept: BTreeMap::new(),
            suspect: false,
        }
    }

    /// Starts the process: recovers the log, replays from the checkpoints.
    pub fn start(&mut self, now: Instant, observers: &[NodeId], timing: &Timing, seed: u64) -> Vec<NodeEffect> {
        self.incarnation = self.incarnation.next();
        let clock = self.clock.read(now);
        let config = NodeConfig {
            hello: self.hello(),
            observers: observers.to_vec(),
            timing: timing.clone(),
            // Small, so that checkpoints, compaction and snapshots happen within a run.
            limits: NodeLimits {
                checkpoint_bytes: 8 * 1024,
                retain_bytes: 4 * 1024,
                partition_pending_requests: if self.tight { TIGHT } else { 65_536 },
                ..NodeLimits::default()
            },
            seed,
            suspect_log: self.suspect,
            lost_groups: std::collections::BTreeSet::new(),
            directory: bytes::Bytes::new(),
            log_lost: false,
            observer_loss: self.loss,
        };
        let mut core = NodeCore::new(config, clock);
        for (group, kept) in &self.kept {
            core.keep(*group, kept.replica);
        }
        let mut out = Vec::new();
        let groups: Vec<GroupId> = self.disk.groups().map(|(group, _)| *group).collect();
        for group in groups {
            self.open(&mut core, group, clock, &mut out);
        }
        self.process = Some(Process {
            core,
            mailbox: VecDeque::new(),
            turn_due: false,
            tick_due: Instant(u64::MAX),
            serve_until: BTreeMap::new(),
            terms: BTreeMap::new(),
            open_turn: None,
            closing: false,
        });
        out
    }

    fn open(&mut self, core: &mut NodeCore<P>, group: GroupId, clock: BootTime, out: &mut Vec<NodeEffect>) {
        let log = self.disk.group(group).expect("listed");
        let Some(restored) = log.restored() else { return };
        let restored = restored.expect("a simulated disk keeps what it acknowledged");
        let Some(assignment) = log.pairs.get(stored::ASSIGNMENT) else { return };
        let assignment = stored::decode_assignment(assignment.clone()).expect("the core wrote it");
        let segments = self.segments.entry(group).or_default();
        let image = log.pairs.get(CHECKPOINT).map(|value| {
            let (index, _, state) = decode_checkpoint(value);
            *segments = segments.up_to(index);
            segments.image(index, state)
        });
        if image.is_none() {
            segments.entries.clear();
        }
        core.open(assignment, restored, image, clock, out);
    }

    /// Another replica takes the place of this one, whose data stay.
    pub fn keep(&mut self, group: GroupId, replica: ReplicaId) {
        let (log, segments) = (self.disk.group(group).cloned(), self.segments.get(&group).cloned());
        self.lose(group);
        if let (Some(log), Some(segments)) = (log, segments) {
            self.kept.insert(group, Kept { replica, log, segments });
        }
    }

    /// The directory has no more use for a replica's data. If it is the hosted one, which was to take another one's place, that
    /// one's are what the next start finds.
    pub fn retire(&mut self, group: GroupId, replica: ReplicaId, hosted: bool) {
        if hosted {
            self.lose(group);
            if let Some(kept) = self.kept.remove(&group) {
                self.former.remove(&group);
                self.segments.insert(group, kept.segments);
                self.disk.put_back(group, kept.log);
            }
        } else if self.kept.get(&group).is_some_and(|kept| kept.replica == replica) {
            self.kept.remove(&group);
        }
    }

    /// The log of a group is gone from here on; what was acknowledged by it was acknowledged rightly.
    pub fn lose(&mut self, group: GroupId) {
        if let Some(log) = self.disk.group(group) {
            let held = log.entries.values().map(|entry| (entry.index, entry.term)).collect();
            self.former.insert(group, held);
        }
        self.made.remove(&group);
        self.disk.forget(group);
        self.segments.remove(&group);
    }

    /// A log that is gone held this entry.
    #[must_use]
    pub fn held(&self, group: GroupId, index: u64, term: u64) -> bool {
        self.former.get(&group).is_some_and(|held| match held.get(&index) {
            Some(of) => *of == term,
            None => held.first_key_value().is_some_and(|(first, _)| *first > index),
        })
    }

    /// The newest checkpoint of a group in the storage: the log need not name it yet.
    #[must_use]
    pub fn checkpoint(&self, group: GroupId) -> Option<(LogIndex, Term, Bytes)> {
        let durable = self.disk.group(group).and_then(|log| log.pairs.get(CHECKPOINT)).map(decode_checkpoint);
        durable.into_iter().chain(self.made.get(&group).cloned()).max_by_key(|(index, ..)| *index)
    }

    /// As it registers.
    #[must_use]
    pub fn hello(&self) -> Hello {
        Hello {
            cluster: ClusterId(7),
            node: self.id,
            name: format!("node-{}", self.id.0),
            incarnation: self.incarnation,
            disk: DiskId(u128::from(self.id.0) + 1_000 + 1_000_000 * u128::from(self.wipes)),
            address: format!("node-{}:9000", self.id.0),
            peer_address: format!("node-{}:9001", self.id.0),
            fault_domain: format!("rack-{}", self.id.0),
            lock: LockProof { boot_id: format!("boot-{}-{}", self.id.0, self.boots), dev: 1, ino: self.id.0 },
            supervisor_hash: blake3::hash(secret(self.id).as_bytes()).to_hex().to_string(),
            version: "sim".into(),
            pid: 1,
            fresh: self.disk.groups().next().is_none(),
            knows: quorate_proto::ids::DirectoryVersion::ZERO,
            knows_born: quorate_proto::time::LogTime::ZERO,
        }
    }

    /// True if the process runs and is not stopped.
    #[must_use]
    pub fn awake(&self, now: Instant) -> bool {
        self.process.is_some() && self.paused_until.is_none_or(|until| until <= now)
    }
}
