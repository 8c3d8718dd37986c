//! Latency, the per-second timeline and the gaps of a run.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// Latencies in microseconds, three significant digits, 1 µs … 10 min.
#[derive(Clone, Debug)]
pub struct Latency(Histogram<u64>);

/// Percentiles in milliseconds, as in the JSON output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LatencyMs {
    /// Median.
    pub p50: f64,
    /// 90 %.
    pub p90: f64,
    /// 99 %.
    pub p99: f64,
    /// 99.9 %.
    pub p999: f64,
    /// 99.99 %.
    pub p9999: f64,
    /// Slowest.
    pub max: f64,
}

impl Default for Latency {
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1, 600_000_000, 3).expect("constant bounds are valid"))
    }
}

impl Latency {
    /// Adds one.
    pub fn record(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_micros()).unwrap_or(u64::MAX).max(1));
    }

    /// Adds all of another.
    pub fn add(&mut self, other: &Self) {
        self.0.add(&other.0).expect("equal bounds");
    }

    /// Percentiles; all zero if nothing was recorded.
    #[must_use]
    pub fn summary(&self) -> LatencyMs {
        if self.0.is_empty() {
            return LatencyMs::default();
        }
        let at = |q: f64| to_ms(self.0.value_at_quantile(q));
        LatencyMs {
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            p9999: at(0.9999),
            max: to_ms(self.0.max()),
        }
    }
}

/// Microseconds as milliseconds with two decimals.
#[allow(clippy::cast_precision_loss)]
fn to_ms(micros: u64) -> f64 {
    ((micros + 5) / 10) as f64 / 100.0
}

/// A duration as milliseconds with two decimals.
#[must_use]
pub fn ms(span: Duration) -> f64 {
    to_ms(u64::try_from(span.as_micros()).unwrap_or(u64::MAX))
}

/// One second of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Second {
    /// Seconds after the start.
    pub second: u64,
    /// Handed to the SDK.
    pub sent: u64,
    /// Acknowledged.
    pub acknowledged: u64,
    /// Refused or given up.
    pub failed: u64,
}

/// What happened when.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    seconds: Vec<Second>,
    all: Gaps,
    partitions: BTreeMap<u32, Gaps>,
}

/// A pause between two acknowledgements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gap {
    /// Last acknowledgement before it, after the start of the run.
    pub from: Duration,
    /// First one after it.
    pub to: Duration,
}

impl Gap {
    /// Its length.
    #[must_use]
    pub fn length(&self) -> Duration {
        self.to.saturating_sub(self.from)
    }
}

/// Acknowledgements of one partition, or of all together, as far as gaps need them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gaps {
    last_ack: Option<Duration>,
    longest: Gap,
}

impl Gaps {
    fn acknowledged(&mut self, at: Duration) {
        if let Some(last) = self.last_ack {
            let gap = Gap { from: last, to: at };
            if gap.length() > self.longest.length() {
                self.longest = gap;
            }
        }
        // Acknowledgements of several producers may be noted out of order by a hair.
        self.last_ack = Some(self.last_ack.map_or(at, |last| last.max(at)));
    }

    /// Longest pause between two acknowledgements since the start, or since [`Timeline::forget_gap`].
    #[must_use]
    pub fn longest(&self) -> Gap {
        self.longest
    }

    /// When the last acknowledgement came.
    #[must_use]
    pub fn last_ack(&self) -> Option<Duration> {
        self.last_ack
    }
}

impl Timeline {
    /// A record was handed over at `at` after the start.
    pub fn sent(&mut self, at: Duration) {
        self.second(at).sent += 1;
    }

    /// A record of this partition was acknowledged.
    pub fn acknowledged(&mut self, at: Duration, partition: u32) {
        self.second(at).acknowledged += 1;
        self.all.acknowledged(at);
        self.partitions.entry(partition).or_default().acknowledged(at);
    }

    /// A record was refused or given up.
    pub fn failed(&mut self, at: Duration) {
        self.second(at).failed += 1;
    }

    fn second(&mut self, at: Duration) -> &mut Second {
        let number = usize::try_from(at.as_secs()).unwrap_or(usize::MAX);
        while self.seconds.len() <= number {
            let second = self.seconds.len() as u64;
            self.seconds.push(Second { second, ..Second::default() });
        }
        &mut self.seconds[number]
    }

    /// Longest pause between two acknowledgements since the start, or since [`Self::forget_gap`].
    #[must_use]
    pub fn longest_gap(&self) -> Gap {
        self.all.longest()
    }

