//! What a given-up record means for later ones.

use super::super::OnGap;
use super::*;

fn with(on_gap: OnGap) -> Bench {
    Bench::established(ProducerConfig { on_gap, ..ProducerConfig::default() })
}

/// Gives up one record of key "k" in flight, with records of "k" and "other" behind it.
fn gap(bench: &mut Bench) -> (u64, u64) {
    bench.send("k", "lost");
    bench.pump();
    bench.sent();
    bench.pass(ms(15_000));
    let same = bench.send("k", "same key");
    let other = bench.send("other", "other key");
    bench.pump();
    (same, other)
}

#[test]
fn halt_key_holds_back_later_records_of_the_key_until_it_is_released() {
    let mut bench = with(OnGap::HaltKey);
    let (same, _) = gap(&mut bench);
    assert_eq!(values(&bench.sent()[0]), ["other key"]);
    let error = bench.outcomes[&same].clone().expect_err("not sent");
    assert_eq!((error.reason(), error.decisive()), (Reason::RefusedUnsafe, true));
    bench.core.release(&"k".into());
    bench.send("k", "after release");
    bench.pump();
    bench.up(1);
    assert_eq!(bench.core.waiting(), 2);
}

#[test]
fn halt_producer_holds_back_everything_until_it_is_released() {
    let mut bench = with(OnGap::HaltProducer);
    let (same, other) = gap(&mut bench);
    assert!(bench.sent().is_empty());
    assert!(bench.outcomes[&same].is_err() && bench.outcomes[&other].is_err());
    bench.core.release_all();
    bench.send("k", "again");
    bench.pump();
    assert_eq!(values(&bench.sent()[0]), ["again"]);
}

#[test]
fn continue_lets_later_records_through() {
    let mut bench = with(OnGap::Continue);
    gap(&mut bench);
    assert_eq!(values(&bench.sent()[0]), ["same key", "other key"]);
}

#[test]
fn records_without_a_record_key_go_on_after_a_gap() {
    let mut bench = with(OnGap::HaltKey);
    gap(&mut bench);
    let sent = bench.sent();
    bench.answer(&sent[0], Ok(receipt(5)));
    bench.offer(Record::new("keyless"));
    bench.pump();
    assert_eq!(values(&bench.sent()[0]), ["keyless"]);
}

#[test]
fn a_batch_refused_for_good_ends_its_records_and_those_behind_it_go_on_in_a_new_epoch() {
    let mut bench = with(OnGap::HaltKey);
    let bad = bench.send("bad", "a");
    bench.pump();
    let behind = bench.send("good", "b");
    let held = bench.send("bad", "c");
    bench.pump();
    let sent = bench.sent();
    bench.answer(&sent[0], Err(refusal(Reason::BadBatch)));
    bench.answer(&sent[1], Err(refusal(Reason::OutOfSequence)));
    let again = bench.sent();
    assert_eq!(values(&again[0]), ["b"]);
    assert_eq!((identity(&again[0]).epoch.0, identity(&again[0]).base_sequence.0), (1, 0));
    bench.answer(&again[0], Ok(receipt(1)));
    assert_eq!(bench.outcome(bad).expect("ended").expect_err("refused").reason(), Reason::BadBatch);
    assert_eq!(bench.outcome(held).expect("ended").expect_err("not sent").reason(), Reason::RefusedUnsafe);
    assert!(bench.outcome(behind).expect("resolved").is_ok());
}
