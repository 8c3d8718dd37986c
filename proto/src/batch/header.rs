//! The fixed header of a batch.

use std::fmt;

use super::error::BadBatch;
use super::DESCRIPTOR_LEN;
use crate::ids::{ProducerEpoch, ProducerId, Sequence};
use crate::le::{array, i64_at, len_u32, u128_at, u16_at, u32_at, u64_at};
use crate::limits::{BATCH_MAX, BATCH_RECORDS_MAX, COMPRESSION_RATIO_MAX, UNCOMPRESSED_MAX};
use crate::v1;

/// First four bytes of a batch.
pub const BATCH_MAGIC: [u8; 4] = *b"QBAT";
/// Format version.
pub const BATCH_VERSION: u16 = 1;
/// Bytes before the table of descriptors.
pub const HEADER_LEN: usize = 136;

/// Where the fields stand; `docs/format.md` has the same table.
mod at {
    pub const VERSION: usize = 4;
    pub const HEADER_LEN: usize = 6;
    pub const CRC: usize = 8;
    /// First byte that the checksum covers.
    pub const COVERED: usize = 12;
    pub const LENGTH: usize = 12;
    pub const COUNT: usize = 16;
    pub const ATTRIBUTES: usize = 20;
    pub const CODEC: usize = 22;
    pub const RESERVED_A: usize = 23;
    pub const BASE_TIME: usize = 24;
    pub const PRODUCER: usize = 32;
    pub const EPOCH: usize = 48;
    pub const SCHEMA: usize = 52;
    pub const SEQUENCE: usize = 56;
    pub const UNCOMPRESSED: usize = 64;
    pub const KEY_ID: usize = 68;
    pub const NONCE: usize = 72;
    pub const RESERVED_B: usize = 84;
    pub const TRACE_ID: usize = 88;
    pub const SPAN_ID: usize = 104;
    pub const TRACE_FLAGS: usize = 112;
    pub const RESERVED_C: usize = 113;
    pub const RESERVED_D: usize = 120;
}

const PRIORITY_MASK: u16 = 0b11;
const ALL_OR_NOTHING: u16 = 1 << 2;
const TRANSACTION: u16 = 1 << 3;

/// Microseconds since the Unix epoch on a client's clock; informs, decides nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientTime(pub i64);

impl ClientTime {
    /// "None".
    pub const NONE: Self = Self(0);
}

/// Identifies the schema of a batch's payloads; 0 = none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SchemaId(pub u32);

/// Identifies the key that a batch is encrypted with; 0 = in the clear. Reserved: only 0 is accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EncryptionKeyId(pub u32);

/// How the records section is compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Codec {
    /// Not at all.
    #[default]
    None,
    /// LZ4 block.
    Lz4,
    /// Zstandard frame.
    Zstd,
}

impl Codec {
    const fn number(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Lz4 => 1,
            Self::Zstd => 2,
        }
    }

    fn from_number(number: u8) -> Result<Self, BadBatch> {
        match number {
            0 => Ok(Self::None),
            1 => Ok(Self::Lz4),
            2 => Ok(Self::Zstd),
            _ => Err(BadBatch::Unsupported("this codec")),
        }
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        })
    }
}

/// Decides admission under load, never order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Priority {
    /// First to be refused.
    Low,
    /// The default.
    #[default]
    Normal,
    /// Last to be refused.
    Core,
}

impl Priority {
    /// Its number in formats and on the wire.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Normal => 0,
            Self::Low => 1,
            Self::Core => 2,
        }
    }

    /// From its number.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Normal),
            1 => Some(Self::Low),
            2 => Some(Self::Core),
            _ => None,
        }
    }

    /// 0 = low, 1 = normal, 2 = core: order of importance.
    #[must_use]
    pub const fn rank(self) -> u8 {
        match self {
            Self::Low => 0,
            Self::Normal => 1,
            Self::Core => 2,
        }
    }
}

impl From<v1::Priority> for Priority {
    fn from(priority: v1::Priority) -> Self {
        match priority {
            v1::Priority::Normal => Self::Normal,
            v1::Priority::Low => Self::Low,
            v1::Priority::Core => Self::Core,
        }
    }
}

impl From<Priority> for v1::Priority {
    fn from(priority: Priority) -> Self {
        match priority {
            Priority::Normal => Self::Normal,
            Priority::Low => Self::Low,
            Priority::Core => Self::Core,
        }
    }
}

/// W3C trace parent of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceParent {
    /// Trace; 0 = none.
    pub trace_id: u128,
    /// Parent span.
    pub span_id: u64,
    /// Trace flags.
    pub flags: u8,
}

