//! What can be wrong with a batch or a record.

use crate::limits::{
    BATCH_MAX, BATCH_RECORDS_MAX, COMPRESSION_RATIO_MAX, HEADERS_MAX, KEY_MAX, RECORD_MAX, UNCOMPRESSED_MAX,
};
use crate::refusal::{Reason, Refusal};

/// Why bytes are refused as a (stored) batch. Nothing of such a batch is ever applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadBatch {
    /// Fewer bytes than the format needs.
    #[error("truncated: {found} bytes of {needed}")]
    Truncated {
        /// Bytes needed at least.
        needed: usize,
        /// Bytes there are.
        found: usize,
    },
    /// Wrong magic.
    #[error("not a record batch: it begins with {0:02x?}")]
    Magic([u8; 4]),
    /// Newer or unknown format version.
    #[error("batch format version {0} is unknown to this software")]
    Version(u16),
    /// CRC32C does not match: damaged on the way or at rest.
    #[error("checksum {computed:08x} is not the {stored:08x} of the header")]
    Checksum {
        /// In the header.
        stored: u32,
        /// Over the bytes.
        computed: u32,
    },
    /// More bytes than a batch may have.
    #[error("{0} bytes; a batch has at most {BATCH_MAX}")]
    TooLarge(usize),
    /// No record, or too many.
    #[error("{0} records; a batch has 1 to {BATCH_RECORDS_MAX}")]
    RecordCount(u32),
    /// A record above the limit.
    #[error("record {index} has {size} bytes; at most {RECORD_MAX} are allowed")]
    RecordTooLarge {
        /// Position in the batch.
        index: u32,
        /// Its size.
        size: u32,
    },
    /// The header promises more than may be decompressed.
    #[error(
        "{uncompressed} bytes from {compressed}: at most {UNCOMPRESSED_MAX} bytes and a ratio of \
         {COMPRESSION_RATIO_MAX} are allowed"
    )]
    Bomb {
        /// Bytes in the batch.
        compressed: usize,
        /// Bytes promised.
        uncompressed: usize,
    },
    /// A reserved feature that this version does not have.
    #[error("{0} is reserved and not supported by this version")]
    Unsupported(&'static str),
    /// Anything else that the format forbids.
    #[error("malformed: {0}")]
    Malformed(&'static str),
}

impl BadBatch {
    /// The stable reason of a refusal.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        match self {
            Self::TooLarge(_) | Self::RecordTooLarge { .. } => Reason::TooLarge,
            Self::Version(_) | Self::Unsupported(_) => Reason::UnsupportedVersion,
            _ => Reason::BadBatch,
        }
    }

    /// As a refusal; `subject` names topic and partition. A batch that failed its check was never applied.
    #[must_use]
    pub fn refusal(&self, subject: impl Into<String>) -> Refusal {
        let action = match self {
            Self::TooLarge(_) | Self::RecordTooLarge { .. } => "send less in one batch or smaller records",
            Self::Version(_) | Self::Unsupported(_) => "use a client that speaks this cluster's batch format",
            Self::Checksum { .. } | Self::Truncated { .. } => "send the batch again; it was damaged on the way",
            _ => "correct the client's encoder (docs/format.md); sending the same bytes again cannot succeed",
        };
        Refusal::new(self.reason(), self.to_string(), subject, action)
    }
}

/// Why a record does not go into a batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRecord {
    /// Record key or idempotency key too long.
    #[error("the {which} has {length} bytes; at most {KEY_MAX} are allowed")]
    KeyTooLong {
        /// "record key" or "idempotency key".
        which: &'static str,
        /// Its length.
        length: usize,
    },
    /// The record as encoded is too large.
    #[error("the record has {0} bytes with key and headers; at most {RECORD_MAX} are allowed")]
    TooLarge(usize),
    /// Too many headers.
    #[error("the record has {0} headers; at most {HEADERS_MAX} are allowed")]
    TooManyHeaders(usize),
    /// The record is fine, but this batch has no room for it: close the batch, start another.
    #[error("the batch is full")]
    BatchFull,
}

impl BadRecord {
    /// As a refusal; `subject` names topic and partition.
    #[must_use]
    pub fn refusal(&self, subject: impl Into<String>) -> Refusal {
        let action = match self {
            Self::BatchFull => "send it in another batch",
            _ => "make the record smaller; large payloads belong into an object store, their address into the record",
        };
        Refusal::new(Reason::TooLarge, self.to_string(), subject, action)
    }
}
