//! Three data nodes with one clock, wires that can be cut, disks that can hang, storages that keep what they are
//! given, and observers that grant leases unless told otherwise.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use quorate_proto::batch::{BatchBuilder, BatchIdentity, BatchOptions, Priority, Record};
use quorate_proto::control::{
    Assignment, Assignments, Heartbeat, Hello, LeaseAnswer, LeaseRequest, LeaseVerdict, LockProof, Permit, PermitKind,
    SessionDown, SessionUp,
};
use quorate_proto::ids::{
    ClusterId, ConfigVersion, DirectoryVersion, DiskId, GroupId, Incarnation, LogIndex, NodeId, Offset, OperationId,
    PartitionNo, PermitEpoch, ProducerEpoch, ProducerId, ReplicaId, Sequence, Term, Ticket, TopicId,
};
use quorate_proto::refusal::Refusal;
use quorate_proto::time::{BootTime, LogTime};
use quorate_proto::v1::Receipt;
use raft::eraftpb::{Entry, HardState};

use crate::effect::{Note, PersistWrite};
use crate::envelope::Envelope;
use crate::node::effect::{AppliedEntry, Observers, View};
use crate::node::event::Publish;
use crate::node::stored::{decode_assignment, ASSIGNMENT};
use crate::node::{MachineImage, NodeConfig, NodeCore, NodeEffect, NodeEvent, NodeLimits};
use crate::replica::{restored, ObserverLoss, META_KEY};
use crate::timing::Timing;

pub(super) const GROUP: GroupId = GroupId(7);
pub(super) const PRODUCER: ProducerId = ProducerId(77);
/// Key under which the test's storage keeps its checkpoint.
const STORAGE: &str = "storage";
/// Cluster time when the node's clock stands at zero.
const EPOCH_US: i64 = 1_700_000_000_000_000;

pub(super) fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(super) fn assignment(node: u64) -> Assignment {
    Assignment {
        group: GROUP,
        replica: ReplicaId(10 + node),
        topic: "default/orders".into(),
        topic_id: TopicId(5),
        partition: PartitionNo(0),
        members: (1..=3).map(|n| (ReplicaId(10 + n), NodeId(n))).collect(),
        config_version: ConfigVersion(1),
    }
}

/// What a read of the end is answered with.
pub(super) type ReadResult = Result<(Offset, Term), Refusal>;

/// One batch of `count` records of [`PRODUCER`].
pub(super) fn batch(epoch: u32, sequence: u64, count: u64) -> Bytes {
    sized_batch(
        Priority::Normal,
        BatchIdentity { producer: PRODUCER, epoch: ProducerEpoch(epoch), base_sequence: Sequence(sequence) },
        count,
        8,
    )
}

pub(super) fn sized_batch(priority: Priority, identity: BatchIdentity, count: u64, size: usize) -> Bytes {
    let mut builder = BatchBuilder::new(BatchOptions { priority, ..BatchOptions::default() });
    for n in 0..count {
        let value = Bytes::from(vec![b'a' + u8::try_from(n % 26).expect("a letter"); size]);
        builder.push(&Record { value, ..Record::default() }).expect("the record fits");
    }
    builder.finish(identity)
}

/// What survives a crash of one group.
#[derive(Default)]
pub(super) struct Stored {
    pub(super) entries: BTreeMap<u64, Entry>,
    pub(super) hard_state: Option<HardState>,
    pub(super) puts: BTreeMap<&'static str, Bytes>,
}

impl Stored {
    fn write(&mut self, write: &PersistWrite) {
        if write.clear {
            self.entries.clear();
        }
        if let Some(first) = write.entries.first() {
            self.entries.split_off(&first.index);
        }
        self.entries.extend(write.entries.iter().map(|entry| (entry.index, entry.clone())));
        if let Some(through) = write.compact_through {
            self.entries = self.entries.split_off(&(through.0 + 1));
        }
        if let Some(hard_state) = &write.hard_state {
            self.hard_state = Some(hard_state.clone());
        }
        self.puts.extend(write.puts.iter().cloned());
    }
}

pub(super) enum Job {
    Write(PersistWrite),
    Token(u64),
    Canary,
}

