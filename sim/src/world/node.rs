//! Turns of data nodes and what their cores ask for.

use std::time::Duration;

use quorate_consensus::effect::{Note, PersistWrite};
use quorate_consensus::envelope::{Envelope, Lane};
use quorate_consensus::node::effect::{Observers, View};
use quorate_consensus::node::{NodeEffect, NodeEvent};
use quorate_consensus::policy::Policy;
use quorate_proto::ids::{GroupId, Incarnation, LogIndex, NodeId, ReplicaId, Term};
use quorate_proto::time::BootTime;

use super::{Message, What, World};
use crate::disk::{Done, Job};
use crate::net::Host;
use crate::storage::{encode_checkpoint, Parcel, CHECKPOINT};
use crate::time::Instant;

impl<P: Policy> World<P> {
    pub(crate) fn node_start(&mut self, id: NodeId) {
        if self.nodes[&id].process.is_some() {
            return;
        }
        let seed = self.chance.word();
        let (now, timing) = (self.now, self.timing.clone());
        let node = self.node_mut(id);
        let effects = node.start(now, &super::OBSERVERS, &timing, seed);
        let incarnation = node.incarnation;
        self.say(format_args!("node-{} starts, {incarnation}", id.0));
        self.execute(id, effects);
        self.post_to_node(id, NodeEvent::Tick);
    }

    /// The process is gone. `keep_flush`: the flush in flight reached the disk.
    pub(crate) fn node_crash(&mut self, id: NodeId) {
        let keep = self.chance.one_in(500);
        let node = self.node_mut(id);
        if node.process.take().is_none() {
            return;
        }
        node.disk.crash(keep);
        node.paused_until = None;
        node.parcels.clear();
        self.serving.gone(id);
        self.say(format_args!("node-{} is gone", id.0));
        self.break_streams_of(Host::Node(id.0));
        self.tickets.retain(|(node, _), _| *node != id);
        for other in super::NODES.into_iter().filter(|other| *other != id) {
            if !self.net.is_cut(Host::Node(id.0), Host::Node(other.0)) {
                let incarnation = self.nodes[&other].incarnation;
                self.after(
                    Duration::from_millis(1),
                    What::ToNode(other, incarnation, Box::new(NodeEvent::PeerLost(id))),
                );
            }
        }
    }

    pub(crate) fn post_to_node(&mut self, id: NodeId, event: NodeEvent) {
        let delay = self.chance.span(Duration::from_micros(2), Duration::from_micros(60));
        let now = self.now;
        let node = self.node_mut(id);
        let (awake, incarnation) = (node.awake(now), node.incarnation);
        let Some(process) = &mut node.process else { return };
        process.mailbox.push_back(event);
        if awake && !process.turn_due {
            process.turn_due = true;
            self.after(delay, What::Turn(Host::Node(id.0), incarnation));
        }
    }

    pub(crate) fn node_turn(&mut self, id: NodeId, incarnation: Incarnation) {
        let now = self.now;
        // What waits on other connections is read in a later turn: a process that was stopped may take up an old
        // answer long before it hears of its successor.
        let take = self.chance.between(1, 40);
        let node = self.node_mut(id);
        if node.incarnation != incarnation || !node.awake(now) {
            if let Some(process) = &mut node.process {
                process.turn_due = false;
            }
            return;
        }
        let clock = node.clock.read(now);
        let Some(process) = &mut node.process else { return };
        process.turn_due = false;
        let mut out = Vec::new();
        for _ in 0..take {
            let Some(event) = process.mailbox.pop_front() else { break };
            process.core.handle(clock, event, &mut out);
        }
        process.core.flush(clock, &mut out);
        if !process.mailbox.is_empty() {
            process.turn_due = true;
            let pause = self.chance.span(Duration::from_micros(5), Duration::from_micros(400));
            self.after(pause, What::Turn(Host::Node(id.0), incarnation));
        }
        self.execute(id, out);
        self.schedule_node_tick(id);
    }

