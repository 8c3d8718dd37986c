//! Snapshot files of the directory: written beside, flushed, renamed; two generations are kept.
//!
//! ```text
//! <data_dir>/directory/<index, 20 digits>.snapshot
//!   FileHeader 32 · index u64 LE · term u64 LE · length u64 LE · crc32c u32 LE over all after the header but itself
//!   · DirectoryState (protobuf)
//! ```
//! The older generation is what a start falls back to whose log does not yet reach the newer one: a snapshot received
//! from the leader is durable before the log that it replaces is given up.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use quorate_proto::file_header::{FileHeader, FileKind, FILE_HEADER_LEN};
use quorate_proto::ids::{LogIndex, Term};

/// Snapshot files kept.
pub const GENERATIONS: usize = 2;
const FIXED: usize = FILE_HEADER_LEN + 8 + 8 + 8 + 4;
const SUFFIX: &str = ".snapshot";

/// A snapshot as read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotFile {
    /// Its position.
    pub index: LogIndex,
    /// Its term.
    pub term: Term,
    /// `DirectoryState`, encoded.
    pub data: Bytes,
}

/// The folder of snapshot files.
#[derive(Clone, Debug)]
pub struct Snapshots {
    dir: PathBuf,
}

impl Snapshots {
    /// Makes the folder if needed.
    ///
    /// # Errors
    /// If it can't be made.
    pub fn open(dir: &Path) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        Ok(Self { dir: dir.into() })
    }

    /// Writes a snapshot durably, then drops all but the newest [`GENERATIONS`].
    ///
    /// # Errors
    /// If anything fails the older files are untouched.
    pub fn save(&self, snapshot: &SnapshotFile) -> io::Result<()> {
        let path = self.path_of(snapshot.index);
        let beside = path.with_extension("writing");
        let mut file = File::create(&beside)?;
        file.write_all(&head(snapshot))?;
        file.write_all(&snapshot.data)?;
        file.sync_all()?;
        drop(file);
        fs::rename(&beside, &path)?;
        File::open(&self.dir)?.sync_all()?;
        for (_, old) in self.list()?.into_iter().rev().skip(GENERATIONS) {
            fs::remove_file(old)?;
        }
        Ok(())
    }

    /// The newest readable snapshot whose position lies within `first..=last` of the log. Damaged files are passed
    /// over and reported.
    ///
    /// # Errors
    /// If the folder can't be read, or a file was written by newer software.
    pub fn newest(&self, first: LogIndex, last: LogIndex) -> io::Result<Option<SnapshotFile>> {
        for (index, path) in self.list()?.into_iter().rev() {
            if index < first || index > last {
                continue;
            }
            match parse(&fs::read(&path)?) {
                Ok(snapshot) if snapshot.index == index => return Ok(Some(snapshot)),
                Ok(snapshot) => {
                    tracing::warn!(file = %path.display(), index = %snapshot.index, "snapshot under a wrong name");
                }
                Err(Fault::Newer(why)) => return Err(io::Error::new(io::ErrorKind::Unsupported, why)),
                Err(Fault::Damaged(why)) => {
                    tracing::warn!(file = %path.display(), why, "damaged snapshot passed over");
                }
            }
        }
        Ok(None)
    }

    fn path_of(&self, index: LogIndex) -> PathBuf {
        self.dir.join(format!("{:020}{SUFFIX}", index.get()))
    }

    /// Snapshot files, oldest first.
    fn list(&self) -> io::Result<Vec<(LogIndex, PathBuf)>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if let Some(index) = name.strip_suffix(SUFFIX).and_then(|digits| digits.parse().ok()) {
                found.push((LogIndex(index), path));
            }
        }
        found.sort();
        Ok(found)
    }
}

enum Fault {
    Newer(String),
    Damaged(String),
}

fn head(snapshot: &SnapshotFile) -> Vec<u8> {
    let mut out = Vec::with_capacity(FIXED);
    out.extend_from_slice(&FileHeader::current(FileKind::DirectorySnapshot).encode());
    let mut numbers = Vec::with_capacity(24);
    for number in [snapshot.index.get(), snapshot.term.get(), snapshot.data.len() as u64] {
        numbers.extend_from_slice(&number.to_le_bytes());
    }
    let crc = crc32c::crc32c_append(crc32c::crc32c(&numbers), &snapshot.data);
    out.extend_from_slice(&numbers);
    out.extend_from_slice(&crc.to_le_bytes());
    out
}

fn parse(bytes: &[u8]) -> Result<SnapshotFile, Fault> {
    use quorate_proto::file_header::BadFileHeader;
    FileHeader::parse(FileKind::DirectorySnapshot, bytes).map_err(|error| match error {
        BadFileHeader::Newer { .. } | BadFileHeader::Features { .. } => Fault::Newer(error.to_string()),
        other => Fault::Damaged(other.to_string()),
    })?;
    if bytes.len() < FIXED {
        return Err(Fault::Damaged("too short".to_owned()));
    }
    let number = |at: usize| {
        let start = FILE_HEADER_LEN + at;
        u64::from_le_bytes(bytes[start..start + 8].try_into().expect("eight bytes"))
    };
    let data = &bytes[FIXED..];
    let stored = u32::from_le_bytes(bytes[FIXED - 4..FIXED].try_into().expect("four bytes"));
    let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[FILE_HEADER_LEN..FIXED - 4]), data);
    if number(16) != data.len() as u64 || stored != crc {
        return Err(Fault::Damaged("length or checksum does not match".to_owned()));
    }
    Ok(SnapshotFile { index: LogIndex(number(0)), term: Term(number(8)), data: Bytes::copy_from_slice(data) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(index: u64) -> SnapshotFile {
        SnapshotFile { index: LogIndex(index), term: Term(3), data: Bytes::from(vec![7; 100]) }
    }

    fn newest(snapshots: &Snapshots) -> Option<u64> {
        snapshots.newest(LogIndex(0), LogIndex(1_000)).expect("readable").map(|s| s.index.get())
    }

    #[test]
    fn two_generations_are_kept_and_the_newest_that_fits_the_log_is_used() {
        let dir = tempfile::tempdir().expect("a directory");
        let snapshots = Snapshots::open(dir.path()).expect("opens");
        for index in [10, 20, 30] {
            snapshots.save(&snapshot(index)).expect("saves");
        }
        assert_eq!(newest(&snapshots), Some(30));
        let older = snapshots.newest(LogIndex(5), LogIndex(25)).expect("readable");
        assert_eq!(older, Some(snapshot(20)), "the log ends before the newest");
        assert_eq!(snapshots.newest(LogIndex(5), LogIndex(15)).expect("readable"), None, "the oldest is gone");
    }

    #[test]
    fn a_damaged_snapshot_is_passed_over() {
        let dir = tempfile::tempdir().expect("a directory");
        let snapshots = Snapshots::open(dir.path()).expect("opens");
        snapshots.save(&snapshot(10)).expect("saves");
        snapshots.save(&snapshot(20)).expect("saves");
        for at in 0..(FIXED + 100) {
            let mut bytes = fs::read(snapshots.path_of(LogIndex(20))).expect("there");
            bytes[at] ^= 0x10;
            let found = parse(&bytes);
            assert!(found.is_err(), "byte {at}");
        }
        let whole = fs::read(snapshots.path_of(LogIndex(20))).expect("there");
        fs::write(snapshots.path_of(LogIndex(20)), &whole[..whole.len() - 1]).expect("writes");
        assert_eq!(newest(&snapshots), Some(10));
    }
}
