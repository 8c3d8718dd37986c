//! A snapshot on its way in: its parts become the files of a new generation, beside those in use.
//!
//! ```text
//! partitions/<group>/incoming/TRANSFER   whose snapshot it is: text, one line
//!                             CHUNKS     a record for each chunk that was written: what, where, checksum
//!                             <files>    as in a generation; renamed to one when whole
//! ```
//! A transfer that broke off stays, also over a restart. The same snapshot goes on behind the last chunk that reads back with
//! its checksum (nothing of it was flushed); another one begins anew.
//!
//! Nothing refers to them before the write-ahead log names the generation, so a crash at any point leaves either
//! the old files or the new ones, whole.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use quorate_consensus::envelope::Envelope;
use quorate_host::transport::{PartSource, SnapshotPart, SnapshotStaging, StagedSnapshot, BUSY};
use quorate_proto::control::Room;
use quorate_proto::ids::{GroupId, NodeId};

use super::checkpoint::Checkpoint;
use super::error::StorageError;
use super::file;
use super::files::{generation_dir, group_dir, part_file, SnapshotFile};
use super::handle::StorageHandle;
use super::scrub;
use crate::keys::DataKeys;

/// The part that says what the other parts must be: the sender's [`Checkpoint`] without the machine's state, which
/// travels in the Raft message.
const MANIFEST_PART: &str = "manifest";
/// The manifest is gathered in memory: a few bytes per file.
const MANIFEST_MAX: usize = 16 << 20;
/// The folder of a snapshot on its way in.
pub(super) const INCOMING: &str = "incoming";
const TRANSFER: &str = "TRANSFER";
const CHUNKS: &str = "CHUNKS";

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
    turns: Turns,
}

/// Groups that are being received: each from one sender at a time.
#[derive(Clone, Default)]
struct Turns(Arc<Mutex<BTreeMap<GroupId, Receiving>>>);

impl Turns {
    /// The right to receive a group from the leader of `term`. `None`: another one has it; it loses it to a later leader, who
    /// gets it with the next attempt.
    fn take(&self, key: GroupId, term: u64) -> Option<Turn> {
        let mut busy = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(other) = busy.get(&key) {
            if other.term < term {
                other.superseded.store(true, Ordering::Relaxed);
            }
            return None;
        }
        let superseded = Arc::new(AtomicBool::new(false));
        busy.insert(key, Receiving { term, superseded: Arc::clone(&superseded) });
        Some(Turn { key, superseded, turns: self.clone() })
    }
}

/// A group that is being received.
struct Receiving {
    /// Of the leader that sends.
    term: u64,
    /// A leader of a later term wants to send: this one was deposed, and has nothing more to say.
    superseded: Arc<AtomicBool>,
}

/// While it lives, nobody else receives this group.
struct Turn {
    key: GroupId,
    superseded: Arc<AtomicBool>,
    turns: Turns,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.turns.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

impl Stagings {
    /// Below `partitions`, under each replica's key; what arrived whole is told to `storage`. `room`: number of the room
    /// that the disk has.
    #[must_use]
    pub fn new(partitions: PathBuf, storage: StorageHandle, keys: DataKeys, room: Arc<AtomicU32>) -> Self {
        Self { partitions, storage, keys, room, turns: Turns::default() }
    }

    fn turn(&self, envelope: &Envelope) -> Result<Turn, String> {
        let turn = self.turns.take(self.keys.of(envelope.group), envelope.message.term);
        turn.ok_or_else(|| format!("{BUSY}: a snapshot of {} is being received", envelope.group))
    }

