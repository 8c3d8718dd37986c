//! Record batches: what a producer sends, the Raft log carries, segments keep and a consumer gets.
//!
//! ```text
//!   BatchBuilder ──finish──► batch bytes ──► BatchView (server: header, CRC, table; never decompressed)
//!                                │
//!                apply puts a stored prefix in front (offsets, epoch, log time, suppressed records)
//!                                ▼
//!                         StoredBatchView ──records──► (Offset, Record) (consumer)
//! ```
//! Byte by byte: `docs/format.md`. Limits: [`crate::limits`].

mod builder;
mod descriptor;
mod error;
mod header;
mod record;
mod stored;
mod view;

pub use builder::{with_identity, BatchBuilder, BatchOptions};
pub use descriptor::{Descriptor, DESCRIPTOR_LEN};
pub use error::{BadBatch, BadRecord};
pub use header::{
    BatchHeader, BatchIdentity, ClientTime, Codec, EncryptionKeyId, Priority, SchemaId, TraceParent, BATCH_MAGIC,
    BATCH_VERSION, HEADER_LEN,
};
pub use record::Record;
pub use stored::{
    stored_len, StoredBatchView, StoredPrefix, StoredRecords, Suppressed, STORED_MAGIC, STORED_PREFIX_LEN,
    STORED_VERSION,
};
pub use view::{BatchView, Records};

#[cfg(test)]
mod tests;
