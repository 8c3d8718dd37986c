//! An application that reads end offsets, from whoever answers: now and then from a node that led long ago.

use std::time::Duration;

use quorate_consensus::policy::Policy;
use quorate_proto::ids::{GroupId, NodeId, Offset, Term, Ticket};
use quorate_proto::refusal::Refusal;

use super::{Message, What, World, NODES};
use crate::checker::linear;
use crate::net::Host;

/// Longest pause between two reads while faults go on, and while nothing but recovery is to be seen.
const READ: (Duration, Duration) = (Duration::from_millis(90), Duration::from_millis(400));

impl<P: Policy> World<P> {
    /// Asks one node for one partition's end offset, and again soon.
    pub(crate) fn read(&mut self) {
        if self.now >= self.plan.stop {
            return;
        }
        let pause = self.chance.span(Duration::from_millis(5), self.slowest(READ));
        self.after(pause, What::Read);
        if self.groups.is_empty() {
            return;
        }
        let group = *self.chance.pick(&self.groups);
        let known = self.checkers.serving.holder(self.now, group);
        let node = match known {
            Some(node) if self.chance.one_in(500) => node,
            _ => *self.chance.pick(&NODES),
        };
        let (a, b) = (Host::Reader, Host::Node(node.0));
        let Some(stream) = self.streams.values().find(|s| s.a == a && s.b == b).map(|s| s.id) else { return };
        let read = self.fresh_id();
        self.reads.insert(read, (group, node, self.now));
        self.write(stream, true, Message::Read(read, group));
    }

    /// The core answered.
    pub(crate) fn read_answer(&mut self, node: NodeId, ticket: Ticket, result: Result<(Offset, Term), Refusal>) {
        if let Some((stream, read)) = self.read_tickets.remove(&(node, ticket)) {
            self.write(stream, false, Message::ReadAnswer(read, Box::new(result)));
        }
    }

    /// The answer arrived.
    pub(crate) fn read_answered(&mut self, read: u64, result: Result<(Offset, Term), Refusal>) {
        let Some((group, by, began)) = self.reads.remove(&read) else { return };
        match result {
            Ok((end, _)) => {
                self.coverage.count("reads answered");
                self.say(format_args!("reader is told by node-{} that {group} ends at {}", by.0, end.0));
                self.checkers.linear.read(group, linear::Read { began, ended: self.now, end, by });
            }
            Err(_) => self.coverage.count("reads refused"),
        }
    }

    /// Groups of the topic's partitions, once an observer knows them.
    pub(crate) fn learn_groups(&mut self, groups: &[GroupId]) {
        if self.groups.is_empty() {
            self.groups = groups.to_vec();
        }
    }
}
