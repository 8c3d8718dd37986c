//! What is acknowledged is on stable storage on a majority, in the term that it is acknowledged for (W1).
//!
//! Looked at on the disks themselves at the instant of the answer: what an append response claims does not count.

use quorate_proto::ids::{GroupId, LogIndex, NodeId, Offset, Term};

use super::Violation;
use crate::time::Instant;

/// Name in violations.
pub const NAME: &str = "acknowledged is on a majority";

/// An acknowledgement and what the disks hold.
#[derive(Clone, Copy, Debug)]
pub struct Acknowledged {
    /// The partition.
    pub group: GroupId,
    /// Who answers.
    pub node: NodeId,
    /// First offset acknowledged.
    pub offset: Offset,
    /// Leader epoch in the receipt.
    pub epoch: Term,
    /// The entry that holds the record, if it was applied anywhere.
    pub entry: Option<(LogIndex, Term)>,
    /// Disks that hold that entry.
    pub disks: usize,
    /// Disks of the partition.
    pub replicas: usize,
}

/// Judges one acknowledgement.
///
/// # Errors
/// Not applied, of another term, or not on a majority.
pub fn check(now: Instant, ack: &Acknowledged) -> Result<(), Violation> {
    let Acknowledged { group, node, offset, epoch, .. } = *ack;
    let Some((index, term)) = ack.entry else {
        let what = format!("{node} acknowledged {group} {offset}, which no replica has applied");
        return Err(Violation::new(NAME, now, what));
    };
    if term != epoch {
        let what = format!("{node} acknowledged {group} {offset} for {epoch}; it was committed in {term}");
        return Err(Violation::new(NAME, now, what));
    }
    if ack.disks * 2 <= ack.replicas {
        let what = format!("{node} acknowledged {group} {offset} ({index}), which {} disks hold", ack.disks);
        return Err(Violation::new(NAME, now, what));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_disk_of_three_or_another_term_is_a_violation() {
        let good = Acknowledged {
            group: GroupId(2),
            node: NodeId(1),
            offset: Offset(4),
            epoch: Term(3),
            entry: Some((LogIndex(9), Term(3))),
            disks: 2,
            replicas: 3,
        };
        assert!(check(Instant(1), &good).is_ok());
        assert!(check(Instant(1), &Acknowledged { disks: 1, ..good }).is_err());
        assert!(check(Instant(1), &Acknowledged { epoch: Term(4), ..good }).is_err());
        assert!(check(Instant(1), &Acknowledged { entry: None, ..good }).is_err());
    }
}
