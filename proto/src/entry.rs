//! Payload of a Raft entry of a partition: what kind it is, when (log time), and per batch who sent it.
//! Byte by byte: `docs/format.md`.
//!
//! A leader gathers batches with [`EntryBuilder`] (one copy into one buffer of exact size); every replica reads them
//! with [`EntryView`] (batches are slices of the entry's own memory).
//! An entry without payload is Raft's own (a new leader's no-op) and never reaches this module.

use std::fmt;

use bytes::Bytes;

use crate::batch::Priority;
use crate::ids::{FeatureLevel, Offset, OperationId};
use crate::le::{array, i64_at, len_u32, u16_at, u32_at, u64_at};
use crate::limits::{BATCH_MAX, ENTRY_BATCHES_MAX, ENTRY_MAX, NAME_MAX};
use crate::time::LogTime;

/// Format version.
pub const ENTRY_VERSION: u8 = 1;
/// Highest feature level that this software understands.
pub const FEATURE_LEVEL: FeatureLevel = FeatureLevel(1);
/// Bytes before the metadata.
pub const ENTRY_HEADER_LEN: usize = 32;
/// Bytes of one batch's metadata before principal and client id.
pub const BATCH_META_LEN: usize = 48;

const COVERED: usize = 8;
const FLAG_TIME_LEAPT: u16 = 1;
const FLAG_TIME_ACCEPTED: u16 = 2;

/// What an entry does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EntryKind {
    /// Appends record batches.
    Batches,
    /// Consumer positions (reserved).
    Positions,
    /// A group member claims the partition (reserved).
    Claim,
    /// Decides the fate of a key (reserved).
    Resolve,
    /// Moves the low watermark (W6).
    Trim,
    /// Seals the log (reserved).
    Seal,
    /// Partition settings (reserved).
    Config,
    /// Deliveries and other marks (reserved).
    Trace,
}

impl EntryKind {
    /// All kinds.
    pub const ALL: [Self; 8] =
        [Self::Batches, Self::Positions, Self::Claim, Self::Resolve, Self::Trim, Self::Seal, Self::Config, Self::Trace];

    /// Its number in the format.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Batches => 1,
            Self::Positions => 2,
            Self::Claim => 3,
            Self::Resolve => 4,
            Self::Trim => 5,
            Self::Seal => 6,
            Self::Config => 7,
            Self::Trace => 8,
        }
    }

    /// Whether an entry's payload, as it stands in the log, appends records. One that cannot be read does not: it is
    /// refused where it is applied.
    #[must_use]
    pub fn carries_records(payload: &[u8]) -> bool {
        payload.len() >= ENTRY_HEADER_LEN && Self::from_number(payload[1]) == Some(Self::Batches)
    }

    fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.number() == number)
    }
}

impl fmt::Display for EntryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Batches => "batches",
            Self::Positions => "positions",
            Self::Claim => "claim",
            Self::Resolve => "resolve",
            Self::Trim => "trim",
            Self::Seal => "seal",
            Self::Config => "config",
            Self::Trace => "trace",
        })
    }
}

/// What the leader says about the clock when it proposes an entry (W5). Only it can tell a leap of cluster time
/// from an idle partition, by its own `CLOCK_BOOTTIME`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryTime {
    /// Cluster time when proposed; apply takes the maximum with the previous entry's.
    pub log_time: LogTime,
    /// Cluster time leapt by more than [`crate::limits::TIME_LEAP`]: stop ageing.
    pub leapt: bool,
    /// An operator accepted the leap: ageing goes on from this entry's time.
    pub accepted: bool,
}

impl From<LogTime> for EntryTime {
    fn from(log_time: LogTime) -> Self {
        Self { log_time, ..Self::default() }
    }
}

/// Who sent a batch, and when it came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchMeta {
    /// Who, e.g. `anonymous@127.0.0.1`; at most [`NAME_MAX`] bytes are kept.
    pub principal: Bytes,
    /// Application instance as it names itself; at most [`NAME_MAX`] bytes are kept.
    pub client_id: Bytes,
    /// Connection on the leader's node.
    pub connection: u64,
    /// Admission priority.
    pub priority: Priority,
    /// Identity of the request over transport retries.
    pub operation: OperationId,
    /// Cluster time when the leader admitted it.
    pub received: LogTime,
}