/// Who sent a batch and where it stands in that producer's order (I1–I4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchIdentity {
    /// The producer; [`ProducerId::NONE`] = anonymous: only idempotency keys protect such a batch from repetition,
    /// epoch and sequence are 0.
    pub producer: ProducerId,
    /// Its epoch.
    pub epoch: ProducerEpoch,
    /// Sequence of the first record; the others follow without gap.
    pub base_sequence: Sequence,
}

impl BatchIdentity {
    /// Sequence after a batch of `count` records.
    #[must_use]
    pub const fn end(&self, count: u32) -> Sequence {
        Sequence(self.base_sequence.0.saturating_add(count as u64))
    }
}

/// The fixed part of a batch, decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchHeader {
    /// Bytes of the whole batch.
    pub length: u32,
    /// Records.
    pub count: u32,
    /// Decides admission.
    pub priority: Priority,
    /// If one record is refused, none is stored.
    pub all_or_nothing: bool,
    /// How the records are compressed.
    pub codec: Codec,
    /// Client's clock; the records hold differences to it.
    pub base_time: ClientTime,
    /// Who sent it and where it stands in that producer's order.
    pub identity: BatchIdentity,
    /// Schema of the payloads.
    pub schema: SchemaId,
    /// Bytes of the records section after decompression.
    pub uncompressed: u32,
    /// Trace parent; all zero = none.
    pub trace: TraceParent,
}

impl BatchHeader {
    /// Where the records section begins.
    #[must_use]
    pub const fn records_at(&self) -> usize {
        HEADER_LEN + self.count as usize * DESCRIPTOR_LEN
    }

    /// Bytes of the records section as it stands in the batch.
    #[must_use]
    pub const fn section_len(&self) -> usize {
        self.length as usize - self.records_at()
    }

    /// Sequence after the last record.
    #[must_use]
    pub const fn end_sequence(&self) -> Sequence {
        self.identity.end(self.count)
    }

    /// Writes the header without its checksum over the first [`HEADER_LEN`] bytes, which must be zero.
    pub(super) fn write(&self, out: &mut [u8]) {
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        let all_or_nothing = if self.all_or_nothing { ALL_OR_NOTHING } else { 0 };
        put(0, &BATCH_MAGIC);
        put(at::VERSION, &BATCH_VERSION.to_le_bytes());
        put(at::HEADER_LEN, &(HEADER_LEN as u16).to_le_bytes());
        put(at::LENGTH, &self.length.to_le_bytes());
        put(at::COUNT, &self.count.to_le_bytes());
        put(at::ATTRIBUTES, &(u16::from(self.priority.number()) | all_or_nothing).to_le_bytes());
        put(at::CODEC, &[self.codec.number()]);
        put(at::BASE_TIME, &self.base_time.0.to_le_bytes());
        put(at::PRODUCER, &self.identity.producer.to_bytes());
        put(at::EPOCH, &self.identity.epoch.0.to_le_bytes());
        put(at::SCHEMA, &self.schema.0.to_le_bytes());
        put(at::SEQUENCE, &self.identity.base_sequence.0.to_le_bytes());
        put(at::UNCOMPRESSED, &self.uncompressed.to_le_bytes());
        put(at::TRACE_ID, &self.trace.trace_id.to_be_bytes());
        put(at::SPAN_ID, &self.trace.span_id.to_be_bytes());
        put(at::TRACE_FLAGS, &[self.trace.flags]);
    }

