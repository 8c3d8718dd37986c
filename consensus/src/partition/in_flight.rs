//! What a leader has proposed and not applied yet, per producer (I6).

use std::collections::BTreeMap;

use quorate_proto::batch::BatchHeader;
use quorate_proto::ids::{ProducerEpoch, ProducerId, Sequence};
use quorate_proto::refusal::Refusal;
use quorate_proto::v1::Receipt;

/// What to do with a batch that arrived at the leader.
#[derive(Clone, Debug, PartialEq)]
pub enum Admission {
    /// Propose it, and count it with [`InFlight::add`].
    Append,
    /// It was applied before: this is its first result. Only the serving leader may give it (W3).
    Answer(Receipt),
    /// Do not propose it.
    Refuse(Refusal),
}

/// Producers with batches admitted and not yet applied. Its owner adds each batch that it admits, takes it out when
/// its entry was applied, and clears everything when leadership ends.
#[derive(Clone, Debug, Default)]
pub struct InFlight {
    producers: BTreeMap<ProducerId, InFlightProducer>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct InFlightProducer {
    pub(super) epoch: ProducerEpoch,
    pub(super) next: Sequence,
    batches: u32,
}

impl InFlight {
    /// Nothing in flight.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A batch was admitted.
    pub fn add(&mut self, header: &BatchHeader) {
        let id = &header.identity;
        if id.producer == ProducerId::NONE {
            return;
        }
        let end = header.end_sequence();
        let entry =
            self.producers.entry(id.producer).or_insert(InFlightProducer { epoch: id.epoch, next: end, batches: 0 });
        if id.epoch > entry.epoch {
            (entry.epoch, entry.next) = (id.epoch, end);
        } else if id.epoch == entry.epoch {
            entry.next = entry.next.max(end);
        }
        entry.batches += 1;
    }

    /// A batch that was added is decided: applied, or given up before it was proposed.
    pub fn done(&mut self, header: &BatchHeader) {
        if let Some(entry) = self.producers.get_mut(&header.identity.producer) {
            entry.batches -= 1;
            if entry.batches == 0 {
                self.producers.remove(&header.identity.producer);
            }
        }
    }

    /// Leadership ended.
    pub fn clear(&mut self) {
        self.producers.clear();
    }

    /// Nothing in flight.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.producers.is_empty()
    }

    pub(super) fn get(&self, producer: ProducerId) -> Option<InFlightProducer> {
        self.producers.get(&producer).copied()
    }
}
