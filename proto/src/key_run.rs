//! Key runs: the keys that one entry added to a partition's key window. Storage appends them to a file beside the
//! segments; together with the machine's state they restore the window. Byte by byte: `docs/format.md`.

use bytes::Bytes;

use crate::hash::{KeyHash, PayloadHash};
use crate::ids::{LogIndex, Offset};
use crate::le::{array, i64_at, len_u32, u128_at, u16_at, u32_at, u64_at};
use crate::limits::{BATCH_RECORDS_MAX, ENTRY_BATCHES_MAX};
use crate::time::LogTime;

/// First four bytes of a run.
pub const KEY_RUN_MAGIC: [u8; 4] = *b"QKRN";
/// Format version.
pub const KEY_RUN_VERSION: u16 = 1;
/// Bytes before the items.
pub const KEY_RUN_HEADER_LEN: usize = 40;
/// Bytes of one key.
pub const KEY_ITEM_LEN: usize = 32;

const COVERED: usize = 12;
/// No entry adds more keys: bounds what a damaged count can ask for.
const ITEMS_MAX: usize = BATCH_RECORDS_MAX * ENTRY_BATCHES_MAX;

/// One key as first applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyItem {
    /// The idempotency key.
    pub key: KeyHash,
    /// What it was applied with.
    pub payload: PayloadHash,
    /// Offset of the record; [`Offset`] of all ones = a void (I8).
    pub offset: Offset,
}

/// Why bytes are no key run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadKeyRun {
    /// Cut off.
    #[error("key run truncated: {found} bytes of {needed}")]
    Truncated {
        /// Bytes needed at least.
        needed: usize,
        /// Bytes there are.
        found: usize,
    },
    /// Damaged, or no key run.
    #[error("key run damaged: {0}")]
    Damaged(&'static str),
    /// Newer format version.
    #[error("key run format version {0} is unknown to this software: use a newer version")]
    Version(u16),
}

/// Writes the run of one entry; empty if there are no keys.
#[must_use]
pub fn encode(index: LogIndex, log_time: LogTime, items: &[KeyItem]) -> Bytes {
    if items.is_empty() {
        return Bytes::new();
    }
    let mut out = Vec::with_capacity(KEY_RUN_HEADER_LEN + items.len() * KEY_ITEM_LEN);
    out.extend_from_slice(&KEY_RUN_MAGIC);
    out.extend_from_slice(&KEY_RUN_VERSION.to_le_bytes());
    out.extend_from_slice(&[0; 6]);
    out.extend_from_slice(&len_u32(items.len()).to_le_bytes());
    out.extend_from_slice(&index.0.to_le_bytes());
    out.extend_from_slice(&log_time.0.to_le_bytes());
    out.extend_from_slice(&[0; 8]);
    for item in items {
        out.extend_from_slice(&item.key.0.to_le_bytes());
        out.extend_from_slice(&item.payload.0.to_le_bytes());
        out.extend_from_slice(&item.offset.0.to_le_bytes());
    }
    let crc = crc32c::crc32c(&out[COVERED..]);
    out[8..12].copy_from_slice(&crc.to_le_bytes());
    Bytes::from(out)
}

/// The run of one entry, checked; items are read in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRun {
    /// Raft index of the entry.
    pub index: LogIndex,
    /// Its log time.
    pub log_time: LogTime,
    items: Bytes,
}

impl KeyRun {
    /// Checks the run at the start of `bytes`; returns it and what follows it.
    ///
    /// # Errors
    /// What is wrong, by name.
    pub fn parse(bytes: &Bytes) -> Result<(Self, Bytes), BadKeyRun> {
        let need = |needed: usize| match bytes.len() < needed {
            true => Err(BadKeyRun::Truncated { needed, found: bytes.len() }),
            false => Ok(()),
        };
        need(KEY_RUN_HEADER_LEN)?;
        if array::<4>(bytes, 0) != KEY_RUN_MAGIC {
            return Err(BadKeyRun::Damaged("magic"));
        }
        let version = u16_at(bytes, 4);
        if version != KEY_RUN_VERSION {
            return Err(BadKeyRun::Version(version));
        }
        let count = u32_at(bytes, 12) as usize;
        if count == 0 || count > ITEMS_MAX {
            return Err(BadKeyRun::Damaged("number of keys"));
        }
        let end = KEY_RUN_HEADER_LEN + count * KEY_ITEM_LEN;
        need(end)?;
        if crc32c::crc32c(&bytes[COVERED..end]) != u32_at(bytes, 8) {
            return Err(BadKeyRun::Damaged("checksum"));
        }
        if u16_at(bytes, 6) != 0 || u64_at(bytes, 32) != 0 {
            return Err(BadKeyRun::Damaged("a reserved field is not zero"));
        }
        let run = Self {
            index: LogIndex(u64_at(bytes, 16)),
            log_time: LogTime(i64_at(bytes, 24)),
            items: bytes.slice(KEY_RUN_HEADER_LEN..end),
        };
        Ok((run, bytes.slice(end..)))
    }

    /// Number of keys.
    #[must_use]
    pub fn count(&self) -> usize {
        self.items.len() / KEY_ITEM_LEN
    }

    /// The keys in the order in which they were applied.
    pub fn items(&self) -> impl ExactSizeIterator<Item = KeyItem> + '_ {
        self.items.chunks_exact(KEY_ITEM_LEN).map(|item| KeyItem {
            key: KeyHash(u128_at(item, 0)),
            payload: PayloadHash(u64_at(item, 16)),
            offset: Offset(u64_at(item, 24)),
        })
    }
}
