//! Admission, answers, reads.

use quorate_proto::batch::{BatchIdentity, Priority};
use quorate_proto::ids::{NodeId, Offset, ProducerId, Sequence, Term};
use quorate_proto::refusal::Reason;
use quorate_proto::time::BootTime;

use super::harness::{batch, sized_batch, Cluster};
use crate::node::{NodeEvent, NodeLimits};

fn anonymous(priority: Priority, size: usize) -> bytes::Bytes {
    sized_batch(priority, BatchIdentity::default(), 1, size)
}

#[test]
fn a_publish_is_answered_once_a_majority_has_flushed_it() {
    let mut cluster = Cluster::led();
    for id in [2, 3] {
        cluster.nodes.get_mut(&id).expect("a node").hang = true;
    }
    let ticket = cluster.publish(1, batch(0, 0, 3));
    cluster.settle();
    assert_eq!(cluster.answer(1, ticket), None, "one flush is no majority (W1)");
    cluster.nodes.get_mut(&3).expect("a node").hang = false;
    cluster.settle();
    let receipt = cluster.receipt(1, ticket);
    assert_eq!((receipt.base_offset, receipt.count, receipt.duplicate_batch), (0, 3, false));
    assert_eq!(receipt.durable_on, [1, 3]);
    assert!(receipt.log_time_us > 0, "log time comes from cluster time (W5)");
}

#[test]
fn two_followers_commit_while_the_leaders_own_flush_hangs() {
    let mut cluster = Cluster::led();
    cluster.nodes.get_mut(&1).expect("a node").hang = true;
    let ticket = cluster.publish(1, batch(0, 0, 1));
    cluster.settle();
    assert_eq!(cluster.receipt(1, ticket).durable_on, [2, 3]);
}

#[test]
fn the_record_is_readable_before_its_publisher_hears_of_it() {
    let mut cluster = Cluster::led();
    cluster.nodes.get_mut(&1).expect("a node").trace.clear();
    cluster.publish(1, batch(0, 0, 2));
    cluster.settle();
    let trace = &cluster.nodes[&1].trace;
    let at = |what: &str| trace.iter().position(|line| line.starts_with(what)).expect(what);
    assert!(at("append") < at("view 2") && at("view 2") < at("answer"), "{trace:?}");
}

#[test]
fn everything_of_a_turn_goes_into_one_entry() {
    let mut cluster = Cluster::led();
    let before = cluster.nodes[&1].core.status(cluster.now).counters.proposed;
    let (tickets, events): (Vec<_>, Vec<_>) = (0..100).map(|n| cluster.publish_event(batch(0, n, 1))).unzip();
    cluster.turn(1, events);
    cluster.settle();
    for (n, ticket) in tickets.into_iter().enumerate() {
        assert_eq!(cluster.receipt(1, ticket).base_offset, n as u64);
    }
    assert_eq!(cluster.nodes[&1].core.status(cluster.now).counters.proposed - before, 1);
}

#[test]
fn a_follower_names_the_leader() {
    let mut cluster = Cluster::led();
    let ticket = cluster.publish(2, batch(0, 0, 1));
    let refusal = cluster.refusal(2, ticket);
    assert_eq!((refusal.reason, refusal.leader, refusal.maybe_applied), (Reason::NotLeader, Some(NodeId(1)), false));
}

#[test]
fn nobody_leads_and_the_refusal_says_so() {
    let mut cluster = Cluster::new();
    let ticket = cluster.publish(2, batch(0, 0, 1));
    assert_eq!(cluster.refusal(2, ticket).reason, Reason::NoLeader);
}

#[test]
fn a_partition_that_is_not_here_is_refused() {
    let mut cluster = Cluster::led();
    let (ticket, event) = cluster.publish_event(batch(0, 0, 1));
    let NodeEvent::Publish(mut publish) = event else { panic!("a publish") };
    publish.group = quorate_proto::ids::GroupId(99);
    cluster.event(1, NodeEvent::Publish(publish));
    assert_eq!(cluster.refusal(1, ticket).reason, Reason::StaleIncarnation);
}

