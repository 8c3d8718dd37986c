use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::limits::BATCH_MAX;

fn any_meta() -> impl Strategy<Value = BatchMeta> {
    let bytes = |max| prop::collection::vec(any::<u8>(), 0..max).prop_map(Bytes::from);
    let priority = prop_oneof![Just(Priority::Low), Just(Priority::Normal), Just(Priority::Core)];
    (bytes(40), bytes(40), any::<u64>(), priority, any::<u128>(), any::<i64>()).prop_map(
        |(principal, client_id, connection, priority, operation, received)| BatchMeta {
            principal,
            client_id,
            connection,
            priority,
            operation: OperationId(operation),
            received: LogTime(received),
        },
    )
}

fn any_entry() -> impl Strategy<Value = (Vec<(BatchMeta, Bytes)>, EntryTime, Bytes)> {
    let body = prop::collection::vec(any::<u8>(), 0..200).prop_map(Bytes::from);
    let time = (any::<i64>(), any::<bool>(), any::<bool>()).prop_map(|(time, leapt, accepted)| EntryTime {
        log_time: LogTime(time),
        leapt,
        accepted,
    });
    (prop::collection::vec((any_meta(), body), 1..8), time).prop_map(|(batches, time)| {
        let mut builder = EntryBuilder::new();
        batches.iter().for_each(|(meta, body)| builder.push(meta.clone(), body.clone()));
        let size = builder.size();
        let bytes = builder.finish(time, FEATURE_LEVEL);
        assert_eq!(bytes.len(), size, "the size was known before");
        (batches, time, bytes)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn what_goes_in_comes_out_as_slices_of_the_entry((batches, time, bytes) in any_entry()) {
        let view = EntryView::parse(bytes.clone()).unwrap();
        prop_assert_eq!((view.kind(), view.time(), view.level()), (EntryKind::Batches, time, FEATURE_LEVEL));
        let read: Vec<EntryBatch> = view.batches().collect();
        prop_assert_eq!(read.len(), batches.len());
        let inside = bytes.as_ptr_range();
        for (part, (meta, body)) in read.iter().zip(&batches) {
            prop_assert_eq!((&part.meta, &part.batch), (meta, body));
            prop_assert!(body.is_empty() || inside.contains(&part.batch.as_ptr()));
        }
    }

    #[test]
    fn damage_outside_the_batches_is_noticed((_, _, bytes) in any_entry(), place in any::<prop::sample::Index>(), bit in 0u8..8) {
        let head = EntryView::parse(bytes.clone()).unwrap().meta_end;
        let mut damaged = bytes.to_vec();
        damaged[place.index(head)] ^= 1 << bit;
        prop_assert!(EntryView::parse(Bytes::from(damaged)).is_err());
        prop_assert!(EntryView::parse(bytes.slice(..place.index(bytes.len()))).is_err());
        let mut longer = bytes.to_vec();
        longer.push(0);
        prop_assert!(EntryView::parse(Bytes::from(longer)).is_err());
    }
}

fn resealed(bytes: &Bytes, at: usize, value: &[u8]) -> Bytes {
    let mut out = bytes.to_vec();
    out[at..at + value.len()].copy_from_slice(value);
    let head = ENTRY_HEADER_LEN + u32_at(&out, 24) as usize;
    let crc = checksum(&out[..head]);
    out[4..8].copy_from_slice(&crc.to_le_bytes());
    Bytes::from(out)
}

fn small() -> Bytes {
    let mut builder = EntryBuilder::new();
    builder.push(BatchMeta::default(), Bytes::from_static(b"body"));
    builder.finish(LogTime(5), FEATURE_LEVEL)
}

#[test]
fn unknown_versions_kinds_and_levels_are_errors_by_name() {
    let entry = small();
    assert_eq!(EntryView::parse(resealed(&entry, 0, &[2])), Err(BadEntry::UnknownVersion(2)));
    assert_eq!(EntryView::parse(resealed(&entry, 1, &[9])), Err(BadEntry::UnknownKind(9)));
    assert_eq!(EntryView::parse(resealed(&entry, 1, &[0])), Err(BadEntry::UnknownKind(0)));
    let level = EntryView::parse(resealed(&entry, 8, &9u32.to_le_bytes()));
    assert_eq!(level, Err(BadEntry::FeatureLevel(FeatureLevel(9))));
    assert!(matches!(EntryView::parse(resealed(&entry, 2, &[4])), Err(BadEntry::Malformed(_))));
    assert!(matches!(EntryView::parse(Bytes::new()), Err(BadEntry::Truncated { .. })));
}

#[test]
fn a_count_that_the_metadata_does_not_hold_is_refused() {
    let entry = small();
    for count in [0, 2, 5_000, u32::MAX] {
        let found = EntryView::parse(resealed(&entry, 12, &count.to_le_bytes()));
        assert!(matches!(found, Err(BadEntry::Malformed(_))), "{count}");
    }
}

#[test]
fn a_trim_entry_carries_the_low_watermark() {
    let view = EntryView::parse(EntryBuilder::trim(Offset(77), LogTime(3), FEATURE_LEVEL)).unwrap();
    assert_eq!((view.kind(), view.low_watermark(), view.batches().len()), (EntryKind::Trim, Some(Offset(77)), 0));
    assert_eq!(EntryView::parse(small()).unwrap().low_watermark(), None);
}

#[test]
fn long_names_are_cut_and_the_largest_batch_fits() {
    let long = Bytes::from(vec![b'x'; NAME_MAX + 50]);
    let meta = BatchMeta { principal: long.clone(), client_id: long, ..BatchMeta::default() };
    let body = Bytes::from(vec![0; BATCH_MAX]);
    let mut builder = EntryBuilder::new();
    assert!(builder.has_room_for(&meta, &body));
    builder.push(meta.clone(), body.clone());
    assert!(!builder.has_room_for(&meta, &body));
    let view = EntryView::parse(builder.finish(LogTime(1), FEATURE_LEVEL)).unwrap();
    let first = view.batches().next().unwrap();
    assert_eq!((first.meta.principal.len(), first.meta.client_id.len()), (NAME_MAX, NAME_MAX));
    assert_eq!(first.batch, body);
}