    fn schedule_node_tick(&mut self, id: NodeId) {
        let now = self.now;
        let node = self.node_mut(id);
        let (clock, incarnation) = (node.clock, node.incarnation);
        let Some(process) = &mut node.process else { return };
        let due = clock.when(process.core.next_deadline(), now).max(now + Duration::from_micros(50));
        if due < process.tick_due || process.tick_due <= now {
            process.tick_due = due;
            self.at(due, What::Tick(Host::Node(id.0), incarnation));
        }
    }

    pub(crate) fn tick(&mut self, host: Host, incarnation: Incarnation) {
        match host {
            Host::Node(id) if self.nodes[&NodeId(id)].incarnation == incarnation => {
                self.post_to_node(NodeId(id), NodeEvent::Tick);
            }
            Host::Observer(id) if self.observers[&NodeId(id)].incarnation == incarnation => {
                self.observer_tick(NodeId(id));
            }
            _ => {}
        }
    }

    fn execute(&mut self, id: NodeId, effects: Vec<NodeEffect>) {
        for effect in effects {
            if self.nodes[&id].process.is_none() {
                return;
            }
            self.node_effect(id, effect);
        }
    }

    fn node_effect(&mut self, id: NodeId, effect: NodeEffect) {
        match effect {
            NodeEffect::Persist(write) => self.node_write(id, Job::Write(write)),
            NodeEffect::WalToken { seq } => self.node_write(id, Job::Token(seq)),
            NodeEffect::Canary => self.node_write(id, Job::Canary),
            NodeEffect::Send { node, lane, envelope } => self.node_send(id, node, lane, envelope),
            NodeEffect::Session { to, message } => self.session_send(id, to, Message::Up(message)),
            NodeEffect::Answer { ticket, result } => self.answer(id, ticket, result),
            NodeEffect::ReadAnswer { .. } | NodeEffect::Peers(_) => {}
            NodeEffect::Open(assignment) => {
                self.node_mut(id).segments.entry(assignment.group).or_default();
            }
            NodeEffect::Append { group, entries } => {
                for entry in &entries {
                    let result = self.offsets.applied(self.now, group, id, entry);
                    self.check(result);
                }
                self.node_mut(id).segments.entry(group).or_default().append(entries);
            }
            NodeEffect::View { group, view } => self.view(id, group, view),
            NodeEffect::ServeUntil { group, until } => self.serve_until(id, group, until),
            NodeEffect::Fetch { group, from, to, max_bytes } => self.fetch(id, group, from, to, max_bytes),
            NodeEffect::Checkpoint { group, index, term, state } => {
                let value = encode_checkpoint(index, term, &state);
                let event = NodeEvent::Checkpointed { group, index, puts: vec![(CHECKPOINT, value)] };
                self.coverage.count("checkpoints");
                self.storage_answers(id, event);
            }
            NodeEffect::BuildSnapshot { group, to } => self.build_snapshot(id, group, to),
            NodeEffect::InstallSnapshot { group, index, term, data } => {
                self.install_snapshot(id, group, index, term, data)
            }
            NodeEffect::Quarantined { group, reason } => {
                self.say(format_args!("node-{} quarantines {group}: {reason}", id.0));
                self.coverage.count("quarantines");
            }
            NodeEffect::Fatal(reason) => {
                self.say(format_args!("node-{} is refused: {reason}", id.0));
                self.coverage.count("refused identities");
                self.node_crash(id);
            }
            NodeEffect::Note { group, note } => self.note(id, group, &note),
        }
    }

