//! Admission of publishes at their arrival, and what goes into the log at the end of a turn.

use bytes::Bytes;
use quorate_proto::batch::{BatchHeader, BatchView};
use quorate_proto::control::Room;
use quorate_proto::entry::BatchMeta;
use quorate_proto::ids::Ticket;
use quorate_proto::refusal::Refusal;
use quorate_proto::v1::Receipt;

use super::effect::NodeEffect;
use super::event::Publish;
use super::partition_replica::{PartitionReplica, Turn};
use super::pipeline::{share, Request};
use super::refuse;
use crate::partition::Admission;
use crate::policy::{Policy, Rule};

/// What becomes of a publish at its arrival.
enum Arrival {
    Admitted(BatchHeader),
    /// It was applied before: the first result again (I3).
    Known(Receipt),
}

impl<P: Policy> PartitionReplica<P> {
    /// A publish arrived. It is answered now, or once its fate is decided: exactly once.
    pub(super) fn publish(&mut self, publish: Publish, turn: &mut Turn<'_>) {
        let Err(publish) = self.hold(publish, turn) else { return };
        match self.admit(&publish, turn) {
            Ok(Arrival::Admitted(header)) => {
                turn.counters.admitted += 1;
                if !P::keeps(Rule::KeysAtApply) {
                    self.early_keys.remember(&publish.batch);
                }
                self.pipeline.admit(request(publish, header, turn));
            }
            Ok(Arrival::Known(receipt)) => {
                turn.counters.duplicates += 1;
                self.answer(publish.ticket, Ok(receipt), turn);
            }
            Err(refusal) => self.answer(publish.ticket, Err(refusal), turn),
        }
    }

    fn admit(&self, publish: &Publish, turn: &Turn<'_>) -> Result<Arrival, Refusal> {
        self.may_serve(turn)?;
        if publish.deadline != quorate_proto::time::BootTime::ZERO && publish.deadline <= turn.now {
            return Err(refuse::late(&self.assignment));
        }
        let batch = BatchView::parse_verified(publish.batch.clone())
            .map_err(|error| refuse::bad_batch(&self.assignment, error.to_string()))?;
        let header = *batch.header();
        if !P::keeps(Rule::KeysAtApply) && self.early_keys.knows(&batch) {
            return Ok(Arrival::Known(Receipt { count: header.count, duplicate_batch: true, ..Receipt::default() }));
        }
        match self.machine.admit_as::<P>(&header, self.pipeline.in_flight()) {
            Admission::Answer(receipt) => Ok(Arrival::Known(receipt)),
            Admission::Refuse(refusal) => Err(refusal),
            Admission::Append => {
                self.room_on_disks(turn)?;
                self.room_for(&header, &publish.batch, turn)?;
                Ok(Arrival::Admitted(header))
            }
        }
    }

    /// Only the serving leader of a node that stays takes publishes and reads (F1, W3).
    fn may_serve(&self, turn: &Turn<'_>) -> Result<(), Refusal> {
        if self.leading.is_none() {
            return Err(refuse::not_leader(&self.assignment, self.leader_node()));
        }
        if turn.closing {
            return Err(refuse::closing(&self.assignment, turn.config.hello.node));
        }
        if !self.replica.serving(turn.now) {
            return Err(refuse::fenced(&self.assignment, turn.config.hello.node));
        }
        Ok(())
    }

    /// B5: no publishes where the disk is nearly full (the leader is on its way elsewhere), nor where a majority of the
    /// replicas would not append them.
    fn room_on_disks(&self, turn: &Turn<'_>) -> Result<(), Refusal> {
        if turn.room != Room::Ample {
            return Err(refuse::storage_full(&self.assignment, turn.config.hello.node, turn.room));
        }
        if !self.replica.majority_has_room() {
            return Err(refuse::replicas_full(&self.assignment));
        }
        Ok(())
    }

