//! Log matching: two logs that agree on the term of an index agree on everything up to it.
//!
//! By induction over single entries: (index, term) names one content and one term of the entry before, everywhere.

use std::collections::BTreeMap;

use quorate_consensus::effect::PersistWrite;
use quorate_proto::ids::{GroupId, LogIndex, NodeId, Term};
use xxhash_rust::xxh3::xxh3_64;

use super::logs::Logs;
use super::Violation;
use crate::time::Instant;

/// Name in violations.
pub const NAME: &str = "log matching";

/// Entries ever written anywhere: content, and term of the one before where it was known.
#[derive(Debug, Default)]
pub struct LogMatching {
    seen: BTreeMap<(GroupId, LogIndex, Term), (u64, Option<Term>)>,
}

impl LogMatching {
    /// `node` writes; `logs` has this write already.
    ///
    /// # Errors
    /// The same place holds something else elsewhere.
    pub fn wrote(&mut self, now: Instant, node: NodeId, write: &PersistWrite, logs: &Logs) -> Result<(), Violation> {
        let group = write.group;
        for entry in &write.entries {
            let (index, term) = (LogIndex(entry.index), Term(entry.term));
            let before = logs.term(node, group, LogIndex(entry.index - 1));
            let now_seen = (xxh3_64(&entry.data), before);
            let (first, first_before) = *self.seen.entry((group, index, term)).or_insert(now_seen);
            let other_before = matches!((first_before, before), (Some(a), Some(b)) if a != b);
            if first != now_seen.0 || other_before {
                let what = format!("{node} has another entry at {group} {index} {term}, or another one before it");
                return Err(Violation::new(NAME, now, what));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use raft::eraftpb::Entry;

    fn write(index: u64, term: u64, data: &'static [u8]) -> PersistWrite {
        let entry = Entry { index, term, data: bytes::Bytes::from_static(data), ..Entry::default() };
        PersistWrite { group: GroupId(2), entries: vec![entry], ..PersistWrite::default() }
    }

    #[test]
    fn one_place_and_term_holds_one_entry_after_one_term() {
        let (mut logs, mut matching) = (Logs::default(), LogMatching::default());
        let mut step = |node: u64, w: PersistWrite| {
            logs.wrote(NodeId(node), &w);
            matching.wrote(Instant(1), NodeId(node), &w, &logs)
        };
        assert!(step(1, write(6, 1, b"a")).is_ok());
        assert!(step(1, write(7, 2, b"b")).is_ok());
        assert!(step(2, write(6, 1, b"a")).is_ok());
        assert!(step(2, write(7, 2, b"c")).is_err(), "another content");
        assert!(step(3, write(6, 9, b"x")).is_ok());
        assert!(step(3, write(7, 2, b"b")).is_err(), "another entry before it");
    }
}
