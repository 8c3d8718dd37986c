//! Vacuity floors: a run in which no fault bit or nothing was published proves nothing, nor does a batch of runs of a
//! mode that never exercised what the mode is for.

use super::Violation;
use crate::coverage::Coverage;
use crate::plan::Mode;
use crate::time::Instant;

/// Name in violations.
pub const NAME: &str = "vacuity floor";

/// Runs of a mode from which on its batch floor counts.
pub const BATCH: u64 = 60;

/// Floor of one run.
///
/// # Errors
/// Below it.
pub fn check(now: Instant, coverage: &Coverage, partitions: u32) -> Result<(), Violation> {
    let floor =
        [("faults that bit", 1), ("acknowledged", 100), ("reads answered", 20), ("elections", u64::from(partitions))];
    for (what, least) in floor {
        if coverage.get(what) < least {
            let text = format!("{what}: {} of at least {least}", coverage.get(what));
            return Err(Violation::new(NAME, now, text));
        }
    }
    Ok(())
}

/// What a batch of `runs` of `mode` ought to have exercised and did not.
#[must_use]
pub fn missing(mode: Mode, runs: u64, coverage: &Coverage) -> Vec<&'static str> {
    if runs < BATCH {
        return Vec::new();
    }
    mode.exercises().iter().copied().filter(|what| coverage.get(what) == 0).collect()
}
