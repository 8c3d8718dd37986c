//! How far a partition's files reach, by what stands in them: evidence against a log that ends earlier (B2). Segments are
//! written from applied entries, so an entry in them was committed and flushed here.
//!
//! Only what was written after the checkpoint is looked at: what it covers, its log covers too. So the look costs no more
//! than the tail that the start applies again.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use quorate_proto::ids::{GroupId, LogIndex, Offset};

use super::checkpoint::Checkpoint;
use super::error::StorageError;
use super::files::{generation_dir, group_dir};
use super::frame;
use super::segment::{Segment, FIRST_ENTRY};

/// Groups that have a folder.
///
/// # Errors
/// When the disk refuses.
pub fn groups(partitions: &Path) -> Result<Vec<GroupId>, StorageError> {
    Ok(list(partitions)?.iter().filter_map(|folder| number_of(folder)).map(GroupId).collect())
}

/// Newest entry in the files of a group that stands behind its checkpoint (`None`: it has none), `ZERO` if there is no
/// such entry. A generation that the checkpoint does not name is a snapshot being put in place: it may well reach
/// further than the log. What cannot be read is no evidence; damage is found elsewhere.
///
/// # Errors
/// When the disk refuses.
pub fn reach(partitions: &Path, group: GroupId, checkpoint: Option<&Checkpoint>) -> Result<LogIndex, StorageError> {
    let dir = generation_dir(&group_dir(partitions, group), checkpoint.map_or(0, |c| c.generation));
    let known = checkpoint.map_or(&[][..], |c| &c.segments);
    let mut newest = LogIndex::ZERO;
    for path in list(&dir)?.into_iter().filter(|path| path.extension().is_some_and(|ext| ext == "segment")) {
        let flushed = known.iter().find(|file| path.ends_with(Segment::name(Offset(file.id))));
        let from = flushed.map_or(FIRST_ENTRY, |file| file.length);
        newest = newest.max(last_entry(&path, from).map_err(StorageError::io("cannot read", &path))?);
    }
    Ok(newest)
}

/// Any generation of a group's files holds an entry.
///
/// # Errors
/// When the disk refuses.
pub fn holds_entries(partitions: &Path, group: GroupId) -> Result<bool, StorageError> {
    for generation in list(&group_dir(partitions, group))?.iter().filter_map(|dir| number_of(dir)) {
        let any = Checkpoint { generation, ..Checkpoint::default() };
        if reach(partitions, group, Some(&any))? > LogIndex::ZERO {
            return Ok(true);
        }
    }
    Ok(false)
}

fn last_entry(segment: &Path, from: u64) -> std::io::Result<LogIndex> {
    let file = File::open(segment)?;
    let (mut position, mut newest) = (from, LogIndex::ZERO);
    let mut head = [0; frame::HEADER];
    loop {
        match file.read_exact_at(&mut head, position) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(newest),
            Err(error) => return Err(error),
        }
        let Ok(header) = frame::decode_header(&head) else { return Ok(newest) };
        newest = newest.max(LogIndex(header.index));
        position += frame::HEADER as u64 + u64::from(header.body);
    }
}

fn number_of(folder: &Path) -> Option<u64> {
    folder.file_name()?.to_str()?.parse().ok()
}

fn list(dir: &Path) -> Result<Vec<PathBuf>, StorageError> {
    if !dir.exists() {
        return Ok(Vec::new());
    }
    let io = || StorageError::io("cannot list", dir);
    std::fs::read_dir(dir).map_err(io())?.map(|entry| Ok(entry.map_err(io())?.path())).collect()
}
