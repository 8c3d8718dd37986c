//! Random histories: the machine against a plain model, and against itself restored at any point.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// One batch of a history, small numbers so that everything meets everything.
#[derive(Clone, Debug)]
struct Step {
    producer: u128,
    epoch: u32,
    /// Sequence relative to what the model expects.
    shift: i64,
    records: Vec<(u8, u8, Option<i64>, Option<i64>)>,
    all_or_nothing: bool,
    advance: i64,
    leapt: bool,
    accepted: bool,
    joins_entry: bool,
}

fn any_step() -> impl Strategy<Value = Step> {
    let age = prop::option::weighted(0.3, 0i64..30 * HOUR);
    let record = (0u8..12, 0u8..2, age.clone(), prop::option::weighted(0.2, -HOUR..HOUR));
    let shift = prop_oneof![8 => Just(0i64), 3 => -6i64..0, 1 => 1i64..4];
    let advance = prop_oneof![6 => 0..SECOND, 2 => 0..HOUR, 1 => 0..9 * 24 * HOUR];
    let flags = (prop::bool::weighted(0.2), prop::bool::weighted(0.03), prop::bool::weighted(0.1), any::<bool>());
    (0u128..5, 0u32..3, shift, prop::collection::vec(record, 1..5), advance, flags).prop_map(
        |(producer, epoch, shift, records, advance, (all_or_nothing, leapt, accepted, joins_entry))| Step {
            producer,
            epoch: if producer == 0 { 0 } else { epoch },
            shift,
            records,
            all_or_nothing,
            advance,
            leapt,
            accepted,
            joins_entry,
        },
    )
}

fn record_of(step: &Step, now: i64, i: usize) -> Record {
    let (key, value, age, slack) = step.records[i];
    let base = if key == 0 { plain("v") } else { keyed(&format!("k{key}"), "v") };
    Record {
        value: Bytes::from(vec![b'a' + value]),
        key_created_at: LogTime(age.map_or(0, |age| (now - age).max(1))),
        not_after: LogTime(slack.map_or(0, |slack| now + slack)),
        ..base
    }
}

/// Entries of a history: batches with their time.
fn entries(steps: &[Step]) -> Vec<(EntryTime, Vec<Bytes>)> {
    let (mut now, mut out) = (T0, Vec::<(EntryTime, Vec<Bytes>)>::new());
    let mut next: BTreeMap<(u128, u32), u64> = BTreeMap::new();
    for step in steps {
        let records: Vec<Record> = (0..step.records.len()).map(|i| record_of(step, now, i)).collect();
        let expected = next.entry((step.producer, step.epoch)).or_default();
        let base = if step.producer == 0 { 0 } else { expected.saturating_add_signed(step.shift) };
        if step.shift == 0 {
            *expected += records.len() as u64;
        }
        let bytes = batch_with((step.producer, step.epoch, base), &records, step.all_or_nothing);
        match out.last_mut() {
            Some((_, batches)) if step.joins_entry => batches.push(bytes),
            _ => {
                now += step.advance;
                let time = EntryTime { log_time: LogTime(now), leapt: step.leapt, accepted: step.accepted };
                out.push((time, vec![bytes]));
            }
        }
    }
    out
}

fn run(machine: &mut Partition, entries: &[(EntryTime, Vec<Bytes>)]) -> Vec<Applied> {
    entries.iter().map(|(time, batches)| apply_at(machine, *time, batches)).collect()
}

