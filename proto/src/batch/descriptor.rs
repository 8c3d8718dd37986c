//! The table beside the records: what the server must know of each record without decompressing it.

use super::error::BadBatch;
use crate::hash::{KeyHash, PayloadHash, RecordKeyHash};
use crate::le::{array, i64_at, u128_at, u32_at, u64_at};
use crate::limits::RECORD_MAX;
use crate::time::LogTime;

/// Bytes of one descriptor.
pub const DESCRIPTOR_LEN: usize = 64;

/// One record as the server sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// Idempotency key; none = the record has none.
    pub key: KeyHash,
    /// Record key; none = the record has none.
    pub record_key: RecordKeyHash,
    /// Record key and payload; may be none if there is no idempotency key.
    pub payload: PayloadHash,
    /// When the application made the idempotency key; zero = not said (I7).
    pub key_created_at: LogTime,
    /// Refuse the record if its entry's log time is later; zero = never (I7).
    pub not_after: LogTime,
    /// Bytes of the record in the uncompressed section.
    pub size: u32,
}

impl Descriptor {
    /// As it stands in the table.
    #[must_use]
    pub fn encode(&self) -> [u8; DESCRIPTOR_LEN] {
        let mut out = [0; DESCRIPTOR_LEN];
        out[..16].copy_from_slice(&self.key.0.to_le_bytes());
        out[16..24].copy_from_slice(&self.record_key.0.to_le_bytes());
        out[24..32].copy_from_slice(&self.payload.0.to_le_bytes());
        out[32..40].copy_from_slice(&self.key_created_at.0.to_le_bytes());
        out[40..48].copy_from_slice(&self.not_after.0.to_le_bytes());
        out[48..52].copy_from_slice(&self.size.to_le_bytes());
        out
    }

    /// The descriptor at `at`; its place was checked.
    pub(super) fn read(bytes: &[u8], at: usize) -> Self {
        Self {
            key: KeyHash(u128_at(bytes, at)),
            record_key: RecordKeyHash(u64_at(bytes, at + 16)),
            payload: PayloadHash(u64_at(bytes, at + 24)),
            key_created_at: LogTime(i64_at(bytes, at + 32)),
            not_after: LogTime(i64_at(bytes, at + 40)),
            size: u32_at(bytes, at + 48),
        }
    }

    /// Checks the whole table of a batch whose records section has `uncompressed` bytes.
    pub(super) fn check_table(table: &[u8], uncompressed: u32) -> Result<(), BadBatch> {
        let mut sum = 0u64;
        for (index, at) in (0..table.len()).step_by(DESCRIPTOR_LEN).enumerate() {
            let descriptor = Self::read(table, at);
            if descriptor.size as usize > RECORD_MAX {
                return Err(BadBatch::RecordTooLarge { index: index as u32, size: descriptor.size });
            }
            if descriptor.size == 0 {
                return Err(BadBatch::Malformed("a record of no bytes"));
            }
            if !descriptor.key.is_none() && descriptor.payload.is_none() {
                return Err(BadBatch::Malformed("an idempotency key without payload hash"));
            }
            if descriptor.key_created_at.0 < 0 || descriptor.not_after.0 < 0 {
                return Err(BadBatch::Malformed("a time before 1970"));
            }
            let rest: [u8; 12] = array(table, at + 52);
            if rest != [0; 12] {
                return Err(BadBatch::Unsupported("a reserved field of a record"));
            }
            sum += u64::from(descriptor.size);
        }
        if sum != u64::from(uncompressed) {
            return Err(BadBatch::Malformed("sum of the records' sizes"));
        }
        Ok(())
    }
}