    /// Opens what is there of this snapshot, or begins it.
    fn open(&self, from: NodeId, envelope: &Envelope) -> Result<(Staging, Turn), String> {
        let room = Room::from_number(self.room.load(Ordering::Relaxed));
        if room != Room::Ample {
            return Err(format!("the disk is {room}"));
        }
        let turn = self.turn(envelope)?;
        let staging =
            Staging::begin(&self.partitions, turn.key, &transfer_of(from, envelope)).map_err(|e| e.to_string())?;
        Ok((staging, turn))
    }
}

/// Names one snapshot from one sender to one replica.
fn transfer_of(from: NodeId, envelope: &Envelope) -> String {
    let meta = envelope.message.get_snapshot().get_metadata();
    format!("{} {} {} {} {}", from, envelope.from, envelope.to, meta.index, meta.term)
}

impl SnapshotStaging for Stagings {
    fn begin(&self, from: NodeId, envelope: &Envelope) -> Result<Box<dyn StagedSnapshot>, String> {
        let (staging, turn) = self.open(from, envelope)?;
        let there = staging.bytes();
        tracing::info!(%from, group = %envelope.group, there, "receiving a snapshot");
        Ok(Box::new(Incoming { turn, staging: Some(staging), storage: self.storage.clone() }))
    }

    fn staged(&self, from: NodeId, envelope: &Envelope) -> Result<Vec<(String, u64)>, String> {
        let turn = self.turn(envelope)?;
        let transfer = transfer_of(from, envelope);
        // A question changes nothing: what another sender left may still be gone on with.
        if !Staging::is_known(&group_dir(&self.partitions, turn.key), &transfer) {
            return Ok(Vec::new());
        }
        let staging = Staging::begin(&self.partitions, turn.key, &transfer).map_err(|e| e.to_string())?;
        Ok(staging.there())
    }
}

struct Incoming {
    turn: Turn,
    staging: Option<Staging>,
    storage: StorageHandle,
}

impl StagedSnapshot for Incoming {
    fn write(&mut self, part: &str, offset: u64, data: Bytes) -> Result<(), String> {
        if self.turn.superseded.load(Ordering::Relaxed) {
            return Err("a leader of a later term has a snapshot of its own to send".to_owned());
        }
        let staging = self.staging.as_mut().ok_or("the snapshot is finished")?;
        staging.write(part, offset, &data).map_err(|e| e.to_string())
    }

    fn finish(mut self: Box<Self>, envelope: &Envelope) -> Result<(), String> {
        // Whole and wrong is of no use to anybody: only what breaks off before stays.
        let staging = self.staging.take().ok_or("the snapshot is finished")?;
        let index = envelope.message.get_snapshot().get_metadata().index;
        let checkpoint = staging.finish(index).map_err(|e| e.to_string())?;
        self.storage.staged(self.turn.key, checkpoint);
        Ok(())
    }
}

/// One snapshot being received.
#[derive(Debug)]
pub(super) struct Staging {
    group_dir: PathBuf,
    dir: PathBuf,
    manifest: Vec<u8>,
    files: BTreeMap<String, (File, u64)>,
    /// Part names of the files.
    parts: BTreeMap<String, String>,
    chunks: File,
}

impl Staging {
    /// An earlier attempt at this transfer left something.
    fn is_known(group_dir: &Path, transfer: &str) -> bool {
        std::fs::read_to_string(group_dir.join(INCOMING).join(TRANSFER)).is_ok_and(|known| known == transfer)
    }

    /// Goes on with this transfer if an earlier attempt left some of it, beside whatever `group` has now; else begins it.
    pub fn begin(partitions: &Path, group: GroupId, transfer: &str) -> Result<Self, StorageError> {
        let group_dir = group_dir(partitions, group);
        file::create_dir(&group_dir)?;
        let dir = group_dir.join(INCOMING);
        if !Self::is_known(&group_dir, transfer) {
            remove(&dir)?;
            std::fs::create_dir(&dir).map_err(StorageError::io("cannot create", &dir))?;
            let path = dir.join(TRANSFER);
            std::fs::write(&path, transfer).map_err(StorageError::io("cannot write", &path))?;
            file::sync_dir(&group_dir)?;
        }
        let path = dir.join(CHUNKS);
        let open = OpenOptions::new().read(true).append(true).create(true).open(&path);
        let chunks = open.map_err(StorageError::io("cannot open", &path))?;
        let (files, parts) = (BTreeMap::new(), BTreeMap::new());
        let mut staging = Self { group_dir, dir, manifest: Vec::new(), files, parts, chunks };
        staging.take_up()?;
        Ok(staging)
    }

