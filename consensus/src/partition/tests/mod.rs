//! What the machine promises, sentence by sentence.

mod history;
mod identity;
mod key_window;

use bytes::Bytes;
use quorate_proto::batch::{BatchBuilder, BatchIdentity, BatchOptions, BatchView, Record, StoredBatchView};
use quorate_proto::entry::{BatchMeta, EntryBuilder, EntryTime, EntryView, FEATURE_LEVEL};
use quorate_proto::ids::{LogIndex, Offset, ProducerEpoch, ProducerId, Sequence, Term};
use quorate_proto::refusal::{Reason, Refusal};
use quorate_proto::time::LogTime;
use quorate_proto::v1::{record_exception, Receipt};

use super::*;

const START: (LogIndex, Term) = (LogIndex(5), Term(1));
const SECOND: i64 = 1_000_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;
/// Some Tuesday.
const T0: i64 = 1_700_000_000 * SECOND;

fn partition() -> Partition {
    Partition::new("default/orders/0", START)
}

fn small(keys_min: usize, keys_max: usize, producers_max: usize) -> Partition {
    Partition::with_limits("default/orders/0", START, PartitionLimits { keys_min, keys_max, producers_max })
}

fn plain(value: &str) -> Record {
    Record { value: Bytes::copy_from_slice(value.as_bytes()), ..Record::default() }
}

fn keyed(key: &str, value: &str) -> Record {
    Record { idempotency_key: Some(Bytes::copy_from_slice(key.as_bytes())), ..plain(value) }
}

fn batch(id: (u128, u32, u64), records: &[Record]) -> Bytes {
    batch_with(id, records, false)
}

fn batch_with((producer, epoch, base): (u128, u32, u64), records: &[Record], all_or_nothing: bool) -> Bytes {
    let mut builder = BatchBuilder::new(BatchOptions { all_or_nothing, ..BatchOptions::default() });
    records.iter().for_each(|record| builder.push(record).unwrap());
    builder.finish(BatchIdentity {
        producer: ProducerId(producer),
        epoch: ProducerEpoch(epoch),
        base_sequence: Sequence(base),
    })
}

fn entry(time: impl Into<EntryTime>, batches: &[Bytes]) -> EntryView {
    let mut builder = EntryBuilder::new();
    batches.iter().for_each(|batch| builder.push(BatchMeta::default(), batch.clone()));
    EntryView::parse(builder.finish(time, FEATURE_LEVEL)).unwrap()
}

/// Applies one entry with these batches, one second after the last.
fn apply(machine: &mut Partition, batches: &[Bytes]) -> Applied {
    let time = machine.log_time.0.max(T0) + SECOND;
    apply_at(machine, LogTime(time), batches)
}

fn apply_at(machine: &mut Partition, time: impl Into<EntryTime>, batches: &[Bytes]) -> Applied {
    let index = machine.applied().0.next();
    machine.apply(index, Term(3), &entry(time, batches)).unwrap()
}

/// The outcome of a single batch.
fn publish(machine: &mut Partition, id: (u128, u32, u64), records: &[Record]) -> BatchOutcome {
    apply(machine, &[batch(id, records)]).outcomes.remove(0)
}

fn header(bytes: &Bytes) -> BatchHeader {
    *BatchView::parse(bytes.clone()).unwrap().header()
}

/// Exceptions as (index, duplicate offset or reason).
fn exceptions(receipt: &Receipt) -> Vec<(u32, Result<u64, Reason>)> {
    receipt
        .exceptions
        .iter()
        .map(|e| match e.kind.as_ref().unwrap() {
            record_exception::Kind::DuplicateOf(offset) => (e.index, Ok(*offset)),
            record_exception::Kind::Refused(error) => (e.index, Err(error.reason())),
        })
        .collect()
}

fn refusal(outcome: BatchOutcome) -> Refusal {
    outcome.unwrap_err()
}

/// Everything that the entry stored, read back through the format.
fn read_back(applied: &Applied) -> Vec<(Offset, String)> {
    let mut out = Vec::new();
    for part in &applied.entry.batches {
        let mut bytes = part.prefix.to_vec();
        bytes.extend_from_slice(&part.body);
        let (view, rest) = StoredBatchView::parse(&Bytes::from(bytes)).unwrap();
        assert!(rest.is_empty());
        assert_eq!((view.base_offset(), view.end_offset()), (part.base_offset, part.end_offset));
        assert_eq!(view.prefix().log_time, applied.entry.log_time);
        assert_eq!(view.prefix().epoch, applied.entry.term);
        for record in view.records().unwrap() {
            let (offset, record) = record.unwrap();
            out.push((offset, String::from_utf8(record.value.to_vec()).unwrap()));
        }
    }
    out
}