    /// The gaps of one partition alone.
    #[must_use]
    pub fn partition(&self, partition: u32) -> Gaps {
        self.partitions.get(&partition).copied().unwrap_or_default()
    }

    /// Starts a new search for the longest pause. The next gap may begin with the last acknowledgement before.
    pub fn forget_gap(&mut self) {
        for gaps in self.partitions.values_mut().chain([&mut self.all]) {
            gaps.longest = Gap::default();
        }
    }

    /// When the last acknowledgement came.
    #[must_use]
    pub fn last_ack(&self) -> Option<Duration> {
        self.all.last_ack()
    }

    /// Whole seconds in which something was sent and nothing acknowledged.
    #[must_use]
    pub fn zero_ack_seconds(&self) -> u64 {
        self.seconds.iter().filter(|s| s.sent > 0 && s.acknowledged == 0).count() as u64
    }

    /// All seconds.
    #[must_use]
    pub fn seconds(&self) -> &[Second] {
        &self.seconds
    }
}

/// Percentiles of a few repeats, in milliseconds: the value itself, not an interpolation.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Repeats {
    /// Median.
    pub p50: f64,
    /// 90 %.
    pub p90: f64,
    /// 99 %.
    pub p99: f64,
    /// Longest.
    pub max: f64,
    /// All, in order of the runs.
    pub all: Vec<f64>,
}

impl Repeats {
    /// From the values of all repeats.
    #[must_use]
    pub fn new(all: Vec<f64>) -> Self {
        let mut sorted = all.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |percent: usize| {
            // Nearest rank: the smallest value that `percent` of all do not exceed.
            let rank = (sorted.len() * percent).div_ceil(100).max(1);
            sorted.get(rank - 1).copied().unwrap_or_default()
        };
        Self { p50: at(50), p90: at(90), p99: at(99), max: at(100), all }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_gap_lies_between_two_acknowledgements() {
        let mut timeline = Timeline::default();
        for at in [10, 20, 400, 410] {
            timeline.acknowledged(Duration::from_millis(at), 0);
        }
        let gap = timeline.longest_gap();
        assert_eq!(gap.length(), Duration::from_millis(380));
        assert_eq!(gap.from, Duration::from_millis(20));
        timeline.forget_gap();
        timeline.acknowledged(Duration::from_millis(430), 0);
        assert_eq!(timeline.longest_gap().length(), Duration::from_millis(20));
    }

    #[test]
    fn a_partition_has_gaps_of_its_own_that_others_do_not_hide() {
        let mut timeline = Timeline::default();
        for at in [10, 20, 30, 40, 50, 60] {
            timeline.acknowledged(Duration::from_millis(at), 0);
        }
        timeline.acknowledged(Duration::from_millis(15), 1);
        timeline.forget_gap();
        timeline.acknowledged(Duration::from_millis(65), 1);
        assert_eq!(timeline.partition(1).longest().length(), Duration::from_millis(50));
        assert_eq!(timeline.partition(0).longest(), Gap::default(), "forgotten with the others");
        assert_eq!(timeline.partition(2).last_ack(), None);
    }

    #[test]
    fn a_second_with_sends_and_no_acknowledgement_counts() {
        let mut timeline = Timeline::default();
        timeline.sent(Duration::from_millis(100));
        timeline.acknowledged(Duration::from_millis(200), 0);
        timeline.sent(Duration::from_millis(1_100));
        timeline.sent(Duration::from_millis(3_100));
        timeline.acknowledged(Duration::from_millis(3_200), 0);
        assert_eq!(timeline.zero_ack_seconds(), 1);
        assert_eq!(timeline.seconds().len(), 4);
    }

    #[test]
    fn percentiles_of_repeats_are_values_that_occurred() {
        let repeats = Repeats::new(vec![30.0, 10.0, 20.0, 40.0]);
        assert_eq!((repeats.p50, repeats.p90, repeats.max), (20.0, 40.0, 40.0));
        assert_eq!(repeats.all[0], 30.0);
        assert_eq!(Repeats::new(Vec::new()).max, 0.0);
    }

    #[test]
    fn latency_is_summed_up_in_milliseconds() {
        let mut latency = Latency::default();
        (1..=100).for_each(|n| latency.record(Duration::from_millis(n)));
        let summary = latency.summary();
        assert!((summary.p50 - 50.0).abs() < 0.2 && (summary.max - 100.0).abs() < 0.2, "{summary:?}");
    }
}
