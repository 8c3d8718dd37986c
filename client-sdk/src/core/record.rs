//! What an application publishes.

use bytes::Bytes;
use quorate_proto::batch;
use quorate_proto::time::LogTime;

pub use quorate_proto::batch::Priority;

/// One message to publish. Cheap to clone: keys and payload are shared [`Bytes`].
///
/// ```
/// # use quorate_client::Record;
/// let record = Record::new("10 pieces at 42.00").key("order-7").idempotency_key("order-7:1").header("source", "gw-3");
/// assert_eq!(record.value(), "10 pieces at 42.00".as_bytes());
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    pub(crate) content: batch::Record,
    pub(crate) priority: Priority,
}

impl Record {
    /// A record with this payload, without keys.
    #[must_use]
    pub fn new(value: impl Into<Bytes>) -> Self {
        let content = batch::Record { value: value.into(), ..batch::Record::default() };
        Self { content, priority: Priority::Normal }
    }

    /// Record key: chooses the partition, and with it the order. At most 64 KiB.
    #[must_use]
    pub fn key(mut self, key: impl Into<Bytes>) -> Self {
        self.content.key = Some(key.into());
        self
    }

    /// Idempotency key: a second record with it (same partition, inside the key window of 24 h) is suppressed and
    /// answered with the first result (protocol I7). At most 64 KiB; a producer refuses an empty one
    /// (`INVALID_ARGUMENT`): whoever means no key calls this not at all.
    #[must_use]
    pub fn idempotency_key(mut self, key: impl Into<Bytes>) -> Self {
        self.content.idempotency_key = Some(key.into());
        self
    }

    /// When the idempotency key was made. Older than the key window's horizon: refused `KEY_TOO_OLD`, so a late
    /// repeat cannot become a second record.
    #[must_use]
    pub fn key_created_at(mut self, at: LogTime) -> Self {
        self.content.key_created_at = at;
        self
    }

    /// Refused `EXPIRED` if the log time at which it would be appended is later than this.
    #[must_use]
    pub fn not_after(mut self, at: LogTime) -> Self {
        self.content.not_after = at;
        self
    }

    /// Adds a header. Headers take no part in the payload hash that tells a repeat from a conflict.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Bytes>) -> Self {
        let header = quorate_proto::v1::Header { name: name.into(), value: value.into() };
        self.content.headers.push(header);
        self
    }

    /// Who is admitted first when a node is overloaded. Never changes the order of records.
    #[must_use]
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// The application's own time stamp, microseconds since the Unix epoch. The client's wall clock if not given.
    #[must_use]
    pub fn timestamp(mut self, at: LogTime) -> Self {
        self.content.timestamp = batch::ClientTime(at.0);
        self
    }

    /// The payload.
    #[must_use]
    pub fn value(&self) -> &Bytes {
        &self.content.value
    }

    /// The record key.
    #[must_use]
    pub fn record_key(&self) -> Option<&Bytes> {
        self.content.key.as_ref()
    }

    /// Bytes that this record takes in a batch and in the producer's buffer: an upper bound, exact to a few bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.content.size_bound()
    }
}
