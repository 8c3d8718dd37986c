//! What checkers ask of a replica after every event: cheap, and never asked by a shell.

use quorate_proto::control::Role;
use quorate_proto::ids::{GroupId, Offset, PermitEpoch, Term};
use quorate_proto::time::BootTime;

use super::dispatch::NodeCore;
use super::hosting::Hosted;
use super::partition_replica::PartitionReplica;
use crate::partition::Digest;
use crate::policy::Policy;

impl<P: Policy> NodeCore<P> {
    fn live(&self, group: GroupId) -> Option<&PartitionReplica<P>> {
        self.partitions.get(&group).and_then(Hosted::live)
    }

    /// Until when a leader is within its fence, lease and no-op ignored; `ZERO` if it does not lead.
    #[must_use]
    pub fn fence_until(&self, group: GroupId, now: BootTime) -> BootTime {
        self.live(group).map_or(BootTime::ZERO, |partition| partition.replica.fence_until(now))
    }

    /// Term and permit epoch in which the replica leads.
    #[must_use]
    pub fn leads(&self, group: GroupId) -> Option<(Term, PermitEpoch)> {
        let replica = &self.live(group)?.replica;
        (replica.role() == Role::Leader).then(|| (replica.term(), replica.won_epoch()))
    }

    /// Raft term of the replica.
    #[must_use]
    pub fn term(&self, group: GroupId) -> Option<Term> {
        self.live(group).map(|partition| partition.replica.term())
    }

    /// Digest of the machine at its high watermark.
    #[must_use]
    pub fn digest(&self, group: GroupId) -> Option<(Offset, Digest)> {
        let machine = &self.live(group)?.machine;
        Some((machine.high_watermark(), machine.digest()))
    }

    /// The replica does not trust its log (B2).
    #[must_use]
    pub fn is_suspect(&self, group: GroupId, now: BootTime) -> bool {
        self.live(group).is_some_and(|partition| partition.replica.report(now).suspect_log)
    }
}