    fn note(&mut self, id: NodeId, group: GroupId, note: &Note) {
        match note {
            Note::Vetoed { rule, .. } => self.coverage.count(format!("veto {rule}")),
            Note::HandoffFailed(why) => {
                self.coverage.count("handoffs given up");
                self.say(format_args!("node-{} gives a handoff up in {group}: {why}", id.0));
            }
            Note::PermitSeen(_) => self.coverage.count("permits seen"),
            Note::Elected(term) => {
                self.coverage.count("elections");
                self.say(format_args!("node-{} is elected in {group}, {term}", id.0));
            }
            Note::Resigned(why) => {
                self.coverage.count(format!("resigned {why}"));
                self.say(format_args!("node-{} resigns in {group}: {why}", id.0));
            }
            Note::Fenced(closed) => self.coverage.count(if *closed { "fence closed" } else { "fence reopened" }),
            Note::Dropped(why) => self.coverage.count(format!("dropped {why}")),
        }
    }

    fn view(&mut self, id: NodeId, group: GroupId, view: View) {
        self.say(format_args!("node-{} {group} {} {:?} hw {}", id.0, view.term, view.role, view.high_watermark.0));
        if let Some(process) = &mut self.node_mut(id).process {
            process.terms.insert(group, view.term);
        }
    }

    fn serve_until(&mut self, id: NodeId, group: GroupId, until: BootTime) {
        let now = self.now;
        let node = self.node_mut(id);
        let end = if until == BootTime::ZERO { Instant::default() } else { node.clock.when(until, now) };
        let Some(process) = &mut node.process else { return };
        process.serve_until.insert(group, until);
        let term = process.core.partition(group, node.clock.read(now)).map_or(Term::ZERO, |status| status.report.term);
        let result = self.serving.right(now, group, id, term, end);
        self.check(result);
    }

    fn node_write(&mut self, id: NodeId, job: Job) {
        if let Job::Write(PersistWrite { group, id: persist, entries, .. }) = &job {
            self.trace.line(self.now, format_args!("node-{} writes {group} {persist} {} entries", id.0, entries.len()));
        }
        if self.node_mut(id).disk.submit(job) {
            self.node_flush(id);
        }
    }

    fn node_flush(&mut self, id: NodeId) {
        let usual = self.chance.span(Duration::from_micros(300), Duration::from_micros(2_500));
        let slow = if self.chance.one_in(5) { Duration::from_millis(40) } else { Duration::ZERO };
        let node = self.node_mut(id);
        if node.disk.start() {
            let (span, incarnation) = (usual + slow + node.disk.slow, node.incarnation);
            self.after(span, What::Flushed(Host::Node(id.0), incarnation));
        }
    }

    pub(crate) fn node_flushed(&mut self, id: NodeId, incarnation: Incarnation) {
        let now = self.now;
        let node = self.node_mut(id);
        if node.incarnation != incarnation || node.process.is_none() {
            return;
        }
        if node.disk.fail_next {
            self.poisoned(id);
            return;
        }
        let at = node.clock.read(now);
        for done in node.disk.complete() {
            let event = match done {
                Done::Persisted(group, id) => NodeEvent::Persisted { group, id, at },
                Done::Token(seq) => NodeEvent::TokenBack { seq, age: Duration::ZERO },
                Done::Canary => NodeEvent::CanaryFlushed { at },
            };
            self.post_to_node(id, event);
        }
        self.node_flush(id);
    }

    /// B3: the core serves no more and releases; then the process exits with its own status.
    fn poisoned(&mut self, id: NodeId) {
        self.coverage.count("flush errors");
        self.say(format_args!("node-{} has a flush error", id.0));
        let clock = self.nodes[&id].clock.read(self.now);
        let mut out = Vec::new();
        if let Some(process) = &mut self.node_mut(id).process {
            process.core.handle(clock, NodeEvent::WalPoisoned, &mut out);
            process.core.flush(clock, &mut out);
        }
        self.execute(id, out);
        self.node_mut(id).suspect = true;
        self.exit(id, true, Duration::from_secs(3));
    }

