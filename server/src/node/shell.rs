//! The shell thread: takes events from the mailbox, feeds the core, executes its effects in the order given.
//!
//! The clock is read anew for each event, after it was taken from the queue (V2). Requests to the write-ahead log and
//! frames to peers gather over a turn and leave at its end, so that they share a flush and a frame.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::sync::atomic::AtomicU32;
use std::sync::Arc;
use std::time::Duration;

use quorate_consensus::node::{NodeCore, NodeEffect, NodeEvent};
use quorate_host::clock::Clock;
use quorate_host::space::Gauge;
use quorate_host::transport::Transport;
use quorate_host::turn::Turn;
use quorate_host::wal::{Wal, WalNotice, WalRequest};
use quorate_proto::control::SessionDown;
use quorate_proto::ids::{GroupId, Incarnation, NodeId, Offset, PersistId, Term, Ticket};
use quorate_proto::internal;
use quorate_proto::refusal::Refusal;
use quorate_proto::time::BootTime;
use raft::eraftpb::ConfState;
use tokio::sync::{mpsc, oneshot, watch};

use super::inlets::ShellEvent;
use super::metrics::{NodeMetrics, PartitionMetrics};
use crate::keys::DataKeys;
use crate::known::Keeper;
use crate::services::{Reply, Request};
use crate::session::SessionEvent;
use crate::storage::{Checkpoint, SnapshotFile, StorageHandle, StorageNotice, CHECKPOINT_KEY};
use crate::view::{PartitionView, TailBudget, Views};

/// After `Shutdown`, releases and reports get this long to leave before connections close.
const CLOSE_GRACE: Duration = Duration::from_millis(300);
/// Gauges are refreshed this often.
const METRICS_EVERY: Duration = Duration::from_secs(1);

/// A publish that waits for its fate.
pub(super) struct Waiting {
    pub reply: Reply,
    pub group: GroupId,
    pub since: BootTime,
    pub bytes: u64,
}

/// A hosted partition, on the shell's side.
pub(super) struct Hosted {
    pub view: Arc<PartitionView>,
    pub metrics: PartitionMetrics,
    /// The newest snapshot handed to the core, for when it is sent.
    pub snapshot: Option<(Checkpoint, Vec<SnapshotFile>)>,
    /// The write that makes an installed snapshot durable; older files go after it.
    pub retire_after: Option<PersistId>,
    /// The core was told of a long storage queue.
    pub backlog_told: bool,
}

/// Where the answer to a linearizable read goes.
pub type ReadReply = oneshot::Sender<Result<(Offset, Term), Refusal>>;

/// Everything that the turns own.
pub(super) struct Shell {
    pub core: NodeCore,
    pub clock: Arc<dyn Clock>,
    pub wal: Arc<Wal>,
    pub transport: Transport,
    pub storage: StorageHandle,
    pub views: Arc<Views>,
    pub budget: Arc<TailBudget>,
    pub data_dir: std::path::PathBuf,
    /// Keeps the observers' directory (M5).
    pub keeper: Keeper,
    pub metrics: NodeMetrics,
    /// Measures the disks and keeps the ballast (B5).
    pub gauge: Gauge,
    /// Number of the room there is, for threads that receive snapshots.
    pub room: Arc<AtomicU32>,
    pub closing: watch::Sender<bool>,
    pub close_within: Duration,
    pub drain_within: Duration,
    pub hosted: BTreeMap<GroupId, Hosted>,
    pub keys: DataKeys,
    /// Keys of replicas that are being deleted.
    pub removing: BTreeSet<GroupId>,
    pub sessions: BTreeMap<NodeId, mpsc::Sender<internal::SessionUp>>,
    pub waiting: HashMap<Ticket, Waiting>,
    pub reads: HashMap<Ticket, ReadReply>,
    pub next_ticket: Ticket,
    pub effects: Vec<NodeEffect>,
    /// Events that effects gave rise to within the turn.
    pub echoes: Vec<NodeEvent>,
    pub wal_requests: Vec<WalRequest>,
    pub post: quorate_host::turn::Post<ShellEvent>,
    /// Why the process must end, beside an order to.
    pub fatal: Option<String>,
    /// The next incarnation must be greater than this: the process ends so that its supervisor starts it again.
    pub raise_above: Option<Incarnation>,
    pub poisoned: bool,
    /// Since when leaders are handed over, because the process is to end.
    pub draining_since: Option<BootTime>,
    pub closing_since: Option<BootTime>,
    pub metrics_due: BootTime,
    /// The log is suspect (B2) until every replica caught up.
    pub suspect: bool,
}

