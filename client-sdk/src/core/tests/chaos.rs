//! Whatever refuses, breaks, moves or comes late: order is kept, nothing is there twice, and every outcome is true.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;

use super::super::backoff::Jitter;
use super::super::OnGap;
use super::model::Partition;
use super::*;

const PARTITIONS: u32 = 2;
const NODES: u64 = 3;

#[derive(Default)]
struct Wire {
    up: bool,
    requests: VecDeque<Transmit>,
    answers: VecDeque<(Transmit, Result<v1::Receipt, Refusal>)>,
}

struct World {
    core: ProducerCore<u64>,
    now: BootTime,
    random: Jitter,
    effects: Vec<Effect<u64>>,
    wires: BTreeMap<NodeId, Wire>,
    connecting: Vec<NodeId>,
    /// Requests of broken connections that the node may still read.
    ghosts: Vec<Transmit>,
    partitions: Vec<Partition>,
    leader: u64,
    term: u64,
    /// Pushes on their way.
    pushes: VecDeque<Arc<TopicRoutes>>,
    outcomes: BTreeMap<u64, Outcome>,
    /// Partition and order of submission.
    submitted: u64,
}

impl World {
    fn new(seed: u64, on_gap: OnGap) -> Self {
        let config = ProducerConfig { on_gap, batch_bytes: 1_024, deadline: ms(6_000), ..ProducerConfig::default() };
        let core = ProducerCore::new(config, BatchOptions::default(), routes(PARTITIONS, 1, 1), ProducerId(5), seed);
        Self {
            core,
            now: BootTime(1_000_000_000),
            random: Jitter::new(seed),
            effects: Vec::new(),
            wires: (1..=NODES).map(|n| (NodeId(n), Wire::default())).collect(),
            connecting: Vec::new(),
            ghosts: Vec::new(),
            partitions: (0..PARTITIONS).map(|_| Partition::default()).collect(),
            leader: 1,
            term: 1,
            pushes: VecDeque::new(),
            outcomes: BTreeMap::new(),
            submitted: 0,
        }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random.next_u64() % below
    }

    fn settle(&mut self) {
        self.core.pump(self.now, &mut self.effects);
        for effect in std::mem::take(&mut self.effects) {
            match effect {
                Effect::Connect { node } => self.connecting.push(node),
                Effect::Transmit(batch) => {
                    let wire = self.wires.get_mut(&batch.node).expect("a node");
                    assert!(wire.up, "a batch for a link that is down");
                    wire.requests.push_back(batch);
                }
                Effect::Resolve { token, outcome, .. } => {
                    assert!(self.outcomes.insert(token, outcome).is_none(), "record {token} has two outcomes");
                }
                Effect::Incident(_) => {}
            }
        }
        for (node, wire) in &self.wires {
            assert!(wire.requests.len() + wire.answers.len() <= 64, "{node}: unbounded");
        }
    }

    /// What node `node` answers to a request that reached it.
    fn serve(&mut self, node: NodeId, request: &Transmit, calm: bool) -> Result<v1::Receipt, Refusal> {
        if node.get() != self.leader {
            let hint = (self.draw(2) == 0).then_some(NodeId(self.leader));
            return Err(refusal(Reason::NotLeader).led_by(hint));
        }
        let partition = &mut self.partitions[request.partition.get() as usize];
        match if calm { 99 } else { self.random.next_u64() % 20 } {
            0 => Err(refusal(Reason::Busy).retry_after(ms(20))),
            1 => Err(refusal(Reason::Fenced)),
            2 => Err(refusal(Reason::Fenced).of_unknown_fate()),
            3 => {
                // Admitted; leadership ended before the answer.
                let _ = partition.publish(&request.batch);
                Err(refusal(Reason::NoLeader).of_unknown_fate())
            }
            _ => partition.publish(&request.batch),
        }
    }

    fn step(&mut self) {
        match self.draw(16) {
            0..=2 => self.submit(),
            3..=5 => self.deliver_request(),
            6..=8 => self.deliver_answer(),
            9 => self.connect(),
            10 if self.draw(4) == 0 => self.break_link(),
            11 if self.draw(6) == 0 => self.elect(),
            12 => self.push(),
            13 => self.now += ms(self.random.next_u64() % 200),
            14 => self.ghost(),
            15 if self.draw(20) == 0 => self.now += ms(3_000),
            _ => self.now += ms(1),
        }
        self.settle();
    }

    fn submit(&mut self) {
        for _ in 0..=self.draw(4) {
            let key = Bytes::from(format!("key {}", self.draw(5)));
            let id = self.submitted;
            let record = Record::new(Bytes::copy_from_slice(&id.to_be_bytes())).key(key);
            if self.core.send(self.now, record, id, &mut self.effects).is_ok() {
                self.submitted += 1;
            }
        }
    }

    fn some_node(&mut self) -> NodeId {
        NodeId(1 + self.draw(NODES))
    }

    fn deliver_request(&mut self) {
        let node = self.some_node();
        let Some(request) = self.wires.get_mut(&node).and_then(|wire| wire.requests.pop_front()) else { return };
        let answer = self.serve(node, &request, false);
        self.wires.get_mut(&node).expect("a node").answers.push_back((request, answer));
    }

    fn deliver_answer(&mut self) {
        let node = self.some_node();
        let Some((request, answer)) = self.wires.get_mut(&node).and_then(|wire| wire.answers.pop_front()) else {
            return;
        };
        self.core.on_response(self.now, node, request.tag, answer, &mut self.effects);
    }