#[test]
fn a_repeated_batch_gets_its_first_result_without_a_new_entry() {
    let mut cluster = Cluster::led();
    let first = cluster.publish(1, batch(0, 0, 3));
    cluster.settle();
    let proposed = cluster.nodes[&1].core.status(cluster.now).counters.proposed;
    let again = cluster.publish(1, batch(0, 0, 3));
    let (first, again) = (cluster.receipt(1, first), cluster.receipt(1, again));
    assert!(again.duplicate_batch);
    assert_eq!((first.base_offset, first.log_time_us), (again.base_offset, again.log_time_us));
    assert_eq!(cluster.nodes[&1].core.status(cluster.now).counters.proposed, proposed);
}

#[test]
fn a_copy_of_something_in_flight_gets_the_one_true_result() {
    let mut cluster = Cluster::led();
    let first = cluster.publish(1, batch(0, 0, 3));
    let copy = cluster.publish(1, batch(0, 0, 3));
    cluster.settle();
    assert!(!cluster.receipt(1, first).duplicate_batch);
    assert!(cluster.receipt(1, copy).duplicate_batch);
    assert_eq!(cluster.nodes[&1].view.high_watermark, Offset(3));
}

#[test]
fn the_next_sequence_counts_what_is_in_flight() {
    let mut cluster = Cluster::led();
    let known = cluster.publish(1, batch(0, 0, 1));
    cluster.settle();
    cluster.receipt(1, known);
    let first = cluster.publish(1, batch(0, 1, 3));
    let gap = cluster.publish(1, batch(0, 9, 1));
    let next = cluster.publish(1, batch(0, 4, 1));
    let refusal = cluster.refusal(1, gap);
    assert_eq!((refusal.reason, refusal.expected), (Reason::OutOfSequence, Some(Sequence(4))));
    cluster.settle();
    assert_eq!(cluster.receipt(1, first).base_offset, 1);
    assert_eq!(cluster.receipt(1, next).base_offset, 4);
}

#[test]
fn a_late_publish_is_not_admitted() {
    let mut cluster = Cluster::led();
    let (ticket, event) = cluster.publish_event(batch(0, 0, 1));
    let NodeEvent::Publish(mut publish) = event else { panic!("a publish") };
    publish.deadline = BootTime(1);
    cluster.event(1, NodeEvent::Publish(publish));
    let refusal = cluster.refusal(1, ticket);
    assert_eq!((refusal.reason, refusal.maybe_applied), (Reason::Deadline, false));
}

#[test]
fn a_full_partition_is_busy_lowest_priority_first() {
    let limits = NodeLimits { partition_pending_bytes: 10_000, ..NodeLimits::default() };
    let mut cluster = Cluster::led_with(&limits);
    for id in [2, 3] {
        cluster.nodes.get_mut(&id).expect("a node").hang = true;
    }
    for _ in 0..4 {
        cluster.publish(1, anonymous(Priority::Low, 1_000));
    }
    let low = cluster.publish(1, anonymous(Priority::Low, 1_000));
    let refusal = cluster.refusal(1, low);
    assert_eq!((refusal.reason, refusal.maybe_applied), (Reason::Busy, false));
    assert!(refusal.retry_after.is_some());
    let mut normal = cluster.publish(1, anonymous(Priority::Normal, 1_000));
    assert_eq!(cluster.answer(1, normal), None, "there is room for normal priority");
    while cluster.answer(1, normal).is_none() {
        normal = cluster.publish(1, anonymous(Priority::Normal, 1_000));
    }
    assert_eq!(cluster.refusal(1, normal).reason, Reason::Busy);
    let core = cluster.publish(1, anonymous(Priority::Core, 100));
    assert_eq!(cluster.answer(1, core), None, "core comes last");
}

#[test]
fn the_nodes_budget_is_given_back_with_the_answers() {
    let mut cluster = Cluster::led();
    cluster.publish(1, batch(0, 0, 3));
    assert!(cluster.nodes[&1].core.status(cluster.now).pending_bytes > 0);
    cluster.settle();
    assert_eq!(cluster.nodes[&1].core.status(cluster.now).pending_bytes, 0);
}

