//! How far a partition's files reach, by what stands in them: evidence against a log that ends earlier (B2). Segments are
//! written from applied entries, so an entry in them was committed and flushed here.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use quorate_proto::ids::{GroupId, LogIndex};

use super::error::StorageError;
use super::frame;
use super::segment::FIRST_ENTRY;

/// Newest entry in each generation of a group's files. A generation that no checkpoint names yet is a snapshot being
/// put in place: it may well reach further than the log.
pub type Reach = BTreeMap<u64, LogIndex>;

/// How far the files of each group reach. What cannot be read is no evidence; damage is found elsewhere.
///
/// # Errors
/// When the disk refuses.
pub fn reaches(partitions: &Path) -> Result<BTreeMap<GroupId, Reach>, StorageError> {
    let mut reached = BTreeMap::new();
    for folder in list(partitions)? {
        let number = folder.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
        let Some(group) = number.map(GroupId) else { continue };
        let mut reach = Reach::new();
        for path in list(&folder)?.into_iter().filter(|path| path.is_dir()) {
            let number = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
            let segments = list(&path)?.into_iter().filter(|path| path.extension().is_some_and(|e| e == "segment"));
            // Names are zero-padded base offsets: the last one in order holds the newest entries.
            if let (Some(generation), Some(last)) = (number, segments.max()) {
                reach.insert(generation, last_entry(&last).map_err(StorageError::io("cannot read", &last))?);
            }
        }
        reached.insert(group, reach);
    }
    Ok(reached)
}

fn last_entry(segment: &Path) -> std::io::Result<LogIndex> {
    let file = File::open(segment)?;
    let (mut position, mut newest) = (FIRST_ENTRY, LogIndex::ZERO);
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

fn list(dir: &Path) -> Result<Vec<PathBuf>, StorageError> {
    if !dir.exists() {
        return Ok(Vec::new());
    }
    let io = || StorageError::io("cannot list", dir);
    std::fs::read_dir(dir).map_err(io())?.map(|entry| Ok(entry.map_err(io())?.path())).collect()
}
