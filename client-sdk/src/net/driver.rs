//! The task that drives a [`ProducerCore`]: one per producer, woken once per burst.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::SelectAll;
use futures::{FutureExt, StreamExt};
use quorate_proto::ids::NodeId;
use quorate_proto::refusal::{Reason, Refusal};
use quorate_proto::time::BootTime;
use quorate_proto::v1;
use tokio::sync::{oneshot, watch, Notify, Semaphore};

use super::channels::Purpose;
use super::client::Inner;
use super::link::{Link, LinkEvent, LinkSender};
use super::telemetry::Telemetry;
use super::watch::RouteState;
use crate::core::effect::{Effect, Outcome, Tag, Transmit};
use crate::core::producer::ProducerCore;
use crate::core::receipt::CloseReport;
use crate::core::record::Record;
use crate::core::routes::TopicRoutes;
use crate::core::SendError;

/// Where a record's outcome goes.
pub(crate) type Slot = oneshot::Sender<Outcome>;

/// What a producer's handle asks of its driver, in order.
pub(crate) enum Item {
    Send(Record, Slot),
    Flush(oneshot::Sender<()>),
    Release(Bytes),
    ReleaseAll,
    /// The last item: end everything that has no outcome yet and report.
    End(Refusal, Option<oneshot::Sender<CloseReport>>),
}

/// Between a producer's handle and its driver.
#[derive(Debug)]
pub(crate) struct Mailbox {
    inbox: Mutex<Inbox>,
    wake: Notify,
    /// Room for records …
    pub(crate) records: Semaphore,
    /// … and for their bytes.
    pub(crate) bytes: Semaphore,
    pub(crate) totals: Mutex<CloseReport>,
    /// Records in batches that were sent again.
    pub(crate) resent: AtomicU64,
}

#[derive(Default)]
struct Inbox {
    items: Vec<Item>,
    /// The driver was woken and has not looked yet.
    woken: bool,
    closed: bool,
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inbox").field("items", &self.items.len()).field("closed", &self.closed).finish()
    }
}

impl Mailbox {
    pub(crate) fn new(records: u32, bytes: u32) -> Self {
        Self {
            inbox: Mutex::default(),
            wake: Notify::new(),
            records: Semaphore::new(records as usize),
            bytes: Semaphore::new(bytes as usize),
            totals: Mutex::default(),
            resent: AtomicU64::new(0),
        }
    }

    /// Hands an item over; gives it back if the producer is closed. Wakes the driver once per burst.
    pub(crate) fn push(&self, item: Item) -> Result<(), Item> {
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        if inbox.closed {
            return Err(item);
        }
        inbox.closed = matches!(item, Item::End(..));
        inbox.items.push(item);
        let wake = !std::mem::replace(&mut inbox.woken, true);
        drop(inbox);
        if wake {
            self.wake.notify_one();
        }
        Ok(())
    }

    fn take(&self, into: &mut Vec<Item>) {
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        inbox.woken = false;
        std::mem::swap(&mut inbox.items, into);
    }
}

/// A record's way back to its sender.
pub(crate) struct Token {
    slot: Slot,
    /// Number of flushes asked for before it.
    generation: u64,
}

pub(crate) struct Driver {
    inner: Arc<Inner>,
    mailbox: Arc<Mailbox>,
    routes: watch::Receiver<RouteState>,
    topic: Arc<TopicRoutes>,
    core: ProducerCore<Token>,
    links: SelectAll<Link>,
    senders: BTreeMap<NodeId, LinkSender>,
    /// When each attempt in flight was sent.
    sent: BTreeMap<Tag, (NodeId, BootTime)>,
    generation: u64,
    /// Records without outcome, by generation.
    outstanding: BTreeMap<u64, u64>,
    flushes: VecDeque<(u64, oneshot::Sender<()>)>,
    telemetry: Telemetry,
}

impl Driver {
    pub(crate) fn new(
        inner: Arc<Inner>,
        mailbox: Arc<Mailbox>,
        topic: Arc<TopicRoutes>,
        core: ProducerCore<Token>,
    ) -> Self {
        let mut routes = inner.routes.clone();
        routes.mark_changed();
        let telemetry = Telemetry::new(&topic.name);
        Self {
            inner,
            mailbox,
            routes,
            topic,
            core,
            links: SelectAll::new(),
            senders: BTreeMap::new(),
            sent: BTreeMap::new(),
            generation: 0,
            outstanding: BTreeMap::new(),
            flushes: VecDeque::new(),
            telemetry,
        }
    }

