//! One partition of one producer: its queue, its batches in flight, its epoch and sequence (protocol I1–I5).
//!
//! ```text
//!  send ─► queue ─────form────► window (≤ 4 batches, sequence order) ──transmit──► leader
//!            ▲                     │  receipt: decided, leaves
//!            └─────raise epoch─────┘  refused or broken: all wait until none is in flight, then go again in order
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quorate_proto::batch::{BatchBuilder, BatchIdentity, BatchOptions};
use quorate_proto::ids::{NodeId, PartitionNo, ProducerEpoch, Sequence};
use quorate_proto::limits::BATCH_RECORDS_MAX;
use quorate_proto::refusal::Refusal;
use quorate_proto::time::BootTime;

use super::effect::{Effect, Tag, Transmit};
use super::record::Record;
use super::routes::PartitionRoute;
use super::shared::Shared;
use super::target::Target;

/// A producer that was idle for so long begins a new epoch: its state may soon be evicted (I5).
const IDLE: Duration = Duration::from_secs(8 * 60);

/// A record on its way.
#[derive(Debug)]
pub(super) struct Queued<T> {
    pub(super) record: Record,
    /// `None`: its outcome was given already (its deadline passed while its batch was in flight).
    pub(super) token: Option<T>,
    pub(super) size: u32,
    pub(super) deadline: BootTime,
}

/// Records that were sent together, until the fate of all is known.
#[derive(Debug)]
pub(super) struct Batch<T> {
    pub(super) serial: u64,
    pub(super) attempt: u8,
    pub(super) first: Sequence,
    pub(super) records: Vec<Queued<T>>,
    /// Records before this one have their outcome already.
    pub(super) resolved: usize,
    pub(super) encoded: Bytes,
    /// The node that has it now and owes an answer.
    pub(super) sent_to: Option<NodeId>,
    /// Everything before it was decided when it was last sent, so `OUT_OF_SEQUENCE` cannot be a matter of order.
    pub(super) sent_as_head: bool,
    /// Some attempt ended with unknown fate: it may be in the log.
    pub(super) unknown: bool,
    pub(super) retries: u32,
    /// Deadline of its last record: until then it is worth repeating.
    pub(super) deadline: BootTime,
}

impl<T> Batch<T> {
    /// It may be in the log, or may yet get there.
    pub(super) fn may_be_applied(&self) -> bool {
        self.unknown || self.sent_to.is_some()
    }

    /// When the next of its records runs out.
    pub(super) fn next_expiry(&self) -> Option<BootTime> {
        self.records.get(self.resolved).map(|record| record.deadline)
    }
}

#[derive(Debug)]
pub(super) struct Lane<T> {
    pub(super) partition: PartitionNo,
    pub(super) target: Target,
    pub(super) queue: VecDeque<Queued<T>>,
    pub(super) window: VecDeque<Batch<T>>,
    pub(super) epoch: ProducerEpoch,
    pub(super) next: Sequence,
    /// The first batch of the epoch was answered; before that only one may be in flight (I5).
    pub(super) established: bool,
    /// Last receipt.
    pub(super) last_use: BootTime,
    /// Raise the epoch by this as soon as nothing is in flight.
    pub(super) raise_by: Option<u32>,
    /// How much the next `PRODUCER_FENCED` raises it; doubles, so that any epoch is passed after 32 of them.
    pub(super) fenced_step: u32,
    /// What went wrong last.
    pub(super) trouble: Option<Arc<Refusal>>,
    /// Entry in the producer's timer list.
    pub(super) timer: Option<BootTime>,
}

