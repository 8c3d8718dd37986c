//! What must hold at the end of a run.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use quorate_consensus::policy::Policy;
use quorate_proto::ids::{GroupId, Offset, PartitionNo};

use super::{World, PARTITIONS};
use crate::checker::{identity, Violation};
use crate::plan::Mode;
use crate::time::Instant;

/// After a fault that stays, the others serve again within this (silent host 2.0 s; without observers the lease end,
/// 8 s, comes first), with a second of the run's own coarseness.
const SERVE_AGAIN: Duration = Duration::from_millis(3_000);
/// Lease and what follows it.
const SERVE_AGAIN_BY_LEASE: Duration = Duration::from_millis(11_000);
/// After everything healed.
const SERVE_HEALED: Duration = Duration::from_secs(15);

impl<P: Policy> World<P> {
    pub(crate) fn finish(&mut self) {
        if self.violation.is_some() {
            return;
        }
        self.coverage.add("acknowledged", self.client.acknowledged);
        self.coverage.add("unresolved", self.client.unresolved);
        self.coverage.add("copies answered", self.client.duplicates);
        self.coverage.add("cut messages", self.net.dropped_by_cut);
        for no in 0..PARTITIONS {
            self.check_partition(PartitionNo(no));
        }
        self.check_liveness();
        self.check_floor();
    }

    fn check_partition(&mut self, partition: PartitionNo) {
        let Some(group) = self.group_of(partition) else { return };
        let log = self.longest_log(group);
        let kept = self.durable.check(self.now, group, &log);
        self.check(kept);
        let refused = self.client.refused.clone();
        self.check(identity::check(self.now, group, &log, &refused));
    }

    /// The replica that applied most: applied entries are committed, so it holds every promise.
    fn longest_log(&self, group: GroupId) -> BTreeMap<Offset, Bytes> {
        let logs = self.nodes.values().filter_map(|node| node.segments.get(&group));
        logs.map(|segments| segments.records().into_iter().collect()).max_by_key(BTreeMap::len).unwrap_or_default()
    }

    fn check_liveness(&mut self) {
        let bound = match (self.healed, self.fault_began, self.mode) {
            (Some(at), _, _) => at + SERVE_HEALED,
            (None, Some(at), Mode::Deaf) if self.leader_lost_observers() => at + SERVE_AGAIN_BY_LEASE,
            (None, Some(at), Mode::Deaf) => at + SERVE_AGAIN,
            _ => return,
        };
        for no in 0..PARTITIONS {
            let served = self.client.last_ack_sent.get(&PartitionNo(no)).copied().unwrap_or_default();
            let stop = Instant(self.plan.end.0 - 7_000_000_000);
            let due = bound.min(Instant(stop.0 - 500_000_000));
            if served < due {
                let what =
                    format!("partition {no}: the newest acknowledged record was sent at {served}, {due} was due");
                self.check(Err(Violation::new("serves again", self.now, what)));
            }
        }
        if self.client.waiting() > 0 && self.mode != Mode::Deaf {
            let what = format!("{} records never got an outcome", self.client.waiting());
            self.check(Err(Violation::new("serves again", self.now, what)));
        }
    }

    fn leader_lost_observers(&self) -> bool {
        use crate::plan::Fault;
        self.plan.faults.iter().any(|(_, fault)| matches!(fault, Fault::CutObservers { .. }))
    }

    /// A run in which nothing bit or nothing was published proves nothing.
    fn check_floor(&mut self) {
        let floor = [("faults", 1), ("acknowledged", 100), ("elections", u64::from(PARTITIONS))];
        for (what, least) in floor {
            if self.coverage.get(what) < least {
                let text = format!("{what}: {} of at least {least}", self.coverage.get(what));
                self.check(Err(Violation::new("vacuity floor", self.now, text)));
            }
        }
    }
}
