//! Every replica's log as its core wrote it, flushed or not: what [`super::log_matching`] and [`super::completeness`]
//! look at.

use std::collections::BTreeMap;

use quorate_consensus::effect::PersistWrite;
use quorate_proto::ids::{GroupId, LogIndex, NodeId, Term};

/// Terms by index, per replica.
#[derive(Debug, Default)]
pub struct Logs {
    terms: BTreeMap<(NodeId, GroupId), BTreeMap<LogIndex, Term>>,
}

impl Logs {
    /// The core wrote.
    pub fn wrote(&mut self, node: NodeId, write: &PersistWrite) {
        let log = self.terms.entry((node, write.group)).or_default();
        if write.clear {
            log.clear();
        }
        if let Some(first) = write.entries.first() {
            log.split_off(&LogIndex(first.index));
            log.extend(write.entries.iter().map(|entry| (LogIndex(entry.index), Term(entry.term))));
        }
        if let Some(through) = write.compact_through {
            *log = log.split_off(&through.next());
        }
    }

    /// The process starts with what its disk holds.
    pub fn restarted(&mut self, node: NodeId, group: GroupId, entries: impl Iterator<Item = (LogIndex, Term)>) {
        self.terms.insert((node, group), entries.collect());
    }

    /// Term of an index; `None` where the log does not reach or does not reach back.
    #[must_use]
    pub fn term(&self, node: NodeId, group: GroupId, index: LogIndex) -> Option<Term> {
        self.terms.get(&(node, group))?.get(&index).copied()
    }

    /// First index that the log still has.
    #[must_use]
    pub fn first(&self, node: NodeId, group: GroupId) -> Option<LogIndex> {
        self.terms.get(&(node, group))?.first_key_value().map(|(index, _)| *index)
    }
}
