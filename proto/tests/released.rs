//! Bytes as version 1 wrote them: a change of a format cannot pass unnoticed, and what was written stays readable.

#![allow(clippy::unwrap_used)] // A panic is how a test fails.

use bytes::Bytes;
use quorate_proto::batch::{
    BatchBuilder, BatchIdentity, BatchOptions, Record, StoredBatchView, StoredPrefix, Suppressed,
};
use quorate_proto::entry::{BatchMeta, EntryBuilder, EntryTime, EntryView, FEATURE_LEVEL};
use quorate_proto::file_header::{FileHeader, FileKind};
use quorate_proto::hash::{key_hash, payload_hash};
use quorate_proto::ids::{LogIndex, Offset, OperationId, ProducerEpoch, ProducerId, Sequence, Term};
use quorate_proto::key_run::{self, KeyItem, KeyRun};
use quorate_proto::time::LogTime;

const TIME: LogTime = LogTime(1_700_000_000_000_000);

fn released(name: &str) -> Bytes {
    let text = include_str!("released_v1.txt");
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} "))).expect("every name has a line");
    (0..line.len() / 2).map(|i| u8::from_str_radix(&line[2 * i..2 * i + 2], 16).unwrap()).collect::<Vec<_>>().into()
}

#[track_caller]
fn same(name: &str, written: &[u8]) {
    let hex: String = written.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(released(name) == written, "{name} is written differently now:\n{name} {hex}");
}

fn batch() -> Bytes {
    let mut builder = BatchBuilder::new(BatchOptions::default());
    for value in [&b"buy 100"[..], b"sell 100"] {
        let record = Record {
            key: Some(Bytes::from_static(b"AAPL")),
            value: Bytes::from_static(value),
            idempotency_key: Some(Bytes::copy_from_slice(value)),
            ..Record::default()
        };
        builder.push(&record).unwrap();
    }
    let identity = BatchIdentity { producer: ProducerId(9), epoch: ProducerEpoch(1), base_sequence: Sequence(4) };
    builder.finish(identity)
}

#[test]
fn entries_are_as_released() {
    let meta = BatchMeta {
        principal: Bytes::from_static(b"anonymous@127.0.0.1"),
        client_id: Bytes::from_static(b"gw-3"),
        connection: 5,
        operation: OperationId(6),
        received: TIME,
        ..BatchMeta::default()
    };
    let mut builder = EntryBuilder::new();
    builder.push(meta.clone(), batch());
    let time = EntryTime { log_time: TIME, leapt: true, accepted: false };
    same("entry", &builder.finish(time, FEATURE_LEVEL));
    same("trim", &EntryBuilder::trim(Offset(77), TIME, FEATURE_LEVEL));
    let read = EntryView::parse(released("entry")).unwrap();
    assert_eq!(read.time(), time);
    assert_eq!(read.batches().next().map(|part| (part.meta, part.batch)), Some((meta, batch())));
}

#[test]
fn stored_batches_are_as_released() {
    let mut suppressed = Suppressed::default();
    suppressed.mark(0);
    let body = batch();
    let prefix = StoredPrefix {
        base_offset: Offset(1000),
        epoch: Term(3),
        log_time: TIME,
        count: 2,
        visible: 1,
        body_len: body.len() as u32,
    };
    same("stored", &[prefix.encode(&suppressed), body].concat());
    let (read, rest) = StoredBatchView::parse(&released("stored")).unwrap();
    assert!(rest.is_empty());
    let records: Vec<_> = read.records().unwrap().map(Result::unwrap).collect();
    assert_eq!(records.len(), 1);
    assert_eq!((records[0].0, &records[0].1.value[..]), (Offset(1000), &b"sell 100"[..]));
}

#[test]
fn key_runs_and_file_headers_are_as_released() {
    let item = KeyItem { key: key_hash(b"k"), payload: payload_hash(Some(b"AAPL"), b"buy 100"), offset: Offset(8) };
    same("keys", &key_run::encode(LogIndex(12), TIME, &[item]));
    assert_eq!(KeyRun::parse(&released("keys")).unwrap().0.items().next(), Some(item));
    for kind in FileKind::ALL {
        let name = format!("{kind:?}");
        same(&name, &FileHeader::current(kind).encode());
        assert!(FileHeader::parse(kind, &released(&name)).is_ok());
    }
}