impl<T> Lane<T> {
    pub(super) fn new(partition: PartitionNo, route: PartitionRoute) -> Self {
        Self {
            partition,
            target: Target::new(route),
            queue: VecDeque::new(),
            window: VecDeque::new(),
            epoch: ProducerEpoch::ZERO,
            next: Sequence::ZERO,
            established: false,
            last_use: BootTime::ZERO,
            raise_by: None,
            fenced_step: 1,
            trouble: None,
            timer: None,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.window.is_empty()
    }

    fn in_flight(&self) -> bool {
        self.window.iter().any(|batch| batch.sent_to.is_some())
    }

    /// Sends what may be sent now.
    pub(super) fn pump(&mut self, now: BootTime, shared: &mut Shared, out: &mut Vec<Effect<T>>) {
        self.expire(now, shared, out);
        if self.raise_by.is_some() && !self.in_flight() {
            self.raise_epoch(shared, out);
        }
        if self.is_idle() {
            shared.links.forget(self.partition);
            shared.well(now, self.partition, out);
            return;
        }
        if self.raise_by.is_some() {
            return;
        }
        let Some(node) = self.target.choose(now) else { return };
        // A leader that handed over answers what it has, before anything goes to the next one: order is kept.
        if self.window.iter().any(|batch| batch.sent_to.is_some_and(|at| at != node)) {
            return;
        }
        let again = self.window.iter().any(|batch| batch.sent_to.is_none());
        // What was refused or broke off goes again only when nothing is in flight: order is kept by sending all of it.
        if again && self.in_flight() {
            return;
        }
        if !again && !self.may_form(shared) {
            return;
        }
        if !shared.links.want(now, node, self.partition, out) {
            return;
        }
        if again {
            for index in 0..self.window.len() {
                self.transmit(now, index, node, shared, out);
            }
        }
        while self.may_form(shared) {
            self.form(now, shared);
            self.transmit(now, self.window.len() - 1, node, shared, out);
        }
    }

    /// A slot is free and there is something to send: a batch closes.
    fn may_form(&self, shared: &Shared) -> bool {
        let slots = if self.established { usize::from(shared.config.slots) } else { 1 };
        !self.queue.is_empty() && self.window.len() < slots
    }

    fn form(&mut self, now: BootTime, shared: &mut Shared) {
        let begun = self.established || self.next != Sequence::ZERO;
        if self.window.is_empty() && begun && now.since(self.last_use) >= IDLE {
            self.begin_epoch(1);
        }
        let records = self.take_for_batch(shared);
        let priority = records.first().map(|first| first.record.priority).unwrap_or_default();
        let mut builder = BatchBuilder::new(BatchOptions { priority, ..shared.options });
        for queued in &records {
            builder.push(&queued.record.content).expect("checked when it was admitted, and batches are small");
        }
        let identity = BatchIdentity { producer: shared.producer, epoch: self.epoch, base_sequence: self.next };
        let count = records.len() as u64;
        let batch = Batch {
            serial: shared.next_serial,
            attempt: 0,
            first: self.next,
            resolved: 0,
            encoded: builder.finish(identity),
            sent_to: None,
            sent_as_head: false,
            unknown: false,
            retries: 0,
            deadline: records.iter().map(|record| record.deadline).max().unwrap_or(now),
            records,
        };
        shared.next_serial += 1;
        shared.serials.insert(batch.serial, self.partition);
        self.next = Sequence(self.next.0 + count);
        self.window.push_back(batch);
    }

    /// The records of the next batch: all of one priority, up to the batch size, at least one.
    fn take_for_batch(&mut self, shared: &Shared) -> Vec<Queued<T>> {
        let Some(priority) = self.queue.front().map(|first| first.record.priority) else { return Vec::new() };
        let mut bytes = 0;
        let fits = |queued: &&Queued<T>| {
            bytes += queued.size as usize;
            queued.record.priority == priority && bytes <= shared.config.batch_bytes as usize
        };
        let count = self.queue.iter().take(BATCH_RECORDS_MAX).take_while(fits).count().max(1);
        self.queue.drain(..count).collect()
    }

    fn transmit(&mut self, now: BootTime, index: usize, node: NodeId, shared: &Shared, out: &mut Vec<Effect<T>>) {
        let batch = &mut self.window[index];
        let again = batch.attempt > 0;
        batch.attempt = batch.attempt.wrapping_add(1).max(1);
        batch.sent_to = Some(node);
        batch.sent_as_head = index == 0;
        out.push(Effect::Transmit(Transmit {
            node,
            tag: Tag::new(batch.serial, batch.attempt),
            topic: Arc::clone(&shared.topic),
            partition: self.partition,
            group: self.target.route().group,
            batch: batch.encoded.clone(),
            records: u32::try_from(batch.records.len()).expect("at most BATCH_RECORDS_MAX"),
            deadline: batch.deadline.since(now).max(Duration::from_millis(1)),
            again,
        }));
    }

    pub(super) fn begin_epoch(&mut self, by: u32) {
        self.epoch = ProducerEpoch(self.epoch.0.checked_add(by).expect("an epoch counter does not run out"));
        self.next = Sequence::ZERO;
        self.established = false;
    }

    /// When the lane must be looked at without any event.
    pub(super) fn deadline(&self, now: BootTime) -> Option<BootTime> {
        if self.is_idle() {
            return None;
        }
        let queue = self.queue.front().map(|queued| queued.deadline);
        let window = self.window.iter().filter_map(Batch::next_expiry).min();
        let given_up = self.window.iter().filter(|batch| batch.may_be_applied()).map(|batch| batch.deadline).max();
        [queue, window, given_up, self.target.deadline(now)].into_iter().flatten().min()
    }
}
