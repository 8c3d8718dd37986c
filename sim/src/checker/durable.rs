//! An acknowledged record is in the log for ever, at the offset that was acknowledged.

use std::collections::BTreeMap;

use bytes::Bytes;
use quorate_proto::ids::{GroupId, Offset};

use super::Violation;
use crate::time::Instant;

/// Name in violations.
pub const NAME: &str = "nothing acknowledged is lost";

/// What clients were promised.
#[derive(Debug, Default)]
pub struct Durable {
    promised: BTreeMap<(GroupId, Offset), Bytes>,
}

impl Durable {
    /// A record was acknowledged at `offset`.
    ///
    /// # Errors
    /// The offset was acknowledged for another record.
    pub fn acknowledged(
        &mut self,
        now: Instant,
        group: GroupId,
        offset: Offset,
        value: &Bytes,
    ) -> Result<(), Violation> {
        let first = self.promised.entry((group, offset)).or_insert_with(|| value.clone());
        if first == value {
            return Ok(());
        }
        Err(Violation::new(NAME, now, format!("{group} {offset} was acknowledged for {first:?} and for {value:?}")))
    }

    /// Compares with the log as it stands at the end.
    ///
    /// # Errors
    /// A promise is not kept.
    pub fn check(&self, now: Instant, group: GroupId, log: &BTreeMap<Offset, Bytes>) -> Result<(), Violation> {
        for ((_, offset), value) in self.promised.iter().filter(|((of, _), _)| *of == group) {
            match log.get(offset) {
                Some(found) if found == value => {}
                found => {
                    let what = format!("{group} {offset}: {value:?} was acknowledged, the log holds {found:?}");
                    return Err(Violation::new(NAME, now, what));
                }
            }
        }
        Ok(())
    }

    /// Promises made.
    #[must_use]
    pub fn len(&self) -> usize {
        self.promised.len()
    }

    /// No promise was made.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.promised.is_empty()
    }
}
