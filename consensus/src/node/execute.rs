//! Executes what a replica asks for: apply, answers, roles, persistence, snapshots.

use quorate_proto::control::{Role, SessionUp};
use quorate_proto::entry::EntryView;
use quorate_proto::ids::{LogIndex, NodeId, Offset, ReplicaId, Term, Ticket};
use quorate_proto::refusal::Refusal;
use quorate_proto::time::BootTime;
use quorate_proto::v1::Receipt;
use raft::eraftpb::{Entry, EntryType};

use super::effect::{AppliedEntry, NodeEffect};
use super::partition_replica::{PartitionReplica, Release, Turn};
use super::pipeline::Pending;
use super::refuse;
use crate::effect::{Note, ReplicaEffect};
use crate::envelope::Envelope;
use crate::envelope::Lane;
use crate::partition::BatchOutcome;
use crate::policy::Policy;

/// What one entry did: for storage, and for those who wait.
struct EntryDone {
    index: LogIndex,
    appended: Option<AppliedEntry>,
    answers: Vec<(Pending, BatchOutcome)>,
}

impl<P: Policy> PartitionReplica<P> {
    /// Executes in order everything that the replica asked for, also what it asks for because of that.
    pub(super) fn run(&mut self, turn: &mut Turn<'_>) {
        while !self.effects.is_empty() {
            let mut effects = std::mem::take(&mut self.effects);
            for effect in effects.drain(..) {
                self.execute(effect, turn);
            }
            if self.effects.is_empty() {
                // Keeps the buffer: a turn needs no new one.
                self.effects = effects;
            }
        }
    }

    fn execute(&mut self, effect: ReplicaEffect, turn: &mut Turn<'_>) {
        let group = self.group();
        match effect {
            ReplicaEffect::Persist(write) => {
                self.writes.push_back((write.id, turn.now));
                turn.out.push(NodeEffect::Persist(write));
            }
            ReplicaEffect::Send { lane, envelope } => self.send(lane, envelope, turn),
            ReplicaEffect::Apply(entries) => self.apply(entries, turn),
            ReplicaEffect::Restore { index, term, data } => {
                self.installing = true;
                turn.out.push(NodeEffect::InstallSnapshot { group, index, term, data });
            }
            ReplicaEffect::Fetch { from, to, max_bytes } => {
                turn.out.push(NodeEffect::Fetch { group, from, to, max_bytes });
            }
            ReplicaEffect::BuildSnapshot { to } => self.build_snapshot(to, turn),
            ReplicaEffect::ReadReady { read, index } => {
                self.reads.confirmed(read, index);
                self.answer_reads(turn);
            }
            ReplicaEffect::ReadLost { read } => self.lose_read(read, turn),
            ReplicaEffect::RoleChanged { role, term, leader } => self.role_changed(role, term, leader, turn),
            ReplicaEffect::ServeUntil(until) => turn.out.push(NodeEffect::ServeUntil { group, until }),
            ReplicaEffect::Released { term, for_fence } => self.announce_release(term, for_fence, turn),
            ReplicaEffect::AskPermit => {
                let replica = self.assignment.replica;
                turn.tell_observers(SessionUp::AskPermit { group, replica });
            }
            ReplicaEffect::ReportNow => self.report_now = true,
            ReplicaEffect::Quarantine(reason) => self.failed = Some(reason),
            ReplicaEffect::Note(note) => {
                if let Note::Elected(_) = note {
                    turn.counters.elected += 1;
                }
                turn.out.push(NodeEffect::Note { group, note });
            }
        }
    }

    /// Takes the replica out if its machine or its log cannot go on (M3): it gives leadership up, everybody who waits
    /// is answered, and nothing more is asked of it.
    pub(super) fn fail(&mut self, turn: &mut Turn<'_>) -> Option<String> {
        let reason = self.failed.clone()?;
        self.replica.release(turn.now, "set aside", &mut self.effects);
        self.run(turn);
        self.end_leadership(None, turn);
        Some(reason)
    }

