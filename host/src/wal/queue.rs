//! What the handle, the writer and the file system wrapper share.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use quorate_consensus::effect::PersistWrite;
use quorate_proto::time::BootTime;

use super::{WalNotices, WalRequest};
use crate::clock::Clock;

/// Fixed cost of a request in the queue's account: headers, keys, hard state.
const REQUEST_OVERHEAD: usize = 128;

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<WalRequest>,
    fetches: VecDeque<WalRequest>,
    stop: bool,
    /// The writer left its loop, or will never leave it.
    ended: Option<bool>,
}

/// Shared state of one log.
pub(super) struct Shared {
    state: Mutex<State>,
    work: Condvar,
    fetch_work: Condvar,
    end: Condvar,
    watch: Condvar,
    queued_bytes: AtomicU64,
    limit: u64,
    /// Start of the flush in flight, nanoseconds of BOOTTIME; 0 = none.
    flush_started: AtomicU64,
    last_flush: AtomicU64,
    poisoned: AtomicBool,
    clock: Arc<dyn Clock>,
    notices: Arc<dyn WalNotices>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("queued_bytes", &self.queued_bytes)
            .field("poisoned", &self.poisoned)
            .finish_non_exhaustive()
    }
}

impl Shared {
    pub(super) fn new(limit: u64, clock: Arc<dyn Clock>, notices: Arc<dyn WalNotices>) -> Self {
        Self {
            state: Mutex::default(),
            work: Condvar::new(),
            fetch_work: Condvar::new(),
            end: Condvar::new(),
            watch: Condvar::new(),
            queued_bytes: AtomicU64::new(0),
            limit,
            flush_started: AtomicU64::new(0),
            last_flush: AtomicU64::new(0),
            poisoned: AtomicBool::new(false),
            clock,
            notices,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Critical sections are single queue operations: a panic elsewhere leaves the state whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn submit(&self, requests: impl IntoIterator<Item = WalRequest>) {
        let (mut bytes, mut wake, mut wake_fetch) = (0, false, false);
        {
            let mut state = self.state();
            for request in requests {
                if matches!(request, WalRequest::Fetch { .. }) {
                    state.fetches.push_back(request);
                    wake_fetch = true;
                } else {
                    bytes += weight(&request) as u64;
                    state.waiting.push_back(request);
                    wake = true;
                }
            }
            self.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        if wake {
            self.work.notify_one();
        }
        if wake_fetch {
            self.fetch_work.notify_one();
        }
    }

    /// Takes what waits, up to about `max_bytes`, at least one request. Waits up to `patience` for the first one.
    /// `None`: stop, and nothing waits any more. Empty: patience is over.
    pub(super) fn take(&self, max_bytes: usize, patience: Duration) -> Option<Vec<WalRequest>> {
        let mut state = self.state();
        if state.waiting.is_empty() && !state.stop {
            state = self.work.wait_timeout(state, patience).unwrap_or_else(PoisonError::into_inner).0;
        }
        if state.waiting.is_empty() {
            return if state.stop { None } else { Some(Vec::new()) };
        }
        let (mut bytes, mut taken) = (0, Vec::with_capacity(state.waiting.len()));
        while let Some(request) = state.waiting.front() {
            let more = weight(request);
            if bytes > 0 && bytes + more > max_bytes {
                break;
            }
            bytes += more;
            taken.extend(state.waiting.pop_front());
        }
        Some(taken)
    }

    /// The bytes of finished requests leave the account.
    pub(super) fn done(&self, bytes: usize) {
        self.queued_bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
    }

    /// Next fetch; `None`: stop.
    pub(super) fn take_fetch(&self) -> Option<WalRequest> {
        let mut state = self.state();
        loop {
            if state.stop {
                return None;
            }
            if let Some(fetch) = state.fetches.pop_front() {
                return Some(fetch);
            }
            state = self.fetch_work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(super) fn stop(&self) {
        self.state().stop = true;
        self.work.notify_all();
        self.fetch_work.notify_all();
        self.watch.notify_all();
    }

    /// Waits for the end of the log for at most `patience`; whether it came.
    pub(super) fn stopped_within(&self, patience: Duration) -> bool {
        let state = self.state();
        let over = |state: &mut State| !state.stop && state.ended.is_none();
        let (state, _) = self.watch.wait_timeout_while(state, patience, over).unwrap_or_else(PoisonError::into_inner);
        state.stop || state.ended.is_some()
    }

    /// The writer left its loop (`true`) or is parked for ever (`false`).
    fn ended(&self, clean: bool) {
        self.state().ended.get_or_insert(clean);
        self.end.notify_all();
        self.watch.notify_all();
    }

    pub(super) fn ended_clean(&self) {
        self.ended(true);
    }

    /// Waits for the writer's end; whether it can be joined.
    pub(super) fn wait_ended(&self) -> bool {
        let mut state = self.state();
        loop {
            if let Some(clean) = state.ended {
                return clean;
            }
            state = self.end.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// B3: tells the owner once, then parks the calling thread for ever, so that raft-engine can neither report
    /// success to anybody nor unwind into code that would.
    pub(super) fn poison(&self, reason: &str) -> ! {
        if !self.poisoned.swap(true, Ordering::SeqCst) {
            self.notices.poisoned(reason);
        }
        self.ended(false);
        loop {
            thread::park();
        }
    }

    /// B5: a write found no room. Tells the owner, then waits a little. A log that is being closed meanwhile ends here, as
    /// after a kill: what was not flushed was never acknowledged.
    pub(super) fn full(&self, patience: Duration) {
        self.notices.full();
        if self.stopped_within(patience) {
            self.ended(false);
            loop {
                thread::park();
            }
        }
    }

    pub(super) fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::SeqCst)
    }

    pub(super) fn has_room(&self) -> bool {
        self.queued_bytes() < self.limit
    }

    pub(super) fn queued_bytes(&self) -> u64 {
        self.queued_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn flush_begins(&self) -> BootTime {
        let now = self.clock.now();
        self.flush_started.store(now.0, Ordering::Relaxed);
        now
    }

    pub(super) fn flush_ended(&self) -> BootTime {
        let now = self.clock.now();
        self.flush_started.store(0, Ordering::Relaxed);
        self.last_flush.store(now.0, Ordering::Relaxed);
        now
    }

    /// Nothing was flushed after all.
    pub(super) fn flush_skipped(&self) {
        self.flush_started.store(0, Ordering::Relaxed);
    }

    pub(super) fn flush_age(&self) -> Option<Duration> {
        self.flush_in_flight().map(|started| self.clock.now().since(started))
    }

    /// The flush in flight, by its beginning.
    pub(super) fn flush_in_flight(&self) -> Option<BootTime> {
        let started = BootTime(self.flush_started.load(Ordering::Relaxed));
        (started != BootTime::ZERO).then_some(started)
    }

    /// B4: it hangs.
    pub(super) fn hung(&self, since: Duration) {
        self.notices.hung(since);
    }

    pub(super) fn last_flush(&self) -> BootTime {
        BootTime(self.last_flush.load(Ordering::Relaxed))
    }

    pub(super) fn notify(&self, notices: Vec<super::WalNotice>) {
        if !notices.is_empty() {
            self.notices.completed(notices);
        }
    }
}

/// Bytes of a request in the queue's account.
pub(super) fn weight(request: &WalRequest) -> usize {
    match request {
        WalRequest::Persist(write) => payload(write) + REQUEST_OVERHEAD,
        _ => REQUEST_OVERHEAD,
    }
}

fn payload(write: &PersistWrite) -> usize {
    let entries: usize = write.entries.iter().map(|entry| entry.data.len() + entry.context.len() + 32).sum();
    entries + write.puts.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>()
}
