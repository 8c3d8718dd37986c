//! What answers, lost links and pushed routes do to a partition's batches.

use std::sync::Arc;

use quorate_proto::ids::{NodeId, Offset, Term};
use quorate_proto::refusal::{Reason, Refusal};
use quorate_proto::time::{BootTime, LogTime};
use quorate_proto::v1;

use super::effect::{Effect, Tag};
use super::error::SendError;
use super::lane::Lane;
use super::receipt::Receipt;
use super::routes::PartitionRoute;
use super::shared::Shared;
use super::target::Class;

/// Attempts of unknown fate after the first one.
const RETRIES: u32 = 5;

impl<T> Lane<T> {
    /// A receipt decides its batch, whichever attempt it belongs to.
    pub(super) fn on_receipt(
        &mut self,
        now: BootTime,
        tag: Tag,
        receipt: v1::Receipt,
        shared: &mut Shared,
        out: &mut Vec<Effect<T>>,
    ) {
        let Some(index) = self.window.iter().position(|batch| batch.serial == tag.serial()) else { return };
        let Some(batch) = self.window.remove(index) else { return };
        shared.serials.remove(&batch.serial);
        self.established = true;
        self.fenced_step = 1;
        self.last_use = now;
        self.trouble = None;
        self.target.on_success();
        shared.well(now, self.partition, out);
        let answer = BatchAnswer::read(receipt);
        let mut next = answer.base;
        let mut exceptions = answer.exceptions.into_iter().peekable();
        for (at, queued) in batch.records.into_iter().enumerate() {
            let exception = exceptions.next_if(|(index, _)| *index == at).map(|(_, kind)| kind);
            let outcome = match exception {
                Some(Exception::Refused(refusal)) => Err(SendError::refused(refusal)),
                Some(Exception::DuplicateOf(offset)) => Ok((Some(offset), Some(offset))),
                None => {
                    let offset = next;
                    next = next.map(Offset::next);
                    Ok((offset, None))
                }
            };
            let outcome = outcome.map(|(offset, duplicate)| Receipt {
                partition: self.partition,
                offset,
                epoch: answer.epoch,
                log_time: answer.log_time,
                durable_on: Arc::clone(&answer.durable_on),
                duplicate,
            });
            if let Some(token) = queued.token {
                shared.resolve(token, queued.size, outcome, out);
            }
        }
    }

    /// A refusal counts only for the attempt that it answers.
    pub(super) fn on_refusal(
        &mut self,
        now: BootTime,
        tag: Tag,
        refusal: Refusal,
        shared: &mut Shared,
        out: &mut Vec<Effect<T>>,
    ) {
        let found = |batch: &super::lane::Batch<T>| batch.serial == tag.serial() && batch.attempt == tag.attempt();
        let Some(index) = self.window.iter().position(found) else { return };
        let batch = &mut self.window[index];
        let Some(node) = batch.sent_to.take() else { return };
        batch.unknown |= refusal.maybe_applied;
        let (head, retries) = (batch.sent_as_head, batch.retries);
        let refusal = Arc::new(refusal);
        match refusal.reason {
            // Behind a batch that was refused: it goes again after it. At the head there is nothing to wait for: the
            // partition does not continue where this epoch stands, so a new epoch must begin (I4).
            Reason::OutOfSequence => {
                if head {
                    self.raise_by.get_or_insert(1);
                }
                return;
            }
            Reason::ProducerFenced => {
                self.raise_by = Some(self.fenced_step);
                self.fenced_step = self.fenced_step.saturating_mul(2);
            }
            _ => match Class::of(&refusal) {
                Class::Elsewhere | Class::Later => self.target.on_refusal(now, node, &refusal, &mut shared.jitter),
                Class::Broken => {
                    self.target.wait_until(now + shared.jitter.delay(retries));
                    if refusal.maybe_applied {
                        self.use_retry(index, node, &refusal, shared, out);
                    }
                }
                Class::Final => self.refuse(index, &refusal, shared, out),
            },
        }
        self.trouble = Some(Arc::clone(&refusal));
        shared.trouble(now, self.partition, &refusal, out);
    }

    /// The batch is refused for good. What follows it in this epoch can never be accepted: a new one begins.
    fn refuse(&mut self, index: usize, refusal: &Arc<Refusal>, shared: &mut Shared, out: &mut Vec<Effect<T>>) {
        self.raise_by.get_or_insert(1);
        if self.window[index].unknown {
            return; // Given up as unresolved when the epoch is raised.
        }
        let Some(batch) = self.window.remove(index) else { return };
        shared.serials.remove(&batch.serial);
        for queued in batch.records {
            shared.gap(queued.record.record_key());
            if let Some(token) = queued.token {
                shared.resolve(token, queued.size, Err(SendError::Refused(Arc::clone(refusal))), out);
            }
        }
        self.sweep(shared, out);
    }

