//! Linearizability of publish and read per partition.
//!
//! The object is an append-only log: `append` puts one record at the end and returns its offset, `latest` returns the
//! number of records. The check is exact and needs no search, because the results determine the order of all
//! operations: appends are ordered by offset, and a read that returned `e` stands after the append at `e − 1` and before
//! the one at `e`. Reads that returned the same number commute, so they may be ordered by their beginning. One order is
//! left, and the history is linearizable if and only if that order respects real time: no operation may have ended
//! before one that stands earlier in the order began. Scanning in order with the latest beginning so far decides it.
//!
//! An append that was never acknowledged has no end if its record is in the log; if it is not, it never took effect and
//! is left out. An append counts from the first time that the application handed the record over.

use std::collections::BTreeMap;

use bytes::Bytes;
use quorate_proto::ids::{GroupId, NodeId, Offset};

use super::Violation;
use crate::time::Instant;

/// Name in violations.
pub const NAME: &str = "publish and read are linearizable";

/// One answered read.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// Asked.
    pub began: Instant,
    /// Answered.
    pub ended: Instant,
    /// End offset that it was told.
    pub end: Offset,
    /// By whom.
    pub by: NodeId,
}

/// One record of the log.
#[derive(Clone, Copy, Debug)]
pub struct Append {
    /// Handed to the SDK.
    pub began: Instant,
    /// Acknowledged, if it was.
    pub ended: Option<Instant>,
}

/// Answered reads of a run.
#[derive(Debug, Default)]
pub struct History {
    reads: BTreeMap<GroupId, Vec<Read>>,
}

impl History {
    /// A read was answered.
    pub fn read(&mut self, group: GroupId, read: Read) {
        self.reads.entry(group).or_default().push(read);
    }

    /// Checks one partition. `log`: every record ever applied; `append`: when its operation began and ended.
    ///
    /// # Errors
    /// No order explains what was answered.
    pub fn check(
        &self,
        now: Instant,
        group: GroupId,
        log: &BTreeMap<Offset, Bytes>,
        append: impl Fn(Offset, &Bytes) -> Append,
    ) -> Result<(), Violation> {
        let wrong = |what: String| Err(Violation::new(NAME, now, format!("{group}: {what}")));
        let mut reads: Vec<Read> = self.reads.get(&group).cloned().unwrap_or_default();
        reads.sort_by_key(|read| (read.end, read.began));
        let mut reads = reads.into_iter().peekable();
        let mut latest = (Instant::default(), String::new());
        let mut next = Offset::ZERO;
        loop {
            while let Some(read) = reads.next_if(|read| read.end == next) {
                if read.ended < latest.0 {
                    return wrong(format!("{read:?} saw {} too early", latest.1));
                }
                if read.began > latest.0 {
                    latest = (read.began, format!("{read:?}"));
                }
            }
            let Some(value) = log.get(&next) else { break };
            let Append { began, ended } = append(next, value);
            if ended.is_some_and(|ended| ended < latest.0) {
                return wrong(format!("{next} was acknowledged before {} began, which did not see it", latest.1));
            }
            if began > latest.0 {
                latest = (began, format!("the append at {next}"));
            }
            next = next.next();
        }
        if let Some(read) = reads.next() {
            return wrong(format!("{read:?}, but the log ends at {next}"));
        }
        if let Some((offset, _)) = log.range(next..).next() {
            return wrong(format!("nothing stands at {next}, but something at {offset}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const G: GroupId = GroupId(2);

    fn check(reads: &[(u64, u64, u64)], appends: &[(u64, Option<u64>)]) -> bool {
        let mut history = History::default();
        for (began, ended, end) in reads {
            let (began, ended) = (Instant(*began), Instant(*ended));
            history.read(G, Read { began, ended, end: Offset(*end), by: NodeId(1) });
        }
        let log: BTreeMap<Offset, Bytes> = (0..appends.len() as u64).map(|o| (Offset(o), Bytes::new())).collect();
        let at = |offset: Offset, _: &Bytes| {
            let (began, ended) = appends[usize::try_from(offset.0).expect("small")];
            Append { began: Instant(began), ended: ended.map(Instant) }
        };
        history.check(Instant(99), G, &log, at).is_ok()
    }

    #[test]
    fn a_read_lies_between_what_was_acknowledged_before_it_and_what_was_started_before_its_end() {
        let appends = [(10, Some(20)), (30, Some(40)), (50, None)];
        assert!(check(&[(41, 45, 2)], &appends));
        assert!(!check(&[(41, 45, 1)], &appends), "stale: the second was acknowledged before it began");
        assert!(check(&[(39, 45, 1)], &appends), "it overlaps the second append");
        assert!(check(&[(51, 55, 3), (51, 60, 2)], &appends), "the third is open");
        assert!(!check(&[(45, 49, 3)], &appends), "the third had not begun when it ended");
        assert!(!check(&[(60, 70, 4)], &appends), "beyond the log");
    }

    #[test]
    fn two_reads_in_a_row_do_not_go_back() {
        let appends = [(10, Some(20)), (30, None)];
        assert!(check(&[(35, 40, 2), (41, 45, 2)], &appends));
        assert!(!check(&[(35, 40, 2), (41, 45, 1)], &appends), "the first had seen the open append");
    }

    #[test]
    fn appends_that_follow_each_other_in_time_stand_in_that_order() {
        assert!(check(&[], &[(10, Some(20)), (15, Some(18))]));
        assert!(!check(&[], &[(30, Some(40)), (10, Some(20))]));
    }
}
