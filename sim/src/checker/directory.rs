//! Observers that applied the same entry hold the same directory.

use std::collections::BTreeMap;

use quorate_consensus::directory::Directory;
use quorate_proto::ids::{LogIndex, NodeId};
use xxhash_rust::xxh3::xxh3_128;

use super::Violation;
use crate::time::Instant;

/// Name in violations.
pub const NAME: &str = "observers agree";

/// Hash of the directory by applied index.
#[derive(Debug, Default)]
pub struct Directories {
    seen: BTreeMap<LogIndex, (u128, NodeId)>,
}

impl Directories {
    /// An observer's directory after a turn.
    ///
    /// # Errors
    /// Another observer's differs at the same index.
    pub fn at(&mut self, now: Instant, observer: NodeId, directory: &Directory) -> Result<(), Violation> {
        let (index, hash) = (directory.applied().0, xxh3_128(&directory.encode()));
        let (first, by) = *self.seen.entry(index).or_insert((hash, observer));
        if first == hash {
            return Ok(());
        }
        Err(Violation::new(NAME, now, format!("{observer} and {by} differ at {index}")))
    }
}
