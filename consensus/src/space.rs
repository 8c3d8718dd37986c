//! Room on a node's disks (B5): from what the system says to what the node may do. The same for data nodes and observers.
//!
//! ```text
//!  free   ──────────── soft + ¼ ──── soft ─────────── hard + ¼ ──── hard ────────────────────── 0
//!  falling    ample                  scarce                         full    ballast released when less than
//!  rising     ample ◄────┘           scarce ◄───────────┘           full    its own size is left; made again when ample
//! ```
//! The ballast counts as used whether it is there or not: releasing it must not look like recovery.

use std::time::Duration;

use quorate_proto::control::Room;
use quorate_proto::time::BootTime;

/// A level is left only when a quarter more than its mark is free.
const HYSTERESIS: u64 = 4;
/// Inodes that must be left before the ballast goes: what a start needs.
const BALLAST_INODES: u64 = 16;
/// A replica whose disk is full still takes what its leader had under way, until the leader has heard of it for sure.
pub const GRACE: Duration = Duration::from_secs(1);

/// Free space at which the node changes what it does. Zero bytes or inodes: that mark does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    /// Fewer free bytes: no publishes are taken, leaders go elsewhere.
    pub soft_bytes: u64,
    /// Fewer free bytes: nothing that carries records is appended.
    pub hard_bytes: u64,
    /// As `soft_bytes`, for inodes.
    pub soft_inodes: u64,
    /// As `hard_bytes`, for inodes.
    pub hard_inodes: u64,
    /// Size of the ballast, bytes; zero = none.
    pub ballast_bytes: u64,
}

impl Default for Marks {
    fn default() -> Self {
        const MIB: u64 = 1 << 20;
        Self {
            soft_bytes: 2_048 * MIB,
            hard_bytes: 1_024 * MIB,
            soft_inodes: 20_000,
            hard_inodes: 5_000,
            ballast_bytes: 256 * MIB,
        }
    }
}

impl Marks {
    /// Checks the rules between the values, by the names that they have in the configuration.
    ///
    /// # Errors
    /// One text per clash.
    pub fn validate(&self) -> Result<(), Vec<String>> {
        let mut clashes = Vec::new();
        let mut more = |a: (&str, u64), b: (&str, u64)| {
            if a.1 <= b.1 && (a.1, b.1) != (0, 0) {
                clashes.push(format!("{} ({}) must be more than {} ({})", a.0, a.1, b.0, b.1));
            }
        };
        more(("disk_soft_bytes", self.soft_bytes), ("disk_hard_bytes", self.hard_bytes));
        more(("disk_soft_inodes", self.soft_inodes), ("disk_hard_inodes", self.hard_inodes));
        more(("disk_hard_bytes", self.hard_bytes), ("disk_ballast_bytes", self.ballast_bytes));
        if clashes.is_empty() {
            Ok(())
        } else {
            Err(clashes)
        }
    }
}

/// What is free on the file system of one directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Free {
    /// Bytes for this process.
    pub bytes: u64,
    /// Inodes; `None` where the file system does not count them.
    pub inodes: Option<u64>,
    /// Bytes of the ballast that are there.
    pub ballast: u64,
}

/// What is to be done with the ballast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ballast {
    /// Remove it: its room is needed.
    Release,
    /// Make it again.
    Restore,
}

/// What is known of the disks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Space {
    room: Room,
    since: BootTime,
}

impl Space {
    /// Takes a measurement of every directory. True if the room changed.
    pub fn measured(&mut self, now: BootTime, disks: &[Free], marks: &Marks) -> bool {
        let (falling, rising) = (worst(disks, marks, 0), worst(disks, marks, HYSTERESIS));
        let room = self.room.clamp(falling, rising);
        let changed = room != self.room;
        if changed {
            self.since = now;
            self.room = room;
        }
        changed
    }

    /// The room there is.
    #[must_use]
    pub fn room(&self) -> Room {
        self.room
    }

    /// Nothing that carries records is appended any more: the disk is full for longer than [`GRACE`].
    #[must_use]
    pub fn refuses_records(&self, now: BootTime) -> bool {
        self.room == Room::Full && now.since(self.since) >= GRACE
    }

    /// What is to be done with the ballast after a measurement.
    #[must_use]
    pub fn ballast(&self, disks: &[Free], marks: &Marks) -> Option<Ballast> {
        let there = disks.iter().any(|free| free.ballast > 0);
        let whole = disks.iter().all(|free| free.ballast >= marks.ballast_bytes);
        let short =
            |free: &Free| free.bytes < marks.ballast_bytes || free.inodes.is_some_and(|inodes| inodes < BALLAST_INODES);
        match self.room {
            Room::Full if there && disks.iter().any(short) => Some(Ballast::Release),
            Room::Ample if !whole => Some(Ballast::Restore),
            _ => None,
        }
    }
}

