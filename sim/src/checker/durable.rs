//! An acknowledged record is in the log for ever, at the offset that was acknowledged (W1).

use std::collections::BTreeMap;

use bytes::Bytes;
use quorate_proto::ids::{GroupId, Offset};

use super::Violation;
use crate::time::Instant;

/// Name in violations.
pub const NAME: &str = "nothing acknowledged is lost";

/// What clients were promised, with the time of the first promise.
#[derive(Debug, Default)]
pub struct Durable {
    promised: BTreeMap<(GroupId, Offset), (Bytes, Instant)>,
    /// Acknowledged without an offset: it stands somewhere.
    somewhere: BTreeMap<(GroupId, Bytes), Instant>,
}

impl Durable {
    /// A record was acknowledged, at `offset` if that was told.
    ///
    /// # Errors
    /// The offset was acknowledged for another record.
    pub fn acknowledged(
        &mut self,
        now: Instant,
        group: GroupId,
        offset: Option<Offset>,
        value: &Bytes,
    ) -> Result<(), Violation> {
        let Some(offset) = offset else {
            self.somewhere.entry((group, value.clone())).or_insert(now);
            return Ok(());
        };
        let (first, _) = self.promised.entry((group, offset)).or_insert_with(|| (value.clone(), now));
        if first == value {
            return Ok(());
        }
        Err(Violation::new(NAME, now, format!("{group} {offset} was acknowledged for {first:?} and for {value:?}")))
    }

    /// When the record at `offset` was first acknowledged.
    #[must_use]
    pub fn first(&self, group: GroupId, offset: Offset) -> Option<Instant> {
        self.promised.get(&(group, offset)).map(|(_, at)| *at)
    }

    /// Compares with the log as it stands at the end.
    ///
    /// # Errors
    /// A promise is not kept.
    pub fn check(&self, now: Instant, group: GroupId, log: &BTreeMap<Offset, Bytes>) -> Result<(), Violation> {
        for ((_, offset), (value, _)) in self.promised.iter().filter(|((of, _), _)| *of == group) {
            match log.get(offset) {
                Some(found) if found == value => {}
                found => {
                    let what = format!("{group} {offset}: {value:?} was acknowledged, the log holds {found:?}");
                    return Err(Violation::new(NAME, now, what));
                }
            }
        }
        let mut missing = self.somewhere.keys().filter(|(of, value)| *of == group && !log.values().any(|v| v == value));
        match missing.next() {
            Some((_, value)) => {
                Err(Violation::new(NAME, now, format!("{group}: {value:?} was acknowledged and is not in the log")))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const G: GroupId = GroupId(2);

    #[test]
    fn a_promise_is_kept_at_its_offset_or_broken() {
        let (a, b) = (Bytes::from_static(b"k1/1"), Bytes::from_static(b"k1/2"));
        let mut durable = Durable::default();
        assert!(durable.acknowledged(Instant(1), G, Some(Offset(0)), &a).is_ok());
        assert!(durable.acknowledged(Instant(2), G, Some(Offset(0)), &b).is_err());
        assert!(durable.check(Instant(3), G, &BTreeMap::from([(Offset(0), a.clone())])).is_ok());
        assert!(durable.check(Instant(3), G, &BTreeMap::from([(Offset(0), b.clone())])).is_err());
        assert!(durable.acknowledged(Instant(4), G, None, &b).is_ok());
        assert!(durable.check(Instant(5), G, &BTreeMap::from([(Offset(0), a.clone())])).is_err(), "b is nowhere");
        assert!(durable.check(Instant(5), G, &BTreeMap::from([(Offset(0), a), (Offset(7), b)])).is_ok());
    }
}
