//! [`NodeCore`]: dispatch of events to the parts of a data node, and the end of a turn.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quorate_proto::control::{Assignment, PeerInfo, Role};
use quorate_proto::ids::{DirectoryVersion, GroupId, NodeId, ReplicaId};
use quorate_proto::time::BootTime;

use super::cluster_time::ClusterTime;
use super::config::NodeConfig;
use super::disk::{Disk, DiskChange};
use super::effect::NodeEffect;
use super::event::{NodeEvent, Publish};
use super::hosting::Hosted;
use super::known::Known;
use super::partition_replica::{PartitionReplica, Turn};
use super::refuse;
use super::rng::SplitMix;
use super::status::{NodeCounters, NodeStatus, PartitionStatus};
use crate::effect::Note;
use crate::envelope::{Envelope, Lane};
use crate::policy::{Policy, Production};
use crate::replica::SnapshotImage;
use crate::space::{Free, Space};

/// A closing node waits this long for its undecided publishes before it releases its leaders.
const CLOSE_PATIENCE: Duration = Duration::from_millis(500);

/// A gap of more ticks than this between two ticks is a pause of the process.
const PAUSE_TICKS: u32 = 4;

/// The pure core of a data node: owns every replica that the node hosts. Events in, ordered effects out; no clock,
/// no randomness but the seed, no IO.
///
/// A shell's turn: drain the mailbox with one [`Self::handle`] per event, each with a fresh clock reading (V2),
/// then [`Self::flush`] once, then execute the effects in order.
#[derive(Debug)]
pub struct NodeCore<P: Policy = Production> {
    pub(super) config: NodeConfig,
    pub(super) started: BootTime,
    pub(super) rng: SplitMix,
    pub(super) partitions: BTreeMap<GroupId, Hosted<P>>,
    /// Replicas hosted since the start, also those that were replaced.
    pub(super) hostings: u64,
    /// Replicas whose data lie on this disk while another one is hosted in their place (M1).
    pub(super) kept: BTreeSet<(GroupId, ReplicaId)>,
    /// Partitions that this turn touched: only they are looked at when it ends.
    touched: Vec<GroupId>,
    /// Partitions of which the observers must hear at once (P2).
    pub(super) report_groups: Vec<GroupId>,
    pub(super) cluster: ClusterTime,
    pub(super) disk: Disk,
    pub(super) space: Space,
    /// When the oldest unflushed write of the node was handed out, as of the last tick.
    pub(super) oldest_write: Option<BootTime>,
    /// When the last frame came from each peer.
    heard: BTreeMap<NodeId, BootTime>,
    pub(super) peers: Vec<PeerInfo>,
    pub(super) assignments_version: DirectoryVersion,
    /// The directory that the node keeps (M5).
    pub(super) known: Known,
    /// The node wants to be rid of its leaders (H2).
    pub(super) draining: bool,
    /// The observer leader says that no other node can take them.
    pub(super) nobody_else: bool,
    /// Since when the node is closing.
    pub(super) closing: Option<BootTime>,
    /// Publishes admitted and undecided, bytes.
    pub(super) pending: u64,
    /// Applied bytes without checkpoint.
    unchecked: u64,
    last_tick: BootTime,
    deadline: BootTime,
    pub(super) counters: NodeCounters,
}

impl<P: Policy> NodeCore<P> {
    /// A node that hosts nothing yet. `now`: start of the process, for V1c.
    #[must_use]
    pub fn new(config: NodeConfig, now: BootTime) -> Self {
        Self {
            rng: SplitMix::new(config.seed),
            known: Known::new(config.directory.clone()),
            config,
            started: now,
            partitions: BTreeMap::new(),
            hostings: 0,
            kept: BTreeSet::new(),
            touched: Vec::new(),
            report_groups: Vec::new(),
            cluster: ClusterTime::default(),
            disk: Disk::default(),
            space: Space::default(),
            oldest_write: None,
            heard: BTreeMap::new(),
            peers: Vec::new(),
            assignments_version: DirectoryVersion::ZERO,
            draining: false,
            nobody_else: false,
            closing: None,
            pending: 0,
            unchecked: 0,
            last_tick: now,
            deadline: now,
            counters: NodeCounters::default(),
        }
    }

