//! The client's own ledger of a run and the exact audit against what an independent reader found.
//!
//! One slot per record: nothing is sampled, nothing is estimated. Terms are those of the reports:
//! *lost* = acknowledged, never read back · *phantom* = reported as decisively refused, yet there ·
//! *duplicate* = there more than once · *reordered* = behind a later record of its key ·
//! *unresolved* = the client gave up without knowing the fate · *unconfirmed* = acknowledged, but the reader
//! had not come as far as its offset when it stopped (a tail, not a loss).

use serde::Serialize;

use crate::payload::Stamp;

/// What the client knows about one record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fate {
    /// Never handed to the SDK, or still pending.
    #[default]
    Pending,
    /// Committed at this place.
    Acknowledged {
        /// Partition.
        partition: u32,
        /// Offset in it; [`ANYWHERE`] if the receipt did not say.
        offset: u64,
    },
    /// Decisively refused: never applied, never will be.
    Refused,
    /// The SDK gave up; it may or may not be there.
    Unresolved,
}

/// Offset of a record whose receipt proves the commit but not the place.
pub const ANYWHERE: u64 = u64::MAX;

/// One run's records, by number.
#[derive(Debug)]
pub struct Ledger {
    run: u64,
    fates: Vec<Fate>,
    seen: Bitmap,
    keys: Vec<Option<u64>>,
    read_to: Vec<u64>,
    audit: Audit,
    complaints: Vec<String>,
}

/// The account of a run. All counts are records.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Audit {
    /// Handed to the SDK.
    pub sent: u64,
    /// Acknowledged as committed.
    pub acknowledged: u64,
    /// Decisively refused.
    pub refused: u64,
    /// Of unknown fate at the client.
    pub unresolved: u64,
    /// Read back, repeats included.
    pub read: u64,
    /// Acknowledged, never read back.
    pub lost: u64,
    /// Read back again, or acknowledged at one place and found at another.
    pub duplicate: u64,
    /// Read behind a later record of the same key.
    pub reordered: u64,
    /// Refused decisively, yet there.
    pub phantom: u64,
    /// Acknowledged beyond the place where the reader stopped.
    pub unconfirmed: u64,
    /// Read back with bytes that this run did not write.
    pub corrupt: u64,
}

impl Audit {
    /// No message was lost, doubled, reordered, changed, or there against the client's word.
    #[must_use]
    pub fn clean(&self) -> bool {
        self.lost == 0 && self.duplicate == 0 && self.reordered == 0 && self.phantom == 0 && self.corrupt == 0
    }

    /// Adds another run's counts.
    pub fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.acknowledged += other.acknowledged;
        self.refused += other.refused;
        self.unresolved += other.unresolved;
        self.read += other.read;
        self.lost += other.lost;
        self.duplicate += other.duplicate;
        self.reordered += other.reordered;
        self.phantom += other.phantom;
        self.unconfirmed += other.unconfirmed;
        self.corrupt += other.corrupt;
    }
}

impl Ledger {
    /// An empty ledger.
    #[must_use]
    pub fn new(run: u64) -> Self {
        Self {
            run,
            fates: Vec::new(),
            seen: Bitmap::default(),
            keys: Vec::new(),
            read_to: Vec::new(),
            audit: Audit::default(),
            complaints: Vec::new(),
        }
    }

    /// Record `index` was handed to the SDK.
    pub fn sent(&mut self, index: u64) {
        let at = usize::try_from(index).expect("record numbers fit in memory");
        if self.fates.len() <= at {
            self.fates.resize(at + 1, Fate::Pending);
        }
        self.audit.sent += 1;
    }

    /// Its fate became known.
    pub fn settle(&mut self, index: u64, fate: Fate) {
        let at = usize::try_from(index).expect("record numbers fit in memory");
        let slot = self.fates.get_mut(at).expect("sent before it is settled");
        assert_eq!(*slot, Fate::Pending, "record {index} was settled twice");
        *slot = fate;
        match fate {
            Fate::Pending => {}
            Fate::Acknowledged { .. } => self.audit.acknowledged += 1,
            Fate::Refused => self.audit.refused += 1,
            Fate::Unresolved => self.audit.unresolved += 1,
        }
    }

    /// Records acknowledged so far.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.audit.acknowledged
    }

    /// The reader found this value. Values of other runs are passed over.
    pub fn read(&mut self, partition: u32, offset: u64, value: &[u8]) {
        let part = partition as usize;
        if self.read_to.len() <= part {
            self.read_to.resize(part + 1, 0);
        }
        self.read_to[part] = self.read_to[part].max(offset + 1);
        let Some(stamp) = Stamp::decode(value) else {
            self.audit.corrupt += 1;
            self.complain(format!("{partition}/{offset}: not a record of any run"));
            return;
        };
        if stamp.run != self.run {
            return;
        }
        self.audit.read += 1;
        if !self.seen.insert(stamp.index) {
            self.audit.duplicate += 1;
            self.complain(format!("{partition}/{offset}: record {} is there again", stamp.index));
            return;
        }
        let at = usize::try_from(stamp.index).unwrap_or(usize::MAX);
        match self.fates.get(at).copied() {
            Some(Fate::Acknowledged { partition: p, offset: o })
                if p != partition || (o != offset && o != ANYWHERE) =>
            {
                self.audit.duplicate += 1;
                self.complain(format!("{partition}/{offset}: record {} was acknowledged at {p}/{o}", stamp.index));
            }
            Some(Fate::Refused) | None => {
                self.audit.phantom += 1;
                self.complain(format!("{partition}/{offset}: record {} was refused, yet is there", stamp.index));
            }
            _ => {}
        }
        self.check_order(partition, offset, stamp);
    }

    fn check_order(&mut self, partition: u32, offset: u64, stamp: Stamp) {
        let key = stamp.key as usize;
        if self.keys.len() <= key {
            self.keys.resize(key + 1, None);
        }
        match self.keys[key] {
            Some(last) if stamp.key_sequence < last => {
                self.audit.reordered += 1;
                let (number, key) = (stamp.key_sequence, stamp.key);
                self.complain(format!("{partition}/{offset}: record {number} of key {key} stands behind {last}"));
            }
            _ => self.keys[key] = Some(stamp.key_sequence),
        }
    }

    /// Closes the account. `read_to_end`: the reader came as far as the partitions' ends.
    #[must_use]
    pub fn close(mut self, read_to_end: bool) -> (Audit, Vec<String>) {
        for index in 0..self.fates.len() {
            let Fate::Acknowledged { partition, offset } = self.fates[index] else { continue };
            if self.seen.contains(index as u64) {
                continue;
            }
            let passed = self.read_to.get(partition as usize).is_some_and(|&to| offset < to);
            if read_to_end || passed {
                self.audit.lost += 1;
                self.complain(format!("record {index}, acknowledged at {partition}/{offset}, is not there"));
            } else {
                self.audit.unconfirmed += 1;
            }
        }
        (self.audit, self.complaints)
    }

    fn complain(&mut self, text: String) {
        // Enough to find the fault; the counts are complete.
        const SHOWN: usize = 20;
        if self.complaints.len() < SHOWN {
            self.complaints.push(text);
        }
    }
}