    fn send(&self, lane: Lane, envelope: Box<Envelope>, turn: &mut Turn<'_>) {
        // A replica without node is one that the directory does not know (any more): Raft may lose messages.
        if let Some(node) = self.nodes.get(&envelope.to).copied() {
            turn.out.push(NodeEffect::Send { node, lane, envelope });
        }
    }

    fn announce_release(&mut self, term: Term, for_fence: bool, turn: &mut Turn<'_>) {
        turn.counters.released += 1;
        let hangs = |since: &BootTime| turn.now.since(*since) >= turn.config.timing.wal_stall / 2;
        let stood_since = self.oldest_write().filter(hangs);
        self.released = Some(Release { term, for_fence, at: turn.now, stood_since });
        self.report_now = true;
        if let Some(notice) = self.release_notice(turn.now) {
            turn.tell_observers(notice);
        }
    }

    fn role_changed(&mut self, role: Role, term: Term, leader: Option<ReplicaId>, turn: &mut Turn<'_>) {
        let leads = (role == Role::Leader).then_some(term);
        if self.leading.is_some() && self.leading != leads {
            let known = leader.filter(|leader| *leader != self.assignment.replica);
            self.end_leadership(known.and_then(|leader| self.nodes.get(&leader).copied()), turn);
        }
        if leads.is_some() && self.leading != leads {
            // Its own no-op is in the log already.
            let waited = self.replica.committed().0 + 1 < self.replica.last_index().0;
            self.marks.elected(term, self.replica.won_epoch(), waited, turn.now);
        }
        self.leading = leads;
        self.show(turn);
    }

    /// Everything undecided gets its answer (W4): the SDK sends it again under the same identity.
    pub(super) fn end_leadership(&mut self, leader: Option<NodeId>, turn: &mut Turn<'_>) {
        let Some(term) = self.leading.take() else {
            return;
        };
        self.marks.deposed();
        let (undecided, waiting) = self.pipeline.end();
        for pending in undecided {
            let refusal = refuse::undecided(&self.assignment, leader, term);
            self.answer(pending.ticket, Err(refusal), turn);
        }
        for pending in waiting {
            let refusal = self.refusal_of_a_former_leader(leader, turn);
            self.answer(pending.ticket, Err(refusal), turn);
        }
        for ticket in self.reads.end() {
            let result = Err(refuse::not_leader(&self.assignment, leader));
            turn.out.push(NodeEffect::ReadAnswer { ticket, result });
        }
    }

    fn refusal_of_a_former_leader(&self, leader: Option<NodeId>, turn: &Turn<'_>) -> Refusal {
        if turn.closing {
            refuse::closing(&self.assignment, turn.config.hello.node)
        } else {
            refuse::not_leader(&self.assignment, leader)
        }
    }

    fn apply(&mut self, entries: Vec<Entry>, turn: &mut Turn<'_>) {
        if self.failed.is_some() {
            return;
        }
        let mut appended = Vec::new();
        let mut answers: Vec<(Ticket, LogIndex, BatchOutcome)> = Vec::new();
        let mut last = None;
        for entry in entries {
            match self.apply_entry(entry, turn.now) {
                Ok(done) => {
                    turn.counters.applied += 1;
                    last = Some(done.index);
                    appended.extend(done.appended);
                    answers.extend(done.answers.into_iter().map(|(p, outcome)| (p.ticket, done.index, outcome)));
                }
                Err(reason) => {
                    // Skipping the entry would diverge from the other replicas (M3).
                    self.failed = Some(reason);
                    break;
                }
            }
        }
        if !appended.is_empty() {
            turn.out.push(NodeEffect::Append { group: self.group(), entries: appended });
        }
        self.show(turn);
        self.answer_applied(answers, turn);
        if let Some(last) = last {
            self.replica.applied(turn.now, last, &mut self.effects);
        }
        self.answer_reads(turn);
    }