fn same(one: &Applied, two: &Applied) -> bool {
    let batches = |applied: &Applied| -> Vec<_> {
        applied.entry.batches.iter().map(|b| (b.base_offset, b.end_offset, b.prefix.clone(), b.body.clone())).collect()
    };
    one.outcomes == two.outcomes
        && batches(one) == batches(two)
        && one.entry.keys == two.entry.keys
        && one.entry.log_time == two.entry.log_time
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_machine_restored_anywhere_goes_on_exactly_as_the_first(
        steps in prop::collection::vec(any_step(), 1..60),
        cut in any::<prop::sample::Index>(),
        bounds in (1usize..6, 1usize..6, 1usize..5),
    ) {
        let limits = PartitionLimits { keys_min: bounds.0, keys_max: bounds.0 + bounds.1, producers_max: bounds.2 };
        let history = entries(&steps);
        let cut = cut.index(history.len() + 1);
        let mut whole = Partition::with_limits("t/0", START, limits);
        let before = run(&mut whole, &history[..cut]);
        let state = whole.state_bytes();
        let from = whole.key_runs_from().unwrap_or(LogIndex(u64::MAX));
        let needed = |applied: &Applied| applied.entry.index >= from;
        let runs: Vec<Bytes> = before.iter().filter(|a| needed(a)).map(|a| a.entry.keys.clone()).collect();
        let after = run(&mut whole, &history[cut..]);
        // Runs of later entries may stand in storage too.
        let later = after.iter().map(|applied| applied.entry.keys.clone());
        let pieces = runs.iter().cloned().chain(later.clone());
        let mut restored = Partition::restore_with_limits("t/0", &state, pieces, limits).unwrap();
        prop_assert_eq!(&restored.state_bytes(), &state);
        let again = run(&mut restored, &history[cut..]);
        for (one, two) in after.iter().zip(&again) {
            prop_assert!(same(one, two), "{:?}\n{:?}", one, two);
        }
        prop_assert_eq!(restored.state(), whole.state());
        prop_assert_eq!(restored.digest(), whole.digest());
        // All runs ever written, older ones included, give the same machine; in one piece as well.
        let all: Vec<u8> = before.iter().flat_map(|applied| applied.entry.keys.to_vec()).collect();
        let mut other = Partition::restore_with_limits("t/0", &state, [Bytes::from(all)], limits).unwrap();
        run(&mut other, &history[cut..]);
        prop_assert_eq!(other.state(), whole.state());
        // A missing run is noticed.
        if whole.key_count() > 0 && !runs.is_empty() && runs.iter().any(|run| !run.is_empty()) {
            let rest = runs.iter().skip(1 + runs.iter().take_while(|run| run.is_empty()).count()).cloned();
            let short = Partition::restore_with_limits("t/0", &state, rest, limits);
            let short_is_noticed = matches!(short, Err(RestoreError::KeysMissing { .. }));
            prop_assert!(short_is_noticed);
        }
    }

    #[test]
    fn every_record_stands_once_and_answers_name_where(steps in prop::collection::vec(any_step(), 1..80)) {
        let mut machine = partition();
        let mut log: Vec<(Option<Bytes>, Bytes)> = Vec::new();
        let mut ages_out = false;
        for (time, batches) in entries(&steps) {
            ages_out |= time.log_time.0 - T0 > 7 * 24 * HOUR;
            let applied = apply_at(&mut machine, time, &batches);
            let mut stored = applied.entry.batches.iter();
            for (bytes, outcome) in batches.iter().zip(&applied.outcomes) {
                // This history also re-uses sequences for other records, which are answered with the first ones' fate.
                let Some(receipt) = outcome.as_ref().ok().filter(|receipt| !receipt.duplicate_batch) else { continue };
                let records: Vec<Record> =
                    BatchView::parse(bytes.clone()).unwrap().records().unwrap().map(Result::unwrap).collect();
                let known: BTreeMap<u32, Result<u64, Reason>> = exceptions(receipt).into_iter().collect();
                let mut offset = receipt.base_offset;
                prop_assert_eq!(offset, log.len() as u64);
                if known.len() < records.len() {
                    let part = stored.next().unwrap();
                    prop_assert_eq!((part.base_offset.0, &part.body), (offset, bytes));
                }
                for (index, record) in (0u32..).zip(records) {
                    let content = (record.idempotency_key.clone(), record.value.clone());
                    match known.get(&index) {
                        Some(Ok(first)) => prop_assert_eq!(&log[*first as usize], &content),
                        Some(Err(_)) => {}
                        None => {
                            if let Some(key) = &content.0 {
                                let copies = log.iter().filter(|(other, _)| other.as_ref() == Some(key)).count();
                                prop_assert_eq!(copies, 0, "one copy of each key inside the window");
                            }
                            prop_assert_eq!(offset, log.len() as u64);
                            log.push(content);
                            offset += 1;
                        }
                    }
                }
            }
            prop_assert!(stored.next().is_none());
            prop_assert_eq!(machine.high_watermark(), Offset(log.len() as u64));
        }
        prop_assert!(ages_out || machine.producer_count() <= 4);
    }
}

#[test]
fn a_state_of_a_newer_schema_is_refused_by_number() {
    let mut state = partition().state();
    state.schema = 9;
    let bytes = prost::Message::encode_to_vec(&state);
    let error = Partition::restore("t/0", &bytes, []).unwrap_err();
    assert_eq!(error, RestoreError::Newer(9));
    assert!(error.to_string().contains('9'));
    assert!(matches!(Partition::restore("t/0", b"\xff\xff", []), Err(RestoreError::Damaged(_))));
}

#[test]
fn key_runs_out_of_order_are_refused() {
    let mut machine = partition();
    let one = apply(&mut machine, &[batch((1, 0, 0), &[keyed("a", "x")])]).entry.keys;
    let two = apply(&mut machine, &[batch((1, 0, 1), &[keyed("b", "x")])]).entry.keys;
    let state = machine.state_bytes();
    assert!(matches!(Partition::restore("t/0", &state, [two, one.clone()]), Err(RestoreError::RunOrder { .. })));
    let damaged = Bytes::from([one.as_ref(), b"x"].concat());
    assert!(matches!(Partition::restore("t/0", &state, [damaged]), Err(RestoreError::Run(_))));
}