impl Shell {
    /// Feeds one event and executes what came of it.
    pub fn feed(&mut self, event: NodeEvent) {
        let now = self.clock.now();
        self.core.handle(now, event, &mut self.effects);
        self.execute();
        while let Some(echo) = self.echoes.pop() {
            let now = self.clock.now();
            self.core.handle(now, echo, &mut self.effects);
            self.execute();
        }
    }

    fn request(&mut self, request: Request) {
        self.next_ticket = self.next_ticket.next();
        let ticket = self.next_ticket;
        match request {
            Request::Publish { mut publish, reply } => {
                publish.ticket = ticket;
                let bytes = publish.batch.len() as u64;
                let waiting = Waiting { reply, group: publish.group, since: self.clock.now(), bytes };
                self.waiting.insert(ticket, waiting);
                self.feed(NodeEvent::Publish(publish));
            }
            Request::ReadLatest { group, reply } => {
                self.reads.insert(ticket, reply);
                self.feed(NodeEvent::ReadLatest { ticket, group });
            }
        }
    }

    fn session(&mut self, event: SessionEvent) {
        match event {
            SessionEvent::Opened { observer, queue } => {
                tracing::info!(%observer, "session opened");
                self.sessions.insert(observer, queue);
                self.feed(NodeEvent::SessionUp(observer));
            }
            SessionEvent::Message { observer, message } => {
                if let SessionDown::Refused { reason, fatal: false, .. } = &*message {
                    tracing::warn!(%observer, reason, "an observer refuses this node for now; it is asked again");
                }
                self.feed(NodeEvent::Session { observer, message });
            }
            SessionEvent::Closed { observer } => {
                self.sessions.remove(&observer);
                self.feed(NodeEvent::SessionLost(observer));
            }
        }
    }

    fn wal(&mut self, notice: WalNotice) {
        match notice {
            WalNotice::Persisted { group: key, id, at } => {
                let Some(group) = self.keys.group(key) else { return };
                if let Some(hosted) = self.hosted.get_mut(&group) {
                    if hosted.retire_after.is_some_and(|after| id >= after) {
                        hosted.retire_after = None;
                        self.storage.retire(key);
                    }
                }
                self.feed(NodeEvent::Persisted { group, id, at });
            }
            WalNotice::Token { seq, age } => self.feed(NodeEvent::TokenBack { seq, age }),
            WalNotice::Canary { at } => self.feed(NodeEvent::CanaryFlushed { at }),
            WalNotice::Fetched { group: key, from, entries } => {
                let Some(group) = self.keys.group(key) else { return };
                self.feed(NodeEvent::EntriesFetched { group, from, entries });
            }
            // The core makes checkpoints by size and by time; the log's own wish adds nothing that those bounds
            // do not bring about.
            WalNotice::CompactWanted(groups) => tracing::debug!(?groups, "the log wants these compacted"),
        }
    }

    fn storage(&mut self, notice: StorageNotice) {
        match notice {
            StorageNotice::Checkpointed { group: key, checkpoint } => {
                let Some(group) = self.keys.group(key) else { return };
                let (index, puts) = (checkpoint.log_index(), vec![(CHECKPOINT_KEY, checkpoint.to_bytes())]);
                self.feed(NodeEvent::Checkpointed { group, index, puts });
            }
            StorageNotice::SnapshotReady { group: key, to, checkpoint, files } => {
                let Some(group) = self.keys.group(key) else { return };
                let Some(hosted) = self.hosted.get_mut(&group) else { return };
                // The core knows the members at the checkpoint's index.
                let conf_state = ConfState::default();
                let (index, term, data) = (checkpoint.log_index(), Term(checkpoint.term), checkpoint.state.clone());
                hosted.snapshot = Some((checkpoint, files));
                self.feed(NodeEvent::SnapshotBuilt { group, to, index, term, conf_state, data });
            }
            StorageNotice::Installed { group: key, checkpoint, image } => {
                let Some(group) = self.keys.group(key) else { return };
                let (index, puts) = (checkpoint.log_index(), vec![(CHECKPOINT_KEY, checkpoint.to_bytes())]);
                tracing::info!(%group, %index, "snapshot installed");
                self.metrics.snapshots_installed.increment(1);
                self.feed(NodeEvent::SnapshotInstalled { group, index, image, puts });
            }
            StorageNotice::Backlog { group: key, bytes } => {
                let Some(group) = self.keys.group(key) else { return };
                let told = self.hosted.get_mut(&group).map(|hosted| std::mem::take(&mut hosted.backlog_told));
                if told == Some(true) {
                    self.feed(NodeEvent::StorageBacklog { group, bytes });
                }
            }
            // The files are gone: the log may forget the replica too. (The other way round, files without a log would
            // look like a log that was lost.)
            StorageNotice::Removed { group: key } => {
                self.removing.remove(&key);
                self.wal_requests.push(WalRequest::Forget { group: key });
            }
            StorageNotice::Full => self.gauge.measure(),
            StorageNotice::Damaged { group: key, reason } => {
                let Some(group) = self.keys.group(key) else { return };
                self.feed(NodeEvent::Damaged { group, reason });
            }
            StorageNotice::Failed(error) => {
                super::inlets::fail(&self.post, &self.data_dir, &error.to_string());
            }
        }
    }

