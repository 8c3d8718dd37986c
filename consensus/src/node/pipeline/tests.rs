use super::*;
use quorate_proto::time::LogTime;

fn request(ticket: u64, size: usize) -> Request {
    Request {
        ticket: Ticket(ticket),
        header: BatchHeader { count: 1, ..BatchHeader::default() },
        meta: BatchMeta::default(),
        batch: Bytes::from(vec![0; size]),
    }
}

fn tickets(pending: &[Pending]) -> Vec<u64> {
    pending.iter().map(|p| p.ticket.get()).collect()
}

fn propose(pipeline: &mut Pipeline, limits: &NodeLimits, index: u64) -> usize {
    let gathered = pipeline.gather(LogTime(1).into(), limits).expect("a slot is free and something waits");
    pipeline.proposed(&gathered, Term(3), LogIndex(index));
    gathered.batches
}

#[test]
fn everything_that_waits_goes_into_one_entry_up_to_its_bound() {
    let limits = NodeLimits { entry_bytes: 10_000, ..NodeLimits::default() };
    let mut pipeline = Pipeline::default();
    for ticket in 1..=12 {
        pipeline.admit(request(ticket, 1_000));
    }
    assert!(propose(&mut pipeline, &limits, 7) < 12);
    assert!(pipeline.waiting());
}

#[test]
fn a_batch_above_the_bound_is_an_entry_of_its_own() {
    let limits = NodeLimits { entry_bytes: 10_000, ..NodeLimits::default() };
    let mut pipeline = Pipeline::default();
    for (ticket, size) in [(1, 100), (2, 50_000), (3, 100)] {
        pipeline.admit(request(ticket, size));
    }
    assert_eq!(propose(&mut pipeline, &limits, 7), 1);
    assert_eq!(propose(&mut pipeline, &limits, 8), 1);
    pipeline.flushed(LogIndex(8));
    assert_eq!(propose(&mut pipeline, &limits, 9), 1);
}

#[test]
fn at_most_two_entries_are_proposed_and_not_flushed() {
    let limits = NodeLimits { entry_bytes: 10, ..NodeLimits::default() };
    let mut pipeline = Pipeline::default();
    for ticket in 1..=3 {
        pipeline.admit(request(ticket, 100));
    }
    propose(&mut pipeline, &limits, 7);
    propose(&mut pipeline, &limits, 8);
    assert!(pipeline.gather(LogTime(1).into(), &limits).is_none());
    // Committed by two followers: the own flush still counts (W2).
    assert_eq!(tickets(&pipeline.applied(Term(3), LogIndex(7), BootTime(1))), [1]);
    assert!(pipeline.gather(LogTime(1).into(), &limits).is_none());
    pipeline.flushed(LogIndex(7));
    propose(&mut pipeline, &limits, 9);
}

#[test]
fn an_entry_of_another_term_answers_nobody() {
    let mut pipeline = Pipeline::default();
    pipeline.admit(request(1, 100));
    propose(&mut pipeline, &NodeLimits::default(), 7);
    assert!(pipeline.applied(Term(4), LogIndex(7), BootTime(1)).is_empty());
    assert_eq!(pipeline.requests(), 1);
}

#[test]
fn the_end_of_leadership_tells_undecided_from_not_proposed() {
    let mut pipeline = Pipeline::default();
    pipeline.admit(request(1, 100));
    propose(&mut pipeline, &NodeLimits::default(), 7);
    pipeline.admit(request(2, 100));
    let (undecided, waiting) = pipeline.end();
    assert_eq!(tickets(&undecided), [1]);
    assert_eq!(tickets(&waiting), [2]);
    assert!(pipeline.is_empty());
    assert_eq!(pipeline.bytes(), 0);
}

#[test]
fn the_advice_of_busy_follows_the_drain_rate() {
    let mut pipeline = Pipeline::default();
    let second = Duration::from_secs(1);
    let (mut now, limits) = (BootTime(1), NodeLimits::default());
    for index in 7..20 {
        pipeline.admit(request(index, 1_000_000 - 256));
        propose(&mut pipeline, &limits, index);
        pipeline.flushed(LogIndex(index));
        now += second;
        pipeline.applied(Term(3), LogIndex(index), now);
    }
    pipeline.admit(request(99, 500_000 - 256));
    let delay = pipeline.busy_delay();
    assert!(delay > Duration::from_millis(400) && delay < Duration::from_millis(600), "{delay:?}");
}

#[test]
fn low_priority_is_refused_first_and_core_last() {
    assert!(share(100, Priority::Low) < share(100, Priority::Normal));
    assert!(share(100, Priority::Normal) < share(100, Priority::Core));
}
