//! Applying one committed entry.

use quorate_proto::batch::{BatchView, Descriptor, StoredPrefix, Suppressed};
use quorate_proto::entry::{EntryKind, EntryTime, EntryView};
use quorate_proto::ids::{LogIndex, Offset, ProducerId, Term};
use quorate_proto::key_run::{self, KeyItem};

use super::keys::KnownKey;
use super::outcome::{duplicate_receipt, push_fate, refuse_batch, BatchResult, Fate, FateRun};
use super::producers::Verdict;
use super::{Applied, ApplyError, BatchOutcome, Partition};
use crate::node::effect::{AppliedEntry, StoredBatch};
use crate::policy::{Policy, Production};

impl Partition {
    /// Applies an entry without payload, or one of Raft's own (configuration): only the position moves.
    ///
    /// # Errors
    /// It is not the next entry.
    pub fn apply_empty(&mut self, index: LogIndex, term: Term) -> Result<(), ApplyError> {
        self.expect_next(index)?;
        self.applied = (index, term);
        Ok(())
    }

    /// Applies the next committed entry. All decisions fall here, from the log alone (W3, I3–I7).
    ///
    /// # Errors
    /// The entry cannot be applied by this software or its bytes are damaged: the replica must stop. The machine may
    /// have applied a part of the entry and must not be used any more.
    pub fn apply(&mut self, index: LogIndex, term: Term, entry: &EntryView) -> Result<Applied, ApplyError> {
        self.apply_as::<Production>(index, term, entry)
    }

    /// The same under a policy.
    ///
    /// # Errors
    /// As [`Self::apply`].
    pub fn apply_as<P: Policy>(
        &mut self,
        index: LogIndex,
        term: Term,
        entry: &EntryView,
    ) -> Result<Applied, ApplyError> {
        self.expect_next(index)?;
        if !matches!(entry.kind(), EntryKind::Batches | EntryKind::Trim) {
            return Err(ApplyError::Unsupported { index, kind: entry.kind() });
        }
        self.applied = (index, term);
        self.feature_level = self.feature_level.max(entry.level());
        self.advance_time(entry.time());
        self.producers.expire(self.ageing);
        if let Some(low) = entry.low_watermark() {
            self.low_watermark = self.low_watermark.max(low.min(self.next_offset));
        }
        let mut applied = Applied {
            outcomes: Vec::with_capacity(entry.count() as usize),
            entry: AppliedEntry {
                index,
                term,
                log_time: self.log_time,
                batches: Vec::with_capacity(entry.count() as usize),
                keys: bytes::Bytes::new(),
            },
        };
        let mut new_keys = Vec::new();
        for (position, part) in entry.batches().enumerate() {
            let batch =
                BatchView::parse(part.batch).map_err(|error| ApplyError::Damaged { index, batch: position, error })?;
            if self.next_offset.0.checked_add(u64::from(batch.count())).is_none_or(|end| end == u64::MAX) {
                return Err(ApplyError::OffsetsExhausted { index, next: self.next_offset });
            }
            let outcome = self.apply_batch::<P>(term, &batch, &mut new_keys, &mut applied.entry.batches);
            applied.outcomes.push(outcome);
        }
        applied.entry.keys = key_run::encode(index, self.log_time, &new_keys);
        self.keys.push_run(index, self.log_time, &new_keys);
        self.keys.evict(self.ageing, &self.limits);
        Ok(applied)
    }

    fn expect_next(&self, index: LogIndex) -> Result<(), ApplyError> {
        let expected = self.applied.0.next();
        if index == expected {
            Ok(())
        } else {
            Err(ApplyError::Gap { expected, found: index })
        }
    }

    /// W5: log time never goes back. Ageing stands still after a leap until it is accepted.
    fn advance_time(&mut self, time: EntryTime) {
        self.log_time = self.log_time.max(time.log_time);
        if time.leapt {
            self.ageing_stopped = true;
        }
        if time.accepted {
            self.ageing_stopped = false;
        }
        if !self.ageing_stopped {
            self.ageing = self.log_time;
        }
    }

