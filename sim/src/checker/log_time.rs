//! Log time never goes back along a log (W5), whatever wall clocks do.

use std::collections::BTreeMap;

use quorate_proto::ids::{GroupId, LogIndex};
use quorate_proto::time::LogTime;

use super::Violation;
use crate::time::Instant;

/// Name in violations.
pub const NAME: &str = "log time never goes back";

/// Log time by index.
#[derive(Debug, Default)]
pub struct LogTimes {
    seen: BTreeMap<(GroupId, LogIndex), LogTime>,
}

impl LogTimes {
    /// An entry was applied.
    ///
    /// # Errors
    /// One before it has a later time, or one behind it an earlier.
    pub fn applied(&mut self, now: Instant, group: GroupId, index: LogIndex, time: LogTime) -> Result<(), Violation> {
        if self.seen.insert((group, index), time).is_some() {
            return Ok(());
        }
        let before = self.seen.range((group, LogIndex::ZERO)..(group, index)).next_back();
        let behind = self.seen.range((group, index.next())..=(group, LogIndex(u64::MAX))).next();
        let back = before.is_some_and(|(_, at)| *at > time) || behind.is_some_and(|(_, at)| *at < time);
        if back {
            let what = format!("{group} {index} has {time:?} between {before:?} and {behind:?}");
            return Err(Violation::new(NAME, now, what));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_goes_back_is_a_violation() {
        let mut times = LogTimes::default();
        let mut step = |index, time| times.applied(Instant(1), GroupId(2), LogIndex(index), LogTime(time));
        assert!(step(6, 10).is_ok());
        assert!(step(8, 12).is_ok());
        assert!(step(7, 13).is_err());
        assert!(step(9, 11).is_err());
    }
}
