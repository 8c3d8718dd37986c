//! What raft-rs reads of the log: an entry cache, the term of every live index, and no IO (`3-architecture`).
//!
//! ```text
//!   start            floor                                   last
//!     │  (in the WAL only)  │  cache: everything not applied,     │
//!     │                     │  and the newest bytes before it     │
//!     └ term runs: one (first index, term) per change of term ────┘
//! ```
//!
//! - Appended entries are readable *at once*, before they are flushed: raft-rs sends and commits from here, and its
//!   `become_leader` asserts that `last_index` and `term` reflect what was appended. An overlap replaces the old
//!   suffix, cache and term runs alike.
//! - An index after the owner's and raft-rs's applied index is never evicted, so every reader except a lagging
//!   follower's `SendAppend` finds its range. For that one, `LogTemporarilyUnavailable` is answered and a fetch noted;
//!   the owner reads the WAL and hands the entries in (`take_fetches`, `put_fetched`).
//! - A follower beyond the start of the log makes raft-rs ask for a snapshot: noted the same way.
//!
//! `raft::Storage` takes `&self`, hence the cell around the notes.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use raft::eraftpb::{ConfState, Entry, HardState, Snapshot};
use raft::{Error, GetEntriesContext, RaftState, Storage, StorageError};

/// Requests of raft-rs that one fetch may answer; later ones are dropped, the next heartbeat asks again.
const MAX_CONTEXTS_PER_FETCH: usize = 8;
/// Fetches under way at most; the next heartbeat asks again.
const MAX_FETCHES: usize = 8;
/// What an entry counts besides its data, bytes.
const ENTRY_OVERHEAD: usize = 32;

/// A range wanted from the WAL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) max_bytes: u64,
}

#[derive(Default)]
struct Notes {
    /// Under way, by first index.
    fetching: BTreeMap<u64, Vec<GetEntriesContext>>,
    /// Not yet told to the owner.
    wanted: Vec<Wanted>,
    /// Answered, while raft-rs reads it again; `None` = gone.
    fetched: BTreeMap<u64, Option<Vec<Entry>>>,
    /// Followers that need a snapshot, not yet told to the owner.
    snapshots_wanted: Vec<u64>,
    /// Being built.
    building: BTreeSet<u64>,
    /// Already under way when overdue requests were last looked for.
    old_fetches: BTreeSet<u64>,
    old_building: BTreeSet<u64>,
    /// Ready to be sent.
    built: BTreeMap<u64, Snapshot>,
}

/// The log as raft-rs sees it.
pub(super) struct LogStore {
    hard_state: HardState,
    conf_state: ConfState,
    start: (u64, u64),
    runs: VecDeque<(u64, u64)>,
    last: u64,
    cache: VecDeque<Entry>,
    bytes: usize,
    budget: usize,
    notes: RefCell<Notes>,
}

fn cost(entry: &Entry) -> usize {
    entry.data.len() + entry.context.len() + ENTRY_OVERHEAD
}

/// Clones entries up to `max` bytes, one at least.
fn limited<'a>(entries: impl Iterator<Item = &'a Entry>, max: Option<u64>) -> Vec<Entry> {
    let max = max.unwrap_or(u64::MAX);
    let mut size = 0_u64;
    let mut taken = Vec::new();
    for entry in entries {
        size = size.saturating_add(cost(entry) as u64);
        if size > max && !taken.is_empty() {
            break;
        }
        taken.push(entry.clone());
    }
    taken
}

impl LogStore {
    pub(super) fn new(hard_state: HardState, conf_state: ConfState, start: (u64, u64), budget: usize) -> Self {
        Self {
            hard_state,
            conf_state,
            start,
            runs: VecDeque::new(),
            last: start.0,
            cache: VecDeque::new(),
            bytes: 0,
            budget,
            notes: RefCell::default(),
        }
    }

    pub(super) fn start(&self) -> (u64, u64) {
        self.start
    }

    fn cache_first(&self) -> u64 {
        self.last + 1 - self.cache.len() as u64
    }

