//! Turns of data nodes: drain the mailbox, flush, execute the effects (`node`'s documentation), with a stop at any point
//! between two events; and what checkers see of every single event.

use std::time::Duration;

use quorate_consensus::effect::Note;
use quorate_consensus::node::{NodeEffect, NodeEvent};
use quorate_consensus::policy::{Policy, Rule};
use quorate_proto::ids::{GroupId, Incarnation, NodeId, Term, Ticket};
use quorate_proto::time::BootTime;
use raft::eraftpb::MessageType;

use super::{What, World, NODES};
use crate::data_node::OpenTurn;
use crate::net::Host;
use crate::time::Instant;

/// What a checker must know of an event before the core takes it.
enum Seen {
    /// A stamped message of a leader or candidate.
    Stamp(GroupId, NodeId, Term, BootTime),
    /// A publish: answered at once, it is a duplicate.
    Publish(GroupId, Ticket),
    /// A read of this group arrived.
    Read,
    Other,
}

impl<P: Policy> World<P> {
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
        let began = node.clock.read(now);
        let stop = node.stop_inside.take();
        let Some(process) = &mut node.process else { return };
        process.turn_due = false;
        let mut turn = process.open_turn.take().unwrap_or(OpenTurn { began, left: take, out: Vec::new() });
        let waiting = (process.mailbox.len() as u64).min(turn.left);
        let stop = stop.map(|span| (self.chance.between(0, waiting), span));
        for handled in 0.. {
            if let Some((_, span)) = stop.filter(|(at, _)| *at == handled) {
                self.stop_in_turn(id, turn, span);
                return;
            }
            if turn.left == 0 || !self.node_event(id, &mut turn) {
                break;
            }
            turn.left -= 1;
        }
        self.end_turn(id, incarnation, turn);
    }

    /// V2: the clock is read anew for every event.
    fn clock(&self, id: NodeId, turn: &OpenTurn) -> BootTime {
        if P::keeps(Rule::FreshClock) {
            self.nodes[&id].clock.read(self.now)
        } else {
            turn.began
        }
    }

    fn node_event(&mut self, id: NodeId, turn: &mut OpenTurn) -> bool {
        let clock = self.clock(id, turn);
        let Some(process) = &mut self.node_mut(id).process else { return false };
        let Some(event) = process.mailbox.pop_front() else { return false };
        let seen = self.seen(&event);
        let from = turn.out.len();
        if let Some(process) = &mut self.node_mut(id).process {
            process.core.handle(clock, event, &mut turn.out);
        }
        self.watch(id, clock, seen, &turn.out[from..]);
        true
    }

    fn stop_in_turn(&mut self, id: NodeId, mut turn: OpenTurn, span: Duration) {
        // What comes meanwhile is in the mailbox that this very turn goes on to drain.
        turn.left = u64::MAX;
        let until = self.now + span;
        self.say(format_args!("node-{} stops inside a turn", id.0));
        self.coverage.count("pauses inside a turn");
        let node = self.node_mut(id);
        node.paused_until = Some(until);
        if let Some(process) = &mut node.process {
            process.open_turn = Some(turn);
        }
        self.at(until, What::Resume(Host::Node(id.0)));
    }

    fn end_turn(&mut self, id: NodeId, incarnation: Incarnation, mut turn: OpenTurn) {
        let clock = self.clock(id, &turn);
        let from = turn.out.len();
        let Some(process) = &mut self.node_mut(id).process else { return };
        process.core.flush(clock, &mut turn.out);
        let more = !process.mailbox.is_empty();
        process.turn_due |= more;
        self.watch(id, clock, Seen::Other, &turn.out[from..]);
        if more {
            let pause = self.chance.span(Duration::from_micros(5), Duration::from_micros(400));
            self.after(pause, What::Turn(Host::Node(id.0), incarnation));
        }
        self.execute(id, turn.out);
        self.after_effects();
        self.hold_leave_if_joint(id);
        self.schedule_node_tick(id);
        self.close_if_asked(id);
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

    fn seen(&self, event: &NodeEvent) -> Seen {
        match event {
            NodeEvent::Peer { envelope, .. } => match (envelope.stamp, self.members.get(&envelope.from)) {
                (Some(stamp), Some(node)) => Seen::Stamp(envelope.group, *node, Term(envelope.message.term), stamp),
                _ => Seen::Other,
            },
            NodeEvent::Publish(publish) => Seen::Publish(publish.group, publish.ticket),
            NodeEvent::ReadLatest { .. } => Seen::Read,
            _ => Seen::Other,
        }
    }

    /// Looks at what one event did, at the very instant.
    fn watch(&mut self, id: NodeId, clock: BootTime, seen: Seen, out: &[NodeEffect]) {
        if let Seen::Stamp(group, leader, term, stamp) = seen {
            self.checkers.answers.handled(group, leader, term, id, stamp);
        }
        for effect in out {
            match effect {
                NodeEffect::ReadAnswer { ticket, result: Ok(_) } => {
                    let read = self.read_tickets.get(&(id, *ticket)).map(|(_, read)| *read);
                    let group = read.and_then(|read| self.reads.get(&read)).map(|(group, ..)| *group);
                    if let Some(group) = group {
                        self.only_unfenced(id, group, clock);
                    }
                }
                NodeEffect::Answer { ticket, result: Ok(_) } => {
                    if let Seen::Publish(group, published) = seen {
                        if published == *ticket {
                            self.coverage.count("duplicates answered at arrival");
                            self.only_unfenced(id, group, clock);
                        }
                    }
                }
                NodeEffect::Note { group, note: Note::Elected(term) } => self.won(id, *group, *term, clock),
                _ => {}
            }
        }
        self.watch_fence(id, clock);
    }

    fn only_unfenced(&mut self, id: NodeId, group: GroupId, clock: BootTime) {
        let Some(process) = &self.nodes[&id].process else { return };
        let term = process.core.leads(group).map(|(term, _)| term);
        let (fence, now) = (self.timing.fence, self.now);
        let result = self.checkers.answers.answered(now, group, (id, term), clock, fence, NODES.len());
        self.check(result);
    }

    fn watch_fence(&mut self, id: NodeId, clock: BootTime) {
        let now = self.now;
        for index in 0..self.groups.len() {
            let group = self.groups[index];
            let node = &self.nodes[&id];
            let Some(process) = &node.process else { return };
            let until = process.core.fence_until(group, clock);
            // Most events change nothing for those who have no right.
            if until == BootTime::ZERO && !self.checkers.fenced.has(group, id) {
                continue;
            }
            let end = if until == BootTime::ZERO { Instant::default() } else { node.clock.when(until, now) };
            let term = process.core.leads(group).map_or(Term::ZERO, |(term, _)| term);
            let result = self.checkers.fenced.gain(now, group, id, term, end);
            self.check(result);
        }
    }

    fn won(&mut self, id: NodeId, group: GroupId, term: Term, clock: BootTime) {
        let (now, node) = (self.now, &self.nodes[&id]);
        let Some(process) = &node.process else { return };
        let incarnation = node.incarnation;
        let epoch = process.core.leads(group).map(|(_, epoch)| epoch).unwrap_or_default();
        let late = process.core.fence_until(group, clock) < clock + self.timing.fence.saturating_sub(LATE);
        if late {
            self.coverage.count("late winners");
        }
        let result = self.checkers.election.elected(now, group, id, term);
        self.check(result);
        let result = self.checkers.permits.won(now, (group, epoch), (id, incarnation), term);
        self.check(result);
        self.elected.push((group, id, term));
    }

    /// A candidate's requests are out: a trap may stop it.
    pub(crate) fn asked_for_votes(&mut self, id: NodeId, kind: MessageType) {
        if kind != MessageType::MsgRequestVote {
            return;
        }
        if let Some(span) = self.stop_candidate.take() {
            self.coverage.count("candidates stopped");
            self.say(format_args!("node-{} stops after it asked for votes", id.0));
            self.pause_node(id, span);
        }
    }
}

/// A winner whose first contact is older than this is a late one.
const LATE: Duration = Duration::from_millis(250);
