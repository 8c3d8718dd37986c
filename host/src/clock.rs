//! Clocks of one node, and the identity of the host's boot.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use quorate_proto::time::{BootTime, LogTime};
use rustix::time::{clock_gettime, ClockId};

/// The clocks of a node. Read anew for every event, never cached over several (protocol V2).
pub trait Clock: Send + Sync + 'static {
    /// Leases, fences, time-outs: `CLOCK_BOOTTIME`, which counts suspend and never steps.
    fn now(&self) -> BootTime;
    /// Wall clock; only observers use it, for the median that becomes cluster time (W5).
    fn wall(&self) -> LogTime;
}

/// The kernel's clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> BootTime {
        let at = clock_gettime(ClockId::Boottime);
        // Since boot, hence never negative and far from the end of u64.
        let seconds = u64::try_from(at.tv_sec).unwrap_or(0);
        let nanos = u64::try_from(at.tv_nsec).unwrap_or(0);
        BootTime(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
    }

    fn wall(&self) -> LogTime {
        let at = clock_gettime(ClockId::Realtime);
        LogTime(at.tv_sec.saturating_mul(1_000_000).saturating_add(at.tv_nsec / 1_000))
    }
}

/// A clock that stands still until told otherwise, for tests.
#[derive(Debug)]
pub struct ManualClock {
    now: AtomicU64,
    wall: AtomicI64,
}

impl ManualClock {
    /// Starts at the given times.
    #[must_use]
    pub fn new(now: BootTime, wall: LogTime) -> Self {
        Self { now: AtomicU64::new(now.0), wall: AtomicI64::new(wall.0) }
    }

    /// Moves both clocks forward.
    pub fn advance(&self, span: Duration) {
        self.now.fetch_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX), Ordering::SeqCst);
        self.wall.fetch_add(i64::try_from(span.as_micros()).unwrap_or(i64::MAX), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> BootTime {
        BootTime(self.now.load(Ordering::SeqCst))
    }

    fn wall(&self) -> LogTime {
        LogTime(self.wall.load(Ordering::SeqCst))
    }
}

/// Where Linux tells the id of the current boot.
pub const BOOT_ID_FILE: &str = "/proc/sys/kernel/random/boot_id";

/// Id of this boot of the host: a page cache survives a process, not a boot (B2, S2).
///
/// # Errors
/// If the kernel's file can't be read.
pub fn boot_id() -> io::Result<String> {
    boot_id_from(Path::new(BOOT_ID_FILE))
}

/// The same from another file, so that a power-cut drill can pretend another boot (B2).
///
/// # Errors
/// If the file can't be read.
pub fn boot_id_from(file: &Path) -> io::Result<String> {
    Ok(std::fs::read_to_string(file)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_time_never_goes_backwards() {
        let clock = SystemClock;
        let mut last = clock.now();
        for _ in 0..1_000 {
            let now = clock.now();
            assert!(now >= last);
            last = now;
        }
        assert!(last > BootTime::ZERO);
    }

    #[test]
    fn the_boot_id_is_the_same_for_the_whole_boot() {
        let first = boot_id().unwrap();
        assert_eq!(first, boot_id().unwrap());
        assert_eq!(first.len(), 36);
    }

    #[test]
    fn a_manual_clock_moves_only_when_told() {
        let clock = ManualClock::new(BootTime(5), LogTime(7));
        assert_eq!(clock.now(), BootTime(5));
        clock.advance(Duration::from_micros(3));
        assert_eq!((clock.now(), clock.wall()), (BootTime(3_005), LogTime(10)));
    }
}
