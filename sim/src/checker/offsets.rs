//! Offset → record is a function on every replica for ever; applied entries and digests are the same everywhere.

use std::collections::BTreeMap;

use bytes::Bytes;
use quorate_consensus::node::effect::AppliedEntry;
use quorate_proto::ids::{GroupId, LogIndex, NodeId, Offset, Term};

use super::Violation;
use crate::time::Instant;

/// Name in violations.
pub const NAME: &str = "offset is a function";

/// Everything ever applied anywhere.
#[derive(Debug, Default)]
pub struct Offsets {
    entries: BTreeMap<(GroupId, LogIndex), (Term, blake3::Hash)>,
    records: BTreeMap<(GroupId, Offset), Bytes>,
}

impl Offsets {
    /// `node` applied `entry`.
    ///
    /// # Errors
    /// Another replica applied something else there.
    pub fn applied(
        &mut self,
        now: Instant,
        group: GroupId,
        node: NodeId,
        entry: &AppliedEntry,
    ) -> Result<(), Violation> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&entry.log_time.0.to_le_bytes());
        hasher.update(&entry.keys);
        for batch in &entry.batches {
            hasher.update(&batch.prefix);
            hasher.update(&batch.body);
        }
        let seen = (entry.term, hasher.finalize());
        let first = *self.entries.entry((group, entry.index)).or_insert(seen);
        if first != seen {
            let what =
                format!("{node} applied something else at {group} {} ({} after {})", entry.index, entry.term, first.0);
            return Err(Violation::new(NAME, now, what));
        }
        for (offset, value) in entry.batches.iter().flat_map(crate::storage::read) {
            let known = self.records.entry((group, offset)).or_insert_with(|| value.clone());
            if *known != value {
                let what = format!("{group} {offset} held {known:?} and now {value:?} on {node}");
                return Err(Violation::new(NAME, now, what));
            }
        }
        Ok(())
    }
}
