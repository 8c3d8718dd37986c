//! Producers, epochs, sequences (I2–I6).

use super::*;

#[test]
fn a_repeated_batch_is_answered_with_its_first_result_and_stored_once() {
    let mut machine = partition();
    let first = publish(&mut machine, (1, 0, 0), &[plain("a"), plain("b")]).unwrap();
    publish(&mut machine, (1, 0, 2), &[plain("c")]).unwrap();
    let again = apply(&mut machine, &[batch((1, 0, 0), &[plain("a"), plain("b")])]);
    assert!(again.entry.batches.is_empty());
    let receipt = again.outcomes[0].clone().unwrap();
    assert_eq!(receipt, Receipt { duplicate_batch: true, ..first });
    assert_eq!(machine.high_watermark(), Offset(3));
}

#[test]
fn a_gap_is_refused_and_names_what_is_expected_and_stores_nothing() {
    let mut machine = partition();
    publish(&mut machine, (1, 0, 0), &[plain("a")]).unwrap();
    let refused = refusal(publish(&mut machine, (1, 0, 2), &[plain("c")]));
    assert_eq!((refused.reason, refused.expected), (Reason::OutOfSequence, Some(Sequence(1))));
    assert!(refused.decisive());
    publish(&mut machine, (1, 0, 1), &[plain("b")]).unwrap();
    assert_eq!(publish(&mut machine, (1, 0, 2), &[plain("c")]).unwrap().base_offset, 2);
}

#[test]
fn beyond_the_remembered_results_a_duplicate_has_no_offset() {
    let mut machine = partition();
    for i in 0..70 {
        publish(&mut machine, (1, 0, i), &[plain("x")]).unwrap();
    }
    let old = publish(&mut machine, (1, 0, 5), &[plain("x")]).unwrap();
    assert!(old.duplicate_batch && !old.offsets_known);
    let kept = publish(&mut machine, (1, 0, 6), &[plain("x")]).unwrap();
    assert!(kept.duplicate_batch && kept.offsets_known);
    assert_eq!(kept.base_offset, 6);
}

#[test]
fn other_cuts_of_the_same_sequences_are_refused() {
    let mut machine = partition();
    publish(&mut machine, (1, 0, 0), &[plain("a"), plain("b")]).unwrap();
    for (base, count) in [(0, 1), (0, 3), (1, 1), (1, 2)] {
        let refused = refusal(publish(&mut machine, (1, 0, base), &vec![plain("x"); count]));
        assert_eq!((refused.reason, refused.expected), (Reason::OutOfSequence, Some(Sequence(2))), "{base} {count}");
        assert!(refused.maybe_applied, "a part of it was applied");
    }
    assert_eq!(machine.high_watermark(), Offset(2));
}

#[test]
fn a_higher_epoch_starts_at_zero_and_fences_the_older_one() {
    let mut machine = partition();
    publish(&mut machine, (1, 0, 0), &[plain("a")]).unwrap();
    let refused = refusal(publish(&mut machine, (1, 1, 1), &[plain("b")]));
    assert_eq!((refused.reason, refused.expected), (Reason::OutOfSequence, Some(Sequence(0))));
    publish(&mut machine, (1, 0, 1), &[plain("a refused epoch fences nobody")]).unwrap();
    publish(&mut machine, (1, 1, 0), &[plain("b")]).unwrap();
    let fenced = refusal(publish(&mut machine, (1, 0, 2), &[plain("late")]));
    assert_eq!(fenced.reason, Reason::ProducerFenced);
    assert!(fenced.maybe_applied, "an earlier copy may have been applied under that epoch");
    assert_eq!(refusal(publish(&mut machine, (1, 0, 0), &[plain("a")])).reason, Reason::ProducerFenced);
    publish(&mut machine, (1, 1, 1), &[plain("c")]).unwrap();
}

#[test]
fn an_unknown_producer_starts_anywhere_and_that_is_its_floor() {
    let mut machine = partition();
    publish(&mut machine, (1, 4, 100), &[plain("a"), plain("b")]).unwrap();
    let below = refusal(publish(&mut machine, (1, 4, 98), &[plain("x"), plain("y")]));
    assert_eq!((below.reason, below.expected), (Reason::OutOfSequence, Some(Sequence(102))));
    assert!(below.maybe_applied, "it may have been applied before the producer was forgotten");
    assert!(publish(&mut machine, (1, 4, 100), &[plain("a"), plain("b")]).unwrap().duplicate_batch);
    publish(&mut machine, (1, 4, 102), &[plain("c")]).unwrap();
}

#[test]
fn anonymous_batches_are_always_appended_and_leave_no_state() {
    let mut machine = partition();
    for _ in 0..3 {
        assert!(!publish(&mut machine, (0, 0, 0), &[plain("a")]).unwrap().duplicate_batch);
    }
    assert_eq!((machine.high_watermark(), machine.producer_count()), (Offset(3), 0));
    publish(&mut machine, (0, 0, 0), &[keyed("k", "b")]).unwrap();
    assert_eq!(exceptions(&publish(&mut machine, (0, 0, 0), &[keyed("k", "b")]).unwrap()), [(0, Ok(3))]);
    assert_eq!(machine.admit(&header(&batch((0, 0, 0), &[plain("a")])), &InFlight::new()), Admission::Append);
}