    /// Appends; an overlap replaces the old suffix.
    ///
    /// # Panics
    /// On a gap, or if the overlap reaches into the compacted part: the log would be wrong.
    pub(super) fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first().map(|e| e.index) else { return };
        assert!(
            first > self.start.0 && first <= self.last + 1,
            "append at {first} to a log of {:?}..={}",
            self.start,
            self.last
        );
        self.truncate(first);
        for entry in entries {
            assert_eq!(entry.index, self.last + 1, "entries are contiguous");
            if self.runs.back().is_none_or(|&(_, term)| term != entry.term) {
                self.runs.push_back((entry.index, entry.term));
            }
            self.bytes += cost(entry);
            self.last = entry.index;
            self.cache.push_back(entry.clone());
        }
    }

    fn truncate(&mut self, first: u64) {
        while self.last >= first {
            if let Some(old) = self.cache.pop_back() {
                self.bytes -= cost(&old);
            }
            self.last -= 1;
        }
        while self.runs.back().is_some_and(|&(from, _)| from >= first) {
            self.runs.pop_back();
        }
    }

    /// Drops cached entries up to `floor` beyond the budget.
    pub(super) fn evict(&mut self, floor: u64) {
        while self.bytes > self.budget && self.cache.front().is_some_and(|e| e.index <= floor) {
            if let Some(old) = self.cache.pop_front() {
                self.bytes -= cost(&old);
            }
        }
    }

    /// Gives up entries up to `index`, which must be in the log.
    pub(super) fn compact(&mut self, index: u64) {
        if index <= self.start.0 {
            return;
        }
        let term = self.term(index).expect("only what was applied is compacted, hence in the log");
        self.start = (index, term);
        while self.runs.len() >= 2 && self.runs[1].0 <= index + 1 {
            self.runs.pop_front();
        }
        if index == self.last {
            self.runs.clear();
        } else if let Some(run) = self.runs.front_mut() {
            run.0 = run.0.max(index + 1);
        }
        while self.cache.front().is_some_and(|e| e.index <= index) {
            if let Some(old) = self.cache.pop_front() {
                self.bytes -= cost(&old);
            }
        }
        self.notes.get_mut().built.retain(|_, s| s.get_metadata().index >= index);
    }

    /// A snapshot takes the place of the whole log.
    pub(super) fn reset_to(&mut self, index: u64, term: u64) {
        let (budget, conf_state, hard_state) =
            (self.budget, std::mem::take(&mut self.conf_state), std::mem::take(&mut self.hard_state));
        *self = Self::new(hard_state, conf_state, (index, term), budget);
    }

    /// Cached entries `low..=high`, at most `max` bytes, one at least.
    ///
    /// # Panics
    /// If the range begins before the cache: the floor of [`Self::evict`] was too high.
    pub(super) fn cached(&self, low: u64, high: u64, max: u64) -> Vec<Entry> {
        let first = self.cache_first();
        assert!(low >= first && high <= self.last, "{low}..={high} is not in the cache {first}..={}", self.last);
        limited(self.cache.range((low - first) as usize..=(high - first) as usize), Some(max))
    }

    /// Fetches to start now.
    pub(super) fn take_wanted(&mut self) -> Vec<Wanted> {
        std::mem::take(&mut self.notes.get_mut().wanted)
    }

    /// An answer to a fetch: returns what raft-rs waits for, while the entries can be read.
    pub(super) fn put_fetched(&mut self, from: u64, entries: Option<Vec<Entry>>) -> Vec<GetEntriesContext> {
        let in_order = |entries: &Vec<Entry>| {
            !entries.is_empty() && entries.iter().zip(from..).all(|(e, i)| e.index == i && self.term(i) == Ok(e.term))
        };
        let entries = entries.filter(in_order);
        let notes = self.notes.get_mut();
        let contexts = notes.fetching.remove(&from).unwrap_or_default();
        if !contexts.is_empty() {
            notes.fetched.insert(from, entries);
        }
        contexts
    }

    /// Every reader of [`Self::put_fetched`] has read.
    pub(super) fn drop_fetched(&mut self) {
        self.notes.get_mut().fetched.clear();
    }

    /// Forgets requests that were already under way at the last call; raft-rs asks again.
    pub(super) fn forget_overdue(&mut self) {
        let notes = self.notes.get_mut();
        notes.fetching.retain(|from, _| !notes.old_fetches.contains(from));
        notes.building.retain(|to| !notes.old_building.contains(to));
        notes.old_fetches = notes.fetching.keys().copied().collect();
        notes.old_building = notes.building.clone();
    }

    /// Snapshots to build now.
    pub(super) fn take_snapshots_wanted(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.notes.get_mut().snapshots_wanted)
    }

    /// The snapshot for `to` is ready, or could not be made.
    pub(super) fn put_snapshot(&mut self, to: u64, snapshot: Option<Snapshot>) {
        let oldest = self.start.0;
        let notes = self.notes.get_mut();
        notes.building.remove(&to);
        if let Some(snapshot) = snapshot.filter(|s| s.get_metadata().index >= oldest) {
            notes.built.insert(to, snapshot);
        }
    }

    /// Oldest position that a snapshot made, but not yet sent, needs the log to go on from.
    pub(super) fn snapshot_floor(&self) -> Option<u64> {
        let notes = self.notes.borrow();
        let built = notes.built.values().map(|s| s.get_metadata().index).min();
        // While one is being built its position is not known: nothing more is given up.
        if notes.building.is_empty() {
            built
        } else {
            Some(self.start.0)
        }
    }

    /// Who does not lead sends no snapshots.
    pub(super) fn forget_building(&mut self) {
        self.notes.get_mut().building.clear();
    }
}

