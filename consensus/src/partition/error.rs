//! What stops a replica: it cannot apply an entry, or not restore a state.

use quorate_proto::batch::BadBatch;
use quorate_proto::entry::EntryKind;
use quorate_proto::ids::{LogIndex, Offset};
use quorate_proto::key_run::BadKeyRun;

/// An entry cannot be applied here. The replica stops: skipping it would diverge from the others.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// Entries must come in order without gaps.
    #[error("{found} came where {expected} was due")]
    Gap {
        /// Index due.
        expected: LogIndex,
        /// Index that came.
        found: LogIndex,
    },
    /// A kind that the format knows and this version does not do.
    #[error("{index}: entries of kind `{kind}` are not supported by this version: use a newer version")]
    Unsupported {
        /// Where.
        index: LogIndex,
        /// What.
        kind: EntryKind,
    },
    /// A batch was checked before it was proposed: here its bytes are not what they were.
    #[error("{index}, batch {batch}: this replica's copy is damaged: {error}")]
    Damaged {
        /// Where.
        index: LogIndex,
        /// Which batch of the entry, from 0.
        batch: usize,
        /// What is wrong.
        error: BadBatch,
    },
    /// Offsets would overflow.
    #[error("{index}: no offsets left after {next}")]
    OffsetsExhausted {
        /// Where.
        index: LogIndex,
        /// Next offset.
        next: Offset,
    },
}

/// A state and its key runs cannot be restored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// Written by a newer version.
    #[error("partition state has schema {0}; this software reads up to {supported}: use a newer version",
        supported = super::state::SCHEMA)]
    Newer(u32),
    /// Not a state.
    #[error("partition state damaged: {0}")]
    Damaged(String),
    /// A key run is damaged.
    #[error(transparent)]
    Run(#[from] BadKeyRun),
    /// The runs are out of order.
    #[error("key run of {found} stands after that of {previous}")]
    RunOrder {
        /// Index of the run before.
        previous: LogIndex,
        /// Index that followed.
        found: LogIndex,
    },
    /// Fewer keys in the runs than the window had.
    #[error("the key runs hold {found} keys up to {applied}; the window had {expected}")]
    KeysMissing {
        /// Keys that the state announces.
        expected: u64,
        /// Keys found.
        found: u64,
        /// Applied index of the state.
        applied: LogIndex,
    },
}
