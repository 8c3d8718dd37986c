//! Retries, routes, deadlines.

use super::*;

/// Sends four batches of one record each.
fn four(bench: &mut Bench) -> (Vec<u64>, Vec<Transmit>) {
    let tokens = ["a", "b", "c", "d"].map(|value| {
        let token = bench.send("k", value);
        bench.pump();
        token
    });
    (tokens.to_vec(), bench.sent())
}

#[test]
fn a_pushed_route_sends_everything_pending_to_the_new_leader_at_once_and_in_order() {
    let mut bench = Bench::established(ProducerConfig::default());
    let (_, sent) = four(&mut bench);
    bench.route(2, 2);
    bench.up(2);
    let again = bench.sent();
    assert_eq!(
        again.iter().map(|batch| batch.batch.clone()).collect::<Vec<_>>(),
        sent.iter().map(|b| b.batch.clone()).collect::<Vec<_>>()
    );
    assert!(again.iter().all(|batch| batch.node == NodeId(2) && batch.again));
}

#[test]
fn a_late_receipt_from_the_old_leader_counts_and_a_late_refusal_does_not() {
    let mut bench = Bench::established(ProducerConfig::default());
    let (tokens, sent) = four(&mut bench);
    bench.route(2, 2);
    bench.up(2);
    bench.answer(&sent[0], Ok(receipt(1)));
    bench.answer(&sent[1], Err(refusal(Reason::NotLeader)));
    assert_eq!(bench.sent().len(), 4, "the refusal caused no repetition");
    assert!(bench.outcome(tokens[0]).expect("resolved").is_ok());
    assert!(bench.outcome(tokens[1]).is_none());
}

#[test]
fn waiting_refusals_use_no_retry() {
    let mut bench = Bench::established(ProducerConfig::default());
    let token = bench.send("k", "a");
    bench.pump();
    let reasons =
        [Reason::Fenced, Reason::Busy, Reason::StorageFull, Reason::NoLeader, Reason::Handoff, Reason::NotLeader];
    for n in 0..12 {
        let sent = bench.sent();
        assert_eq!(sent.len(), 1, "attempt {n}");
        let refused = refusal(reasons[n % reasons.len()]).retry_after(ms(50));
        bench.answer(&sent[0], Err(refused));
        assert!(bench.sent().is_empty(), "it waits");
        while bench.effects.iter().all(|effect| !matches!(effect, Effect::Transmit(_))) {
            assert!(bench.step());
        }
        assert!(bench.outcomes.is_empty() || !bench.outcomes.contains_key(&token));
        bench.now = BootTime(bench.now.0.min(10_000_000_000));
    }
}

#[test]
fn no_batch_goes_twice_to_a_node_known_not_to_lead() {
    let mut bench = Bench::established(ProducerConfig::default());
    bench.send("k", "a");
    bench.pump();
    let sent = bench.sent();
    bench.answer(&sent[0], Err(refusal(Reason::NotLeader).led_by(Some(NodeId(2)))));
    bench.up(2);
    let hinted = bench.sent();
    assert_eq!(hinted[0].node, NodeId(2));
    bench.answer(&hinted[0], Err(refusal(Reason::NotLeader).led_by(Some(NodeId(1)))));
    bench.pass(ms(1_000));
    assert!(bench.sent().is_empty(), "both denied: wait for the push");
    bench.route(3, 2);
    bench.up(3);
    assert_eq!(bench.sent()[0].node, NodeId(3));
}

#[test]
fn a_lost_connection_is_tried_five_times_while_the_observers_name_that_node() {
    let mut bench = Bench::established(ProducerConfig::default());
    let token = bench.send("k", "a");
    bench.pump();
    let begun = bench.now;
    let mut attempts = bench.sent().len();
    for _ in 0..6 {
        bench.lose(1);
        if bench.outcomes.contains_key(&token) || bench.core.waiting() == 0 {
            break;
        }
        bench.connects();
        while bench.connects() == 0 {
            assert!(bench.step());
        }
        bench.up(1);
        attempts += bench.sent().len();
    }
    let error = bench.outcome(token).expect("given up").expect_err("without an answer");
    assert_eq!(attempts, 6, "once and five times again");
    assert_eq!(error.reason(), Reason::Unreachable);
    assert!(error.maybe_applied());
    let waited = bench.now.since(begun);
    // 100 + 200 + 400 + 800 + 1600 ms, ±20 %.
    assert!(waited >= ms(2_480) && waited <= ms(3_720), "{waited:?}");
}

#[test]
fn a_lost_connection_uses_no_retry_while_no_leader_is_named() {
    let mut bench = Bench::established(ProducerConfig::default());
    let token = bench.send("k", "a");
    bench.pump();
    bench.sent();
    bench.lose(1);
    bench.route(0, 2);
    bench.pass(ms(9_000));
    assert!(bench.outcome(token).is_none());
    bench.route(3, 3);
    bench.up(3);
    assert_eq!(bench.sent().len(), 1);
}

#[test]
fn a_record_that_was_never_sent_ends_decisively_at_its_deadline() {
    let mut bench = Bench::new(ProducerConfig::default());
    bench.route(0, 2);
    let token = bench.send("k", "a");
    bench.pump();
    bench.pass(ms(14_999));
    assert!(bench.outcome(token).is_none());
    bench.pass(ms(1));
    let error = bench.outcome(token).expect("ended").expect_err("no leader");
    assert!(error.decisive());
    assert_eq!(error.reason(), Reason::Deadline);
}

