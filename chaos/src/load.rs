//! Load generators. *Open loop*: record i is due at `start + i / rate` and its latency counts from that instant,
//! so a stall of the cluster cannot hide behind a generator that waits for it. *Closed loop*: so many records
//! in flight per producer, for throughput.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use futures::stream::{FuturesUnordered, StreamExt};
use quorate_client::core::TopicRoutes;
use quorate_client::{Client, OnGap, PartitionNo, Pending, Producer, Receipt, Record, SendError};
use tokio::sync::mpsc;

use crate::ledger::{Fate, Ledger, ANYWHERE};
use crate::measure::{Latency, Timeline};
use crate::payload::Stamp;
use crate::Error;

/// Keys per producer of drills and benchmarks.
pub const KEYS: u32 = 64;

/// The generator looks at the clock at least this often.
const RESOLUTION: Duration = Duration::from_micros(200);

/// What to publish.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Topic.
    pub topic: String,
    /// Names the run within the topic.
    pub run: u64,
    /// Producer objects.
    pub producers: u32,
    /// Keys of each.
    pub keys: u32,
    /// Bytes of each payload.
    pub size: usize,
    /// Give each record an idempotency key of its own.
    pub idempotency_keys: bool,
}

impl Shape {
    /// One producer with [`KEYS`] keys, and an idempotency key for each record.
    #[must_use]
    pub fn one_producer(topic: impl Into<String>, run: u64, size: usize) -> Self {
        Self { topic: topic.into(), run, producers: 1, keys: KEYS, size, idempotency_keys: true }
    }
}

/// What is known about a run, kept up to date while it goes on.
#[derive(Debug)]
pub struct Progress {
    /// Every record's fate.
    pub ledger: Ledger,
    /// Acknowledgement latency.
    pub latency: Latency,
    /// Per second, and the longest pause.
    pub timeline: Timeline,
    /// Texts of the first failures.
    pub failures: Vec<String>,
    /// Records that an open-loop load sent again.
    pub resent: u64,
}

/// A run's shared record.
#[derive(Clone, Debug)]
pub struct Run {
    start: Instant,
    progress: Arc<Mutex<Progress>>,
}

impl Run {
    fn new(run: u64) -> Self {
        let progress = Progress {
            ledger: Ledger::new(run),
            latency: Latency::default(),
            timeline: Timeline::default(),
            failures: Vec::new(),
            resent: 0,
        };
        Self { start: Instant::now(), progress: Arc::new(Mutex::new(progress)) }
    }

    /// Looks at, or changes, what is known.
    ///
    /// # Panics
    /// If a holder panicked: then the account is not to be trusted.
    pub fn look(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().expect("no holder of the account panics")
    }

    /// The start.
    #[must_use]
    pub fn began(&self) -> Instant {
        self.start
    }

    /// Time since the start.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn sent(&self, index: u64) {
        let now = self.now();
        let mut progress = self.look();
        progress.ledger.sent(index);
        progress.timeline.sent(now);
    }

    fn settle(&self, index: u64, due: Duration, outcome: Result<Receipt, SendError>) {
        let now = self.now();
        let mut progress = self.look();
        match outcome {
            Ok(receipt) => {
                // A receipt without offset proves the commit, not the place: any place read back is right.
                let offset = receipt.offset.map_or(ANYWHERE, |offset| offset.0);
                progress.ledger.settle(index, Fate::Acknowledged { partition: receipt.partition.0, offset });
                progress.latency.record(now.saturating_sub(due));
                progress.timeline.acknowledged(now, receipt.partition.0);
            }
            Err(error) => {
                let fate = if error.decisive() { Fate::Refused } else { Fate::Unresolved };
                progress.ledger.settle(index, fate);
                progress.timeline.failed(now);
                if progress.failures.len() < 20 {
                    progress.failures.push(format!("record {index} at {now:.3?}: {error}"));
                }
            }
        }
    }

    /// The account, once every task of the run is done.
    ///
    /// # Errors
    /// A task still holds it.
    pub fn finish(self) -> Result<Progress, Error> {
        let progress = Arc::try_unwrap(self.progress).map_err(|_| Error::new("the load is still running"))?;
        progress.into_inner().map_err(|_| Error::new("the load's account was broken off"))
    }
}

