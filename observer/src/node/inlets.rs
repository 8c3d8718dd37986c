//! Everything that happens to an observer comes through one mailbox: this is what it holds, and who puts it there.

use std::path::PathBuf;
use std::sync::Weak;

use quorate_consensus::envelope::{Envelope, Lane};
use quorate_consensus::observer::ObserverEvent;
use quorate_host::transport::PeerSink;
use quorate_host::turn::Post;
use quorate_host::wal::{exit_on_hang, exit_on_poison, Wal, WalNotice, WalNotices};
use quorate_proto::control::LastHeard;
use quorate_proto::ids::NodeId;

use super::memory;
use crate::files::SnapshotFile;
use crate::services::Request;

/// Clients and sessions are not read while this many events wait.
pub(super) const MAILBOX: usize = 16_384;

/// One thing that happened.
pub(crate) enum ShellEvent {
    /// As the core takes it.
    Core(ObserverEvent),
    /// From a service.
    Request(Request),
    /// From the write-ahead log.
    Wal(WalNotice),
    /// A snapshot file is durable.
    Saved(SnapshotFile),
    /// A snapshot file could not be written: the log grows, the next one is tried at the next start.
    NotSaved(String),
    /// The write-ahead log failed (B3). The process ends within 200 ms.
    Poisoned(String),
    /// A write found no room; it is tried again (B5).
    DiskFull,
    /// Stop in order.
    Terminate,
}

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
        exit_on_poison();
        self.post.push(ShellEvent::Poisoned(reason.to_owned()));
        // The disk that failed may hang: nobody waits for this. Nobody else tells the next start (B2).
        let (dir, why) = (self.data_dir.clone(), reason.to_owned());
        let mark = move || memory::write_suspicion(&dir, &why);
        let _ = std::thread::Builder::new().name("marker".to_owned()).spawn(mark);
    }

    fn full(&self) {
        self.post.push(ShellEvent::DiskFull);
    }

    fn hung(&self, since: std::time::Duration) {
        // It does not lead since the first second (B4). A log line may hang with the disk: nobody waits for it.
        let line = move || tracing::error!(?since, "a flush of the write-ahead log hangs: leaving with status 75");
        let _ = std::thread::Builder::new().name("last-line".to_owned()).spawn(line).map(|line| {
            std::thread::sleep(LAST_LINE);
            line.is_finished()
        });
        exit_on_hang();
    }
}

/// What the other observers tell.
pub(super) struct FromPeers {
    pub post: Post<ShellEvent>,
    pub wal: Weak<Wal>,
}

impl PeerSink for FromPeers {
    fn deliver(&self, _from: NodeId, _lane: Lane, envelopes: Vec<Envelope>) {
        self.post.push_all(envelopes.into_iter().map(|e| ShellEvent::Core(ObserverEvent::Peer(Box::new(e)))));
    }

    fn last_heard(&self, from: NodeId, heard: LastHeard) {
        if heard.observer.node == from {
            self.post.push(ShellEvent::Core(ObserverEvent::LastHeard(heard)));
        }
    }

    fn lost(&self, peer: NodeId) {
        self.post.push(ShellEvent::Core(ObserverEvent::PeerLost(peer)));
    }

    fn has_room(&self) -> bool {
        self.post.has_room() && self.wal.upgrade().is_none_or(|wal| wal.has_room())
    }
}
