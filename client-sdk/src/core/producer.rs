//! The producer without its shell.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use quorate_proto::batch::BatchOptions;
use quorate_proto::ids::{NodeId, PartitionNo, ProducerId};
use quorate_proto::refusal::{Reason, Refusal};
use quorate_proto::time::BootTime;
use quorate_proto::v1;

use super::backoff::Jitter;
use super::config::ProducerConfig;
use super::effect::{Effect, Tag};
use super::error::SendError;
use super::lane::{Lane, Queued};
use super::links::Links;
use super::receipt::CloseReport;
use super::record::Record;
use super::routes::TopicRoutes;
use super::shared::{Halted, Shared};

/// A record that was not admitted comes back with its token.
#[derive(Debug)]
pub struct NotAdmitted<T> {
    /// As given.
    pub record: Record,
    /// As given.
    pub token: T,
    /// `BUSY` (no room), `TOO_LARGE`, or `INVALID_ARGUMENT` (the producer is closed).
    pub refusal: Refusal,
}

/// Publishes to one topic. Deterministic: the same seed and the same calls give the same effects.
///
/// Give it a burst of events, then call [`Self::pump`] once; call it again at [`Self::next_deadline`]. `T` is whatever
/// the shell wants back with a record's outcome; each admitted record gets exactly one.
///
/// What it guarantees, whoever answers, fails or moves in between:
/// - per partition, records enter the log in the order of `send`, each at most once;
/// - `Ok` means committed; a decisive error means not in the log, now and later; anything else is unresolved.
#[derive(Debug)]
pub struct ProducerCore<T> {
    lanes: BTreeMap<PartitionNo, Lane<T>>,
    routes: Arc<TopicRoutes>,
    shared: Shared,
    /// Partitions that something happened to.
    ready: BTreeSet<PartitionNo>,
    timers: BTreeSet<(BootTime, PartitionNo)>,
    /// Where records without any key go until a batch closes.
    sticky: PartitionNo,
    closed: Option<Arc<Refusal>>,
}

impl<T> ProducerCore<T> {
    /// A producer with a fresh id (128 random bits, I1) for the topic of `routes`; `seed` decides its jitter.
    #[must_use]
    pub fn new(
        config: ProducerConfig,
        options: BatchOptions,
        routes: Arc<TopicRoutes>,
        producer: ProducerId,
        seed: u64,
    ) -> Self {
        let lanes = routes.partitions.iter().map(|(no, route)| (*no, Lane::new(*no, *route))).collect();
        let sticky = routes.partitions.keys().next().copied().unwrap_or_default();
        let shared = Shared {
            config,
            options,
            producer,
            topic: Arc::clone(&routes.name),
            jitter: Jitter::new(seed),
            links: Links::default(),
            routes_live: true,
            totals: CloseReport::default(),
            waiting: 0,
            bytes: 0,
            halted: Halted::default(),
            serials: BTreeMap::new(),
            next_serial: 1,
            incident: None,
        };
        Self { lanes, routes, shared, ready: BTreeSet::new(), timers: BTreeSet::new(), sticky, closed: None }
    }

    /// Admits a record.
    ///
    /// # Errors
    /// [`NotAdmitted`]: nothing happened.
    pub fn send(
        &mut self,
        now: BootTime,
        record: Record,
        token: T,
        out: &mut Vec<Effect<T>>,
    ) -> Result<(), NotAdmitted<T>> {
        let size = record.size();
        if let Err(refusal) = self.may_admit(&record, size) {
            return Err(NotAdmitted { record, token, refusal });
        }
        let size = u32::try_from(size).expect("records are at most 1 MiB");
        self.shared.waiting += 1;
        self.shared.bytes += size as usize;
        if self.shared.halted.contains(record.record_key()) {
            let refusal = self.shared.halted_refusal();
            self.shared.resolve(token, size, Err(SendError::refused(refusal)), out);
            return Ok(());
        }
        let keys = (record.content.key.as_deref(), record.content.idempotency_key.as_deref());
        let partition = self.routes.partition_of(keys.0, keys.1).unwrap_or(self.sticky);
        let lane = self.lanes.get_mut(&partition).expect("every slot has a partition with a route");
        let deadline = now + self.shared.config.deadline;
        lane.queue.push_back(Queued { record, token: Some(token), size, deadline });
        self.ready.insert(partition);
        Ok(())
    }

    fn may_admit(&self, record: &Record, size: usize) -> Result<(), Refusal> {
        if let Some(closed) = &self.closed {
            return Err(Refusal::clone(closed));
        }
        record.content.check().map_err(|bad| bad.refusal(&*self.shared.topic))?;
        let config = &self.shared.config;
        let full = self.shared.waiting >= config.max_in_flight
            || (self.shared.waiting > 0 && self.shared.bytes + size > config.max_bytes as usize);
        if !full {
            return Ok(());
        }
        Err(Refusal::new(
            Reason::Busy,
            "the producer's buffer is full",
            format!("{}: {} records, {} bytes wait", self.shared.topic, self.shared.waiting, self.shared.bytes),
            "wait for outcomes, then send again",
        ))
    }

    /// New routes of the topic.
    pub fn on_routes(&mut self, routes: Arc<TopicRoutes>, out: &mut Vec<Effect<T>>) {
        for (no, route) in &routes.partitions {
            let lane = self.lanes.entry(*no).or_insert_with(|| Lane::new(*no, *route));
            lane.on_route(*route, &mut self.shared, out);
            if !lane.is_idle() {
                self.ready.insert(*no);
            }
        }
        self.routes = routes;
    }