    fn node_send(&mut self, from: NodeId, to: NodeId, lane: Lane, envelope: Box<Envelope>) {
        let parcel = (lane == Lane::Snapshot).then(|| self.parcel(from, &envelope)).flatten();
        let (a, b) = (Host::Node(from.0), Host::Node(to.0));
        let number = match lane {
            Lane::Control => 0,
            Lane::Bulk => 1,
            Lane::Snapshot => 2,
        };
        self.trace.line(self.now, format_args!("{a} → {b} {:?} {}", envelope.message.get_msg_type(), envelope.group));
        let arrivals = self.net.datagram(&mut self.chance, self.now, a, b, number);
        if lane == Lane::Snapshot {
            let event = NodeEvent::SnapshotSent { group: envelope.group, to: envelope.to, ok: !arrivals.is_empty() };
            self.storage_answers(from, event);
        }
        for at in arrivals {
            self.at(at, What::Peer(to, envelope.clone(), parcel.clone()));
        }
    }

    pub(crate) fn node_peer(&mut self, to: NodeId, envelope: Box<Envelope>, parcel: Option<Parcel>) {
        if let Some(parcel) = parcel {
            self.node_mut(to).parcels.insert((envelope.group, parcel.index), parcel);
        }
        self.post_to_node(to, NodeEvent::Peer(envelope));
    }

    fn parcel(&self, from: NodeId, envelope: &Envelope) -> Option<Parcel> {
        let index = LogIndex(envelope.message.get_snapshot().get_metadata().index);
        let segments = self.nodes[&from].segments.get(&envelope.group)?.up_to(index);
        Some(Parcel { index, segments })
    }

    fn storage_answers(&mut self, id: NodeId, event: NodeEvent) {
        let delay = self.chance.span(Duration::from_micros(200), Duration::from_millis(8));
        let incarnation = self.nodes[&id].incarnation;
        self.after(delay, What::ToNode(id, incarnation, Box::new(event)));
    }

    fn fetch(&mut self, id: NodeId, group: GroupId, from: LogIndex, to: LogIndex, max_bytes: u64) {
        let entries = self.nodes[&id].disk.group(group).and_then(|log| log.fetch(from, to, max_bytes));
        self.coverage.count("entries fetched");
        self.storage_answers(id, NodeEvent::EntriesFetched { group, from, entries });
    }

    fn build_snapshot(&mut self, id: NodeId, group: GroupId, to: ReplicaId) {
        self.coverage.count("snapshots built");
        let Some((index, term, data)) = self.nodes[&id].checkpoint(group) else { return };
        let conf_state = raft::eraftpb::ConfState::default();
        self.storage_answers(id, NodeEvent::SnapshotBuilt { group, to, index, term, conf_state, data });
    }

    fn install_snapshot(&mut self, id: NodeId, group: GroupId, index: LogIndex, term: Term, data: bytes::Bytes) {
        self.coverage.count("snapshots installed");
        let node = self.node_mut(id);
        let Some(parcel) = node.parcels.remove(&(group, index)) else {
            let what = format!("node-{} installs a snapshot of {group} at {index} that never came", id.0);
            let violation = crate::checker::Violation::new("snapshots arrive whole", self.now, what);
            self.check(Err(violation));
            return;
        };
        let image = parcel.segments.image(index, data.clone());
        node.segments.insert(group, parcel.segments);
        let puts = vec![(CHECKPOINT, encode_checkpoint(index, term, &data))];
        self.storage_answers(id, NodeEvent::SnapshotInstalled { group, index, image, puts });
    }

    fn session_send(&mut self, id: NodeId, to: Observers, message: Message) {
        let host = Host::Node(id.0);
        let ids: Vec<u64> = self
            .streams
            .values()
            .filter(|stream| stream.a == host && matches!(stream.b, Host::Observer(_)))
            .filter(|stream| match to {
                Observers::All => true,
                Observers::One(observer) => stream.b == super::observer::host(observer),
            })
            .map(|stream| stream.id)
            .collect();
        for stream in ids {
            self.write(stream, true, message.clone());
        }
    }
}
