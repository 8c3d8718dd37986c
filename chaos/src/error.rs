//! What can go wrong in a drill or benchmark.

/// A readable failure of the tool itself (not of the cluster's promises: those are verdicts).
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Error(String);

impl Error {
    /// From one sentence.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}
