//! Start of a node: lock and identity (B1), recovery of the write-ahead log, judgement of its tail (B2), storage back
//! to its checkpoints, replicas opened.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use quorate_consensus::node::stored::{decode_assignment, ASSIGNMENT};
use quorate_consensus::node::{first_members, NodeConfig, NodeCore, NodeEffect, NodeEvent, NodeLimits};
use quorate_consensus::replica::{bootstrap, ObserverLoss};
use quorate_host::clock::{Clock, SystemClock};
use quorate_host::data_dir::{DataDir, NodeKind};
use quorate_host::space::Gauge;
use quorate_host::transport::{PeerSink, Transport, TransportConfig};
use quorate_host::turn::{mailbox, Mailbox, Post};
use quorate_host::wal::{NoFaults, Recovered, RecoveredGroup, Wal, WalConfig, WalProfile};
use quorate_proto::control::{Assignment, Hello};
use quorate_proto::ids::{DirectoryVersion, GroupId, LogIndex, NodeId, ReplicaId, Ticket};
use quorate_proto::time::BootTime;
use tokio::sync::watch;

use super::inlets::{fail, FromPeers, FromWal, ShellEvent, MAILBOX, SUSPECT};
use super::metrics::NodeMetrics;
use super::shell::Shell;
use crate::config::{ObserverLossSetting, ServerConfig, WalSize};
use crate::error::{ServerError, EXIT_DISK, EXIT_HUNG};
use crate::keys::DataKeys;
use crate::known::{self, Keeper};
use crate::storage::{
    self, Checkpoint, ScrubSettings, Stagings, Storage, StorageError, StorageNotice, StorageSettings, CHECKPOINT_KEY,
};
use crate::supervisor::{ENV_LAST_EXIT, ENV_SUPERVISOR_HASH, INCARNATION_LINE};
use crate::view::{TailBudget, Views};

/// The mark of flushes, beside the log (B2).
const FLUSHES: &str = "FLUSHES";

/// What a start yields.
pub(super) struct Booted {
    pub mailbox: Mailbox<ShellEvent>,
    pub shell: Shell,
    pub storage_thread: JoinHandle<()>,
    pub peer_sink: Arc<dyn PeerSink>,
    pub transport_config: TransportConfig,
    pub stagings: Stagings,
    /// Keeps the lock.
    pub data_dir: DataDir,
}