/// Makes the records of one producer.
struct Source {
    shape: Shape,
    producer: u32,
    keys: Vec<Bytes>,
    next: u64,
}

impl Source {
    fn new(shape: Shape, producer: u32, topic: Option<&TopicRoutes>) -> Self {
        let keys = spread(producer, shape.keys, topic);
        Self { shape, producer, keys, next: 0 }
    }

    /// Record number in the run: producers take turns.
    fn index(&self) -> u64 {
        self.next * u64::from(self.shape.producers) + u64::from(self.producer)
    }

    fn make(&mut self, due: Duration) -> (u64, Record) {
        let index = self.index();
        let slot = usize::try_from(self.next % u64::from(self.shape.keys)).expect("few keys");
        let stamp = Stamp {
            run: self.shape.run,
            index,
            key: self.producer * self.shape.keys + u32::try_from(slot).expect("few keys"),
            producer: self.producer,
            key_sequence: self.next / u64::from(self.shape.keys),
            due_ns: u64::try_from(due.as_nanos()).unwrap_or(u64::MAX),
        };
        self.next += 1;
        let mut record = Record::new(stamp.encode(self.shape.size)).key(self.keys[slot].clone());
        if self.shape.idempotency_keys {
            let mut key = BytesMut::with_capacity(16);
            key.put_u64(self.shape.run);
            key.put_u64(index);
            record = record.idempotency_key(key.freeze());
        }
        (index, record)
    }
}

fn routes_of(client: &Client, topic: &str) -> Option<Arc<TopicRoutes>> {
    let routes = client.routes();
    routes.topic(topic).or_else(|| routes.topic(&format!("default/{topic}"))).cloned()
}

/// Names of a producer's keys, so that one record after the other goes to the next partition: no partition is without a
/// record for longer than another, and a gap of one is not a pause of the load.
fn spread(producer: u32, keys: u32, topic: Option<&TopicRoutes>) -> Vec<Bytes> {
    let mut names = (0_u64..).map(|n| Bytes::from(format!("key-{producer}-{n}")));
    let Some(topic) = topic.filter(|topic| topic.partitions.len() > 1) else {
        return names.take(keys as usize).collect();
    };
    let mut unused: BTreeMap<PartitionNo, VecDeque<Bytes>> = BTreeMap::new();
    // Each producer begins where the one before ended: of more partitions than keys, none is left out by all.
    let first = producer as usize * keys as usize % topic.partitions.len();
    let mut turns = topic.partitions.keys().cycle().skip(first);
    let mut spread = Vec::new();
    while let Some(partition) = turns.next().filter(|_| spread.len() < keys as usize) {
        let name = loop {
            if let Some(name) = unused.get_mut(partition).and_then(VecDeque::pop_front) {
                break name;
            }
            let name = names.next().expect("endless");
            if let Some(of) = topic.partition_of(Some(&name), None) {
                unused.entry(of).or_default().push_back(name);
            }
        };
        spread.push(name);
    }
    spread
}

async fn producer(client: &Client, shape: &Shape) -> Result<Producer, Error> {
    client
        .producer(shape.topic.as_str())
        // A given-up record must not stop its key: the run goes on through outages, and order is judged by the reader.
        .on_gap(OnGap::Continue)
        .build()
        .await
        .map_err(|refusal| Error::new(format!("cannot publish to {}: {refusal}", shape.topic)))
}

/// An open-loop load in progress.
pub struct OpenLoop {
    /// Its account.
    pub run: Run,
    stop: Arc<AtomicBool>,
    generator: std::thread::JoinHandle<()>,
    collector: tokio::task::JoinHandle<()>,
    done: tokio::sync::watch::Receiver<bool>,
}

