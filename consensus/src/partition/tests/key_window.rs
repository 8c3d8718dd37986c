//! Idempotency keys (I7).

use super::*;

#[test]
fn a_second_copy_of_a_key_is_suppressed_and_answered_with_the_first_offset() {
    let mut machine = partition();
    publish(&mut machine, (1, 0, 0), &[plain("x"), keyed("k1", "a"), keyed("k2", "b")]).unwrap();
    let applied = apply(&mut machine, &[batch((2, 0, 0), &[keyed("k1", "a"), plain("new"), keyed("k2", "b")])]);
    let receipt = applied.outcomes[0].as_ref().unwrap();
    assert_eq!(exceptions(receipt), [(0, Ok(1)), (2, Ok(2))]);
    assert_eq!(receipt.base_offset, 3);
    assert_eq!(read_back(&applied), [(Offset(3), "new".to_owned())]);
}

#[test]
fn a_batch_of_nothing_but_copies_is_not_stored_and_its_sequence_counts() {
    let mut machine = partition();
    publish(&mut machine, (1, 0, 0), &[keyed("k1", "a"), keyed("k2", "b")]).unwrap();
    let applied = apply(&mut machine, &[batch((2, 0, 0), &[keyed("k1", "a"), keyed("k2", "b")])]);
    assert!(applied.entry.batches.is_empty() && applied.entry.keys.is_empty());
    assert_eq!(exceptions(applied.outcomes[0].as_ref().unwrap()), [(0, Ok(0)), (1, Ok(1))]);
    publish(&mut machine, (2, 0, 2), &[plain("next")]).unwrap();
    let again = publish(&mut machine, (2, 0, 0), &[keyed("k1", "a"), keyed("k2", "b")]).unwrap();
    assert!(again.duplicate_batch);
    assert_eq!(exceptions(&again), [(0, Ok(0)), (1, Ok(1))]);
}

#[test]
fn the_same_key_with_another_record_key_or_payload_is_a_conflict() {
    let mut machine = partition();
    publish(&mut machine, (1, 0, 0), &[keyed("k", "a")]).unwrap();
    let moved = Record { key: Some(Bytes::from_static(b"account")), ..keyed("k", "a") };
    let receipt = publish(&mut machine, (1, 0, 1), &[keyed("k", "b"), moved, plain("fine")]).unwrap();
    assert_eq!(exceptions(&receipt), [(0, Err(Reason::KeyConflict)), (1, Err(Reason::KeyConflict))]);
    assert_eq!(machine.high_watermark(), Offset(2));
    // Headers and times are no part of what is compared.
    let stamped = Record { timestamp: quorate_proto::batch::ClientTime(9), ..keyed("k", "a") };
    assert_eq!(exceptions(&publish(&mut machine, (1, 0, 4), &[stamped]).unwrap()), [(0, Ok(0))]);
}

#[test]
fn copies_within_one_batch_and_one_entry_are_noticed() {
    let mut machine = partition();
    let applied = apply(
        &mut machine,
        &[
            batch((1, 0, 0), &[keyed("k", "a"), keyed("k", "a"), keyed("k", "b")]),
            batch((2, 0, 0), &[keyed("k", "a"), keyed("l", "c")]),
        ],
    );
    assert_eq!(exceptions(applied.outcomes[0].as_ref().unwrap()), [(1, Ok(0)), (2, Err(Reason::KeyConflict))]);
    assert_eq!(exceptions(applied.outcomes[1].as_ref().unwrap()), [(0, Ok(0))]);
    assert_eq!(read_back(&applied), [(Offset(0), "a".to_owned()), (Offset(1), "c".to_owned())]);
}

#[test]
fn a_refused_batch_leaves_no_keys() {
    let mut machine = partition();
    publish(&mut machine, (1, 0, 0), &[plain("a")]).unwrap();
    refusal(publish(&mut machine, (1, 0, 7), &[keyed("k", "b")]));
    assert_eq!(machine.key_count(), 0);
    assert!(publish(&mut machine, (1, 0, 1), &[keyed("k", "b")]).unwrap().exceptions.is_empty());
}