    fn connect(&mut self) {
        if self.connecting.is_empty() {
            return;
        }
        let node = self.connecting.remove(0);
        if self.draw(3) == 0 {
            self.core.on_link_lost(self.now, node, "refused", &mut self.effects);
        } else {
            self.wires.get_mut(&node).expect("a node").up = true;
            self.core.on_link_up(node);
        }
    }

    fn break_link(&mut self) {
        let node = self.some_node();
        let wire = self.wires.get_mut(&node).expect("a node");
        if wire.up {
            self.ghosts.extend(std::mem::take(wire).requests);
            self.core.on_link_lost(self.now, node, "reset", &mut self.effects);
        }
    }

    /// The leader reads a request of a connection that the client has given up.
    fn ghost(&mut self) {
        if self.ghosts.is_empty() {
            return;
        }
        let at = self.draw(self.ghosts.len() as u64) as usize;
        let request = self.ghosts.remove(at);
        if request.node.get() == self.leader {
            let _ = self.partitions[request.partition.get() as usize].publish(&request.batch);
        }
    }

    fn elect(&mut self) {
        self.term += 1;
        if self.draw(2) == 0 {
            self.pushes.push_back(routes(PARTITIONS, 0, self.term));
            self.term += 1;
        }
        self.leader = 1 + self.draw(NODES);
        self.pushes.push_back(routes(PARTITIONS, self.leader, self.term));
    }

    fn push(&mut self) {
        if let Some(routes) = self.pushes.pop_front() {
            self.core.on_routes(routes, &mut self.effects);
        }
    }

    /// Faults stop; everything must end.
    fn heal(&mut self) {
        self.core.release_all();
        for _ in 0..20_000 {
            self.push();
            while let Some(node) = self.connecting.pop() {
                self.wires.get_mut(&node).expect("a node").up = true;
                self.core.on_link_up(node);
            }
            for node in (1..=NODES).map(NodeId) {
                let wire = self.wires.get_mut(&node).expect("a node");
                for (request, answer) in std::mem::take(&mut wire.answers) {
                    self.core.on_response(self.now, node, request.tag, answer, &mut self.effects);
                }
                for request in std::mem::take(&mut self.wires.get_mut(&node).expect("a node").requests) {
                    let answer = self.serve(node, &request, true);
                    self.core.on_response(self.now, node, request.tag, answer, &mut self.effects);
                }
            }
            self.settle();
            if self.core.waiting() == 0 {
                return;
            }
            if self.wires.values().all(|wire| wire.requests.is_empty()) && self.connecting.is_empty() {
                let at = self.core.next_deadline().expect("something is waited for");
                assert!(at > self.now || self.core.waiting() == 0, "a deadline in the past would spin");
                self.now = self.now.max(at);
                self.settle();
            }
        }
        panic!("{} records have no outcome", self.core.waiting());
    }

    fn check(&mut self) {
        // Late requests of dead connections change nothing.
        while !self.ghosts.is_empty() {
            self.ghost();
        }
        assert_eq!(self.outcomes.len() as u64, self.submitted, "every record has its outcome");
        let mut found = BTreeMap::new();
        for (no, partition) in self.partitions.iter().enumerate() {
            assert!(partition.log.windows(2).all(|pair| pair[0] < pair[1]), "order or uniqueness: {:?}", partition.log);
            for (offset, id) in partition.log.iter().enumerate() {
                assert!(found.insert(*id, (no as u32, offset as u64)).is_none(), "record {id} is there twice");
            }
        }
        for (id, outcome) in &self.outcomes {
            match outcome {
                Ok(receipt) => {
                    let place = (receipt.partition.get(), receipt.offset.expect("known").get());
                    assert_eq!(found.get(id), Some(&place), "record {id} was acknowledged there");
                }
                Err(error) if error.decisive() => {
                    assert_eq!(found.get(id), None, "record {id} was refused: {error}");
                }
                Err(_) => {}
            }
        }
    }
}

fn run(seed: u64, steps: usize, on_gap: OnGap) -> World {
    let mut world = World::new(seed, on_gap);
    for _ in 0..steps {
        world.step();
    }
    world.heal();
    world.check();
    world
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn order_identity_and_outcomes_hold_under_any_faults(seed in any::<u64>(), halt in any::<bool>()) {
        run(seed, 600, if halt { OnGap::HaltKey } else { OnGap::Continue });
    }
}

#[test]
fn chaos_is_not_vacuous() {
    let worlds: Vec<World> = (0..60).map(|seed| run(seed, 600, OnGap::Continue)).collect();
    let count = |pick: fn(&Outcome) -> bool| -> usize {
        worlds.iter().flat_map(|world| world.outcomes.values()).filter(|outcome| pick(outcome)).count()
    };
    assert!(count(Result::is_ok) > 1_000);
    assert!(count(|outcome| outcome.as_ref().is_err_and(|error| error.maybe_applied())) > 20);
    assert!(count(|outcome| outcome.as_ref().is_err_and(|error| error.decisive())) > 20);
    assert!(worlds.iter().any(|world| world.term > 5));
}

#[test]
fn a_seed_repeats_its_run() {
    let trace = |world: World| (world.now, format!("{:?}", world.outcomes));
    assert_eq!(trace(run(42, 600, OnGap::HaltKey)), trace(run(42, 600, OnGap::HaltKey)));
}
