//! Batching, slots, receipts.

use super::*;

#[test]
fn only_one_batch_is_in_flight_until_the_first_of_an_epoch_is_answered() {
    let mut bench = Bench::new(ProducerConfig::default());
    bench.send("k", "a");
    bench.pump();
    assert!(bench.sent().is_empty(), "nothing is sent before the link is up");
    bench.up(1);
    bench.send("k", "b");
    bench.pump();
    let sent = bench.sent();
    assert_eq!(sent.len(), 1);
    bench.send("k", "c");
    bench.pump();
    assert!(bench.sent().is_empty());
    bench.answer(&sent[0], Ok(receipt(0)));
    let second = bench.sent();
    assert_eq!(second.len(), 1);
    assert_eq!(values(&second[0]), ["b", "c"], "what waited goes together");
    assert_eq!(identity(&second[0]).base_sequence.0, 1);
}

#[test]
fn four_batches_are_in_flight_at_most_and_a_freed_slot_takes_all_that_waits() {
    let mut bench = Bench::established(ProducerConfig::default());
    for n in 0..6 {
        bench.send("k", &n.to_string());
        bench.pump();
    }
    let sent = bench.sent();
    assert_eq!(sent.len(), 4);
    assert_eq!(sent.iter().map(|batch| identity(batch).base_sequence.0).collect::<Vec<_>>(), [1, 2, 3, 4]);
    bench.answer(&sent[0], Ok(receipt(1)));
    let more = bench.sent();
    assert_eq!(values(&more[0]), ["4", "5"]);
}

#[test]
fn a_batch_closes_at_its_size() {
    let config = ProducerConfig { batch_bytes: 4_096, ..ProducerConfig::default() };
    let mut bench = Bench::established(config);
    for _ in 0..10 {
        bench.send("k", &"x".repeat(1_000));
    }
    bench.pump();
    let sizes: Vec<usize> = bench.sent().iter().map(|batch| values(batch).len()).collect();
    assert_eq!(sizes, [3, 3, 3, 1]);
}

#[test]
fn a_batch_holds_records_of_one_priority_only() {
    use crate::core::record::Priority;
    let mut bench = Bench::established(ProducerConfig::default());
    bench.send("k", "a");
    bench.offer(Record::new("b").key("k").priority(Priority::Core));
    bench.pump();
    let sent = bench.sent();
    assert_eq!(sent.len(), 2);
    let priority = |batch: &Transmit| BatchView::parse(batch.batch.clone()).expect("valid").header().priority;
    assert_eq!((priority(&sent[0]), priority(&sent[1])), (Priority::Normal, Priority::Core));
}

#[test]
fn receipts_give_each_record_its_own_offset_and_repeats_the_first_one() {
    let mut bench = Bench::established(ProducerConfig::default());
    let tokens: Vec<u64> = ["a", "b", "c", "d"].iter().map(|value| bench.send("k", value)).collect();
    bench.pump();
    let sent = bench.sent();
    let duplicate = v1::record_exception::Kind::DuplicateOf(3);
    let conflict = v1::record_exception::Kind::Refused(refusal(Reason::KeyConflict).into());
    let exceptions = vec![
        v1::RecordException { index: 1, kind: Some(duplicate) },
        v1::RecordException { index: 2, kind: Some(conflict) },
    ];
    bench.answer(&sent[0], Ok(v1::Receipt { exceptions, ..receipt(40) }));
    let offset = |outcome: Option<Outcome>| {
        outcome.expect("resolved").map(|r| (r.offset.map(|o| o.0), r.duplicate.map(|o| o.0)))
    };
    assert_eq!(offset(bench.outcome(tokens[0])), Ok((Some(40), None)));
    assert_eq!(offset(bench.outcome(tokens[1])), Ok((Some(3), Some(3))));
    let refused = bench.outcome(tokens[2]).expect("resolved").expect_err("refused");
    assert_eq!((refused.reason(), refused.decisive()), (Reason::KeyConflict, true));
    assert_eq!(offset(bench.outcome(tokens[3])), Ok((Some(41), None)));
    assert_eq!(bench.core.waiting(), 0);
    assert_eq!(bench.core.bytes(), 0);
}

#[test]
fn a_repeated_batch_whose_offsets_are_forgotten_is_committed_without_offset() {
    let mut bench = Bench::established(ProducerConfig::default());
    let token = bench.send("k", "a");
    bench.pump();
    let sent = bench.sent();
    bench.answer(&sent[0], Ok(v1::Receipt { duplicate_batch: true, offsets_known: false, ..receipt(0) }));
    let receipt = bench.outcome(token).expect("resolved").expect("committed");
    assert_eq!((receipt.offset, receipt.duplicate), (None, None));
}

#[test]
fn a_full_buffer_refuses_and_takes_again_when_something_is_resolved() {
    let config = ProducerConfig { max_in_flight: 2, ..ProducerConfig::default() };
    let mut bench = Bench::established(config);
    bench.send("k", "a");
    bench.send("k", "b");
    let refused = bench.core.send(bench.now, Record::new("c"), 99, &mut Vec::new()).expect_err("full");
    assert_eq!((refused.refusal.reason, refused.token), (Reason::Busy, 99));
    bench.pump();
    let sent = bench.sent();
    bench.answer(&sent[0], Ok(receipt(1)));
    bench.send("k", "c");
}

#[test]
fn a_record_over_the_limit_is_refused_before_it_is_admitted() {
    let mut bench = Bench::established(ProducerConfig::default());
    let huge = Record::new(vec![0; 2 << 20]);
    let refused = bench.core.send(bench.now, huge, 9, &mut Vec::new()).expect_err("too large");
    assert_eq!(refused.refusal.reason, Reason::TooLarge);
    assert_eq!(bench.core.waiting(), 0);
}

#[test]
fn records_of_one_key_share_a_partition_and_records_without_keys_stick_to_one_per_batch() {
    let core = ProducerCore::new(ProducerConfig::default(), BatchOptions::default(), routes(3, 1, 1), ProducerId(5), 1);
    let mut bench = Bench { core, ..Bench::new(ProducerConfig::default()) };
    for n in 0..3 {
        bench.offer(Record::new(n.to_string()));
    }
    bench.pump();
    bench.up(1);
    let first = bench.sent();
    assert_eq!(first.len(), 1, "one batch for one partition");
    assert_eq!(values(&first[0]).len(), 3);
    bench.offer(Record::new("3"));
    bench.pump();
    let second = bench.sent();
    assert_ne!(second[0].partition, first[0].partition, "the next batch goes to the next partition");
}

#[test]
fn an_idle_producer_begins_a_new_epoch() {
    let mut bench = Bench::established(ProducerConfig::default());
    bench.pass(Duration::from_secs(479));
    bench.send("k", "a");
    bench.pump();
    let sent = bench.sent();
    assert_eq!((identity(&sent[0]).epoch.0, identity(&sent[0]).base_sequence.0), (0, 1));
    bench.answer(&sent[0], Ok(receipt(1)));
    bench.pass(Duration::from_secs(480));
    bench.send("k", "b");
    bench.pump();
    let sent = bench.sent();
    assert_eq!((identity(&sent[0]).epoch.0, identity(&sent[0]).base_sequence.0), (1, 0));
}

#[test]
fn the_same_calls_give_the_same_effects() {
    let run = || {
        let mut bench = Bench::established(ProducerConfig::default());
        bench.send("k", "a");
        bench.pump();
        bench.lose(1);
        for _ in 0..4 {
            bench.step();
            bench.lose(1);
        }
        (format!("{:?}", bench.effects), bench.now)
    };
    assert_eq!(run(), run());
}