    /// The link to `node` is gone, or could not be opened.
    pub(super) fn on_link_lost(
        &mut self,
        now: BootTime,
        node: NodeId,
        why: &str,
        shared: &mut Shared,
        out: &mut Vec<Effect<T>>,
    ) {
        let mut touched = self.target.node() == Some(node) && !self.is_idle();
        for batch in self.window.iter_mut().filter(|batch| batch.sent_to == Some(node)) {
            batch.sent_to = None;
            batch.unknown = true;
            touched = true;
        }
        if !touched {
            return;
        }
        let refusal = Refusal::new(
            Reason::Unreachable,
            format!("this client has no connection to {node}: {why}"),
            self.subject(shared),
            "nothing; the client tries again and follows the leader",
        );
        let refusal = Arc::new(refusal);
        self.trouble = Some(Arc::clone(&refusal));
        shared.trouble(now, self.partition, &refusal, out);
        if let Some(index) = self.window.iter().position(|batch| batch.unknown) {
            self.use_retry(index, node, &refusal, shared, out);
        }
    }

    /// Counts an attempt of unknown fate against the batches that shared it; gives up when one has no retry left.
    /// It counts only while the observers name that node: otherwise a new leader is on its way, and waiting is right.
    fn use_retry(
        &mut self,
        from: usize,
        node: NodeId,
        why: &Arc<Refusal>,
        shared: &mut Shared,
        out: &mut Vec<Effect<T>>,
    ) {
        if !shared.routes_live || !self.target.names(node) {
            return;
        }
        let whole_link = why.reason == Reason::Unreachable;
        let mut spent = false;
        for (index, batch) in self.window.iter_mut().enumerate().skip(from) {
            if batch.unknown && (whole_link || index == from) {
                batch.retries += 1;
                spent |= batch.retries > RETRIES;
            }
        }
        if spent {
            let why = Arc::new(self.given_up(shared));
            self.give_up(&why, shared, out);
        }
    }

    /// The observers pushed a route. A new leader gets everything undecided at once, in order.
    pub(super) fn on_route(&mut self, route: PartitionRoute, shared: &mut Shared, out: &mut Vec<Effect<T>>) {
        let old = *self.target.route();
        let followed_hint = self.target.node() == route.leader && old.leader != route.leader;
        if !self.target.on_route(route) {
            return;
        }
        if route.group != old.group {
            // Another incarnation of the partition knows nothing of this producer.
            let why = Arc::new(self.given_up(shared));
            self.give_up(&why, shared, out);
            return;
        }
        let Some(leader) = route.leader else { return };
        for batch in &mut self.window {
            // One that handed over on purpose still answers what it was sent (H1).
            let moved = !route.handed_over && batch.sent_to.is_some_and(|node| node != leader);
            let superseded = batch.sent_to == Some(leader) && route.epoch > old.epoch && !followed_hint;
            if moved || superseded {
                batch.sent_to = None;
                batch.unknown = true;
            }
        }
    }
}

enum Exception {
    DuplicateOf(Offset),
    Refused(Refusal),
}

/// A receipt as the lane needs it.
struct BatchAnswer {
    base: Option<Offset>,
    epoch: Term,
    log_time: LogTime,
    durable_on: Arc<[NodeId]>,
    exceptions: Vec<(usize, Exception)>,
}

impl BatchAnswer {
    fn read(receipt: v1::Receipt) -> Self {
        let known = !receipt.duplicate_batch || receipt.offsets_known;
        let read = |e: v1::RecordException| {
            let kind = match e.kind? {
                v1::record_exception::Kind::DuplicateOf(offset) => Exception::DuplicateOf(Offset(offset)),
                v1::record_exception::Kind::Refused(error) => Exception::Refused(Refusal::from(error)),
            };
            Some((e.index as usize, kind))
        };
        let mut exceptions: Vec<_> = receipt.exceptions.into_iter().filter_map(read).collect();
        exceptions.sort_by_key(|(index, _)| *index);
        Self {
            base: known.then_some(Offset(receipt.base_offset)),
            epoch: Term(receipt.epoch),
            log_time: LogTime(receipt.log_time_us),
            durable_on: receipt.durable_on.into_iter().map(NodeId).collect(),
            exceptions,
        }
    }
}
