//! A planned handoff of one partition's leadership (H1, H2), on the node that hands over and on the one that takes over.
//!
//! ```text
//!  old leader    permit ─► intake held ─► last entry in flight applied, target has it all ─► release, time-out-now
//!                   │ 1 s                                                                        │ 1 s
//!                   ▼ resume: what was held is proposed here                                     ▼ held: HANDOFF
//!  winner known ─► held publishes forwarded ─► answers passed back to their clients ─► later ones: NOT_LEADER
//!  winner        forwarded publishes wait until it serves, then they are publishes like any other
//! ```
//! Every step follows an event (an entry applied, a leader heard), never a tick; only the deadline is a matter of time.
//! A forwarded publish keeps its identity, so that a client that gave up and sent it again gets the same result.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use quorate_proto::control::Permit;
use quorate_proto::ids::{GroupId, NodeId, ReplicaId, Term, Ticket};
use quorate_proto::refusal::Refusal;
use quorate_proto::time::BootTime;
use quorate_proto::v1::Receipt;
use raft::eraftpb::{Message, MessageType};

use super::effect::NodeEffect;
use super::event::Publish;
use super::partition_replica::{PartitionReplica, Turn};
use super::pipeline::Request;
use super::refuse;
use crate::effect::Note;
use crate::envelope::{Envelope, Forwarded, ForwardedAnswer, ForwardedPublish, Lane};
use crate::policy::Policy;

/// H2: a handoff ends within this time, one way or the other; also how long a forwarded publish waits.
const DEADLINE: Duration = Duration::from_secs(1);
/// Forwarded publishes of one message, bytes.
const MESSAGE_BYTES: usize = 1 << 20;
/// Tickets of forwarded publishes, apart from those of the shell.
const FOREIGN: u64 = 1 << 63;

/// Both sides of a handoff.
#[derive(Debug, Default)]
pub(super) struct Handoff {
    leaving: Option<Leaving>,
    arriving: Arriving,
}

/// This replica hands over.
#[derive(Debug)]
struct Leaving {
    permit: Permit,
    term: Term,
    since: BootTime,
    stage: Stage,
    held: VecDeque<Publish>,
    held_bytes: u64,
    /// Forwarded and not answered.
    sent: BTreeSet<Ticket>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It leads; what is in flight commits, what arrives gathers and is not proposed.
    Committing,
    /// It leads no more; nobody is known to lead.
    Released,
    /// The winner has what was held.
    Forwarding(ReplicaId),
}

/// This replica took over, or is about to.
#[derive(Debug, Default)]
struct Arriving {
    /// Forwarded to this replica before it served.
    waiting: VecDeque<(ReplicaId, ForwardedPublish, BootTime)>,
    waiting_bytes: u64,
    /// Own ticket of a forwarded publish: who forwarded it, and under which ticket.
    tickets: BTreeMap<Ticket, (ReplicaId, Ticket)>,
    next: u64,
    answers: BTreeMap<ReplicaId, Vec<ForwardedAnswer>>,
}

impl Handoff {
    /// Publishes gather and are not proposed.
    pub(super) fn holds(&self) -> bool {
        self.leaving.is_some()
    }

    /// Leadership was given up in favour of another replica: what arrives now is held for it.
    fn released(&self) -> bool {
        self.leaving.as_ref().is_some_and(|leaving| leaving.stage != Stage::Committing)
    }

    /// Takes the answer to a forwarded publish; gives it back if it is not one.
    pub(super) fn answer(
        &mut self,
        ticket: Ticket,
        result: Result<Receipt, Refusal>,
    ) -> Option<Result<Receipt, Refusal>> {
        match self.arriving.tickets.remove(&ticket) {
            Some((to, ticket)) => {
                self.arriving.answers.entry(to).or_default().push(ForwardedAnswer { ticket, result });
                None
            }
            None => Some(result),
        }
    }

    fn idle(&self) -> bool {
        self.leaving.is_none() && self.arriving.waiting.is_empty() && self.arriving.answers.is_empty()
    }
}