/// A set of record numbers, one bit each.
#[derive(Debug, Default)]
struct Bitmap(Vec<u64>);

impl Bitmap {
    /// False if it was there already.
    fn insert(&mut self, index: u64) -> bool {
        let word = usize::try_from(index / 64).expect("record numbers fit in memory");
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        let bit = 1_u64 << (index % 64);
        let fresh = self.0[word] & bit == 0;
        self.0[word] |= bit;
        fresh
    }

    fn contains(&self, index: u64) -> bool {
        let word = usize::try_from(index / 64).unwrap_or(usize::MAX);
        self.0.get(word).is_some_and(|w| w & (1 << (index % 64)) != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(index: u64, key: u32, key_sequence: u64) -> bytes::Bytes {
        Stamp { run: 1, index, key, producer: 0, key_sequence, due_ns: 0 }.encode(64)
    }

    fn ledger(acknowledged: u64) -> Ledger {
        let mut ledger = Ledger::new(1);
        for index in 0..acknowledged {
            ledger.sent(index);
            ledger.settle(index, Fate::Acknowledged { partition: 0, offset: index });
        }
        ledger
    }

    #[test]
    fn a_complete_run_is_clean() {
        let mut ledger = ledger(3);
        (0..3).for_each(|i| ledger.read(0, i, &value(i, 0, i)));
        let (audit, complaints) = ledger.close(true);
        assert!(audit.clean(), "{complaints:?}");
        assert_eq!((audit.sent, audit.acknowledged, audit.read), (3, 3, 3));
    }

    #[test]
    fn an_acknowledged_record_that_is_passed_over_is_lost() {
        let mut ledger = ledger(3);
        ledger.read(0, 0, &value(0, 0, 0));
        ledger.read(0, 2, &value(2, 0, 2));
        let (audit, _) = ledger.close(false);
        assert_eq!(audit.lost, 1);
        assert!(!audit.clean());
    }

    #[test]
    fn an_unread_tail_is_unconfirmed_and_lost_only_at_the_end_of_the_log() {
        let mut short = ledger(3);
        short.read(0, 0, &value(0, 0, 0));
        assert_eq!(short.close(false).0.unconfirmed, 2);
        let mut whole = ledger(3);
        whole.read(0, 0, &value(0, 0, 0));
        assert_eq!(whole.close(true).0.lost, 2);
    }

    #[test]
    fn a_second_copy_and_a_moved_record_are_duplicates() {
        let mut ledger = ledger(2);
        ledger.read(0, 0, &value(0, 0, 0));
        ledger.read(0, 1, &value(0, 0, 0));
        ledger.read(0, 5, &value(1, 0, 1));
        assert_eq!(ledger.close(true).0.duplicate, 2);
    }

    #[test]
    fn order_is_judged_per_key() {
        let mut ledger = ledger(4);
        ledger.read(0, 0, &value(0, 0, 0));
        ledger.read(0, 1, &value(1, 1, 0));
        ledger.read(0, 2, &value(2, 0, 2));
        ledger.read(0, 3, &value(3, 0, 1));
        assert_eq!(ledger.close(true).0.reordered, 1);
    }

    #[test]
    fn a_refused_record_that_is_there_is_a_phantom_and_an_unresolved_one_is_not() {
        let mut ledger = Ledger::new(1);
        (0..2).for_each(|i| ledger.sent(i));
        ledger.settle(0, Fate::Refused);
        ledger.settle(1, Fate::Unresolved);
        ledger.read(0, 0, &value(0, 0, 0));
        ledger.read(0, 1, &value(1, 0, 1));
        let (audit, _) = ledger.close(true);
        assert_eq!((audit.phantom, audit.unresolved), (1, 1));
    }

    #[test]
    fn foreign_runs_are_passed_over_and_foreign_bytes_are_corrupt() {
        let mut ledger = Ledger::new(1);
        let other = Stamp { run: 2, index: 0, key: 0, producer: 0, key_sequence: 0, due_ns: 0 };
        ledger.read(0, 0, &other.encode(64));
        ledger.read(0, 1, b"hello");
        let (audit, _) = ledger.close(true);
        assert_eq!((audit.read, audit.corrupt), (0, 1));
    }
}