    fn apply_entry(&mut self, entry: Entry, now: BootTime) -> Result<EntryDone, String> {
        let (index, term) = (LogIndex(entry.index), Term(entry.term));
        self.checkpoints.applied(index, entry.data.len());
        if entry.get_entry_type() != EntryType::EntryNormal || entry.data.is_empty() {
            self.machine.apply_empty(index, term).map_err(|error| error.to_string())?;
            if entry.data.is_empty() {
                self.marks.noop_applied(term, now);
            }
            return Ok(EntryDone { index, appended: None, answers: Vec::new() });
        }
        let view = EntryView::parse(entry.data).map_err(|error| format!("{index}: {error}"))?;
        let applied = self.machine.apply_as::<P>(index, term, &view).map_err(|error| error.to_string())?;
        let waiting = self.pipeline.applied(term, index, now);
        // Without a leader these are what a start replays.
        if !applied.entry.batches.is_empty() && self.replica.leader().is_some() {
            self.marks.record_applied(now);
        }
        let nothing = applied.entry.batches.is_empty() && applied.entry.keys.is_empty();
        Ok(EntryDone {
            index,
            appended: (!nothing).then_some(applied.entry),
            answers: waiting.into_iter().zip(applied.outcomes).collect(),
        })
    }

    /// Answers publishes whose entries are committed and applied. A fence does not forbid that (F2): the entry was
    /// committed in the term in which it was admitted, or it would answer nobody.
    fn answer_applied(&mut self, answers: Vec<(Ticket, LogIndex, BatchOutcome)>, turn: &mut Turn<'_>) {
        if answers.is_empty() {
            return;
        }
        let matched = self.replica.report(turn.now).matched;
        let mut durable: (LogIndex, Vec<u64>) = (LogIndex::ZERO, Vec::new());
        for (ticket, index, outcome) in answers {
            if durable.0 != index {
                durable = (index, self.durable_on(&matched, index));
            }
            let result = outcome.map(|receipt| Receipt { durable_on: durable.1.clone(), ..receipt });
            self.answer(ticket, result, turn);
        }
    }

    /// Nodes known to hold `index` on stable storage.
    fn durable_on(&self, matched: &[(ReplicaId, LogIndex)], index: LogIndex) -> Vec<u64> {
        let me = self.assignment.replica;
        let mut nodes: Vec<u64> = matched
            .iter()
            .filter(|(replica, at)| *replica != me && *at >= index)
            .map(|(replica, _)| *replica)
            .chain((self.replica.persisted_index() >= index).then_some(me))
            .filter_map(|replica| self.nodes.get(&replica).map(|node| node.get()))
            .collect();
        nodes.sort_unstable();
        nodes
    }

    /// The one place where a publish is answered.
    pub(super) fn answer(&mut self, ticket: Ticket, result: Result<Receipt, Refusal>, turn: &mut Turn<'_>) {
        let committed = result.is_ok();
        if let Some(result) = self.handoff.answer(ticket, result) {
            turn.out.push(NodeEffect::Answer { ticket, result });
        }
        if !committed {
            turn.counters.refused += 1;
            return;
        }
        turn.counters.committed += 1;
        if let Some(marks) = self.marks.acknowledged(self.group(), turn.now) {
            turn.tell_observers(SessionUp::Phases(marks));
        }
    }

    /// Answers reads whose index is applied: state first, then the serving test (F2), in the term of their arrival.
    fn answer_reads(&mut self, turn: &mut Turn<'_>) {
        let ready = self.reads.ready(self.machine.applied().0);
        if ready.is_empty() {
            return;
        }
        let latest: Offset = self.machine.high_watermark();
        let term = self.replica.term();
        let serving = self.leading == Some(term) && self.replica.serving(turn.now);
        for (ticket, arrived) in ready {
            let result = match (serving && arrived == term, self.leading) {
                (true, _) => Ok((latest, term)),
                (false, Some(_)) => Err(refuse::fenced(&self.assignment, turn.config.hello.node)),
                (false, None) => Err(refuse::not_leader(&self.assignment, self.leader_node())),
            };
            turn.out.push(NodeEffect::ReadAnswer { ticket, result });
        }
    }

    fn lose_read(&mut self, ticket: Ticket, turn: &mut Turn<'_>) {
        if self.reads.lost(ticket) {
            let result = Err(refuse::not_leader(&self.assignment, self.leader_node()));
            turn.out.push(NodeEffect::ReadAnswer { ticket, result });
        }
    }
}