/// Why bytes are refused as an entry. A replica that meets one at apply stops: skipping would diverge.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadEntry {
    /// Fewer bytes than the format needs.
    #[error("entry truncated: {found} bytes of {needed}")]
    Truncated {
        /// Bytes needed at least.
        needed: usize,
        /// Bytes there are.
        found: usize,
    },
    /// Newer format version.
    #[error("entry format version {0} is unknown to this software: use a newer version")]
    UnknownVersion(u8),
    /// Unknown kind.
    #[error("entry kind {0} is unknown to this software: use a newer version")]
    UnknownKind(u8),
    /// A feature level above what this software has.
    #[error("entry needs {0}; this software has {FEATURE_LEVEL}: use a newer version")]
    FeatureLevel(FeatureLevel),
    /// The metadata's checksum does not match.
    #[error("entry checksum {computed:08x} is not the {stored:08x} of its header")]
    Checksum {
        /// In the header.
        stored: u32,
        /// Over the metadata.
        computed: u32,
    },
    /// Anything else that the format forbids.
    #[error("entry malformed: {0}")]
    Malformed(&'static str),
}

/// Gathers batches into the payload of one entry.
#[derive(Clone, Debug, Default)]
pub struct EntryBuilder {
    batches: Vec<(BatchMeta, Bytes)>,
    size: usize,
}

impl EntryBuilder {
    /// Nothing gathered yet.
    #[must_use]
    pub fn new() -> Self {
        Self { batches: Vec::new(), size: ENTRY_HEADER_LEN }
    }

    /// Adds a batch (shared, not copied yet).
    ///
    /// # Panics
    /// If it does not fit: ask [`Self::has_room_for`] first.
    pub fn push(&mut self, meta: BatchMeta, batch: Bytes) {
        assert!(self.has_room_for(&meta, &batch), "the caller asks for room first");
        self.size += cost(&meta, &batch);
        self.batches.push((meta, batch));
    }

    /// True if the batch fits below the format's limits. An empty builder has room for every legal batch.
    #[must_use]
    pub fn has_room_for(&self, meta: &BatchMeta, batch: &Bytes) -> bool {
        batch.len() <= BATCH_MAX
            && self.batches.len() < ENTRY_BATCHES_MAX
            && self.size.max(ENTRY_HEADER_LEN) + cost(meta, batch) <= ENTRY_MAX
    }

    /// Batches gathered.
    #[must_use]
    pub fn count(&self) -> usize {
        self.batches.len()
    }

    /// Nothing gathered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Bytes of the entry as it stands.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size.max(ENTRY_HEADER_LEN)
    }

    /// Writes the entry: the one copy of a batch's bytes on their way (`3-architecture`, "A publish").
    ///
    /// # Panics
    /// If nothing was gathered.
    #[must_use]
    pub fn finish(self, time: impl Into<EntryTime>, level: FeatureLevel) -> Bytes {
        assert!(!self.batches.is_empty(), "an entry of batches has at least one");
        let meta_len: usize = self.batches.iter().map(|(meta, _)| meta_len(meta)).sum();
        let mut out = header(EntryKind::Batches, time.into(), level, self.batches.len(), meta_len, self.size());
        for (meta, batch) in &self.batches {
            let (principal, client_id) = (cut(&meta.principal), cut(&meta.client_id));
            out.extend_from_slice(&len_u32(batch.len()).to_le_bytes());
            out.extend_from_slice(&(principal.len() as u16).to_le_bytes());
            out.extend_from_slice(&(client_id.len() as u16).to_le_bytes());
            out.extend_from_slice(&meta.connection.to_le_bytes());
            out.extend_from_slice(&meta.operation.to_bytes());
            out.extend_from_slice(&meta.received.0.to_le_bytes());
            out.extend_from_slice(&[meta.priority.number(), 0, 0, 0, 0, 0, 0, 0]);
            out.extend_from_slice(principal);
            out.extend_from_slice(client_id);
        }
        seal(&mut out);
        for (_, batch) in &self.batches {
            out.extend_from_slice(batch);
        }
        debug_assert_eq!(out.len(), out.capacity());
        Bytes::from(out)
    }

    /// An entry that moves the low watermark (W6).
    #[must_use]
    pub fn trim(low_watermark: Offset, time: impl Into<EntryTime>, level: FeatureLevel) -> Bytes {
        let mut out = header(EntryKind::Trim, time.into(), level, 0, 8, ENTRY_HEADER_LEN + 8);
        out.extend_from_slice(&low_watermark.0.to_le_bytes());
        seal(&mut out);
        Bytes::from(out)
    }
}