/// The least room of all disks; with `hysteresis`, marks count for so much of themselves more.
fn worst(disks: &[Free], marks: &Marks, hysteresis: u64) -> Room {
    let raised = |mark: u64| mark.saturating_add(mark.checked_div(hysteresis).unwrap_or(0));
    let below = |free: &Free, bytes: u64, inodes: u64| {
        // As if the ballast were there.
        let usable = (free.bytes + free.ballast).saturating_sub(marks.ballast_bytes);
        usable < raised(bytes) || free.inodes.is_some_and(|free| free < raised(inodes))
    };
    let room = |free: &Free| {
        if below(free, marks.hard_bytes, marks.hard_inodes) {
            Room::Full
        } else if below(free, marks.soft_bytes, marks.soft_inodes) {
            Room::Scarce
        } else {
            Room::Ample
        }
    };
    disks.iter().map(room).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKS: Marks =
        Marks { soft_bytes: 400, hard_bytes: 200, soft_inodes: 40, hard_inodes: 20, ballast_bytes: 100 };

    fn free(bytes: u64) -> Free {
        Free { bytes, inodes: Some(1_000), ballast: 100 }
    }

    fn at(seconds: u64) -> BootTime {
        BootTime(seconds * 1_000_000_000)
    }

    #[test]
    fn room_falls_at_its_marks_and_rises_a_quarter_above_them() {
        let mut space = Space::default();
        let mut seen = Vec::new();
        for bytes in [1_000, 400, 399, 200, 199, 249, 250, 399, 499, 500, 10] {
            space.measured(at(1), &[free(bytes)], &MARKS);
            seen.push((bytes, space.room()));
        }
        use Room::{Ample, Full, Scarce};
        let expected = [
            (1_000, Ample),
            (400, Ample),
            (399, Scarce),
            (200, Scarce),
            (199, Full),
            (249, Full),
            (250, Scarce),
            (399, Scarce),
            (499, Scarce),
            (500, Ample),
            (10, Full),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn the_worst_of_bytes_and_inodes_of_all_disks_counts() {
        let mut space = Space::default();
        space.measured(at(1), &[free(1_000), Free { inodes: Some(39), ..free(1_000) }], &MARKS);
        assert_eq!(space.room(), Room::Scarce);
        space.measured(at(1), &[free(100), free(1_000)], &MARKS);
        assert_eq!(space.room(), Room::Full);
        let uncounted = Free { inodes: None, ..free(1_000) };
        space.measured(at(1), &[uncounted], &MARKS);
        assert_eq!(space.room(), Room::Ample, "a file system that does not count inodes has enough of them");
    }

    #[test]
    fn the_ballast_goes_when_less_than_its_size_is_left_and_comes_back_with_ample_room() {
        let mut space = Space::default();
        let mut measure = |bytes, ballast| {
            let disks = [Free { ballast, ..free(bytes) }];
            space.measured(at(1), &disks, &MARKS);
            (space.room(), space.ballast(&disks, &MARKS))
        };
        assert_eq!(measure(1_000, 0), (Room::Ample, Some(Ballast::Restore)));
        assert_eq!(measure(900, 100), (Room::Ample, None));
        assert_eq!(measure(150, 100), (Room::Full, None), "there is still enough to work with");
        assert_eq!(measure(50, 100), (Room::Full, Some(Ballast::Release)));
        assert_eq!(measure(150, 0), (Room::Full, None), "its release is no recovery");
        assert_eq!(measure(480, 0), (Room::Scarce, None));
        assert_eq!(measure(600, 0), (Room::Ample, Some(Ballast::Restore)));
        assert_eq!(measure(499, 100), (Room::Ample, None), "and its return no shortage");
    }

    #[test]
    fn a_full_disk_still_takes_what_was_under_way() {
        let mut space = Space::default();
        assert!(space.measured(at(1), &[free(10)], &MARKS));
        assert!(!space.measured(at(2), &[free(10)], &MARKS));
        assert!(!space.refuses_records(at(1)));
        assert!(space.refuses_records(at(2)));
    }

    #[test]
    fn marks_that_make_no_sense_are_named() {
        assert_eq!(Marks::default().validate(), Ok(()));
        assert_eq!(MARKS.validate(), Ok(()));
        let none = Marks { soft_bytes: 0, hard_bytes: 0, soft_inodes: 0, hard_inodes: 0, ballast_bytes: 0 };
        assert_eq!(none.validate(), Ok(()));
        let clashes = Marks { hard_bytes: 400, hard_inodes: 41, ..MARKS }.validate().expect_err("refused");
        assert!(clashes[0].contains("disk_soft_bytes (400) must be more than disk_hard_bytes (400)"), "{clashes:?}");
        assert!(clashes[1].contains("disk_soft_inodes"), "{clashes:?}");
    }
}
