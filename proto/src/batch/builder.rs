//! Makes a batch from records.

use bytes::Bytes;

use super::descriptor::DESCRIPTOR_LEN;
use super::error::{BadBatch, BadRecord};
use super::header::{
    seal, total_length, write_identity, BatchHeader, BatchIdentity, ClientTime, Codec, Priority, SchemaId, TraceParent,
    HEADER_LEN,
};
use super::record::Record;
use crate::le::len_u32;
use crate::limits::{BATCH_MAX, BATCH_RECORDS_MAX, COMPRESSION_RATIO_MAX, UNCOMPRESSED_MAX};

/// Zstandard level: the fastest one; the network, not the ratio, is what it saves.
const ZSTD_LEVEL: i32 = 1;

/// What holds for a whole batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchOptions {
    /// How to compress. A section that does not shrink, or shrinks by more than 16×, is stored uncompressed.
    pub codec: Codec,
    /// Decides admission.
    pub priority: Priority,
    /// If one record is refused, store none.
    pub all_or_nothing: bool,
    /// Schema of the payloads.
    pub schema: SchemaId,
    /// Trace parent.
    pub trace: TraceParent,
}

/// Gathers records; sizes are known at every moment.
#[derive(Clone, Debug, Default)]
pub struct BatchBuilder {
    options: BatchOptions,
    base_time: ClientTime,
    table: Vec<u8>,
    section: Vec<u8>,
}

impl BatchBuilder {
    /// An empty batch.
    #[must_use]
    pub fn new(options: BatchOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// Records so far.
    #[must_use]
    pub fn count(&self) -> usize {
        self.table.len() / DESCRIPTOR_LEN
    }

    /// No record yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Bytes of the batch if it were closed now, before compression.
    #[must_use]
    pub fn size(&self) -> usize {
        HEADER_LEN + self.table.len() + self.section.len()
    }

    /// True if `record` fits below the format's limits.
    #[must_use]
    pub fn has_room_for(&self, record: &Record) -> bool {
        self.is_empty()
            || (self.count() < BATCH_RECORDS_MAX
                && self.size() + record.size_bound() <= BATCH_MAX
                && self.section.len() + record.size_bound() <= UNCOMPRESSED_MAX)
    }

    /// Adds a record: hashes its keys, copies its bytes.
    ///
    /// # Errors
    /// The record breaks a limit, or [`BadRecord::BatchFull`]; the batch is as it was before.
    pub fn push(&mut self, record: &Record) -> Result<(), BadRecord> {
        record.check()?;
        if !self.has_room_for(record) {
            return Err(BadRecord::BatchFull);
        }
        if self.is_empty() {
            self.base_time = record.timestamp;
        }
        let start = self.section.len();
        record.encode(self.base_time, &mut self.section);
        let descriptor = record.descriptor(self.section.len() - start);
        self.table.extend_from_slice(&descriptor.encode());
        Ok(())
    }

    /// Closes the batch: compresses, writes everything once into a buffer of exact size, adds the checksum.
    ///
    /// # Panics
    /// If the batch is empty: there is nothing to send.
    #[must_use]
    pub fn finish(self, identity: BatchIdentity) -> Bytes {
        assert!(!self.is_empty(), "a batch has at least one record");
        let compressed = compress(self.options.codec, &self.section);
        let (codec, section) = match &compressed {
            Some(bytes) => (self.options.codec, bytes.as_slice()),
            None => (Codec::None, self.section.as_slice()),
        };
        let header = BatchHeader {
            length: total_length(self.count(), section.len()),
            count: len_u32(self.count()),
            priority: self.options.priority,
            all_or_nothing: self.options.all_or_nothing,
            codec,
            base_time: self.base_time,
            identity,
            schema: self.options.schema,
            uncompressed: len_u32(self.section.len()),
            trace: self.options.trace,
        };
        let mut out = Vec::with_capacity(header.length as usize);
        out.resize(HEADER_LEN, 0);
        header.write(&mut out);
        out.extend_from_slice(&self.table);
        out.extend_from_slice(section);
        seal(&mut out);
        Bytes::from(out)
    }
}

/// `None` if the section is to be stored as it is.
fn compress(codec: Codec, section: &[u8]) -> Option<Vec<u8>> {
    let compressed = match codec {
        Codec::None => return None,
        Codec::Lz4 => lz4_flex::block::compress(section),
        Codec::Zstd => zstd::bulk::compress(section, ZSTD_LEVEL).ok()?,
    };
    let shrinks = compressed.len() < section.len();
    let within_ratio = section.len() <= compressed.len().saturating_mul(COMPRESSION_RATIO_MAX);
    (shrinks && within_ratio).then_some(compressed)
}

/// The same records under another identity: what a producer sends after it raised its epoch (I4).
///
/// # Errors
/// If `batch` is none.
pub fn with_identity(batch: &Bytes, identity: BatchIdentity) -> Result<Bytes, BadBatch> {
    BatchHeader::read(batch)?;
    let mut out = batch.to_vec();
    write_identity(&mut out, &identity);
    BatchHeader::read(&out)?;
    seal(&mut out);
    Ok(Bytes::from(out))
}