#[test]
fn storage_that_is_behind_makes_the_partition_busy() {
    let mut cluster = Cluster::led();
    let bytes = NodeLimits::default().storage_backlog_bytes;
    cluster.event(1, NodeEvent::StorageBacklog { group: super::harness::GROUP, bytes });
    let ticket = cluster.publish(1, batch(0, 0, 1));
    assert_eq!(cluster.refusal(1, ticket).reason, Reason::Busy);
}

#[test]
fn a_read_of_the_end_is_confirmed_by_the_majority() {
    let mut cluster = Cluster::led();
    cluster.publish(1, batch(0, 0, 3));
    cluster.settle();
    let ticket = cluster.read(1);
    assert_eq!(cluster.read_answer(1, ticket), None, "not before the majority confirmed (R1)");
    cluster.settle();
    let term: Term = cluster.nodes[&1].view.term;
    assert_eq!(cluster.read_answer(1, ticket), Some(Ok((Offset(3), term))));
}

#[test]
fn a_leader_without_majority_answers_no_read_and_decides_nothing() {
    let mut cluster = Cluster::led();
    cluster.publish(1, batch(0, 0, 1));
    cluster.settle();
    cluster.cuts.extend([(1, 2), (1, 3), (2, 1), (3, 1)]);
    let read = cluster.read(1);
    let proposed = cluster.publish(1, batch(0, 1, 1));
    cluster.settle();
    assert_eq!(cluster.answer(1, proposed), None);
    cluster.advance(1_250);
    assert!(!cluster.serving(1));
    let fenced = cluster.publish(1, batch(0, 2, 1));
    assert_eq!(cluster.refusal(1, fenced).reason, Reason::Fenced);
    cluster.advance(400);
    assert!(cluster.read_answer(1, read).expect("answered at the resignation").is_err());
    let refusal = cluster.refusal(1, proposed);
    assert!(refusal.maybe_applied, "it is in the log of a resigned leader (W4)");
    assert_eq!(refusal.reason, Reason::NoLeader);
}

#[test]
fn what_was_never_proposed_is_refused_decisively() {
    let mut cluster = Cluster::led();
    cluster.nodes.get_mut(&1).expect("a node").hang = true;
    cluster.cuts.extend([(1, 2), (1, 3), (2, 1), (3, 1)]);
    let tickets: Vec<_> = (0..4).map(|n| cluster.publish(1, batch(0, n, 1))).collect();
    cluster.advance(1_900);
    let fates: Vec<bool> = tickets.iter().map(|ticket| cluster.refusal(1, *ticket).maybe_applied).collect();
    assert_eq!(fates, [true, true, false, false], "two entries were in the log");
}

#[test]
fn a_new_leader_answers_what_the_old_one_left_undecided() {
    let mut cluster = Cluster::led();
    let lost = cluster.publish(1, batch(0, 0, 2));
    // The followers have it; their answers never reach the leader.
    cluster.cuts.extend([(2, 1), (3, 1)]);
    cluster.settle();
    cluster.advance(1_600);
    assert!(cluster.refusal(1, lost).maybe_applied);
    cluster.cuts.clear();
    cluster.elect(2);
    let again = cluster.publish(2, batch(0, 0, 2));
    cluster.settle();
    let receipt = cluster.receipt(2, again);
    assert!(receipt.duplicate_batch, "one copy, and its first result");
    assert_eq!(receipt.base_offset, 0);
    let fresh = cluster.publish(
        2,
        sized_batch(Priority::Normal, BatchIdentity { producer: ProducerId(4), ..BatchIdentity::default() }, 1, 8),
    );
    cluster.settle();
    assert_eq!(cluster.receipt(2, fresh).base_offset, 2);
    cluster.advance(500);
    assert_eq!(cluster.digest(1), cluster.digest(2));
    assert_eq!(cluster.offsets(1), cluster.offsets(2));
}