    /// Runs until the producer ends.
    pub(crate) async fn run(mut self) {
        let mut items = Vec::new();
        let mut effects = Vec::new();
        let timer = tokio::time::sleep(Duration::ZERO);
        tokio::pin!(timer);
        let mut armed: Option<BootTime> = None;
        loop {
            let due = self.core.next_deadline();
            if due != armed {
                if let Some(at) = due {
                    timer.as_mut().reset(self.inner.instant(at).into());
                }
                armed = due;
            }
            tokio::select! {
                () = self.mailbox.wake.notified() => {}
                Some(event) = self.links.next(), if !self.links.is_empty() => self.on_link(event, &mut effects),
                Ok(()) = self.routes.changed() => self.on_routes(&mut effects),
                () = &mut timer, if armed.is_some() => armed = None,
            }
            // Whatever else came meanwhile belongs to the same burst.
            while let Some(Some(event)) = self.links.next().now_or_never() {
                self.on_link(event, &mut effects);
            }
            self.mailbox.take(&mut items);
            let mut ended = None;
            for item in items.drain(..) {
                self.on_item(item, &mut ended, &mut effects);
            }
            self.core.pump(self.inner.now(), &mut effects);
            self.execute(&mut effects);
            if let Some(report) = ended {
                self.end(report);
                return;
            }
        }
    }

    fn on_item(
        &mut self,
        item: Item,
        ended: &mut Option<Option<oneshot::Sender<CloseReport>>>,
        effects: &mut Vec<Effect<Token>>,
    ) {
        match item {
            Item::Send(record, slot) => {
                let token = Token { slot, generation: self.generation };
                *self.outstanding.entry(self.generation).or_default() += 1;
                if let Err(refused) = self.core.send(self.inner.now(), record, token, effects) {
                    // Room and limits were checked by the handle: only the end of the topic is left.
                    self.mailbox.records.add_permits(1);
                    self.mailbox.bytes.add_permits(refused.record.size());
                    self.settle(refused.token, Err(SendError::refused(refused.refusal)));
                }
            }
            Item::Flush(done) => {
                self.flushes.push_back((self.generation, done));
                self.generation += 1;
            }
            Item::Release(key) => self.core.release(&key),
            Item::ReleaseAll => self.core.release_all(),
            Item::End(why, report) => {
                self.core.abort(why, effects);
                *ended = Some(report);
            }
        }
    }

    fn on_link(&mut self, event: LinkEvent, effects: &mut Vec<Effect<Token>>) {
        let now = self.inner.now();
        match event {
            LinkEvent::Up(node) => {
                tracing::debug!(%node, "connected");
                self.core.on_link_up(node);
            }
            LinkEvent::Lost(node, why) => {
                tracing::debug!(%node, %why, "the connection is lost");
                self.senders.remove(&node);
                self.sent.retain(|_, (to, _)| *to != node);
                self.telemetry.links_lost.increment(1);
                self.core.on_link_lost(now, node, &why, effects);
            }
            LinkEvent::Answer(node, answer) => {
                let tag = Tag(answer.tag);
                if let Some((_, sent)) = self.sent.remove(&tag) {
                    self.telemetry.batch_seconds.record(now.since(sent).as_secs_f64());
                }
                match answer.result {
                    Some(v1::publish_response::Result::Receipt(receipt)) => {
                        self.core.on_response(now, node, tag, Ok(receipt), effects);
                    }
                    Some(v1::publish_response::Result::Error(error)) => {
                        let refusal = Refusal::from(error);
                        tracing::debug!(%node, %tag, %refusal, leader = ?refusal.leader, "a batch was refused");
                        self.telemetry.refusals.increment(1);
                        self.core.on_response(now, node, tag, Err(refusal), effects);
                    }
                    Some(v1::publish_response::Result::GoingAway(_)) => self.core.on_going_away(now, node),
                    None => tracing::warn!(%node, %tag, "an answer without result was ignored"),
                }
            }
        }
    }

