//! What data nodes' cores ask for, executed in order.

use std::time::Duration;

use quorate_consensus::effect::Note;
use quorate_consensus::envelope::{Envelope, Lane};
use quorate_consensus::node::effect::{AppliedEntry, Observers, View};
use quorate_consensus::node::{NodeEffect, NodeEvent};
use quorate_consensus::policy::Policy;
use quorate_proto::control::Room;
use quorate_proto::ids::{GroupId, LogIndex, NodeId, Offset, ReplicaId, Term, Ticket};
use quorate_proto::refusal::Refusal;
use quorate_proto::time::BootTime;
use quorate_proto::v1::Receipt;

use super::{Message, What, World, NODES};
use crate::checker::{completeness, majority, Violation};
use crate::disk::Job;
use crate::net::Host;
use crate::storage::{encode_checkpoint, Parcel, CHECKPOINT};
use crate::time::Instant;

impl<P: Policy> World<P> {
    pub(crate) fn execute(&mut self, id: NodeId, effects: Vec<NodeEffect>) {
        for effect in effects {
            if self.nodes[&id].process.is_none() {
                return;
            }
            self.node_effect(id, effect);
        }
    }

    /// Every write of the turn is out.
    pub(crate) fn after_effects(&mut self) {
        for (group, node, term) in std::mem::take(&mut self.elected) {
            let Self { checkers, now, .. } = self;
            let result = completeness::elected(*now, group, node, term, &checkers.offsets, &checkers.logs);
            self.check(result);
        }
    }

    fn node_effect(&mut self, id: NodeId, effect: NodeEffect) {
        match effect {
            NodeEffect::Persist(write) => self.node_write(id, Job::Write(write)),
            NodeEffect::WalToken { seq } => self.node_write(id, Job::Token(seq)),
            NodeEffect::Canary => self.node_write(id, Job::Canary),
            NodeEffect::Send { node, lane, envelope } => {
                let forwarded = envelope.forwarded.as_ref().map_or(0, |forwarded| forwarded.publishes.len());
                self.coverage.add("publishes forwarded", forwarded as u64);
                self.node_send(id, node, lane, envelope);
            }
            NodeEffect::Session { to, message } => self.session_send(id, to, Message::Up(message)),
            NodeEffect::Answer { ticket, result } => self.publish_answer(id, ticket, result),
            NodeEffect::ReadAnswer { ticket, result } => self.read_answer(id, ticket, result),
            NodeEffect::Peers(_) | NodeEffect::KeepDirectory(_) => {}
            NodeEffect::Retire { group, replica } => {
                self.coverage.count("replicas retired");
                let hosted = self.hosted.get(&(id, group)) == Some(&replica);
                if hosted {
                    self.hosted.remove(&(id, group));
                }
                self.node_mut(id).retire(group, replica, hosted);
            }
            NodeEffect::Reopen { group, replica } => {
                self.say(format_args!("node-{} starts again to open replica {} of {group}", id.0, replica.0));
                self.coverage.count("kept replicas opened again");
                // The shell hands its leaders over first; here it dies on them.
                self.exit(id, true, Duration::from_millis(1_200));
            }
            NodeEffect::RaiseIncarnation(above) => self.raise_incarnation(id, above),
            NodeEffect::Open(assignment) => self.opened(id, &assignment),
            NodeEffect::Append { group, entries } => self.append(id, group, entries),
            NodeEffect::View { group, view } => self.view(id, group, view),
            NodeEffect::ServeUntil { group, until } => self.serve_until(id, group, until),
            NodeEffect::Fetch { group, from, to, max_bytes } => {
                let entries = self.nodes[&id].disk.group(group).and_then(|log| log.fetch(from, to, max_bytes));
                self.coverage.count("entries fetched");
                self.storage_answers(id, NodeEvent::EntriesFetched { group, from, entries });
            }
            NodeEffect::Checkpoint { group, index, term, state } => {
                let value = encode_checkpoint(index, term, &state);
                self.node_mut(id).made.insert(group, (index, term, state));
                let event = NodeEvent::Checkpointed { group, index, puts: vec![(CHECKPOINT, value)] };
                self.coverage.count("checkpoints");
                self.storage_answers(id, event);
            }
            NodeEffect::BuildSnapshot { group, to } => self.build_snapshot(id, group, to),
            NodeEffect::InstallSnapshot { group, index, term, data } => {
                self.install_snapshot(id, group, index, term, data);
            }
            NodeEffect::Quarantined { group, reason } => {
                self.say(format_args!("node-{} quarantines {group}: {reason}", id.0));
                self.coverage.count("quarantines");
            }
            NodeEffect::Fatal(reason) => {
                self.say(format_args!("node-{} is refused: {reason}", id.0));
                self.coverage.count("refused identities");
                // An operator looks, and starts it again.
                self.exit(id, true, Duration::from_millis(700));
            }
            NodeEffect::Room(room) => {
                self.say(format_args!("node-{} has {room} room", id.0));
                if room == Room::Full {
                    self.coverage.count("disks full");
                }
            }
            // The simulated disk has no ballast.
            NodeEffect::Ballast(_) => {}
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
            Note::MembershipStep => {
                self.coverage.count("membership steps");
                self.say(format_args!("node-{} changes the members of {group}", id.0));
            }
            Note::ToldStale { .. } => self.coverage.count("stale messages answered"),
        }
    }