#[test]
fn records_get_offsets_in_order_without_gaps() {
    let mut machine = partition();
    let applied = apply(&mut machine, &[batch((1, 0, 0), &[plain("a"), plain("b")]), batch((2, 0, 0), &[plain("c")])]);
    assert_eq!(read_back(&applied), [(Offset(0), "a".into()), (Offset(1), "b".into()), (Offset(2), "c".into())]);
    assert_eq!(machine.high_watermark(), Offset(3));
    let receipt = applied.outcomes[1].as_ref().unwrap();
    assert_eq!((receipt.base_offset, receipt.count, receipt.epoch), (2, 1, 3));
    assert_eq!(receipt.log_time_us, machine.log_time().0);
    assert!(receipt.exceptions.is_empty() && receipt.offsets_known && !receipt.duplicate_batch);
}

#[test]
fn log_time_never_goes_back() {
    let mut machine = partition();
    apply_at(&mut machine, LogTime(T0 + 10), &[batch((1, 0, 0), &[plain("a")])]);
    let applied = apply_at(&mut machine, LogTime(T0), &[batch((1, 0, 1), &[plain("b")])]);
    assert_eq!(applied.entry.log_time, LogTime(T0 + 10));
}

#[test]
fn an_entry_out_of_order_stops_the_replica() {
    let mut machine = partition();
    let one = entry(LogTime(T0), &[batch((1, 0, 0), &[plain("a")])]);
    let error = machine.apply(LogIndex(7), Term(3), &one).unwrap_err();
    assert_eq!(error, ApplyError::Gap { expected: LogIndex(6), found: LogIndex(7) });
    assert!(machine.apply_empty(LogIndex(5), Term(3)).is_err());
    machine.apply_empty(LogIndex(6), Term(3)).unwrap();
    machine.apply(LogIndex(7), Term(3), &one).unwrap();
    assert_eq!(machine.applied(), (LogIndex(7), Term(3)));
}

#[test]
fn a_damaged_copy_of_a_batch_stops_the_replica() {
    let mut machine = partition();
    let mut damaged = batch((1, 0, 0), &[plain("a")]).to_vec();
    *damaged.last_mut().unwrap() ^= 1;
    let damaged = entry(LogTime(T0), &[Bytes::from(damaged)]);
    let error = machine.apply(LogIndex(6), Term(3), &damaged).unwrap_err();
    assert!(matches!(error, ApplyError::Damaged { index: LogIndex(6), batch: 0, .. }));
}

#[test]
fn a_kind_that_is_not_supported_yet_stops_the_replica() {
    // Kind `positions`, well formed: header, no metadata.
    let mut bytes = vec![0; 32];
    (bytes[0], bytes[1], bytes[8]) = (1, 2, 1);
    let crc = crc32c_of(&bytes);
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    let view = EntryView::parse(Bytes::from(bytes)).unwrap();
    let error = partition().apply(LogIndex(6), Term(3), &view).unwrap_err();
    assert!(matches!(error, ApplyError::Unsupported { kind: quorate_proto::entry::EntryKind::Positions, .. }));
}

/// Bitwise CRC32C over header bytes 0..4 and 8..32, written down again to check the documented layout.
fn crc32c_of(bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    for byte in bytes[..4].iter().chain(&bytes[8..]) {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    !crc
}

#[test]
fn the_low_watermark_moves_by_trim_entries_only_and_never_past_the_end_or_back() {
    let mut machine = partition();
    apply(&mut machine, &[batch((1, 0, 0), &[plain("a"), plain("b"), plain("c")])]);
    assert_eq!(machine.low_watermark(), Offset(0));
    for (wanted, expected) in [(2, 2), (1, 2), (99, 3)] {
        let trim = EntryView::parse(EntryBuilder::trim(Offset(wanted), machine.log_time(), FEATURE_LEVEL)).unwrap();
        let applied = machine.apply(machine.applied().0.next(), Term(3), &trim).unwrap();
        assert!(applied.outcomes.is_empty() && applied.entry.batches.is_empty());
        assert_eq!(machine.low_watermark(), Offset(expected));
    }
}

#[test]
fn the_digest_depends_on_what_was_stored_and_where_and_on_nothing_else() {
    let (mut one, mut two, mut other) = (partition(), partition(), partition());
    assert_eq!(one.digest(), Digest::default());
    let first = batch((1, 0, 0), &[keyed("k", "a")]);
    apply(&mut one, std::slice::from_ref(&first));
    apply(&mut two, std::slice::from_ref(&first));
    assert_eq!(one.digest(), two.digest());
    let before = two.digest();
    apply(&mut two, &[batch((2, 0, 0), &[keyed("k", "a")]), batch((1, 0, 9), &[plain("out of sequence")])]);
    two.apply_empty(two.applied().0.next(), Term(4)).unwrap();
    assert_eq!(two.digest(), before, "nothing was stored");
    apply(&mut other, &[batch((1, 0, 0), &[keyed("k", "b")])]);
    assert_ne!(other.digest(), one.digest());
    assert_eq!(Digest::from_slice(&before.to_bytes()), Some(before));
    assert_eq!(before.to_string().len(), 64);
}
