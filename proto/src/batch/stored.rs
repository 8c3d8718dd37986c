//! A batch as applied: the prefix that apply wrote (offsets, epoch, log time, suppressed records) and the batch
//! as it came.

use bytes::Bytes;

use super::error::BadBatch;
use super::record::Record;
use super::view::{BatchView, Records};
use crate::ids::{Offset, Term};
use crate::le::{array, i64_at, len_u32, u16_at, u32_at, u64_at};
use crate::limits::{BATCH_MAX, BATCH_RECORDS_MAX};
use crate::time::LogTime;

/// First four bytes of a stored batch.
pub const STORED_MAGIC: [u8; 4] = *b"QSTB";
/// Format version.
pub const STORED_VERSION: u16 = 1;
/// Bytes of the prefix before the bitmap.
pub const STORED_PREFIX_LEN: usize = 64;

const COVERED: usize = 12;

/// Which records of a batch got no offset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suppressed {
    bits: Vec<u8>,
    count: u32,
}

impl Suppressed {
    /// Marks record `index`.
    pub fn mark(&mut self, index: u32) {
        let (byte, bit) = (index as usize / 8, index % 8);
        if self.bits.len() <= byte {
            self.bits.resize(byte + 1, 0);
        }
        if self.bits[byte] & (1 << bit) == 0 {
            self.bits[byte] |= 1 << bit;
            self.count += 1;
        }
    }

    /// True if record `index` is marked.
    #[must_use]
    pub fn is_marked(&self, index: u32) -> bool {
        is_set(&self.bits, index)
    }

    /// Marked records.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }
}

fn is_set(bits: &[u8], index: u32) -> bool {
    bits.get(index as usize / 8).is_some_and(|byte| byte & (1 << (index % 8)) != 0)
}

/// What apply writes in front of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredPrefix {
    /// Offset of the first record that is not suppressed.
    pub base_offset: Offset,
    /// Leader epoch: term of the entry.
    pub epoch: Term,
    /// Log time of the entry.
    pub log_time: LogTime,
    /// Records in the batch.
    pub count: u32,
    /// Records that have an offset.
    pub visible: u32,
    /// Bytes of the batch that follows.
    pub body_len: u32,
}

impl StoredPrefix {
    /// Offset after the last visible record.
    #[must_use]
    pub const fn end_offset(&self) -> Offset {
        Offset(self.base_offset.0 + self.visible as u64)
    }

    /// The prefix's bytes, with the bitmap if any record is suppressed.
    ///
    /// # Panics
    /// If `visible` is not the count less the suppressed ones.
    #[must_use]
    pub fn encode(&self, suppressed: &Suppressed) -> Bytes {
        assert_eq!(self.visible + suppressed.count, self.count, "every record is visible or suppressed");
        let bitmap = if suppressed.count == 0 { 0 } else { (self.count as usize).div_ceil(8) };
        let mut out = vec![0; STORED_PREFIX_LEN + bitmap];
        let length = len_u32(out.len());
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &STORED_MAGIC);
        put(4, &STORED_VERSION.to_le_bytes());
        put(12, &length.to_le_bytes());
        put(16, &self.body_len.to_le_bytes());
        put(20, &self.count.to_le_bytes());
        put(24, &self.visible.to_le_bytes());
        put(32, &self.base_offset.0.to_le_bytes());
        put(40, &self.epoch.0.to_le_bytes());
        put(48, &self.log_time.0.to_le_bytes());
        if bitmap > 0 {
            put(STORED_PREFIX_LEN, &suppressed.bits);
        }
        let crc = crc32c::crc32c(&out[COVERED..]);
        out[8..12].copy_from_slice(&crc.to_le_bytes());
        Bytes::from(out)
    }

    /// Reads and checks the prefix at the start of `bytes`; returns it with the bitmap.
    fn parse(bytes: &Bytes) -> Result<(Self, Bytes), BadBatch> {
        let length = prefix_len(bytes)?;
        let (stored, computed) = (u32_at(bytes, 8), crc32c::crc32c(&bytes[COVERED..length]));
        if stored != computed {
            return Err(BadBatch::Checksum { stored, computed });
        }
        let prefix = Self {
            body_len: u32_at(bytes, 16),
            count: u32_at(bytes, 20),
            visible: u32_at(bytes, 24),
            base_offset: Offset(u64_at(bytes, 32)),
            epoch: Term(u64_at(bytes, 40)),
            log_time: LogTime(i64_at(bytes, 48)),
        };
        let bitmap = bytes.slice(STORED_PREFIX_LEN..length);
        prefix.check(&bitmap)?;
        if u16_at(bytes, 6) != 0 || u32_at(bytes, 28) != 0 || u64_at(bytes, 56) != 0 {
            return Err(BadBatch::Unsupported("a reserved field of a stored batch"));
        }
        Ok((prefix, bitmap))
    }

    fn check(&self, bitmap: &[u8]) -> Result<(), BadBatch> {
        if self.count == 0 || self.count as usize > BATCH_RECORDS_MAX {
            return Err(BadBatch::RecordCount(self.count));
        }
        let expected = if self.visible == self.count { 0 } else { (self.count as usize).div_ceil(8) };
        let suppressed: u32 = bitmap.iter().map(|byte| byte.count_ones()).sum();
        if self.visible == 0 || bitmap.len() != expected || suppressed != self.count.saturating_sub(self.visible) {
            return Err(BadBatch::Malformed("suppressed bitmap"));
        }
        let spare = expected * 8 - if expected == 0 { 0 } else { self.count as usize };
        if spare > 0 && bitmap[expected - 1].leading_zeros() < spare as u32 {
            return Err(BadBatch::Malformed("suppressed bitmap"));
        }
        if self.base_offset.0.checked_add(u64::from(self.visible)).is_none() {
            return Err(BadBatch::Malformed("offset overflow"));
        }
        Ok(())
    }
}

