//! Reading the files of a log back from the disk while it runs (B6).
//!
//! ```text
//!  file header ─ record ─ record ─ … ─ record ─ end            closed file: records without a gap to its very end
//!                                     └ zeros, or a write under way: newest file
//! ```
//! Entries and footer of a record have a checksum each (`tail.rs` knows its form). Behind damage in the newest file a whole
//! record stands; what is merely being written has none behind it.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{fadvise, Advice};

use super::files::number_of;
use super::tail::{header, lost_records, whole_record, CHECKSUM, HEADER};

/// What every file begins with, and the length of that beginning: magic, version, alignment.
const MAGIC: &[u8] = b"RAFT-LOG-FILE-HEADER-9986AB3E47F320B394C8E84916EB0ED5";
const FILE_HEADER: usize = MAGIC.len() + 16;
/// Larger pieces than a flush are rare: one batch.
const WINDOW: usize = 8 << 20;

/// Damage in a file of the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} is damaged at byte {position}", file.display())]
pub struct LogDamage {
    /// Which file.
    pub file: PathBuf,
    /// Where the sound part ends.
    pub position: u64,
}

/// The log's files in `dir`, oldest first. Only those to which entries are appended: the others are rewritten from them.
///
/// # Errors
/// The directory cannot be listed.
pub fn log_files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ext| ext == "raftlog") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Reads one file back from the disk. `closed`: a newer one exists. `spend` is called with the bytes of each piece, and may
/// take its time. `None`: well, or gone.
///
/// # Errors
/// It cannot be read for another reason than damage.
pub fn read_back(path: &Path, closed: bool, spend: &mut dyn FnMut(u64)) -> io::Result<Option<LogDamage>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let _ = fadvise(&file, 0, None, Advice::DontNeed);
    let length = file.metadata()?.len();
    let number = number_of(path);
    let damage = |position| Ok(Some(LogDamage { file: path.to_owned(), position }));
    let mut head = [0; FILE_HEADER];
    if length < FILE_HEADER as u64 {
        return if closed { damage(0) } else { Ok(None) };
    }
    file.read_exact_at(&mut head, 0)?;
    if !head.starts_with(MAGIC) {
        return damage(0);
    }
    let mut position = FILE_HEADER as u64;
    let mut record = Vec::new();
    while position + (HEADER as u64) < length {
        let mut start = [0; HEADER];
        file.read_exact_at(&mut start, position)?;
        let Some((size, _)) = header(&start) else { break };
        if position + size as u64 > length {
            break;
        }
        record.resize(size, 0);
        file.read_exact_at(&mut record, position)?;
        if !sound(&record, number) {
            break;
        }
        spend(size as u64);
        position += size as u64;
    }
    if closed {
        return if position == length { Ok(None) } else { damage(position) };
    }
    // Whatever it is, it ends within what one flush writes; zeros that are set aside follow.
    let rest = length - position;
    let window = usize::try_from(rest).unwrap_or(usize::MAX).min(WINDOW);
    let mut behind = vec![0; window];
    file.read_exact_at(&mut behind, position)?;
    behind.truncate(behind.iter().rposition(|&byte| byte != 0).map_or(0, |at| at + 1));
    if behind.is_empty() || !lost_records(&behind, rest, number, true) {
        return Ok(None);
    }
    damage(position)
}

/// Both checksums of a record.
fn sound(record: &[u8], file: u32) -> bool {
    let Some((_, footer)) = header(record) else { return false };
    let entries = &record[HEADER..footer];
    let entries_sound = match entries.len().checked_sub(CHECKSUM) {
        None => entries.is_empty(),
        Some(end) => {
            let stored = u32::from_le_bytes(entries[end..].try_into().unwrap_or_default());
            crc32fast::hash(&entries[..end]) == stored
        }
    };
    entries_sound && whole_record(record, file)
}
