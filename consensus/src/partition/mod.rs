//! The log machine of a partition: turns committed entries into offsets, duplicates, refusals, digests.
//! Pure and deterministic: the same entries give the same outcomes and state on every replica (W3).
//!
//! ```text
//!   admit(header, in-flight) ─► Append │ Answer(first receipt) │ Refuse      leader, before proposing (I6)
//!   apply(index, term, entry) ─► outcome per batch + AppliedEntry             every replica, in log order
//!   state() + key runs ─► restore()                                           checkpoint, snapshot
//! ```

mod apply;
mod digest;
mod error;
mod in_flight;
mod keys;
mod outcome;
mod producers;
mod state;

use quorate_proto::batch::BatchHeader;
use quorate_proto::hash::KeyHash;
use quorate_proto::ids::{FeatureLevel, LogIndex, Offset, ProducerId, Term};
use quorate_proto::refusal::Refusal;
use quorate_proto::time::LogTime;
use quorate_proto::v1::Receipt;

pub use digest::Digest;
pub use error::{ApplyError, RestoreError};
pub use in_flight::{Admission, InFlight};
pub use keys::KnownKey;

use crate::node::effect::AppliedEntry;
use crate::policy::{Policy, Production, Rule};
use in_flight::InFlightProducer;
use keys::KeyWindow;
use outcome::{refuse_batch, BatchRefusal};
use producers::{Producers, Verdict};

/// The fate of one batch: `Ok` = committed (records that did not get the next offset stand in its exceptions);
/// `Err` = nothing of it was stored.
pub type BatchOutcome = Result<Receipt, Refusal>;

/// What applying one entry did.
#[derive(Clone, Debug)]
pub struct Applied {
    /// One per batch of the entry, in order. `durable_on` of the receipts is empty: the machine cannot know it.
    pub outcomes: Vec<BatchOutcome>,
    /// For storage and the tail cache.
    pub entry: AppliedEntry,
}

/// Bounds of the machine's memory. All replicas of a partition must use the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionLimits {
    /// The window never shrinks below this many keys, whatever their age.
    pub keys_min: usize,
    /// The window never grows beyond this many keys.
    pub keys_max: usize,
    /// Producers remembered.
    pub producers_max: usize,
}

impl Default for PartitionLimits {
    fn default() -> Self {
        use quorate_proto::limits::{KEYS_MAX, KEYS_MIN, PRODUCERS_MAX};
        Self { keys_min: KEYS_MIN, keys_max: KEYS_MAX, producers_max: PRODUCERS_MAX }
    }
}

/// The machine.
#[derive(Clone, Debug)]
pub struct Partition {
    /// `topic/partition`, for refusals only.
    label: String,
    limits: PartitionLimits,
    applied: (LogIndex, Term),
    log_time: LogTime,
    /// Log time up to which things have aged; stands still while `ageing_stopped` (W5).
    ageing: LogTime,
    ageing_stopped: bool,
    low_watermark: Offset,
    next_offset: Offset,
    digest: Digest,
    feature_level: FeatureLevel,
    producers: Producers,
    keys: KeyWindow,
}

impl Partition {
    /// A new partition whose log starts after `start` (index and term of the group's first snapshot).
    /// `label` is `topic/partition`, for the texts of refusals.
    #[must_use]
    pub fn new(label: impl Into<String>, start: (LogIndex, Term)) -> Self {
        Self::with_limits(label, start, PartitionLimits::default())
    }

    /// The same with other bounds, which must be equal on all replicas.
    #[must_use]
    pub fn with_limits(label: impl Into<String>, start: (LogIndex, Term), limits: PartitionLimits) -> Self {
        Self {
            label: label.into(),
            limits,
            applied: start,
            log_time: LogTime::ZERO,
            ageing: LogTime::ZERO,
            ageing_stopped: false,
            low_watermark: Offset::ZERO,
            next_offset: Offset::ZERO,
            digest: Digest::default(),
            feature_level: FeatureLevel::ZERO,
            producers: Producers::default(),
            keys: KeyWindow::default(),
        }
    }

    /// Judges a batch before it is proposed, against what is applied and what is in flight (I3, I6). Apply decides
    /// again. [`Admission::Answer`] may be given by the serving leader only (W3).
    #[must_use]
    pub fn admit(&self, header: &BatchHeader, in_flight: &InFlight) -> Admission {
        self.admit_as::<Production>(header, in_flight)
    }

    /// The same under a policy.
    #[must_use]
    pub fn admit_as<P: Policy>(&self, header: &BatchHeader, in_flight: &InFlight) -> Admission {
        let id = &header.identity;
        if id.producer == ProducerId::NONE {
            return Admission::Append;
        }
        if let Some(InFlightProducer { epoch, next, .. }) = in_flight.get(id.producer) {
            if id.epoch < epoch {
                return Admission::Refuse(refuse_batch(&self.label, header, BatchRefusal::Fenced { newest: epoch }));
            }
            let expected = if id.epoch == epoch { next } else { quorate_proto::ids::Sequence::ZERO };
            if id.base_sequence > expected && P::keeps(Rule::NoSequenceGap) {
                let why = BatchRefusal::OutOfSequence { expected };
                return Admission::Refuse(refuse_batch(&self.label, header, why));
            }
            // A copy of something still in flight is appended as well: apply answers it with the first result.
            if id.base_sequence >= expected || !self.producers.has_applied(id) {
                return Admission::Append;
            }
        }
        match self.producers.judge::<P>(id, header.count) {
            Verdict::Accept => Admission::Append,
            Verdict::Duplicate(result) => Admission::Answer(outcome::duplicate_receipt(header, result)),
            Verdict::Refuse(why) => Admission::Refuse(refuse_batch(&self.label, header, why)),
        }
    }

    /// Index and term of the last entry applied.
    #[must_use]
    pub fn applied(&self) -> (LogIndex, Term) {
        self.applied
    }

    /// Offset after the last record.
    #[must_use]
    pub fn high_watermark(&self) -> Offset {
        self.next_offset
    }

    /// First offset that may still be read (W6).
    #[must_use]
    pub fn low_watermark(&self) -> Offset {
        self.low_watermark
    }

    /// Log time of the last entry (W5).
    #[must_use]
    pub fn log_time(&self) -> LogTime {
        self.log_time
    }

    /// Ageing is stopped because cluster time leapt (W5): raise an alarm.
    #[must_use]
    pub fn ageing_stopped(&self) -> bool {
        self.ageing_stopped
    }

    /// Digest chain at the high watermark: equal on all replicas at equal high watermarks.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Producers remembered.
    #[must_use]
    pub fn producer_count(&self) -> usize {
        self.producers.len()
    }

    /// Keys in the window.
    #[must_use]
    pub fn key_count(&self) -> usize {
        self.keys.len()
    }

    /// What the window knows of a key.
    #[must_use]
    pub fn lookup(&self, key: KeyHash) -> Option<KnownKey> {
        self.keys.get(key)
    }

    /// Key runs of entries before this one are not needed any more: storage may delete them. `None` = no key is
    /// in the window.
    #[must_use]
    pub fn key_runs_from(&self) -> Option<LogIndex> {
        self.keys.oldest_run()
    }
}

#[cfg(test)]
mod tests;
