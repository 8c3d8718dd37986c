//! The write-ahead log of a node: one raft-engine for all groups, written by one thread.
//!
//! ```text
//!  shell ──submit──▶ queue ──▶ writer thread: takes all that waits (≤ 4 MiB), one append, one fdatasync,
//!    ▲                          one notice batch; never waits for more (natural group commit)
//!    └──── WalNotices ◀─────────┘
//! ```
//!
//! - **W1** `Persisted` is reported only after the flush that covers the write returned without error.
//! - **B1** every file recovered at open is flushed before [`Wal::open`] returns.
//! - **B3** an append or flush error *poisons* the log: the writer parks for ever (so raft-engine can neither
//!   return `Ok` to anybody nor unwind), [`WalNotices::poisoned`] is called once, nothing is retried; the process
//!   must exit with [`EXIT_DISK`] (see [`exit_on_poison`]).
//! - **B5** a write or a new file that finds no room is tried again: a full disk is a stall, not an error.
//! - **B4** tokens pass through the queue; [`Wal::flush_age`] tells how long the flush in flight has taken. One that
//!   hangs for [`WalConfig::hang_after`] is told once by a watching thread ([`WalNotices::hung`]): the event loop may
//!   hang with the disk.
//!
//! Facts of raft-engine 0.4.2 that this module is built around: `Engine::sync()` does nothing, a write is durable
//! only as `write(non-empty batch, sync = true)`; followers of a failed write group get `Ok`, hence one writer;
//! appending with a gap or below the first index panics, hence [`PersistWrite::clear`] before a snapshot's place.

mod exit;
mod fault;
mod files;
mod mark;
mod queue;
mod readback;
mod recover;
mod tail;
mod watch;
mod writer;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use quorate_consensus::effect::{PersistWrite, Restored};
use quorate_consensus::replica::{restored, Quarantine, META_KEY};
use quorate_proto::ids::{GroupId, LogIndex, PersistId};
use quorate_proto::time::BootTime;
use raft::eraftpb::{Entry, HardState};

use crate::clock::Clock;
pub use exit::{exit_on_hang, exit_on_poison, install_abort_hook, EXIT_DISK, EXIT_GRACE, EXIT_HUNG};
pub use fault::{Fault, FaultPolicy, NoFaults, ScriptedFaults, WriteAs};
use queue::Shared;
pub use readback::{log_files, read_back, LogDamage};

/// Sizes of the log's files (`3-architecture`, storage).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalProfile {
    /// Data nodes: 2 GB in files of 128 MB, recycled and prefilled (zero-writes 3 GB at the first open).
    Production,
    /// `quorate dev` and tests: 64 MB in files of 16 MB.
    Dev,
    /// Observers: 64 MB in files of 16 MB.
    Observer,
}

/// How to open a log.
#[derive(Clone, Debug)]
pub struct WalConfig {
    /// Directory; made if missing.
    pub dir: PathBuf,
    /// File sizes.
    pub profile: WalProfile,
    /// Most bytes of payload in one flush. 4 MiB: about what a flush interval brings in at full load.
    pub batch_bytes: usize,
    /// Queued bytes at which [`Wal::has_room`] turns false. The queue never refuses a write that a core has
    /// decided on; the shell stops taking new work instead.
    pub queue_bytes: u64,
    /// Purge of obsolete files at most this often, when nothing waits.
    pub purge_every: Duration,
    /// A flush that hangs for so long is told to [`WalNotices::hung`] (B4).
    pub hang_after: Duration,
    /// Where the number of flushes is kept beside the log (B2); `None` = nowhere. Best on another disk than the log's.
    pub mark: Option<PathBuf>,
    /// The last process ended while a flush hung: read the disk, not what the system remembers of it.
    pub distrust_cache: bool,
}

impl WalConfig {
    /// The defaults for `dir`.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>, profile: WalProfile) -> Self {
        Self {
            dir: dir.into(),
            profile,
            batch_bytes: 4 << 20,
            queue_bytes: 64 << 20,
            purge_every: Duration::from_secs(5),
            hang_after: Duration::from_secs(30),
            mark: None,
            distrust_cache: false,
        }
    }
}

