//! Why a data node or its supervisor could not start or had to stop.

use std::path::PathBuf;

use crate::storage::StorageError;

/// Exit status after a flush or append error: the disk cannot be trusted, the supervisor does not restart (B3).
pub const EXIT_DISK: i32 = 74;
/// Exit status after a flush that hung for 30 s: the supervisor starts the node again (B4).
pub const EXIT_HUNG: i32 = 75;
/// Exit status after the observers refused this identity for good: the supervisor does not restart (S2).
pub const EXIT_REFUSED: i32 = 77;
/// Exit status for a mistake in the configuration or a data directory in use: the supervisor does not restart.
pub const EXIT_CONFIG: i32 = 78;

/// A start that failed, or a stop that was not asked for. Each text is one line for the operator.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The configuration contradicts itself or misses something.
    #[error("configuration: {0}")]
    Config(String),
    /// The data directory is in use, foreign, or of a newer format.
    #[error("data directory {path}: {what}")]
    DataDir {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A listener could not be opened.
    #[error("{0}")]
    Listen(String),
    /// The write-ahead log could not be opened.
    #[error("write-ahead log: {0}")]
    Wal(String),
    /// Reading or writing files of the storage failed.
    #[error("storage: {0}")]
    Storage(String),
    /// The observers refuse this identity.
    #[error("refused by the observers: {0}")]
    Refused(String),
    /// The node's disk is a new one, and its incarnation was raised above those of the old one: start again.
    #[error("this node's disk is a new one: starting again with a greater incarnation")]
    NewDisk,
    /// The child process could not be started or watched.
    #[error("supervisor: {0}")]
    Supervisor(String),
    /// Anything else of the operating system.
    #[error("{context}: {source}")]
    Io {
        /// What was tried.
        context: String,
        /// What the system said.
        source: std::io::Error,
    },
}

impl From<StorageError> for ServerError {
    fn from(error: StorageError) -> Self {
        match error {
            StorageError::Newer { path, what } => Self::DataDir { path, what },
            error => Self::Storage(error.to_string()),
        }
    }
}

impl ServerError {
    /// Wraps an error of the operating system.
    pub fn io(context: impl Into<String>, source: std::io::Error) -> Self {
        Self::Io { context: context.into(), source }
    }

    /// The exit status that tells the supervisor whether a restart can help.
    #[must_use]
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::Config(_) | Self::DataDir { .. } | Self::Listen(_) => EXIT_CONFIG,
            Self::Wal(_) => EXIT_DISK,
            Self::Refused(_) => EXIT_REFUSED,
            Self::Storage(_) | Self::NewDisk | Self::Supervisor(_) | Self::Io { .. } => 1,
        }
    }
}
