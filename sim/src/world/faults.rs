//! Faults strike, and end.

use std::time::Duration;

use quorate_consensus::node::NodeEvent;
use quorate_consensus::observer::event::AdminRequest;
use quorate_consensus::observer::ObserverEvent;
use quorate_consensus::policy::Policy;
use quorate_proto::ids::{Incarnation, NodeId, PartitionNo};

use super::observer::{host as observer_host, id_of};
use super::{What, World, NODES, OBSERVERS, TOPIC};
use crate::disk::Free;
use crate::net::{Host, Weather};
use crate::plan::{Fault, Target};

impl<P: Policy> World<P> {
    fn resolve(&self, target: Target) -> Host {
        let leader = || {
            let serving = self.groups.first().and_then(|group| self.checkers.serving.holder(self.now, *group));
            serving.unwrap_or(NODES[0])
        };
        let follower = |which: usize| {
            let leader = leader();
            let others: Vec<NodeId> = NODES.into_iter().filter(|node| *node != leader).collect();
            Host::Node(others[which].0)
        };
        match target {
            Target::Host(Host::Observer(number)) => observer_host(OBSERVERS[(number as usize - 1) % OBSERVERS.len()]),
            Target::Host(host) => host,
            Target::Leader => Host::Node(leader().0),
            Target::FirstFollower => follower(0),
            Target::SecondFollower => follower(1),
            Target::ObserverLeader => {
                let leading = |process: &crate::observer_node::Process<P>| process.core.is_leading();
                let found = self.observers.values().find(|o| o.process.as_ref().is_some_and(leading));
                observer_host(found.map_or(OBSERVERS[0], |observer| observer.id))
            }
        }
    }

