//! Disks are replaced and members change (M1).

use std::time::Duration;

use quorate_consensus::policy::Policy;
use quorate_proto::control::Assignment;
use quorate_proto::ids::{GroupId, Incarnation, NodeId};

use super::{What, World, NODES};
use crate::checker::whole;
use crate::net::Host;
use crate::plan::Mode;

impl<P: Policy> World<P> {
    /// A replica is hosted. One that takes another one's place finds nothing of it: its data are kept aside until the new one
    /// is promoted.
    pub(crate) fn opened(&mut self, id: NodeId, assignment: &Assignment) {
        let group = assignment.group;
        let replaced = self.hosted.get(&(id, group)).copied().filter(|known| *known < assignment.replica);
        self.members.extend(assignment.members.iter().copied());
        self.hosted.insert((id, group), assignment.replica);
        let node = self.node_mut(id);
        if let Some(replaced) = replaced {
            node.keep(group, replaced);
            self.checkers.logs.restarted(id, group, std::iter::empty());
            self.coverage.count("changes begun");
        }
        self.node_mut(id).segments.entry(group).or_default();
    }

    /// The disk is another one, and empty.
    pub(crate) fn wipe(&mut self, id: NodeId) {
        let node = self.node_mut(id);
        let held: Vec<GroupId> = node.disk.groups().map(|(group, _)| *group).collect();
        for group in held {
            node.lose(group);
        }
        node.disk = crate::disk::Disk::default();
        node.segments.clear();
        node.parcels.clear();
        node.kept.clear();
        node.wipes += 1;
        node.boots += 1;
        node.suspect = false;
        self.coverage.count("disks wiped");
        self.coverage.count("faults that bit");
        self.say(format_args!("node-{} has an empty disk", id.0));
        for group in self.groups.clone() {
            self.checkers.logs.restarted(id, group, std::iter::empty());
        }
    }

    /// The directory knows a greater incarnation of the old disk: the process ends and starts above it.
    pub(crate) fn raise_incarnation(&mut self, id: NodeId, above: Incarnation) {
        let node = self.node_mut(id);
        node.incarnation = node.incarnation.max(above);
        self.exit(id, true, Duration::from_millis(200));
    }

    /// By the observer that leads, or any: a member is lost, or being replaced.
    pub(crate) fn lost_members(&self) -> bool {
        let directories = self.observers.values().filter_map(|o| o.process.as_ref().map(|p| p.core.directory()));
        let newest = directories.max_by_key(|directory| directory.version());
        newest.is_some_and(|d| d.partitions().values().any(|p| !p.lost.is_empty() || p.change.is_some()))
    }

    /// After a leader's turn: is it in a joint membership that is to be held?
    pub(crate) fn hold_leave_if_joint(&mut self, id: NodeId) {
        let Some((span, crash)) = self.hold_leave else { return };
        let node = &self.nodes[&id];
        let Some(process) = &node.process else { return };
        let clock = node.clock.read(self.now);
        let joint = |group: &GroupId| {
            let status = process.core.partition(*group, clock);
            status.and_then(|s| s.report.change).is_some_and(|change| !change.outgoing.is_empty())
        };
        if !self.groups.iter().any(joint) {
            return;
        }
        self.hold_leave = None;
        self.coverage.count("leaves held");
        self.coverage.count("faults that bit");
        self.say(format_args!("node-{} is in a joint membership: its leave is held", id.0));
        if crash {
            self.exit(id, true, span);
            return;
        }
        for other in NODES.into_iter().filter(|other| *other != id) {
            let (a, b) = (Host::Node(id.0), Host::Node(other.0));
            for (from, to) in [(a, b), (b, a)] {
                self.net.cut(from, to);
                self.after(span, What::EndCut(from, to));
            }
        }
    }

    /// Changes of members are looked at when the run ends.
    pub(crate) fn awaits_members(&self) -> bool {
        matches!(self.mode, Mode::Repair | Mode::Joint)
    }

    pub(crate) fn check_members(&mut self) {
        if !self.awaits_members() || self.healed.is_none() {
            return;
        }
        let directories = self.observers.values().filter_map(|o| o.process.as_ref().map(|p| p.core.directory()));
        let Some(newest) = directories.max_by_key(|directory| directory.version()) else { return };
        let finished = newest.tasks().filter(|task| task.ended.is_some() && task.cancelled.is_empty()).count();
        let results: Vec<_> = newest.partitions().values().map(|p| whole::check(self.now, p)).collect();
        self.coverage.add("changes finished", finished as u64);
        for result in results {
            self.check(result);
        }
    }
}
