//! No read and no duplicate answer from a fenced leader (F1, F2, R2), by contact as it really was.
//!
//! The checker does not ask the core for its contact: it notes which process handled which stamp of which leader. A
//! leader may answer at clock reading t only if a majority of the replicas, itself included, handled a stamp of its
//! term that is less than F old.

use std::collections::BTreeMap;
use std::time::Duration;

use quorate_proto::ids::{GroupId, NodeId, Term};
use quorate_proto::time::BootTime;

use super::Violation;
use crate::time::Instant;

/// Name in violations.
pub const NAME: &str = "no answer from a fenced leader";

/// Newest stamp of each leader that each replica handled.
#[derive(Debug, Default)]
pub struct Answers {
    handled: BTreeMap<(GroupId, NodeId, Term), BTreeMap<NodeId, BootTime>>,
}

impl Answers {
    /// `by` handled a message of `leader` in `term` that was stamped by the leader's clock.
    pub fn handled(&mut self, group: GroupId, leader: NodeId, term: Term, by: NodeId, stamp: BootTime) {
        let known = self.handled.entry((group, leader, term)).or_default().entry(by).or_default();
        *known = stamp.max(*known);
    }

    /// `node` answers a read or a duplicate as leader of `term` at its clock reading `at`.
    ///
    /// # Errors
    /// It had no contact with a majority within `fence`.
    pub fn answered(
        &self,
        now: Instant,
        group: GroupId,
        (node, term): (NodeId, Option<Term>),
        at: BootTime,
        fence: Duration,
        replicas: usize,
    ) -> Result<(), Violation> {
        let Some(term) = term else {
            return Err(Violation::new(NAME, now, format!("{node} answered for {group} and does not lead")));
        };
        let none = BTreeMap::new();
        let stamps = self.handled.get(&(group, node, term)).unwrap_or(&none);
        let fresh = stamps.values().filter(|stamp| at.since(**stamp) < fence).count();
        if (fresh + 1) * 2 > replicas {
            return Ok(());
        }
        let newest = stamps.values().max().map(|stamp| at.since(*stamp));
        let what = format!("{node} answered for {group} in {term}; the newest stamp handled is {newest:?} old");
        Err(Violation::new(NAME, now, what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_stamps_handled_within_the_fence_allow_an_answer() {
        let mut answers = Answers::default();
        let (group, leader, fence) = (GroupId(2), NodeId(1), Duration::from_millis(1_200));
        let at = |ms: u64| BootTime(ms * 1_000_000);
        let ask = |answers: &Answers, ms| {
            answers.answered(Instant(1), group, (leader, Some(Term(3))), at(ms), fence, 3).is_ok()
        };
        assert!(!ask(&answers, 1_000));
        answers.handled(group, leader, Term(3), NodeId(2), at(1_000));
        assert!(ask(&answers, 2_199));
        assert!(!ask(&answers, 2_200));
        answers.handled(group, leader, Term(2), NodeId(3), at(2_200));
        assert!(!ask(&answers, 2_200), "of another term");
    }
}