    /// SIGTERM: the leaders go first, in planned handoffs (H2), while the node goes on serving.
    pub(super) fn terminate(&mut self) {
        if self.draining_since.is_none() {
            let leaders = self.core.status(self.clock.now()).leaders;
            tracing::info!(leaders, "draining: handing leaders over");
            self.draining_since = Some(self.clock.now());
            self.feed(NodeEvent::Drain);
        }
    }

    /// Closes once no leader is left, nobody else can take one, no observer hears, or the time is over.
    fn close_when_drained(&mut self) {
        let (Some(since), None) = (self.draining_since, self.closing_since) else { return };
        let now = self.clock.now();
        let status = self.core.status(now);
        let why = if status.leaders == 0 {
            "no leader is left"
        } else if status.nobody_else {
            "no other node can take the leaders that are left"
        } else if self.sessions.is_empty() {
            "no observer is connected"
        } else if now.since(since) >= self.drain_within {
            "the time to drain is over"
        } else {
            return;
        };
        tracing::info!(leaders = status.leaders, why, "closing");
        self.closing_since = Some(now);
        self.feed(NodeEvent::Shutdown);
        self.closing.send_replace(true);
    }

    /// Closing is done when nobody waits and nobody leads, or when the time for it is over.
    fn closed(&self) -> bool {
        let Some(since) = self.closing_since else { return false };
        let spent = self.clock.now().since(since);
        // Deleted halfway, a replica would be opened again by the next start.
        let idle =
            self.waiting.is_empty() && self.removing.is_empty() && self.core.status(self.clock.now()).leaders == 0;
        (idle && spent >= CLOSE_GRACE) || spent >= self.close_within
    }

    fn refresh_metrics(&mut self) {
        let now = self.clock.now();
        if now < self.metrics_due {
            return;
        }
        self.metrics_due = now + METRICS_EVERY;
        let mut suspect = false;
        for (group, hosted) in &self.hosted {
            if let Some(status) = self.core.partition(*group, now) {
                suspect |= status.report.suspect_log;
                hosted.metrics.refresh(&status, now, hosted.view.view());
            }
        }
        self.metrics.refresh(
            &self.core.status(now),
            self.wal.queued_bytes(),
            self.storage.waiting(),
            self.budget.used(),
        );
        // A replica whose data are kept aside may be the one that lost its tail.
        if self.suspect && !suspect && !self.hosted.is_empty() && !self.core.keeps_any() {
            tracing::info!("every replica caught up: the log is not suspect any more");
            self.suspect = false;
            let _ = std::fs::remove_file(self.data_dir.join(super::inlets::SUSPECT));
        }
    }
}

impl Turn for Shell {
    type Event = ShellEvent;

    fn handle(&mut self, event: ShellEvent) {
        match event {
            ShellEvent::Core(event) => self.feed(event),
            ShellEvent::Request(request) => self.request(request),
            ShellEvent::Session(event) => self.session(event),
            ShellEvent::Storage(notice) => self.storage(notice),
            ShellEvent::Wal(notice) => self.wal(notice),
            ShellEvent::Poisoned(reason) => {
                tracing::error!(%reason, "the disk cannot be trusted: leaving with status 74");
                self.poisoned = true;
                self.feed(NodeEvent::WalPoisoned);
            }
            ShellEvent::LogDamaged(damage) => {
                tracing::error!(
                    damage,
                    "the write-ahead log is damaged: this node leads nothing until it is started again"
                );
                // Its marker stays until then, whatever was suspect before.
                self.suspect = false;
                self.feed(NodeEvent::LogDamaged);
            }
            ShellEvent::DiskFull => self.gauge.measure(),
            ShellEvent::Terminate => self.terminate(),
        }
    }

    fn tick(&mut self) {
        self.feed(NodeEvent::Tick);
        self.storage.write_held();
        self.refresh_metrics();
    }

    fn end(&mut self) -> ControlFlow<()> {
        self.close_when_drained();
        let now = self.clock.now();
        self.core.flush(now, &mut self.effects);
        self.execute();
        if !self.wal_requests.is_empty() {
            self.wal.submit(self.wal_requests.drain(..));
        }
        self.transport.flush();
        if self.fatal.is_some() || self.raise_above.is_some() || self.closed() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}
