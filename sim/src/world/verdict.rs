//! What must hold at the end of a run.

use std::time::Duration;

use quorate_consensus::policy::Policy;
use quorate_proto::control::Role;
use quorate_proto::ids::{GroupId, NodeId, PartitionNo};

use super::{World, NODES, OBSERVERS, PARTITIONS};
use crate::checker::{calm, copies, floor, linear, liveness, order};
use crate::plan::{Fault, Mode};
use crate::time::Instant;

/// After a fault that stays, the others serve again within this (silent host and one-way cuts 2.0 s, Timelines), with a
/// second of the run's own coarseness.
const SERVE_AGAIN: Duration = Duration::from_millis(3_000);
/// Without observers the lease ends first: 7.75 s, then 2.0 s, and the same coarseness.
const SERVE_AGAIN_BY_LEASE: Duration = Duration::from_millis(11_000);
/// After everything healed.
const SERVE_HEALED: Duration = Duration::from_secs(15);
/// Of the records sent last, one this old at most must be acknowledged …
const SLACK: Duration = Duration::from_millis(500);
/// … or this old where the leader refuses `BUSY`: what waited during the faults goes first.
const TIGHT_SLACK: Duration = Duration::from_millis(4_000);

/// After the last outcome: followers apply what it was about, and everything is compared.
const AFTERMATH: Duration = Duration::from_millis(1_000);

impl<P: Policy> World<P> {
    /// Everything that was sent has its outcome, and nothing else is awaited.
    pub(crate) fn is_over(&mut self) -> bool {
        if self.now < self.plan.stop || self.awaits_members() {
            return false;
        }
        if self.client.waiting() > 0 || self.healed.is_none() {
            self.settled = None;
            return false;
        }
        let settled = *self.settled.get_or_insert(self.now);
        self.now >= settled + AFTERMATH
    }

    pub(crate) fn finish(&mut self) {
        self.coverage.add("acknowledged", self.client.acknowledged);
        self.coverage.add("unresolved", self.client.unresolved);
        self.coverage.add("copies answered", self.client.duplicates);
        self.coverage.add("cut messages", self.net.dropped_by_cut);
        self.coverage.add("digests compared", self.checkers.digests.count() as u64);
        self.coverage.add("faults that bit", u64::from(self.net.dropped_by_cut > 0));
        let cleared = NODES.iter().filter(|id| self.trusts_its_log_again(**id)).count();
        self.coverage.add("suspicions cleared", cleared as u64);
        if self.violation.is_some() {
            return;
        }
        for group in self.groups.clone() {
            self.check_partition(group);
        }
        self.check_liveness();
        self.check_members();
        let result = match self.mode {
            Mode::Quiet => calm::check(self.now, &self.coverage, PARTITIONS, OBSERVERS.len() as u64),
            _ => floor::check(self.now, &self.coverage, PARTITIONS),
        };
        self.check(result);
    }

    fn check_partition(&mut self, group: GroupId) {
        let (now, checkers) = (self.now, &self.checkers);
        // Applied entries are committed, so all of them together hold every promise.
        let log = checkers.offsets.log(group);
        let client = &self.client;
        let append = |offset, value: &bytes::Bytes| {
            let began = client.began.get(value).copied().unwrap_or_default();
            linear::Append { began, ended: checkers.durable.first(group, offset) }
        };
        let results = [
            checkers.durable.check(now, group, &log),
            copies::check(now, group, &log, &client.refused),
            order::check(now, group, &log, &client.raced),
            checkers.linear.check(now, group, &log, append),
        ];
        for result in results {
            self.check(result);
        }
    }

    fn check_liveness(&mut self) {
        let bound = match (self.healed, self.fault_began, self.mode) {
            (Some(at), ..) => at + SERVE_HEALED,
            (None, Some(at), Mode::Deaf) if self.leader_lost_observers() => at + SERVE_AGAIN_BY_LEASE,
            (None, Some(at), Mode::Deaf) => at + SERVE_AGAIN,
            // It serves to the very end, long after the last lease.
            (None, Some(_), Mode::ReadIndex) => self.plan.end,
            _ => return,
        };
        let slack = if self.plan.tight { TIGHT_SLACK } else { SLACK };
        let due = bound.min(Instant(self.plan.stop.0 - u64::try_from(slack.as_nanos()).expect("small")));
        let mut all_serve = true;
        for no in 0..PARTITIONS {
            let partition = PartitionNo(no);
            if self.healed.is_some() && !self.could_serve(partition) {
                self.coverage.count("left without a majority");
                all_serve = false;
                continue;
            }
            let served = self.client.last_ack_sent.get(&partition).copied().unwrap_or_default();
            let result = liveness::check(self.now, partition, served, due);
            if self.mode == Mode::ReadIndex && self.healed.is_none() && result.is_ok() {
                self.coverage.count("served without a lease");
            }
            self.check(result);
        }
        if self.healed.is_some() && all_serve && !self.plan.tight {
            let result = liveness::settled(self.now, self.client.waiting(), || self.client.waits_for());
            self.check(result);
        }
    }

    /// Two live, unsuspected replicas.
    fn could_serve(&self, partition: PartitionNo) -> bool {
        let Some(group) = self.group_of(partition) else { return true };
        let sound = |id: &&NodeId| {
            let node = &self.nodes[*id];
            let clock = node.clock.read(self.now);
            let status = node.process.as_ref().and_then(|process| process.core.partition(group, clock));
            status.is_some_and(|s| s.report.role != Role::Quarantined && !s.report.suspect_log)
        };
        NODES.iter().filter(sound).count() >= 2
    }

    fn trusts_its_log_again(&self, id: NodeId) -> bool {
        let node = &self.nodes[&id];
        let clock = node.clock.read(self.now);
        let sound = |core: &quorate_consensus::node::NodeCore<P>| {
            self.groups.iter().all(|group| !core.is_suspect(*group, clock))
        };
        node.suspect && node.process.as_ref().is_some_and(|process| sound(&process.core))
    }

    fn leader_lost_observers(&self) -> bool {
        self.plan.faults.iter().any(|(_, fault)| matches!(fault, Fault::CutObservers { .. }))
    }
}
