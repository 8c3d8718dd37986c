//! What can go wrong in the storage.

use std::path::{Path, PathBuf};

/// A failed operation of the storage.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The system refused: after a write, the disk cannot be trusted (B3).
    #[error("{what} {path}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Bytes on disk are not what was written. Never served (B6).
    #[error("{path} is damaged at byte {position}: {what}")]
    Corrupt {
        /// Which file.
        path: PathBuf,
        /// Where.
        position: u64,
        /// How it shows.
        what: String,
    },
    /// Written by a newer version. Not damage: the files stay as they are, and the node does not start (`3-architecture`,
    /// change).
    #[error("{path}: {what}")]
    Newer {
        /// Which file.
        path: PathBuf,
        /// What it has and what this software reads.
        what: String,
    },
    /// The offset lies below the first that is stored.
    #[error("offset {offset} is below the first stored offset {first}")]
    BelowFirst {
        /// Asked for.
        offset: u64,
        /// First stored.
        first: u64,
    },
    /// The group is not hosted here (any more).
    #[error("group {0} has no files here")]
    UnknownGroup(u64),
    /// The storage thread is gone.
    #[error("the storage has stopped")]
    Stopped,
}

impl StorageError {
    pub(super) fn io<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(std::io::Error) -> Self + 'a {
        move |source| Self::Io { what, path: path.to_owned(), source }
    }

    /// A flush that failed, whatever for: "no room" here is no reason to wait for room (B3, B5).
    pub(super) fn flush(path: &Path) -> impl FnOnce(std::io::Error) -> Self + '_ {
        move |source| {
            let source = match source.kind() {
                std::io::ErrorKind::StorageFull => std::io::Error::other(source),
                _ => source,
            };
            Self::io("cannot flush", path)(source)
        }
    }

    pub(super) fn corrupt(path: &Path, position: u64, what: impl Into<String>) -> Self {
        Self::Corrupt { path: path.to_owned(), position, what: what.into() }
    }
}