/// One node: its core and everything that its effects did.
pub(super) struct Node {
    pub(super) core: NodeCore,
    pub(super) up: bool,
    pub(super) disk: VecDeque<Job>,
    /// The disk does not finish anything.
    pub(super) hang: bool,
    pub(super) stored: BTreeMap<GroupId, Stored>,
    /// Storage: entries appended since the start or the last snapshot, and the newest checkpoint's state.
    pub(super) appended: Vec<AppliedEntry>,
    pub(super) checkpoint: Option<(LogIndex, Term, Bytes)>,
    /// Storage answers `Checkpoint` by itself.
    pub(super) checkpoints: bool,
    pub(super) answers: Vec<(Ticket, Result<Receipt, Refusal>)>,
    pub(super) reads: Vec<(Ticket, ReadResult)>,
    pub(super) told: Vec<(Observers, SessionUp)>,
    pub(super) serve_until: BootTime,
    pub(super) view: View,
    pub(super) opened: Vec<GroupId>,
    pub(super) quarantined: Vec<String>,
    pub(super) notes: Vec<Note>,
    pub(super) fatal: Option<String>,
    pub(super) canaries: usize,
    /// One line per effect, for tests of order.
    pub(super) trace: Vec<String>,
}

pub(super) struct Cluster {
    pub(super) now: BootTime,
    pub(super) nodes: BTreeMap<u64, Node>,
    pub(super) wire: VecDeque<(u64, u64, Envelope)>,
    /// One-way cuts: from, to.
    pub(super) cuts: BTreeSet<(u64, u64)>,
    /// The observers' answer to lease requests; `None` = none.
    pub(super) verdict: Option<LeaseVerdict>,
    pub(super) lease_requests: Vec<(u64, LeaseRequest)>,
    epoch: u64,
    tickets: u64,
}

pub(super) fn config(node: u64, incarnation: u64, limits: &NodeLimits) -> NodeConfig {
    NodeConfig {
        hello: Hello {
            cluster: ClusterId(1),
            node: NodeId(node),
            name: format!("n{node}"),
            incarnation: Incarnation(incarnation),
            disk: DiskId(node.into()),
            address: String::new(),
            peer_address: String::new(),
            fault_domain: String::new(),
            lock: LockProof::default(),
            supervisor_hash: String::new(),
            version: String::new(),
            pid: 0,
        },
        observers: vec![NodeId(101)],
        timing: Timing::default(),
        limits: limits.clone(),
        seed: node,
        suspect_log: false,
        observer_loss: ObserverLoss::Stop,
    }
}

fn node(id: u64, incarnation: u64, limits: &NodeLimits, now: BootTime) -> Node {
    Node {
        core: NodeCore::new(config(id, incarnation, limits), now),
        up: true,
        disk: VecDeque::new(),
        hang: false,
        stored: BTreeMap::new(),
        appended: Vec::new(),
        checkpoint: None,
        checkpoints: true,
        answers: Vec::new(),
        reads: Vec::new(),
        told: Vec::new(),
        serve_until: BootTime::ZERO,
        view: View::default(),
        opened: Vec::new(),
        quarantined: Vec::new(),
        notes: Vec::new(),
        fatal: None,
        canaries: 0,
        trace: Vec::new(),
    }
}

impl Cluster {
    /// Three nodes with one partition, nobody leads.
    pub(super) fn new() -> Self {
        Self::with_limits(&NodeLimits::default())
    }

    pub(super) fn with_limits(limits: &NodeLimits) -> Self {
        let start = BootTime(10_000_000_000);
        let mut cluster = Self {
            now: start,
            nodes: (1..=3).map(|id| (id, node(id, 1, limits, start))).collect(),
            wire: VecDeque::new(),
            cuts: BTreeSet::new(),
            verdict: Some(LeaseVerdict::Granted),
            lease_requests: Vec::new(),
            epoch: 0,
            tickets: 0,
        };
        for id in 1..=3 {
            cluster.event(id, NodeEvent::SessionUp(NodeId(101)));
            cluster.down(id, SessionDown::Assignments(assignments(id, 1)));
        }
        cluster.advance(100);
        cluster
    }

    /// The same with node 1 leading and serving.
    pub(super) fn led() -> Self {
        Self::led_with(&NodeLimits::default())
    }

    pub(super) fn led_with(limits: &NodeLimits) -> Self {
        let mut cluster = Self::with_limits(limits);
        cluster.elect(1);
        assert!(cluster.serving(1), "the permitted replica serves");
        cluster
    }

    /// Permits the replica of `id` and lets the election happen.
    pub(super) fn elect(&mut self, id: u64) {
        self.permit(id);
        self.settle();
        self.advance(50);
    }

