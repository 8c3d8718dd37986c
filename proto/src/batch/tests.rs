use bytes::Bytes;
use proptest::prelude::*;

use super::header::seal;
use super::*;
use crate::ids::{Offset, ProducerEpoch, ProducerId, Sequence, Term};
use crate::limits::{BATCH_MAX, BATCH_RECORDS_MAX, KEY_MAX, RECORD_MAX};
use crate::time::LogTime;
use crate::v1::Header;

fn record(value: &'static [u8]) -> Record {
    Record { value: Bytes::from_static(value), ..Record::default() }
}

fn identity() -> BatchIdentity {
    BatchIdentity { producer: ProducerId(7), epoch: ProducerEpoch(2), base_sequence: Sequence(40) }
}

fn batch_of(records: &[Record], options: BatchOptions) -> Bytes {
    let mut builder = BatchBuilder::new(options);
    records.iter().for_each(|record| builder.push(record).unwrap());
    builder.finish(identity())
}

/// The batch with bytes changed and its checksum made right again: only the check of the field itself can notice.
fn with_field(batch: &Bytes, at: usize, bytes: &[u8]) -> Bytes {
    let mut damaged = batch.to_vec();
    damaged[at..at + bytes.len()].copy_from_slice(bytes);
    seal(&mut damaged);
    Bytes::from(damaged)
}

/// Compresses about fourfold.
fn order_lines() -> Bytes {
    (0..400u32).map(|i| format!("{i},order,{},{}\n", i * 7919 % 1000, i * 104_729 % 100_000)).collect::<String>().into()
}

fn any_record() -> impl Strategy<Value = Record> {
    let bytes = |max| prop::collection::vec(any::<u8>(), 0..max).prop_map(Bytes::from);
    let header = (".{0,12}", bytes(20)).prop_map(|(name, value)| Header { name, value });
    let keys = (prop::option::of(bytes(24)), prop::option::of(bytes(24)));
    let times = (any::<i64>(), 0..i64::MAX, 0..i64::MAX);
    (keys, bytes(300), prop::collection::vec(header, 0..4), times).prop_map(
        |((key, idempotency_key), value, headers, (timestamp, created, not_after))| Record {
            key,
            value,
            headers,
            idempotency_key: idempotency_key.filter(|key| !key.is_empty()),
            timestamp: ClientTime(timestamp),
            key_created_at: LogTime(created),
            not_after: LogTime(not_after),
        },
    )
}