/// Length of the prefix at the start of `bytes`, which holds all of it.
fn prefix_len(bytes: &[u8]) -> Result<usize, BadBatch> {
    if bytes.len() < STORED_PREFIX_LEN {
        return Err(BadBatch::Truncated { needed: STORED_PREFIX_LEN, found: bytes.len() });
    }
    let magic: [u8; 4] = array(bytes, 0);
    if magic != STORED_MAGIC {
        return Err(BadBatch::Magic(magic));
    }
    let version = u16_at(bytes, 4);
    if version != STORED_VERSION {
        return Err(BadBatch::Version(version));
    }
    let length = u32_at(bytes, 12) as usize;
    if !(STORED_PREFIX_LEN..=STORED_PREFIX_LEN + BATCH_RECORDS_MAX / 8).contains(&length) {
        return Err(BadBatch::Malformed("length of a stored batch's prefix"));
    }
    if bytes.len() < length {
        return Err(BadBatch::Truncated { needed: length, found: bytes.len() });
    }
    Ok(length)
}

/// Bytes of the stored batch (prefix and body) that starts `bytes`, from the first [`STORED_PREFIX_LEN`] of them.
/// Checks magic, version and limits only: for walking over batches that are checked elsewhere.
///
/// # Errors
/// No stored batch begins here.
pub fn stored_len(bytes: &[u8]) -> Result<usize, BadBatch> {
    let prefix = match prefix_len(bytes) {
        Err(BadBatch::Truncated { needed, .. }) if needed > STORED_PREFIX_LEN => needed,
        other => other?,
    };
    let body = u32_at(bytes, 16) as usize;
    if body > BATCH_MAX {
        return Err(BadBatch::TooLarge(body));
    }
    Ok(prefix + body)
}

/// A stored batch, checked but not opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredBatchView {
    prefix: StoredPrefix,
    bitmap: Bytes,
    batch: BatchView,
}

impl StoredBatchView {
    /// Checks the stored batch at the start of `bytes`, both checksums included; returns it and what follows it.
    ///
    /// # Errors
    /// What is wrong, by name.
    pub fn parse(bytes: &Bytes) -> Result<(Self, Bytes), BadBatch> {
        let (prefix, bitmap) = StoredPrefix::parse(bytes)?;
        let start = STORED_PREFIX_LEN + bitmap.len();
        let end = start + prefix.body_len as usize;
        if bytes.len() < end {
            return Err(BadBatch::Truncated { needed: end, found: bytes.len() });
        }
        let batch = BatchView::parse(bytes.slice(start..end))?;
        if batch.count() != prefix.count {
            return Err(BadBatch::Malformed("prefix and batch disagree on the number of records"));
        }
        Ok((Self { prefix, bitmap, batch }, bytes.slice(end..)))
    }

    /// What apply wrote.
    #[must_use]
    pub fn prefix(&self) -> &StoredPrefix {
        &self.prefix
    }

    /// The batch as it came.
    #[must_use]
    pub fn batch(&self) -> &BatchView {
        &self.batch
    }

    /// Offset of the first visible record.
    #[must_use]
    pub fn base_offset(&self) -> Offset {
        self.prefix.base_offset
    }

    /// Offset after the last visible record.
    #[must_use]
    pub fn end_offset(&self) -> Offset {
        self.prefix.end_offset()
    }

    /// True if record `index` of the batch has no offset.
    #[must_use]
    pub fn is_suppressed(&self, index: u32) -> bool {
        is_set(&self.bitmap, index)
    }

    /// Opens the batch; only visible records come out, each with its offset.
    ///
    /// # Errors
    /// The section does not decompress to exactly the announced size.
    pub fn records(&self) -> Result<StoredRecords, BadBatch> {
        Ok(StoredRecords {
            records: self.batch.records()?,
            bitmap: self.bitmap.clone(),
            offset: self.prefix.base_offset,
        })
    }
}

/// Decoding iterator over the visible records of a stored batch. Ends after the first error.
#[derive(Clone, Debug)]
pub struct StoredRecords {
    records: Records,
    bitmap: Bytes,
    offset: Offset,
}

impl Iterator for StoredRecords {
    type Item = Result<(Offset, Record), BadBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        while is_set(&self.bitmap, self.records.position()) {
            self.records.skip_record();
        }
        let offset = self.offset;
        let record = self.records.next()?;
        self.offset = offset.next();
        Some(record.map(|record| (offset, record)))
    }
}