impl<P: Policy> PartitionReplica<P> {
    /// A permit for a handoff from this very leadership: intake is held from here on.
    pub(super) fn leave(&mut self, permit: &Permit, turn: &mut Turn<'_>) {
        let Some(planned) = permit.planned else { return };
        let mine = planned.from == self.assignment.replica && self.leading == Some(planned.term);
        let able = mine && self.handoff.leaving.is_none() && self.replica.serving(turn.now);
        if !able || !self.nodes.contains_key(&permit.candidate) {
            return;
        }
        if self.replica.is_lost(permit.candidate) {
            // Nothing is held for a target that died while its permit was on its way.
            self.call_handoff_off("the target is gone: the leader goes on", turn);
            return;
        }
        self.handoff.leaving = Some(Leaving {
            permit: permit.clone(),
            term: planned.term,
            since: turn.now,
            stage: Stage::Committing,
            held: VecDeque::new(),
            held_bytes: 0,
            sent: BTreeSet::new(),
        });
    }

    /// Holds a publish for the winner, if one is on its way. `Err`: it is none of this file's business.
    pub(super) fn hold(&mut self, publish: Publish, turn: &mut Turn<'_>) -> Result<(), Publish> {
        if !self.handoff.released() {
            return Err(publish);
        }
        let Some(leaving) = self.handoff.leaving.as_mut() else { return Err(publish) };
        let (size, limit) = (publish.batch.len() as u64, turn.config.limits.partition_pending_bytes);
        if leaving.held_bytes > 0 && leaving.held_bytes + size > limit {
            let (what, used) = ("publishes held for the next leader", leaving.held_bytes);
            let refusal = refuse::busy(&self.assignment, what, used, limit, refuse::SOON);
            self.answer(publish.ticket, Err(refusal), turn);
            return Ok(());
        }
        leaving.held_bytes += size;
        leaving.held.push_back(publish);
        Ok(())
    }

    /// What follows from the event that was just handled.
    pub(super) fn advance_handoff(&mut self, turn: &mut Turn<'_>) {
        if self.handoff.idle() {
            return;
        }
        self.hand_over_when_ready(turn);
        self.forward(turn);
        self.take_up_forwarded(turn);
        self.pass_answers_back(turn);
    }

    fn hand_over_when_ready(&mut self, turn: &mut Turn<'_>) {
        let Some(leaving) = self.handoff.leaving.as_mut().filter(|l| l.stage == Stage::Committing) else { return };
        if self.leading != Some(leaving.term) {
            // It ended otherwise; everybody was answered there.
            self.handoff.leaving = None;
            return;
        }
        let complete = self.replica.has_flushed(leaving.permit.candidate) >= Some(self.replica.last_index());
        if !complete || !self.pipeline.nothing_proposed() {
            return;
        }
        leaving.stage = Stage::Released;
        let group = self.assignment.group;
        leaving.held = self.pipeline.take_held().into_iter().map(|request| publish_of(request, group)).collect();
        leaving.held_bytes = leaving.held.iter().map(|publish| publish.batch.len() as u64).sum();
        let permit = leaving.permit.clone();
        self.replica.hand_over(turn.now, &permit, &mut self.effects);
        self.run(turn);
    }

