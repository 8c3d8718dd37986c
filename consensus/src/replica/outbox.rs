//! Persist before send: what each `Ready` of raft-rs wants written, and what may leave only after that (W1).
//!
//! ```text
//!   Ready 7: entries, hard state ─► Persist{12} ─┐ flush
//!   Ready 8: nothing to write      ─► (waits)    │ persisted(12) ─► on_persist_ready(7), its messages
//!   Ready 9: vote                  ─► Persist{13}                  ─► on_persist_ready(8), its messages
//! ```
//!
//! Strictly in order, as raft-rs demands. A write of the commit index alone is not made: it rides on the next write
//! (after a restart it is learnt again). A snapshot's write is held until the owner has installed the machine's part
//! (`Restore` → `restored`), and everything after it: otherwise a crash between the two would leave a log that begins
//! after a state that does not exist.

use std::collections::VecDeque;

use quorate_proto::ids::{GroupId, PersistId};
use quorate_proto::time::BootTime;
use raft::eraftpb::Message;

use crate::effect::{PersistWrite, ReplicaEffect};

/// One step of the queue.
#[derive(Debug)]
pub(super) struct Step {
    /// What must be flushed first.
    write: Option<PersistWrite>,
    /// Its id once it was handed out.
    needs: Option<PersistId>,
    /// Snapshot that the owner must install before the write may be made.
    installing: Option<u64>,
    /// The `Ready` that this completes.
    pub(super) ready: Option<u64>,
    /// Messages that may leave then.
    pub(super) messages: Vec<Message>,
    /// When the `Ready` was taken: the stamp of its vote requests.
    pub(super) taken: BootTime,
}

/// The queue.
#[derive(Debug)]
pub(super) struct Outbox {
    group: GroupId,
    steps: VecDeque<Step>,
    /// Steps at the front whose write was handed out (or that have none).
    emitted: usize,
    next: PersistId,
    done: PersistId,
}

impl Outbox {
    /// `first`: id of the first write.
    pub(super) fn new(group: GroupId, first: PersistId) -> Self {
        let done = PersistId(first.get().saturating_sub(1));
        Self { group, steps: VecDeque::new(), emitted: 0, next: first, done }
    }

    /// Queues a step. `write` gets the next id; the id is returned.
    pub(super) fn push(
        &mut self,
        write: Option<PersistWrite>,
        installing: Option<u64>,
        ready: Option<u64>,
        messages: Vec<Message>,
        taken: BootTime,
    ) -> Option<PersistId> {
        let write = write.map(|mut write| {
            write.group = self.group;
            write.id = self.next;
            self.next = self.next.next();
            write
        });
        let needs = write.as_ref().map(|w| w.id);
        self.steps.push_back(Step { write, needs, installing, ready, messages, taken });
        needs
    }

    /// The owner installed the snapshot at `index`: completes its write. False if none such waits.
    pub(super) fn installed(&mut self, index: u64, complete: impl FnOnce(&mut PersistWrite)) -> bool {
        let Some(step) = self.steps.iter_mut().find(|s| s.installing == Some(index)) else { return false };
        step.installing = None;
        if let Some(write) = step.write.as_mut() {
            complete(write);
        }
        true
    }

    /// Hands out every write that may be made. `flushed` acts as if each were flushed at once (a mutant).
    pub(super) fn emit(&mut self, out: &mut Vec<ReplicaEffect>, flushed: bool) {
        while let Some(step) = self.steps.get_mut(self.emitted) {
            if step.installing.is_some() {
                return;
            }
            if let Some(write) = step.write.take() {
                if flushed {
                    self.done = self.done.max(write.id);
                }
                out.push(ReplicaEffect::Persist(write));
            }
            self.emitted += 1;
        }
    }

    /// Everything up to `id` is flushed. An id that was not handed out is no news.
    pub(super) fn flushed(&mut self, id: PersistId) {
        self.done = self.done.max(id);
    }

    /// The next step that is complete.
    pub(super) fn pop(&mut self) -> Option<Step> {
        let front = self.steps.front()?;
        if self.emitted == 0 || front.needs.is_some_and(|id| id > self.done) {
            return None;
        }
        self.emitted -= 1;
        self.steps.pop_front()
    }
}
