//! One run: three data nodes, three observers, one client, a network, and a plan of faults, in virtual time on one
//! thread. The cores are the production ones; everything here stands for the shells around them.

mod client;
mod disks;
mod effects;
mod event;
mod faults;
mod members;
mod node;
mod notices;
mod observer;
mod queue;
mod reads;
mod streams;
mod turn;
mod verdict;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quorate_client::core::effect::Tag;
use quorate_client::core::routes::TopicRoutes;
use quorate_consensus::policy::Policy;
use quorate_consensus::timing::Timing;
use quorate_proto::ids::{GroupId, Incarnation, NodeId, ReplicaId, Term, Ticket};

pub(crate) use event::{publish_event, Asked, Message, PublishMessage, What};

use queue::Queue;

use crate::checker::{Checkers, Violation, NEEDS_BOUNDED_CLOCKS};
use crate::client::Client;
use crate::coverage::Coverage;
use crate::data_node::DataNode;
use crate::net::{Host, Network, Weather};
use crate::observer_node::ObserverNode;
use crate::plan::{Mode, Plan};
use crate::rng::Chance;
use crate::stream::Stream;
use crate::time::{HostClock, Instant};
use crate::trace::{Lines, Trace};

/// Data nodes and observers of a run.
pub const NODES: [NodeId; 3] = [NodeId(1), NodeId(2), NodeId(3)];
/// Observers have ids of their own.
pub const OBSERVERS: [NodeId; 3] = [NodeId(101), NodeId(102), NodeId(103)];
/// Topic of a run.
pub const TOPIC: &str = "default/orders";
/// Its partitions.
pub const PARTITIONS: u32 = 2;
/// Clocks may be off by so much (parts per million); beyond it only what needs no clock is checked.
const BOUND_PPM: i64 = 10_000;

/// How a run went.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// The mode.
    pub mode: Mode,
    /// First broken promise.
    pub violation: Option<Violation>,
    /// What was exercised.
    pub coverage: Coverage,
    /// Hash of the trace.
    pub digest: String,
}

/// The run.
#[derive(Debug)]
pub struct World<P: Policy> {
    pub(crate) mode: Mode,
    pub(crate) plan: Plan,
    pub(crate) now: Instant,
    pub(crate) chance: Chance,
    pub(crate) net: Network,
    pub(crate) timing: Timing,
    queue: Queue,
    pub(crate) nodes: BTreeMap<NodeId, DataNode<P>>,
    pub(crate) observers: BTreeMap<NodeId, ObserverNode<P>>,
    pub(crate) client: Client,
    pub(crate) streams: BTreeMap<u64, Stream<Message>>,
    pub(crate) next_id: u64,
    /// Publishes at a node that are not answered.
    pub(crate) tickets: BTreeMap<(NodeId, Ticket), Asked>,
    /// Tags of the second producer travel marked.
    pub(crate) copies: BTreeMap<(u64, Tag), bool>,
    pub(crate) noticed: BTreeMap<NodeId, Incarnation>,
    /// Exit notices under way.
    pub(crate) notices: BTreeMap<Ticket, (NodeId, Incarnation)>,
    pub(crate) newest_routes: Option<(u64, Arc<TopicRoutes>)>,
    /// Reads under way: by the node's ticket, and by their own number.
    pub(crate) read_tickets: BTreeMap<(NodeId, Ticket), (u64, u64)>,
    pub(crate) reads: BTreeMap<u64, (GroupId, NodeId, Instant)>,
    /// Node of each replica.
    pub(crate) members: BTreeMap<ReplicaId, NodeId>,
    /// Replica that each node hosts of each group.
    pub(crate) hosted: BTreeMap<(NodeId, GroupId), ReplicaId>,
    /// Group of each partition, once known.
    pub(crate) groups: Vec<GroupId>,
    /// The next candidate is stopped for so long.
    pub(crate) stop_candidate: Option<Duration>,
    /// The next leader in a joint membership is cut off or dies.
    pub(crate) hold_leave: Option<(Duration, bool)>,
    /// Won in the turn under way: looked at when its writes are out.
    pub(crate) elected: Vec<(GroupId, NodeId, Term)>,
    pub(crate) checkers: Checkers,
    pub(crate) trace: Trace,
    pub(crate) coverage: Coverage,
    pub(crate) violation: Option<Violation>,
    pub(crate) healed: Option<Instant>,
    pub(crate) fault_began: Option<Instant>,
    pub(crate) client_wake: Instant,
    /// Since when every record sent has its outcome.
    pub(crate) settled: Option<Instant>,
    seed: u64,
}

/// Patience before a repair is longer than a run: modes that repair have less.
fn timing_of(mode: Mode) -> Timing {
    match mode {
        Mode::Repair | Mode::Joint => Timing { repair_after: Duration::from_millis(1_500), ..Timing::default() },
        _ => Timing::default(),
    }
}

