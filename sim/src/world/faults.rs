//! Faults strike, and end.

use std::time::Duration;

use quorate_consensus::observer::ObserverEvent;
use quorate_consensus::policy::Policy;
use quorate_proto::control::ExitNotice;
use quorate_proto::ids::{NodeId, PartitionNo, Ticket};

use super::observer::{host as observer_host, id_of};
use super::{What, World, NODES, OBSERVERS};
use crate::net::{Host, Weather};
use crate::plan::{Fault, Target};

impl<P: Policy> World<P> {
    fn resolve(&self, target: Target) -> Host {
        let leader = || {
            let serving = self.group_of(PartitionNo(0)).and_then(|group| self.serving.holder(self.now, group));
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
        }
    }

    pub(crate) fn strike(&mut self, fault: Fault) {
        self.say(format_args!("FAULT {fault:?}"));
        self.fault_began.get_or_insert(self.now);
        self.net.weather = self.plan.weather;
        self.coverage.count("faults");
        match fault {
            Fault::Crash { target, down, notice } => match self.resolve(target) {
                Host::Node(id) => self.exit(NodeId(id), notice, down),
                host @ Host::Observer(_) => {
                    self.observer_crash(id_of(host));
                    self.after(down, What::Start(host));
                }
                Host::Client => {}
            },
            Fault::Pause { target, span } => self.pause(target, span),
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
            Fault::OneWay { target, inbound, peers_only } => self.one_way(target, inbound, peers_only),
            Fault::FlushError { target } => {
                if let Host::Node(id) = self.resolve(target) {
                    // More than one suspect log may need an operator (B2): out of this run's scope.
                    if !self.nodes.values().any(|node| node.suspect || node.disk.fail_next) {
                        self.node_mut(NodeId(id)).disk.fail_next = true;
                    }
                }
            }
            Fault::SlowDisk { target, extra, span } => {
                if let Host::Node(id) = self.resolve(target) {
                    self.node_mut(NodeId(id)).disk.slow = extra;
                    self.after(span, What::EndSlow(NodeId(id)));
                }
            }
        }
    }

    fn pause(&mut self, target: Target, span: Duration) {
        let host = self.resolve(target);
        let until = self.now + span;
        match host {
            Host::Node(id) => self.node_mut(NodeId(id)).paused_until = Some(until),
            Host::Observer(_) => self.observer_mut(id_of(host)).paused_until = Some(until),
            Host::Client => return,
        }
        self.at(until, What::Resume(host));
    }

    pub(crate) fn resume(&mut self, host: Host) {
        self.say(format_args!("{host} goes on"));
        match host {
            Host::Node(id) => self.post_to_node(NodeId(id), quorate_consensus::node::NodeEvent::Tick),
            Host::Observer(_) => self.observer_tick(id_of(host)),
            Host::Client => {}
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

    fn one_way(&mut self, target: Target, inbound: bool, peers_only: bool) {
        let host = self.resolve(target);
        let mut others: Vec<Host> = NODES.map(|node| Host::Node(node.0)).to_vec();
        if !peers_only {
            others.extend(OBSERVERS.map(observer_host));
            others.push(Host::Client);
        }
        for other in others {
            let (from, to) = if inbound { (other, host) } else { (host, other) };
            self.cut(from, to, None);
        }
    }

    /// A data node's process dies; its supervisor tells (if it lives) and starts it again.
    pub(crate) fn exit(&mut self, id: NodeId, notice: bool, down: Duration) {
        let incarnation = self.nodes[&id].incarnation;
        if self.nodes[&id].process.is_none() {
            return;
        }
        self.node_crash(id);
        if notice {
            let secret = crate::data_node::secret(id);
            let notice = ExitNotice { node: id, incarnation, secret, status: -9 };
            let delay = self.chance.span(Duration::from_millis(1), Duration::from_millis(20));
            self.after(delay, What::Notice(notice, 0));
            self.coverage.count("exit notices");
        }
        self.after(down, What::Start(Host::Node(id.0)));
    }

    /// A supervisor repeats its notice until it is acknowledged; now and then a copy comes much later.
    pub(crate) fn notice(&mut self, notice: ExitNotice, again: u32) {
        let host = Host::Node(notice.node.0);
        for observer in OBSERVERS {
            let reached = !self.net.is_cut(host, observer_host(observer));
            if reached && self.observers[&observer].process.is_some() {
                let ticket = Ticket(self.fresh_id());
                self.notices.insert(ticket, (notice.node, notice.incarnation));
                let event = ObserverEvent::ExitNotice { ticket, notice: notice.clone() };
                let incarnation = self.observers[&observer].incarnation;
                let delay = self.chance.span(Duration::from_micros(100), Duration::from_micros(600));
                self.after(delay, What::ToObserver(observer, incarnation, Box::new(event)));
            }
        }
        let known = self.noticed.get(&notice.node).is_some_and(|seen| *seen >= notice.incarnation);
        if !known && again < 100 {
            self.after(Duration::from_millis(100), What::Notice(notice, again + 1));
        } else if again < 200 && self.chance.one_in(300) {
            let late = self.chance.span(Duration::from_millis(100), Duration::from_secs(8));
            self.after(late, What::Notice(notice, 1_000));
        }
    }

    pub(crate) fn start(&mut self, host: Host) {
        match host {
            Host::Node(id) => self.node_start(NodeId(id)),
            Host::Observer(_) => self.observer_start(id_of(host)),
            Host::Client => {}
        }
    }

    /// All faults end.
    pub(crate) fn heal(&mut self) {
        self.say(format_args!("HEAL"));
        self.healed = Some(self.now);
        self.net.heal_all();
        self.net.weather = Weather::CALM;
        for id in NODES {
            let node = self.node_mut(id);
            node.disk.slow = Duration::ZERO;
            node.disk.fail_next = false;
            if node.paused_until.take().is_some() {
                self.resume(Host::Node(id.0));
            }
            self.node_start(id);
        }
        for id in OBSERVERS {
            if self.observer_mut(id).paused_until.take().is_some() {
                self.resume(observer_host(id));
            }
            self.observer_start(id);
        }
    }
}