#[test]
fn a_record_past_its_time_is_refused_but_a_copy_of_an_applied_one_is_known() {
    let mut machine = partition();
    let until = |time| Record { not_after: LogTime(time), ..keyed("k", "a") };
    let late = Record { not_after: LogTime(T0 - 1), ..plain("late") };
    let applied = apply_at(&mut machine, LogTime(T0), &[batch((1, 0, 0), &[until(T0), late])]);
    assert_eq!(exceptions(applied.outcomes[0].as_ref().unwrap()), [(1, Err(Reason::Expired))]);
    let applied = apply_at(&mut machine, LogTime(T0 + HOUR), &[batch((2, 0, 0), &[until(T0)])]);
    assert_eq!(exceptions(applied.outcomes[0].as_ref().unwrap()), [(0, Ok(0))]);
}

#[test]
fn a_key_made_before_the_windows_horizon_is_refused() {
    let mut machine = partition();
    let made = |name: &str, time| Record { key_created_at: LogTime(time), ..keyed(name, "a") };
    let records = [made("old", T0 - 24 * HOUR - 1), made("young", T0 - 24 * HOUR), keyed("ageless", "b")];
    let applied = apply_at(&mut machine, LogTime(T0), &[batch((1, 0, 0), &records)]);
    let receipt = applied.outcomes[0].as_ref().unwrap();
    assert_eq!(exceptions(receipt), [(0, Err(Reason::KeyTooOld))]);
    let Some(record_exception::Kind::Refused(error)) = &receipt.exceptions[0].kind else { panic!("{receipt:?}") };
    assert!(!error.maybe_applied, "no key has ever left the window");
}

#[test]
fn a_key_that_may_have_been_forgotten_is_refused_as_perhaps_applied() {
    let mut machine = small(1, 2, 10);
    for (i, key) in ["a", "b", "c"].into_iter().enumerate() {
        let time = LogTime(T0 + i as i64 * SECOND);
        apply_at(&mut machine, time, &[batch((1, 0, i as u64), &[keyed(key, "x")])]);
    }
    assert_eq!(machine.key_count(), 2, "the oldest had to go, however young");
    let copy = |made| Record { key_created_at: LogTime(made), ..keyed("a", "x") };
    let receipt = publish(&mut machine, (2, 0, 0), &[copy(T0)]).unwrap();
    let Some(record_exception::Kind::Refused(error)) = &receipt.exceptions[0].kind else { panic!("{receipt:?}") };
    assert_eq!((error.reason(), error.maybe_applied), (Reason::KeyTooOld, true));
    assert!(publish(&mut machine, (2, 0, 1), &[copy(T0 + 1)]).unwrap().exceptions.is_empty());
}

#[test]
fn keys_leave_by_age_but_a_minimum_stays_and_a_maximum_is_kept() {
    let mut machine = small(2, 4, 10);
    let mut sequence = 0;
    let mut add = |machine: &mut Partition, time: i64, keys: &[&str]| {
        let records: Vec<Record> = keys.iter().map(|key| keyed(key, "x")).collect();
        apply_at(machine, LogTime(time), &[batch((1, 0, sequence), &records)]).outcomes.remove(0).unwrap();
        sequence += keys.len() as u64;
    };
    add(&mut machine, T0, &["a", "b", "c"]);
    add(&mut machine, T0 + 24 * HOUR, &["d"]);
    assert_eq!(machine.key_count(), 4);
    add(&mut machine, T0 + 24 * HOUR + 1, &["e"]);
    assert_eq!(machine.key_count(), 2, "a, b and c are older than the window; two keys stay in any case");
    assert!(machine.lookup(quorate_proto::hash::key_hash(b"d")).is_some());
    add(&mut machine, T0 + 24 * HOUR + 2, &["f", "g", "h"]);
    assert_eq!(machine.key_count(), 4);
    assert_eq!(machine.lookup(quorate_proto::hash::key_hash(b"d")), None);
    add(&mut machine, T0 + 24 * HOUR + 3, &["a"]);
    assert!(machine.lookup(quorate_proto::hash::key_hash(b"a")).is_some(), "a forgotten key is new again");
}

