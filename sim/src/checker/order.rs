//! A producer's records of one key stand in the order in which they were sent (I3, I4).

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use quorate_proto::ids::{GroupId, Offset};

use super::Violation;
use crate::time::Instant;

/// Name in violations.
pub const NAME: &str = "per-producer order";

/// Values are `key/sequence`; sequences grow per key in the order of sending. `raced`: values that a second producer
/// sent as well before the first one was answered: they may stand where that one put them.
///
/// # Errors
/// A key's sequence goes back.
///
/// # Panics
/// If a value is not one of the application's.
pub fn check(
    now: Instant,
    group: GroupId,
    log: &BTreeMap<Offset, Bytes>,
    raced: &BTreeSet<Bytes>,
) -> Result<(), Violation> {
    let mut newest: BTreeMap<&str, u64> = BTreeMap::new();
    for (offset, value) in log.iter().filter(|(_, value)| !raced.contains(*value)) {
        let text = std::str::from_utf8(value).expect("the client sends text");
        let (key, sequence) = text.split_once('/').expect("key/sequence");
        let sequence: u64 = sequence.parse().expect("a number");
        if let Some(before) = newest.insert(key, sequence).filter(|before| *before > sequence) {
            return Err(Violation::new(NAME, now, format!("{group} {offset}: {text} after {key}/{before}")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_that_goes_back_is_a_violation_unless_two_producers_raced() {
        let value = |text: &'static str| Bytes::from_static(text.as_bytes());
        let log = BTreeMap::from([(Offset(0), value("a/2")), (Offset(1), value("b/1")), (Offset(2), value("a/1"))]);
        assert!(check(Instant(1), GroupId(2), &log, &BTreeSet::new()).is_err());
        assert!(check(Instant(1), GroupId(2), &log, &BTreeSet::from([value("a/2")])).is_ok());
    }
}
