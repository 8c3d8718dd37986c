//! Digests of the replicas' machines are equal at equal high watermarks (W3).

use std::collections::BTreeMap;

use quorate_consensus::partition::Digest;
use quorate_proto::ids::{GroupId, NodeId, Offset};

use super::Violation;
use crate::time::Instant;

/// Name in violations.
pub const NAME: &str = "digests are equal";

/// Digests by high watermark.
#[derive(Debug, Default)]
pub struct Digests {
    seen: BTreeMap<(GroupId, Offset), (Digest, NodeId)>,
}

impl Digests {
    /// A replica's machine stands at `offset` with `digest`.
    ///
    /// # Errors
    /// Another one had another digest there.
    pub fn at(
        &mut self,
        now: Instant,
        group: GroupId,
        node: NodeId,
        offset: Offset,
        digest: Digest,
    ) -> Result<(), Violation> {
        let (first, by) = *self.seen.entry((group, offset)).or_insert((digest, node));
        if first == digest {
            return Ok(());
        }
        Err(Violation::new(NAME, now, format!("{node} and {by} differ at {group} {offset}")))
    }

    /// Positions compared.
    #[must_use]
    pub fn count(&self) -> usize {
        self.seen.len()
    }
}
