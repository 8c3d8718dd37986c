//! The key window (I7): which idempotency keys were applied, with what payload, at which offset.
//! It is always the newest part of the sequence of all keys ever applied, in the order of their entries.

use std::collections::{BTreeMap, VecDeque};

use quorate_proto::hash::{KeyHash, PayloadHash};
use quorate_proto::ids::{LogIndex, Offset};
use quorate_proto::key_run::{KeyItem, KeyRun};
use quorate_proto::limits::KEY_WINDOW;
use quorate_proto::time::LogTime;

use super::PartitionLimits;

/// Stands for "void" in place of an offset (I8, reserved).
const VOID: Offset = Offset(u64::MAX);

/// What the window knows of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownKey {
    /// First copy.
    Committed {
        /// Where it stands.
        offset: Offset,
        /// With which payload.
        payload: PayloadHash,
    },
    /// It can never be applied (I8).
    Void,
}

#[derive(Clone, Copy, Debug)]
struct Stored {
    payload: PayloadHash,
    offset: Offset,
}

/// Keys of one entry, in the order applied.
#[derive(Clone, Debug)]
struct Run {
    index: LogIndex,
    log_time: LogTime,
    keys: Box<[KeyHash]>,
}

/// Every key of `map` stands exactly once in `runs` after the first `gone` keys of the front run.
#[derive(Clone, Debug, Default)]
pub(super) struct KeyWindow {
    map: BTreeMap<KeyHash, Stored>,
    runs: VecDeque<Run>,
    /// Keys of the front run that left already.
    gone: usize,
    /// Log time of the newest key that left.
    evicted_through: LogTime,
}

impl KeyWindow {
    pub(super) fn len(&self) -> usize {
        self.map.len()
    }

    pub(super) fn get(&self, key: KeyHash) -> Option<KnownKey> {
        self.map.get(&key).map(|stored| match stored.offset {
            VOID => KnownKey::Void,
            offset => KnownKey::Committed { offset, payload: stored.payload },
        })
    }

    /// Remembers a key that the window does not hold. Its entry must be closed with [`Self::push_run`].
    pub(super) fn insert(&mut self, item: &KeyItem) {
        let before = self.map.insert(item.key, Stored { payload: item.payload, offset: item.offset });
        debug_assert!(before.is_none(), "a known key is never applied again");
    }

    /// Takes back a key that [`Self::insert`] put in, before its entry was closed.
    pub(super) fn take_back(&mut self, key: KeyHash) {
        self.map.remove(&key);
    }

    /// Closes an entry: these keys were inserted by it.
    pub(super) fn push_run(&mut self, index: LogIndex, log_time: LogTime, items: &[KeyItem]) {
        if !items.is_empty() {
            self.runs.push_back(Run { index, log_time, keys: items.iter().map(|item| item.key).collect() });
        }
    }

    /// Lets keys go that are too old or too many. What stays depends only on all keys so far and on `ageing`.
    pub(super) fn evict(&mut self, ageing: LogTime, limits: &PartitionLimits) {
        while let Some(front) = self.runs.front() {
            let aged = front.log_time.after(KEY_WINDOW) < ageing;
            let surplus = if aged { self.map.len().saturating_sub(limits.keys_min) } else { 0 };
            let surplus = surplus.max(self.map.len().saturating_sub(limits.keys_max));
            if surplus == 0 {
                return;
            }
            let end = front.keys.len().min(self.gone + surplus);
            for key in &front.keys[self.gone..end] {
                self.map.remove(key);
            }
            self.evicted_through = self.evicted_through.max(front.log_time);
            self.gone = end;
            if self.gone == front.keys.len() {
                self.runs.pop_front();
                self.gone = 0;
            }
        }
    }

    /// A key made then may have been applied and forgotten.
    pub(super) fn may_have_forgotten(&self, made: LogTime) -> bool {
        made <= self.evicted_through
    }

    /// A key made then is older than the window promises, or than what it still holds.
    pub(super) fn is_beyond(&self, made: LogTime, ageing: LogTime) -> bool {
        made.after(KEY_WINDOW) < ageing || self.may_have_forgotten(made)
    }

    pub(super) fn oldest_run(&self) -> Option<LogIndex> {
        self.runs.front().map(|run| run.index)
    }

    pub(super) fn evicted_through(&self) -> LogTime {
        self.evicted_through
    }

    /// Rebuilds the window from the last `count` keys of `runs`. `None` if there are fewer.
    pub(super) fn rebuild(runs: &[KeyRun], count: usize, evicted_through: LogTime) -> Option<Self> {
        let total: usize = runs.iter().map(KeyRun::count).sum();
        let mut skip = total.checked_sub(count)?;
        let mut window = Self { evicted_through, ..Self::default() };
        for run in runs {
            if skip >= run.count() {
                skip -= run.count();
                continue;
            }
            if window.runs.is_empty() {
                window.gone = skip;
            }
            let items: Vec<KeyItem> = run.items().collect();
            for item in &items[skip..] {
                window.map.insert(item.key, Stored { payload: item.payload, offset: item.offset });
            }
            skip = 0;
            window.push_run(run.index, run.log_time, &items);
        }
        // A key that stands twice would have left the map too early.
        (window.map.len() == count).then_some(window)
    }
}
