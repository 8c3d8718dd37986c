//! Why an observer could not start or had to stop.

/// Exit status for a mistake in the configuration, a port or a data directory in use.
pub const EXIT_CONFIG: i32 = 78;

/// One line for the operator each.
#[derive(Debug, thiserror::Error)]
pub enum ObserverError {
    /// The configuration contradicts itself or misses something.
    #[error("configuration: {0}")]
    Config(String),
    /// The data directory is in use, foreign, or of a newer format.
    #[error("{0}")]
    DataDir(String),
    /// A listener could not be opened.
    #[error("{0}")]
    Listen(String),
    /// The write-ahead log could not be opened.
    #[error("{0}")]
    Wal(String),
    /// Log and snapshot do not fit, or hold what this software does not know.
    #[error("{0}; keep the directory for analysis, empty a copy of it and start again: the other observers fill it")]
    Directory(String),
    /// A snapshot or view file can't be read or written.
    #[error("{0}")]
    Files(String),
    /// Anything else of the operating system.
    #[error("{context}: {source}")]
    Io {
        /// What was tried.
        context: String,
        /// What the system said.
        source: std::io::Error,
    },
}

impl ObserverError {
    /// Wraps an error of the operating system.
    pub fn io(context: impl Into<String>, source: std::io::Error) -> Self {
        Self::Io { context: context.into(), source }
    }

    /// Exit status of the process.
    #[must_use]
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::Config(_) | Self::DataDir(_) | Self::Listen(_) => EXIT_CONFIG,
            Self::Wal(_) => quorate_host::wal::EXIT_DISK,
            Self::Directory(_) | Self::Files(_) | Self::Io { .. } => 1,
        }
    }
}