    fn apply_batch<P: Policy>(
        &mut self,
        term: Term,
        batch: &BatchView,
        new_keys: &mut Vec<KeyItem>,
        stored: &mut Vec<StoredBatch>,
    ) -> BatchOutcome {
        let header = batch.header();
        let id = &header.identity;
        if id.producer != ProducerId::NONE {
            match self.producers.judge::<P>(id, header.count) {
                Verdict::Accept => {}
                Verdict::Duplicate(result) => return Ok(duplicate_receipt(header, result)),
                Verdict::Refuse(why) => return Err(refuse_batch(&self.label, header, why)),
            }
            self.producers
                .make_room(id.producer, self.ageing, self.limits.producers_max)
                .map_err(|why| refuse_batch(&self.label, header, why))?;
        }
        let fates = self.settle_records(batch, new_keys);
        let suppressed: u32 = fates.iter().map(|run| run.count).sum();
        let base_offset = self.next_offset;
        if suppressed < header.count {
            stored.push(self.store(term, batch, &fates, suppressed));
        }
        let result = BatchResult {
            base: id.base_sequence,
            count: header.count,
            base_offset,
            epoch: term,
            log_time: self.log_time,
            fates: fates.into_boxed_slice(),
        };
        let receipt = result.receipt(false);
        if id.producer != ProducerId::NONE {
            self.producers.advance(id, result, self.log_time);
        }
        Ok(receipt)
    }

    /// Decides record by record (I7); keys of records that get an offset are in the window afterwards.
    fn settle_records(&mut self, batch: &BatchView, new_keys: &mut Vec<KeyItem>) -> Vec<FateRun> {
        let (mut fates, mut next, first_key) = (Vec::new(), self.next_offset, new_keys.len());
        for (index, descriptor) in (0u32..).zip(batch.descriptors()) {
            match self.settle(&descriptor) {
                Some(fate) => push_fate(&mut fates, index, fate, false),
                None => {
                    if !descriptor.key.is_none() {
                        let item = KeyItem { key: descriptor.key, payload: descriptor.payload, offset: next };
                        self.keys.insert(&item);
                        new_keys.push(item);
                    }
                    next = next.next();
                }
            }
        }
        let refused = fates.iter().find(|run| run.fate.is_refusal()).map(|run| run.fate);
        match refused {
            Some(fate) if batch.header().all_or_nothing => {
                for item in new_keys.drain(first_key..) {
                    self.keys.take_back(item.key);
                }
                refuse_all(batch.count(), self.next_offset, &fates, fate)
            }
            _ => fates,
        }
    }

    /// Why a record gets no offset; `None` = it gets the next one. What was applied before is answered so even if
    /// it would be refused today.
    fn settle(&self, record: &Descriptor) -> Option<Fate> {
        if !record.key.is_none() {
            match self.keys.get(record.key) {
                Some(KnownKey::Void) => return Some(Fate::Void),
                Some(KnownKey::Committed { offset, payload }) if payload == record.payload => {
                    return Some(Fate::Duplicate(offset));
                }
                Some(KnownKey::Committed { offset, .. }) => return Some(Fate::Conflict(offset)),
                None => {}
            }
            let made = record.key_created_at;
            if made.0 != 0 && self.keys.is_beyond(made, self.ageing) {
                return Some(Fate::TooOld { forgotten: self.keys.may_have_forgotten(made) });
            }
        }
        (record.not_after.0 != 0 && self.log_time > record.not_after).then_some(Fate::Expired)
    }

    fn store(&mut self, term: Term, batch: &BatchView, fates: &[FateRun], suppressed: u32) -> StoredBatch {
        let mut bitmap = Suppressed::default();
        for run in fates {
            (run.index..run.index + run.count).for_each(|index| bitmap.mark(index));
        }
        let prefix = StoredPrefix {
            base_offset: self.next_offset,
            epoch: term,
            log_time: self.log_time,
            count: batch.count(),
            visible: batch.count() - suppressed,
            body_len: batch.header().length,
        };
        let bytes = prefix.encode(&bitmap);
        self.digest = self.digest.chain(&bytes, batch.bytes());
        self.next_offset = prefix.end_offset();
        StoredBatch {
            base_offset: prefix.base_offset,
            end_offset: prefix.end_offset(),
            prefix: bytes,
            body: batch.bytes().clone(),
        }
    }
}

/// All-or-nothing: records that were fine, and copies of records of this very batch, are refused together with the
/// first refused one. Copies of what stood in the log before stay duplicates.
fn refuse_all(count: u32, log_end: Offset, own: &[FateRun], first: Fate) -> Vec<FateRun> {
    let shared = if let Fate::Conflict(_) = first { Fate::ConflictWithin } else { first };
    let (mut fates, mut own) = (Vec::new(), own.iter().flat_map(FateRun::each).peekable());
    for index in 0..count {
        match own.next_if(|(own_index, _)| *own_index == index).map(|(_, fate)| fate) {
            Some(Fate::Conflict(offset)) if offset >= log_end => {
                push_fate(&mut fates, index, Fate::ConflictWithin, false);
            }
            Some(Fate::Duplicate(offset)) if offset >= log_end => push_fate(&mut fates, index, shared, true),
            Some(fate) => push_fate(&mut fates, index, fate, false),
            None => push_fate(&mut fates, index, shared, true),
        }
    }
    fates
}