fn any_options() -> impl Strategy<Value = BatchOptions> {
    let codec = prop_oneof![Just(Codec::None), Just(Codec::Lz4), Just(Codec::Zstd)];
    let priority = prop_oneof![Just(Priority::Low), Just(Priority::Normal), Just(Priority::Core)];
    (codec, priority, any::<bool>(), any::<u32>(), any::<(u128, u64, u8)>()).prop_map(
        |(codec, priority, all_or_nothing, schema, (trace_id, span_id, flags))| BatchOptions {
            codec,
            priority,
            all_or_nothing,
            schema: SchemaId(schema),
            trace: TraceParent { trace_id, span_id, flags },
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn what_goes_in_comes_out(records in prop::collection::vec(any_record(), 1..20), options in any_options()) {
        let mut builder = BatchBuilder::new(options);
        let mut bound = HEADER_LEN;
        for record in &records {
            builder.push(record).unwrap();
            bound += record.size_bound();
        }
        let size = builder.size();
        prop_assert!(size <= bound, "a record takes at most its announced size");
        let view = BatchView::parse(builder.finish(identity())).unwrap();
        prop_assert!(view.bytes().len() <= size);
        let header = view.header();
        prop_assert_eq!(header.identity, identity());
        prop_assert_eq!(header.end_sequence(), Sequence(40 + records.len() as u64));
        prop_assert_eq!((header.priority, header.all_or_nothing), (options.priority, options.all_or_nothing));
        prop_assert_eq!((header.schema, header.trace), (options.schema, options.trace));
        let read: Vec<Record> = view.records().unwrap().collect::<Result<_, _>>().unwrap();
        prop_assert_eq!(&read, &records);
        for (descriptor, record) in view.descriptors().zip(&records) {
            prop_assert_eq!(descriptor.key.is_none(), record.idempotency_key.is_none());
            prop_assert_eq!(descriptor.record_key.is_none(), record.key.is_none());
            prop_assert_eq!(descriptor.not_after, record.not_after);
        }
    }

    #[test]
    fn no_flipped_bit_and_no_cut_passes(
        records in prop::collection::vec(any_record(), 1..5),
        options in any_options(),
        place in any::<prop::sample::Index>(),
        bit in 0u8..8,
    ) {
        let batch = batch_of(&records, options);
        let mut damaged = batch.to_vec();
        damaged[place.index(batch.len())] ^= 1 << bit;
        prop_assert!(BatchView::parse(Bytes::from(damaged)).is_err());
        prop_assert!(BatchView::parse(batch.slice(..place.index(batch.len()))).is_err());
    }

    #[test]
    fn a_stored_batch_gives_the_visible_records_with_their_offsets(
        records in prop::collection::vec(any_record(), 1..20),
        marks in prop::collection::vec(any::<bool>(), 20),
        base in 0u64..1 << 40,
        place in any::<prop::sample::Index>(),
        bit in 0u8..8,
    ) {
        let batch = batch_of(&records, BatchOptions::default());
        let mut suppressed = Suppressed::default();
        (1..records.len()).filter(|i| marks[*i]).for_each(|i| suppressed.mark(i as u32));
        let prefix = StoredPrefix {
            base_offset: Offset(base),
            epoch: Term(3),
            log_time: LogTime(99),
            count: records.len() as u32,
            visible: records.len() as u32 - suppressed.count(),
            body_len: batch.len() as u32,
        };
        let mut stored = prefix.encode(&suppressed).to_vec();
        stored.extend_from_slice(&batch);
        let length = stored.len();
        stored.extend_from_slice(b"rest");
        let stored = Bytes::from(stored);
        prop_assert_eq!(stored_len(&stored[..STORED_PREFIX_LEN]), Ok(length));
        let (view, rest) = StoredBatchView::parse(&stored).unwrap();
        prop_assert_eq!(&rest[..], b"rest");
        prop_assert_eq!(view.prefix(), &prefix);
        let expected: Vec<_> = (0..records.len())
            .filter(|i| !suppressed.is_marked(*i as u32))
            .enumerate()
            .map(|(n, i)| (Offset(base + n as u64), records[i].clone()))
            .collect();
        prop_assert_eq!(view.end_offset(), Offset(base + expected.len() as u64));
        let read: Vec<_> = view.records().unwrap().collect::<Result<_, _>>().unwrap();
        prop_assert_eq!(read, expected);

        let mut damaged = stored.to_vec();
        damaged[place.index(length)] ^= 1 << bit;
        prop_assert!(StoredBatchView::parse(&Bytes::from(damaged)).is_err());
        prop_assert!(StoredBatchView::parse(&stored.slice(..place.index(length))).is_err());
    }
}

#[test]
fn compressible_records_are_compressed_and_come_back() {
    let value = order_lines();
    let one = Record { value, ..Record::default() };
    for codec in [Codec::Lz4, Codec::Zstd] {
        let batch = batch_of(std::slice::from_ref(&one), BatchOptions { codec, ..BatchOptions::default() });
        let view = BatchView::parse(batch).unwrap();
        assert_eq!(view.header().codec, codec);
        assert!(view.header().section_len() < one.value.len());
        assert_eq!(view.records().unwrap().next(), Some(Ok(one.clone())));
    }
}

#[test]
fn what_would_look_like_a_bomb_is_stored_uncompressed() {
    let one = Record { value: Bytes::from(vec![0; 500_000]), ..Record::default() };
    for codec in [Codec::Lz4, Codec::Zstd] {
        let batch = batch_of(std::slice::from_ref(&one), BatchOptions { codec, ..BatchOptions::default() });
        let view = BatchView::parse(batch).unwrap();
        assert_eq!(view.header().codec, Codec::None);
        assert_eq!(view.records().unwrap().next(), Some(Ok(one.clone())));
    }
}

#[test]
fn a_bomb_is_refused_from_its_header() {
    let value = order_lines();
    let records = [Record { value, ..Record::default() }];
    let batch = batch_of(&records, BatchOptions { codec: Codec::Zstd, ..BatchOptions::default() });
    let section = BatchView::parse(batch.clone()).unwrap().header().section_len() as u32;
    for promised in [section * 16 + 1, 3 * 1024 * 1024 + 1, u32::MAX] {
        let bomb = with_field(&batch, 64, &promised.to_le_bytes());
        assert!(matches!(BatchView::parse(bomb), Err(BadBatch::Bomb { .. })), "{promised}");
    }
    // Within the ratio, but not what the table says.
    let lie = with_field(&batch, 64, &(section + 1).to_le_bytes());
    assert!(matches!(BatchView::parse(lie), Err(BadBatch::Malformed(_))));
}

#[test]
fn a_section_that_is_not_what_the_header_says_is_an_error_for_the_reader_only() {
    let value = order_lines();
    let records = [Record { value, ..Record::default() }];
    for codec in [Codec::Lz4, Codec::Zstd] {
        let batch = batch_of(&records, BatchOptions { codec, ..BatchOptions::default() });
        let garbled = with_field(&batch, HEADER_LEN + DESCRIPTOR_LEN, &[0xff; 40]);
        let opened = BatchView::parse(garbled).unwrap().records();
        assert!(matches!(opened, Err(BadBatch::Malformed(_))), "{codec}");
    }
}

#[test]
fn reserved_features_are_refused_by_name() {
    let batch = batch_of(&[record(b"x")], BatchOptions::default());
    let refused = |at: usize, bytes: &[u8]| BatchView::parse(with_field(&batch, at, bytes)).unwrap_err();
    assert_eq!(refused(20, &8u16.to_le_bytes()), BadBatch::Unsupported("a transaction"));
    assert_eq!(refused(20, &16u16.to_le_bytes()), BadBatch::Unsupported("an attribute of this batch"));
    assert_eq!(refused(68, &1u32.to_le_bytes()), BadBatch::Unsupported("encryption"));
    assert_eq!(refused(72, &[1]), BadBatch::Unsupported("encryption"));
    assert_eq!(refused(22, &[3]), BadBatch::Unsupported("this codec"));
    assert_eq!(refused(4, &2u16.to_le_bytes()), BadBatch::Version(2));
    for reserved in [23, 84, 113, 120, 135] {
        assert_eq!(refused(reserved, &[1]), BadBatch::Unsupported("a reserved field of this batch"), "{reserved}");
    }
    for reserved in [52, 63] {
        let error = refused(HEADER_LEN + reserved, &[1]);
        assert_eq!(error, BadBatch::Unsupported("a reserved field of a record"));
    }
    assert_eq!(BadBatch::Version(2).refusal("t/0").reason, crate::refusal::Reason::UnsupportedVersion);
}

#[test]
fn limits_of_a_record_are_checked_when_it_is_pushed() {
    let mut builder = BatchBuilder::default();
    let long = Bytes::from(vec![1; KEY_MAX + 1]);
    let keyed = Record { key: Some(long.clone()), ..Record::default() };
    assert!(matches!(builder.push(&keyed), Err(BadRecord::KeyTooLong { which: "record key", .. })));
    let keyed = Record { idempotency_key: Some(long), ..Record::default() };
    assert!(matches!(builder.push(&keyed), Err(BadRecord::KeyTooLong { which: "idempotency key", .. })));
    let large = Record { value: Bytes::from(vec![1; RECORD_MAX]), ..Record::default() };
    assert!(matches!(builder.push(&large), Err(BadRecord::TooLarge(_))));
    let fits = Record { value: Bytes::from(vec![1; RECORD_MAX - 64]), ..Record::default() };
    builder.push(&fits).unwrap();
    builder.push(&fits).unwrap();
    assert_eq!(builder.push(&fits), Err(BadRecord::BatchFull), "three of them are more than a batch");
    assert_eq!(builder.count(), 2, "a refused record leaves the batch as it was");
    let batch = builder.finish(identity());
    assert!(batch.len() <= BATCH_MAX);
    assert!(BatchView::parse(batch).is_ok());
}

#[test]
fn a_batch_takes_no_more_records_than_the_limit() {
    let (mut builder, small) = (BatchBuilder::default(), record(b""));
    for _ in 0..BATCH_RECORDS_MAX {
        builder.push(&small).unwrap();
    }
    assert_eq!(builder.push(&small), Err(BadRecord::BatchFull));
    assert_eq!(BatchView::parse(builder.finish(identity())).unwrap().count() as usize, BATCH_RECORDS_MAX);
}

#[test]
fn a_record_above_the_limit_is_seen_without_opening_the_batch() {
    let batch = batch_of(&[record(b"abc")], BatchOptions::default());
    let large = with_field(&batch, HEADER_LEN + 48, &(RECORD_MAX as u32 + 1).to_le_bytes());
    let error = BatchView::parse(large).unwrap_err();
    assert!(matches!(error, BadBatch::RecordTooLarge { index: 0, .. }));
    assert_eq!(error.refusal("t/0").reason, crate::refusal::Reason::TooLarge);
}

#[test]
fn an_anonymous_batch_has_no_sequence() {
    let batch = batch_of(&[record(b"abc")], BatchOptions::default());
    assert!(with_identity(&batch, BatchIdentity::default()).is_ok());
    let odd = BatchIdentity { base_sequence: Sequence(1), ..BatchIdentity::default() };
    assert!(matches!(with_identity(&batch, odd), Err(BadBatch::Malformed(_))));
}

#[test]
fn another_identity_keeps_the_records() {
    let records = [record(b"abc"), record(b"d")];
    let batch = batch_of(&records, BatchOptions::default());
    let raised = BatchIdentity { epoch: ProducerEpoch(3), base_sequence: Sequence(0), ..identity() };
    let view = BatchView::parse(with_identity(&batch, raised).unwrap()).unwrap();
    assert_eq!(view.header().identity, raised);
    assert_eq!(view.records().unwrap().collect::<Result<Vec<_>, _>>().unwrap(), records);
}

/// The bytes of one small batch, so that a change of the format cannot pass unnoticed (`docs/format.md` explains it).
#[test]
fn the_format_is_what_was_released() {
    let one = Record {
        key: Some(Bytes::from_static(b"AAPL")),
        value: Bytes::from_static(b"buy 100"),
        idempotency_key: Some(Bytes::from_static(b"gw-3:17")),
        headers: vec![Header { name: "h".into(), value: Bytes::from_static(b"v") }],
        timestamp: ClientTime(1_700_000_000_000_000),
        ..Record::default()
    };
    let batch = batch_of(&[one], BatchOptions::default());
    let hex: String = batch.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, include_str!("released_v1.hex").split_whitespace().collect::<String>());
}
