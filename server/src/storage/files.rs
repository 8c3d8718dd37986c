//! The files of one partition: `partitions/<group>/<generation>/`, segments and key runs, in step with its checkpoint.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use quorate_consensus::node::effect::AppliedEntry;
use quorate_proto::ids::{GroupId, LogIndex, Offset, Term};
use quorate_proto::time::LogTime;

use super::checkpoint::{Checkpoint, FileLength};
use super::error::StorageError;
use super::file;
use super::runs::Runs;
use super::segment::{Found, Segment, FIRST_ENTRY};
use super::staging::{incoming_index, INCOMING};

/// One file of a snapshot, in the order in which they are sent.
#[derive(Clone, Debug)]
pub struct SnapshotFile {
    /// `segment/<base offset>` or `keys/<number>`.
    pub part: String,
    /// The file; only its first `length` bytes belong to the snapshot.
    pub path: PathBuf,
    /// Bytes.
    pub length: u64,
}

/// The files of one partition, owned by the storage thread.
#[derive(Debug)]
pub(super) struct PartitionFiles {
    group_dir: PathBuf,
    dir: PathBuf,
    generation: u64,
    segment_bytes: u64,
    segments: Vec<Segment>,
    runs: Runs,
    next: Offset,
    /// Newest entry appended; a replayed one is never appended twice.
    last_index: LogIndex,
    names_dirty: bool,
    pub checkpoint: Option<Checkpoint>,
}

/// The folder of a group.
pub(super) fn group_dir(partitions: &Path, group: GroupId) -> PathBuf {
    partitions.join(group.get().to_string())
}

/// The folder of one generation of its files.
pub(super) fn generation_dir(group_dir: &Path, generation: u64) -> PathBuf {
    group_dir.join(format!("{generation:020}"))
}

impl PartitionFiles {
    /// A new, empty partition. What an unfinished earlier attempt left behind is removed, but for a snapshot on its way in.
    pub fn create(partitions: &Path, group: GroupId, segment_bytes: u64) -> Result<Self, StorageError> {
        let group_dir = group_dir(partitions, group);
        file::create_dir(&group_dir)?;
        for entry in list(&group_dir)?.into_iter().filter(|entry| !entry.ends_with(INCOMING)) {
            std::fs::remove_dir_all(&entry).map_err(StorageError::io("cannot remove", &entry))?;
        }
        let dir = generation_dir(&group_dir, 0);
        file::create_dir(&dir)?;
        Ok(Self {
            runs: Runs::empty(&dir),
            group_dir,
            dir,
            generation: 0,
            segment_bytes,
            segments: Vec::new(),
            next: Offset::ZERO,
            last_index: LogIndex::ZERO,
            names_dirty: false,
            checkpoint: None,
        })
    }

    /// Opens what `checkpoint` describes, cuts off what was written later, removes files it does not know, and
    /// yields the key runs. Other generations stay: see [`Self::remove_other_generations`].
    pub fn open(
        partitions: &Path,
        group: GroupId,
        checkpoint: Checkpoint,
        segment_bytes: u64,
    ) -> Result<(Self, Vec<Bytes>), StorageError> {
        let group_dir = group_dir(partitions, group);
        let dir = generation_dir(&group_dir, checkpoint.generation);
        let last = checkpoint.segments.len().saturating_sub(1);
        let mut segments = Vec::with_capacity(checkpoint.segments.len());
        for (i, known) in checkpoint.segments.iter().enumerate() {
            segments.push(Segment::open(&dir, Offset(known.id), known.length, i == last)?);
        }
        let (runs, keys) = Runs::open(&dir, &checkpoint.runs)?;
        let mut files = Self {
            group_dir,
            dir,
            generation: checkpoint.generation,
            segment_bytes,
            segments,
            runs,
            next: checkpoint.next(),
            last_index: checkpoint.log_index(),
            names_dirty: false,
            checkpoint: Some(checkpoint),
        };
        files.remove_strangers()?;
        files.sync()?;
        Ok((files, keys))
    }

    /// Removes files that the checkpoint does not know.
    fn remove_strangers(&mut self) -> Result<(), StorageError> {
        let known: Vec<String> = (self.segments.iter().map(|s| Segment::name(s.base)))
            .chain(self.segments.iter().map(|s| Segment::index_name(s.base)))
            .chain(self.runs.files().iter().map(|r| Runs::name(r.id)))
            .collect();
        for entry in list(&self.dir)? {
            if !known.iter().any(|name| entry.ends_with(name)) {
                std::fs::remove_file(&entry).map_err(StorageError::io("cannot remove", &entry))?;
                self.names_dirty = true;
            }
        }
        Ok(())
    }

    /// Removes the folders of all other generations: at start, when nothing is being received.
    pub fn remove_other_generations(&self) -> Result<(), StorageError> {
        self.remove_generations(|_| true)
    }

    /// Removes the folders of older generations: only once the log names this one durably. A newer one may be
    /// on its way in.
    pub fn remove_older_generations(&self) -> Result<(), StorageError> {
        self.remove_generations(|generation| generation < self.generation)
    }

