//! Reading.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use quorate_proto::batch::{StoredBatchView, StoredRecords};
use quorate_proto::ids::{Offset, PartitionNo, Term};
use quorate_proto::refusal::{Reason, Refusal};
use quorate_proto::time::LogTime;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::client::Inner;
use super::fetcher::{Chunk, Fetcher};
use super::leader::LeaderPath;

/// How long the start positions are looked for.
const START_LIMIT: Duration = Duration::from_secs(15);
/// Bytes asked for at once.
pub(crate) const FETCH_BYTES: u32 = 1 << 20;

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
    inner: Arc<Inner>,
    topic: String,
    start: StartAt,
    starts: BTreeMap<PartitionNo, StartAt>,
    partitions: Option<BTreeSet<PartitionNo>>,
    prefetch_bytes: u32,
}

impl ConsumerBuilder {
    pub(crate) fn new(inner: Arc<Inner>, topic: String) -> Self {
        Self {
            inner,
            topic,
            start: StartAt::Earliest,
            starts: BTreeMap::new(),
            partitions: None,
            prefetch_bytes: 4 << 20,
        }
    }

    /// Where to start. [`StartAt::Earliest`].
    #[must_use]
    pub fn from(mut self, start: StartAt) -> Self {
        self.start = start;
        self
    }

    /// Where to start in one partition, instead.
    #[must_use]
    pub fn from_in(mut self, partition: PartitionNo, start: StartAt) -> Self {
        self.starts.insert(partition, start);
        self
    }

    /// Reads these partitions only. All.
    #[must_use]
    pub fn partitions(mut self, partitions: impl IntoIterator<Item = PartitionNo>) -> Self {
        self.partitions = Some(partitions.into_iter().collect());
        self
    }

    /// Bytes fetched ahead of the application, per partition, rounded to whole MiB. 4 MiB.
    #[must_use]
    pub fn prefetch_bytes(mut self, bytes: u32) -> Self {
        self.prefetch_bytes = bytes;
        self
    }

    /// Waits until the topic is known (≤ 5 s), finds the start positions (≤ 15 s) and begins to fetch.
    ///
    /// Cancellation: safe; nothing is left behind.
    ///
    /// # Errors
    /// `UNKNOWN_TOPIC`, `INVALID_ARGUMENT`, or the refusal of a leader that was asked for a position.
    pub async fn build(self) -> Result<Consumer, Refusal> {
        let topic = self.inner.topic(&self.topic).await?;
        let partitions = self.partitions.unwrap_or_else(|| topic.partitions.keys().copied().collect());
        let mut starts = Vec::new();
        for partition in partitions {
            let mut path = LeaderPath::new(Arc::clone(&self.inner), &topic, partition)?;
            let start = self.starts.get(&partition).copied().unwrap_or(self.start);
            starts.push(async move { path.list_offset(start, START_LIMIT).await.map(|offset| (path, offset)) });
        }
        let starts = futures::future::try_join_all(starts).await?;
        let ahead = (self.prefetch_bytes / FETCH_BYTES).max(1) as usize;
        let (chunks, fetched) = mpsc::channel(ahead * starts.len().max(1));
        let mut tasks = Vec::new();
        let mut high_watermarks = BTreeMap::new();
        for (path, offset) in starts {
            let mark = Arc::new(AtomicU64::new(offset.get()));
            high_watermarks.insert(path.partition, Arc::clone(&mark));
            let fetcher = Fetcher::new(path, offset, chunks.clone(), mark);
            tasks.push(tokio::spawn(fetcher.run()).abort_handle());
        }
        Ok(Consumer { fetched, current: None, ended: BTreeSet::new(), high_watermarks, tasks })
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
    /// Idempotency key.
    pub idempotency_key: Option<Bytes>,
    /// The application's time stamp.
    pub timestamp: LogTime,
    /// When it was appended, by the log's clock.
    pub log_time: LogTime,
    /// Leader epoch in which it was committed.
    pub epoch: Term,
}

/// Reads partitions of a topic, each in offset order, each record once; follows the leaders. Joins no group and commits
/// nothing. A `Stream` of records; an `Err` (for example `OFFSET_OUT_OF_RANGE`) ends its partition, the others go on.
/// It ends when every partition has ended.
#[derive(Debug)]
pub struct Consumer {
    fetched: mpsc::Receiver<Chunk>,
    current: Option<Open>,
    /// Partitions whose stored bytes could not be read.
    ended: BTreeSet<PartitionNo>,
    high_watermarks: BTreeMap<PartitionNo, Arc<AtomicU64>>,
    tasks: Vec<AbortHandle>,
}

/// A chunk that is being read.
#[derive(Debug)]
struct Open {
    partition: PartitionNo,
    /// Records below it were delivered before, or not asked for.
    from: Offset,
    /// Batches not opened yet, the next one last.
    batches: Vec<StoredBatchView>,
    records: Option<(StoredRecords, LogTime, Term)>,
}

impl Consumer {
    /// The next record; `None` when every partition has ended with an error.
    ///
    /// Cancellation: safe, no record is lost.
    pub async fn next(&mut self) -> Option<Result<ConsumedRecord, Refusal>> {
        std::future::poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }

