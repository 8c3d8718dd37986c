//! The `records` form, for clients that have nothing but the `.proto` files: the server builds or opens the batch.

use bytes::Bytes;
use quorate_proto::batch::StoredBatchView;
use quorate_proto::batch::{BatchBuilder, BatchIdentity, BatchOptions, BatchView, ClientTime, Priority, Record};
use quorate_proto::ids::{Offset, ProducerEpoch, ProducerId, Sequence};
use quorate_proto::refusal::{Reason, Refusal};
use quorate_proto::time::LogTime;
use quorate_proto::v1;

/// Builds the batch of records in the clear.
pub(super) fn build(records: v1::Records, subject: &str) -> Result<BatchView, Refusal> {
    let invalid = |what: &str, action: &str| Refusal::new(Reason::InvalidArgument, what, subject, action);
    if records.records.is_empty() {
        return Err(invalid("there is no record to publish", "send at least one record"));
    }
    let priority = match records.priority() {
        v1::Priority::Normal => Priority::Normal,
        v1::Priority::Low => Priority::Low,
        v1::Priority::Core => Priority::Core,
    };
    let identity = if records.producer_id.is_empty() {
        // A one-time producer: only an idempotency key protects a retry.
        BatchIdentity {
            producer: ProducerId(rand::random()),
            epoch: ProducerEpoch::ZERO,
            base_sequence: Sequence::ZERO,
        }
    } else {
        let producer = ProducerId::from_slice(&records.producer_id)
            .filter(|id| *id != ProducerId::NONE)
            .ok_or_else(|| invalid("producer_id is not 16 bytes, or all zero", "send 16 random bytes, or none"))?;
        BatchIdentity {
            producer,
            epoch: ProducerEpoch(records.producer_epoch),
            base_sequence: Sequence(records.base_sequence),
        }
    };
    let mut builder = BatchBuilder::new(BatchOptions { priority, ..BatchOptions::default() });
    for record in records.records {
        let record = Record {
            key: record.key,
            value: record.value,
            headers: record.headers,
            idempotency_key: Some(record.idempotency_key).filter(|key| !key.is_empty()),
            timestamp: ClientTime(record.timestamp_us),
            key_created_at: LogTime(record.key_created_at_us),
            not_after: LogTime(record.not_after_us),
        };
        builder.push(&record).map_err(|bad| bad.refusal(subject))?;
    }
    BatchView::parse_verified(builder.finish(identity)).map_err(|bad| bad.refusal(subject))
}

/// Opens stored batches; only records from `offset` on come out, and batches beyond `max` bytes wait for the next
/// fetch. Yields the records and the offset after them.
pub(super) fn open(
    stored: &Bytes,
    offset: Offset,
    max: usize,
    subject: &str,
) -> Result<(v1::Records, Offset), Refusal> {
    let damaged = |bad: quorate_proto::batch::BadBatch| {
        Refusal::new(
            Reason::Corrupt,
            bad.to_string(),
            subject,
            "fetch again; if it stays, the replica must be repaired",
        )
    };
    let mut out = v1::Records::default();
    let mut rest = stored.clone();
    let mut bytes = 0;
    let mut next = offset;
    while !rest.is_empty() {
        let (view, after) = StoredBatchView::parse(&rest).map_err(damaged)?;
        rest = after;
        let size = view.batch().header().uncompressed as usize;
        if !out.records.is_empty() && bytes + size > max {
            break;
        }
        bytes += size;
        for record in view.records().map_err(damaged)? {
            let (at, record) = record.map_err(damaged)?;
            if at >= offset {
                out.records.push(shown(at, view.prefix().log_time, record));
            }
        }
        next = view.end_offset();
    }
    Ok((out, next))
}

fn shown(offset: Offset, log_time: LogTime, record: Record) -> v1::Record {
    v1::Record {
        key: record.key,
        value: record.value,
        headers: record.headers,
        idempotency_key: record.idempotency_key.unwrap_or_default(),
        timestamp_us: record.timestamp.0,
        key_created_at_us: record.key_created_at.0,
        not_after_us: record.not_after.0,
        offset: offset.get(),
        log_time_us: log_time.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_proto::batch::{StoredPrefix, Suppressed};
    use quorate_proto::ids::Term;

    fn record(value: &'static [u8]) -> v1::Record {
        v1::Record {
            key: Some(Bytes::from_static(b"k")),
            value: Bytes::from_static(value),
            idempotency_key: Bytes::from_static(value),
            ..v1::Record::default()
        }
    }

    fn stored(base: u64, values: &[&'static [u8]]) -> Bytes {
        let records = v1::Records { records: values.iter().map(|v| record(v)).collect(), ..v1::Records::default() };
        let batch = build(records, "t/0").unwrap();
        let prefix = StoredPrefix {
            base_offset: Offset(base),
            epoch: Term(3),
            log_time: LogTime(99),
            count: batch.count(),
            visible: batch.count(),
            body_len: u32::try_from(batch.bytes().len()).unwrap(),
        };
        [&prefix.encode(&Suppressed::default())[..], &batch.bytes()[..]].concat().into()
    }

    #[test]
    fn records_come_back_from_the_offset_asked_for() {
        let bytes: Bytes = [stored(10, &[b"a", b"b", b"c"]), stored(13, &[b"d"])].concat().into();
        let (records, next) = open(&bytes, Offset(11), 1 << 20, "t/0").unwrap();
        let seen: Vec<_> = records.records.iter().map(|r| (r.offset, &r.value[..])).collect();
        assert_eq!(seen, [(11, &b"b"[..]), (12, b"c"), (13, b"d")]);
        assert_eq!(next, Offset(14));
        assert_eq!(records.records[0].log_time_us, 99);
    }

    #[test]
    fn a_batch_beyond_the_limit_waits_for_the_next_fetch() {
        let bytes: Bytes = [stored(0, &[b"a"]), stored(1, &[b"b"])].concat().into();
        let (records, next) = open(&bytes, Offset(0), 1, "t/0").unwrap();
        assert_eq!((records.records.len(), next), (1, Offset(1)));
    }

    #[test]
    fn no_records_and_a_bad_producer_are_refused() {
        assert_eq!(build(v1::Records::default(), "t/0").unwrap_err().reason, Reason::InvalidArgument);
        let records = v1::Records {
            producer_id: Bytes::from_static(b"short"),
            records: vec![record(b"x")],
            ..v1::Records::default()
        };
        assert_eq!(build(records, "t/0").unwrap_err().reason, Reason::InvalidArgument);
    }
}
