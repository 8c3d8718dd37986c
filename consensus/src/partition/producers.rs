//! What a partition remembers of its producers (I2–I5).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use quorate_proto::batch::BatchIdentity;
use quorate_proto::ids::{ProducerEpoch, ProducerId, Sequence};
use quorate_proto::limits::{PRODUCER_IDLE, PRODUCER_OUTCOME_RUNS, PRODUCER_RESULTS, PRODUCER_SAFE};
use quorate_proto::time::LogTime;

use super::outcome::{BatchRefusal, BatchResult};
use crate::policy::{Policy, Rule};

/// One producer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Producer {
    pub(super) epoch: ProducerEpoch,
    /// First sequence known of this epoch (I5).
    pub(super) floor: Sequence,
    pub(super) next: Sequence,
    pub(super) last_use: LogTime,
    /// Newest last.
    pub(super) results: VecDeque<BatchResult>,
    /// Runs of fates in all results.
    fate_runs: usize,
}

impl Producer {
    pub(super) fn new(epoch: ProducerEpoch, floor: Sequence, last_use: LogTime) -> Self {
        Self { epoch, floor, next: floor, last_use, results: VecDeque::new(), fate_runs: 0 }
    }

    /// Remembers a result; the oldest go when there are too many.
    pub(super) fn remember(&mut self, result: BatchResult) {
        self.fate_runs += result.fates.len();
        self.results.push_back(result);
        while self.results.len() > PRODUCER_RESULTS
            || (self.fate_runs > PRODUCER_OUTCOME_RUNS && self.results.len() > 1)
        {
            if let Some(oldest) = self.results.pop_front() {
                self.fate_runs -= oldest.fates.len();
            }
        }
    }
}

/// What I3–I5 say of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict<'a> {
    /// It is the next one.
    Accept,
    /// It was applied; `None` = its result is forgotten.
    Duplicate(Option<&'a BatchResult>),
    /// It is not to be stored.
    Refuse(BatchRefusal),
}

/// All producers of a partition.
#[derive(Clone, Debug, Default)]
pub(super) struct Producers {
    known: BTreeMap<ProducerId, Producer>,
    /// Least recently used first.
    by_use: BTreeSet<(LogTime, ProducerId)>,
}

impl Producers {
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&ProducerId, &Producer)> {
        self.known.iter()
    }

    /// Puts back a restored producer. False if it is there already.
    pub(super) fn restore(&mut self, id: ProducerId, producer: Producer) -> bool {
        self.by_use.insert((producer.last_use, id)) && self.known.insert(id, producer).is_none()
    }

    /// True if this epoch's sequence is below what is applied: its fate is decided.
    pub(super) fn has_applied(&self, id: &BatchIdentity) -> bool {
        self.known
            .get(&id.producer)
            .is_some_and(|p| p.epoch > id.epoch || (p.epoch == id.epoch && p.next > id.base_sequence))
    }

    /// Judges a batch against what is applied. Room for a new producer is not looked at: only an entry's log time
    /// can tell (see [`Self::make_room`]).
    pub(super) fn judge<P: Policy>(&self, id: &BatchIdentity, count: u32) -> Verdict<'_> {
        let Some(known) = self.known.get(&id.producer) else {
            return Verdict::Accept;
        };
        if id.epoch < known.epoch {
            return Verdict::Refuse(BatchRefusal::Fenced { newest: known.epoch });
        }
        let expected = if id.epoch == known.epoch { known.next } else { Sequence::ZERO };
        if id.base_sequence == expected {
            return Verdict::Accept;
        }
        if id.base_sequence > expected && !P::keeps(Rule::NoSequenceGap) {
            return Verdict::Accept;
        }
        let refused = Verdict::Refuse(BatchRefusal::OutOfSequence { expected });
        if id.base_sequence > expected || id.base_sequence < known.floor {
            return refused;
        }
        let same = |result: &&BatchResult| result.base == id.base_sequence && result.count == count;
        if let Some(result) = known.results.iter().rev().find(same) {
            return Verdict::Duplicate(Some(result));
        }
        // Below the remembered results it was applied under this epoch; among them it would be another cut of the
        // same sequences, which no retry makes.
        match known.results.front() {
            Some(oldest) if id.end(count) > oldest.base => refused,
            _ => Verdict::Duplicate(None),
        }
    }

    /// Forgets what was idle for too long (I5).
    pub(super) fn expire(&mut self, ageing: LogTime) {
        while let Some((last_use, id)) = self.by_use.first().copied() {
            if last_use.after(PRODUCER_IDLE) >= ageing {
                return;
            }
            self.by_use.remove(&(last_use, id));
            self.known.remove(&id);
        }
    }

    /// Makes sure that `id` can be remembered, forgetting the longest idle producer if needed and allowed (I5).
    pub(super) fn make_room(&mut self, id: ProducerId, ageing: LogTime, max: usize) -> Result<(), BatchRefusal> {
        if self.known.contains_key(&id) {
            return Ok(());
        }
        while self.known.len() >= max {
            match self.by_use.first().copied() {
                Some((last_use, oldest)) if last_use.after(PRODUCER_SAFE) < ageing => {
                    self.by_use.remove(&(last_use, oldest));
                    self.known.remove(&oldest);
                }
                _ => return Err(BatchRefusal::Quota { producers: self.known.len() }),
            }
        }
        Ok(())
    }

    /// An accepted batch was applied.
    pub(super) fn advance(&mut self, id: &BatchIdentity, result: BatchResult, now: LogTime) {
        let producer = self.known.entry(id.producer).or_insert_with(|| {
            self.by_use.insert((now, id.producer));
            Producer::new(id.epoch, id.base_sequence, now)
        });
        if id.epoch > producer.epoch {
            let last_use = producer.last_use;
            *producer = Producer::new(id.epoch, Sequence::ZERO, last_use);
        }
        producer.next = id.end(result.count);
        producer.remember(result);
        if producer.last_use != now {
            self.by_use.remove(&(producer.last_use, id.producer));
            self.by_use.insert((now, id.producer));
            producer.last_use = now;
        }
    }
}
