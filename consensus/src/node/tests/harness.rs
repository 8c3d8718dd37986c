//! Three data nodes with one clock, wires that can be cut, disks that can hang, storages that keep what they are
//! given, and observers that grant leases unless told otherwise.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use quorate_proto::batch::{BatchBuilder, BatchIdentity, BatchOptions, Priority, Record};
use quorate_proto::control::{
    Assignment, Assignments, Heartbeat, Hello, LeaseAnswer, LeaseRequest, LeaseVerdict, LockProof, Permit, PermitKind,
    Planned, ReplicaReport, SessionDown, SessionUp,
};
use quorate_proto::ids::{
    ClusterId, ConfigVersion, DirectoryVersion, DiskId, GroupId, Incarnation, NodeId, Offset, OperationId, PartitionNo,
    PermitEpoch, ProducerEpoch, ProducerId, ReplicaId, Sequence, Term, Ticket, TopicId,
};
use quorate_proto::refusal::Refusal;
use quorate_proto::time::{BootTime, LogTime};
use quorate_proto::v1::Receipt;

use super::host::{name_of, node, runs, Job, Node};
use crate::envelope::Envelope;
use crate::node::effect::Observers;
use crate::node::event::Publish;
use crate::node::stored::{decode_assignment, ASSIGNMENT};
use crate::node::{MachineImage, NodeConfig, NodeEffect, NodeEvent, NodeLimits};
use crate::replica::{restored, ObserverLoss, META_KEY};
use crate::timing::Timing;

pub(super) const GROUP: GroupId = GroupId(7);
pub(super) const PRODUCER: ProducerId = ProducerId(77);
/// Key under which the test's storage keeps its checkpoint.
pub(super) const STORAGE: &str = "storage";
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
        change: None,
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
            fresh: false,
            knows: quorate_proto::ids::DirectoryVersion::ZERO,
            knows_born: quorate_proto::time::LogTime::ZERO,
        },
        observers: vec![NodeId(101)],
        timing: Timing::default(),
        limits: limits.clone(),
        seed: node,
        suspect_log: false,
        lost_groups: std::collections::BTreeSet::new(),
        directory: bytes::Bytes::new(),
        log_lost: false,
        observer_loss: ObserverLoss::Stop,
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
        let permit = self.next_permit(id, None);
        for to in 1..=3 {
            self.down(to, SessionDown::Permits(vec![permit.clone()]));
        }
    }

    /// A planned handoff from the leader of node `from` to `to`, as the observers permit it.
    pub(super) fn plan(&mut self, from: u64, to: u64) {
        let term = self.report(from).term;
        let lease_from = self.now;
        let permit = self.next_permit(to, Some(Planned { from: ReplicaId(10 + from), term, lease_from }));
        for to in 1..=3 {
            self.down(to, SessionDown::Permits(vec![permit.clone()]));
        }
    }

    pub(super) fn report(&self, id: u64) -> ReplicaReport {
        self.nodes[&id].core.partition(GROUP, self.now).expect("hosted").report
    }

    fn next_permit(&mut self, id: u64, planned: Option<Planned>) -> Permit {
        self.epoch += 1;
        Permit {
            group: GROUP,
            epoch: PermitEpoch(self.epoch),
            candidate: ReplicaId(10 + id),
            candidate_incarnation: self.nodes[&id].core.config().hello.incarnation,
            config_version: ConfigVersion(1),
            basis: Vec::new(),
            clear: true,
            kind: PermitKind::Normal,
            planned,
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
                    self.event(to, NodeEvent::Peer { from: NodeId(from), envelope: Box::new(envelope) });
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
    Assignments {
        version: DirectoryVersion(version),
        peers: Vec::new(),
        replicas: vec![assignment(node)],
        retired: Vec::new(),
    }
}