/// Starts everything but the listeners' services. Call it within the runtime.
pub(super) fn boot(config: &ServerConfig, closing: watch::Sender<bool>) -> Result<Booted, ServerError> {
    let fault = |what: String| ServerError::DataDir { path: config.data_dir.clone(), what };
    let released = config.disks()?.make_room().map_err(|e| ServerError::io("cannot release the ballast", e))?;
    let data_dir = DataDir::open(&config.data_dir, NodeKind::Server, config.cluster(), config.node())
        .map_err(|e| fault(e.to_string()))?;
    tell_supervisor(&data_dir);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let (post, mailbox) = mailbox(MAILBOX);
    let notices = Arc::new(FromWal { post: post.clone(), data_dir: config.data_dir.clone() });
    let profile = match config.wal_size {
        WalSize::Production => WalProfile::Production,
        WalSize::Dev => WalProfile::Dev,
    };
    let wal_config = WalConfig {
        distrust_cache: last_exit() == Some(EXIT_HUNG),
        mark: Some(config.data_dir.join(FLUSHES)),
        ..WalConfig::new(config.wal_dir(), profile)
    };
    let (wal, recovered) = Wal::open(wal_config, Arc::new(NoFaults), Arc::clone(&clock), notices)
        .map_err(|e| ServerError::Wal(e.to_string()))?;
    let wal = Arc::new(wal);
    let partitions = config.data_dir.join("partitions");
    let lost_groups = lost_groups(&partitions, &recovered)?;
    let shorter = shorter(&partitions, &recovered, &lost_groups)?;
    let suspect = judge(&config.data_dir, &recovered, shorter, data_dir.same_boot())?;
    let folders = storage::groups(&partitions)?;
    let log_lost = recovered.flushes_missing > 0;
    let fresh = recovered.groups.is_empty() && folders.is_empty() && !log_lost;
    let node_config = NodeConfig {
        hello: hello(config, &data_dir, fresh)?,
        observers: config.observers.iter().map(|o| NodeId(o.id)).collect(),
        timing: config.timing(),
        limits: NodeLimits { marks: config.marks(), ..NodeLimits::default() },
        seed: rand::random(),
        suspect_log: suspect,
        lost_groups,
        directory: known::load(&config.data_dir),
        log_lost,
        observer_loss: match config.observer_loss {
            ObserverLossSetting::Stop => ObserverLoss::Stop,
            ObserverLossSetting::ReadIndex => ObserverLoss::ReadIndex,
        },
    };
    let mut core = NodeCore::new(node_config, clock.now());
    let settings = StorageSettings { partitions: partitions.clone(), segment_bytes: config.segment_bytes };
    let mut storage = Storage::open(settings)?;
    let mut effects = Vec::new();
    let keys = DataKeys::default();
    let mut kept = Vec::new();
    let newest = sort_out(recovered.groups, &keys, &mut storage, &mut kept)?;
    kept.into_iter().for_each(|(group, replica)| core.keep(group, replica));
    for found in newest {
        open_replica(&mut core, &mut storage, found, clock.as_ref(), &mut effects)?;
    }
    let (storage_post, failed_dir) = (post.clone(), config.data_dir.clone());
    let (storage, storage_thread) = storage
        .start(move |notice| match notice {
            // Not by way of the mailbox: the loop may be busy, the exit is due within 200 ms (B3).
            StorageNotice::Failed(error) => fail(&storage_post, &failed_dir, &error.to_string()),
            notice => storage_post.push(ShellEvent::Storage(notice)),
        })
        .map_err(|e| ServerError::io("cannot start the storage thread", e))?;
    if released {
        tracing::warn!("the disk was full at the start: the ballast is released");
    }
    let gauge_post = post.clone();
    let tell = move |disks| gauge_post.push(ShellEvent::Core(NodeEvent::Space(disks)));
    let gauge = Gauge::start(config.disks()?, tell).map_err(|e| ServerError::io("cannot start a thread", e))?;
    let scrub = ScrubSettings {
        wal: config.wal_dir(),
        bytes_per_second: config.scrub_bytes_per_second,
        every: config.scrub_every(),
    };
    let damaged = log_damaged(post.clone(), config.data_dir.clone());
    storage::start_scrub(storage.clone(), scrub, damaged).map_err(|e| ServerError::io("cannot start a thread", e))?;
    let peer_sink: Arc<dyn PeerSink> = Arc::new(FromPeers { post: post.clone(), wal: Arc::downgrade(&wal) });
    let mut transport_config = TransportConfig::new(config.cluster(), config.node(), data_dir.incarnation());
    transport_config.snapshot_bytes_per_second = config.snapshot_bytes_per_second;
    let shell = Shell {
        core,
        clock,
        wal,
        transport: Transport::new(transport_config.clone(), Arc::clone(&peer_sink)),
        storage: storage.clone(),
        views: Arc::new(Views::default()),
        budget: TailBudget::new(config.tail_cache_bytes),
        data_dir: config.data_dir.clone(),
        keeper: Keeper::start(config.data_dir.clone()).map_err(|e| ServerError::io("cannot start a thread", e))?,
        metrics: NodeMetrics::register(),
        gauge,
        room: Arc::default(),
        closing,
        close_within: config.close_within(),
        drain_within: config.drain_within(),
        hosted: BTreeMap::new(),
        keys: keys.clone(),
        removing: BTreeSet::new(),
        sessions: BTreeMap::new(),
        waiting: HashMap::new(),
        reads: HashMap::new(),
        next_ticket: Ticket::ZERO,
        effects,
        echoes: Vec::new(),
        wal_requests: Vec::new(),
        post,
        fatal: None,
        raise_above: None,
        poisoned: false,
        draining_since: None,
        closing_since: None,
        metrics_due: BootTime::ZERO,
        suspect,
    };
    let stagings = Stagings::new(partitions, storage, keys, Arc::clone(&shell.room));
    let mut booted = Booted { mailbox, shell, storage_thread, peer_sink, transport_config, stagings, data_dir };
    booted.shell.execute();
    Ok(booted)
}