#[test]
fn idle_producers_are_forgotten_by_log_time() {
    let mut machine = partition();
    apply_at(&mut machine, LogTime(T0), &[batch((1, 0, 0), &[plain("a")])]);
    apply_at(&mut machine, LogTime(T0 + HOUR), &[batch((2, 0, 0), &[plain("b")])]);
    apply_at(&mut machine, LogTime(T0 + 7 * 24 * HOUR), &[batch((3, 0, 0), &[plain("c")])]);
    assert_eq!(machine.producer_count(), 3, "exactly 7 days are not more than 7 days");
    apply_at(&mut machine, LogTime(T0 + 7 * 24 * HOUR + 1), &[batch((3, 0, 1), &[plain("d")])]);
    assert_eq!(machine.producer_count(), 2);
    publish(&mut machine, (1, 0, 55), &[plain("unknown again")]).unwrap();
}

#[test]
fn too_many_producers_evict_the_longest_idle_or_refuse_new_ones() {
    let mut machine = small(10, 20, 2);
    apply_at(&mut machine, LogTime(T0), &[batch((1, 0, 0), &[plain("a")])]);
    apply_at(&mut machine, LogTime(T0 + MINUTE), &[batch((2, 0, 0), &[plain("b")])]);
    let full = LogTime(T0 + 10 * MINUTE);
    let refused = refusal(apply_at(&mut machine, full, &[batch((3, 0, 0), &[plain("c")])]).outcomes.remove(0));
    assert_eq!(refused.reason, Reason::Quota);
    assert!(refused.retry_after.is_some() && refused.decisive());
    assert_eq!(machine.high_watermark(), Offset(2));
    // A known one goes on, and is then the youngest.
    apply_at(&mut machine, full, &[batch((1, 0, 1), &[plain("d")])]).outcomes.remove(0).unwrap();
    let later = LogTime(T0 + 11 * MINUTE + 1);
    apply_at(&mut machine, later, &[batch((3, 0, 0), &[plain("c")])]).outcomes.remove(0).unwrap();
    assert_eq!(machine.producer_count(), 2);
    assert!(
        apply_at(&mut machine, later, &[batch((1, 0, 1), &[plain("d")])]).outcomes[0].as_ref().unwrap().duplicate_batch
    );
}

#[test]
fn nothing_ages_after_a_leap_of_cluster_time_until_it_is_accepted() {
    let mut machine = partition();
    apply_at(&mut machine, LogTime(T0), &[batch((1, 0, 0), &[plain("a")])]);
    let leapt = EntryTime { log_time: LogTime(T0 + 30 * 24 * HOUR), leapt: true, accepted: false };
    let applied = apply_at(&mut machine, leapt, &[batch((2, 0, 0), &[plain("b")])]);
    assert_eq!(applied.entry.log_time, leapt.log_time, "log time itself follows");
    assert!(machine.ageing_stopped());
    assert_eq!(machine.producer_count(), 2);
    let accepted = EntryTime { log_time: leapt.log_time, leapt: false, accepted: true };
    apply_at(&mut machine, accepted, &[batch((2, 0, 1), &[plain("c")])]);
    assert!(!machine.ageing_stopped());
    assert_eq!(machine.producer_count(), 1);
}

#[test]
fn admission_sees_what_is_in_flight() {
    let mut machine = partition();
    let mut in_flight = InFlight::new();
    let batches: Vec<Bytes> = (0..4).map(|i| batch((1, 0, i), &[plain("x")])).collect();
    for batch in &batches[..3] {
        assert_eq!(machine.admit(&header(batch), &in_flight), Admission::Append);
        in_flight.add(&header(batch));
    }
    // A gap behind what is in flight.
    let far = machine.admit(&header(&batch((1, 0, 4), &[plain("x")])), &in_flight);
    assert!(matches!(far, Admission::Refuse(refusal) if refusal.expected == Some(Sequence(3))));
    // A copy of what is in flight goes in again; apply will know it.
    assert_eq!(machine.admit(&header(&batches[1]), &in_flight), Admission::Append);
    // A newer epoch in flight fences at once.
    let raised = batch((1, 1, 0), &[plain("y")]);
    assert_eq!(machine.admit(&header(&raised), &in_flight), Admission::Append);
    in_flight.add(&header(&raised));
    let late = machine.admit(&header(&batches[3]), &in_flight);
    assert!(matches!(late, Admission::Refuse(refusal) if refusal.reason == Reason::ProducerFenced));
    for batch in batches[..3].iter().chain([&raised]) {
        apply(&mut machine, std::slice::from_ref(batch)).outcomes.remove(0).unwrap();
        in_flight.done(&header(batch));
    }
    assert!(in_flight.is_empty());
    assert!(matches!(machine.admit(&header(&raised), &in_flight), Admission::Answer(r) if r.base_offset == 3));
}

#[test]
fn admission_answers_what_is_applied_while_later_batches_are_in_flight() {
    let mut machine = partition();
    publish(&mut machine, (1, 0, 0), &[plain("a")]).unwrap();
    let mut in_flight = InFlight::new();
    in_flight.add(&header(&batch((1, 0, 1), &[plain("b")])));
    let copy = batch((1, 0, 0), &[plain("a")]);
    assert!(matches!(machine.admit(&header(&copy), &in_flight), Admission::Answer(r) if r.duplicate_batch));
    in_flight.clear();
    assert!(in_flight.is_empty());
}

#[test]
fn a_copy_in_flight_does_not_hide_what_is_expected_next() {
    let machine = partition();
    let mut in_flight = InFlight::new();
    for i in [0, 1, 0] {
        in_flight.add(&header(&batch((1, 0, i), &[plain("x")])));
    }
    assert_eq!(machine.admit(&header(&batch((1, 0, 2), &[plain("x")])), &in_flight), Admission::Append);
    in_flight.done(&header(&batch((1, 0, 0), &[plain("x")])));
    let gap = machine.admit(&header(&batch((1, 0, 3), &[plain("x")])), &in_flight);
    assert!(matches!(gap, Admission::Refuse(r) if r.expected == Some(Sequence(2))));
}
