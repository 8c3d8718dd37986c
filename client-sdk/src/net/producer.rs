//! Publishing.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use quorate_proto::refusal::Refusal;

use super::not_yet;
use crate::core::config::{OnGap, ProducerConfig};
use crate::core::error::SendError;
use crate::core::receipt::{CloseReport, Receipt};
use crate::core::record::Record;

/// Collects the settings of a [`Producer`].
#[derive(Clone, Debug)]
pub struct ProducerBuilder {
    topic: String,
    config: ProducerConfig,
}

impl ProducerBuilder {
    pub(crate) fn new(topic: String) -> Self {
        Self { topic, config: ProducerConfig::default() }
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

    /// Waits until the topic is known (≤ 5 s) and starts the producer.
    ///
    /// # Errors
    /// `UNKNOWN_TOPIC`, or `INVALID_ARGUMENT` for a setting out of bounds.
    pub async fn build(self) -> Result<Producer, Refusal> {
        not_yet()
    }
}

/// `try_send` had no room: the record comes back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// The record, unchanged.
    pub record: Record,
    /// Why: `BUSY` (buffer full), `TOO_LARGE`, or `INVALID_ARGUMENT` (producer closed).
    pub refusal: Refusal,
}

/// Publishes to one topic, pipelined, in order per partition, over any number of failovers. Share it by reference or
/// in an `Arc`.
#[derive(Debug)]
pub struct Producer {}

impl Producer {
    /// Admits a record; waits while the buffer is full (back-pressure is felt here).
    ///
    /// Cancellation: dropped before it is ready, the record was not admitted and will not be sent.
    ///
    /// # Errors
    /// Decisive refusals only: `TOO_LARGE`, or `INVALID_ARGUMENT` when the producer is closed.
    pub async fn send(&self, _record: Record) -> Result<Pending, SendError> {
        not_yet().map_err(SendError::refused)
    }

    /// Admits a record if there is room; never waits.
    ///
    /// # Errors
    /// [`Rejected`] with the record.
    pub fn try_send(&self, record: Record) -> Result<Pending, Rejected> {
        not_yet().map_err(|refusal| Rejected { record, refusal })
    }

    /// Waits until every record admitted before this call has its outcome. `false` if `limit` ran out first.
    ///
    /// Cancellation: safe, nothing is lost.
    pub async fn flush(&self, _limit: Duration) -> bool {
        false
    }

    /// Lets later records of this record key through again after a gap ([`OnGap::HaltKey`]).
    pub fn release(&self, _key: &Bytes) {}

    /// Lets all later records through again after a gap.
    pub fn release_all(&self) {}

    /// Totals so far.
    #[must_use]
    pub fn report(&self) -> CloseReport {
        CloseReport::default()
    }

    /// Admits nothing more, waits for the outcomes at most `limit`, then gives the rest up (their [`Pending`]s resolve
    /// as not sent or unresolved) and reports.
    pub async fn close(self, _limit: Duration) -> CloseReport {
        CloseReport::default()
    }
}

/// The outcome of one record, to be awaited. Dropping it does not take the record back.
#[derive(Debug)]
pub struct Pending {}

impl Future for Pending {
    type Output = Result<Receipt, SendError>;

    fn poll(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Pending
    }
}