fn cut(name: &Bytes) -> &[u8] {
    &name[..name.len().min(NAME_MAX)]
}

fn meta_len(meta: &BatchMeta) -> usize {
    BATCH_META_LEN + cut(&meta.principal).len() + cut(&meta.client_id).len()
}

fn cost(meta: &BatchMeta, batch: &Bytes) -> usize {
    meta_len(meta) + batch.len()
}

fn header(
    kind: EntryKind,
    time: EntryTime,
    level: FeatureLevel,
    count: usize,
    meta_len: usize,
    capacity: usize,
) -> Vec<u8> {
    let leapt = if time.leapt { FLAG_TIME_LEAPT } else { 0 };
    let accepted = if time.accepted { FLAG_TIME_ACCEPTED } else { 0 };
    let mut out = Vec::with_capacity(capacity);
    out.extend_from_slice(&[ENTRY_VERSION, kind.number()]);
    out.extend_from_slice(&(leapt | accepted).to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&level.0.to_le_bytes());
    out.extend_from_slice(&len_u32(count).to_le_bytes());
    out.extend_from_slice(&time.log_time.0.to_le_bytes());
    out.extend_from_slice(&len_u32(meta_len).to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out
}

/// Stores the checksum over header and metadata, which `out` ends with.
fn seal(out: &mut [u8]) {
    let crc = checksum(out);
    out[4..8].copy_from_slice(&crc.to_le_bytes());
}

/// Covers version, kind and flags as well: they stand before the checksum's own field.
fn checksum(head: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&head[..4]), &head[COVERED..])
}

/// One batch in an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryBatch {
    /// Who sent it.
    pub meta: BatchMeta,
    /// The batch as it came; not checked here: it has its own checksum.
    pub batch: Bytes,
}

/// An entry, checked; its batches share its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryView {
    kind: EntryKind,
    time: EntryTime,
    level: FeatureLevel,
    count: u32,
    meta_end: usize,
    bytes: Bytes,
}

impl EntryView {
    /// Checks header and metadata of the entry that `bytes` is.
    ///
    /// # Errors
    /// What is wrong, by name; an unknown version, kind or feature level is an error of its own.
    pub fn parse(bytes: Bytes) -> Result<Self, BadEntry> {
        let need = |needed: usize| match bytes.len() < needed {
            true => Err(BadEntry::Truncated { needed, found: bytes.len() }),
            false => Ok(()),
        };
        need(1)?;
        if bytes[0] != ENTRY_VERSION {
            return Err(BadEntry::UnknownVersion(bytes[0]));
        }
        need(ENTRY_HEADER_LEN)?;
        if bytes.len() > ENTRY_MAX {
            return Err(BadEntry::Malformed("longer than an entry may be"));
        }
        let meta_end = ENTRY_HEADER_LEN + u32_at(&bytes, 24) as usize;
        need(meta_end)?;
        let (stored, computed) = (u32_at(&bytes, 4), checksum(&bytes[..meta_end]));
        if stored != computed {
            return Err(BadEntry::Checksum { stored, computed });
        }
        let kind = EntryKind::from_number(bytes[1]).ok_or(BadEntry::UnknownKind(bytes[1]))?;
        let level = FeatureLevel(u32_at(&bytes, 8));
        if level > FEATURE_LEVEL {
            return Err(BadEntry::FeatureLevel(level));
        }
        let flags = u16_at(&bytes, 2);
        if flags & !(FLAG_TIME_LEAPT | FLAG_TIME_ACCEPTED) != 0 || u32_at(&bytes, 28) != 0 {
            return Err(BadEntry::Malformed("a reserved field is not zero"));
        }
        let time = EntryTime {
            log_time: LogTime(i64_at(&bytes, 16)),
            leapt: flags & FLAG_TIME_LEAPT != 0,
            accepted: flags & FLAG_TIME_ACCEPTED != 0,
        };
        let view = Self { kind, time, level, count: u32_at(&bytes, 12), meta_end, bytes };
        view.check_body()?;
        Ok(view)
    }

