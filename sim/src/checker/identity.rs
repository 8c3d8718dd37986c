//! One copy per identity, in the order of sending; a decisive refusal is final.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use quorate_proto::ids::{GroupId, Offset};

use super::Violation;
use crate::time::Instant;

/// Name in violations.
pub const NAME: &str = "one copy per identity";

/// Values are unique per record sent, `key/sequence`; sequences grow per key in the order of sending.
///
/// # Errors
/// A value stands twice, a key's sequence goes back, or a refused value is there.
pub fn check(
    now: Instant,
    group: GroupId,
    log: &BTreeMap<Offset, Bytes>,
    refused: &BTreeSet<Bytes>,
) -> Result<(), Violation> {
    let mut newest: BTreeMap<&str, u64> = BTreeMap::new();
    for (offset, value) in log {
        if refused.contains(value) {
            return Err(Violation::new(NAME, now, format!("{group} {offset}: {value:?} was refused for good")));
        }
        let text = std::str::from_utf8(value).expect("the client sends text");
        let (key, sequence) = text.split_once('/').expect("key/sequence");
        let sequence: u64 = sequence.parse().expect("a number");
        match newest.insert(key, sequence) {
            Some(before) if before == sequence => {
                return Err(Violation::new(NAME, now, format!("{group} {offset}: {text} stands twice")));
            }
            Some(before) if before > sequence => {
                return Err(Violation::new(NAME, now, format!("{group} {offset}: {text} after {key}/{before}")));
            }
            _ => {}
        }
    }
    Ok(())
}
