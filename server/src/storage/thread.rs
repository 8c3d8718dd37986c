//! The storage thread: takes commands in order, does reads after writes, tells what became durable.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::Arc;

use bytes::Bytes;
use quorate_consensus::node::MachineImage;
use quorate_proto::ids::{GroupId, LogIndex, ReplicaId};

use super::checkpoint::Checkpoint;
use super::error::StorageError;
use super::file;
use super::files::{group_dir, PartitionFiles, SnapshotFile};
use super::handle::{Command, Read, StorageHandle};
use super::scrub;

/// A queue that never grew beyond this is nobody's business.
const BACKLOG_WORTH_TELLING: u64 = 4 << 20;

/// A write that found no room is tried again after this long.
const ROOM_RETRY: std::time::Duration = std::time::Duration::from_millis(50);

/// Where the storage lives and how it cuts.
#[derive(Clone, Debug)]
pub struct StorageSettings {
    /// `data_dir/partitions`.
    pub partitions: PathBuf,
    /// A segment is closed at this length.
    pub segment_bytes: u64,
}

/// What the storage thread tells its owner.
#[derive(Debug)]
pub enum StorageNotice {
    /// Everything up to the checkpoint's index is flushed.
    Checkpointed {
        /// The group.
        group: GroupId,
        /// What to put into the log.
        checkpoint: Checkpoint,
    },
    /// A snapshot can be taken from these files.
    SnapshotReady {
        /// The group.
        group: GroupId,
        /// For whom.
        to: ReplicaId,
        /// Its position and state.
        checkpoint: Checkpoint,
        /// Its files.
        files: Vec<SnapshotFile>,
    },
    /// A staged snapshot took the place of the group's files.
    Installed {
        /// The group.
        group: GroupId,
        /// Its checkpoint, of the new generation.
        checkpoint: Checkpoint,
        /// The machine in it.
        image: MachineImage,
    },
    /// The queue of the group shrank to this many bytes.
    Backlog {
        /// The group.
        group: GroupId,
        /// Bytes still waiting.
        bytes: u64,
    },
    /// The files of a group are gone.
    Removed {
        /// The group.
        group: GroupId,
    },
    /// A write found no room; it is tried again until there is some (B5).
    Full,
    /// The files of the group are damaged (B6): they serve nobody any more.
    Damaged {
        /// The group.
        group: GroupId,
        /// What was found.
        reason: String,
    },
    /// A write or flush failed (B3), or a file that must be readable is damaged.
    Failed(StorageError),
}

/// The files of all partitions, before their thread runs.
#[derive(Debug)]
pub struct Storage {
    settings: StorageSettings,
    groups: BTreeMap<GroupId, PartitionFiles>,
    /// Found damaged at start: their files are kept as they are.
    aside: BTreeSet<GroupId>,
    /// Received whole, not yet installed.
    staged: BTreeMap<(GroupId, LogIndex), Checkpoint>,
    /// Found damaged while running (B6): nothing of them is read or served any more.
    damaged: BTreeMap<GroupId, String>,
}

