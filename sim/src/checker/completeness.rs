//! Leader completeness: a leader's log holds every entry that was committed in an earlier term. (A candidate that slept may
//! win an old term late: what a newer one has committed since need not be there.)

use quorate_proto::ids::{GroupId, LogIndex, NodeId, Term};

use super::logs::Logs;
use super::offsets::Offsets;
use super::Violation;
use crate::time::Instant;

/// Name in violations.
pub const NAME: &str = "leader completeness";

/// `node` was elected in `term`. Entries that some replica has applied are committed; what the leader's log does not
/// reach back to is in its snapshot, which [`super::offsets`] looks at.
///
/// # Errors
/// A committed entry is missing.
pub fn elected(
    now: Instant,
    group: GroupId,
    node: NodeId,
    term: Term,
    offsets: &Offsets,
    logs: &Logs,
) -> Result<(), Violation> {
    let first = logs.first(node, group);
    let due = |(index, _, by): &(LogIndex, Term, Term)| first.is_some_and(|first| *index >= first) && *by < term;
    for (index, committed, _) in offsets.entries(group).filter(due) {
        let found = logs.term(node, group, index);
        if found != Some(committed) {
            let what = format!(
                "{node} leads {group} in {term}; its log has {found:?} at {index}, where {committed} was committed"
            );
            return Err(Violation::new(NAME, now, what));
        }
    }
    Ok(())
}