impl OpenLoop {
    /// Starts publishing `rate` records a second from one producer, until [`Self::stop`] or `limit` records.
    ///
    /// # Errors
    /// The topic cannot be published to.
    pub async fn start(client: &Client, shape: Shape, rate: f64, limit: Option<u64>) -> Result<Self, Error> {
        if shape.producers != 1 || rate <= 0.0 || shape.keys == 0 {
            return Err(Error::new("an open-loop load has one producer, keys and a rate above 0"));
        }
        let producer = producer(client, &shape).await?;
        let (run, topic) = (Run::new(shape.run), shape.topic.clone());
        let stop = Arc::new(AtomicBool::new(false));
        // Bounded by the producer's own limit of records in flight.
        let (pendings, arrivals) = mpsc::unbounded_channel();
        let pace = Pace { run: run.clone(), stop: stop.clone(), rate, limit: limit.unwrap_or(u64::MAX) };
        let source = Source::new(shape, 0, routes_of(client, &topic).as_deref());
        let runtime = tokio::runtime::Handle::current();
        let generator = std::thread::Builder::new()
            .name("load".to_owned())
            .spawn(move || {
                let _inside = runtime.enter();
                pace.generate(source, &producer, &pendings);
                // Not before every outcome is known: closing would give the rest up.
                runtime.block_on(async { producer.flush(OUTCOME_LIMIT).await });
                pace.run.look().resent = producer.resent();
            })
            .map_err(|e| Error::new(format!("cannot start the generator: {e}")))?;
        let (announce, done) = tokio::sync::watch::channel(false);
        let account = run.clone();
        let collector = tokio::spawn(async move {
            collect(account, arrivals).await;
            // Nobody may be listening.
            let _ = announce.send(true);
        });
        Ok(Self { run, stop, generator, collector, done })
    }

    /// Waits until the limit is published and every outcome is known; then [`Self::wait`] gives the account.
    pub async fn settled(&mut self) {
        // An error means that the collector is gone: `wait` tells why.
        let _ = self.done.wait_for(|done| *done).await;
    }

    /// Ends publishing and waits for every outcome.
    ///
    /// # Errors
    /// The generator broke off.
    pub async fn stop(self) -> Result<Progress, Error> {
        self.stop.store(true, Ordering::Relaxed);
        self.wait().await
    }

    /// Waits until the limit is published and every outcome is known.
    ///
    /// # Errors
    /// The generator broke off.
    pub async fn wait(self) -> Result<Progress, Error> {
        let Self { run, generator, collector, .. } = self;
        collector.await.map_err(|e| Error::new(format!("the collector broke off: {e}")))?;
        join(generator).await?;
        run.finish()
    }
}

async fn join(generator: std::thread::JoinHandle<()>) -> Result<(), Error> {
    tokio::task::spawn_blocking(move || generator.join())
        .await
        .map_err(|e| Error::new(format!("the generator broke off: {e}")))?
        .map_err(|_| Error::new("the generator broke off"))
}

/// Longer than a producer's deadline: every record has its outcome by then.
const OUTCOME_LIMIT: Duration = Duration::from_secs(60);

struct InFlight {
    index: u64,
    due: Duration,
    pending: Pending,
}

struct Pace {
    run: Run,
    stop: Arc<AtomicBool>,
    rate: f64,
    limit: u64,
}

impl Pace {
    fn due(&self, number: u64) -> Duration {
        #[allow(clippy::cast_precision_loss)]
        Duration::from_secs_f64(number as f64 / self.rate)
    }

    fn generate(&self, mut source: Source, producer: &Producer, pendings: &mpsc::UnboundedSender<InFlight>) {
        for number in 0..self.limit {
            let due = self.due(number);
            while let Some(ahead) = due.checked_sub(self.run.now()).filter(|ahead| !ahead.is_zero()) {
                if self.stop.load(Ordering::Relaxed) {
                    return;
                }
                std::thread::sleep(ahead.min(Duration::from_millis(5)));
            }
            let (index, record) = source.make(due);
            self.run.sent(index);
            if !self.admit(index, due, record, producer, pendings) {
                return;
            }
        }
    }

    /// Hands one record over, waiting for room; its latency goes on counting. False when told to stop.
    fn admit(
        &self,
        index: u64,
        due: Duration,
        mut record: Record,
        producer: &Producer,
        pendings: &mpsc::UnboundedSender<InFlight>,
    ) -> bool {
        loop {
            match producer.try_send(record) {
                Ok(pending) => return pendings.send(InFlight { index, due, pending }).is_ok(),
                Err(rejected) if rejected.refusal.reason == quorate_client::Reason::Busy => {
                    // Only a full producer makes a record wait; told to stop meanwhile, it was never admitted.
                    if self.stop.load(Ordering::Relaxed) {
                        self.run.settle(index, due, Err(SendError::refused(rejected.refusal)));
                        return false;
                    }
                    record = rejected.record;
                    std::thread::sleep(RESOLUTION);
                }
                Err(rejected) => {
                    self.run.settle(index, due, Err(SendError::refused(rejected.refusal)));
                    return true;
                }
            }
        }
    }
}