impl Storage {
    /// Makes the folder if it is not there.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn open(settings: StorageSettings) -> Result<Self, StorageError> {
        file::create_dir(&settings.partitions)?;
        Ok(Self {
            settings,
            groups: BTreeMap::new(),
            aside: BTreeSet::new(),
            staged: BTreeMap::new(),
            damaged: BTreeMap::new(),
        })
    }

    /// Brings the files of a group to what its newest checkpoint says, and yields the machine in it. Without a
    /// checkpoint nothing of the group was ever flushed: it begins empty and is applied again from the log.
    ///
    /// # Errors
    /// When files are missing, damaged, or the disk refuses. The files are then left as they are.
    pub fn recover(&mut self, group: GroupId, checkpoint: Option<Bytes>) -> Result<Option<Recovered>, StorageError> {
        let recovered = self.try_recover(group, checkpoint);
        if recovered.is_err() {
            self.aside.insert(group);
        }
        recovered
    }

    fn try_recover(&mut self, group: GroupId, checkpoint: Option<Bytes>) -> Result<Option<Recovered>, StorageError> {
        let partitions = &self.settings.partitions;
        if let Some(what) = scrub::marked(partitions, group) {
            return Err(StorageError::corrupt(partitions, group.get(), what));
        }
        let Some(stored) = checkpoint else {
            let files = PartitionFiles::create(partitions, group, self.settings.segment_bytes)?;
            self.groups.insert(group, files);
            return Ok(None);
        };
        let checkpoint = Checkpoint::from_bytes(stored, &group_dir(partitions, group))?;
        let (files, key_runs) =
            PartitionFiles::open(partitions, group, checkpoint.clone(), self.settings.segment_bytes)?;
        files.remove_other_generations()?;
        self.groups.insert(group, files);
        let image = MachineImage { state: checkpoint.state.clone(), key_runs };
        Ok(Some(Recovered { checkpoint, image }))
    }

    /// Leaves the files of a group alone: they are those of a replica that another one replaces, kept until it is
    /// promoted (M1).
    pub fn keep(&mut self, group: GroupId) {
        self.aside.insert(group);
    }

    /// Starts the thread. `notify` is called on it and must not block.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(
        self,
        notify: impl Fn(StorageNotice) + Send + 'static,
    ) -> std::io::Result<(StorageHandle, std::thread::JoinHandle<()>)> {
        let (commands, inbox) = std::sync::mpsc::channel();
        let waiting = Arc::new(AtomicU64::new(0));
        let stopping = Arc::<AtomicBool>::default();
        let worker =
            Worker { storage: self, inbox, notify, waiting: Arc::clone(&waiting), stopping: Arc::clone(&stopping) };
        let thread = std::thread::Builder::new().name("storage".to_owned()).spawn(move || worker.run())?;
        Ok((StorageHandle::new(commands, waiting, stopping), thread))
    }
}

/// What [`Storage::recover`] found.
#[derive(Clone, Debug)]
pub struct Recovered {
    /// Position and files.
    pub checkpoint: Checkpoint,
    /// The machine there.
    pub image: MachineImage,
}

struct Worker<F> {
    storage: Storage,
    inbox: Receiver<Command>,
    notify: F,
    waiting: Arc<AtomicU64>,
    /// The node closes: what waits for room waits no longer.
    stopping: Arc<AtomicBool>,
}

impl<F: Fn(StorageNotice)> Worker<F> {
    fn run(mut self) {
        let mut reads = Vec::new();
        while let Ok(first) = self.inbox.recv() {
            let mut next = Some(first);
            while let Some(command) = next {
                match command {
                    Command::Stop => return,
                    Command::Read { group, read } => reads.push((group, read)),
                    command => {
                        if let Err(error) = self.execute(command) {
                            // Nothing more is written: what is on disk is what the last checkpoint says (B3).
                            if !matches!(error, StorageError::Stopped) {
                                (self.notify)(StorageNotice::Failed(error));
                            }
                            return;
                        }
                    }
                }
                next = self.inbox.try_recv().ok();
            }
            for (group, read) in reads.drain(..) {
                // Nobody may be waiting any more.
                match read {
                    Read::Records { offset, max, reply } => {
                        let _ = reply.send(self.read(group, |files| files.read(offset, max)));
                    }
                    Read::OffsetAt { time, reply } => {
                        let _ = reply.send(self.read(group, |files| files.offset_at(time)));
                    }
                }
            }
        }
    }

    fn files(&mut self, group: GroupId) -> Result<&mut PartitionFiles, StorageError> {
        self.storage.groups.get_mut(&group).ok_or(StorageError::UnknownGroup(group.get()))
    }

    fn read<T>(
        &mut self,
        group: GroupId,
        read: impl FnOnce(&mut PartitionFiles) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        if let Some(what) = self.storage.damaged.get(&group) {
            return Err(StorageError::corrupt(&self.storage.settings.partitions, group.get(), what.clone()));
        }
        let found = read(self.files(group)?);
        if let Err(damage @ StorageError::Corrupt { .. }) = &found {
            self.damaged(group, damage.to_string());
        }
        found
    }

    /// B6: told once. The files stay as they are, for whoever repairs the replica.
    fn damaged(&mut self, group: GroupId, reason: String) {
        if self.storage.damaged.contains_key(&group) || !self.storage.groups.contains_key(&group) {
            return;
        }
        scrub::mark(&self.storage.settings.partitions, group, &reason);
        self.storage.damaged.insert(group, reason.clone());
        (self.notify)(StorageNotice::Damaged { group, reason });
    }

