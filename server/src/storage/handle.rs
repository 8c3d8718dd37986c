//! What the rest of the node asks of the storage thread: commands, over a queue bounded in bytes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use quorate_consensus::node::effect::AppliedEntry;
use quorate_proto::ids::{GroupId, LogIndex, Offset, ReplicaId, Term};
use quorate_proto::time::LogTime;
use tokio::sync::oneshot;

use super::checkpoint::Checkpoint;
use super::error::StorageError;
use super::files::SnapshotFile;
use super::segment::Found;

/// Appends are held back until a tick, any other command, or this many bytes.
const HELD_BYTES: u64 = 128 * 1024;

/// Appends that the thread was not woken for yet.
#[derive(Default)]
struct Held {
    commands: Vec<Command>,
    bytes: u64,
}

pub(super) enum Command {
    Open { group: GroupId },
    Append { group: GroupId, entries: Vec<AppliedEntry>, bytes: u64, waiting: Arc<AtomicU64> },
    Checkpoint { group: GroupId, index: LogIndex, term: Term, state: Bytes },
    BuildSnapshot { group: GroupId, to: ReplicaId },
    Staged { group: GroupId, checkpoint: Checkpoint },
    Install { group: GroupId, index: LogIndex, state: Bytes },
    Retire { group: GroupId },
    Remove { group: GroupId },
    DurableFiles { reply: Sender<Vec<(GroupId, Vec<SnapshotFile>)>> },
    Damaged { group: GroupId, reason: String },
    Read { group: GroupId, read: Read },
    Stop,
}

/// Reads see all that was appended before them anyhow; writes go first.
pub(super) enum Read {
    Records { offset: Offset, max: usize, reply: oneshot::Sender<Result<Found, StorageError>> },
    OffsetAt { time: LogTime, reply: oneshot::Sender<Result<Offset, StorageError>> },
}

/// Sends commands to the storage thread.
#[derive(Clone)]
pub struct StorageHandle {
    commands: Sender<Command>,
    waiting: Arc<AtomicU64>,
    held: Arc<Mutex<Held>>,
    stopping: Arc<AtomicBool>,
}

impl StorageHandle {
    /// Whoever holds the other end of `commands` does them in order, and subtracts from `waiting` what it has done.
    pub(super) fn new(commands: Sender<Command>, waiting: Arc<AtomicU64>, stopping: Arc<AtomicBool>) -> Self {
        Self { commands, waiting, held: Arc::default(), stopping }
    }

    /// Everything that was held back, then `command`: the order of the calls is kept.
    fn send(&self, command: Command) {
        let mut held = self.held.lock().expect("no thread panics while it holds the queue");
        for command in held.commands.drain(..).chain([command]) {
            self.hand_over(command);
        }
        held.bytes = 0;
    }

    fn hand_over(&self, command: Command) {
        // The thread ends only after `stop` or after it reported `Failed`: nothing is lost that was promised.
        let _ = self.commands.send(command);
    }

    /// A group without files yet.
    pub fn open(&self, group: GroupId) {
        self.send(Command::Open { group });
    }

    /// Applied entries, in order. `waiting` counts the group's bytes in the queue.
    pub fn append(&self, group: GroupId, entries: Vec<AppliedEntry>, waiting: &Arc<AtomicU64>) {
        let bytes = entries
            .iter()
            .map(|e| 64 + e.keys.len() + e.batches.iter().map(|b| b.prefix.len() + b.body.len()).sum::<usize>())
            .sum::<usize>() as u64;
        waiting.fetch_add(bytes, Ordering::Relaxed);
        self.waiting.fetch_add(bytes, Ordering::Relaxed);
        let command = Command::Append { group, entries, bytes, waiting: Arc::clone(waiting) };
        let mut held = self.held.lock().expect("no thread panics while it holds the queue");
        held.bytes += bytes;
        held.commands.push(command);
        if held.bytes >= HELD_BYTES {
            drop(held);
            self.write_held();
        }
    }

    /// Hands over what is held back. To be called at every tick: nothing waits for these writes (the log has the
    /// entries, readers at the end have the tail cache), so a wake-up of the thread for each entry would be for nothing.
    pub fn write_held(&self) {
        let mut held = self.held.lock().expect("no thread panics while it holds the queue");
        for command in held.commands.drain(..) {
            self.hand_over(command);
        }
        held.bytes = 0;
    }

    /// Bytes in the queue, all groups.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Flush everything of the group; then `Checkpointed`.
    pub fn checkpoint(&self, group: GroupId, index: LogIndex, term: Term, state: Bytes) {
        self.send(Command::Checkpoint { group, index, term, state });
    }

    /// Then `SnapshotReady`, if there is a checkpoint.
    pub fn build_snapshot(&self, group: GroupId, to: ReplicaId) {
        self.send(Command::BuildSnapshot { group, to });
    }

    /// Puts the staged snapshot at `index` in place, `state` being the machine in it; then `Installed`.
    pub fn install(&self, group: GroupId, index: LogIndex, state: Bytes) {
        self.send(Command::Install { group, index, state });
    }

    /// The log names the installed generation durably: older ones can go.
    pub fn retire(&self, group: GroupId) {
        self.send(Command::Retire { group });
    }

    /// Deletes everything of the group; then `Removed`.
    pub fn remove(&self, group: GroupId) {
        self.send(Command::Remove { group });
    }

    /// Files that checkpoints cover, with the lengths that never change; `None` once the storage has stopped.
    pub(super) fn durable_files(&self) -> Option<Vec<(GroupId, Vec<SnapshotFile>)>> {
        let (reply, answer) = std::sync::mpsc::channel();
        self.send(Command::DurableFiles { reply });
        answer.recv().ok()
    }

    /// The group's files were found damaged (B6).
    pub(super) fn damaged(&self, group: GroupId, reason: String) {
        self.send(Command::Damaged { group, reason });
    }

    /// A snapshot was received whole and flushed: its manifest, which names its generation.
    pub(super) fn staged(&self, group: GroupId, checkpoint: Checkpoint) {
        self.send(Command::Staged { group, checkpoint });
    }

    /// Stored batches that end after `offset`, about `max` bytes, at least one if there is any.
    ///
    /// # Errors
    /// `Corrupt` for damage (never served), `BelowFirst`, or what the disk says.
    pub async fn read(&self, group: GroupId, offset: Offset, max: usize) -> Result<Found, StorageError> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Read { group, read: Read::Records { offset, max, reply } });
        answer.await.unwrap_or(Err(StorageError::Stopped))
    }

    /// The offset before the first record that was appended at this log time or later; the end if there is none.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub async fn offset_at(&self, group: GroupId, time: LogTime) -> Result<Offset, StorageError> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Read { group, read: Read::OffsetAt { time, reply } });
        answer.await.unwrap_or(Err(StorageError::Stopped))
    }

    /// Ends the thread once the queue is done.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.send(Command::Stop);
    }
}