    pub(super) fn permit(&mut self, id: u64) {
        self.epoch += 1;
        let permit = Permit {
            group: GROUP,
            epoch: PermitEpoch(self.epoch),
            candidate: ReplicaId(10 + id),
            candidate_incarnation: self.nodes[&id].core.config().hello.incarnation,
            config_version: ConfigVersion(1),
            basis: Vec::new(),
            clear: true,
            kind: PermitKind::Normal,
        };
        for to in 1..=3 {
            self.down(to, SessionDown::Permits(vec![permit.clone()]));
        }
    }

    pub(super) fn serving(&self, id: u64) -> bool {
        self.now < self.nodes[&id].serve_until
    }

    /// Hands an event to a node, ends its turn, executes what it asks for.
    pub(super) fn event(&mut self, id: u64, event: NodeEvent) {
        let mut out = Vec::new();
        let node = self.nodes.get_mut(&id).expect("a node of the cluster");
        if !node.up {
            return;
        }
        node.core.handle(self.now, event, &mut out);
        node.core.flush(self.now, &mut out);
        self.execute(id, out);
    }

    /// Several events in one turn.
    pub(super) fn turn(&mut self, id: u64, events: Vec<NodeEvent>) {
        let mut out = Vec::new();
        let node = self.nodes.get_mut(&id).expect("a node of the cluster");
        for event in events {
            node.core.handle(self.now, event, &mut out);
        }
        node.core.flush(self.now, &mut out);
        self.execute(id, out);
    }

    pub(super) fn down(&mut self, id: u64, message: SessionDown) {
        self.event(id, NodeEvent::Session { observer: NodeId(101), message: Box::new(message) });
    }

    pub(super) fn publish_event(&mut self, batch: Bytes) -> (Ticket, NodeEvent) {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        let publish = Publish {
            ticket,
            group: GROUP,
            batch,
            principal: Bytes::from_static(b"anonymous@test"),
            client_id: Bytes::new(),
            connection: 1,
            operation: OperationId(self.tickets.into()),
            deadline: BootTime::MAX,
        };
        (ticket, NodeEvent::Publish(publish))
    }

    /// Publishes at `id`, without letting anything else happen.
    pub(super) fn publish(&mut self, id: u64, batch: Bytes) -> Ticket {
        let (ticket, event) = self.publish_event(batch);
        self.event(id, event);
        ticket
    }