    fn durable_files(&self) -> Vec<(GroupId, Vec<SnapshotFile>)> {
        let sound = self.storage.groups.iter().filter(|(group, _)| !self.storage.damaged.contains_key(group));
        sound.filter_map(|(group, files)| files.snapshot().map(|(_, files)| (*group, files))).collect()
    }

    /// B5: a full disk is no failed one. What is appended here stands in the log, so it can wait; its queue is bounded, and
    /// publishes are refused when it is long.
    fn when_there_is_room(
        &mut self,
        mut write: impl FnMut(&mut Self) -> Result<(), StorageError>,
    ) -> Result<(), StorageError> {
        loop {
            match write(self) {
                Err(StorageError::Io { source, .. }) if source.kind() == std::io::ErrorKind::StorageFull => {
                    if self.stopping.load(Ordering::Relaxed) {
                        return Err(StorageError::Stopped);
                    }
                    (self.notify)(StorageNotice::Full);
                    std::thread::sleep(ROOM_RETRY);
                }
                result => return result,
            }
        }
    }

    /// An error means that the disk cannot be trusted.
    fn execute(&mut self, command: Command) -> Result<(), StorageError> {
        match command {
            Command::Open { group } => self.when_there_is_room(|worker| worker.open(group))?,
            Command::Append { group, entries, bytes, waiting } => {
                self.when_there_is_room(|worker| worker.files(group)?.append(&entries))?;
                drop(entries);
                self.waiting.fetch_sub(bytes, Ordering::Relaxed);
                let rest = waiting.fetch_sub(bytes, Ordering::Relaxed) - bytes;
                if rest + bytes > BACKLOG_WORTH_TELLING {
                    (self.notify)(StorageNotice::Backlog { group, bytes: rest });
                }
            }
            Command::Checkpoint { group, index, term, state } => {
                let checkpoint = self.files(group)?.checkpoint(index, term, state)?;
                (self.notify)(StorageNotice::Checkpointed { group, checkpoint });
            }
            // Damage is not passed on.
            Command::BuildSnapshot { group, .. } if self.storage.damaged.contains_key(&group) => {}
            Command::DurableFiles { reply } => {
                let _ = reply.send(self.durable_files());
            }
            Command::Damaged { group, reason } => self.damaged(group, reason),
            Command::BuildSnapshot { group, to } => {
                if let Some((checkpoint, files)) = self.files(group)?.snapshot() {
                    (self.notify)(StorageNotice::SnapshotReady { group, to, checkpoint, files });
                }
            }
            Command::Install { group, index, state } => self.install(group, index, state)?,
            Command::Retire { group } => self.files(group)?.remove_older_generations()?,
            Command::Remove { group } => {
                self.storage.groups.remove(&group);
                self.storage.aside.remove(&group);
                self.storage.damaged.remove(&group);
                self.storage.staged.retain(|(staged, _), _| *staged != group);
                super::files::remove_all(&self.storage.settings.partitions, group)?;
                (self.notify)(StorageNotice::Removed { group });
            }
            Command::Staged { group, checkpoint } => {
                self.storage.staged.insert((group, checkpoint.log_index()), checkpoint);
            }
            Command::Read { .. } | Command::Stop => unreachable!("handled by the loop"),
        }
        Ok(())
    }

    fn open(&mut self, group: GroupId) -> Result<(), StorageError> {
        let settings = &self.storage.settings;
        if !self.storage.groups.contains_key(&group) && !self.storage.aside.contains(&group) {
            let files = PartitionFiles::create(&settings.partitions, group, settings.segment_bytes)?;
            self.storage.groups.insert(group, files);
        }
        Ok(())
    }

    fn install(&mut self, group: GroupId, index: LogIndex, state: Bytes) -> Result<(), StorageError> {
        let settings = &self.storage.settings;
        let mut checkpoint = self.storage.staged.remove(&(group, index)).ok_or_else(|| {
            StorageError::corrupt(&settings.partitions, 0, format!("no snapshot of {group} at {index}"))
        })?;
        checkpoint.state = state;
        let (files, key_runs) =
            PartitionFiles::open(&settings.partitions, group, checkpoint.clone(), settings.segment_bytes)?;
        self.storage.staged.retain(|(g, at), _| *g != group || *at > index);
        self.storage.groups.insert(group, files);
        let image = MachineImage { state: checkpoint.state.clone(), key_runs };
        (self.notify)(StorageNotice::Installed { group, checkpoint, image });
        Ok(())
    }
}