/// The supervisor names this incarnation in an exit notice (S2).
fn tell_supervisor(data_dir: &DataDir) {
    if std::env::var_os(ENV_SUPERVISOR_HASH).is_some() {
        let mut out = std::io::stdout();
        // A supervisor that died meanwhile has a successor, which reads the identity file.
        let _ = writeln!(out, "{INCARNATION_LINE}{}", data_dir.incarnation().get()).and_then(|()| out.flush());
    }
}

/// How the last process ended, as far as its supervisor tells.
fn last_exit() -> Option<i32> {
    std::env::var(ENV_LAST_EXIT).ok()?.parse().ok()
}

/// B2: may flushed entries be missing from the log? A marker stays until every replica caught up.
fn judge(dir: &Path, recovered: &Recovered, shorter: Option<String>, same_boot: bool) -> Result<bool, ServerError> {
    let marker = dir.join(SUSPECT);
    let after_disk_error = last_exit() == Some(EXIT_DISK);
    let why = if after_disk_error {
        "the last process met a disk error".to_owned()
    } else if let Some(cut) = recovered.tail_cut.as_ref().filter(|cut| cut.lost || !same_boot) {
        let how = if cut.lost { "flushed records are damaged" } else { "it was cut off by a power loss" };
        format!("{how}: {} bytes of {} after byte {}", cut.dropped, cut.file.display(), cut.kept)
    } else if recovered.flushes_missing > 0 {
        format!("its last {} flushes are missing", recovered.flushes_missing)
    } else if let Some(shorter) = shorter {
        shorter
    } else {
        return Ok(marker.exists());
    };
    tracing::error!(
        why,
        "the write-ahead log lost flushed entries: this node's replicas only veto until they caught up with a leader"
    );
    let written = std::fs::write(&marker, &why)
        .and_then(|()| std::fs::File::open(&marker)?.sync_all())
        .and_then(|()| std::fs::File::open(dir)?.sync_all());
    written.map_err(|e| ServerError::io("cannot write the marker of a suspect log", e))?;
    Ok(true)
}

/// B6: a damaged log is everybody's. The next start takes it for suspect; this process leads nothing any more.
fn log_damaged(post: Post<ShellEvent>, dir: PathBuf) -> impl FnOnce(String) + Send {
    move |damage| {
        let marker = dir.join(SUSPECT);
        let written = std::fs::write(&marker, &damage).and_then(|()| std::fs::File::open(&marker)?.sync_all());
        if let Err(error) = written {
            tracing::error!(%error, "cannot write the marker of a suspect log");
        }
        post.push(ShellEvent::LogDamaged(damage));
    }
}

/// Groups whose files hold entries while the log knows nothing of them.
fn lost_groups(partitions: &Path, recovered: &Recovered) -> Result<BTreeSet<GroupId>, StorageError> {
    let mut lost = BTreeSet::new();
    for group in storage::groups(partitions)? {
        if !recovered.groups.contains_key(&group) && storage::holds_entries(partitions, group)? {
            lost.insert(group);
        }
    }
    Ok(lost)
}