    /// Every queue is bounded in bytes; what does not fit is refused with a delay, never queued elsewhere.
    fn room_for(&self, header: &BatchHeader, batch: &Bytes, turn: &Turn<'_>) -> Result<(), Refusal> {
        let limits = &turn.config.limits;
        let (own, delay) = (self.pipeline.bytes(), self.pipeline.busy_delay());
        let size = batch.len() as u64;
        let bounds = [
            ("publishes of this partition wait", own, share(limits.partition_pending_bytes, header.priority)),
            ("publishes of this node wait", turn.node_pending, share(limits.node_pending_bytes, header.priority)),
            ("its storage is behind", self.backlog, limits.storage_backlog_bytes),
        ];
        for (what, used, limit) in bounds {
            // An idle queue takes a batch of any legal size.
            if used > 0 && used + size > limit {
                return Err(refuse::busy(&self.assignment, what, used, limit, delay));
            }
        }
        if self.pipeline.requests() >= limits.partition_pending_requests {
            let limit = limits.partition_pending_requests;
            return Err(refuse::busy_count(&self.assignment, "publishes of this partition", limit, delay));
        }
        Ok(())
    }

    /// A linearizable end offset is wanted (R1).
    pub(super) fn read_latest(&mut self, ticket: Ticket, turn: &mut Turn<'_>) {
        let room = self.reads.len() < turn.config.limits.partition_reads;
        let arrival = self.may_serve(turn).and_then(|()| match room {
            true => Ok(()),
            false => {
                let limit = turn.config.limits.partition_reads;
                Err(refuse::busy_count(&self.assignment, "reads of this partition", limit, refuse::SOON))
            }
        });
        match arrival {
            Ok(()) if !P::keeps(Rule::ReadsWait) => {
                let result = Ok((self.machine.high_watermark(), self.replica.term()));
                turn.out.push(NodeEffect::ReadAnswer { ticket, result });
            }
            Ok(()) => {
                self.reads.ask(ticket, self.replica.term());
                self.replica.read_index(turn.now, ticket, &mut self.effects);
            }
            Err(refusal) => turn.out.push(NodeEffect::ReadAnswer { ticket, result: Err(refusal) }),
        }
    }

    /// Proposes what gathered, as far as slots are free. While fenced nothing new goes into the log: what waits is
    /// then still decisively refused if this leader resigns.
    pub(super) fn propose_gathered(&mut self, turn: &mut Turn<'_>) {
        if self.handoff.holds() {
            return;
        }
        while self.leading.is_some() && self.pipeline.waiting() && self.replica.serving(turn.now) {
            let time = turn.cluster.entry_time(turn.now);
            let Some(gathered) = self.pipeline.gather(time, &turn.config.limits) else {
                return;
            };
            match self.replica.propose(turn.now, gathered.data.clone(), &mut self.effects) {
                Ok((term, index)) => {
                    turn.counters.proposed += 1;
                    self.pipeline.proposed(&gathered, term, index);
                }
                // Too much is uncommitted, or leadership just ended: the next turn sees.
                Err(_) => return,
            }
        }
    }

    /// Refuses what was admitted and not proposed, because the node is closing.
    pub(super) fn refuse_waiting(&mut self, turn: &mut Turn<'_>) {
        for pending in self.pipeline.give_up_waiting() {
            let refusal = refuse::closing(&self.assignment, turn.config.hello.node);
            self.answer(pending.ticket, Err(refusal), turn);
        }
    }

    /// Asks for a checkpoint if one is due and everything applied is flushed here: a machine ahead of its own log
    /// could not be restored.
    pub(super) fn checkpoint_if_due(&mut self, bound: u64, turn: &mut Turn<'_>) {
        let due = self.checkpoints.due(turn.now, bound, turn.config.limits.checkpoint_every);
        let (index, term) = self.machine.applied();
        if !due || self.installing || self.failed.is_some() || self.replica.persisted_index() < index {
            return;
        }
        self.checkpoints.ask(index, turn.now);
        let state = self.machine.state_bytes();
        turn.out.push(NodeEffect::Checkpoint { group: self.group(), index, term, state });
    }
}

fn request(publish: Publish, header: BatchHeader, turn: &Turn<'_>) -> Request {
    Request {
        ticket: publish.ticket,
        header,
        meta: BatchMeta {
            principal: publish.principal,
            client_id: publish.client_id,
            connection: publish.connection,
            priority: header.priority,
            operation: publish.operation,
            received: turn.cluster.at(turn.now),
        },
        batch: publish.batch,
    }
}
