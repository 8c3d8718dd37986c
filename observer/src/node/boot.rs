//! Start of an observer: lock and identity (B1), recovery of the write-ahead log, judgement of it (B2), the snapshot that
//! fits it, the core.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{mpsc, Arc};
use std::thread::JoinHandle;

use quorate_consensus::directory::Directory;
use quorate_consensus::observer::{self as core_of, ObserverCore, ObserverEvent};
use quorate_host::clock::{Clock, SystemClock};
use quorate_host::data_dir::{DataDir, NodeKind};
use quorate_host::space::Gauge;
use quorate_host::transport::{PeerSink, Transport, TransportConfig};
use quorate_host::turn::{mailbox, Mailbox, Post};
use quorate_host::wal::{NoFaults, Recovered, RecoveredGroup, Wal, WalConfig, WalError, WalNotices, WalProfile};
use quorate_proto::control::{Memory, ObserverInfo};
use quorate_proto::ids::{GroupId, LogIndex, NodeId, Ticket};
use quorate_proto::time::BootTime;
use tokio::sync::watch;

use super::inlets::{FromPeers, FromWal, ShellEvent, MAILBOX};
use super::memory::{self, Judgement, FLUSHES};
use super::metrics::Metrics;
use super::shell::Shell;
use super::story::Story;
use crate::config::ObserverConfig;
use crate::error::ObserverError;
use crate::files::{SnapshotFile, Snapshots, View};
use crate::routes::{Picture, Watchers};

/// What a start yields.
pub(super) struct Booted {
    pub mailbox: Mailbox<ShellEvent>,
    pub shell: Shell,
    pub sink: Arc<dyn PeerSink>,
    pub transport_config: TransportConfig,
    /// Keeps the lock.
    pub data_dir: DataDir,
    /// Writes snapshot files and the view.
    pub files: JoinHandle<()>,
}

/// What the files' thread is asked for.
pub(super) enum FileJob {
    /// Write a snapshot file.
    Snapshot(SnapshotFile),
    /// Make the view equal to this.
    View(Box<Directory>),
}

/// Starts everything but the listeners' services. Call it within the runtime.
pub(super) fn boot(config: Arc<ObserverConfig>, closing: watch::Sender<bool>) -> Result<Booted, ObserverError> {
    let released = config.disks()?.make_room().map_err(|e| ObserverError::io("cannot release the ballast", e))?;
    let data_dir = DataDir::open(&config.data_dir, NodeKind::Observer, config.cluster(), config.node())
        .map_err(|e| ObserverError::DataDir(e.to_string()))?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let (post, mailbox) = mailbox(MAILBOX);
    let notices: Arc<dyn WalNotices> = Arc::new(FromWal { post: post.clone(), data_dir: config.data_dir.clone() });
    let Remembered { wal, core, snapshots } = remember(&config, &data_dir, &clock, &notices)?;
    let files = start_files(&config, snapshots, core.directory(), post.clone())?;
    let gauge_post = post.clone();
    let sink: Arc<dyn PeerSink> = Arc::new(FromPeers { post: post.clone(), wal: Arc::downgrade(&wal) });
    let transport_config = TransportConfig::new(config.cluster(), config.node(), data_dir.incarnation());
    let mut transport = Transport::new(transport_config.clone(), Arc::clone(&sink));
    transport.set_peers(config.observers.iter().map(|o| (NodeId(o.id), o.peer_address.clone())));
    if released {
        tracing::warn!("the disk was full at the start: the ballast is released");
    }
    let tell = move |disks| gauge_post.push(ShellEvent::Core(ObserverEvent::Space(disks)));
    let gauge = Gauge::start(config.disks()?, tell).map_err(|e| ObserverError::io("cannot start a thread", e))?;
    let picture = Picture::take(&core, None, clock.now());
    let story = Story::new(core.directory());
    let shell = Shell {
        core,
        clock,
        wal,
        transport,
        config,
        metrics: Metrics::register(),
        gauge,
        closing,
        files: files.0,
        sessions: BTreeMap::new(),
        exits: BTreeMap::new(),
        admins: BTreeMap::new(),
        watchers: Watchers::default(),
        picture,
        story,
        next_ticket: Ticket::ZERO,
        effects: Vec::new(),
        wal_requests: Vec::new(),
        changed: true,
        view_stale: true,
        second: BootTime::ZERO,
        fatal: None,
        again: None,
        poisoned: false,
        terminated: false,
    };
    Ok(Booted { mailbox, shell, sink, transport_config, data_dir, files: files.1 })
}

/// The log, and what was made of it.
struct Remembered {
    wal: Arc<Wal>,
    core: ObserverCore,
    snapshots: Snapshots,
}