impl<P: Policy> World<P> {
    /// Everything that follows from the seed.
    #[must_use]
    pub fn new(seed: u64, mode: Mode, lines: Lines) -> Self {
        let mut chance = Chance::new(seed);
        let plan = Plan::draw(mode, &mut chance);
        Self::with(seed, mode, plan, chance, lines)
    }

    /// Quiet hours.
    #[must_use]
    pub fn quiet(seed: u64, plan: Plan, lines: Lines) -> Self {
        Self::with(seed, Mode::Quiet, plan, Chance::new(seed), lines)
    }

    fn with(seed: u64, mode: Mode, plan: Plan, mut chance: Chance, lines: Lines) -> Self {
        let drift = plan.drift_ppm;
        let mut clock = || {
            let rate = i64::try_from(chance.between(0, 2 * drift.unsigned_abs())).expect("small") - drift;
            HostClock::new(chance.between(1_000_000_000_000, 9_000_000_000_000), rate)
        };
        let nodes = NODES.map(|id| (id, DataNode { tight: plan.tight, loss: plan.loss, ..DataNode::new(id, clock()) }));
        let observers = OBSERVERS.map(|id| (id, ObserverNode::new(id, clock())));
        let client = Client::new(clock());
        let mut world = Self {
            mode,
            plan,
            now: Instant::default(),
            chance,
            net: Network::new(Weather::CALM),
            timing: timing_of(mode),
            queue: Queue::default(),
            nodes: nodes.into(),
            observers: observers.into(),
            client,
            streams: BTreeMap::new(),
            next_id: 1,
            tickets: BTreeMap::new(),
            copies: BTreeMap::new(),
            noticed: BTreeMap::new(),
            notices: BTreeMap::new(),
            newest_routes: None,
            read_tickets: BTreeMap::new(),
            reads: BTreeMap::new(),
            members: BTreeMap::new(),
            hosted: BTreeMap::new(),
            groups: Vec::new(),
            stop_candidate: None,
            hold_leave: None,
            elected: Vec::new(),
            checkers: Checkers::default(),
            trace: Trace::new(lines),
            coverage: Coverage::default(),
            violation: None,
            healed: None,
            fault_began: None,
            client_wake: Instant(u64::MAX),
            settled: None,
            seed,
        };
        world.set_up();
        world
    }

    fn set_up(&mut self) {
        for id in OBSERVERS {
            self.after(Duration::ZERO, What::Start(Host::Observer(id.0)));
        }
        for id in NODES {
            self.after(Duration::from_millis(100), What::Start(Host::Node(id.0)));
        }
        self.after(Duration::from_millis(150), What::Upkeep);
        self.after(Duration::from_millis(1_500), What::Produce);
        self.after(Duration::from_millis(1_500), What::Read);
        self.after(Duration::from_millis(2_500), What::Replay);
        for (at, fault) in self.plan.faults.clone() {
            self.at(at, What::Fault(fault));
        }
        if let Some(at) = self.plan.heal_at {
            self.at(at, What::Heal);
        }
    }

    /// Plays the run to its end, or to the first violation.
    #[must_use]
    pub fn run(mut self) -> Outcome {
        while let Some((at, what)) = self.queue.pop() {
            if at > self.plan.end || self.violation.is_some() || self.is_over() {
                break;
            }
            self.now = at;
            self.happen(what);
        }
        self.finish();
        Outcome {
            seed: self.seed,
            mode: self.mode,
            violation: self.violation,
            coverage: self.coverage,
            digest: self.trace.digest(),
        }
    }

    pub(crate) fn at(&mut self, at: Instant, what: What) {
        self.queue.push(at.max(self.now), what);
    }

    pub(crate) fn after(&mut self, span: Duration, what: What) {
        self.at(self.now + span, what);
    }

    pub(crate) fn fresh_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    pub(crate) fn node_mut(&mut self, id: NodeId) -> &mut DataNode<P> {
        self.nodes.get_mut(&id).expect("data nodes are fixed")
    }

    pub(crate) fn observer_mut(&mut self, id: NodeId) -> &mut ObserverNode<P> {
        self.observers.get_mut(&id).expect("observers are fixed")
    }

    /// Records the first violation.
    pub(crate) fn check(&mut self, result: Result<(), Violation>) {
        if let Err(violation) = result {
            if self.plan.drift_ppm > BOUND_PPM && NEEDS_BOUNDED_CLOCKS.contains(&violation.checker) {
                self.coverage.count(format!("beyond the bound: {}", violation.checker));
                return;
            }
            self.trace.line(self.now, format_args!("VIOLATION {violation}"));
            self.violation.get_or_insert(violation);
        }
    }

    pub(crate) fn say(&mut self, text: std::fmt::Arguments<'_>) {
        self.trace.line(self.now, text);
    }
}
