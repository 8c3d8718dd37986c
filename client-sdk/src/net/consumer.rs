//! Reading.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::Stream;
use quorate_proto::ids::{Offset, PartitionNo, Term};
use quorate_proto::refusal::Refusal;
use quorate_proto::time::LogTime;

use super::not_yet;

/// A position to start from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartAt {
    /// The oldest record still kept.
    Earliest,
    /// After the newest committed record.
    Latest,
    /// This offset (in each partition that is read).
    Offset(Offset),
    /// The first record appended at this log time or later.
    Time(LogTime),
}

/// Collects the settings of a [`Consumer`].
#[derive(Clone, Debug)]
pub struct ConsumerBuilder {
    topic: String,
    start: StartAt,
    partitions: Option<Vec<PartitionNo>>,
    prefetch_bytes: u32,
}

impl ConsumerBuilder {
    pub(crate) fn new(topic: String) -> Self {
        Self { topic, start: StartAt::Earliest, partitions: None, prefetch_bytes: 4 << 20 }
    }

    /// Where to start. [`StartAt::Earliest`].
    #[must_use]
    pub fn from(mut self, start: StartAt) -> Self {
        self.start = start;
        self
    }

    /// Reads these partitions only. All.
    #[must_use]
    pub fn partitions(mut self, partitions: impl IntoIterator<Item = PartitionNo>) -> Self {
        self.partitions = Some(partitions.into_iter().collect());
        self
    }

    /// Bytes fetched ahead of the application, per partition. 4 MiB.
    #[must_use]
    pub fn prefetch_bytes(mut self, bytes: u32) -> Self {
        self.prefetch_bytes = bytes;
        self
    }

    /// Waits until the topic is known (≤ 5 s), finds the start positions and begins to fetch.
    ///
    /// # Errors
    /// `UNKNOWN_TOPIC`, `INVALID_ARGUMENT`, or the server's refusal when it was asked for a position.
    pub async fn build(self) -> Result<Consumer, Refusal> {
        not_yet()
    }
}

/// A committed record as read from a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumedRecord {
    /// Its partition …
    pub partition: PartitionNo,
    /// … and offset there.
    pub offset: Offset,
    /// Record key.
    pub key: Option<Bytes>,
    /// Payload.
    pub value: Bytes,
    /// Headers in the order given.
    pub headers: Vec<(String, Bytes)>,
    /// The application's time stamp.
    pub timestamp: LogTime,
    /// When it was appended, by the log's clock.
    pub log_time: LogTime,
    /// Leader epoch in which it was committed.
    pub epoch: Term,
}

/// Reads partitions of a topic, each in offset order, each record once; follows the leaders. Joins no group and commits
/// nothing. A `Stream` of records; an `Err` (for example `OFFSET_OUT_OF_RANGE`) ends its partition.
#[derive(Debug)]
pub struct Consumer {}

impl Consumer {
    /// The next record; `None` when every partition has ended with an error.
    ///
    /// Cancellation: safe, no record is lost.
    pub async fn next(&mut self) -> Option<Result<ConsumedRecord, Refusal>> {
        None
    }

    /// Offset after the last committed record of a partition, as of its last fetch.
    #[must_use]
    pub fn high_watermark(&self, _partition: PartitionNo) -> Option<Offset> {
        None
    }
}

impl Stream for Consumer {
    type Item = Result<ConsumedRecord, Refusal>;

    fn poll_next(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(None)
    }
}