    fn append(&mut self, id: NodeId, group: GroupId, entries: Vec<AppliedEntry>) {
        let own = self.term_of(id, group);
        for entry in &entries {
            let result = self.checkers.offsets.applied(self.now, group, (id, own), entry);
            self.check(result);
            let result = self.checkers.log_time.applied(self.now, group, entry.index, entry.log_time);
            self.check(result);
        }
        self.node_mut(id).segments.entry(group).or_default().append(entries);
    }

    fn term_of(&self, id: NodeId, group: GroupId) -> Term {
        self.nodes[&id].process.as_ref().and_then(|process| process.core.term(group)).unwrap_or_default()
    }

    fn view(&mut self, id: NodeId, group: GroupId, view: View) {
        self.say(format_args!("node-{} {group} {} {:?} hw {}", id.0, view.term, view.role, view.high_watermark.0));
        let Some(process) = &self.nodes[&id].process else { return };
        if let Some((offset, digest)) = process.core.digest(group) {
            let result = self.checkers.digests.at(self.now, group, id, offset, digest);
            self.check(result);
        }
    }

    fn serve_until(&mut self, id: NodeId, group: GroupId, until: BootTime) {
        let now = self.now;
        let node = self.node_mut(id);
        let end = if until == BootTime::ZERO { Instant::default() } else { node.clock.when(until, now) };
        let Some(process) = &mut node.process else { return };
        process.serve_until.insert(group, until);
        // A word that the same turn takes back belongs to the term that was just given up.
        let known = process.terms.get(&group).copied().unwrap_or_default();
        let term = process.core.leads(group).map_or(known, |(term, _)| term);
        process.terms.insert(group, term);
        let result = self.checkers.serving.gain(now, group, id, term, end);
        self.check(result);
    }

    fn publish_answer(&mut self, id: NodeId, ticket: Ticket, result: Result<Receipt, Refusal>) {
        match &result {
            Ok(receipt) => self.committed(id, ticket, receipt),
            Err(refusal) => self.coverage.count(format!("refused {}", refusal.reason.as_str_name())),
        }
        self.answer(id, ticket, result);
    }

