//! Virtual time and the drifting clocks of the simulated hosts.

use std::fmt;
use std::ops::Add;
use std::time::Duration;

use quorate_proto::time::BootTime;

/// Nanoseconds of true (virtual) time since the run began. No process sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(pub u64);

impl Instant {
    /// True time since `earlier`.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;
    fn add(self, span: Duration) -> Self {
        Self(self.0 + u64::try_from(span.as_nanos()).expect("a span of a run fits u64 nanoseconds"))
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>3}.{:06}", self.0 / 1_000_000_000, self.0 / 1_000 % 1_000_000)
    }
}

/// `CLOCK_BOOTTIME` of one host: an arbitrary start and a constant rate error.
#[derive(Clone, Copy, Debug)]
pub struct HostClock {
    start: u64,
    /// Rate error in parts per million.
    drift_ppm: i64,
}

impl HostClock {
    /// A clock that read `start` nanoseconds at true time zero and is `drift_ppm` too fast.
    #[must_use]
    pub const fn new(start: u64, drift_ppm: i64) -> Self {
        Self { start, drift_ppm }
    }

    /// What it reads at true time `at`.
    #[must_use]
    pub fn read(&self, at: Instant) -> BootTime {
        // Asked for with every event: 64 bits do for hours at the bound, and for minutes far beyond it.
        let at = i64::try_from(at.0).expect("a run ends");
        let error = at.checked_mul(self.drift_ppm).expect("a run is short") / 1_000_000;
        BootTime((self.start + at.unsigned_abs()).checked_add_signed(error).expect("clocks start far from zero"))
    }

    /// True time at which it will read at least `reading` (never before `now`).
    #[must_use]
    pub fn when(&self, reading: BootTime, now: Instant) -> Instant {
        let current = self.read(now);
        if reading <= current {
            return now;
        }
        let left = i128::from(reading.0 - current.0);
        let true_left = left * 1_000_000 / (1_000_000 + i128::from(self.drift_ppm)) + 1;
        Instant(now.0.saturating_add(u64::try_from(true_left).unwrap_or(u64::MAX / 2)))
    }
}