    fn check_body(&self) -> Result<(), BadEntry> {
        match self.kind {
            EntryKind::Batches => self.check_batches(),
            EntryKind::Trim if self.bytes.len() != ENTRY_HEADER_LEN + 8 || self.count != 0 => {
                Err(BadEntry::Malformed("length of a trim entry"))
            }
            _ => Ok(()),
        }
    }

    fn check_batches(&self) -> Result<(), BadEntry> {
        if self.count == 0 || self.count as usize > ENTRY_BATCHES_MAX {
            return Err(BadEntry::Malformed("number of batches"));
        }
        let (mut at, mut body) = (ENTRY_HEADER_LEN, self.meta_end);
        for _ in 0..self.count {
            if at + BATCH_META_LEN > self.meta_end {
                return Err(BadEntry::Malformed("metadata is shorter than its batches need"));
            }
            let names = [usize::from(u16_at(&self.bytes, at + 4)), usize::from(u16_at(&self.bytes, at + 6))];
            let rest: [u8; 7] = array(&self.bytes, at + 41);
            if names.iter().any(|length| *length > NAME_MAX)
                || Priority::from_number(self.bytes[at + 40]).is_none()
                || rest != [0; 7]
            {
                return Err(BadEntry::Malformed("metadata of a batch"));
            }
            body += u32_at(&self.bytes, at) as usize;
            at += BATCH_META_LEN + names[0] + names[1];
        }
        if at != self.meta_end {
            return Err(BadEntry::Malformed("length of the metadata"));
        }
        match body.cmp(&self.bytes.len()) {
            std::cmp::Ordering::Equal => Ok(()),
            std::cmp::Ordering::Greater => Err(BadEntry::Truncated { needed: body, found: self.bytes.len() }),
            std::cmp::Ordering::Less => Err(BadEntry::Malformed("bytes after the last batch")),
        }
    }

    /// What the entry does.
    #[must_use]
    pub fn kind(&self) -> EntryKind {
        self.kind
    }

    /// What its leader said about the clock.
    #[must_use]
    pub fn time(&self) -> EntryTime {
        self.time
    }

    /// Feature level that it needs.
    #[must_use]
    pub fn level(&self) -> FeatureLevel {
        self.level
    }

    /// Number of batches.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// `Trim`: the new low watermark.
    #[must_use]
    pub fn low_watermark(&self) -> Option<Offset> {
        (self.kind == EntryKind::Trim).then(|| Offset(u64_at(&self.bytes, ENTRY_HEADER_LEN)))
    }

    /// The batches in order, as slices of this entry. Empty for other kinds.
    #[must_use]
    pub fn batches(&self) -> EntryBatches<'_> {
        let left = if self.kind == EntryKind::Batches { self.count } else { 0 };
        EntryBatches { entry: self, left, at: ENTRY_HEADER_LEN, body: self.meta_end }
    }
}

/// Iterator over an entry's batches.
#[derive(Clone, Debug)]
pub struct EntryBatches<'a> {
    entry: &'a EntryView,
    left: u32,
    at: usize,
    body: usize,
}

impl Iterator for EntryBatches<'_> {
    type Item = EntryBatch;

    fn next(&mut self) -> Option<EntryBatch> {
        self.left = self.left.checked_sub(1)?;
        let (bytes, at) = (&self.entry.bytes, self.at);
        let (principal, client) = (usize::from(u16_at(bytes, at + 4)), usize::from(u16_at(bytes, at + 6)));
        let names = at + BATCH_META_LEN;
        let end = self.body + u32_at(bytes, at) as usize;
        let meta = BatchMeta {
            principal: bytes.slice(names..names + principal),
            client_id: bytes.slice(names + principal..names + principal + client),
            connection: u64_at(bytes, at + 8),
            priority: Priority::from_number(bytes[at + 40]).expect("parse checked the priority"),
            operation: OperationId(u128::from_be_bytes(array(bytes, at + 16))),
            received: LogTime(i64_at(bytes, at + 32)),
        };
        let batch = bytes.slice(self.body..end);
        self.at = names + principal + client;
        self.body = end;
        Some(EntryBatch { meta, batch })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left as usize, Some(self.left as usize))
    }
}

impl ExactSizeIterator for EntryBatches<'_> {}

#[cfg(test)]
mod tests;
