//! The newest directory that the observers showed this node, kept for the day on which they lose theirs (M5).
//!
//! ```text
//! <data_dir>/DIRECTORY   FileHeader 32 · length u64 LE · crc32c u32 LE of what follows · DirectoryState (protobuf)
//! ```
//! Written beside, flushed, renamed, on a thread of its own: the loop waits for no disk. What cannot be read is none: the
//! observers show it again.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use bytes::Bytes;
use quorate_proto::file_header::{FileHeader, FileKind, FILE_HEADER_LEN};

const FILE: &str = "DIRECTORY";
const FIXED: usize = FILE_HEADER_LEN + 8 + 4;

/// What an earlier start kept; empty if nothing.
pub fn load(dir: &Path) -> Bytes {
    match fs::read(dir.join(FILE)) {
        Ok(bytes) => parse(&bytes).unwrap_or_else(|| {
            tracing::warn!("the directory that this node kept cannot be read; the observers will show it again");
            Bytes::new()
        }),
        Err(_) => Bytes::new(),
    }
}

/// Keeps the newest one.
#[derive(Debug)]
pub struct Keeper {
    jobs: mpsc::Sender<Bytes>,
}

impl Keeper {
    /// Starts the thread; it ends with the keeper.
    ///
    /// # Errors
    /// No more threads.
    pub fn start(dir: PathBuf) -> io::Result<Self> {
        let (jobs, work) = mpsc::channel::<Bytes>();
        let run = move || {
            while let Ok(first) = work.recv() {
                // Only the newest of those that gathered is worth a write.
                let newest = work.try_iter().last().unwrap_or(first);
                if let Err(error) = save(&dir, &newest) {
                    tracing::warn!(%error, "the observers' directory could not be kept");
                }
            }
        };
        std::thread::Builder::new().name("directory".to_owned()).spawn(run)?;
        Ok(Self { jobs })
    }

    /// Keeps this one in place of older ones.
    pub fn keep(&self, directory: Bytes) {
        // The thread lives as long as this queue.
        let _ = self.jobs.send(directory);
    }
}

fn save(dir: &Path, directory: &[u8]) -> io::Result<()> {
    let (path, beside) = (dir.join(FILE), dir.join("DIRECTORY.new"));
    let mut file = File::create(&beside)?;
    file.write_all(&FileHeader::current(FileKind::DirectorySnapshot).encode())?;
    file.write_all(&(directory.len() as u64).to_le_bytes())?;
    file.write_all(&crc32c::crc32c(directory).to_le_bytes())?;
    file.write_all(directory)?;
    file.sync_all()?;
    fs::rename(&beside, &path)?;
    File::open(dir)?.sync_all()
}

fn parse(bytes: &[u8]) -> Option<Bytes> {
    FileHeader::parse(FileKind::DirectorySnapshot, bytes).ok()?;
    let length = u64::from_le_bytes(bytes.get(FILE_HEADER_LEN..FILE_HEADER_LEN + 8)?.try_into().ok()?);
    let stored = u32::from_le_bytes(bytes.get(FIXED - 4..FIXED)?.try_into().ok()?);
    let directory = bytes.get(FIXED..)?;
    (directory.len() as u64 == length && crc32c::crc32c(directory) == stored).then(|| Bytes::copy_from_slice(directory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_is_found_again_and_damage_is_none() {
        let dir = tempfile::tempdir().expect("a directory");
        assert!(load(dir.path()).is_empty());
        save(dir.path(), b"older").expect("saves");
        save(dir.path(), b"the directory").expect("saves");
        assert_eq!(load(dir.path()).as_ref(), b"the directory");
        let path = dir.path().join(FILE);
        let whole = fs::read(&path).expect("there");
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            fs::write(&path, bytes).expect("writes");
            assert!(load(dir.path()).is_empty(), "byte {at}");
        }
        fs::write(&path, &whole[..whole.len() - 1]).expect("writes");
        assert!(load(dir.path()).is_empty());
    }
}
