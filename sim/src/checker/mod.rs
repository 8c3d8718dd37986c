//! Checkers: one file each, always on. A violation ends the run.

pub mod durable;
pub mod identity;
pub mod offsets;
pub mod serving;

use std::fmt;

use crate::time::Instant;

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which checker saw it.
    pub checker: &'static str,
    /// When.
    pub at: Instant,
    /// What.
    pub what: String,
}

impl Violation {
    /// A violation seen by `checker`.
    pub fn new(checker: &'static str, at: Instant, what: impl Into<String>) -> Self {
        Self { checker, at, what: what.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {} s: {}", self.checker, self.at, self.what)
    }
}
