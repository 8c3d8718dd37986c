//! Publishing.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use quorate_proto::batch::{BatchOptions, ClientTime, Codec};
use quorate_proto::ids::{PartitionNo, ProducerEpoch, ProducerId, Sequence};
use quorate_proto::refusal::{Reason, Refusal};
use tokio::sync::oneshot;

use super::client::Inner;
use super::driver::{Driver, Item, Mailbox};
use crate::core::config::{OnGap, ProducerConfig};
use crate::core::effect::Outcome;
use crate::core::error::{SendError, Unresolved};
use crate::core::producer::ProducerCore;
use crate::core::receipt::{CloseReport, Receipt};
use crate::core::record::Record;

/// Collects the settings of a [`Producer`].
#[derive(Clone, Debug)]
pub struct ProducerBuilder {
    inner: Arc<Inner>,
    topic: String,
    config: ProducerConfig,
    codec: Codec,
}

impl ProducerBuilder {
    pub(crate) fn new(inner: Arc<Inner>, topic: String) -> Self {
        Self { inner, topic, config: ProducerConfig::default(), codec: Codec::None }
    }

    /// From `send` to the outcome. 15 s.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.config.deadline = deadline;
        self
    }

    /// Records admitted and not yet resolved. 65 536.
    #[must_use]
    pub fn max_in_flight(mut self, records: u32) -> Self {
        self.config.max_in_flight = records;
        self
    }

    /// Bytes of the records admitted and not yet resolved. 32 MiB.
    #[must_use]
    pub fn max_bytes(mut self, bytes: u32) -> Self {
        self.config.max_bytes = bytes;
        self
    }

    /// What a given-up record means for later ones.
    #[must_use]
    pub fn on_gap(mut self, policy: OnGap) -> Self {
        self.config.on_gap = policy;
        self
    }

    /// How batches are compressed. Not at all.
    #[must_use]
    pub fn compression(mut self, codec: Codec) -> Self {
        self.codec = codec;
        self
    }

    /// All settings at once.
    #[must_use]
    pub fn config(mut self, config: ProducerConfig) -> Self {
        self.config = config;
        self
    }

    /// Waits until the topic is known (≤ 5 s) and starts the producer with a fresh producer id (protocol I1).
    ///
    /// Cancellation: safe; nothing is left behind.
    ///
    /// # Errors
    /// `UNKNOWN_TOPIC`, or `INVALID_ARGUMENT` for a setting out of bounds.
    pub async fn build(self) -> Result<Producer, Refusal> {
        self.config.validate()?;
        let topic = self.inner.topic(&self.topic).await?;
        let mailbox = Arc::new(Mailbox::new(self.config.max_in_flight, self.config.max_bytes));
        let options = BatchOptions { codec: self.codec, ..BatchOptions::default() };
        let producer = ProducerId(rand::random());
        let core = ProducerCore::new(self.config, options, Arc::clone(&topic), producer, rand::random());
        let name = Arc::clone(&topic.name);
        let driver = Driver::new(self.inner, Arc::clone(&mailbox), topic, core);
        tokio::spawn(driver.run());
        Ok(Producer { mailbox, topic: name, id: producer })
    }
}

/// `try_send` had no room: the record comes back.
#[derive(Clone, Debug, PartialEq)]
pub struct Rejected {
    /// The record, unchanged.
    pub record: Record,
    /// Why: `BUSY` (buffer full), `TOO_LARGE`, or `INVALID_ARGUMENT` (producer closed).
    pub refusal: Refusal,
}

/// Publishes to one topic, pipelined, in order per partition, over any number of failovers. Share it by reference or
/// in an `Arc`.
///
/// Dropped without [`Producer::close`], it gives up whatever has no outcome yet and logs their number once.
#[derive(Debug)]
pub struct Producer {
    mailbox: Arc<Mailbox>,
    topic: Arc<str>,
    id: ProducerId,
}

impl Producer {
    /// Its identity in the log.
    #[must_use]
    pub fn id(&self) -> ProducerId {
        self.id
    }