    pub(crate) fn strike(&mut self, fault: Fault) {
        self.say(format_args!("FAULT {fault:?}"));
        self.fault_began.get_or_insert(self.now);
        self.net.weather = self.plan.weather;
        self.coverage.count("faults");
        match fault {
            Fault::Crash { target, down, notice } => match self.resolve(target) {
                Host::Node(id) => self.crash(NodeId(id), notice, down),
                host @ Host::Observer(_) => {
                    self.observer_crash(id_of(host));
                    self.after(down, What::Start(host));
                }
                Host::Client | Host::Reader => {}
            },
            Fault::PowerCut { down } => {
                self.coverage.count("power cuts");
                for id in NODES {
                    let down = self.chance.span(Duration::from_millis(50), down);
                    // The supervisors are gone as well.
                    self.crash(id, false, down);
                    self.node_mut(id).boots += 1;
                }
            }
            Fault::Stop { target, down } => self.on_node(target, |world, id| world.node_stop(id, down)),
            Fault::Pause { target, span, inside: true } => {
                self.on_node(target, |world, id| world.node_mut(id).stop_inside = Some(span));
                self.coverage.count("faults that bit");
            }
            Fault::Pause { target, span, inside: false } => self.pause(target, span),
            Fault::StopCandidate { span } => self.stop_candidate = Some(span),
            Fault::Cut { from, to, span } => {
                let (from, to) = (self.resolve(from), self.resolve(to));
                self.cut(from, to, span);
            }
            Fault::CutObservers { target, span } => {
                let host = self.resolve(target);
                for observer in OBSERVERS.map(observer_host) {
                    self.cut(host, observer, span);
                    self.cut(observer, host, span);
                }
            }
            Fault::Isolate { target, span } => self.isolate(target, span),
            Fault::OneWay { target, inbound, peers_only } => self.one_way(target, inbound, peers_only),
            Fault::FlushError { target } => self.on_node(target, |world, id| {
                // More than one suspect log may need an operator (B2): out of this run's scope.
                if !world.nodes.values().any(|node| node.suspect || node.disk.fail_next) {
                    world.node_mut(id).disk.fail_next = true;
                }
            }),
            Fault::SlowDisk { target, extra, span } => self.on_node(target, |world, id| {
                world.node_mut(id).disk.slow = extra;
                world.coverage.count("faults that bit");
                world.after(span, What::EndSlow(id));
            }),
            Fault::Stall { target, span } => self.on_node(target, |world, id| world.node_mut(id).disk.hang = span),
            Fault::Forget { target, down, entries } => {
                let host = self.resolve(target);
                // A second one without memory may need an operator (M5): out of this run's scope.
                let others = self.observers.values().filter(|other| other.id != id_of(host));
                if others.clone().all(|other| other.is_sound() && other.rejoined) {
                    let what = if entries.is_some() { "observers' tails lost" } else { "observers' disks wiped" };
                    self.coverage.count(what);
                    self.observer_crash(id_of(host));
                    self.observer_mut(id_of(host)).forget(entries);
                    self.observer_mut(id_of(host)).rejoined = false;
                    self.after(down, What::Start(host));
                }
            }
            Fault::FillDisk { target, full, span } => {
                let host = self.resolve(target);
                self.coverage.count("disks filled");
                self.coverage.count("faults that bit");
                self.set_free(host, if full { Free::FULL } else { Free::SCARCE });
                self.after(span, What::Emptied(host));
            }
            Fault::LoseTail { target, down, entries } => self.on_node(target, |world, id| {
                world.exit(id, true, down);
                world.lose_tail(id, entries);
            }),
            Fault::WallStep { target, seconds } => {
                let id = id_of(self.resolve(target));
                self.coverage.count("wall clock steps");
                self.observer_mut(id).wall_error += seconds * 1_000_000;
            }
            Fault::ForgedNotice { target } => self.on_node(target, Self::forged_notice),
            Fault::Handoff { to } => {
                self.coverage.count("handoffs asked for");
                // A leader that moves is a disturbance by itself.
                self.coverage.count("faults that bit");
                let partition = PartitionNo(0);
                self.ask_observers(&AdminRequest::Handoff {
                    topic: TOPIC.into(),
                    partition,
                    to: to.to_string(),
                    pin: false,
                });
            }
            Fault::Drain { target, drain: draining } => self.on_node(target, |world, id| {
                world.coverage.count("drains");
                world.ask_observers(&AdminRequest::Drain { node: id.0.to_string(), draining });
            }),
            Fault::Wipe { target, down } => self.on_node(target, |world, id| {
                // With a second disk lost or suspect no majority of logs is left: an operator's affair (B2).
                let spoilt = |node: &crate::data_node::DataNode<P>| node.suspect || node.disk.fail_next;
                if !world.lost_members() && !world.nodes.values().any(spoilt) {
                    world.exit(id, true, down);
                    world.wipe(id);
                }
            }),
            Fault::Replace { target } => self.on_node(target, |world, id| {
                world.coverage.count("replicas replaced on purpose");
                // A member that is made anew is a disturbance by itself.
                world.coverage.count("faults that bit");
                let (topic, partition, node) = (TOPIC.to_owned(), PartitionNo(0), id.0.to_string());
                world.ask_observers(&AdminRequest::Replace { topic, partition, from: node.clone(), to: node });
            }),
            Fault::HoldLeave { span, crash } => self.hold_leave = Some((span, crash)),
            Fault::CopiedDisk { target } => self.on_node(target, Self::copied_disk),
        }
    }

    /// The shell measures its disks every second or so; here it sees at once what changed.
    pub(crate) fn set_free(&mut self, host: Host, free: Free) {
        match host {
            Host::Node(id) => {
                self.node_mut(NodeId(id)).disk.free = free;
                self.post_to_node(NodeId(id), NodeEvent::Space(free.measured()));
            }
            Host::Observer(_) => {
                self.observer_mut(id_of(host)).disk.free = free;
                self.post_to_observer(id_of(host), ObserverEvent::Space(free.measured()));
            }
            Host::Client | Host::Reader => {}
        }
    }

    fn on_node(&mut self, target: Target, act: impl FnOnce(&mut Self, NodeId)) {
        if let Host::Node(id) = self.resolve(target) {
            act(self, NodeId(id));
        }
    }