    /// W1, at the instant of the answer.
    fn committed(&mut self, id: NodeId, ticket: Ticket, receipt: &Receipt) {
        let group = self.tickets.get(&(id, ticket)).map(|known| known.group);
        let fresh = !receipt.duplicate_batch && receipt.offsets_known;
        let Some(group) = group.filter(|_| fresh && receipt.count as usize > receipt.exceptions.len()) else { return };
        let offset = Offset(receipt.base_offset);
        let entry = self.checkers.offsets.entry_of(group, offset);
        let ack = majority::Acknowledged {
            group,
            node: id,
            offset,
            epoch: Term(receipt.epoch),
            entry,
            disks: entry.map_or(0, |entry| self.disks_with(group, offset, entry)),
            replicas: NODES.len(),
        };
        let result = majority::check(self.now, &ack);
        self.check(result);
    }

    fn node_send(&mut self, from: NodeId, to: NodeId, lane: Lane, envelope: Box<Envelope>) {
        let parcel = (lane == Lane::Snapshot).then(|| self.parcel(from, &envelope)).flatten();
        let (a, b) = (Host::Node(from.0), Host::Node(to.0));
        let number = match lane {
            Lane::Control => 0,
            Lane::Bulk => 1,
            Lane::Snapshot => 2,
        };
        let kind = envelope.message.get_msg_type();
        let m = &envelope.message;
        let refused = if m.reject { format!(" refused, has {}", m.reject_hint) } else { String::new() };
        let wants = if m.request_snapshot > 0 { " wants a snapshot" } else { "" };
        let (group, entries) = (envelope.group, m.entries.len());
        self.trace.line(
            self.now,
            format_args!("{a} → {b} {kind:?} {group} to {} at {}+{entries}{refused}{wants}", envelope.to, m.index),
        );
        let arrivals = self.net.datagram(&mut self.chance, self.now, a, b, number);
        if lane == Lane::Snapshot {
            let event = NodeEvent::SnapshotSent { group: envelope.group, to: envelope.to, ok: !arrivals.is_empty() };
            self.storage_answers(from, event);
        }
        for at in arrivals {
            self.at(at, What::Peer(from, to, envelope.clone(), parcel.clone()));
        }
        self.asked_for_votes(from, kind);
    }

    pub(crate) fn node_peer(&mut self, from: NodeId, to: NodeId, envelope: Box<Envelope>, parcel: Option<Parcel>) {
        if let Some(parcel) = parcel {
            self.node_mut(to).parcels.insert((envelope.group, parcel.index), parcel);
        }
        self.post_to_node(to, NodeEvent::Peer { from, envelope });
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

    fn build_snapshot(&mut self, id: NodeId, group: GroupId, to: ReplicaId) {
        self.coverage.count("snapshots built");
        let Some((index, term, data)) = self.nodes[&id].checkpoint(group) else {
            let what = format!("node-{} is to build a snapshot of {group} and has no checkpoint of it", id.0);
            let violation = Violation::new("snapshots arrive whole", self.now, what);
            self.check(Err(violation));
            return;
        };
        let conf_state = raft::eraftpb::ConfState::default();
        self.storage_answers(id, NodeEvent::SnapshotBuilt { group, to, index, term, conf_state, data });
    }

    fn install_snapshot(&mut self, id: NodeId, group: GroupId, index: LogIndex, term: Term, data: bytes::Bytes) {
        self.coverage.count("snapshots installed");
        let node = self.node_mut(id);
        let Some(parcel) = node.parcels.remove(&(group, index)) else {
            let what = format!("node-{} installs a snapshot of {group} at {index} that never came", id.0);
            let violation = Violation::new("snapshots arrive whole", self.now, what);
            self.check(Err(violation));
            return;
        };
        let image = parcel.segments.image(index, data.clone());
        let own = self.term_of(id, group);
        for entry in &parcel.segments.entries {
            let result = self.checkers.offsets.applied(self.now, group, (id, own), entry);
            self.check(result);
        }
        let node = self.node_mut(id);
        node.segments.insert(group, parcel.segments);
        node.made.remove(&group);
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
