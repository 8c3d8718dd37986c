//! Clocks. Two kinds never mix: [`BootTime`] (leases, fences, time-outs; `CLOCK_BOOTTIME`) and
//! [`LogTime`] (everything that ages; agreed by the log, protocol W5).

use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

/// An instant on one node's `CLOCK_BOOTTIME`, nanoseconds since boot. Counts suspend, never steps.
/// Meaningless on another node, except when echoed back to its owner (C1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootTime(pub u64);

impl BootTime {
    /// Before every other instant; "never".
    pub const ZERO: Self = Self(0);
    /// After every other instant.
    pub const MAX: Self = Self(u64::MAX);

    /// Time since `earlier`; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Microseconds after `other`; negative: before it.
    #[must_use]
    pub fn micros_after(self, other: Self) -> i64 {
        let micros = |span: Duration| i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
        micros(self.since(other)) - micros(other.since(self))
    }

    /// Later by so many microseconds; earlier if negative.
    #[must_use]
    pub fn shifted_us(self, micros: i64) -> Self {
        let span = Duration::from_micros(micros.unsigned_abs());
        if micros < 0 {
            self - span
        } else {
            self + span
        }
    }
}

impl Add<Duration> for BootTime {
    type Output = Self;
    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl AddAssign<Duration> for BootTime {
    fn add_assign(&mut self, span: Duration) {
        *self = *self + span;
    }
}

impl Sub<Duration> for BootTime {
    type Output = Self;
    fn sub(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Display for BootTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06} s", self.0 / 1_000_000_000, self.0 / 1_000 % 1_000_000)
    }
}

/// Microseconds since the Unix epoch as agreed by the log (W5) or, as *cluster time*, by the observers' median
/// wall clock. Never a node's own wall clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogTime(pub i64);

impl LogTime {
    /// "None" where a field says so.
    pub const ZERO: Self = Self(0);

    /// Later by `span`.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(span.as_micros()).unwrap_or(i64::MAX)))
    }

    /// Time since `earlier`; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl fmt::Display for LogTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} µs", self.0)
    }
}
/// A duration as people say it: `240 ms`, `3.2 s`, `45 s`, `12 min`, `3.5 h`, `2.0 d`.
///
/// ```
/// # use quorate_proto::time::spoken;
/// # use std::time::Duration;
/// assert_eq!(spoken(Duration::from_millis(240)), "240 ms");
/// assert_eq!(spoken(Duration::from_millis(3_240)), "3.2 s");
/// assert_eq!(spoken(Duration::from_secs(45)), "45 s");
/// assert_eq!(spoken(Duration::from_secs(12_600)), "3.5 h");
/// ```
#[must_use]
pub fn spoken(span: Duration) -> String {
    let seconds = span.as_secs_f64();
    match span.as_secs() {
        0 => format!("{} ms", span.as_millis()),
        1..10 => format!("{seconds:.1} s"),
        10..120 => format!("{} s", span.as_secs()),
        120..7_200 => format!("{} min", span.as_secs() / 60),
        7_200..172_800 => format!("{:.1} h", seconds / 3_600.0),
        _ => format!("{:.1} d", seconds / 86_400.0),
    }
}
