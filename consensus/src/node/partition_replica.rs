//! One replica with its machine and its publishes: [`PartitionReplica`].
//!
//! Events go to the [`Replica`]; [`PartitionReplica::run`] (`execute.rs`) turns what it asks for into node effects
//! and feeds the machine. At the end of a turn everything that gathered is proposed (`publish.rs`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use quorate_proto::control::{
    Assignment, ChangeReport, LeaseItem, LeaseVerdict, Permit, ReplicaReport, Role, Room, SessionUp,
};
use quorate_proto::ids::{GroupId, LogIndex, NodeId, PersistId, ReplicaId, Term};
use quorate_proto::time::BootTime;
use raft::eraftpb::{Entry, MessageType};

use super::checkpoints::Checkpoints;
use super::cluster_time::ClusterTime;
use super::config::{MachineImage, NodeConfig};
use super::early_keys::EarlyKeys;
use super::effect::{NodeEffect, Observers, View};
use super::handoff::Handoff;
use super::marks::Marks;
use super::pipeline::Pipeline;
use super::reads::Reads;
use super::status::{NodeCounters, PartitionStatus};
use super::stored::restore_machine;
use crate::effect::{Note, ReplicaEffect, Restored};
use crate::envelope::Envelope;
use crate::partition::Partition;
use crate::policy::Policy;
use crate::replica::{without_records, Mode, Quarantine, Replica, ReplicaConfig, SnapshotImage, CACHE_BYTES};

/// What a partition needs of its node while it handles one event.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    pub(super) now: BootTime,
    pub(super) config: &'a NodeConfig,
    pub(super) cluster: &'a ClusterTime,
    /// Publishes admitted and undecided on the whole node, bytes.
    pub(super) node_pending: u64,
    /// The node is closing.
    pub(super) closing: bool,
    /// Room on the node's disks (B5).
    pub(super) room: Room,
    /// They are full for so long that nothing that carries records is appended any more.
    pub(super) refuses_records: bool,
    pub(super) counters: &'a mut NodeCounters,
    pub(super) out: &'a mut Vec<NodeEffect>,
}

impl Turn<'_> {
    /// To every observer: only their leader acts on it, and this node need not know who that is.
    pub(super) fn tell_observers(&mut self, message: SessionUp) {
        self.out.push(NodeEffect::Session { to: Observers::All, message: Box::new(message) });
    }
}

/// A term that this replica released (H1, F3).
#[derive(Clone, Copy, Debug)]
pub(super) struct Release {
    pub(super) term: Term,
    pub(super) for_fence: bool,
    pub(super) at: BootTime,
    /// Since when a flush hung then.
    pub(super) stood_since: Option<BootTime>,
}

/// What a replica is opened with beside its node's configuration.
#[derive(Debug)]
pub(super) struct Opening {
    pub(super) assignment: Assignment,
    pub(super) restored: Restored,
    pub(super) image: Option<MachineImage>,
    pub(super) election_ticks: usize,
    pub(super) suspect_log: bool,
    pub(super) first_write: PersistId,
    /// Start of the process (V1c).
    pub(super) started: BootTime,
}

/// A replica that takes part.
#[derive(Debug)]
pub(super) struct PartitionReplica<P: Policy> {
    pub(super) assignment: Assignment,
    pub(super) nodes: BTreeMap<ReplicaId, NodeId>,
    pub(super) replica: Replica<P>,
    pub(super) machine: Partition,
    pub(super) pipeline: Pipeline,
    pub(super) reads: Reads,
    pub(super) checkpoints: Checkpoints,
    pub(super) marks: Marks,
    /// A planned handoff in which this replica takes part (H1).
    pub(super) handoff: Handoff,
    /// What the replica asked for and is not executed yet.
    pub(super) effects: Vec<ReplicaEffect>,
    pub(super) view: View,
    /// Term in which this replica leads.
    pub(super) leading: Option<Term>,
    /// Newest release: told again, because a notice may be lost with its session or its observer leader.
    pub(super) released: Option<Release>,
    /// Writes not yet flushed and when they were handed out (B4).
    pub(super) writes: VecDeque<(PersistId, BootTime)>,
    /// A snapshot is being put in place.
    pub(super) installing: bool,
    /// Followers for whom a snapshot is being made.
    pub(super) building: BTreeSet<ReplicaId>,
    /// Bytes in the storage queue.
    pub(super) backlog: u64,
    /// Observers must hear of a change at once (P2).
    pub(super) report_now: bool,
    /// The machine cannot go on: set aside at the end of this event (M3).
    pub(super) failed: Option<String>,
    /// A mutant's table; production leaves it empty.
    pub(super) early_keys: EarlyKeys,
    /// What was said last about a change of members.
    pub(super) change_told: Option<ChangeReport>,
    /// Stands in the node's list of partitions that this turn touched.
    pub(super) touched: bool,
}

