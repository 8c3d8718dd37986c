//! A lease is granted to the winner of its permit, to one per term, and terms of leases only grow (L1).

use std::collections::BTreeMap;

use quorate_consensus::directory::Lease;
use quorate_proto::ids::{GroupId, NodeId, Term};

use super::Violation;
use crate::time::Instant;

/// Name in violations.
pub const NAME: &str = "one lease per partition and term";

/// Leases as observers applied them.
#[derive(Debug, Default)]
pub struct Leases {
    granted: BTreeMap<(GroupId, Term), Lease>,
}

impl Leases {
    /// An observer applied `lease`, held by a replica on `node`. `winner`: who won with its epoch. True if it is news.
    ///
    /// # Errors
    /// Another lease of that term was granted, or its holder did not win.
    pub fn applied(
        &mut self,
        now: Instant,
        group: GroupId,
        node: NodeId,
        lease: Lease,
        winner: Option<(NodeId, Term)>,
    ) -> Result<bool, Violation> {
        let news = !self.granted.contains_key(&(group, lease.term));
        let first = *self.granted.entry((group, lease.term)).or_insert(lease);
        if first != lease {
            let what = format!("{group} {} is leased to {first:?} and {lease:?}", lease.term);
            return Err(Violation::new(NAME, now, what));
        }
        if winner != Some((node, lease.term)) {
            let what = format!("{group} is leased to {node} ({lease:?}); its permit was won by {winner:?}");
            return Err(Violation::new(NAME, now, what));
        }
        Ok(news)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_proto::ids::{Incarnation, PermitEpoch, ReplicaId};

    #[test]
    fn a_lease_goes_to_the_winner_and_to_one_per_term() {
        let lease = Lease { replica: ReplicaId(7), term: Term(5), epoch: PermitEpoch(3), incarnation: Incarnation(1) };
        let mut leases = Leases::default();
        let (group, node) = (GroupId(2), NodeId(1));
        assert!(leases.applied(Instant(1), group, node, lease, None).is_err());
        assert_eq!(leases.applied(Instant(1), group, node, lease, Some((node, Term(5)))), Ok(false));
        let other = Lease { replica: ReplicaId(8), ..lease };
        assert!(leases.applied(Instant(1), group, NodeId(2), other, Some((NodeId(2), Term(5)))).is_err());
    }
}
