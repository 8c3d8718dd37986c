//! Data nodes start, die, and get mail.

use std::time::Duration;

use quorate_consensus::node::NodeEvent;
use quorate_consensus::policy::Policy;
use quorate_proto::ids::{Incarnation, LogIndex, NodeId, Term};

use super::{What, World, NODES, OBSERVERS};
use crate::net::Host;
use crate::time::Instant;

impl<P: Policy> World<P> {
    pub(crate) fn node_start(&mut self, id: NodeId) {
        if self.nodes[&id].process.is_some() {
            return;
        }
        let seed = self.chance.word();
        let (now, timing) = (self.now, self.timing.clone());
        let node = self.node_mut(id);
        let effects = node.start(now, &OBSERVERS, &timing, seed);
        let incarnation = node.incarnation;
        self.say(format_args!("node-{} starts, {incarnation}", id.0));
        let logs = &mut self.checkers.logs;
        for (group, log) in self.nodes[&id].disk.groups() {
            let entries = log.entries.values().map(|entry| (LogIndex(entry.index), Term(entry.term)));
            logs.restarted(id, *group, entries);
        }
        self.execute(id, effects);
        self.after_effects();
        let free = self.nodes[&id].disk.free;
        self.post_to_node(id, NodeEvent::Space(free.measured()));
        self.post_to_node(id, NodeEvent::Tick);
    }

    /// The process is gone.
    pub(crate) fn node_crash(&mut self, id: NodeId) {
        let in_flight = self.nodes[&id].disk.in_flight() as u64;
        let keep = self.chance.between(0, in_flight);
        let (now, groups) = (self.now, self.groups.clone());
        let node = self.node_mut(id);
        let Some(process) = node.process.take() else { return };
        let clock = node.clock.read(now);
        // B2: the log is sound again once every replica says so.
        node.suspect &= groups.iter().any(|group| process.core.is_suspect(*group, clock));
        node.disk.crash(usize::try_from(keep).expect("few jobs"));
        node.paused_until = None;
        node.stop_inside = None;
        node.parcels.clear();
        node.made.clear();
        if (1..in_flight).contains(&keep) {
            self.coverage.count("torn writes");
        }
        self.checkers.serving.gone(id);
        self.checkers.fenced.gone(id);
        self.say(format_args!("node-{} is gone", id.0));
        self.break_streams_of(Host::Node(id.0));
        self.tickets.retain(|(node, _), _| *node != id);
        self.read_tickets.retain(|(node, _), _| *node != id);
        for other in NODES.into_iter().filter(|other| *other != id) {
            if !self.net.is_cut(Host::Node(id.0), Host::Node(other.0)) {
                let incarnation = self.nodes[&other].incarnation;
                self.after(
                    Duration::from_millis(1),
                    What::ToNode(other, incarnation, Box::new(NodeEvent::PeerLost(id))),
                );
            }
        }
    }

    /// From an event's arrival to the turn that handles it.
    pub(crate) fn wait_for_a_processor(&mut self) -> Duration {
        let usual = self.chance.span(Duration::from_micros(2), Duration::from_micros(60));
        match self.plan.burden.late() {
            Some((_, longest)) if self.chance.one_in(5) => self.chance.span(usual, longest),
            Some((often, _)) => self.chance.span(usual, often),
            None => usual,
        }
    }

    pub(crate) fn post_to_node(&mut self, id: NodeId, event: NodeEvent) {
        let delay = self.wait_for_a_processor();
        let now = self.now;
        let node = self.node_mut(id);
        let (awake, incarnation) = (node.awake(now), node.incarnation);
        let Some(process) = &mut node.process else { return };
        process.mailbox.push_back(event);
        if awake && !process.turn_due {
            process.turn_due = true;
            self.after(delay, What::Turn(Host::Node(id.0), incarnation));
        }
    }

    pub(crate) fn tick(&mut self, host: Host, incarnation: Incarnation) {
        let now = self.now;
        match host {
            Host::Node(id) if self.nodes[&NodeId(id)].incarnation == incarnation => {
                let process = self.node_mut(NodeId(id)).process.as_mut();
                if process.is_some_and(|process| rings(&mut process.tick_due, now)) {
                    self.post_to_node(NodeId(id), NodeEvent::Tick);
                }
            }
            Host::Observer(id) if self.observers[&NodeId(id)].incarnation == incarnation => {
                let process = self.observer_mut(NodeId(id)).process.as_mut();
                if process.is_some_and(|process| rings(&mut process.tick_due, now)) {
                    self.observer_tick(NodeId(id));
                }
            }
            _ => {}
        }
    }

    /// SIGTERM: the core closes; its supervisor starts the process again after `down`.
    pub(crate) fn node_stop(&mut self, id: NodeId, down: Duration) {
        let node = self.node_mut(id);
        let incarnation = node.incarnation;
        let Some(process) = &mut node.process else { return };
        process.closing = true;
        self.coverage.count("faults that bit");
        self.post_to_node(id, NodeEvent::Shutdown);
        // It exits by itself once it leads nothing; a supervisor does not wait for ever.
        self.after(Duration::from_secs(2), What::Kill(id, incarnation, down));
    }

    /// A closing process that leads nothing any more exits.
    pub(crate) fn close_if_asked(&mut self, id: NodeId) {
        let now = self.now;
        let node = &self.nodes[&id];
        let Some(process) = node.process.as_ref().filter(|process| process.closing) else { return };
        if process.mailbox.is_empty() && process.core.status(node.clock.read(now)).leaders == 0 {
            let down = self.chance.span(Duration::from_millis(20), Duration::from_secs(2));
            self.exit(id, true, down);
        }
    }
}

/// An alarm that was set to an earlier instant meanwhile rings there, and not twice.
fn rings(due: &mut Instant, now: Instant) -> bool {
    let rings = *due == now;
    if rings {
        *due = Instant(u64::MAX);
    }
    rings
}