    fn remove_generations(&self, which: impl Fn(u64) -> bool) -> Result<(), StorageError> {
        for entry in list(&self.group_dir)? {
            if entry.ends_with(INCOMING) {
                // A snapshot of what is here already is of no use any more.
                let here = self.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.index);
                if incoming_index(&entry).is_none_or(|index| index <= here) {
                    std::fs::remove_dir_all(&entry).map_err(StorageError::io("cannot remove", &entry))?;
                }
                continue;
            }
            let number = entry.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
            if entry != self.dir && number.is_none_or(&which) {
                std::fs::remove_dir_all(&entry).map_err(StorageError::io("cannot remove", &entry))?;
            }
        }
        Ok(())
    }

    /// Appends applied entries; those appended before are skipped.
    pub fn append(&mut self, entries: &[AppliedEntry]) -> Result<(), StorageError> {
        let fresh = entries.partition_point(|e| e.index <= self.last_index);
        let entries = &entries[fresh..];
        let Some(newest) = entries.last() else { return Ok(()) };
        let full = self.segments.last().is_none_or(|s| s.length >= self.segment_bytes && self.next > s.base);
        if full {
            if let Some(last) = self.segments.last_mut() {
                last.seal()?;
            }
            self.segments.push(Segment::create(&self.dir, self.next)?);
            self.names_dirty = true;
        }
        let before = self.runs.mark();
        self.runs.append(entries.iter().map(|e| &e.keys))?;
        self.names_dirty |= self.runs.mark().0 > before.0;
        let active = self.segments.last_mut().expect("one was just made if there was none");
        if let Err(error) = active.append(entries, &mut self.next) {
            // Nothing of them counts: after a full disk they are appended again.
            self.runs.reset(before);
            return Err(error);
        }
        self.last_index = newest.index;
        Ok(())
    }

    fn sync(&mut self) -> Result<(), StorageError> {
        for segment in &mut self.segments {
            segment.sync()?;
        }
        self.runs.sync()?;
        if self.names_dirty {
            file::sync_dir(&self.dir)?;
            self.names_dirty = false;
        }
        Ok(())
    }

    /// Flushes everything and describes it. Becomes durable with the write-ahead log's write of it.
    pub fn checkpoint(&mut self, index: LogIndex, term: Term, state: Bytes) -> Result<Checkpoint, StorageError> {
        assert!(index >= self.last_index, "a checkpoint at {index} would leave out {}", self.last_index);
        self.sync()?;
        let mut checkpoint = Checkpoint::at(index, term, state);
        checkpoint.generation = self.generation;
        checkpoint.next_offset = self.next.get();
        checkpoint.segments = self.segments.iter().map(|s| FileLength { id: s.base.get(), length: s.length }).collect();
        checkpoint.runs = self.runs.files().to_vec();
        self.checkpoint = Some(checkpoint.clone());
        Ok(checkpoint)
    }

    /// Batches that end after `offset`, about `max` bytes of them. An empty answer: nothing there yet.
    pub fn read(&mut self, offset: Offset, max: usize) -> Result<Found, StorageError> {
        let mut found = Found::default();
        if offset >= self.next {
            return Ok(found);
        }
        let first = self.segments.partition_point(|s| s.base <= offset);
        if first == 0 {
            let first = self.segments.first().map_or(self.next, |s| s.base);
            return Err(StorageError::BelowFirst { offset: offset.get(), first: first.get() });
        }
        for segment in &mut self.segments[first - 1..] {
            let ended = segment.length == FIRST_ENTRY || segment.read(offset, max, &mut found)?;
            // The next segment only if there is ample room: it costs another open.
            if !ended || found.bytes.len() >= max / 2 {
                break;
            }
        }
        Ok(found)
    }

    /// The offset before the first record of this log time or later; the end if there is none. Log time never falls (W5).
    pub fn offset_at(&mut self, time: LogTime) -> Result<Offset, StorageError> {
        let (mut older, mut rest) = (0, self.segments.len());
        while older < rest {
            let middle = usize::midpoint(older, rest);
            if self.segments[middle].first_time()?.is_some_and(|first| first < time) {
                older = middle + 1;
            } else {
                rest = middle;
            }
        }
        if let Some(last_older) = older.checked_sub(1) {
            if let Some(offset) = self.segments[last_older].offset_at(time)? {
                return Ok(offset);
            }
        }
        Ok(self.segments.get(older).map_or(self.next, |segment| segment.base))
    }

    /// The files of the newest checkpoint, for a snapshot of it. They only grow, so a prefix stays what it is.
    pub fn snapshot(&self) -> Option<(Checkpoint, Vec<SnapshotFile>)> {
        let checkpoint = self.checkpoint.clone()?;
        let segments = checkpoint.segments.iter().map(|known| SnapshotFile {
            part: format!("segment/{}", known.id),
            path: self.dir.join(Segment::name(Offset(known.id))),
            length: known.length,
        });
        let runs = checkpoint.runs.iter().map(|known| SnapshotFile {
            part: format!("keys/{}", known.id),
            path: self.dir.join(Runs::name(known.id)),
            length: known.length,
        });
        let files = segments.chain(runs).collect();
        Some((checkpoint, files))
    }
}

fn list(dir: &Path) -> Result<Vec<PathBuf>, StorageError> {
    let entries = std::fs::read_dir(dir).map_err(StorageError::io("cannot list", dir))?;
    entries.map(|e| e.map(|e| e.path()).map_err(StorageError::io("cannot list", dir))).collect()
}

/// Deletes all generations of a group.
pub(super) fn remove_all(partitions: &Path, group: GroupId) -> Result<(), StorageError> {
    let dir = group_dir(partitions, group);
    match std::fs::remove_dir_all(&dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(StorageError::io("cannot remove", &dir)(error))
        }
        _ => file::sync_dir(partitions),
    }
}

/// The file of a snapshot's part; `None` for a name that no part has.
pub(super) fn part_file(part: &str) -> Option<String> {
    let (kind, number) = part.split_once('/')?;
    let number = number.parse().ok()?;
    match kind {
        "segment" => Some(Segment::name(Offset(number))),
        "keys" => Some(Runs::name(number)),
        _ => None,
    }
}