impl Storage for LogStore {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState::new(self.hard_state.clone(), self.conf_state.clone()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        let max = max_size.into();
        if low <= self.start.0 {
            return Err(Error::Store(StorageError::Compacted));
        }
        assert!(high <= self.last + 1, "raft-rs reads {low}..{high} of a log up to {}", self.last);
        let first = self.cache_first();
        if low >= first {
            return Ok(limited(self.cache.range((low - first) as usize..(high - first) as usize), max));
        }
        if !context.can_async() {
            return Err(Error::Store(StorageError::Unavailable));
        }
        let mut notes = self.notes.borrow_mut();
        match notes.fetched.get(&low) {
            Some(Some(entries)) => return Ok(limited(entries.iter().take_while(|e| e.index < high), max)),
            Some(None) => return Err(Error::Store(StorageError::Compacted)),
            None => {}
        }
        if let Some(contexts) = notes.fetching.get_mut(&low) {
            if contexts.len() < MAX_CONTEXTS_PER_FETCH {
                contexts.push(context);
            }
        } else if notes.fetching.len() < MAX_FETCHES {
            notes.fetching.insert(low, vec![context]);
            notes.wanted.push(Wanted { from: low, to: high.min(first), max_bytes: max.unwrap_or(u64::MAX) });
        }
        Err(Error::Store(StorageError::LogTemporarilyUnavailable))
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        if index == self.start.0 {
            return Ok(self.start.1);
        }
        if index < self.start.0 {
            return Err(Error::Store(StorageError::Compacted));
        }
        if index > self.last {
            return Err(Error::Store(StorageError::Unavailable));
        }
        let after = self.runs.partition_point(|&(from, _)| from <= index);
        Ok(self.runs[after - 1].1)
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.start.0 + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last)
    }

    fn snapshot(&self, request_index: u64, to: u64) -> raft::Result<Snapshot> {
        let mut notes = self.notes.borrow_mut();
        if notes.built.get(&to).is_some_and(|s| s.get_metadata().index >= request_index) {
            return Ok(notes.built.remove(&to).expect("it was just found"));
        }
        notes.built.remove(&to);
        if notes.building.insert(to) {
            notes.snapshots_wanted.push(to);
        }
        Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(index: u64, term: u64, size: usize) -> Entry {
        Entry { index, term, data: vec![0_u8; size].into(), ..Default::default() }
    }

    fn store(budget: usize) -> LogStore {
        LogStore::new(HardState::default(), ConfState::default(), (5, 1), budget)
    }

    proptest! {
        #[test]
        fn the_log_equals_a_plain_vector_after_any_appends_overwrites_and_compactions(
            steps in proptest::collection::vec((0_u8..4, 0_u64..12, 1_u64..6, 0_u64..3), 1..60),
        ) {
            let mut log = store(400);
            let mut model: Vec<(u64, u64)> = vec![(5, 1)];
            let mut term = 1;
            for (kind, back, count, raise) in steps {
                let (first, last) = (model[0].0, model[model.len() - 1].0);
                match kind {
                    0..=1 => {
                        term += raise;
                        let from = (last + 1).saturating_sub(back).max(first + 1);
                        let entries: Vec<_> = (from..from + count).map(|i| entry(i, term, 40)).collect();
                        log.append(&entries);
                        model.retain(|&(i, _)| i < from);
                        model.extend((from..from + count).map(|i| (i, term)));
                    }
                    2 => {
                        let to = (first + back).min(last);
                        log.compact(to);
                        model.retain(|&(i, _)| i >= to);
                    }
                    _ => log.evict(first + back),
                }
                prop_assert_eq!(log.first_index().unwrap(), model[0].0 + 1);
                prop_assert_eq!(log.last_index().unwrap(), model[model.len() - 1].0);
                for &(index, term) in &model {
                    prop_assert_eq!(log.term(index).unwrap(), term);
                }
                let cached = log.cache_first();
                for &(index, term) in model.iter().filter(|&&(i, _)| i >= cached.max(model[0].0 + 1)) {
                    let read = log.entries(index, index + 1, None, GetEntriesContext::empty(false)).unwrap();
                    prop_assert_eq!((read[0].index, read[0].term), (index, term));
                }
            }
        }
    }

    #[test]
    fn a_range_before_the_cache_is_fetched_once_and_then_read() {
        let mut log = store(0);
        log.append(&(6..=20).map(|i| entry(i, 2, 10)).collect::<Vec<_>>());
        log.evict(12);
        let ask = |log: &LogStore| log.entries(8, 21, Some(100), GetEntriesContext::empty(true));
        assert!(matches!(ask(&log), Err(Error::Store(StorageError::LogTemporarilyUnavailable))));
        assert!(matches!(ask(&log), Err(Error::Store(StorageError::LogTemporarilyUnavailable))));
        assert_eq!(log.take_wanted(), vec![Wanted { from: 8, to: 13, max_bytes: 100 }]);
        let contexts = log.put_fetched(8, Some((8..=12).map(|i| entry(i, 2, 10)).collect()));
        assert_eq!(contexts.len(), 2);
        assert_eq!(ask(&log).unwrap().iter().map(|e| e.index).collect::<Vec<_>>(), vec![8, 9]);
        log.drop_fetched();
    }

    #[test]
    fn entries_of_another_term_than_the_log_are_not_taken_from_a_fetch() {
        let mut log = store(0);
        log.append(&(6..=20).map(|i| entry(i, 2, 10)).collect::<Vec<_>>());
        log.evict(12);
        let _ = log.entries(8, 21, None, GetEntriesContext::empty(true));
        let contexts = log.put_fetched(8, Some(vec![entry(8, 1, 10)]));
        assert_eq!(contexts.len(), 1);
        let read = log.entries(8, 21, None, GetEntriesContext::empty(true));
        assert!(matches!(read, Err(Error::Store(StorageError::Compacted))));
    }

    #[test]
    fn a_snapshot_is_asked_for_once_and_holds_the_log_until_it_is_sent() {
        let mut log = store(1000);
        log.append(&(6..=20).map(|i| entry(i, 2, 10)).collect::<Vec<_>>());
        assert!(log.snapshot(0, 3).is_err());
        assert!(log.snapshot(0, 3).is_err());
        assert_eq!(log.take_snapshots_wanted(), vec![3]);
        assert_eq!(log.snapshot_floor(), Some(5));
        let mut snapshot = Snapshot::default();
        snapshot.mut_metadata().index = 9;
        log.put_snapshot(3, Some(snapshot));
        assert_eq!(log.snapshot_floor(), Some(9));
        assert_eq!(log.snapshot(0, 3).unwrap().get_metadata().index, 9);
        assert_eq!(log.snapshot_floor(), None);
    }
}
