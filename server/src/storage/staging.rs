//! A snapshot on its way in: its parts become the files of a new generation, beside those in use.
//!
//! Nothing refers to them before the write-ahead log names the generation, so a crash at any point leaves either
//! the old files or the new ones, whole.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use bytes::Bytes;
use quorate_consensus::envelope::Envelope;
use quorate_host::transport::{PartSource, SnapshotPart, SnapshotStaging, StagedSnapshot};
use quorate_proto::control::Room;
use quorate_proto::ids::{GroupId, NodeId};

use super::checkpoint::Checkpoint;
use super::error::StorageError;
use super::file;
use super::files::{generation_dir, group_dir, part_file, SnapshotFile};
use super::scrub;
use super::thread::StorageHandle;
use crate::keys::DataKeys;

/// The part that says what the other parts must be: the sender's [`Checkpoint`] without the machine's state, which
/// travels in the Raft message.
const MANIFEST_PART: &str = "manifest";
/// The manifest is gathered in memory: a few bytes per file.
const MANIFEST_MAX: usize = 16 << 20;

/// The parts of a snapshot to send.
///
/// # Errors
/// When a file cannot be opened.
pub fn snapshot_parts(checkpoint: &Checkpoint, files: &[SnapshotFile]) -> Result<Vec<SnapshotPart>, StorageError> {
    let manifest = Checkpoint { state: Bytes::new(), ..checkpoint.clone() };
    let source = PartSource::Bytes(manifest.to_bytes());
    let mut parts = vec![SnapshotPart { name: MANIFEST_PART.to_owned(), source }];
    for part in files {
        let file = File::open(&part.path).map_err(StorageError::io("cannot open", &part.path))?;
        let source = PartSource::File { file, len: part.length };
        parts.push(SnapshotPart { name: part.part.clone(), source });
    }
    Ok(parts)
}

/// Takes snapshots that peers send.
#[derive(Clone)]
pub struct Stagings {
    partitions: PathBuf,
    storage: StorageHandle,
    keys: DataKeys,
    room: Arc<AtomicU32>,
}

impl Stagings {
    /// Below `partitions`, under each replica's key; what arrived whole is told to `storage`. `room`: number of the room
    /// that the disk has.
    #[must_use]
    pub fn new(partitions: PathBuf, storage: StorageHandle, keys: DataKeys, room: Arc<AtomicU32>) -> Self {
        Self { partitions, storage, keys, room }
    }
}

impl SnapshotStaging for Stagings {
    fn begin(&self, from: NodeId, envelope: &Envelope) -> Result<Box<dyn StagedSnapshot>, String> {
        let room = Room::from_number(self.room.load(Ordering::Relaxed));
        if room != Room::Ample {
            return Err(format!("the disk is {room}"));
        }
        tracing::info!(%from, group = %envelope.group, "receiving a snapshot");
        let key = self.keys.of(envelope.group);
        let staging = Staging::begin(&self.partitions, key).map_err(|e| e.to_string())?;
        Ok(Box::new(Incoming { key, staging: Some(staging), storage: self.storage.clone() }))
    }
}

struct Incoming {
    key: GroupId,
    staging: Option<Staging>,
    storage: StorageHandle,
}

impl StagedSnapshot for Incoming {
    fn write(&mut self, part: &str, data: Bytes) -> Result<(), String> {
        let staging = self.staging.as_mut().ok_or("the snapshot is finished")?;
        staging.write(part, &data).map_err(|e| e.to_string())
    }

    fn finish(mut self: Box<Self>, envelope: &Envelope) -> Result<(), String> {
        let staging = self.staging.as_mut().ok_or("the snapshot is finished")?;
        let checkpoint = staging.finish().map_err(|e| e.to_string())?;
        let index = envelope.message.get_snapshot().get_metadata().index;
        if checkpoint.index != index {
            return Err(format!("the files are of index {}, the message of {index}", checkpoint.index));
        }
        self.storage.staged(self.key, checkpoint);
        // The files are the storage's now.
        self.staging = None;
        Ok(())
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if let Some(staging) = self.staging.take() {
            staging.abandon();
        }
    }
}

/// One snapshot being received.
#[derive(Debug)]
pub(super) struct Staging {
    dir: PathBuf,
    generation: u64,
    manifest: Vec<u8>,
    files: BTreeMap<String, (File, u64)>,
}

impl Staging {
    /// Begins beside whatever `group` has now.
    pub fn begin(partitions: &Path, group: GroupId) -> Result<Self, StorageError> {
        let group_dir = group_dir(partitions, group);
        file::create_dir(&group_dir)?;
        let entries = std::fs::read_dir(&group_dir).map_err(StorageError::io("cannot list", &group_dir))?;
        let newest = entries.filter_map(|e| e.ok()?.file_name().to_str()?.parse::<u64>().ok()).max();
        let generation = newest.map_or(0, |n| n + 1);
        let dir = generation_dir(&group_dir, generation);
        // Fails if another transfer took the number in between: Raft asks again.
        std::fs::create_dir(&dir).map_err(StorageError::io("cannot create", &dir))?;
        file::sync_dir(&group_dir)?;
        Ok(Self { dir, generation, manifest: Vec::new(), files: BTreeMap::new() })
    }

    /// Takes a piece of a part; pieces of a part come in order.
    pub fn write(&mut self, part: &str, data: &[u8]) -> Result<(), StorageError> {
        if part == MANIFEST_PART {
            if self.manifest.len() + data.len() > MANIFEST_MAX {
                return Err(StorageError::corrupt(&self.dir, 0, "the manifest is too long"));
            }
            self.manifest.extend_from_slice(data);
            return Ok(());
        }
        let name = part_file(part)
            .ok_or_else(|| StorageError::corrupt(&self.dir, 0, format!("a snapshot has no part '{part}'")))?;
        let path = self.dir.join(&name);
        if !self.files.contains_key(&name) {
            let file = File::create_new(&path).map_err(StorageError::io("cannot create", &path))?;
            self.files.insert(name.clone(), (file, 0));
        }
        let (file, length) = self.files.get_mut(&name).expect("inserted above");
        file.write_all(data).map_err(StorageError::io("cannot write", &path))?;
        *length += data.len() as u64;
        Ok(())
    }

    /// Checks that everything is there and flushes it. The checkpoint names this generation.
    pub fn finish(&mut self) -> Result<Checkpoint, StorageError> {
        let wrong = |what: String| StorageError::corrupt(&self.dir, 0, what);
        let mut checkpoint = Checkpoint::from_bytes(Bytes::from(self.manifest.clone())).map_err(wrong)?;
        let segments = checkpoint.segments.iter().map(|f| (format!("segment/{}", f.id), f.length));
        let runs = checkpoint.runs.iter().map(|f| (format!("keys/{}", f.id), f.length));
        for (part, length) in segments.chain(runs) {
            let received = part_file(&part).and_then(|name| self.files.get(&name)).map_or(0, |(_, length)| *length);
            if received != length {
                return Err(wrong(format!("{part} has {received} bytes of {length}")));
            }
        }
        for (name, (file, length)) in &self.files {
            let path = self.dir.join(name);
            file.sync_all().map_err(StorageError::io("cannot flush", &path))?;
            // The sender may not know yet that its files are damaged (B6).
            scrub::verify(&path, *length, &mut |_| {})?;
        }
        file::sync_dir(&self.dir)?;
        checkpoint.generation = self.generation;
        Ok(checkpoint)
    }

    /// Gives up: nothing of it is kept.
    pub fn abandon(self) {
        // Best effort: what stays is removed at the next start.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
