//! The observer leader's side of leases (protocol L1, L3, L5).
//!
//! Grants are commands of the directory; renewals are not logged. This table holds, on the observer leader only, until
//! when each granted lease runs *here*. It is never shorter than what the holder counts: the holder starts at the
//! instant it sent the request and takes off a margin (L2), the table starts when the answer leaves.

use std::collections::BTreeMap;
use std::time::Duration;

use quorate_proto::control::LeaseItem;
use quorate_proto::ids::{GroupId, Incarnation, NodeId};
use quorate_proto::time::BootTime;

use crate::directory::{Directory, Lease};

/// What is to be done with one lease item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// The newest lease, held by the one that asks: renew it, after a read-index begun after the request came (L3).
    Renew,
    /// The winner of an election that has no lease yet: propose the grant (L1).
    Grant(Lease),
    /// Final: a greater term has the lease, or this one was released, or it lapsed and a later permit is committed.
    Superseded,
    /// Ask again.
    NotNow,
}

/// When each lease ends, on the observer leader's clock.
#[derive(Clone, Debug, Default)]
pub struct LeaseTable {
    until: BTreeMap<GroupId, BootTime>,
}

impl LeaseTable {
    /// L5: a new observer leader treats all leases as full.
    pub fn take_over(&mut self, directory: &Directory, now: BootTime, lease: Duration) {
        self.until =
            directory.partitions().values().filter(|p| p.lease.is_some()).map(|p| (p.group, now + lease)).collect();
    }

    /// Granted or renewed; the answer leaves now.
    pub fn extend(&mut self, group: GroupId, now: BootTime, lease: Duration) {
        self.until.insert(group, now + lease);
    }

    /// Rest of the lease; `None` if there was none, zero if it lapsed.
    #[must_use]
    pub fn remaining(&self, group: GroupId, now: BootTime) -> Option<Duration> {
        self.until.get(&group).map(|until| until.since(now))
    }

    /// There was a lease and it ran out (S1).
    #[must_use]
    pub fn lapsed(&self, group: GroupId, now: BootTime) -> bool {
        self.until.get(&group).is_some_and(|until| *until <= now)
    }

    /// Judges one item by the directory as applied. `permit_pending`: a permit for the partition is proposed and not
    /// yet applied, so that a lapsed lease must not be taken up again.
    #[must_use]
    pub fn judge(&self, directory: &Directory, asker: Asker, item: &LeaseItem, now: BootTime) -> Judgement {
        let Some(partition) = directory.partition(item.group) else { return Judgement::NotNow };
        let known = directory.node(asker.node).filter(|n| n.is_live() && n.incarnation() == asker.incarnation);
        if known.is_none() || partition.node_of(item.replica) != Some(asker.node) {
            return Judgement::NotNow;
        }
        if partition.is_released(item.replica, item.term) {
            return Judgement::Superseded;
        }
        if let Some(last) = partition.lease.filter(|last| item.term <= last.term) {
            if item.term < last.term || item.replica != last.replica || item.permit_epoch != last.epoch {
                return Judgement::Superseded;
            }
            if last.incarnation != asker.incarnation {
                return Judgement::Superseded;
            }
            if !asker.write_proof {
                return Judgement::NotNow;
            }
            // L2: one that lapsed may be taken again while no later permit is committed.
            return match (self.lapsed(item.group, now), partition.permit_epoch > last.epoch) {
                (true, true) => Judgement::Superseded,
                (true, false) if asker.permit_pending => Judgement::NotNow,
                _ => Judgement::Renew,
            };
        }
        if !asker.write_proof || item.permit_epoch > partition.permit_epoch {
            return Judgement::NotNow;
        }
        Judgement::Grant(Lease {
            replica: item.replica,
            term: item.term,
            epoch: item.permit_epoch,
            incarnation: asker.incarnation,
        })
    }
}

/// Who asks for a lease, and how.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    /// The node.
    pub node: NodeId,
    /// Its incarnation, by its session.
    pub incarnation: Incarnation,
    /// It flushed within the last second (L4).
    pub write_proof: bool,
    /// A permit for the partition is proposed and not yet applied.
    pub permit_pending: bool,
}

#[cfg(test)]
mod tests;