    fn on_routes(&mut self, effects: &mut Vec<Effect<Token>>) {
        let state = self.routes.borrow_and_update().clone();
        self.core.on_routes_live(state.live > 0);
        match state.table.topics.get(&self.topic.id) {
            Some(topic) if *topic != self.topic => {
                tracing::debug!(partitions = ?topic.partitions, "new routes");
                self.topic = Arc::clone(topic);
                self.core.on_routes(Arc::clone(topic), effects);
            }
            Some(_) => {}
            None => self.core.abort(
                Refusal::new(
                    Reason::UnknownTopic,
                    "the topic was deleted",
                    &*self.topic.name,
                    "use another topic, or a new producer if it was created again",
                ),
                effects,
            ),
        }
    }

    fn execute(&mut self, effects: &mut Vec<Effect<Token>>) {
        let (mut records, mut bytes) = (0, 0);
        for effect in effects.drain(..) {
            match effect {
                Effect::Connect { node } => self.connect(node),
                Effect::Transmit(batch) => self.transmit(batch),
                Effect::Resolve { token, size, outcome } => {
                    records += 1;
                    bytes += size as usize;
                    self.settle(token, outcome);
                }
                Effect::Incident(incident) => self.telemetry.incident(&incident),
            }
        }
        if records > 0 {
            self.mailbox.records.add_permits(records);
            self.mailbox.bytes.add_permits(bytes);
            let totals = self.core.totals();
            self.telemetry.totals(&totals);
            *self.mailbox.totals.lock().unwrap_or_else(PoisonError::into_inner) = totals;
        }
        self.finish_flushes();
        self.telemetry.buffered.set(self.core.bytes() as f64);
    }

    fn connect(&mut self, node: NodeId) {
        let table = self.inner.table();
        let address = table.nodes.get(&node).map(|info| info.address.clone()).unwrap_or_default();
        let log = if address.is_empty() {
            Err("the observers give no address for it".to_owned())
        } else {
            self.inner.channels.log(Purpose::Publish, &address)
        };
        let (link, sender) = Link::open(node, address, log);
        self.senders.insert(node, sender);
        self.links.push(link);
    }

    fn transmit(&mut self, batch: Transmit) {
        let Some(sender) = self.senders.get(&batch.node) else { return };
        self.telemetry.batches.increment(1);
        if batch.again {
            self.telemetry.repeated.increment(1);
            self.mailbox.resent.fetch_add(u64::from(batch.records), Ordering::Relaxed);
        }
        self.sent.insert(batch.tag, (batch.node, self.inner.now()));
        let request = v1::PublishRequest {
            tag: batch.tag.0,
            partition: Some(v1::Partition {
                topic: batch.topic.to_string(),
                partition: batch.partition.get(),
                group_id: batch.group.get(),
            }),
            deadline_ms: u32::try_from(batch.deadline.as_millis()).unwrap_or(u32::MAX).max(1),
            cluster_id: self.inner.table().cluster.to_string(),
            client_id: self.inner.client_id.clone(),
            payload: Some(v1::publish_request::Payload::Batch(batch.batch)),
        };
        // A closed link reports its loss as an event of its own.
        let _ = sender.send(request);
    }

    fn settle(&mut self, token: Token, outcome: Outcome) {
        if let Some(count) = self.outstanding.get_mut(&token.generation) {
            *count -= 1;
            if *count == 0 {
                self.outstanding.remove(&token.generation);
            }
        }
        // Nobody has to wait for an outcome.
        let _ = token.slot.send(outcome);
    }

    fn finish_flushes(&mut self) {
        let open = self.outstanding.first_key_value().map_or(u64::MAX, |(generation, _)| *generation);
        while self.flushes.front().is_some_and(|(generation, _)| *generation < open) {
            if let Some((_, done)) = self.flushes.pop_front() {
                let _ = done.send(());
            }
        }
    }

    fn end(mut self, report: Option<oneshot::Sender<CloseReport>>) {
        self.mailbox.records.close();
        self.mailbox.bytes.close();
        self.finish_flushes();
        let totals = self.core.totals();
        *self.mailbox.totals.lock().unwrap_or_else(PoisonError::into_inner) = totals;
        if totals.unresolved > 0 {
            tracing::warn!(
                topic = %self.topic.name,
                unresolved = totals.unresolved,
                "the producer ended with records of unknown fate"
            );
        }
        if let Some(report) = report {
            let _ = report.send(totals);
        }
    }
}
