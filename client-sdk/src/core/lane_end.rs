//! How records end without a receipt: deadlines, giving up, and the raised epoch that decides their fate (I4).

use std::sync::Arc;

use quorate_proto::refusal::{Reason, Refusal};
use quorate_proto::time::BootTime;

use super::effect::Effect;
use super::error::{SendError, Unresolved};
use super::lane::{Batch, Lane, Queued};
use super::shared::Shared;

impl<T> Lane<T> {
    /// Ends what ran out of time.
    ///
    /// A record in a batch that may be applied ends as unresolved at its own deadline, but its batch is repeated under
    /// the same identity as long as any record in flight is still worth it: repeating is the only way to learn the
    /// fate of the others. Only then is the epoch raised.
    pub(super) fn expire(&mut self, now: BootTime, shared: &mut Shared, out: &mut Vec<Effect<T>>) {
        let due = |batch: &Batch<T>| batch.next_expiry().is_some_and(|at| at <= now);
        // A batch whose own records have all run out stays for the sake of others; they may be decided by now.
        let over = |batch: &Batch<T>| batch.may_be_applied() && batch.deadline <= now;
        if self.window.iter().any(|batch| due(batch) || over(batch)) {
            if self.window.iter().any(Batch::may_be_applied) {
                self.expire_window(now, shared, out);
            } else {
                // Every attempt was refused, nothing was stored: back into the queue, under new identities.
                self.raise_epoch(shared, out);
            }
        }
        let mut expired = false;
        while self.queue.front().is_some_and(|queued| queued.deadline <= now) {
            let Some(queued) = self.queue.pop_front() else { break };
            let refusal = self.out_of_time(shared, "it was never sent");
            shared.gap(queued.record.record_key());
            expired = true;
            if let Some(token) = queued.token {
                shared.resolve(token, queued.size, Err(SendError::refused(refusal)), out);
            }
        }
        if expired {
            self.sweep(shared, out);
        }
    }

    fn expire_window(&mut self, now: BootTime, shared: &mut Shared, out: &mut Vec<Effect<T>>) {
        let refusal = Arc::new(self.out_of_time(shared, "it was sent and not answered"));
        for index in 0..self.window.len() {
            while self.window[index].next_expiry().is_some_and(|at| at <= now) {
                let at = self.window[index].resolved;
                self.unresolved(index, at, &refusal, shared, out);
                self.window[index].resolved += 1;
            }
        }
        let worth_it = |batch: &&Batch<T>| batch.may_be_applied() && batch.deadline > now;
        if self.window.iter().find(worth_it).is_none() {
            self.give_up(&refusal, shared, out);
        }
    }

    /// Gives up every batch that may be applied and raises the epoch, which decides their fate.
    pub(super) fn give_up(&mut self, why: &Arc<Refusal>, shared: &mut Shared, out: &mut Vec<Effect<T>>) {
        for index in 0..self.window.len() {
            if self.window[index].may_be_applied() {
                for at in 0..self.window[index].records.len() {
                    self.unresolved(index, at, why, shared, out);
                    shared.gap(self.window[index].records[at].record.record_key());
                }
            }
        }
        for batch in self.window.iter().filter(|batch| batch.may_be_applied()) {
            shared.serials.remove(&batch.serial);
        }
        self.window.retain(|batch| !batch.may_be_applied());
        self.raise_epoch(shared, out);
        self.sweep(shared, out);
    }

    /// Begins a new epoch. Batches that were certainly not applied go back to the head of the queue, in order; those
    /// that may be applied are given up first.
    pub(super) fn raise_epoch(&mut self, shared: &mut Shared, out: &mut Vec<Effect<T>>) {
        if self.window.iter().any(Batch::may_be_applied) {
            let why = Arc::new(self.given_up(shared));
            self.give_up(&why, shared, out);
            return;
        }
        let by = self.raise_by.take().unwrap_or(1);
        while let Some(batch) = self.window.pop_back() {
            shared.serials.remove(&batch.serial);
            for queued in batch.records.into_iter().rev() {
                if queued.token.is_some() {
                    self.queue.push_front(queued);
                } else {
                    shared.gap(queued.record.record_key());
                }
            }
        }
        self.begin_epoch(by);
        self.sweep(shared, out);
    }

