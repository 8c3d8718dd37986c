//! How many flushes the log has made, kept beside it: evidence against a log that lost some (B2).
//!
//! ```text
//!  every write batch   carries its number, as a pair of the log's own region
//!  after its flush     the number goes into the mark, before anybody hears of the flush
//!  at the next start   the log's newest number below the mark's: flushed writes are missing
//! ```
//! The mark is not flushed: the system keeps it when a process is killed, and after a power loss an older mark accuses
//! nobody. So it says nothing false, and misses only what the page cache lost together with it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// `count u64 BE | crc32c u32 BE`.
const LENGTH: usize = 12;

/// The file.
#[derive(Debug)]
pub(super) struct Mark {
    file: Option<File>,
}

impl Mark {
    /// Opens or makes it, and tells what it says: `None` if it is new or means nothing. Without a path nothing is kept.
    pub(super) fn open(path: Option<&Path>) -> io::Result<(Self, Option<u64>)> {
        let Some(path) = path else { return Ok((Self { file: None }, None)) };
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        let mut found = [0; LENGTH];
        let count = match file.read_exact_at(&mut found, 0) {
            Ok(()) => decode(&found),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => None,
            Err(error) => return Err(error),
        };
        Ok((Self { file: Some(file) }, count))
    }

    /// The flush of this number is done.
    pub(super) fn set(&self, count: u64) -> io::Result<()> {
        match &self.file {
            Some(file) => file.write_all_at(&encode(count), 0),
            None => Ok(()),
        }
    }
}

fn encode(count: u64) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    bytes[..8].copy_from_slice(&count.to_be_bytes());
    let sum = crc32c::crc32c(&bytes[..8]);
    bytes[8..].copy_from_slice(&sum.to_be_bytes());
    bytes
}

fn decode(bytes: &[u8; LENGTH]) -> Option<u64> {
    let (count, sum) = bytes.split_at(8);
    let sum = u32::from_be_bytes(sum.try_into().expect("four bytes are left"));
    (crc32c::crc32c(count) == sum).then(|| u64::from_be_bytes(count.try_into().expect("eight bytes were taken")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_found_again_and_damage_says_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("FLUSHES");
        let (mark, found) = Mark::open(Some(&path)).unwrap();
        assert_eq!(found, None);
        mark.set(7).unwrap();
        mark.set(300).unwrap();
        assert_eq!(Mark::open(Some(&path)).unwrap().1, Some(300));
        std::fs::write(&path, b"garbage garbage").unwrap();
        assert_eq!(Mark::open(Some(&path)).unwrap().1, None);
    }

    #[test]
    fn without_a_path_nothing_is_kept() {
        let (mark, found) = Mark::open(None).unwrap();
        mark.set(3).unwrap();
        assert_eq!(found, None);
    }
}