impl<P: Policy> PartitionReplica<P> {
    /// Takes up a replica where its log and its machine's checkpoint left it.
    pub(super) fn open(opening: Opening, turn: &Turn<'_>) -> Result<Self, Quarantine> {
        let Opening { assignment, restored, image, election_ticks, suspect_log, first_write, started } = opening;
        let (compacted, applied) = (restored.compacted, restored.applied);
        let machine = match image {
            Some(image) => restore_machine(&assignment, image)?,
            None => Partition::new(super::refuse::subject(&assignment), compacted),
        };
        if machine.applied().0 != applied {
            let reason = format!("the machine's checkpoint is at {}, the log's at {applied}", machine.applied().0);
            return Err(Quarantine { reason });
        }
        let config = ReplicaConfig {
            group: assignment.group,
            me: assignment.replica,
            incarnation: turn.config.hello.incarnation,
            timing: turn.config.timing.clone(),
            mode: Mode::Governed,
            election_ticks,
            started,
            suspect_log,
            observer_loss: turn.config.observer_loss,
            cache_bytes: CACHE_BYTES,
            first_write,
        };
        let replica = Replica::new(config, restored, turn.now)?;
        Ok(Self {
            nodes: assignment.members.iter().copied().collect(),
            assignment,
            replica,
            machine,
            pipeline: Pipeline::default(),
            reads: Reads::default(),
            checkpoints: Checkpoints::new(applied, turn.now),
            marks: Marks::default(),
            handoff: Handoff::default(),
            effects: Vec::new(),
            view: View::default(),
            leading: None,
            released: None,
            writes: VecDeque::new(),
            installing: false,
            building: BTreeSet::new(),
            backlog: 0,
            report_now: false,
            failed: None,
            early_keys: EarlyKeys::default(),
            change_told: None,
            touched: false,
        })
    }

    pub(super) fn group(&self) -> GroupId {
        self.assignment.group
    }

    /// Node of the leader that this replica follows, itself included.
    pub(super) fn leader_node(&self) -> Option<NodeId> {
        self.replica.leader().and_then(|leader| self.nodes.get(&leader).copied())
    }