    /// Whether the routes are current: false while no observer is connected.
    pub fn on_routes_live(&mut self, live: bool) {
        self.shared.routes_live = live;
    }

    /// The link is up.
    pub fn on_link_up(&mut self, node: NodeId) {
        self.ready.extend(self.shared.links.on_up(node));
    }

    /// The link is lost, or could not be opened.
    pub fn on_link_lost(&mut self, now: BootTime, node: NodeId, why: &str, out: &mut Vec<Effect<T>>) {
        self.shared.links.on_lost(now, node, &mut self.shared.jitter);
        for (no, lane) in &mut self.lanes {
            lane.on_link_lost(now, node, why, &mut self.shared, out);
            if !lane.is_idle() {
                self.ready.insert(*no);
            }
        }
    }

    /// The node announced that it closes: nothing more goes there before the next push; what is in flight there is
    /// answered, or broken off with the link.
    pub fn on_going_away(&mut self, now: BootTime, node: NodeId) {
        for (no, lane) in &mut self.lanes {
            if lane.target.node() == Some(node) {
                lane.target.on_going_away(now, node);
                self.ready.insert(*no);
            }
        }
    }

    /// An answer came. Late answers and answers to nobody are harmless.
    pub fn on_response(
        &mut self,
        now: BootTime,
        node: NodeId,
        tag: Tag,
        answer: Result<v1::Receipt, Refusal>,
        out: &mut Vec<Effect<T>>,
    ) {
        self.shared.links.on_answer(node);
        let Some(partition) = self.shared.serials.get(&tag.serial()).copied() else { return };
        let Some(lane) = self.lanes.get_mut(&partition) else { return };
        match answer {
            Ok(receipt) => lane.on_receipt(now, tag, receipt, &mut self.shared, out),
            Err(refusal) => lane.on_refusal(now, tag, refusal, &mut self.shared, out),
        }
        self.ready.insert(partition);
    }

    /// Sends what may be sent and ends what ran out of time. To be called after every burst of events.
    pub fn pump(&mut self, now: BootTime, out: &mut Vec<Effect<T>>) {
        while let Some((at, partition)) = self.timers.first().copied() {
            if at > now {
                break;
            }
            self.timers.remove(&(at, partition));
            if let Some(lane) = self.lanes.get_mut(&partition) {
                lane.timer = None;
            }
            self.ready.insert(partition);
        }
        self.shared.links.retry(now, out);
        for partition in std::mem::take(&mut self.ready) {
            self.pump_lane(now, partition, out);
        }
        if self.shared.halted.all && !self.shared.halted.swept {
            self.shared.halted.swept = true;
            for lane in self.lanes.values_mut() {
                lane.sweep(&mut self.shared, out);
            }
        }
        self.shared.report_incident(now, out);
    }

    fn pump_lane(&mut self, now: BootTime, partition: PartitionNo, out: &mut Vec<Effect<T>>) {
        let Some(lane) = self.lanes.get_mut(&partition) else { return };
        let queued = lane.queue.len();
        lane.pump(now, &mut self.shared, out);
        let closed_a_batch = lane.queue.len() < queued;
        let timer = lane.deadline(now);
        if timer != lane.timer {
            if let Some(old) = lane.timer {
                self.timers.remove(&(old, partition));
            }
            if let Some(at) = timer {
                self.timers.insert((at, partition));
            }
            lane.timer = timer;
        }
        if partition == self.sticky && (closed_a_batch || lane.target.node().is_none()) {
            self.move_on();
        }
    }

    /// The next partition, in turn, that has a leader takes the records without keys.
    fn move_on(&mut self) {
        let after = self.lanes.range((std::ops::Bound::Excluded(self.sticky), std::ops::Bound::Unbounded));
        let before = self.lanes.range(..=self.sticky);
        let led = after.chain(before).find(|(_, lane)| lane.target.node().is_some());
        if let Some((no, _)) = led {
            self.sticky = *no;
        }
    }

    /// When [`Self::pump`] must be called without any event.
    #[must_use]
    pub fn next_deadline(&self) -> Option<BootTime> {
        let lanes = self.timers.first().map(|(at, _)| *at);
        let rest = [lanes, self.shared.links.deadline(), self.shared.incident_deadline()];
        rest.into_iter().flatten().min()
    }

    /// Lets later records of this key through again after a gap.
    pub fn release(&mut self, key: &Bytes) {
        self.shared.halted.keys.remove(key);
    }

    /// Lets all later records through again after a gap.
    pub fn release_all(&mut self) {
        self.shared.halted = Halted::default();
    }

    /// Admits nothing more.
    pub fn close(&mut self) {
        let refusal = Refusal::new(
            Reason::InvalidArgument,
            "the producer is closed",
            &*self.shared.topic,
            "send with a producer that is open",
        );
        self.closed.get_or_insert_with(|| Arc::new(refusal));
    }

    /// Ends every record that has no outcome yet: what may be applied as unresolved, the rest as not sent.
    pub fn abort(&mut self, why: Refusal, out: &mut Vec<Effect<T>>) {
        let why = Arc::new(why);
        self.closed = Some(Arc::clone(&why));
        for lane in self.lanes.values_mut() {
            lane.abort(&why, &mut self.shared, out);
        }
    }

    /// Totals so far.
    #[must_use]
    pub fn totals(&self) -> CloseReport {
        self.shared.totals
    }

    /// Records without outcome.
    #[must_use]
    pub fn waiting(&self) -> u32 {
        self.shared.waiting
    }

    /// Bytes of these records.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.shared.bytes
    }

    /// The topic.
    #[must_use]
    pub fn topic(&self) -> &Arc<str> {
        &self.shared.topic
    }
}