    pub(super) fn read(&mut self, id: u64) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.event(id, NodeEvent::ReadLatest { ticket, group: GROUP });
        ticket
    }

    /// The one answer to a publish, if it was given.
    pub(super) fn answer(&self, id: u64, ticket: Ticket) -> Option<Result<Receipt, Refusal>> {
        let mut answers = self.nodes[&id].answers.iter().filter(|(t, _)| *t == ticket);
        let first = answers.next().map(|(_, result)| result.clone());
        assert!(answers.next().is_none(), "{ticket} was answered twice");
        first
    }

    pub(super) fn receipt(&self, id: u64, ticket: Ticket) -> Receipt {
        self.answer(id, ticket).expect("answered").expect("committed")
    }

    pub(super) fn refusal(&self, id: u64, ticket: Ticket) -> Refusal {
        self.answer(id, ticket).expect("answered").expect_err("refused")
    }

    pub(super) fn read_answer(&self, id: u64, ticket: Ticket) -> Option<ReadResult> {
        self.nodes[&id].reads.iter().find(|(t, _)| *t == ticket).map(|(_, result)| result.clone())
    }

    pub(super) fn heartbeats(&self, id: u64) -> Vec<&Heartbeat> {
        let beats = self.nodes[&id].told.iter();
        beats.filter_map(|(_, up)| if let SessionUp::Heartbeat(beat) = up { Some(beat) } else { None }).collect()
    }

    /// Delivers everything on the wire and finishes everything on the disks that do not hang, until all is quiet.
    pub(super) fn settle(&mut self) {
        for _ in 0..100_000 {
            if let Some((from, to, envelope)) = self.wire.pop_front() {
                if !self.cuts.contains(&(from, to)) {
                    self.event(to, NodeEvent::Peer(Box::new(envelope)));
                }
                continue;
            }
            let ready = self.nodes.iter().find(|(_, n)| n.up && !n.hang && !n.disk.is_empty()).map(|(id, _)| *id);
            let Some(id) = ready else { return };
            self.finish_one(id);
        }
        panic!("the cluster does not come to rest");
    }

    /// Finishes the oldest job on a node's disk.
    pub(super) fn finish_one(&mut self, id: u64) {
        let at = self.now;
        let node = self.nodes.get_mut(&id).expect("a node of the cluster");
        let event = match node.disk.pop_front() {
            Some(Job::Write(write)) => {
                node.stored.entry(write.group).or_default().write(&write);
                NodeEvent::Persisted { group: write.group, id: write.id, at }
            }
            Some(Job::Token(seq)) => NodeEvent::TokenBack { seq, age: Duration::ZERO },
            Some(Job::Canary) => NodeEvent::CanaryFlushed { at },
            None => return,
        };
        self.event(id, event);
    }

    /// Time passes in steps of half a tick.
    pub(super) fn advance(&mut self, millis: u64) {
        for _ in 0..millis.div_ceil(50) {
            self.now += ms(50);
            for id in 1..=3 {
                self.event(id, NodeEvent::Tick);
            }
            self.settle();
        }
    }

    fn execute(&mut self, id: u64, effects: Vec<NodeEffect>) {
        let mut later = Vec::new();
        for effect in effects {
            let node = self.nodes.get_mut(&id).expect("a node of the cluster");
            node.trace.push(name_of(&effect));
            match effect {
                NodeEffect::Send { node, envelope, .. } => self.wire.push_back((id, node.get(), *envelope)),
                NodeEffect::Session { to, message } => self.session(id, to, *message, &mut later),
                other => node.execute(other, &mut later),
            }
        }
        for event in later {
            self.event(id, event);
        }
    }

    fn session(&mut self, id: u64, to: Observers, message: SessionUp, later: &mut Vec<NodeEvent>) {
        let cluster_time = LogTime(EPOCH_US + i64::try_from(self.now.0 / 1_000).expect("fits"));
        if let SessionUp::Lease(request) = &message {
            self.lease_requests.push((id, request.clone()));
            if let Some(verdict) = self.verdict {
                let results = request.items.iter().map(|item| (item.group, item.term, verdict)).collect();
                let answer = LeaseAnswer { sent: request.sent, cluster_time, results };
                let message = Box::new(SessionDown::Lease(answer));
                later.push(NodeEvent::Session { observer: NodeId(101), message });
            }
        }
        self.nodes.get_mut(&id).expect("a node of the cluster").told.push((to, message));
    }

    /// Executes effects that a test provoked by hand.
    pub(super) fn run_effects(&mut self, id: u64, effects: Vec<NodeEffect>) {
        self.execute(id, effects);
    }

    /// The process dies: what was not flushed is lost. Everybody waiting there is gone.
    pub(super) fn kill(&mut self, id: u64) {
        let node = self.nodes.get_mut(&id).expect("a node of the cluster");
        node.up = false;
        node.disk.clear();
        self.wire.retain(|(from, _, _)| *from != id);
    }

    /// Starts it again from what is stored.
    pub(super) fn restart(&mut self, id: u64) {
        let now = self.now;
        let old = self.nodes.get_mut(&id).expect("a node of the cluster");
        let limits = old.core.config().limits.clone();
        let incarnation = old.core.config().hello.incarnation.get() + 1;
        let mut fresh = node(id, incarnation, &limits, now);
        fresh.stored = std::mem::take(&mut old.stored);
        let mut out = Vec::new();
        for stored in fresh.stored.values() {
            let entries = stored.entries.values().cloned().collect();
            let log = restored(&stored.puts[META_KEY], stored.hard_state.clone(), entries).expect("readable");
            let assignment = decode_assignment(stored.puts[ASSIGNMENT].clone()).expect("readable");
            let image = stored
                .puts
                .get(STORAGE)
                .map(|state| MachineImage { state: state.clone(), key_runs: runs(&old.appended) });
            fresh.appended = old.appended.iter().filter(|entry| entry.index <= log.applied).cloned().collect();
            fresh.core.open(assignment, log, image, now, &mut out);
        }
        fresh.core.flush(now, &mut out);
        self.nodes.insert(id, fresh);
        self.execute(id, out);
        self.event(id, NodeEvent::SessionUp(NodeId(101)));
    }

    /// Offset → first payload byte of every visible batch, as storage holds it: equal on all replicas.
    pub(super) fn offsets(&self, id: u64) -> Vec<(u64, u64)> {
        let batches = self.nodes[&id].appended.iter().flat_map(|entry| &entry.batches);
        batches.map(|batch| (batch.base_offset.get(), batch.end_offset.get())).collect()
    }

    pub(super) fn digest(&self, id: u64) -> Bytes {
        self.nodes[&id].core.partition(GROUP, self.now).expect("hosted").report.digest
    }
}