    /// Resolves what waits in the queue behind a gap.
    pub(super) fn sweep(&mut self, shared: &mut Shared, out: &mut Vec<Effect<T>>) {
        if shared.halted.is_empty() {
            return;
        }
        let refusal = Arc::new(shared.halted_refusal());
        let mut kept = std::collections::VecDeque::with_capacity(self.queue.len());
        for queued in std::mem::take(&mut self.queue) {
            let Queued { record, token, size, deadline } = queued;
            match token {
                Some(token) if shared.halted.contains(record.record_key()) => {
                    shared.resolve(token, size, Err(SendError::Refused(Arc::clone(&refusal))), out);
                }
                token => kept.push_back(Queued { record, token, size, deadline }),
            }
        }
        self.queue = kept;
    }

    /// Ends everything, because the producer ends or the topic is gone.
    pub(super) fn abort(&mut self, why: &Arc<Refusal>, shared: &mut Shared, out: &mut Vec<Effect<T>>) {
        if self.window.iter().any(Batch::may_be_applied) {
            self.give_up(why, shared, out);
        } else if !self.window.is_empty() {
            self.raise_epoch(shared, out);
        }
        for queued in std::mem::take(&mut self.queue) {
            if let Some(token) = queued.token {
                shared.resolve(token, queued.size, Err(SendError::Refused(Arc::clone(why))), out);
            }
        }
    }

    /// Record `at` of batch `index` ends with unknown fate.
    fn unresolved(
        &mut self,
        index: usize,
        at: usize,
        why: &Arc<Refusal>,
        shared: &mut Shared,
        out: &mut Vec<Effect<T>>,
    ) {
        let batch = &mut self.window[index];
        let sequence = quorate_proto::ids::Sequence(batch.first.0 + at as u64);
        let queued = &mut batch.records[at];
        let Some(token) = queued.token.take() else { return };
        let unresolved = Unresolved {
            refusal: Refusal::clone(why).of_unknown_fate(),
            partition: self.partition,
            producer: shared.producer,
            epoch: self.epoch,
            sequence,
            idempotency_key: queued.record.content.idempotency_key.clone(),
        };
        let size = queued.size;
        shared.resolve(token, size, Err(SendError::Unresolved(Arc::new(unresolved))), out);
    }

    /// The partition and who leads it, for a person.
    pub(super) fn subject(&self, shared: &Shared) -> String {
        let route = self.target.route();
        let leader = match route.leader {
            Some(node) => format!("the observers name {node} as leader in {}", route.epoch),
            None => format!("the observers name no leader after {}", route.epoch),
        };
        format!("{}/{}; {leader}", shared.topic, self.partition.get())
    }

    fn last_trouble(&self) -> String {
        self.trouble.as_ref().map_or_else(String::new, |t| format!("; last: {} ({})", t.what, t.reason.as_str_name()))
    }

    fn out_of_time(&self, shared: &Shared, how_far: &str) -> Refusal {
        // When only this client cannot reach the leader, the error says so.
        let unreachable = self.trouble.as_ref().filter(|t| t.reason == Reason::Unreachable);
        let reason = match (unreachable, self.target.route().leader) {
            (Some(_), Some(_)) => Reason::Unreachable,
            _ => Reason::Deadline,
        };
        Refusal::new(
            reason,
            format!("the record's deadline of {:?} passed: {how_far}{}", shared.config.deadline, self.last_trouble()),
            self.subject(shared),
            "send it again with the same idempotency key",
        )
    }

    pub(super) fn given_up(&self, shared: &Shared) -> Refusal {
        let reason = self.trouble.as_ref().map_or(Reason::Unreachable, |trouble| trouble.reason);
        Refusal::new(
            reason,
            format!("the record was given up after it had been sent{}", self.last_trouble()),
            self.subject(shared),
            "ask for its outcome, or send it again with the same idempotency key",
        )
    }
}
