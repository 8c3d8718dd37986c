//! The simulated application: the SDK's production core, and a ledger of what it was told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quorate_client::core::effect::{Effect, Outcome};
use quorate_client::core::producer::ProducerCore;
use quorate_client::core::routes::TopicRoutes;
use quorate_client::core::{config::ProducerConfig, record::Record};
use quorate_proto::batch::BatchOptions;
use quorate_proto::ids::{NodeId, Offset, PartitionNo, ProducerId};
use quorate_proto::time::BootTime;

use crate::rng::Chance;
use crate::time::{HostClock, Instant};

/// Keys that records are spread over.
const KEYS: u64 = 8;

/// What is known of a record.
#[derive(Clone, Debug)]
pub struct Sent {
    /// Its value, unique: `key/sequence`.
    pub value: Bytes,
    /// Its idempotency key, if it has one.
    pub idempotency_key: Option<Bytes>,
    /// When it was handed over.
    pub at: Instant,
}

/// The application.
#[derive(Debug)]
pub struct Client {
    /// Its clock.
    pub clock: HostClock,
    /// Production core, once the topic's routes are known.
    pub producer: Option<ProducerCore<u64>>,
    /// A second producer that re-sends acknowledged records with keys at the end.
    pub again: Option<ProducerCore<u64>>,
    /// Every record by token.
    pub sent: Vec<Sent>,
    /// Where each acknowledged record with a key stands.
    pub keyed: BTreeMap<Bytes, (PartitionNo, Offset)>,
    /// Values refused for good.
    pub refused: BTreeSet<Bytes>,
    /// When each value was first handed to a producer.
    pub began: BTreeMap<Bytes, Instant>,
    /// Values that the second producer sent as well before the first one was answered.
    pub raced: BTreeSet<Bytes>,
    /// Newest acknowledgement by partition.
    pub last_ack: BTreeMap<PartitionNo, Instant>,
    /// Newest record, by partition, that was acknowledged: when it had been sent.
    pub last_ack_sent: BTreeMap<PartitionNo, Instant>,
    /// Longest time between two acknowledgements.
    pub longest_gap: Duration,
    /// Acknowledged, of unknown fate, duplicates answered with their first offset.
    pub acknowledged: u64,
    /// Records whose fate stayed open.
    pub unresolved: u64,
    /// Records that have their outcome, by index.
    pub answered: BTreeSet<usize>,
    /// Records answered as duplicates.
    pub duplicates: u64,
    next: BTreeMap<u64, u64>,
    replayed: Vec<Replayed>,
}

/// A record that the second producer sends again.
type Replayed = (Sent, Option<(PartitionNo, Offset)>);

/// Records sent last that a replay may pick.
const RECENT: usize = 60;

/// An outcome, checked by the world.
#[derive(Clone, Debug)]
pub struct Told {
    /// Which record.
    pub sent: Sent,
    /// What the SDK said.
    pub outcome: Outcome,
    /// It came from the second producer.
    pub copy: bool,
    /// It was a copy of an acknowledged record: that one's partition and offset.
    pub copy_of: Option<(PartitionNo, Offset)>,
}

impl Client {
    /// An application with nothing sent.
    #[must_use]
    pub fn new(clock: HostClock) -> Self {
        Self {
            clock,
            producer: None,
            again: None,
            sent: Vec::new(),
            keyed: BTreeMap::new(),
            refused: BTreeSet::new(),
            began: BTreeMap::new(),
            raced: BTreeSet::new(),
            last_ack: BTreeMap::new(),
            last_ack_sent: BTreeMap::new(),
            longest_gap: Duration::ZERO,
            acknowledged: 0,
            unresolved: 0,
            answered: BTreeSet::new(),
            duplicates: 0,
            next: BTreeMap::new(),
            replayed: Vec::new(),
        }
    }

    /// Routes came: makes the producer with the first ones.
    pub fn on_routes(&mut self, routes: Arc<TopicRoutes>, chance: &mut Chance, out: &mut Vec<Effect<u64>>) {
        match &mut self.producer {
            Some(producer) => producer.on_routes(Arc::clone(&routes), out),
            None => self.producer = Some(self.make(Arc::clone(&routes), chance)),
        }
        if let Some(again) = &mut self.again {
            again.on_routes(routes, out);
        }
    }

    fn make(&self, routes: Arc<TopicRoutes>, chance: &mut Chance) -> ProducerCore<u64> {
        let config = ProducerConfig { batch_bytes: 1 << 10, ..ProducerConfig::default() };
        ProducerCore::new(config, BatchOptions::default(), routes, ProducerId(chance.id()), chance.word())
    }

    /// Hands a record to the producer.
    pub fn send(&mut self, now: Instant, chance: &mut Chance, out: &mut Vec<Effect<u64>>) {
        let clock = self.clock.read(now);
        let Some(producer) = &mut self.producer else { return };
        let key = chance.between(0, KEYS - 1);
        let sequence = self.next.entry(key).or_default();
        let value = Bytes::from(format!("k{key}/{sequence}"));
        let idempotency_key = chance.one_in(500).then(|| Bytes::from(format!("id-{key}-{sequence}")));
        *sequence += 1;
        let mut record = Record::new(value.clone()).key(format!("k{key}"));
        if let Some(key) = &idempotency_key {
            record = record.idempotency_key(key.clone());
        }
        let token = self.sent.len() as u64;
        self.began.insert(value.clone(), now);
        self.sent.push(Sent { value, idempotency_key, at: now });
        if let Err(full) = producer.send(clock, record, token, out) {
            // Back-pressure: not admitted, so it must never appear.
            self.refused.insert(full.record.value().clone());
            self.answered.insert(self.sent.len() - 1);
        }
    }