pub(super) fn assignments(node: u64, version: u64) -> Assignments {
    Assignments { version: DirectoryVersion(version), peers: Vec::new(), replicas: vec![assignment(node)] }
}

fn runs(appended: &[AppliedEntry]) -> Vec<Bytes> {
    appended.iter().map(|entry| entry.keys.clone()).filter(|keys| !keys.is_empty()).collect()
}

impl Node {
    fn execute(&mut self, effect: NodeEffect, later: &mut Vec<NodeEvent>) {
        match effect {
            NodeEffect::Persist(write) => self.disk.push_back(Job::Write(write)),
            NodeEffect::WalToken { seq } => self.disk.push_back(Job::Token(seq)),
            NodeEffect::Canary => {
                self.canaries += 1;
                self.disk.push_back(Job::Canary);
            }
            NodeEffect::Answer { ticket, result } => self.answers.push((ticket, result)),
            NodeEffect::ReadAnswer { ticket, result } => self.reads.push((ticket, result)),
            NodeEffect::Open(assignment) => self.opened.push(assignment.group),
            NodeEffect::Append { entries, .. } => self.appended.extend(entries),
            NodeEffect::View { view, .. } => self.view = view,
            NodeEffect::ServeUntil { until, .. } => self.serve_until = until,
            NodeEffect::Quarantined { reason, .. } => self.quarantined.push(reason),
            NodeEffect::Note { note, .. } => self.notes.push(note),
            NodeEffect::Fatal(reason) => self.fatal = Some(reason),
            NodeEffect::Fetch { group, from, to, .. } => {
                let entries = self.stored.get(&group).and_then(|stored| stored.range(from.0, to.0));
                later.push(NodeEvent::EntriesFetched { group, from, entries });
            }
            other => self.store(other, later),
        }
    }

    fn store(&mut self, effect: NodeEffect, later: &mut Vec<NodeEvent>) {
        match effect {
            NodeEffect::Checkpoint { group, index, term, state } => {
                self.checkpoint = Some((index, term, state.clone()));
                if self.checkpoints {
                    later.push(NodeEvent::Checkpointed { group, index, puts: vec![(STORAGE, state)] });
                }
            }
            NodeEffect::BuildSnapshot { group, to } => {
                let (index, term, data) = self.checkpoint.clone().expect("the log was compacted after a checkpoint");
                let conf_state = raft::eraftpb::ConfState::default();
                later.push(NodeEvent::SnapshotBuilt { group, to, index, term, conf_state, data });
                later.push(NodeEvent::SnapshotSent { group, to, ok: true });
            }
            NodeEffect::InstallSnapshot { group, index, term, data } => {
                self.appended.clear();
                self.checkpoint = Some((index, term, data.clone()));
                let image = MachineImage { state: data.clone(), key_runs: Vec::new() };
                later.push(NodeEvent::SnapshotInstalled { group, index, image, puts: vec![(STORAGE, data)] });
            }
            _ => {}
        }
    }
}

impl Stored {
    fn range(&self, from: u64, to: u64) -> Option<Vec<Entry>> {
        let entries: Vec<Entry> = self.entries.range(from..to).map(|(_, entry)| entry.clone()).collect();
        entries.first().is_some_and(|entry| entry.index == from).then_some(entries)
    }
}

fn name_of(effect: &NodeEffect) -> String {
    match effect {
        NodeEffect::Persist(_) => "persist".into(),
        NodeEffect::Answer { ticket, result } => format!("answer {} {}", ticket.get(), result.is_ok()),
        NodeEffect::Append { .. } => "append".into(),
        NodeEffect::View { view, .. } => format!("view {}", view.high_watermark.get()),
        NodeEffect::ServeUntil { until, .. } if *until == BootTime::ZERO => "serve no more".into(),
        NodeEffect::ServeUntil { .. } => "serve".into(),
        NodeEffect::Session { message, .. } => match &**message {
            SessionUp::Hello(_) => "hello".into(),
            SessionUp::Heartbeat(beat) if beat.partial => "changes".into(),
            SessionUp::Heartbeat(_) => "beat".into(),
            SessionUp::Lease(_) => "lease".into(),
            SessionUp::Release { .. } => "release".into(),
            SessionUp::AskPermit { .. } => "ask".into(),
            SessionUp::Phases(_) => "phases".into(),
        },
        NodeEffect::Send { .. } => "send".into(),
        NodeEffect::Open(_) => "open".into(),
        NodeEffect::InstallSnapshot { .. } => "install".into(),
        _ => "other".into(),
    }
}
