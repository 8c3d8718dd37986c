//! At most one serving leader of a partition at any virtual instant, and terms of serving leaders only grow.

use std::collections::BTreeMap;

use quorate_proto::ids::{GroupId, NodeId, Term};

use super::Violation;
use crate::time::Instant;

/// Name in violations.
pub const NAME: &str = "one serving leader";

/// Who has the right to serve, checked whenever somebody gains it.
///
/// A right is an interval of true time: it begins when the core publishes the word and ends when the holder's own
/// clock reaches it, or when the core takes it back. Two intervals of different holders must not overlap.
#[derive(Debug, Default)]
pub struct Serving {
    rights: BTreeMap<GroupId, BTreeMap<NodeId, (Instant, Term)>>,
    newest: BTreeMap<GroupId, Term>,
}

impl Serving {
    /// `node` may serve until true time `until` (≤ `now`: not any more), in `term`.
    ///
    /// # Errors
    /// Another node's right still lasts, or a newer term has served already.
    pub fn right(
        &mut self,
        now: Instant,
        group: GroupId,
        node: NodeId,
        term: Term,
        until: Instant,
    ) -> Result<(), Violation> {
        let rights = self.rights.entry(group).or_default();
        rights.retain(|holder, (end, _)| *end > now && *holder != node);
        if until <= now {
            return Ok(());
        }
        if let Some((other, (end, other_term))) = rights.first_key_value() {
            let what = format!("{node} ({term}) and {other} ({other_term}, until {end}) both serve {group}");
            return Err(Violation::new(NAME, now, what));
        }
        let newest = self.newest.entry(group).or_default();
        if term < *newest {
            let what = format!("{node} serves {group} in {term} after {newest} was served");
            return Err(Violation::new(NAME, now, what));
        }
        *newest = term;
        rights.insert(node, (until, term));
        Ok(())
    }

    /// The process is gone: it serves nothing.
    pub fn gone(&mut self, node: NodeId) {
        for rights in self.rights.values_mut() {
            rights.remove(&node);
        }
    }

    /// Who serves.
    #[must_use]
    pub fn holder(&self, now: Instant, group: GroupId) -> Option<NodeId> {
        self.rights.get(&group)?.iter().find(|(_, (end, _))| *end > now).map(|(node, _)| *node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_overlapping_rights_are_a_violation_and_two_in_a_row_are_not() {
        let (a, b) = (NodeId(1), NodeId(2));
        let mut serving = Serving::default();
        assert!(serving.right(Instant(10), GroupId(2), a, Term(1), Instant(20)).is_ok());
        assert!(serving.right(Instant(19), GroupId(2), b, Term(2), Instant(30)).is_err());
        assert!(serving.right(Instant(20), GroupId(2), b, Term(2), Instant(30)).is_ok());
        assert!(serving.right(Instant(31), GroupId(2), a, Term(1), Instant(40)).is_err(), "an old term came back");
    }
}