/// Opens the log and judges it (B2). One that cannot be read is set aside: this observer then knows nothing, and learns
/// everything from the others.
fn remember(
    config: &ObserverConfig,
    data_dir: &DataDir,
    clock: &Arc<dyn Clock>,
    notices: &Arc<dyn WalNotices>,
) -> Result<Remembered, ObserverError> {
    let dir = &config.data_dir;
    let before = memory::read(dir).map_err(|e| ObserverError::io("cannot read the marker of a suspect log", e))?;
    let why = match open_log(config, clock, notices) {
        Ok((wal, mut recovered)) => {
            let judgement = memory::judge(before, &recovered, data_dir.same_boot());
            keep(dir, &judgement)?;
            let group = recovered.groups.remove(&GroupId::DIRECTORY).unwrap_or_default();
            match core(config, data_dir, group, judgement.memory, clock.now()) {
                Ok((core, snapshots)) => return Ok(Remembered { wal: Arc::new(wal), core, snapshots }),
                Err(ObserverError::Directory(why)) => {
                    wal.close();
                    why
                }
                Err(other) => return Err(other),
            }
        }
        Err(WalError::Engine { reason, .. }) => format!("its log cannot be opened: {reason}"),
        Err(error) => return Err(ObserverError::Wal(error.to_string())),
    };
    let aside = memory::set_aside(dir, data_dir.incarnation())
        .map_err(|e| ObserverError::io("cannot set the damaged log aside", e))?;
    tracing::error!(why, kept = %aside.display(), "log and snapshots cannot be read: they are set aside");
    let judgement = Judgement::new(Memory::Lost, format!("{why}; kept in {}", aside.display()));
    keep(dir, &judgement)?;
    let (wal, _) = open_log(config, clock, notices).map_err(|e| ObserverError::Wal(e.to_string()))?;
    let (core, snapshots) = core(config, data_dir, RecoveredGroup::default(), judgement.memory, clock.now())?;
    Ok(Remembered { wal: Arc::new(wal), core, snapshots })
}

fn open_log(
    config: &ObserverConfig,
    clock: &Arc<dyn Clock>,
    notices: &Arc<dyn WalNotices>,
) -> Result<(Wal, Recovered), WalError> {
    let wal_config = WalConfig {
        // Nobody tells an observer how its last process ended, and its log is small.
        distrust_cache: true,
        mark: Some(config.data_dir.join(FLUSHES)),
        ..WalConfig::new(config.data_dir.join("wal"), WalProfile::Observer)
    };
    Wal::open(wal_config, Arc::new(NoFaults), Arc::clone(clock), Arc::clone(notices))
}

/// The verdict is durable before this observer says a word.
fn keep(dir: &Path, judgement: &Judgement) -> Result<(), ObserverError> {
    let Judgement { memory, why } = judgement;
    match memory {
        Memory::Sound => return Ok(()),
        Memory::Empty => tracing::warn!(why, "this observer remembers nothing: it votes only after all others answered"),
        Memory::Suspect | Memory::Lost => tracing::error!(
            why,
            "the write-ahead log lost flushed entries: this observer votes only after all others answered and it caught up"
        ),
    }
    memory::write(dir, judgement).map_err(|e| ObserverError::io("cannot write the marker of a suspect log", e))
}

fn core(
    config: &ObserverConfig,
    data_dir: &DataDir,
    group: RecoveredGroup,
    memory: Memory,
    now: BootTime,
) -> Result<(ObserverCore, Snapshots), ObserverError> {
    let snapshots =
        Snapshots::open(&config.data_dir.join("directory")).map_err(|e| ObserverError::io("directory snapshots", e))?;
    let restored = group.restored().map_err(|e| ObserverError::Directory(e.to_string()))?;
    let snapshot = match &restored {
        Some(restored) => {
            let first = restored.compacted.0;
            let last = restored.entries.last().map_or(first, |e| LogIndex(e.index));
            let found = snapshots.newest(first, last);
            found.map_err(|e| ObserverError::io("directory snapshots", e))?
        }
        None => None,
    };
    let me = ObserverInfo {
        node: config.node(),
        name: config.name.clone(),
        address: config.address_of(config.node()).unwrap_or_default().to_owned(),
        incarnation: data_dir.incarnation(),
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..ObserverInfo::default()
    };
    let members = config.observers.iter().map(|o| NodeId(o.id)).collect();
    let mut core_config = core_of::ObserverConfig::new(config.cluster(), me, members, rand::random());
    core_config.timing = config.timing();
    core_config.snapshot_entries = config.snapshot_entries;
    core_config.marks = config.marks();
    core_config.disk = data_dir.identity().disk;
    core_config.memory = memory;
    let data = snapshot.as_ref().map(|s| s.data.as_ref());
    let core =
        ObserverCore::new(core_config, restored, data, now).map_err(|e| ObserverError::Directory(e.to_string()))?;
    if let Some(snapshot) = snapshot {
        tracing::info!(index = %snapshot.index, "directory restored from its snapshot");
    }
    Ok((core, snapshots))
}

/// The thread that writes snapshot files and the view: neither may hold up the loop.
fn start_files(
    config: &ObserverConfig,
    snapshots: Snapshots,
    directory: &Directory,
    post: Post<ShellEvent>,
) -> Result<(mpsc::Sender<FileJob>, JoinHandle<()>), ObserverError> {
    let view = match View::open(&config.data_dir.join("view")) {
        Ok(view) => Some(view),
        Err(error) => {
            tracing::warn!(%error, "going on without the view");
            None
        }
    };
    if view.as_ref().is_some_and(|view| view.applied() > Some(directory.applied().0)) {
        tracing::warn!("the view is ahead of the directory: it will be rebuilt");
    }
    let (jobs, work) = mpsc::channel();
    let run = move || {
        for job in work {
            match job {
                FileJob::Snapshot(snapshot) => post.push(match snapshots.save(&snapshot) {
                    Ok(()) => ShellEvent::Saved(snapshot),
                    Err(error) => ShellEvent::NotSaved(error.to_string()),
                }),
                FileJob::View(directory) => {
                    if let Some(Err(error)) = view.as_ref().map(|view| view.refresh(&directory)) {
                        tracing::warn!(%error, "the view was not refreshed");
                    }
                }
            }
        }
    };
    let thread = std::thread::Builder::new().name("files".to_owned()).spawn(run);
    Ok((jobs, thread.map_err(|e| ObserverError::io("cannot start the files' thread", e))?))
}
