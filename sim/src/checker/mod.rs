//! Checkers: one file each, always on. The first violation ends the run.

pub mod answers;
pub mod calm;
pub mod completeness;
pub mod copies;
pub mod digests;
pub mod directory;
pub mod durable;
pub mod election;
pub mod fenced;
pub mod floor;
pub mod leases;
pub mod linear;
pub mod liveness;
pub mod log_matching;
pub mod log_time;
pub mod logs;
pub mod majority;
pub mod offsets;
pub mod order;
pub mod permits;
pub mod rights;
pub mod serving;
pub mod whole;

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
        write!(f, "`{}` at {} s: {}", self.checker, self.at, self.what)
    }
}

/// What rests on clocks that keep their bound. Everything else must hold under any clock (W1: no clock takes part).
pub const NEEDS_BOUNDED_CLOCKS: &[&str] = &[serving::NAME, fenced::NAME, answers::NAME, linear::NAME];

/// All checkers of a run that keep something.
#[derive(Debug, Default)]
pub struct Checkers {
    /// Leases included.
    pub serving: serving::Serving,
    /// Leases ignored.
    pub fenced: fenced::Fenced,
    /// Offsets and entries.
    pub offsets: offsets::Offsets,
    /// Acknowledgements.
    pub durable: durable::Durable,
    /// Every replica's log as its core knows it.
    pub logs: logs::Logs,
    /// Same index and term, same log.
    pub log_matching: log_matching::LogMatching,
    /// Winners of terms.
    pub election: election::Election,
    /// Winners of permits.
    pub permits: permits::Permits,
    /// Holders of leases.
    pub leases: leases::Leases,
    /// Contact as it really was.
    pub answers: answers::Answers,
    /// Digests of partitions.
    pub digests: digests::Digests,
    /// Digests of observers.
    pub directory: directory::Directories,
    /// Log time.
    pub log_time: log_time::LogTimes,
    /// Reads of end offsets.
    pub linear: linear::History,
}
