//! Behaviour of the producer core, rule by rule, and under chaos against a model of the cluster.

mod chaos;
mod gaps;
pub(crate) mod model;
mod pipeline;
mod retry;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quorate_proto::batch::{BatchIdentity, BatchOptions, BatchView};
use quorate_proto::ids::{GroupId, NodeId, PartitionNo, ProducerId, Term, TopicId};
use quorate_proto::refusal::{Reason, Refusal};
use quorate_proto::time::BootTime;
use quorate_proto::v1;

use super::config::ProducerConfig;
use super::effect::{Effect, Outcome, Transmit};
use super::producer::ProducerCore;
use super::record::Record;
use super::routes::{PartitionRoute, TopicRoutes};

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn routes(partitions: u32, leader: u64, epoch: u64) -> Arc<TopicRoutes> {
    let route = |n: u32| PartitionRoute {
        group: GroupId(u64::from(n) + 2),
        leader: NodeId(leader).non_zero(),
        epoch: Term(epoch),
        handed_over: false,
    };
    let partitions: BTreeMap<_, _> = (0..partitions).map(|n| (PartitionNo(n), route(n))).collect();
    Arc::new(TopicRoutes::even(TopicId(7), "default/orders", partitions))
}

fn refusal(reason: Reason) -> Refusal {
    Refusal::new(reason, "test", "test", "test")
}

fn receipt(base: u64) -> v1::Receipt {
    v1::Receipt { base_offset: base, epoch: 1, durable_on: vec![1, 2], ..v1::Receipt::default() }
}

fn identity(batch: &Transmit) -> BatchIdentity {
    BatchView::parse(batch.batch.clone()).expect("valid").header().identity
}

fn values(batch: &Transmit) -> Vec<String> {
    let view = BatchView::parse(batch.batch.clone()).expect("valid");
    let records = view.records().expect("opens");
    records.map(|record| String::from_utf8(record.expect("valid").value.to_vec()).expect("text")).collect()
}

/// A producer core in a test's hands: time stands still unless it is moved.
struct Bench {
    core: ProducerCore<u64>,
    now: BootTime,
    effects: Vec<Effect<u64>>,
    outcomes: BTreeMap<u64, Outcome>,
    next: u64,
}

impl Bench {
    fn new(config: ProducerConfig) -> Self {
        let core = ProducerCore::new(config, BatchOptions::default(), routes(1, 1, 1), ProducerId(5), 11);
        Self { core, now: BootTime(1_000_000_000), effects: Vec::new(), outcomes: BTreeMap::new(), next: 0 }
    }

    /// With the link to node 1 up and the first batch of the epoch answered.
    fn established(config: ProducerConfig) -> Self {
        let mut bench = Self::new(config);
        bench.send("k", "first");
        bench.pump();
        bench.up(1);
        let sent = bench.sent();
        bench.answer(&sent[0], Ok(receipt(0)));
        bench.pump();
        bench
    }

    fn send(&mut self, key: &str, value: &str) -> u64 {
        self.offer(Record::new(value.to_owned()).key(key.to_owned()))
    }

    fn offer(&mut self, record: Record) -> u64 {
        let token = self.next;
        self.next += 1;
        self.core.send(self.now, record, token, &mut self.effects).expect("admitted");
        token
    }

    fn pump(&mut self) {
        self.core.pump(self.now, &mut self.effects);
    }

    fn up(&mut self, node: u64) {
        self.core.on_link_up(NodeId(node));
        self.pump();
    }

    fn lose(&mut self, node: u64) {
        self.core.on_link_lost(self.now, NodeId(node), "reset", &mut self.effects);
        self.pump();
    }

    fn route(&mut self, leader: u64, epoch: u64) {
        self.core.on_routes(routes(1, leader, epoch), &mut self.effects);
        self.pump();
    }

    fn answer(&mut self, batch: &Transmit, answer: Result<v1::Receipt, Refusal>) {
        self.core.on_response(self.now, batch.node, batch.tag, answer, &mut self.effects);
        self.pump();
    }

    fn pass(&mut self, span: Duration) {
        self.now += span;
        self.pump();
    }

    /// Moves to the next deadline.
    fn step(&mut self) -> bool {
        let Some(at) = self.core.next_deadline() else { return false };
        self.now = self.now.max(at);
        self.pump();
        true
    }

    /// Batches sent since the last call; outcomes are collected aside.
    fn sent(&mut self) -> Vec<Transmit> {
        let mut sent = Vec::new();
        for effect in self.effects.drain(..) {
            match effect {
                Effect::Transmit(batch) => sent.push(batch),
                Effect::Resolve { token, outcome, .. } => {
                    assert!(self.outcomes.insert(token, outcome).is_none(), "record {token} has two outcomes");
                }
                Effect::Connect { .. } | Effect::Incident(_) => {}
            }
        }
        sent
    }

    fn connects(&mut self) -> usize {
        let before = self.effects.len();
        self.effects.retain(|effect| !matches!(effect, Effect::Connect { .. }));
        before - self.effects.len()
    }

    fn outcome(&mut self, token: u64) -> Option<Outcome> {
        let sent = self.sent();
        assert!(sent.is_empty(), "unexpected batches: {sent:?}");
        self.outcomes.get(&token).cloned()
    }
}