    /// Takes one event. `now` is read after the event was taken from its queue, anew for each event (V2).
    pub fn handle(&mut self, now: BootTime, event: NodeEvent, out: &mut Vec<NodeEffect>) {
        match event {
            NodeEvent::Publish(publish) => self.publish(publish, now, out),
            NodeEvent::Peer { from, envelope } => self.peer(from, *envelope, now, out),
            NodeEvent::Persisted { group, id, at } => {
                self.disk.flushed(at);
                self.visit(group, now, out, |partition, turn| partition.persisted(id, turn));
            }
            NodeEvent::Tick => self.tick(now, out),
            NodeEvent::PeerLost(node) => self.visit_all(now, out, |partition, turn| partition.peer_lost(node, turn)),
            NodeEvent::TokenBack { seq, age } => {
                if self.disk.token_back(seq, age) {
                    self.judge_disk(now, out);
                    self.beat(seq, now, out);
                }
            }
            NodeEvent::CanaryFlushed { at } => {
                self.disk.canary_back(at);
                self.touch_all();
            }
            NodeEvent::WalPoisoned => {
                self.disk.poison();
                self.visit_all(now, out, |partition, turn| partition.poisoned(turn));
            }
            NodeEvent::LogDamaged => {
                self.disk.damage();
                self.judge_disk(now, out);
            }
            NodeEvent::ReadLatest { ticket, group } => {
                let node = self.config.hello.node;
                if !self.visit(group, now, out, |partition, turn| partition.read_latest(ticket, turn)) {
                    let result = Err(self.not_here(group, node));
                    out.push(NodeEffect::ReadAnswer { ticket, result });
                }
            }
            NodeEvent::SessionUp(observer) => self.session_up(observer, now, out),
            NodeEvent::SessionLost(_) => {}
            NodeEvent::Session { observer, message } => self.session_down(observer, *message, now, out),
            NodeEvent::Space(disks) => self.measured(&disks, now, out),
            NodeEvent::Drain => {
                self.draining = true;
                self.disk.beat_soon(now);
            }
            NodeEvent::Shutdown => {
                self.closing.get_or_insert(now);
                self.visit_all(now, out, |partition, turn| partition.refuse_waiting(turn));
            }
            other => self.storage_event(now, other, out),
        }
    }

    /// What the storage and the log reader report.
    fn storage_event(&mut self, now: BootTime, event: NodeEvent, out: &mut Vec<NodeEffect>) {
        match event {
            NodeEvent::EntriesFetched { group, from, entries } => {
                self.visit(group, now, out, |partition, turn| partition.entries_fetched(from, entries, turn));
            }
            NodeEvent::Checkpointed { group, index, puts } => {
                self.visit(group, now, out, |partition, turn| partition.checkpointed(index, puts, turn));
            }
            NodeEvent::SnapshotBuilt { group, to, index, term, conf_state, data } => {
                let image = SnapshotImage { index, term, conf_state, data };
                self.visit(group, now, out, |partition, turn| partition.snapshot_built(to, image, turn));
            }
            NodeEvent::SnapshotSent { group, to, ok } => {
                self.visit(group, now, out, |partition, turn| partition.snapshot_sent(to, ok, turn));
            }
            NodeEvent::SnapshotInstalled { group, index, image, puts } => {
                self.visit(group, now, out, |partition, turn| {
                    partition.snapshot_installed(index, image, puts, turn);
                });
            }
            NodeEvent::Damaged { group, reason } => {
                self.visit(group, now, out, |partition, _| partition.failed = Some(reason));
            }
            NodeEvent::StorageBacklog { group, bytes } => {
                self.visit(group, now, out, |partition, _| partition.backlog = bytes);
            }
            _ => {}
        }
    }

    fn publish(&mut self, publish: Publish, now: BootTime, out: &mut Vec<NodeEffect>) {
        let (group, ticket, node) = (publish.group, publish.ticket, self.config.hello.node);
        if !self.visit(group, now, out, |partition, turn| partition.publish(publish, turn)) {
            self.counters.refused += 1;
            out.push(NodeEffect::Answer { ticket, result: Err(self.not_here(group, node)) });
        }
    }

    /// Why a request for `group` cannot be taken by this node at all.
    fn not_here(&self, group: GroupId, node: NodeId) -> quorate_proto::refusal::Refusal {
        match self.partitions.get(&group) {
            Some(Hosted::Aside { assignment, reason }) => refuse::quarantined(assignment, reason),
            _ => refuse::not_hosted(group, node),
        }
    }