    /// Reads back what the records say, up to the first chunk that is not as it was received. What stands behind is cut off.
    fn take_up(&mut self) -> Result<(), StorageError> {
        let path = self.dir.join(CHUNKS);
        let records = std::fs::read(&path).map_err(StorageError::io("cannot read", &path))?;
        let mut at = 0;
        while let Some((record, length)) = Record::decode(&records[at..]) {
            if !self.reads_back(&record)? {
                break;
            }
            at += length;
        }
        self.chunks.set_len(at as u64).map_err(StorageError::io("cannot cut", &path))?;
        for (name, (file, length)) in &self.files {
            let path = self.dir.join(name);
            file.set_len(*length).map_err(StorageError::io("cannot cut", &path))?;
        }
        Ok(())
    }

    fn reads_back(&mut self, record: &Record) -> Result<bool, StorageError> {
        let Some(name) = part_file(&record.part) else { return Ok(false) };
        let path = self.dir.join(&name);
        if !self.files.contains_key(&name) {
            let Ok(file) = OpenOptions::new().read(true).write(true).open(&path) else { return Ok(false) };
            self.files.insert(name.clone(), (file, 0));
            self.parts.insert(name.clone(), record.part.clone());
        }
        let (file, length) = self.files.get_mut(&name).expect("inserted above");
        let mut data = vec![0; record.length as usize];
        let sound = record.offset == *length
            && file.read_exact_at(&mut data, record.offset).is_ok()
            && crc32c::crc32c(&data) == record.crc;
        if sound {
            *length += u64::from(record.length);
        }
        Ok(sound)
    }

    /// Parts that are there, with the length of their checked beginning.
    pub fn there(&self) -> Vec<(String, u64)> {
        let part = |(name, (_, length)): (&String, &(File, u64))| Some((self.parts.get(name)?.clone(), *length));
        self.files.iter().filter_map(part).collect()
    }

    /// Bytes that are there.
    pub fn bytes(&self) -> u64 {
        self.files.values().map(|(_, length)| *length).sum()
    }

    /// Takes a piece of a part; pieces of a part come in order.
    pub fn write(&mut self, part: &str, offset: u64, data: &[u8]) -> Result<(), StorageError> {
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
            let open = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
            let file = open.map_err(StorageError::io("cannot create", &path))?;
            self.files.insert(name.clone(), (file, 0));
            self.parts.insert(name.clone(), part.to_owned());
        }
        let (file, length) = self.files.get_mut(&name).expect("inserted above");
        if offset != *length {
            return Err(StorageError::corrupt(&path, *length, format!("a piece of byte {offset} came")));
        }
        file.write_all_at(data, offset).map_err(StorageError::io("cannot write", &path))?;
        *length += data.len() as u64;
        let pieces = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let record = Record { part: part.to_owned(), offset, length: pieces, crc: crc32c::crc32c(data) };
        let path = self.dir.join(CHUNKS);
        self.chunks.write_all(&record.encode()).map_err(StorageError::io("cannot write", &path))
    }

    /// Checks that everything is there, of this index, flushes it and makes it a generation, which the checkpoint names. If it
    /// is not, nothing of it is kept.
    pub fn finish(self, index: u64) -> Result<Checkpoint, StorageError> {
        let dir = self.dir.clone();
        let whole = self.make_generation(index);
        if whole.is_err() {
            // Best effort: another snapshot takes its place.
            let _ = remove(&dir);
        }
        whole
    }