/// What the log is asked for. Requests are done in order (fetches apart).
#[derive(Debug)]
pub enum WalRequest {
    /// Write and flush; then [`WalNotice::Persisted`].
    Persist(PersistWrite),
    /// Pass through the queue; then [`WalNotice::Token`] (B4).
    Token {
        /// Given back.
        seq: u64,
    },
    /// Write and flush something small; then [`WalNotice::Canary`] (L4).
    Canary,
    /// Delete everything of a group, pairs included: it is hosted no more. Nothing is told of it.
    Forget {
        /// The group.
        group: GroupId,
    },
    /// Read entries `from..to` on another thread; then [`WalNotice::Fetched`].
    Fetch {
        /// The group.
        group: GroupId,
        /// First index.
        from: LogIndex,
        /// One past the last.
        to: LogIndex,
        /// Bytes at most, but at least one entry.
        max_bytes: u64,
    },
}

/// What became of requests.
#[derive(Debug)]
pub enum WalNotice {
    /// The write is flushed (W1).
    Persisted {
        /// The group.
        group: GroupId,
        /// Which write.
        id: PersistId,
        /// When its flush ended.
        at: BootTime,
    },
    /// A token came through the queue.
    Token {
        /// Which.
        seq: u64,
        /// How long the flush took that it had to wait for; zero if it met none (B4).
        age: Duration,
    },
    /// The canary is flushed.
    Canary {
        /// When its flush ended.
        at: BootTime,
    },
    /// Entries read.
    Fetched {
        /// The group.
        group: GroupId,
        /// First index asked for.
        from: LogIndex,
        /// The entries; `None` if the first is compacted away or not there.
        entries: Option<Vec<Entry>>,
    },
    /// These groups hold old files in place: checkpoint and compact them soon.
    CompactWanted(Vec<GroupId>),
}

/// Who is told. Called on the log's threads: put the notices into a mailbox, wake the loop once, return.
pub trait WalNotices: Send + Sync + 'static {
    /// One batch of notices in the order of the requests.
    fn completed(&self, notices: Vec<WalNotice>);
    /// An append or flush failed (B3). Called once, from the failing thread, which never runs again.
    /// The receiver stops serving, releases what it can, and exits with [`EXIT_DISK`] within [`EXIT_GRACE`].
    fn poisoned(&self, reason: &str);
    /// A write found no room and is tried again until there is some (B5). Called for each try, on the writer's thread: have
    /// the disk measured, so that the ballast goes.
    fn full(&self);
    /// A flush hangs for [`WalConfig::hang_after`] (B4). Called once, from the watching thread. The receiver ends the
    /// process with [`EXIT_HUNG`]: whatever the flush returns one day, nobody waits for it any more.
    fn hung(&self, since: Duration);
}

/// What the log held of one group.
#[derive(Clone, Debug, Default)]
pub struct RecoveredGroup {
    /// Term, vote, commit, if they were ever written.
    pub hard_state: Option<HardState>,
    /// Entries, contiguous. The first ones may be compacted already: compaction is lazy.
    pub entries: Vec<Entry>,
    /// Key–value pairs, the replica's own [`META_KEY`] included.
    pub kv: BTreeMap<String, Bytes>,
    /// Its entries cannot be read: what is wrong with them. None of them is handed out.
    pub damage: Option<String>,
}

impl RecoveredGroup {
    /// What the replica of this group starts from; `None` if it never wrote, so that it starts from its bootstrap.
    ///
    /// # Errors
    /// [`Quarantine`] if the parts do not fit together.
    pub fn restored(self) -> Result<Option<Restored>, Quarantine> {
        if let Some(reason) = self.damage {
            return Err(Quarantine { reason });
        }
        let Some(meta) = self.kv.get(META_KEY) else {
            let found = self.hard_state.is_some() || !self.entries.is_empty();
            let lost = || Quarantine { reason: format!("a log without its `{META_KEY}` record") };
            return if found { Err(lost()) } else { Ok(None) };
        };
        let restored = restored(meta, self.hard_state, self.entries)?;
        let mut expected = restored.compacted.0.next();
        for entry in &restored.entries {
            if entry.index != expected.get() {
                let reason =
                    format!("the log goes on with entry {} where {} was expected", entry.index, expected.get());
                return Err(Quarantine { reason });
            }
            expected = expected.next();
        }
        Ok(Some(restored))
    }
}