#[test]
fn a_record_whose_every_attempt_was_refused_ends_decisively_at_its_deadline() {
    let mut bench = Bench::established(ProducerConfig::default());
    let token = bench.send("k", "a");
    bench.pump();
    let sent = bench.sent();
    bench.answer(&sent[0], Err(refusal(Reason::NoLeader)));
    bench.route(0, 2);
    bench.pass(ms(15_000));
    let error = bench.outcome(token).expect("ended").expect_err("no leader");
    assert!(error.decisive(), "{error}");
}

#[test]
fn a_record_in_flight_ends_unresolved_at_its_deadline_and_the_epoch_is_raised() {
    let mut bench = Bench::established(ProducerConfig { on_gap: super::super::OnGap::Continue, ..Default::default() });
    let token = bench.send("k", "a");
    bench.pump();
    bench.sent();
    bench.pass(ms(15_000));
    let error = bench.outcome(token).expect("ended").expect_err("no answer");
    assert!(error.maybe_applied());
    let crate::core::SendError::Unresolved(unresolved) = error else { panic!("unresolved") };
    assert_eq!((unresolved.epoch.0, unresolved.sequence.0), (0, 1));
    bench.send("k", "b");
    bench.pump();
    let sent = bench.sent();
    assert_eq!((identity(&sent[0]).epoch.0, identity(&sent[0]).base_sequence.0), (1, 0));
}

#[test]
fn a_batch_goes_on_for_the_sake_of_its_younger_records() {
    let mut bench = Bench::established(ProducerConfig::default());
    let old = bench.send("a", "old");
    bench.pump();
    let first = bench.sent();
    bench.pass(ms(10_000));
    let young = bench.send("b", "young");
    bench.pump();
    let second = bench.sent();
    bench.pass(ms(5_000));
    assert!(bench.outcome(old).expect("ended").expect_err("late").maybe_applied());
    bench.answer(&first[0], Ok(receipt(1)));
    bench.answer(&second[0], Ok(receipt(2)));
    assert_eq!(bench.outcome(young).expect("resolved").expect("committed").offset.map(|o| o.0), Some(2));
}

#[test]
fn batches_behind_a_refused_one_go_again_after_it_in_order() {
    let mut bench = Bench::established(ProducerConfig::default());
    let (_, sent) = four(&mut bench);
    bench.answer(&sent[0], Err(refusal(Reason::Busy).retry_after(ms(100))));
    for batch in &sent[1..] {
        bench.answer(batch, Err(refusal(Reason::OutOfSequence)));
    }
    assert!(bench.sent().is_empty());
    bench.pass(ms(120));
    let again: Vec<u64> = bench.sent().iter().map(|batch| identity(batch).base_sequence.0).collect();
    assert_eq!(again, [1, 2, 3, 4]);
}

#[test]
fn a_sequence_error_at_the_head_raises_the_epoch_and_nothing_is_lost() {
    let mut bench = Bench::established(ProducerConfig::default());
    let token = bench.send("k", "a");
    bench.pump();
    let sent = bench.sent();
    bench.answer(&sent[0], Err(refusal(Reason::OutOfSequence)));
    let again = bench.sent();
    assert_eq!((identity(&again[0]).epoch.0, identity(&again[0]).base_sequence.0), (1, 0));
    bench.answer(&again[0], Ok(receipt(9)));
    assert!(bench.outcome(token).expect("resolved").is_ok());
}

#[test]
fn a_fenced_producer_passes_any_epoch_in_a_few_steps() {
    let mut bench = Bench::established(ProducerConfig::default());
    bench.send("k", "a");
    bench.pump();
    let mut epochs = Vec::new();
    for _ in 0..6 {
        let sent = bench.sent();
        epochs.push(identity(&sent[0]).epoch.0);
        bench.answer(&sent[0], Err(refusal(Reason::ProducerFenced)));
    }
    assert_eq!(epochs, [0, 1, 3, 7, 15, 31]);
}

#[test]
fn a_node_that_goes_away_gets_nothing_more_and_may_still_answer() {
    let mut bench = Bench::established(ProducerConfig::default());
    let first = bench.send("k", "a");
    bench.pump();
    let sent = bench.sent();
    bench.core.on_going_away(bench.now, NodeId(1));
    bench.send("k", "b");
    bench.pump();
    assert!(bench.sent().is_empty());
    bench.answer(&sent[0], Ok(receipt(1)));
    assert!(bench.outcome(first).expect("resolved").is_ok());
    bench.route(2, 2);
    bench.up(2);
    assert_eq!(values(&bench.sent()[0]), ["b"]);
}

#[test]
fn closing_ends_what_was_sent_as_unresolved_and_the_rest_as_not_sent() {
    let mut bench = Bench::new(ProducerConfig::default());
    let sent = bench.send("k", "a");
    bench.pump();
    bench.up(1);
    let waiting = bench.send("k", "b");
    bench.pump();
    bench.sent();
    bench.core.abort(refusal(Reason::Deadline), &mut bench.effects);
    assert!(bench.outcome(sent).expect("ended").expect_err("open").maybe_applied());
    assert!(bench.outcome(waiting).expect("ended").expect_err("not sent").decisive());
    let totals = bench.core.totals();
    assert_eq!((totals.committed, totals.refused, totals.unresolved), (0, 1, 1));
}