    /// A second producer, new each time, re-sends some of the newest records that have a key, answered or not.
    pub fn replay(&mut self, now: Instant, routes: Arc<TopicRoutes>, chance: &mut Chance, out: &mut Vec<Effect<u64>>) {
        if self.again.as_ref().is_some_and(|again| again.waiting() > 0) {
            return;
        }
        let clock = self.clock.read(now);
        let mut again = self.make(routes, chance);
        let recent = &self.sent[self.sent.len().saturating_sub(RECENT)..];
        let picked = recent.iter().filter(|sent| sent.idempotency_key.is_some() && !self.refused.contains(&sent.value));
        let picked: Vec<Sent> = picked.filter(|_| chance.one_in(400)).cloned().collect();
        self.replayed.clear();
        for (token, sent) in (0..).zip(picked) {
            let key = sent.idempotency_key.clone().expect("only those were picked");
            let first = self.keyed.get(&key).copied();
            if first.is_none() {
                self.raced.insert(sent.value.clone());
            }
            let text = std::str::from_utf8(&sent.value).expect("text");
            let record_key = text.split('/').next().expect("key/sequence").to_owned();
            let record = Record::new(sent.value.clone()).key(record_key).idempotency_key(key);
            again.send(clock, record, token, out).expect("a few records fit");
            self.replayed.push((sent, first));
        }
        self.again = Some(again);
    }

    /// Takes the outcomes out of `effects`; the others stay. `copies`: they are the second producer's.
    pub fn settle(&mut self, now: Instant, effects: &mut Vec<Effect<u64>>, copies: bool) -> Vec<Told> {
        let mut told = Vec::new();
        let mut rest = Vec::with_capacity(effects.len());
        for effect in effects.drain(..) {
            match effect {
                Effect::Resolve { token, outcome, .. } => {
                    let index = usize::try_from(token).expect("tokens are indexes");
                    told.push(if copies { self.told_copy(index, outcome) } else { self.told(now, index, outcome) });
                }
                other => rest.push(other),
            }
        }
        *effects = rest;
        told
    }

    fn told(&mut self, now: Instant, index: usize, outcome: Outcome) -> Told {
        let sent = self.sent[index].clone();
        self.answered.insert(index);
        match &outcome {
            Ok(receipt) => {
                self.acknowledged += 1;
                let newest = self.last_ack.values().max().copied().unwrap_or(now);
                self.longest_gap = self.longest_gap.max(now.since(newest));
                self.last_ack.insert(receipt.partition, now);
                let of = self.last_ack_sent.entry(receipt.partition).or_default();
                *of = (*of).max(sent.at);
                if let (Some(key), Some(offset)) = (&sent.idempotency_key, receipt.offset) {
                    self.keyed.insert(key.clone(), (receipt.partition, offset));
                }
            }
            Err(error) if error.decisive() => {
                // A copy from the second producer may stand all the same.
                if !self.raced.contains(&sent.value) {
                    self.refused.insert(sent.value.clone());
                }
            }
            Err(_) => self.unresolved += 1,
        }
        if let (Err(_), Some(producer)) = (&outcome, &mut self.producer) {
            // This application can live with a gap: it goes on with the key.
            producer.release_all();
        }
        Told { sent, outcome, copy: false, copy_of: None }
    }

    fn told_copy(&mut self, index: usize, outcome: Outcome) -> Told {
        let (sent, copy_of) = self.replayed[index].clone();
        self.duplicates += u64::from(outcome.is_ok());
        Told { sent, outcome, copy: true, copy_of }
    }

    /// Both producers' next deadline on the client's clock.
    #[must_use]
    pub fn next_deadline(&self) -> Option<BootTime> {
        [&self.producer, &self.again].into_iter().flatten().filter_map(ProducerCore::next_deadline).min()
    }

    /// Records without an outcome.
    #[must_use]
    pub fn waiting(&self) -> u32 {
        [&self.producer, &self.again].into_iter().flatten().map(ProducerCore::waiting).sum()
    }

    /// Those records, for people.
    #[must_use]
    pub fn waits_for(&self) -> String {
        let [first, second] =
            [&self.producer, &self.again].map(|producer| producer.as_ref().map_or(0, |p| p.waiting()));
        let own = self.sent.iter().enumerate().filter(|(index, _)| !self.answered.contains(index));
        let own: Vec<String> = own.map(|(_, sent)| format!("{:?} of {}", sent.value, sent.at)).collect();
        format!("{first} of the first producer ({}), {second} of the second", own.join(", "))
    }

    /// The link to `node` came up or broke.
    pub fn on_link(&mut self, now: Instant, node: NodeId, up: bool, out: &mut [Vec<Effect<u64>>; 2]) {
        let clock = self.clock.read(now);
        for (producer, out) in [&mut self.producer, &mut self.again].into_iter().zip(out) {
            let Some(producer) = producer else { continue };
            if up {
                producer.on_link_up(node);
            } else {
                producer.on_link_lost(clock, node, "the connection broke", out);
            }
        }
    }
}
