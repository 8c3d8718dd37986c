//! What recovery cut off the end of a log file: a write that a dying process left half done, or records that were
//! flushed (B2)?
//!
//! A process dies between or within writes. On the same boot of the host the page cache loses nothing, so what is left
//! of its last write is a *beginning* of it, and that write was never acknowledged. Everything else was damaged: a record
//! of this file stands behind the cut, or (where files are not recycled) what was cut off does not begin as a record does
//! or is a whole one.
//!
//! A record of raft-engine 0.4 (`log_batch.rs`): u64 big endian (length << 8 | compression), u64 big endian offset of the
//! footer, entries, footer, and the CRC32 of the footer, little endian, XOR the file's number.

/// Header of a record.
pub(super) const HEADER: usize = 16;
/// Its checksum.
pub(super) const CHECKSUM: usize = 4;
/// No record is longer: a flush takes 4 MiB of payload, or one larger write.
const RECORD_MAX: u64 = 64 << 20;

/// A record's length and the offset of its footer, if the bytes can be its header.
pub(super) fn header(bytes: &[u8]) -> Option<(usize, usize)> {
    let head: &[u8; HEADER] = bytes.first_chunk()?;
    let (length, footer) = head.split_at(8);
    let length = u64::from_be_bytes(length.try_into().ok()?);
    let footer = u64::from_be_bytes(footer.try_into().ok()?);
    let (compression, length) = (length & 0xff, length >> 8);
    let shortest = footer.checked_add(CHECKSUM as u64)?;
    let plausible = compression <= 1 && footer >= HEADER as u64 && length > shortest && length <= RECORD_MAX;
    plausible.then_some((usize::try_from(length).ok()?, usize::try_from(footer).ok()?))
}

/// The bytes begin with a whole record that was written into the file of this number.
pub(super) fn whole_record(bytes: &[u8], file: u32) -> bool {
    let Some((length, footer)) = header(bytes) else { return false };
    let Some(footer) = bytes.get(footer..length) else { return false };
    let (content, checksum) = footer.split_at(footer.len() - CHECKSUM);
    let stored = u32::from_le_bytes(checksum.try_into().unwrap_or_default());
    crc32fast::hash(content) ^ file == stored
}

/// True if flushed records were lost with `cut`, the bytes from the end of the valid part to the last one that is not
/// zero. `rest`: bytes from there to the end of the file, zeros included.
pub(super) fn lost_records(cut: &[u8], rest: u64, file: u32, recycled: bool) -> bool {
    if !recycled {
        match header(cut) {
            None if cut.len() >= HEADER => return true,
            Some((length, _)) if rest >= length as u64 && cut.len() + CHECKSUM >= length => return true,
            _ => {}
        }
    }
    (1..cut.len()).any(|at| whole_record(&cut[at..], file))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(entries: usize, items: &[u8], file: u32) -> Vec<u8> {
        let length = (HEADER + entries + items.len() + CHECKSUM) as u64;
        let mut bytes = (length << 8).to_be_bytes().to_vec();
        bytes.extend(((HEADER + entries) as u64).to_be_bytes());
        bytes.extend(vec![0xab; entries]);
        bytes.extend(items);
        bytes.extend((crc32fast::hash(items) ^ file).to_le_bytes());
        bytes
    }

    #[test]
    fn the_beginning_of_a_write_is_no_loss() {
        let last = record(100, b"items", 3);
        assert!(whole_record(&last, 3) && !whole_record(&last, 2));
        for length in [1, 15, 16, 17, 60, last.len() - CHECKSUM - 1] {
            assert!(!lost_records(&last[..length], length as u64, 3, false), "cut after {length}");
            assert!(!lost_records(&last[..length], length as u64, 3, true));
        }
    }

    #[test]
    fn a_record_behind_the_cut_was_flushed() {
        let mut two = record(100, b"first", 3);
        two.extend(record(9, b"second", 3));
        two[2] ^= 0xff;
        assert!(lost_records(&two, two.len() as u64, 3, true));
        assert!(lost_records(&two, two.len() as u64, 3, false));
        assert!(!lost_records(&two, two.len() as u64, 4, true), "what a recycled file held before is no loss");
    }

    #[test]
    fn where_files_are_not_recycled_a_damaged_last_record_is_a_loss_too() {
        let mut last = record(100, b"items", 3);
        last[118] ^= 1;
        assert!(lost_records(&last, last.len() as u64, 3, false));
        let mut headless = record(100, b"items", 3);
        headless[3] ^= 0xff;
        assert!(lost_records(&headless, headless.len() as u64, 3, false));
    }
}