    fn make_generation(self, index: u64) -> Result<Checkpoint, StorageError> {
        let wrong = |what: String| StorageError::corrupt(&self.dir, 0, what);
        let mut checkpoint = Checkpoint::from_bytes(Bytes::from(self.manifest.clone()), &self.dir)?;
        if checkpoint.index != index {
            return Err(wrong(format!("the files are of index {}, the message of {index}", checkpoint.index)));
        }
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
        for own in [TRANSFER, CHUNKS] {
            let path = self.dir.join(own);
            std::fs::remove_file(&path).map_err(StorageError::io("cannot remove", &path))?;
        }
        file::sync_dir(&self.dir)?;
        let entries = std::fs::read_dir(&self.group_dir).map_err(StorageError::io("cannot list", &self.group_dir))?;
        let newest = entries.filter_map(|e| e.ok()?.file_name().to_str()?.parse::<u64>().ok()).max();
        checkpoint.generation = newest.map_or(0, |n| n + 1);
        let generation = generation_dir(&self.group_dir, checkpoint.generation);
        std::fs::rename(&self.dir, &generation).map_err(StorageError::io("cannot rename", &self.dir))?;
        file::sync_dir(&self.group_dir)?;
        Ok(checkpoint)
    }
}

fn remove(dir: &Path) -> Result<(), StorageError> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(StorageError::io("cannot remove", dir)(error))
        }
        _ => Ok(()),
    }
}

/// Index of the snapshot that a transfer in this folder is of.
pub(super) fn incoming_index(dir: &Path) -> Option<u64> {
    std::fs::read_to_string(dir.join(TRANSFER)).ok()?.split(' ').rev().nth(1)?.parse().ok()
}

/// `length of the name u8 | name | offset u64 | length u32 | crc32c of the data u32 | crc32c of all before u32`, little endian.
#[derive(Debug, PartialEq, Eq)]
struct Record {
    part: String,
    offset: u64,
    length: u32,
    crc: u32,
}

impl Record {
    fn encode(&self) -> Vec<u8> {
        let mut out = vec![u8::try_from(self.part.len()).unwrap_or(u8::MAX)];
        out.extend_from_slice(self.part.as_bytes());
        out.extend_from_slice(&self.offset.to_le_bytes());
        out.extend_from_slice(&self.length.to_le_bytes());
        out.extend_from_slice(&self.crc.to_le_bytes());
        let sum = crc32c::crc32c(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Option<(Self, usize)> {
        let name = usize::from(*bytes.first()?);
        let end = 1 + name + 8 + 4 + 4;
        let (body, sum) = (bytes.get(..end)?, bytes.get(end..end + 4)?);
        if crc32c::crc32c(body) != u32::from_le_bytes(sum.try_into().ok()?) {
            return None;
        }
        let word = |at: usize| Some(u32::from_le_bytes(body.get(at..at + 4)?.try_into().ok()?));
        let part = std::str::from_utf8(body.get(1..=name)?).ok()?.to_owned();
        let offset = u64::from_le_bytes(body.get(1 + name..9 + name)?.try_into().ok()?);
        Some((Self { part, offset, length: word(9 + name)?, crc: word(13 + name)? }, end + 4))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_leader_does_not_wait_for_the_snapshot_of_a_deposed_one() {
        let (turns, group) = (Turns::default(), GroupId(2));
        let old = turns.take(group, 5).expect("free");
        assert!(turns.take(group, 5).is_none() && turns.take(group, 4).is_none());
        assert!(!old.superseded.load(Ordering::Relaxed), "nobody newer asked");
        assert!(turns.take(GroupId(3), 1).is_some(), "another group");
        assert!(turns.take(group, 6).is_none(), "not while the other one writes");
        assert!(old.superseded.load(Ordering::Relaxed), "but that one is over");
        drop(old);
        assert!(turns.take(group, 6).is_some());
    }
}