#[test]
fn key_runs_name_the_oldest_entry_that_is_still_needed() {
    let mut machine = small(1, 2, 10);
    assert_eq!(machine.key_runs_from(), None);
    publish(&mut machine, (1, 0, 0), &[keyed("a", "x"), keyed("b", "x")]).unwrap();
    publish(&mut machine, (1, 0, 2), &[keyed("c", "x")]).unwrap();
    assert_eq!(machine.key_runs_from(), Some(LogIndex(6)), "b is still in the window");
    publish(&mut machine, (1, 0, 3), &[keyed("d", "x")]).unwrap();
    assert_eq!(machine.key_runs_from(), Some(LogIndex(7)));
}

fn all_or_nothing(machine: &mut Partition, id: (u128, u32, u64), records: &[Record]) -> (Receipt, Applied) {
    let applied = apply(machine, &[batch_with(id, records, true)]);
    (applied.outcomes[0].clone().unwrap(), applied)
}

#[test]
fn all_or_nothing_stores_nothing_if_one_record_is_refused() {
    let mut machine = partition();
    publish(&mut machine, (1, 0, 0), &[keyed("k", "a"), keyed("l", "b")]).unwrap();
    let records = [keyed("new", "n"), keyed("k", "other"), keyed("l", "b"), plain("p")];
    let (receipt, applied) = all_or_nothing(&mut machine, (2, 0, 0), &records);
    assert!(applied.entry.batches.is_empty() && applied.entry.keys.is_empty());
    let conflict = Err(Reason::KeyConflict);
    assert_eq!(exceptions(&receipt), [(0, conflict), (1, conflict), (2, Ok(1)), (3, conflict)]);
    assert_eq!((machine.high_watermark(), machine.key_count()), (Offset(2), 2));
    // The key of the record that was fine is free.
    assert!(publish(&mut machine, (2, 0, 4), &[keyed("new", "other")]).unwrap().exceptions.is_empty());
}

#[test]
fn all_or_nothing_with_copies_only_stores_the_rest() {
    let mut machine = partition();
    publish(&mut machine, (1, 0, 0), &[keyed("k", "a")]).unwrap();
    let (receipt, applied) = all_or_nothing(&mut machine, (2, 0, 0), &[keyed("k", "a"), plain("p")]);
    assert_eq!(exceptions(&receipt), [(0, Ok(0))]);
    assert_eq!(read_back(&applied), [(Offset(1), "p".to_owned())]);
}

#[test]
fn a_conflict_inside_an_all_or_nothing_batch_refuses_both_sides() {
    let mut machine = partition();
    let records = [keyed("k", "a"), keyed("k", "a"), keyed("k", "b")];
    let (receipt, _) = all_or_nothing(&mut machine, (1, 0, 0), &records);
    let conflict = Err(Reason::KeyConflict);
    assert_eq!(exceptions(&receipt), [(0, conflict), (1, conflict), (2, conflict)]);
    assert_eq!((machine.high_watermark(), machine.key_count()), (Offset(0), 0));
    let again = publish(&mut machine, (1, 0, 0), &records).unwrap();
    assert_eq!(again, Receipt { duplicate_batch: true, ..receipt });
}

#[test]
fn long_runs_of_refusals_stay_below_the_message_limit() {
    let mut machine = partition();
    let many: Vec<Record> = (0..20_000).map(|i| keyed(&format!("k{i}"), "a")).collect();
    let others: Vec<Record> = (0..20_000).map(|i| keyed(&format!("k{i}"), "b")).collect();
    publish(&mut machine, (1, 0, 0), &many).unwrap();
    let receipt = publish(&mut machine, (1, 0, 20_000), &others).unwrap();
    assert_eq!(receipt.exceptions.len(), 20_000);
    assert!(prost::Message::encoded_len(&receipt) < 1 << 20);
    let Some(record_exception::Kind::Refused(error)) = &receipt.exceptions[0].kind else { panic!() };
    assert!(!error.what.is_empty() && !error.action.is_empty());
    let kept = machine.state().producers[0].results.last().unwrap().outcomes.len();
    assert_eq!(kept, 1, "consecutive offsets are remembered as one run");
}
