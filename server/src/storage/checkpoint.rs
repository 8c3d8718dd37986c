//! A partition's checkpoint: what of its files is flushed, and the machine's state that goes with it.
//!
//! It is a key–value of the group in the write-ahead log, in the same write as the compaction that it allows
//! (`3-architecture`, storage): atomic, without a flush of its own.

use std::path::Path;

use bytes::Bytes;
use prost::Message;
use quorate_proto::ids::{LogIndex, Offset, Term};

use super::error::StorageError;

/// Under this key the checkpoint stands in the write-ahead log.
pub const CHECKPOINT_KEY: &str = "checkpoint";

const SCHEMA: u32 = 1;

/// Name (number) and flushed length of a file.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct FileLength {
    /// Base offset of a segment, or number of a key run.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Bytes, file header included.
    #[prost(uint64, tag = "2")]
    pub length: u64,
}

/// One checkpoint, as stored.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Checkpoint {
    /// Version of this message.
    #[prost(uint32, tag = "1")]
    pub schema: u32,
    /// Applied index.
    #[prost(uint64, tag = "2")]
    pub index: u64,
    /// Its term.
    #[prost(uint64, tag = "3")]
    pub term: u64,
    /// Which generation of files: an installed snapshot begins a new one beside the old.
    #[prost(uint64, tag = "4")]
    pub generation: u64,
    /// Offset after the last record stored.
    #[prost(uint64, tag = "5")]
    pub next_offset: u64,
    /// Segments in order.
    #[prost(message, repeated, tag = "6")]
    pub segments: Vec<FileLength>,
    /// Key runs in order.
    #[prost(message, repeated, tag = "7")]
    pub runs: Vec<FileLength>,
    /// The machine (`PartitionState` without keys).
    #[prost(bytes = "bytes", tag = "8")]
    pub state: Bytes,
}

impl Checkpoint {
    /// A checkpoint of this schema.
    #[must_use]
    pub fn at(index: LogIndex, term: Term, state: Bytes) -> Self {
        Self { schema: SCHEMA, index: index.get(), term: term.get(), state, ..Self::default() }
    }

    /// As stored.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        self.encode_to_vec().into()
    }

    /// From what was stored; `place` is for the texts of errors.
    ///
    /// # Errors
    /// `Newer`, naming the schema, or `Corrupt`.
    pub fn from_bytes(bytes: Bytes, place: &Path) -> Result<Self, StorageError> {
        let checkpoint = Self::decode(bytes)
            .map_err(|error| StorageError::corrupt(place, 0, format!("a checkpoint is unreadable: {error}")))?;
        match checkpoint.schema {
            SCHEMA => Ok(checkpoint),
            newer if newer > SCHEMA => {
                let what =
                    format!("a checkpoint has schema {newer}; this software reads up to {SCHEMA}: use a newer version");
                Err(StorageError::Newer { path: place.to_owned(), what })
            }
            other => Err(StorageError::corrupt(place, 0, format!("a checkpoint has schema {other}"))),
        }
    }

    /// Applied index.
    #[must_use]
    pub fn log_index(&self) -> LogIndex {
        LogIndex(self.index)
    }

    /// Offset after the last record stored.
    #[must_use]
    pub fn next(&self) -> Offset {
        Offset(self.next_offset)
    }
}