/// Bytes that recovery cut off the end of a log file because they were no valid record (B2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TailCut {
    /// The file.
    pub file: PathBuf,
    /// Where its valid part ends.
    pub kept: u64,
    /// Bytes cut off, up to the last one that is not zero. In a recycled file they may be stale, not torn.
    pub dropped: u64,
    /// Flushed records were lost with them: it was no mere beginning of a last write (`tail.rs`).
    pub lost: bool,
}

/// What the log held when it was opened.
#[derive(Debug, Default)]
pub struct Recovered {
    /// By group.
    pub groups: BTreeMap<GroupId, RecoveredGroup>,
    /// Whether a tail was cut. Preallocated zeros don't count.
    pub tail_cut: Option<TailCut>,
    /// Files flushed at open (B1).
    pub files_flushed: usize,
    /// Flushes that the mark counted and the log does not know: an older log was put in place, its end or all of it is
    /// gone (B2).
    pub flushes_missing: u64,
}

/// Why a log can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum WalError {
    /// The directory or a file can't be used.
    #[error("write-ahead log {}: {what}: {source}", dir.display())]
    Io {
        /// The log's directory.
        dir: PathBuf,
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: std::io::Error,
    },
    /// raft-engine refused.
    #[error("write-ahead log {}: {reason}", dir.display())]
    Engine {
        /// The log's directory.
        dir: PathBuf,
        /// Why.
        reason: String,
    },
}

/// Handle of an open log. Cheap calls that never block on the disk; share it in an `Arc` between threads.
#[derive(Debug)]
pub struct Wal {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
}

impl Wal {
    /// Opens the log, recovers what it holds, flushes every recovered file (B1) and starts the writer thread.
    /// Blocks for the whole recovery.
    ///
    /// # Errors
    /// If the directory can't be used, another process has it, or the log is damaged before its tail.
    pub fn open(
        config: WalConfig,
        faults: Arc<dyn FaultPolicy>,
        clock: Arc<dyn Clock>,
        notices: Arc<dyn WalNotices>,
    ) -> Result<(Self, Recovered), WalError> {
        writer::open(config, faults, clock, notices)
    }

    /// Queues requests; wakes the writer once. Hand over all requests of a turn together: they share a flush.
    pub fn submit(&self, requests: impl IntoIterator<Item = WalRequest>) {
        self.shared.submit(requests);
    }

    /// Whether the queue is below its bound. While it is not, take no new publishes and no new frames.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.shared.has_room()
    }

    /// Bytes that wait for their flush.
    #[must_use]
    pub fn queued_bytes(&self) -> u64 {
        self.shared.queued_bytes()
    }

    /// Age of the flush (or append) in flight; `None` if there is none (B4).
    #[must_use]
    pub fn flush_age(&self) -> Option<Duration> {
        self.shared.flush_age()
    }

    /// End of the last successful flush; [`BootTime::ZERO`] before the first (L4).
    #[must_use]
    pub fn last_flush(&self) -> BootTime {
        self.shared.last_flush()
    }

    /// An append or flush failed: nothing will ever be persisted again.
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.shared.is_poisoned()
    }

    /// Finishes what is queued and closes the files. Returns at once if the log is poisoned.
    pub fn close(mut self) {
        self.stop();
    }

    fn stop(&mut self) {
        self.shared.stop();
        if let Some(writer) = self.writer.take() {
            // A poisoned writer is parked for ever; joining it would hang the exit that must come now.
            if !self.shared.wait_ended() {
                return;
            }
            let _ = writer.join();
        }
    }
}

impl Drop for Wal {
    fn drop(&mut self) {
        self.stop();
    }
}
