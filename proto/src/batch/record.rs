//! One record: what an application publishes and reads, and its bytes in the records section.

use bytes::Bytes;

use super::descriptor::{Descriptor, DESCRIPTOR_LEN};
use super::error::{BadBatch, BadRecord};
use super::header::ClientTime;
use crate::hash::{key_hash, payload_hash, record_key_hash, PayloadHash};
use crate::le::{get_varint, len_u32, put_varint, unzigzag, varint_len, zigzag};
use crate::limits::{HEADERS_MAX, KEY_MAX, RECORD_MAX};
use crate::time::LogTime;
use crate::v1::Header;

const HAS_KEY: u8 = 1;
const HAS_IDEMPOTENCY_KEY: u8 = 2;

/// One record in the clear. All byte fields are cheap to clone.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    /// Record key: chooses the partition and the order.
    pub key: Option<Bytes>,
    /// Payload.
    pub value: Bytes,
    /// Headers, in order; names may repeat.
    pub headers: Vec<Header>,
    /// Idempotency key. An empty one counts as none.
    pub idempotency_key: Option<Bytes>,
    /// Client's clock.
    pub timestamp: ClientTime,
    /// When the application made the idempotency key (I7); zero = not said.
    pub key_created_at: LogTime,
    /// Refuse if log time is later (I7); zero = never.
    pub not_after: LogTime,
}

impl Record {
    /// Bytes that the record takes in a batch at most, its descriptor included. Cheap: nothing is hashed.
    #[must_use]
    pub fn size_bound(&self) -> usize {
        // Ten bytes are the longest timestamp difference.
        DESCRIPTOR_LEN + self.section_len(0) - 1 + 10
    }

    /// Checks the limits of a single record.
    ///
    /// # Errors
    /// Key or record too long, too many headers.
    pub fn check(&self) -> Result<(), BadRecord> {
        let keys = [("record key", &self.key), ("idempotency key", &self.idempotency_key)];
        for (which, key) in keys {
            let length = key.as_ref().map_or(0, Bytes::len);
            if length > KEY_MAX {
                return Err(BadRecord::KeyTooLong { which, length });
            }
        }
        if self.headers.len() > HEADERS_MAX {
            return Err(BadRecord::TooManyHeaders(self.headers.len()));
        }
        let size = self.size_bound() - DESCRIPTOR_LEN;
        if size > RECORD_MAX {
            return Err(BadRecord::TooLarge(size));
        }
        Ok(())
    }

    pub(super) fn idempotency_key(&self) -> Option<&Bytes> {
        self.idempotency_key.as_ref().filter(|key| !key.is_empty())
    }

    /// Its descriptor, `size` bytes long in the section.
    pub(super) fn descriptor(&self, size: usize) -> Descriptor {
        let key = self.idempotency_key();
        Descriptor {
            key: key.map(|key| key_hash(key)).unwrap_or_default(),
            record_key: self.key.as_ref().map(|key| record_key_hash(key)).unwrap_or_default(),
            // Only needed to tell a repeated key from a conflict.
            payload: key.map_or(PayloadHash::NONE, |_| payload_hash(self.key.as_deref(), &self.value)),
            key_created_at: self.key_created_at,
            not_after: self.not_after,
            size: len_u32(size),
        }
    }

    fn section_len(&self, delta: i64) -> usize {
        let prefixed = |length: usize| varint_len(length as u64) + length;
        let headers: usize = self.headers.iter().map(|h| prefixed(h.name.len()) + prefixed(h.value.len())).sum();
        1 + varint_len(zigzag(delta))
            + self.key.as_ref().map_or(0, |key| prefixed(key.len()))
            + self.idempotency_key().map_or(0, |key| prefixed(key.len()))
            + varint_len(self.headers.len() as u64)
            + headers
            + prefixed(self.value.len())
    }

    /// Appends the record to a records section whose base time is `base`.
    pub(super) fn encode(&self, base: ClientTime, out: &mut Vec<u8>) {
        let idempotency_key = self.idempotency_key();
        let flags =
            self.key.as_ref().map_or(0, |_| HAS_KEY) | idempotency_key.as_ref().map_or(0, |_| HAS_IDEMPOTENCY_KEY);
        out.push(flags);
        put_varint(out, zigzag(self.timestamp.0.wrapping_sub(base.0)));
        for key in [self.key.as_ref(), idempotency_key].into_iter().flatten() {
            put_bytes(out, key);
        }
        put_varint(out, self.headers.len() as u64);
        for header in &self.headers {
            put_bytes(out, header.name.as_bytes());
            put_bytes(out, &header.value);
        }
        put_bytes(out, &self.value);
    }

    /// Reads the record that is exactly `bytes`; slices share its memory.
    pub(super) fn decode(bytes: &Bytes, base: ClientTime, descriptor: &Descriptor) -> Result<Self, BadBatch> {
        const CUT: BadBatch = BadBatch::Malformed("a record is cut off");
        let mut at = 0;
        let flags = *bytes.first().ok_or(CUT)?;
        at += 1;
        if flags & !(HAS_KEY | HAS_IDEMPOTENCY_KEY) != 0 {
            return Err(BadBatch::Unsupported("a flag of a record"));
        }
        let delta = unzigzag(get_varint(bytes, &mut at).ok_or(CUT)?);
        let key = (flags & HAS_KEY != 0).then(|| take(bytes, &mut at).ok_or(CUT)).transpose()?;
        let idempotency_key =
            (flags & HAS_IDEMPOTENCY_KEY != 0).then(|| take(bytes, &mut at).ok_or(CUT)).transpose()?;
        let count = get_varint(bytes, &mut at).ok_or(CUT)?;
        if count > HEADERS_MAX as u64 {
            return Err(BadBatch::Malformed("too many headers"));
        }
        let mut headers = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let name = take(bytes, &mut at).ok_or(CUT)?;
            let name =
                String::from_utf8(name.to_vec()).map_err(|_| BadBatch::Malformed("a header name is not UTF-8"))?;
            headers.push(Header { name, value: take(bytes, &mut at).ok_or(CUT)? });
        }
        let value = take(bytes, &mut at).ok_or(CUT)?;
        if at != bytes.len() {
            return Err(BadBatch::Malformed("bytes after a record"));
        }
        Ok(Self {
            key,
            value,
            headers,
            idempotency_key,
            timestamp: ClientTime(base.0.wrapping_add(delta)),
            key_created_at: descriptor.key_created_at,
            not_after: descriptor.not_after,
        })
    }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn take(bytes: &Bytes, at: &mut usize) -> Option<Bytes> {
    let length = usize::try_from(get_varint(bytes, at)?).ok()?;
    let end = at.checked_add(length).filter(|end| *end <= bytes.len())?;
    let part = bytes.slice(*at..end);
    *at = end;
    Some(part)
}