    /// What was held goes to whoever leads now.
    fn forward(&mut self, turn: &mut Turn<'_>) {
        let (leader, me) = (self.replica.leader(), self.assignment.replica);
        let Some(leaving) = self.handoff.leaving.as_mut().filter(|l| l.stage != Stage::Committing) else { return };
        if self.leading.is_some() {
            // Elected again, because the target did not take over: once it serves, what was held is published here.
            if !self.replica.serving(turn.now) {
                return;
            }
            let held = std::mem::take(&mut leaving.held);
            self.end_handoff(turn);
            for publish in held {
                self.publish(publish, turn);
            }
            return;
        }
        let newer = self.replica.term() > leaving.term;
        let Some(winner) = leader.filter(|leader| *leader != me && newer) else { return };
        if leaving.stage != Stage::Forwarding(winner) {
            let lost = std::mem::take(&mut leaving.sent);
            leaving.stage = Stage::Forwarding(winner);
            self.answer_lost(lost, turn);
        }
        let Some(leaving) = self.handoff.leaving.as_mut() else { return };
        leaving.held_bytes = 0;
        let mut publishes = Vec::new();
        let mut bytes = 0;
        let mut messages = Vec::new();
        for publish in leaving.held.drain(..) {
            leaving.sent.insert(publish.ticket);
            bytes += publish.batch.len();
            publishes.push(forwarded(publish, turn.now));
            if bytes >= MESSAGE_BYTES {
                messages.push(std::mem::take(&mut publishes));
                bytes = 0;
            }
        }
        messages.extend((!publishes.is_empty()).then_some(publishes));
        let done = leaving.sent.is_empty();
        for publishes in messages {
            self.pass(winner, Forwarded { publishes, answers: Vec::new() }, turn);
        }
        if done {
            self.handoff.leaving = None;
        }
    }

    /// What came along with a peer's message.
    pub(super) fn receive_forwarded(&mut self, from: ReplicaId, forwarded: Forwarded, turn: &mut Turn<'_>) {
        for answer in forwarded.answers {
            let sent = self.handoff.leaving.as_mut().is_some_and(|leaving| leaving.sent.remove(&answer.ticket));
            if sent {
                self.answer(answer.ticket, answer.result, turn);
            }
        }
        let limit = turn.config.limits.partition_pending_bytes;
        for publish in forwarded.publishes {
            let (used, size) = (self.handoff.arriving.waiting_bytes, publish.batch.len() as u64);
            if used > 0 && used + size > limit {
                let what = "publishes forwarded to the new leader";
                let refusal = refuse::busy(&self.assignment, what, used, limit, refuse::SOON);
                self.refuse_forwarded(from, publish.ticket, refusal);
                continue;
            }
            self.handoff.arriving.waiting_bytes += size;
            self.handoff.arriving.waiting.push_back((from, publish, turn.now));
        }
    }

    /// Forwarded publishes are publishes like any other once this replica serves.
    fn take_up_forwarded(&mut self, turn: &mut Turn<'_>) {
        if self.handoff.arriving.waiting.is_empty() {
            return;
        }
        let serving = self.leading.is_some() && self.replica.serving(turn.now);
        let elsewhere = self.replica.leader().is_some_and(|leader| leader != self.assignment.replica);
        while let Some((from, publish, since)) = self.handoff.arriving.waiting.pop_front() {
            self.handoff.arriving.waiting_bytes -= publish.batch.len() as u64;
            if serving {
                self.handoff.arriving.next += 1;
                let ticket = Ticket(FOREIGN | self.handoff.arriving.next);
                self.handoff.arriving.tickets.insert(ticket, (from, publish.ticket));
                self.publish(received(publish, ticket, self.group(), turn.now), turn);
            } else if elsewhere || turn.now.since(since) >= DEADLINE {
                let refusal = refuse::not_leader(&self.assignment, self.leader_node());
                self.refuse_forwarded(from, publish.ticket, refusal);
            } else {
                self.handoff.arriving.waiting_bytes += publish.batch.len() as u64;
                self.handoff.arriving.waiting.push_front((from, publish, since));
                return;
            }
        }
    }

    fn refuse_forwarded(&mut self, to: ReplicaId, ticket: Ticket, refusal: Refusal) {
        let answer = ForwardedAnswer { ticket, result: Err(refusal) };
        self.handoff.arriving.answers.entry(to).or_default().push(answer);
    }

    fn pass_answers_back(&mut self, turn: &mut Turn<'_>) {
        for (to, answers) in std::mem::take(&mut self.handoff.arriving.answers) {
            self.pass(to, Forwarded { publishes: Vec::new(), answers }, turn);
        }
    }