/// A partition's files hold an entry that its log does not: an older log was put in place, or it is gone.
fn shorter(partitions: &Path, recovered: &Recovered, lost: &BTreeSet<GroupId>) -> Result<Option<String>, StorageError> {
    if let Some(group) = lost.first() {
        return Ok(Some(format!("the files of {group} are there, its log is gone")));
    }
    for (group, log) in &recovered.groups {
        let stored = log.kv.get(CHECKPOINT_KEY).map(|stored| Checkpoint::from_bytes(stored.clone(), partitions));
        let checkpoint = match stored {
            Some(Err(newer @ StorageError::Newer { .. })) => return Err(newer),
            // A damaged one is found again when its replica is opened.
            stored => stored.and_then(Result::ok),
        };
        let newest = storage::reach(partitions, *group, checkpoint.as_ref())?;
        let last = log.entries.last().map_or(LogIndex::ZERO, |entry| LogIndex(entry.index));
        let last = last.max(checkpoint.map_or(LogIndex::ZERO, |checkpoint| checkpoint.log_index()));
        if newest > last {
            return Ok(Some(format!("the files of {group} reach to {newest}, its log to {last}")));
        }
    }
    Ok(None)
}

fn hello(config: &ServerConfig, data_dir: &DataDir, fresh: bool) -> Result<Hello, ServerError> {
    Ok(Hello {
        cluster: config.cluster(),
        node: config.node(),
        name: config.name.clone(),
        incarnation: data_dir.incarnation(),
        disk: data_dir.identity().disk,
        address: config.client_address(),
        peer_address: config.peer_address(),
        fault_domain: config.domain().to_owned(),
        lock: data_dir.lock_proof().map_err(|e| ServerError::io("cannot examine the lock file", e))?,
        supervisor_hash: std::env::var(ENV_SUPERVISOR_HASH).unwrap_or_default(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        fresh,
        knows: DirectoryVersion::ZERO,
        knows_born: quorate_proto::time::LogTime::ZERO,
    })
}

/// A replica found on disk.
struct Found {
    key: GroupId,
    assignment: Assignment,
    log: RecoveredGroup,
}

/// The newest replica of each group. Those whose place it takes are added to `kept`: their data are left as they are until it
/// is promoted.
fn sort_out(
    groups: BTreeMap<GroupId, RecoveredGroup>,
    keys: &DataKeys,
    storage: &mut Storage,
    kept: &mut Vec<(GroupId, ReplicaId)>,
) -> Result<Vec<Found>, ServerError> {
    let mut newest: BTreeMap<GroupId, Found> = BTreeMap::new();
    for (key, mut log) in groups {
        let Some(assignment) = log.kv.remove(ASSIGNMENT) else {
            tracing::warn!(group = %key, "the log holds a group without assignment; left alone");
            continue;
        };
        let assignment = decode_assignment(assignment).map_err(|e| ServerError::Storage(format!("{key}: {e}")))?;
        let (group, replica) = (assignment.group, assignment.replica);
        keys.found(group, replica, key);
        let found = Found { key, assignment, log };
        let older = match newest.get(&group) {
            Some(known) if known.assignment.replica > replica => Some(found),
            _ => newest.insert(group, found),
        };
        if let Some(older) = older {
            storage.keep(older.key);
            kept.push((older.assignment.group, older.assignment.replica));
        }
    }
    Ok(newest.into_values().collect())
}

/// Brings one replica's files in step with its log and hands both to the core. One that cannot be opened is set
/// aside (M3): the others go on, and its files stay for whoever repairs it.
fn open_replica(
    core: &mut NodeCore,
    storage: &mut Storage,
    found: Found,
    clock: &dyn Clock,
    effects: &mut Vec<NodeEffect>,
) -> Result<(), ServerError> {
    let Found { key, assignment, mut log } = found;
    let checkpoint = log.kv.remove(CHECKPOINT_KEY);
    let members = first_members(&assignment);
    let restored = log.restored().map(|log| log.unwrap_or_else(|| bootstrap(&members)));
    match (storage.recover(key, checkpoint), restored) {
        (Ok(recovered), Ok(restored)) => {
            core.open(assignment, restored, recovered.map(|r| r.image), clock.now(), effects);
        }
        // A disk that refuses is no damage of one group, and what a newer version wrote is none at all.
        (Err(error @ (StorageError::Io { .. } | StorageError::Newer { .. })), _) => return Err(error.into()),
        (Err(damage), _) => core.open_aside(assignment, damage.to_string(), effects),
        (_, Err(quarantine)) => core.open_aside(assignment, quarantine.reason, effects),
    }
    Ok(())
}
