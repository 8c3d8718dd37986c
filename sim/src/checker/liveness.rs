//! Service returns: within a bound after a fault that stays (deaf), or after everything healed (S3, case 23).

use quorate_proto::ids::PartitionNo;

use super::Violation;
use crate::time::Instant;

/// Name in violations.
pub const NAME: &str = "serves again";

/// The newest acknowledged record of a partition was sent at `served`; one sent at `due` or later was due.
///
/// # Errors
/// There is none.
pub fn check(now: Instant, partition: PartitionNo, served: Instant, due: Instant) -> Result<(), Violation> {
    if served >= due {
        return Ok(());
    }
    let what = format!("partition {partition}: the newest acknowledged record was sent at {served}, {due} was due");
    Err(Violation::new(NAME, now, what))
}

/// After healing every record has an outcome.
///
/// # Errors
/// `waiting` have none; `which` names them.
pub fn settled(now: Instant, waiting: u32, which: impl FnOnce() -> String) -> Result<(), Violation> {
    if waiting == 0 {
        return Ok(());
    }
    Err(Violation::new(NAME, now, format!("{waiting} records never got an outcome: {}", which())))
}
