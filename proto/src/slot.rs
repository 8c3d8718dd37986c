//! Slots: which partition a record belongs to. The directory maps slots to partitions.

use std::fmt;

/// Number of slots of every topic. Part of the route message; a change would be a new format.
pub const SLOT_COUNT: u16 = 4_096;

/// Name of the hash in route messages.
pub const SLOT_HASH: &str = "xxh3_64";

/// One of [`SLOT_COUNT`] slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u16);

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slot {}", self.0)
    }
}

/// Slot of a key: `xxh3_64(key) mod 4096`, seed 0.
#[must_use]
pub fn slot_of(key: &[u8]) -> Slot {
    Slot((xxhash_rust::xxh3::xxh3_64(key) % u64::from(SLOT_COUNT)) as u16)
}

/// Slot of a record: by its record key, else by its idempotency key. `None` = it has neither and sticks to the
/// partition of its batch.
#[must_use]
pub fn slot_of_record(record_key: Option<&[u8]>, idempotency_key: Option<&[u8]>) -> Option<Slot> {
    record_key.or(idempotency_key.filter(|key| !key.is_empty())).map(slot_of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_the_documented_hash() {
        // XXH3-64 of the empty input with seed 0 is 2d06800538d394c2.
        assert_eq!(slot_of(b""), Slot((0x2d06_8005_38d3_94c2_u64 % 4096) as u16));
    }

    #[test]
    fn the_record_key_wins_over_the_idempotency_key() {
        assert_eq!(slot_of_record(Some(b"a"), Some(b"b")), Some(slot_of(b"a")));
        assert_eq!(slot_of_record(None, Some(b"b")), Some(slot_of(b"b")));
        assert_eq!(slot_of_record(None, Some(b"")), None);
        assert_eq!(slot_of_record(Some(b""), None), Some(slot_of(b"")));
    }
}
