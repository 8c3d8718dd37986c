//! Once everything is healed, no member is lost and no change of members hangs (M1, M2, S3).

use quorate_consensus::directory::Partition;

use super::Violation;
use crate::time::Instant;

/// Name.
pub const NAME: &str = "members are whole again";

/// The partition as the observers know it at the end of a run.
///
/// # Errors
/// A lost member, or an unfinished change.
pub fn check(now: Instant, partition: &Partition) -> Result<(), Violation> {
    if let Some(lost) = partition.lost.iter().next() {
        return Err(Violation::new(NAME, now, format!("{lost} of {} is still lost", partition.group)));
    }
    match partition.change {
        Some(change) => {
            let what = format!("{} of {} is still at {:?}", change.task, partition.group, change.phase);
            Err(Violation::new(NAME, now, what))
        }
        None => Ok(()),
    }
}