    fn peer(&mut self, from: NodeId, envelope: Envelope, now: BootTime, out: &mut Vec<NodeEffect>) {
        let group = envelope.group;
        self.heard.insert(from, now);
        if envelope.stale {
            self.counters.stale_answers += 1;
            out.push(NodeEffect::Note { group, note: Note::ToldStale { by: from } });
            return;
        }
        let stranger = match self.partitions.get_mut(&group) {
            // Another partition incarnation, or one that is not assigned yet.
            None => Some("unknown group"),
            // Its sender is right to look for it here: the directory is told that it is set aside.
            Some(Hosted::Aside { .. }) => {
                out.push(NodeEffect::Note { group, note: Note::Dropped("set aside") });
                return;
            }
            Some(Hosted::Live(partition)) => partition.stranger(from, &envelope),
        };
        if let Some(why) = stranger {
            self.counters.strangers += 1;
            out.push(NodeEffect::Note { group, note: Note::Dropped(why) });
            let answer = Box::new(envelope.stale_answer(self.config.hello.incarnation));
            out.push(NodeEffect::Send { node: from, lane: Lane::Control, envelope: answer });
            return;
        }
        self.visit(group, now, out, |partition, turn| partition.receive(envelope, turn));
    }

    fn tick(&mut self, now: BootTime, out: &mut Vec<NodeEffect>) {
        let heard = std::mem::take(&mut self.heard);
        self.visit_all(now, out, |partition, turn| partition.tick(&heard, turn));
        self.heard = heard;
        // After a pause of the whole process the token's return waits in the mailbox: that is no stall of the disk.
        if now.since(self.last_tick) <= self.config.timing.tick * PAUSE_TICKS {
            self.judge_disk(now, out);
        }
        self.last_tick = now;
        if let Some(since) = self.closing {
            let patient = now.since(since) < CLOSE_PATIENCE;
            self.visit_all(now, out, |partition, turn| partition.close(patient, turn));
        }
        self.deadline = now + self.config.timing.tick / 2;
    }

    /// B5: what is free on the disks. A change is told at once: leaders go elsewhere.
    fn measured(&mut self, disks: &[Free], now: BootTime, out: &mut Vec<NodeEffect>) {
        let marks = self.config.limits.marks;
        if self.space.measured(now, disks, &marks) {
            let room = self.space.room();
            out.push(NodeEffect::Room(room));
            self.visit_all(now, out, |partition, _| partition.set_room(room));
        }
        out.extend(self.space.ballast(disks, &marks).map(NodeEffect::Ballast));
    }

    /// B4: a stalled WAL must not lead. Heartbeats stop by themselves, because their token does not return.
    fn judge_disk(&mut self, now: BootTime, out: &mut Vec<NodeEffect>) {
        let live = self.partitions.values().filter_map(Hosted::live);
        self.oldest_write = live.filter_map(PartitionReplica::oldest_write).min();
        let age = self.disk.age(now, self.oldest_write);
        if let Some(change) = self.disk.judge(age, &self.config.timing) {
            let stalled = change == DiskChange::Stalled;
            self.visit_all(now, out, |partition, turn| partition.stalled(stalled, turn));
        }
    }

    /// Ends a turn: call it after the mailbox was drained. Proposes what gathered, asks for leases, reports changes,
    /// starts the beat.
    pub fn flush(&mut self, now: BootTime, out: &mut Vec<NodeEffect>) {
        let mut groups = std::mem::take(&mut self.touched);
        let bound = self.checkpoint_bound();
        let close = self.closing.is_some();
        for group in &groups {
            self.visit(*group, now, out, |partition, turn| {
                partition.propose_gathered(turn);
                partition.checkpoint_if_due(bound, turn);
                if close {
                    partition.close(true, turn);
                }
            });
        }
        self.ask_leases(&groups, now, out);
        for group in &groups {
            self.settle(*group, now);
        }
        self.report_changes(now, out);
        if let Some(seq) = self.disk.token_due(now, &self.config.timing) {
            out.push(NodeEffect::WalToken { seq });
        }
        groups.clear();
        self.touched = groups;
    }

    /// While the node's whole tail is over its bound, every partition with a fair share of it is due.
    fn checkpoint_bound(&self) -> u64 {
        let limits = &self.config.limits;
        if self.unchecked <= limits.node_checkpoint_bytes {
            return limits.checkpoint_bytes;
        }
        let fair = limits.node_checkpoint_bytes / (self.partitions.len().max(1) as u64);
        limits.checkpoint_bytes.min(fair)
    }

    /// Takes over what a partition wants of its node after the turn.
    fn settle(&mut self, group: GroupId, now: BootTime) {
        if let Some(Hosted::Live(partition)) = self.partitions.get_mut(&group) {
            partition.touched = false;
            if std::mem::take(&mut partition.report_now) {
                self.report_groups.push(group);
            }
            self.deadline = self.deadline.min(partition.replica.next_deadline(now));
        }
    }

