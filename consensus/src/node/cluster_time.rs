//! Cluster time (W5): the observers' median wall clock, advanced by this node's own `CLOCK_BOOTTIME`.

use quorate_proto::entry::EntryTime;
use quorate_proto::limits::TIME_LEAP;
use quorate_proto::time::{BootTime, LogTime};

/// What the node knows of cluster time. A node's own wall clock never takes part.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ClusterTime {
    /// Newest sample: cluster time, and when the request was sent that it answered.
    sample: Option<(LogTime, BootTime)>,
    /// Cluster time ran away from this node's clock by more than [`TIME_LEAP`]: entries say so, ageing stops.
    leapt: bool,
}

impl ClusterTime {
    /// Takes a sample from a lease answer or a heartbeat's acknowledgement. Older ones are ignored: answers of
    /// several observers cross on the way.
    pub(super) fn learn(&mut self, at: LogTime, sent: BootTime) {
        if at == LogTime::ZERO {
            return;
        }
        if let Some((_, known)) = self.sample {
            if sent <= known {
                return;
            }
            let expected = self.at(sent);
            let apart = if at > expected { at.since(expected) } else { expected.since(at) };
            self.leapt |= apart > TIME_LEAP;
        }
        self.sample = Some((at, sent));
    }

    /// Cluster time at `now`; zero before the first sample.
    pub(super) fn at(&self, now: BootTime) -> LogTime {
        self.sample.map_or(LogTime::ZERO, |(time, sent)| time.after(now.since(sent)))
    }

    /// What a leader writes into an entry. Apply takes the maximum with the entry before.
    pub(super) fn entry_time(&self, now: BootTime) -> EntryTime {
        EntryTime { log_time: self.at(now), leapt: self.leapt, accepted: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const SECOND: Duration = Duration::from_secs(1);
    const LEAP: Duration = Duration::from_secs(301);

    #[test]
    fn cluster_time_advances_with_the_nodes_own_clock_from_the_sending() {
        let mut time = ClusterTime::default();
        let sent = BootTime(5_000_000_000);
        time.learn(LogTime(1_000_000), sent);
        assert_eq!(time.at(sent + SECOND), LogTime(2_000_000));
    }

    #[test]
    fn an_older_answer_changes_nothing() {
        let mut time = ClusterTime::default();
        let sent = BootTime(5_000_000_000);
        time.learn(LogTime(9_000_000), sent);
        time.learn(LogTime(1_000_000), sent - SECOND);
        assert_eq!(time.at(sent), LogTime(9_000_000));
    }

    #[test]
    fn a_leap_is_told_from_an_idle_day() {
        let day = Duration::from_secs(86_400);
        let (mut idle, mut leapt) = (ClusterTime::default(), ClusterTime::default());
        let sent = BootTime(5_000_000_000);
        for time in [&mut idle, &mut leapt] {
            time.learn(LogTime(1_000_000), sent);
        }
        idle.learn(LogTime(1_000_000).after(day), sent + day);
        leapt.learn(LogTime(1_000_000).after(LEAP), sent + SECOND / 2);
        assert!(!idle.entry_time(sent + day).leapt);
        assert!(leapt.entry_time(sent + SECOND).leapt);
    }
}
