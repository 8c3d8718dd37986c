//! Rights as intervals of true time: two of different holders must not overlap, and their terms only grow.

use std::collections::BTreeMap;

use quorate_proto::ids::{GroupId, NodeId, Term};

use super::Violation;
use crate::time::Instant;

/// Who has a right, checked whenever somebody gains it.
#[derive(Debug)]
pub struct Rights {
    name: &'static str,
    held: BTreeMap<GroupId, BTreeMap<NodeId, (Instant, Term)>>,
    newest: BTreeMap<GroupId, Term>,
}

impl Rights {
    /// Nobody has it. Violations carry `name`.
    #[must_use]
    pub fn new(name: &'static str) -> Self {
        Self { name, held: BTreeMap::new(), newest: BTreeMap::new() }
    }

    /// `node` has the right until true time `until` (≤ `now`: not any more), in `term`.
    ///
    /// # Errors
    /// Another node's right still lasts, or a newer term had it already.
    pub fn gain(
        &mut self,
        now: Instant,
        group: GroupId,
        node: NodeId,
        term: Term,
        until: Instant,
    ) -> Result<(), Violation> {
        let held = self.held.entry(group).or_default();
        held.retain(|holder, (end, _)| *end > now && *holder != node);
        if until <= now {
            return Ok(());
        }
        if let Some((other, (end, other_term))) = held.first_key_value() {
            let what = format!("{node} ({term}) and {other} ({other_term}, until {end}) both in {group}");
            return Err(Violation::new(self.name, now, what));
        }
        let newest = self.newest.entry(group).or_default();
        if term < *newest {
            let what = format!("{node} in {group} in {term} after {newest}");
            return Err(Violation::new(self.name, now, what));
        }
        *newest = term;
        held.insert(node, (until, term));
        Ok(())
    }

    /// The process is gone, and its rights with it.
    pub fn gone(&mut self, node: NodeId) {
        for held in self.held.values_mut() {
            held.remove(&node);
        }
    }

    /// Whether `node` had it when it was last asked.
    #[must_use]
    pub fn has(&self, group: GroupId, node: NodeId) -> bool {
        self.held.get(&group).is_some_and(|held| held.contains_key(&node))
    }

    /// Who has it.
    #[must_use]
    pub fn holder(&self, now: Instant, group: GroupId) -> Option<NodeId> {
        self.held.get(&group)?.iter().find(|(_, (end, _))| *end > now).map(|(node, _)| *node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_overlapping_rights_are_a_violation_and_two_in_a_row_are_not() {
        let (a, b) = (NodeId(1), NodeId(2));
        let mut rights = Rights::new("test");
        assert!(rights.gain(Instant(10), GroupId(2), a, Term(1), Instant(20)).is_ok());
        assert!(rights.gain(Instant(19), GroupId(2), b, Term(2), Instant(30)).is_err());
        assert!(rights.gain(Instant(20), GroupId(2), b, Term(2), Instant(30)).is_ok());
        assert!(rights.gain(Instant(31), GroupId(2), a, Term(1), Instant(40)).is_err(), "an old term came back");
    }

    #[test]
    fn a_right_given_up_or_lost_with_its_process_bothers_nobody() {
        let (a, b) = (NodeId(1), NodeId(2));
        let mut rights = Rights::new("test");
        assert!(rights.gain(Instant(10), GroupId(2), a, Term(1), Instant(90)).is_ok());
        assert!(rights.gain(Instant(11), GroupId(2), a, Term(1), Instant(0)).is_ok());
        assert!(rights.gain(Instant(12), GroupId(2), b, Term(2), Instant(90)).is_ok());
        rights.gone(b);
        assert!(rights.gain(Instant(13), GroupId(2), a, Term(3), Instant(90)).is_ok());
    }
}
