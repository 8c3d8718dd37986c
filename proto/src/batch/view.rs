//! A batch as it came, checked but not opened.

use bytes::Bytes;

use super::descriptor::{Descriptor, DESCRIPTOR_LEN};
use super::error::BadBatch;
use super::header::{checksum, stored_checksum, BatchHeader, Codec, HEADER_LEN};
use super::record::Record;

/// A checked batch. Cheap to clone; descriptors are read in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchView {
    header: BatchHeader,
    bytes: Bytes,
}

impl BatchView {
    /// Checks header, checksum and table of the batch that `bytes` is. Decompresses nothing.
    ///
    /// # Errors
    /// What is wrong, by name.
    pub fn parse(bytes: Bytes) -> Result<Self, BadBatch> {
        let header = BatchHeader::read(&bytes)?;
        let (stored, computed) = (stored_checksum(&bytes), checksum(&bytes));
        if stored != computed {
            return Err(BadBatch::Checksum { stored, computed });
        }
        Self::checked(header, bytes)
    }

    /// Like [`Self::parse`] without the checksum: for bytes that were checked in this process and stayed in memory.
    ///
    /// # Errors
    /// What is wrong, by name.
    pub fn parse_verified(bytes: Bytes) -> Result<Self, BadBatch> {
        let header = BatchHeader::read(&bytes)?;
        Self::checked(header, bytes)
    }

    fn checked(header: BatchHeader, bytes: Bytes) -> Result<Self, BadBatch> {
        Descriptor::check_table(&bytes[HEADER_LEN..header.records_at()], header.uncompressed)?;
        Ok(Self { header, bytes })
    }

    /// The fixed part.
    #[must_use]
    pub fn header(&self) -> &BatchHeader {
        &self.header
    }

    /// Records in the batch.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.header.count
    }

    /// The whole batch.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Descriptor of record `index`.
    ///
    /// # Panics
    /// If there is no such record.
    #[must_use]
    pub fn descriptor(&self, index: u32) -> Descriptor {
        assert!(index < self.header.count, "record {index} of {}", self.header.count);
        Descriptor::read(&self.bytes, HEADER_LEN + index as usize * DESCRIPTOR_LEN)
    }

    /// All descriptors in order, without allocation.
    pub fn descriptors(&self) -> impl ExactSizeIterator<Item = Descriptor> + '_ {
        self.bytes[HEADER_LEN..self.header.records_at()].chunks_exact(DESCRIPTOR_LEN).map(|d| Descriptor::read(d, 0))
    }

    /// Opens the batch: decompresses at most what the header announced and [`crate::limits`] allow, then decodes
    /// record by record. Payloads share the memory of the batch or of the decompressed section.
    ///
    /// # Errors
    /// The section does not decompress to exactly the announced size.
    pub fn records(&self) -> Result<Records, BadBatch> {
        let section = self.bytes.slice(self.header.records_at()..);
        let section = decompress(self.header.codec, section, self.header.uncompressed as usize)?;
        Ok(Records { batch: self.clone(), section, next: 0, at: 0 })
    }
}

fn decompress(codec: Codec, section: Bytes, size: usize) -> Result<Bytes, BadBatch> {
    let open = || match codec {
        Codec::None => Some(section.clone()),
        Codec::Lz4 => {
            let mut out = vec![0; size];
            let length = lz4_flex::block::decompress_into(&section, &mut out).ok()?;
            (length == size).then(|| Bytes::from(out))
        }
        Codec::Zstd => {
            let out = zstd::bulk::decompress(&section, size).ok()?;
            (out.len() == size).then(|| Bytes::from(out))
        }
    };
    open().ok_or(BadBatch::Malformed("the records section does not decompress to its announced size"))
}

/// Decoding iterator over a batch's records. Ends after the first error.
#[derive(Clone, Debug)]
pub struct Records {
    batch: BatchView,
    section: Bytes,
    next: u32,
    at: usize,
}

impl Records {
    /// Position of the next record in the batch.
    #[must_use]
    pub fn position(&self) -> u32 {
        self.next
    }

    /// Passes over the next record without decoding it.
    pub fn skip_record(&mut self) {
        if self.next < self.batch.count() {
            self.at += self.batch.descriptor(self.next).size as usize;
            self.next += 1;
        }
    }
}

impl Iterator for Records {
    type Item = Result<Record, BadBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next >= self.batch.count() {
            return None;
        }
        let descriptor = self.batch.descriptor(self.next);
        // The table's sizes add up to the section: this slice is inside.
        let bytes = self.section.slice(self.at..self.at + descriptor.size as usize);
        let record = Record::decode(&bytes, self.batch.header().base_time, &descriptor);
        if record.is_ok() {
            self.skip_record();
        } else {
            self.next = self.batch.count();
        }
        Some(record)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let rest = (self.batch.count() - self.next) as usize;
        (0, Some(rest))
    }
}
