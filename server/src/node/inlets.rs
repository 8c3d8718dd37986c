//! Everything that happens to the node comes through one mailbox: this is what it holds, and who puts it there.

use std::path::PathBuf;
use std::sync::Weak;

use quorate_consensus::envelope::{Envelope, Lane};
use quorate_consensus::node::NodeEvent;
use quorate_host::transport::PeerSink;
use quorate_host::turn::Post;
use quorate_host::wal::{exit_on_hang, exit_on_poison, Wal, WalNotice, WalNotices};
use quorate_proto::ids::{GroupId, NodeId, ReplicaId};

use crate::services::Request;
use crate::session::SessionEvent;
use crate::storage::StorageNotice;

/// Frames of peers are not read while this many events wait.
pub(super) const MAILBOX: usize = 65_536;

/// One thing that happened.
#[derive(Debug)]
pub enum ShellEvent {
    /// As the core takes it.
    Core(NodeEvent),
    /// From a client.
    Request(Request),
    /// From an observer.
    Session(SessionEvent),
    /// From the storage thread.
    Storage(StorageNotice),
    /// From the write-ahead log.
    Wal(WalNotice),
    /// The write-ahead log or the storage failed (B3). The process ends within 200 ms.
    Poisoned(String),
    /// The write-ahead log was found damaged by reading it back (B6).
    LogDamaged(String),
    /// A write found no room; it is tried again (B5).
    DiskFull,
    /// Stop in order.
    Terminate,
}

impl From<Request> for ShellEvent {
    fn from(request: Request) -> Self {
        Self::Request(request)
    }
}

/// Name of the marker that says that the log is suspect whatever it looks like (B2).
pub(super) const SUSPECT: &str = "SUSPECT";

/// A log line gets this long to be written.
const LAST_LINE: std::time::Duration = std::time::Duration::from_millis(50);

/// What the write-ahead log tells.
pub(super) struct FromWal {
    pub post: Post<ShellEvent>,
    pub data_dir: PathBuf,
}

impl WalNotices for FromWal {
    fn completed(&self, notices: Vec<WalNotice>) {
        self.post.push_all(notices.into_iter().map(ShellEvent::Wal));
    }

    fn poisoned(&self, reason: &str) {
        fail(&self.post, &self.data_dir, reason);
    }

    fn full(&self) {
        self.post.push(ShellEvent::DiskFull);
    }

    fn hung(&self, since: std::time::Duration) {
        // The leaders are gone since the first second (B4). A log line may hang with the disk: nobody waits for it.
        let line = move || tracing::error!(?since, "a flush of the write-ahead log hangs: leaving with status 75");
        let _ = std::thread::Builder::new().name("last-line".to_owned()).spawn(line).map(|line| {
            std::thread::sleep(LAST_LINE);
            line.is_finished()
        });
        exit_on_hang();
    }
}

/// B3: closes fences through the shell, leaves a marker, and ends the process with status 74 within 200 ms.
pub(super) fn fail(post: &Post<ShellEvent>, data_dir: &std::path::Path, reason: &str) {
    exit_on_poison();
    post.push(ShellEvent::Poisoned(reason.to_owned()));
    let marker = data_dir.join(SUSPECT);
    let reason = reason.to_owned();
    // The disk that failed may hang: nobody waits for this. The exit status says the same to the supervisor.
    let _ = std::thread::Builder::new().name("marker".to_owned()).spawn(move || {
        let _ = std::fs::write(marker, reason);
    });
}

/// What peers tell.
pub(super) struct FromPeers {
    pub post: Post<ShellEvent>,
    pub wal: Weak<Wal>,
}

impl PeerSink for FromPeers {
    fn deliver(&self, from: NodeId, _lane: Lane, envelopes: Vec<Envelope>) {
        let event = |envelope| ShellEvent::Core(NodeEvent::Peer { from, envelope: Box::new(envelope) });
        self.post.push_all(envelopes.into_iter().map(event));
    }

    fn lost(&self, peer: NodeId) {
        self.post.push(ShellEvent::Core(NodeEvent::PeerLost(peer)));
    }

    fn snapshot_sent(&self, _peer: NodeId, group: GroupId, to: ReplicaId, ok: bool) {
        self.post.push(ShellEvent::Core(NodeEvent::SnapshotSent { group, to, ok }));
    }

    fn snapshot_resumed(&self, _peer: NodeId, bytes: u64) {
        // Rare: no handle is kept for it.
        metrics::counter!("quorate_snapshot_bytes_kept_total").increment(bytes);
    }

    fn has_room(&self) -> bool {
        self.post.has_room() && self.wal.upgrade().is_none_or(|wal| wal.has_room())
    }
}