/// Notes outcomes as they come, until the generator is done and nothing is in flight.
async fn collect(run: Run, mut arrivals: mpsc::UnboundedReceiver<InFlight>) {
    let mut waiting = FuturesUnordered::new();
    let mut open = true;
    while open || !waiting.is_empty() {
        tokio::select! {
            biased;
            Some((index, due, outcome)) = waiting.next(), if !waiting.is_empty() => run.settle(index, due, outcome),
            arrival = arrivals.recv(), if open => match arrival {
                Some(InFlight { index, due, pending }) => waiting.push(async move { (index, due, pending.await) }),
                None => open = false,
            },
        }
    }
}

/// Closed loop: each producer keeps `in_flight` records in flight for `time`, then all outcomes are awaited.
/// Latency counts from the hand-over.
///
/// # Errors
/// The topic cannot be published to.
pub async fn closed_loop(client: &Client, shape: Shape, in_flight: usize, time: Duration) -> Result<Closed, Error> {
    let mut producers = Vec::new();
    for _ in 0..shape.producers {
        producers.push(producer(client, &shape).await?);
    }
    let (run, topic) = (Run::new(shape.run), routes_of(client, &shape.topic));
    let mut tasks = Vec::new();
    for (number, producer) in (0..).zip(producers) {
        let source = Source::new(shape.clone(), number, topic.as_deref());
        tasks.push(tokio::spawn(keep_in_flight(run.clone(), source, producer, in_flight, time)));
    }
    for task in tasks {
        task.await.map_err(|e| Error::new(format!("a producer broke off: {e}")))?;
    }
    let took = run.now();
    Ok(Closed { progress: run.finish()?, took })
}

/// A finished closed-loop run.
#[derive(Debug)]
pub struct Closed {
    /// Its account.
    pub progress: Progress,
    /// From the first hand-over to the last outcome.
    pub took: Duration,
}

async fn keep_in_flight(run: Run, mut source: Source, producer: Producer, in_flight: usize, time: Duration) {
    let mut waiting = FuturesUnordered::new();
    loop {
        while waiting.len() < in_flight && run.now() < time {
            let due = run.now();
            let (index, record) = source.make(due);
            run.sent(index);
            match producer.send(record).await {
                Ok(pending) => waiting.push(async move { (index, due, pending.await) }),
                Err(error) => run.settle(index, due, Err(error)),
            }
        }
        match waiting.next().await {
            Some((index, due, outcome)) => run.settle(index, due, outcome),
            None => break,
        }
    }
    producer.close(OUTCOME_LIMIT).await;
}

#[cfg(test)]
mod tests {
    use quorate_client::core::PartitionRoute;
    use quorate_proto::ids::{GroupId, Term, TopicId};

    use super::*;

    #[test]
    fn one_key_after_the_other_goes_to_the_next_partition() {
        let route = PartitionRoute { group: GroupId(2), leader: None, epoch: Term::ZERO, handed_over: false };
        let partitions = (0..5).map(|no| (PartitionNo(no), route)).collect();
        let topic = TopicRoutes::even(TopicId(1), "default/bench", partitions);
        let keys = spread(3, 64, Some(&topic));
        let went: Vec<u32> = keys.iter().filter_map(|key| topic.partition_of(Some(key), None)).map(|no| no.0).collect();
        let turns: Vec<u32> = (0..5).cycle().skip(3 * 64 % 5).take(64).collect();
        assert_eq!(went, turns);
        let different: std::collections::BTreeSet<&Bytes> = keys.iter().collect();
        assert_eq!(different.len(), 64);
        assert_eq!(spread(3, 2, None), ["key-3-0", "key-3-1"]);
        let of = |key: &Bytes| topic.partition_of(Some(key), None);
        assert_eq!(spread(1, 3, Some(&topic)).iter().map(of).collect::<Vec<_>>(), [3, 4, 0].map(PartitionNo).map(Some));
    }
}
