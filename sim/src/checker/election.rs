//! At most one leader per term.

use std::collections::BTreeMap;

use quorate_proto::ids::{GroupId, NodeId, Term};

use super::Violation;
use crate::time::Instant;

/// Name in violations.
pub const NAME: &str = "one leader per term";

/// Leaders by term.
#[derive(Debug, Default)]
pub struct Election {
    leaders: BTreeMap<(GroupId, Term), NodeId>,
}

impl Election {
    /// `node` was elected.
    ///
    /// # Errors
    /// So was another one.
    pub fn elected(&mut self, now: Instant, group: GroupId, node: NodeId, term: Term) -> Result<(), Violation> {
        let first = *self.leaders.entry((group, term)).or_insert(node);
        if first == node {
            return Ok(());
        }
        Err(Violation::new(NAME, now, format!("{first} and {node} were elected in {group} {term}")))
    }

    /// Elections seen.
    #[must_use]
    pub fn count(&self) -> usize {
        self.leaders.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_leaders_of_one_term_are_a_violation() {
        let mut election = Election::default();
        assert!(election.elected(Instant(1), GroupId(2), NodeId(1), Term(4)).is_ok());
        assert!(election.elected(Instant(2), GroupId(2), NodeId(1), Term(4)).is_ok());
        assert!(election.elected(Instant(3), GroupId(2), NodeId(2), Term(4)).is_err());
    }
}