    /// Carried by an envelope without a Raft message, as a release is.
    fn pass(&mut self, to: ReplicaId, forwarded: Forwarded, turn: &mut Turn<'_>) {
        let Some(node) = self.nodes.get(&to).copied() else { return };
        let mut message = Message::default();
        message.set_msg_type(MessageType::MsgHup);
        (message.from, message.to) = (self.assignment.replica.0, to.0);
        let envelope = Envelope { forwarded: Some(Box::new(forwarded)), ..self.replica.carrier(message) };
        turn.out.push(NodeEffect::Send { node, lane: Lane::Bulk, envelope: Box::new(envelope) });
    }

    /// H2: the deadline. Before the release the leader goes on; after it the clients are told, and the observers look
    /// for another leader.
    pub(super) fn time_handoff(&mut self, turn: &mut Turn<'_>) {
        let Some(leaving) = &self.handoff.leaving else { return };
        if turn.now.since(leaving.since) < DEADLINE {
            return;
        }
        let why = match leaving.stage {
            Stage::Committing => "the target lags or the last entries do not commit: the leader goes on",
            Stage::Released => "the target did not take over",
            Stage::Forwarding(_) => "the new leader did not answer what was forwarded",
        };
        self.call_handoff_off(why, turn);
    }

    /// The connection to `node` broke. What was forwarded there has an unknown fate; and nobody is handed over to a
    /// target that is gone: before the release the leader simply goes on.
    pub(super) fn handoff_peer_lost(&mut self, node: NodeId, turn: &mut Turn<'_>) {
        let Some(leaving) = self.handoff.leaving.as_mut() else { return };
        match leaving.stage {
            Stage::Forwarding(winner) if self.nodes.get(&winner) == Some(&node) => {
                let lost = std::mem::take(&mut leaving.sent);
                self.answer_lost(lost, turn);
            }
            Stage::Committing if self.nodes.get(&leaving.permit.candidate) == Some(&node) => {
                self.call_handoff_off("the target is gone: the leader goes on", turn);
            }
            _ => {}
        }
    }

    fn call_handoff_off(&mut self, why: &'static str, turn: &mut Turn<'_>) {
        turn.out.push(NodeEffect::Note { group: self.group(), note: Note::HandoffFailed(why) });
        self.report_now = true;
        self.end_handoff(turn);
    }

    /// Ends it; whoever still waits hears that no leader is known here, or, if it was forwarded, that its fate is open.
    fn end_handoff(&mut self, turn: &mut Turn<'_>) {
        let Some(leaving) = self.handoff.leaving.take() else { return };
        self.answer_lost(leaving.sent, turn);
        for publish in leaving.held {
            let refusal = refuse::handed_over(&self.assignment, self.leader_node());
            self.answer(publish.ticket, Err(refusal), turn);
        }
    }

    fn answer_lost(&mut self, lost: BTreeSet<Ticket>, turn: &mut Turn<'_>) {
        for ticket in lost {
            let refusal = refuse::handed_over(&self.assignment, self.leader_node()).of_unknown_fate();
            self.answer(ticket, Err(refusal), turn);
        }
    }
}

/// A publish again as it came, from what was admitted.
fn publish_of(request: Request, group: GroupId) -> Publish {
    let Request { ticket, meta, batch, .. } = request;
    Publish {
        ticket,
        group,
        batch,
        principal: meta.principal,
        client_id: meta.client_id,
        connection: meta.connection,
        operation: meta.operation,
        // It was admitted in time.
        deadline: BootTime::ZERO,
    }
}

fn forwarded(publish: Publish, now: BootTime) -> ForwardedPublish {
    let deadline = (publish.deadline != BootTime::ZERO).then(|| publish.deadline.since(now));
    ForwardedPublish {
        ticket: publish.ticket,
        batch: publish.batch,
        principal: publish.principal,
        client_id: publish.client_id,
        connection: publish.connection,
        operation: publish.operation,
        deadline,
    }
}

fn received(publish: ForwardedPublish, ticket: Ticket, group: GroupId, now: BootTime) -> Publish {
    Publish {
        ticket,
        group,
        batch: publish.batch,
        principal: publish.principal,
        client_id: publish.client_id,
        connection: publish.connection,
        operation: publish.operation,
        deadline: publish.deadline.map_or(BootTime::ZERO, |left| now + left),
    }
}