    /// Lets a partition handle something and executes what follows. False if it is not (or no more) live here.
    pub(super) fn visit(
        &mut self,
        group: GroupId,
        now: BootTime,
        out: &mut Vec<NodeEffect>,
        act: impl FnOnce(&mut PartitionReplica<P>, &mut Turn<'_>),
    ) -> bool {
        let Some(Hosted::Live(partition)) = self.partitions.get_mut(&group) else {
            return false;
        };
        let before = (partition.pipeline.bytes(), partition.checkpoints.tail());
        let mut turn = Turn {
            now,
            config: &self.config,
            cluster: &self.cluster,
            node_pending: self.pending,
            closing: self.closing.is_some(),
            room: self.space.room(),
            refuses_records: self.space.refuses_records(now),
            counters: &mut self.counters,
            out,
        };
        act(partition, &mut turn);
        partition.run(&mut turn);
        partition.advance_handoff(&mut turn);
        partition.run(&mut turn);
        let failed = partition.fail(&mut turn);
        self.pending = self.pending - before.0 + partition.pipeline.bytes();
        self.unchecked = self.unchecked - before.1 + partition.checkpoints.tail();
        if !std::mem::replace(&mut partition.touched, true) {
            self.touched.push(group);
        }
        if let Some(reason) = failed {
            self.unchecked -= partition.checkpoints.tail();
            let assignment = partition.assignment.clone();
            self.set_aside(group, assignment, reason, out);
        }
        true
    }

    pub(super) fn visit_all(
        &mut self,
        now: BootTime,
        out: &mut Vec<NodeEffect>,
        mut act: impl FnMut(&mut PartitionReplica<P>, &mut Turn<'_>),
    ) {
        for group in self.partitions.keys().copied().collect::<Vec<_>>() {
            self.visit(group, now, out, &mut act);
        }
    }

    /// A replica is hosted no more: what it counted for the node.
    pub(super) fn forget_totals(&mut self, partition: &PartitionReplica<P>) {
        self.pending -= partition.pipeline.bytes();
        self.unchecked -= partition.checkpoints.tail();
    }

    fn touch_all(&mut self) {
        for (group, hosted) in &mut self.partitions {
            if let Hosted::Live(partition) = hosted {
                if !std::mem::replace(&mut partition.touched, true) {
                    self.touched.push(*group);
                }
            }
        }
    }

    /// When the core wants a `Tick` at the latest.
    #[must_use]
    pub fn next_deadline(&self) -> BootTime {
        self.deadline.min(self.disk.deadline())
    }

    /// What was given at the start.
    #[must_use]
    pub fn config(&self) -> &NodeConfig {
        &self.config
    }

    /// State of the node.
    #[must_use]
    pub fn status(&self, now: BootTime) -> NodeStatus {
        let aside = |(group, hosted): (&GroupId, &Hosted<P>)| hosted.live().is_none().then_some(*group);
        NodeStatus {
            replicas: self.partitions.len(),
            leaders: self.partitions.values().filter_map(Hosted::live).filter(|p| p.leading.is_some()).count(),
            wal_age: self.disk.age(now, self.oldest_write),
            disk_ok: self.disk.ok(),
            room: self.space.room(),
            nobody_else: self.nobody_else,
            pending_bytes: self.pending,
            quarantined: self.partitions.iter().filter_map(aside).collect(),
            counters: self.counters,
        }
    }

    /// Groups hosted, those set aside included.
    pub fn groups(&self) -> impl Iterator<Item = GroupId> + '_ {
        self.partitions.keys().copied()
    }

    /// State of one replica.
    #[must_use]
    pub fn partition(&self, group: GroupId, now: BootTime) -> Option<PartitionStatus> {
        match self.partitions.get(&group)? {
            Hosted::Live(partition) => Some(partition.status(now)),
            Hosted::Aside { assignment, .. } => {
                Some(set_aside_status(assignment, self.partitions.get(&group)?.report(now)))
            }
        }
    }
}

fn set_aside_status(assignment: &Assignment, report: quorate_proto::control::ReplicaReport) -> PartitionStatus {
    debug_assert_eq!(report.role, Role::Quarantined);
    PartitionStatus {
        ageing_stopped: false,
        assignment: assignment.clone(),
        report,
        serve_until: BootTime::ZERO,
        contact_age: None,
        pending_bytes: 0,
        pending_requests: 0,
        unchecked_bytes: 0,
        checkpoint: quorate_proto::ids::LogIndex::ZERO,
    }
}
