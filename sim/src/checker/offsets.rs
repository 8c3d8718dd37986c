//! Offset → record is a function on every replica for ever; an applied entry is the same everywhere (W3).

use std::collections::BTreeMap;

use bytes::Bytes;
use quorate_consensus::node::effect::AppliedEntry;
use quorate_proto::ids::{GroupId, LogIndex, NodeId, Offset, Term};
use xxhash_rust::xxh3::Xxh3Default;

use super::Violation;
use crate::time::Instant;

/// Name in violations.
pub const NAME: &str = "offset is a function";

/// One entry, as the first replica applied it.
#[derive(Clone, Copy, Debug)]
struct Entry {
    term: Term,
    hash: u128,
    /// That replica's term then: it was committed in this one or earlier.
    committed_by: Term,
}

/// Everything ever applied anywhere.
#[derive(Debug, Default)]
pub struct Offsets {
    entries: BTreeMap<(GroupId, LogIndex), Entry>,
    records: BTreeMap<(GroupId, Offset), (Bytes, LogIndex)>,
}

impl Offsets {
    /// `node` applied `entry` while in term `own`, or got it in a snapshot.
    ///
    /// # Errors
    /// Another replica applied something else there.
    pub fn applied(
        &mut self,
        now: Instant,
        group: GroupId,
        (node, own): (NodeId, Term),
        entry: &AppliedEntry,
    ) -> Result<(), Violation> {
        let mut hasher = Xxh3Default::new();
        hasher.update(&entry.log_time.0.to_le_bytes());
        hasher.update(&entry.keys);
        for batch in &entry.batches {
            hasher.update(&batch.prefix);
            hasher.update(&batch.body);
        }
        let (term, hash) = (entry.term, hasher.digest128());
        if let Some(first) = self.entries.get(&(group, entry.index)) {
            if (first.term, first.hash) == (term, hash) {
                return Ok(());
            }
            let what =
                format!("{node} applied something else at {group} {} ({term} after {})", entry.index, first.term);
            return Err(Violation::new(NAME, now, what));
        }
        self.entries.insert((group, entry.index), Entry { term, hash, committed_by: own });
        for (offset, value) in entry.batches.iter().flat_map(crate::storage::read) {
            let (known, _) = self.records.entry((group, offset)).or_insert_with(|| (value.clone(), entry.index));
            if *known != value {
                let what = format!("{group} {offset} held {known:?} and now {value:?} on {node}");
                return Err(Violation::new(NAME, now, what));
            }
        }
        Ok(())
    }

    /// Entries applied anywhere: index, term, and the term by which they were committed.
    pub fn entries(&self, group: GroupId) -> impl Iterator<Item = (LogIndex, Term, Term)> + '_ {
        let range = (group, LogIndex::ZERO)..=(group, LogIndex(u64::MAX));
        self.entries.range(range).map(|((_, index), entry)| (*index, entry.term, entry.committed_by))
    }

    /// Entry that holds a record.
    #[must_use]
    pub fn entry_of(&self, group: GroupId, offset: Offset) -> Option<(LogIndex, Term)> {
        let (_, index) = self.records.get(&(group, offset))?;
        self.entries.get(&(group, *index)).map(|entry| (*index, entry.term))
    }

    /// Every record ever applied anywhere.
    #[must_use]
    pub fn log(&self, group: GroupId) -> BTreeMap<Offset, Bytes> {
        let range = (group, Offset::ZERO)..=(group, Offset(u64::MAX));
        self.records.range(range).map(|((_, offset), (value, _))| (*offset, value.clone())).collect()
    }
}