    /// Offset after the last committed record of a partition, as of its last fetch.
    #[must_use]
    pub fn high_watermark(&self, partition: PartitionNo) -> Option<Offset> {
        self.high_watermarks.get(&partition).map(|mark| Offset(mark.load(Ordering::Relaxed)))
    }

    /// Next record of the chunk that is open.
    fn next_of_current(&mut self) -> Option<Result<ConsumedRecord, Refusal>> {
        let open = self.current.as_mut()?;
        let next = open.next();
        match &next {
            None => self.current = None,
            Some(Err(_)) => {
                self.ended.insert(open.partition);
                self.current = None;
            }
            Some(Ok(_)) => {}
        }
        next
    }
}

impl Open {
    fn next(&mut self) -> Option<Result<ConsumedRecord, Refusal>> {
        loop {
            if let Some((records, log_time, epoch)) = &mut self.records {
                for read in records.by_ref() {
                    let (offset, record) = match read {
                        Ok(read) => read,
                        Err(bad) => return Some(Err(corrupt(self.partition, &bad.to_string()))),
                    };
                    if offset < self.from {
                        continue;
                    }
                    return Some(Ok(ConsumedRecord {
                        partition: self.partition,
                        offset,
                        key: record.key,
                        value: record.value,
                        headers: record.headers.into_iter().map(|header| (header.name, header.value)).collect(),
                        idempotency_key: record.idempotency_key,
                        timestamp: LogTime(record.timestamp.0),
                        log_time: *log_time,
                        epoch: *epoch,
                    }));
                }
            }
            let batch = self.batches.pop()?;
            match batch.records() {
                Ok(records) => self.records = Some((records, batch.prefix().log_time, batch.prefix().epoch)),
                Err(bad) => return Some(Err(corrupt(self.partition, &bad.to_string()))),
            }
        }
    }
}

pub(crate) fn corrupt(partition: PartitionNo, what: &str) -> Refusal {
    Refusal::new(
        Reason::Corrupt,
        format!("stored records cannot be read: {what}"),
        partition.to_string(),
        "read on from a later offset, and report it: replicas can be repaired from each other",
    )
}

impl Stream for Consumer {
    type Item = Result<ConsumedRecord, Refusal>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(read) = self.next_of_current() {
                return Poll::Ready(Some(read));
            }
            match self.fetched.poll_recv(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Ready(Some(chunk)) if self.ended.contains(&chunk.partition) => {}
                Poll::Ready(Some(Chunk { partition, content: Ok((from, mut batches)) })) => {
                    batches.reverse();
                    self.current = Some(Open { partition, from, batches, records: None });
                }
                Poll::Ready(Some(Chunk { content: Err(refusal), .. })) => return Poll::Ready(Some(Err(refusal))),
            }
        }
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}
