//! The directory as sled records, for tools that look at a stopped observer. A view, never the truth: that is the log
//! and the snapshot file. It carries the log index that it reflects, and is rebuilt on any doubt.
//!
//! ```text
//! "applied" → index u64 BE · "n/"node → NodeRecord · "t/"name → TopicRecord · "p/"group → PartitionRecord
//! ```

use std::collections::BTreeMap;
use std::path::Path;

use prost::Message as _;
use quorate_consensus::directory::Directory;
use quorate_proto::ids::LogIndex;
use quorate_proto::internal::DirectoryState;

const APPLIED: &[u8] = b"applied";
/// sled's default of 1 GiB is for a database; this is a few megabytes.
const CACHE_BYTES: u64 = 8 << 20;

/// Why the view can't be used. It is never a reason to stop.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// sled refused.
    #[error("view: {0}")]
    Sled(#[from] sled::Error),
    /// The directory's own encoding was not understood.
    #[error("view: {0}")]
    Encoding(#[from] prost::DecodeError),
}

/// The view.
#[derive(Debug)]
pub struct View {
    db: sled::Db,
}

impl View {
    /// Opens it; a damaged one is emptied.
    ///
    /// # Errors
    /// If a new one can't be made either.
    pub fn open(dir: &Path) -> Result<Self, ViewError> {
        let open = || sled::Config::new().path(dir).cache_capacity(CACHE_BYTES).flush_every_ms(None).open();
        let db = match open() {
            Ok(db) => db,
            Err(error) => {
                tracing::warn!(%error, "the view is damaged: rebuilding it");
                let _ = std::fs::remove_dir_all(dir);
                open()?
            }
        };
        Ok(Self { db })
    }

    /// Log index that the view reflects; `None` = nothing certain.
    #[must_use]
    pub fn applied(&self) -> Option<LogIndex> {
        let value = self.db.get(APPLIED).ok()??;
        Some(LogIndex(u64::from_be_bytes(value.as_ref().try_into().ok()?)))
    }

    /// Makes the view equal to `directory`. Doubtful while it is done: the index is taken off first.
    ///
    /// # Errors
    /// The view stays without an index, so the next refresh does everything again.
    pub fn refresh(&self, directory: &Directory) -> Result<(), ViewError> {
        let state = DirectoryState::decode(directory.encode())?;
        let mut wanted: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        for node in &state.nodes {
            let id = node.registered.as_ref().map_or(0, |r| r.node);
            wanted.insert([b"n/".as_slice(), &id.to_be_bytes()].concat(), node.encode_to_vec());
        }
        for topic in &state.topics {
            wanted.insert([b"t/", topic.name.as_bytes()].concat(), topic.encode_to_vec());
        }
        for partition in &state.partitions {
            wanted.insert([b"p/".as_slice(), &partition.group_id.to_be_bytes()].concat(), partition.encode_to_vec());
        }
        self.db.remove(APPLIED)?;
        for entry in self.db.iter() {
            let (key, value) = entry?;
            match wanted.get(key.as_ref()) {
                Some(new) if new.as_slice() == value.as_ref() => drop(wanted.remove(key.as_ref())),
                Some(_) => {}
                None => drop(self.db.remove(key)?),
            }
        }
        for (key, value) in wanted {
            self.db.insert(key, value)?;
        }
        self.db.insert(APPLIED, &state.applied_index.to_be_bytes())?;
        self.db.flush()?;
        Ok(())
    }

    /// Records of one kind ("n/", "t/", "p/"), encoded.
    ///
    /// # Errors
    /// If sled fails.
    pub fn records(&self, prefix: &str) -> Result<Vec<Vec<u8>>, ViewError> {
        self.db.scan_prefix(prefix).values().map(|v| Ok(v?.to_vec())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_consensus::directory::{CommandKind, DirectoryCommand};
    use quorate_proto::ids::{ClusterId, OperationId, Term};
    use quorate_proto::time::LogTime;

    fn directory(index: u64) -> Directory {
        let mut directory = Directory::default();
        let kind = CommandKind::Bootstrap(ClusterId(5));
        let command = DirectoryCommand { at: LogTime(1), operation: OperationId::NONE, kind };
        directory.apply(LogIndex(index), Term(1), command).result.expect("applies");
        directory
    }

    #[test]
    fn the_view_carries_its_index_and_forgets_what_is_gone() {
        let dir = tempfile::tempdir().expect("a directory");
        let view = View::open(dir.path()).expect("opens");
        assert_eq!(view.applied(), None);
        view.db.insert(b"t/stale", b"x").expect("inserts");
        view.refresh(&directory(7)).expect("refreshes");
        assert_eq!(view.applied(), Some(LogIndex(7)));
        assert!(view.records("t/").expect("readable").is_empty());
        drop(view);
        let again = View::open(dir.path()).expect("opens again");
        assert_eq!(again.applied(), Some(LogIndex(7)));
    }
}
