//! No replica wins without a permit that the observers committed for it, and a permit elects at most one leader (P1).

use std::collections::BTreeMap;

use quorate_proto::control::Permit;
use quorate_proto::ids::{GroupId, Incarnation, NodeId, PermitEpoch, Term};

use super::Violation;
use crate::time::Instant;

/// Name in violations.
pub const NAME: &str = "a committed permit elects one leader";

/// Permits in the observers' log, and who won with them.
#[derive(Debug, Default)]
pub struct Permits {
    committed: BTreeMap<(GroupId, PermitEpoch), (NodeId, Incarnation)>,
    winners: BTreeMap<(GroupId, PermitEpoch), (NodeId, Term)>,
}

impl Permits {
    /// An observer applied `permit`, which names a replica on `node`. True if it is news.
    ///
    /// # Errors
    /// Another permit has that epoch.
    pub fn applied(&mut self, now: Instant, permit: &Permit, node: NodeId) -> Result<bool, Violation> {
        let key = (permit.group, permit.epoch);
        let named = (node, permit.candidate_incarnation);
        match self.committed.insert(key, named) {
            None => Ok(true),
            Some(first) if first == named => Ok(false),
            Some(first) => {
                let what = format!("{} {} names {named:?} and {first:?}", permit.group, permit.epoch);
                Err(Violation::new(NAME, now, what))
            }
        }
    }

    /// `node` in `incarnation` won `term` with `epoch`.
    ///
    /// # Errors
    /// The permit is not committed, names another one, or elected a leader before.
    pub fn won(
        &mut self,
        now: Instant,
        (group, epoch): (GroupId, PermitEpoch),
        (node, incarnation): (NodeId, Incarnation),
        term: Term,
    ) -> Result<(), Violation> {
        let wrong = |what: String| Err(Violation::new(NAME, now, what));
        match self.committed.get(&(group, epoch)) {
            Some(named) if *named == (node, incarnation) => {}
            named => {
                return wrong(format!("{node} {incarnation} won {group} {term} with {epoch}, which names {named:?}"))
            }
        }
        let first = *self.winners.entry((group, epoch)).or_insert((node, term));
        if first != (node, term) {
            return wrong(format!("{epoch} of {group} elected {} in {} and {node} in {term}", first.0, first.1));
        }
        Ok(())
    }

    /// Who won with an epoch.
    #[must_use]
    pub fn winner(&self, group: GroupId, epoch: PermitEpoch) -> Option<(NodeId, Term)> {
        self.winners.get(&(group, epoch)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permit_must_be_committed_for_its_winner_and_elects_once() {
        let mut permits = Permits::default();
        let permit = Permit {
            group: GroupId(2),
            epoch: PermitEpoch(3),
            candidate: quorate_proto::ids::ReplicaId(7),
            candidate_incarnation: Incarnation(1),
            config_version: quorate_proto::ids::ConfigVersion(1),
            basis: Vec::new(),
            clear: false,
            kind: quorate_proto::control::PermitKind::Normal,
            planned: None,
        };
        let (key, who) = ((GroupId(2), PermitEpoch(3)), (NodeId(1), Incarnation(1)));
        assert!(permits.won(Instant(1), key, who, Term(5)).is_err(), "not committed");
        assert_eq!(permits.applied(Instant(1), &permit, NodeId(1)), Ok(true));
        assert!(permits.won(Instant(1), key, (NodeId(1), Incarnation(2)), Term(5)).is_err(), "another process");
        assert!(permits.won(Instant(1), key, who, Term(5)).is_ok());
        assert!(permits.won(Instant(2), key, who, Term(6)).is_err(), "twice");
    }
}
