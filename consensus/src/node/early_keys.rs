//! What a mutant does wrong (W3): it remembers keys when a batch is admitted, and answers copies from that memory. A key
//! whose batch is lost with its leader then makes every retry a "duplicate" of nothing.

use std::collections::BTreeSet;

use bytes::Bytes;
use quorate_proto::batch::BatchView;
use quorate_proto::hash::KeyHash;

/// Keys of batches admitted here, committed or not.
#[derive(Debug, Default)]
pub(super) struct EarlyKeys(BTreeSet<KeyHash>);

impl EarlyKeys {
    /// Every record of the batch has a key, and all of them came here before.
    pub(super) fn knows(&self, batch: &BatchView) -> bool {
        batch.descriptors().all(|record| !record.key.is_none() && self.0.contains(&record.key))
    }

    /// The batch was admitted.
    pub(super) fn remember(&mut self, batch: &Bytes) {
        if let Ok(batch) = BatchView::parse_verified(batch.clone()) {
            self.0.extend(batch.descriptors().map(|record| record.key).filter(|key| !key.is_none()));
        }
    }
}
