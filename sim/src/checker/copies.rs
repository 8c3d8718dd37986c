//! One copy per key with its first offset returned; a decisive refusal is final (I7, W3).

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use quorate_proto::ids::{GroupId, Offset, PartitionNo};

use super::Violation;
use crate::time::Instant;

/// Name in violations.
pub const NAME: &str = "one copy per key";

/// Values are unique per record that the application means; a copy has the same key and value.
///
/// # Errors
/// A value stands twice, or a refused value is there.
pub fn check(
    now: Instant,
    group: GroupId,
    log: &BTreeMap<Offset, Bytes>,
    refused: &BTreeSet<Bytes>,
) -> Result<(), Violation> {
    let mut seen: BTreeMap<&Bytes, Offset> = BTreeMap::new();
    for (offset, value) in log {
        if refused.contains(value) {
            return Err(Violation::new(NAME, now, format!("{group} {offset}: {value:?} was refused for good")));
        }
        if let Some(first) = seen.insert(value, *offset) {
            return Err(Violation::new(NAME, now, format!("{group} {offset}: {value:?} stands at {first} too")));
        }
    }
    Ok(())
}

/// Where a record stands, and what a copy of it was told.
///
/// # Errors
/// The copy was told something else.
pub fn same_answer(
    now: Instant,
    value: &Bytes,
    first: (PartitionNo, Offset),
    told: (PartitionNo, Option<Offset>),
) -> Result<(), Violation> {
    if told == (first.0, Some(first.1)) {
        return Ok(());
    }
    let what = format!("{value:?} stands at partition {} {}; its copy was told {told:?}", first.0, first.1);
    Err(Violation::new(NAME, now, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_copy_and_a_refused_record_are_violations() {
        let value = |text: &'static str| Bytes::from_static(text.as_bytes());
        let log =
            |values: [&'static str; 2]| BTreeMap::from([(Offset(0), value(values[0])), (Offset(1), value(values[1]))]);
        let none = BTreeSet::new();
        assert!(check(Instant(1), GroupId(2), &log(["a/1", "a/2"]), &none).is_ok());
        assert!(check(Instant(1), GroupId(2), &log(["a/1", "a/1"]), &none).is_err());
        assert!(check(Instant(1), GroupId(2), &log(["a/1", "a/2"]), &BTreeSet::from([value("a/2")])).is_err());
        let first = (PartitionNo(0), Offset(3));
        assert!(same_answer(Instant(1), &value("a/1"), first, (PartitionNo(0), Some(Offset(3)))).is_ok());
        assert!(same_answer(Instant(1), &value("a/1"), first, (PartitionNo(0), None)).is_err());
    }
}