    /// Records that were sent to a leader more than once so far, each repeat counted: after a refusal, a lost connection
    /// or an unplanned change of the leader.
    #[must_use]
    pub fn resent(&self) -> u64 {
        self.mailbox.resent.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Admits a record; waits while the buffer is full (back-pressure is felt here). Records of one task enter each
    /// partition in the order in which their `send`s were awaited.
    ///
    /// Cancellation: dropped before it is ready, the record was not admitted and will not be sent.
    ///
    /// # Errors
    /// Decisive refusals only: `TOO_LARGE`, or `INVALID_ARGUMENT` when the producer is closed.
    pub async fn send(&self, record: Record) -> Result<Pending, SendError> {
        let size = self.check(&record).map_err(SendError::refused)?;
        let room = self.mailbox.records.acquire().await;
        let bytes = self.mailbox.bytes.acquire_many(size).await;
        let (Ok(room), Ok(bytes)) = (room, bytes) else {
            return Err(SendError::refused(self.closed()));
        };
        room.forget();
        bytes.forget();
        self.push(record).map_err(|rejected| SendError::refused(rejected.refusal))
    }

    /// Admits a record if there is room; never waits.
    ///
    /// # Errors
    /// [`Rejected`] with the record.
    pub fn try_send(&self, record: Record) -> Result<Pending, Rejected> {
        let size = match self.check(&record) {
            Ok(size) => size,
            Err(refusal) => return Err(Rejected { record, refusal }),
        };
        let room = self.mailbox.records.try_acquire();
        let bytes = self.mailbox.bytes.try_acquire_many(size);
        let (Ok(room), Ok(bytes)) = (room, bytes) else {
            let refusal = if self.mailbox.records.is_closed() { self.closed() } else { self.busy() };
            return Err(Rejected { record, refusal });
        };
        room.forget();
        bytes.forget();
        self.push(record)
    }

    fn check(&self, record: &Record) -> Result<u32, Refusal> {
        record.content.check().map_err(|bad| bad.refusal(&*self.topic))?;
        if record.content.idempotency_key.as_ref().is_some_and(bytes::Bytes::is_empty) {
            let action = "give the record a key of its own, or call no `idempotency_key` at all";
            return Err(Refusal::new(Reason::InvalidArgument, "the idempotency key is empty", &*self.topic, action));
        }
        Ok(u32::try_from(record.size()).expect("a checked record is at most 1 MiB"))
    }

    fn push(&self, mut record: Record) -> Result<Pending, Rejected> {
        if record.content.timestamp == ClientTime::NONE {
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            record.content.timestamp = ClientTime(i64::try_from(since.as_micros()).unwrap_or(i64::MAX));
        }
        let (slot, outcome) = oneshot::channel();
        match self.mailbox.push(Item::Send(record, slot)) {
            Err(Item::Send(record, _)) => Err(Rejected { record, refusal: self.closed() }),
            _ => Ok(Pending { outcome }),
        }
    }

    fn closed(&self) -> Refusal {
        Refusal::new(Reason::InvalidArgument, "the producer is closed", &*self.topic, "use a producer that is open")
    }

    fn busy(&self) -> Refusal {
        let what = "the producer's buffer is full";
        Refusal::new(Reason::Busy, what, &*self.topic, "wait for outcomes, then send again; or use send, which waits")
    }

    /// Waits until every record admitted before this call has its outcome. `false` if `limit` ran out first.
    ///
    /// Cancellation: safe, nothing is lost.
    pub async fn flush(&self, limit: Duration) -> bool {
        let (done, waiting) = oneshot::channel();
        if self.mailbox.push(Item::Flush(done)).is_err() {
            return true;
        }
        matches!(tokio::time::timeout(limit, waiting).await, Ok(Ok(())))
    }

    /// Lets later records of this record key through again after a gap ([`OnGap::HaltKey`]).
    pub fn release(&self, key: &Bytes) {
        // A closed producer sends nothing, so there is nothing to release.
        let _ = self.mailbox.push(Item::Release(key.clone()));
    }

    /// Lets all later records through again after a gap.
    pub fn release_all(&self) {
        let _ = self.mailbox.push(Item::ReleaseAll);
    }

    /// Totals so far.
    #[must_use]
    pub fn report(&self) -> CloseReport {
        *self.mailbox.totals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits nothing more, waits for the outcomes at most `limit`, then gives the rest up (their [`Pending`]s resolve
    /// as not sent or unresolved) and reports.
    ///
    /// Cancellation: gives the rest up at once, like dropping the producer.
    pub async fn close(self, limit: Duration) -> CloseReport {
        self.flush(limit).await;
        let (report, reported) = oneshot::channel();
        let what = format!("the producer was closed, and {limit:?} were not enough");
        let why = Refusal::new(Reason::Deadline, what, &*self.topic, "close with a longer limit");
        // It was open: only `close` and `drop` end it, and both own it.
        let _ = self.mailbox.push(Item::End(why, Some(report)));
        match reported.await {
            Ok(report) => report,
            Err(_) => self.report(),
        }
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        let what = "the producer was dropped before this record had its outcome";
        let why = Refusal::new(Reason::Deadline, what, &*self.topic, "close the producer before dropping it");
        // After `close` the driver is gone already.
        let _ = self.mailbox.push(Item::End(why, None));
    }
}

/// The outcome of one record, to be awaited. Dropping it does not take the record back.
#[derive(Debug)]
#[must_use = "without awaiting it nobody learns whether the record is committed"]
pub struct Pending {
    outcome: oneshot::Receiver<Outcome>,
}

impl Pending {
    /// Blocks the thread until the outcome is known. Not within a runtime: it panics there.
    ///
    /// # Errors
    /// As awaiting it.
    pub fn wait(self) -> Result<Receipt, SendError> {
        self.outcome.blocking_recv().unwrap_or_else(|_| Err(abandoned()))
    }
}

impl Future for Pending {
    type Output = Result<Receipt, SendError>;

    /// Cancellation: safe; the record goes its way all the same.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.outcome).poll(context).map(|outcome| outcome.unwrap_or_else(|_| Err(abandoned())))
    }
}

/// The runtime ended under the producer.
fn abandoned() -> SendError {
    let what = "the client's runtime was shut down while the record was on its way";
    let refusal = Refusal::new(Reason::Unreachable, what, "", "close the producer before its runtime ends");
    SendError::Unresolved(Arc::new(Unresolved {
        refusal: refusal.of_unknown_fate(),
        partition: PartitionNo::ZERO,
        producer: ProducerId::NONE,
        epoch: ProducerEpoch::ZERO,
        sequence: Sequence::ZERO,
        idempotency_key: None,
    }))
}