    fn crash(&mut self, id: NodeId, notice: bool, down: Duration) {
        if self.nodes[&id].process.is_some() {
            self.coverage.count("faults that bit");
        }
        self.exit(id, notice, down);
    }

    /// SIGKILL for a closing process that does not exit by itself.
    pub(crate) fn kill(&mut self, id: NodeId, incarnation: Incarnation, down: Duration) {
        if self.nodes[&id].incarnation == incarnation {
            self.exit(id, true, down);
        }
    }

    fn pause(&mut self, target: Target, span: Duration) {
        match self.resolve(target) {
            Host::Node(id) => self.pause_node(NodeId(id), span),
            host @ Host::Observer(_) => {
                let until = self.now + span;
                self.observer_mut(id_of(host)).paused_until = Some(until);
                self.coverage.count("observer pauses");
                self.coverage.count("faults that bit");
                self.at(until, What::Resume(host));
            }
            Host::Client | Host::Reader => {}
        }
    }

    pub(crate) fn pause_node(&mut self, id: NodeId, span: Duration) {
        let until = self.now + span;
        if self.nodes[&id].process.is_none() {
            return;
        }
        self.node_mut(id).paused_until = Some(until);
        self.coverage.count("pauses");
        self.coverage.count("faults that bit");
        self.at(until, What::Resume(Host::Node(id.0)));
    }

    pub(crate) fn resume(&mut self, host: Host) {
        self.say(format_args!("{host} goes on"));
        match host {
            Host::Node(id) => self.post_to_node(NodeId(id), NodeEvent::Tick),
            Host::Observer(_) => self.observer_tick(id_of(host)),
            Host::Client | Host::Reader => {}
        }
    }

    fn cut(&mut self, from: Host, to: Host, span: Option<Duration>) {
        if from == to {
            return;
        }
        self.net.cut(from, to);
        if let Some(span) = span {
            self.after(span, What::EndCut(from, to));
        }
    }

    pub(crate) fn end_cut(&mut self, from: Host, to: Host) {
        self.net.heal(from, to);
    }

    fn isolate(&mut self, target: Target, span: Duration) {
        let host = self.resolve(target);
        for other in everybody() {
            self.cut(host, other, Some(span));
            self.cut(other, host, Some(span));
        }
    }

    fn one_way(&mut self, target: Target, inbound: bool, peers_only: bool) {
        let host = self.resolve(target);
        for other in everybody().filter(|other| !peers_only || matches!(other, Host::Node(_))) {
            let (from, to) = if inbound { (other, host) } else { (host, other) };
            self.cut(from, to, None);
        }
    }

    pub(crate) fn start(&mut self, host: Host) {
        match host {
            Host::Node(id) => self.node_start(NodeId(id)),
            Host::Observer(_) => self.observer_start(id_of(host)),
            Host::Client | Host::Reader => {}
        }
    }

    /// All faults end.
    pub(crate) fn heal(&mut self) {
        self.say(format_args!("HEAL"));
        self.healed = Some(self.now);
        self.net.heal_all();
        self.net.weather = Weather::CALM;
        self.stop_candidate = None;
        self.hold_leave = None;
        for id in NODES {
            let node = self.node_mut(id);
            node.disk.slow = Duration::ZERO;
            node.disk.hang = Duration::ZERO;
            node.disk.fail_next = false;
            node.disk.free = Free::PLENTY;
            node.stop_inside = None;
            if node.paused_until.take().is_some() {
                self.resume(Host::Node(id.0));
            }
            self.node_start(id);
            self.set_free(Host::Node(id.0), Free::PLENTY);
        }
        for id in OBSERVERS {
            if self.observer_mut(id).paused_until.take().is_some() {
                self.resume(observer_host(id));
            }
            self.observer_start(id);
            self.set_free(observer_host(id), Free::PLENTY);
        }
    }
}

fn everybody() -> impl Iterator<Item = Host> {
    let nodes = NODES.into_iter().map(|node| Host::Node(node.0));
    nodes.chain(OBSERVERS.map(observer_host)).chain([Host::Client, Host::Reader])
}
