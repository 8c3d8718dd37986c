//! Cluster time (protocol W5): the median of the observers' wall clocks.
//!
//! Each observer's wall clock is kept as its distance from this observer's `CLOCK_BOOTTIME`, so it advances between
//! tables and a step of one wall clock moves the median only as far as the others allow.

use std::collections::BTreeMap;
use std::time::Duration;

use quorate_proto::ids::NodeId;
use quorate_proto::time::{BootTime, LogTime};

/// An observer that was silent for longer no longer takes part in the median.
const STALE: Duration = Duration::from_secs(30);

/// The observers' wall clocks.
#[derive(Clone, Debug, Default)]
pub(super) struct ClusterClock {
    distances: BTreeMap<NodeId, (i64, BootTime)>,
}

fn micros(at: BootTime) -> i64 {
    i64::try_from(at.0 / 1_000).unwrap_or(i64::MAX)
}

impl ClusterClock {
    /// `observer`'s wall clock showed `wall` just now.
    pub(super) fn observe(&mut self, observer: NodeId, wall: LogTime, now: BootTime) {
        self.distances.insert(observer, (wall.0.saturating_sub(micros(now)), now));
    }

    /// Cluster time now; of two clocks the earlier one.
    pub(super) fn read(&self, now: BootTime) -> LogTime {
        let mut fresh: Vec<i64> =
            self.distances.values().filter(|(_, at)| now.since(*at) <= STALE).map(|(d, _)| *d).collect();
        fresh.sort_unstable();
        let middle = fresh.len().saturating_sub(1) / 2;
        fresh.get(middle).map_or(LogTime::ZERO, |distance| LogTime(micros(now).saturating_add(*distance)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_time_is_the_median_and_goes_on_between_tables() {
        let mut clock = ClusterClock::default();
        let at = BootTime(5_000_000_000);
        clock.observe(NodeId(1), LogTime(1_000_000), at);
        assert_eq!(clock.read(at + Duration::from_secs(1)), LogTime(2_000_000));
        clock.observe(NodeId(2), LogTime(1_500_000), at);
        clock.observe(NodeId(3), LogTime(900_000_000_000), at);
        assert_eq!(clock.read(at), LogTime(1_500_000), "one wild clock does not move it");
    }
}