    /// Reads and checks the header of the batch that `bytes` is; not its checksum.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, BadBatch> {
        if bytes.len() < HEADER_LEN {
            return Err(BadBatch::Truncated { needed: HEADER_LEN, found: bytes.len() });
        }
        let magic: [u8; 4] = array(bytes, 0);
        if magic != BATCH_MAGIC {
            return Err(BadBatch::Magic(magic));
        }
        let version = u16_at(bytes, at::VERSION);
        if version != BATCH_VERSION {
            return Err(BadBatch::Version(version));
        }
        if usize::from(u16_at(bytes, at::HEADER_LEN)) != HEADER_LEN {
            return Err(BadBatch::Malformed("header length"));
        }
        let length = u32_at(bytes, at::LENGTH);
        if length as usize > BATCH_MAX || bytes.len() > BATCH_MAX {
            return Err(BadBatch::TooLarge(bytes.len().max(length as usize)));
        }
        if length as usize != bytes.len() {
            return match bytes.len() < length as usize {
                true => Err(BadBatch::Truncated { needed: length as usize, found: bytes.len() }),
                false => Err(BadBatch::Malformed("bytes after the batch")),
            };
        }
        let attributes = u16_at(bytes, at::ATTRIBUTES);
        let header = Self {
            length,
            count: u32_at(bytes, at::COUNT),
            priority: Priority::from_number((attributes & PRIORITY_MASK) as u8)
                .ok_or(BadBatch::Malformed("priority"))?,
            all_or_nothing: attributes & ALL_OR_NOTHING != 0,
            codec: Codec::from_number(bytes[at::CODEC])?,
            base_time: ClientTime(i64_at(bytes, at::BASE_TIME)),
            identity: BatchIdentity {
                producer: ProducerId(u128::from_be_bytes(array(bytes, at::PRODUCER))),
                epoch: ProducerEpoch(u32_at(bytes, at::EPOCH)),
                base_sequence: Sequence(u64_at(bytes, at::SEQUENCE)),
            },
            schema: SchemaId(u32_at(bytes, at::SCHEMA)),
            uncompressed: u32_at(bytes, at::UNCOMPRESSED),
            trace: TraceParent {
                trace_id: u128::from_be_bytes(array(bytes, at::TRACE_ID)),
                span_id: u64::from_be_bytes(array(bytes, at::SPAN_ID)),
                flags: bytes[at::TRACE_FLAGS],
            },
        };
        reserved(bytes, attributes)?;
        header.check()?;
        Ok(header)
    }

    fn check(&self) -> Result<(), BadBatch> {
        if self.count == 0 || self.count as usize > BATCH_RECORDS_MAX {
            return Err(BadBatch::RecordCount(self.count));
        }
        let (length, uncompressed) = (self.length as usize, self.uncompressed as usize);
        if length < self.records_at() {
            return Err(BadBatch::Truncated { needed: self.records_at(), found: length });
        }
        let compressed = self.section_len();
        if uncompressed > UNCOMPRESSED_MAX || uncompressed > compressed.saturating_mul(COMPRESSION_RATIO_MAX) {
            return Err(BadBatch::Bomb { compressed, uncompressed });
        }
        if self.codec == Codec::None && uncompressed != compressed {
            return Err(BadBatch::Malformed("length of the records section"));
        }
        let id = &self.identity;
        if id.producer == ProducerId::NONE && (id.epoch.0 != 0 || id.base_sequence.0 != 0) {
            return Err(BadBatch::Malformed("an anonymous batch has epoch and sequence 0"));
        }
        if id.base_sequence.0.checked_add(u64::from(self.count)).is_none() {
            return Err(BadBatch::Malformed("sequence overflow"));
        }
        Ok(())
    }
}

/// Unknown bits would change the meaning: nothing that this version does not know is accepted.
fn reserved(bytes: &[u8], attributes: u16) -> Result<(), BadBatch> {
    if attributes & TRANSACTION != 0 {
        return Err(BadBatch::Unsupported("a transaction"));
    }
    if attributes & !(PRIORITY_MASK | ALL_OR_NOTHING) != 0 {
        return Err(BadBatch::Unsupported("an attribute of this batch"));
    }
    if u32_at(bytes, at::KEY_ID) != 0 || bytes[at::NONCE..at::RESERVED_B].iter().any(|byte| *byte != 0) {
        return Err(BadBatch::Unsupported("encryption"));
    }
    let rest = [
        &bytes[at::RESERVED_A..at::BASE_TIME],
        &bytes[at::RESERVED_B..at::TRACE_ID],
        &bytes[at::RESERVED_C..at::RESERVED_D],
    ];
    if rest.iter().any(|field| field.iter().any(|byte| *byte != 0)) || u128_at(bytes, at::RESERVED_D) != 0 {
        return Err(BadBatch::Unsupported("a reserved field of this batch"));
    }
    Ok(())
}

/// Computes the checksum of a whole batch and stores it in its header.
pub(super) fn seal(batch: &mut [u8]) {
    let crc = checksum(batch);
    batch[at::CRC..at::CRC + 4].copy_from_slice(&crc.to_le_bytes());
}

/// CRC32C over everything after the checksum's own field.
pub(super) fn checksum(batch: &[u8]) -> u32 {
    crc32c::crc32c(&batch[at::COVERED..])
}

/// The checksum that a batch carries.
pub(super) fn stored_checksum(batch: &[u8]) -> u32 {
    u32_at(batch, at::CRC)
}

/// Overwrites who sent it; the checksum must be renewed.
pub(super) fn write_identity(batch: &mut [u8], identity: &BatchIdentity) {
    batch[at::PRODUCER..at::PRODUCER + 16].copy_from_slice(&identity.producer.to_bytes());
    batch[at::EPOCH..at::EPOCH + 4].copy_from_slice(&identity.epoch.0.to_le_bytes());
    batch[at::SEQUENCE..at::SEQUENCE + 8].copy_from_slice(&identity.base_sequence.0.to_le_bytes());
}

/// Length field of a batch that will have these parts.
pub(super) fn total_length(count: usize, section: usize) -> u32 {
    len_u32(HEADER_LEN + count * DESCRIPTOR_LEN + section)
}