    /// Makes `puts` durable with the log's current start: the first write of a new group.
    pub(super) fn record(&mut self, puts: Vec<(&'static str, Bytes)>, turn: &Turn<'_>) {
        let start = self.machine.applied().0;
        self.replica.compact(turn.now, start, puts, &mut self.effects);
    }

    /// Time passes. `heard`: when the last frame came from each peer node (P2 `hears_quorum` is about nodes).
    pub(super) fn tick(&mut self, heard: &BTreeMap<NodeId, BootTime>, turn: &mut Turn<'_>) {
        for (replica, node) in &self.nodes {
            if let Some(at) = heard.get(node) {
                self.replica.peer_heard(*at, *replica);
            }
        }
        self.replica.tick(turn.now, &mut self.effects);
        if self.replica.committed() == self.replica.last_index() {
            self.marks.log_whole(turn.now);
        }
        self.steer(turn);
        self.time_handoff(turn);
    }

    /// A message from a peer. Appends are not taken while storage is far behind: memory stays bounded, and the
    /// leader sends them again.
    pub(super) fn receive(&mut self, mut envelope: Envelope, turn: &mut Turn<'_>) {
        let append = envelope.message.get_msg_type() == MessageType::MsgAppend;
        if append && self.backlog > turn.config.limits.storage_backlog_bytes.saturating_mul(2) {
            let note = Note::Dropped("append while storage is behind");
            turn.out.push(NodeEffect::Note { group: self.group(), note });
            return;
        }
        if turn.refuses_records {
            if envelope.message.get_msg_type() == MessageType::MsgSnapshot {
                let note = Note::Dropped("snapshot while the disk is full");
                turn.out.push(NodeEffect::Note { group: self.group(), note });
                return;
            }
            without_records(&mut envelope.message);
        }
        let (from, to, forwarded) = (envelope.from, envelope.to, envelope.forwarded.take());
        self.replica.receive(turn.now, envelope, &mut self.effects);
        if let Some(forwarded) = forwarded.filter(|_| to == self.assignment.replica) {
            self.receive_forwarded(from, *forwarded, turn);
        }
    }

    /// The connection to a node broke.
    pub(super) fn peer_lost(&mut self, node: NodeId, turn: &mut Turn<'_>) {
        let peers = self.nodes.iter().filter(|(replica, on)| **on == node && **replica != self.assignment.replica);
        for (replica, _) in peers {
            self.replica.peer_lost(turn.now, *replica, &mut self.effects);
        }
        self.handoff_peer_lost(node, turn);
    }

    /// The write `id` is flushed.
    pub(super) fn persisted(&mut self, id: PersistId, turn: &Turn<'_>) {
        while self.writes.front().is_some_and(|(first, _)| *first <= id) {
            self.writes.pop_front();
        }
        self.replica.persisted(turn.now, id, &mut self.effects);
        self.pipeline.flushed(self.replica.persisted_index());
    }

    /// When the oldest write that is not flushed yet was handed out (B4).
    pub(super) fn oldest_write(&self) -> Option<BootTime> {
        self.writes.front().map(|(_, at)| *at)
    }

    /// What `Fetch` asked for.
    pub(super) fn entries_fetched(&mut self, from: LogIndex, entries: Option<Vec<Entry>>, turn: &Turn<'_>) {
        self.replica.entries_fetched(turn.now, from, entries, &mut self.effects);
    }

    /// A committed permit.
    pub(super) fn permit(&mut self, permit: Permit, turn: &mut Turn<'_>) {
        let mine = permit.candidate == self.assignment.replica
            && permit.candidate_incarnation == turn.config.hello.incarnation;
        if mine {
            self.marks.permitted(permit.epoch, turn.now);
        }
        self.leave(&permit, turn);
        self.replica.permit(turn.now, permit, &mut self.effects);
    }

    /// The lease to ask for now.
    pub(super) fn lease_due(&self, now: BootTime) -> Option<LeaseItem> {
        self.leading.and_then(|_| self.replica.lease_due(now))
    }

    /// The observers' answer for `term`; the lease counts from `sent` (L2).
    pub(super) fn lease_answered(&mut self, term: Term, verdict: LeaseVerdict, sent: BootTime, turn: &Turn<'_>) {
        match verdict {
            LeaseVerdict::Granted => {
                self.marks.leased(term, turn.now);
                self.replica.lease_granted(turn.now, term, sent, &mut self.effects);
            }
            LeaseVerdict::Superseded => self.replica.lease_superseded(turn.now, term, &mut self.effects),
            LeaseVerdict::NotNow => {}
        }
    }

    /// The WAL stalls (B4): serve no more and let another replica lead. Or it goes on.
    pub(super) fn stalled(&mut self, stalled: bool, turn: &Turn<'_>) {
        self.replica.hold_serving(turn.now, stalled, &mut self.effects);
        if stalled && self.leading.is_some() {
            self.replica.release(turn.now, "wal stall", &mut self.effects);
        }
        self.report_now = true;
    }

    /// The room on the node's disks changed (B5).
    pub(super) fn set_room(&mut self, room: Room) {
        self.replica.set_room(room);
        self.report_now = true;
    }

    /// The WAL failed (B3): the replica stops for good, so whoever waits is answered here.
    pub(super) fn poisoned(&mut self, turn: &mut Turn<'_>) {
        self.replica.wal_poisoned(turn.now, &mut self.effects);
        self.run(turn);
        self.end_leadership(None, turn);
        self.report_now = true;
    }

    /// The storage's checkpoint at `index` is durable: the log before it may go.
    pub(super) fn checkpointed(&mut self, index: LogIndex, puts: Vec<(&'static str, Bytes)>, turn: &Turn<'_>) {
        if let Some(through) = self.checkpoints.done(index, turn.config.limits.retain_bytes) {
            self.replica.compact_through(turn.now, index, through, puts, &mut self.effects);
        }
    }

    /// A snapshot for a follower stands ready in storage.
    pub(super) fn snapshot_built(&mut self, to: ReplicaId, mut image: SnapshotImage, turn: &Turn<'_>) {
        if self.building.remove(&to) {
            image.conf_state = self.replica.membership_at(image.index);
            self.replica.snapshot_built(turn.now, to, Some(image), &mut self.effects);
        }
    }

    /// Sending a snapshot ended, or it could not even be made.
    pub(super) fn snapshot_sent(&mut self, to: ReplicaId, ok: bool, turn: &Turn<'_>) {
        if self.building.remove(&to) {
            self.replica.snapshot_built(turn.now, to, None, &mut self.effects);
        } else {
            self.replica.snapshot_sent(turn.now, to, ok, &mut self.effects);
        }
    }

    /// A received snapshot stands in place of the group's files.
    pub(super) fn snapshot_installed(
        &mut self,
        index: LogIndex,
        image: MachineImage,
        puts: Vec<(&'static str, Bytes)>,
        turn: &mut Turn<'_>,
    ) {
        if !std::mem::take(&mut self.installing) {
            return;
        }
        match restore_machine(&self.assignment, image) {
            Ok(machine) if machine.applied().0 == index => self.machine = machine,
            Ok(machine) => {
                self.failed = Some(format!("the snapshot at {index} holds a machine at {}", machine.applied().0));
                return;
            }
            Err(quarantine) => {
                self.failed = Some(quarantine.reason);
                return;
            }
        }
        self.checkpoints.replaced(index, turn.now);
        self.replica.restored(turn.now, index, puts, &mut self.effects);
        self.show(turn);
    }

    /// Gives leadership up because the node is closing, once nothing is undecided or patience is over.
    pub(super) fn close(&mut self, patient: bool, turn: &Turn<'_>) {
        if self.leading.is_some() && (!patient || self.pipeline.is_empty()) {
            self.replica.release(turn.now, "shutdown", &mut self.effects);
        }
    }

    /// The newest release as the observers are told of it.
    pub(super) fn release_notice(&self, now: BootTime) -> Option<SessionUp> {
        let Release { term, for_fence, stood_since, .. } = self.released?;
        let stood = stood_since.map(|since| now.since(since)).unwrap_or_default();
        Some(SessionUp::Release { group: self.group(), replica: self.assignment.replica, term, for_fence, stood })
    }

    /// As the observers hear it.
    pub(super) fn report(&self, now: BootTime) -> ReplicaReport {
        ReplicaReport {
            high_watermark: self.machine.high_watermark(),
            digest: self.machine.digest().to_bytes(),
            config_version: self.assignment.config_version,
            change: self.change_report(),
            ..self.replica.report(now)
        }
    }

    /// As metrics see it.
    pub(super) fn status(&self, now: BootTime) -> PartitionStatus {
        PartitionStatus {
            ageing_stopped: self.machine.ageing_stopped(),
            assignment: self.assignment.clone(),
            report: self.report(now),
            serve_until: self.replica.serve_until(),
            contact_age: self.replica.contact(now).map(|contact| now.since(contact)),
            pending_bytes: self.pipeline.bytes(),
            pending_requests: self.pipeline.requests(),
            unchecked_bytes: self.checkpoints.tail(),
            checkpoint: self.checkpoints.durable(),
        }
    }

    /// Publishes the view if it changed.
    pub(super) fn show(&mut self, turn: &mut Turn<'_>) {
        let view = View {
            high_watermark: self.machine.high_watermark(),
            low_watermark: self.machine.low_watermark(),
            term: self.replica.term(),
            role: self.role(),
            leader: self.leader_node(),
        };
        if view != self.view {
            self.view = view;
            turn.out.push(NodeEffect::View { group: self.group(), view });
        }
    }

    fn role(&self) -> Role {
        if self.failed.is_some() {
            Role::Quarantined
        } else {
            self.replica.role()
        }
    }
}
