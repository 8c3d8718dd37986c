//! B5: what a node with little room on its disks does, and what the others do.

use quorate_proto::control::Room;
use quorate_proto::refusal::Reason;

use super::harness::{batch, Cluster};
use crate::node::{NodeEvent, NodeLimits};
use crate::space::{Free, Marks};

const MIB: u64 = 1 << 20;

fn limits() -> NodeLimits {
    let marks = Marks { soft_bytes: 100 * MIB, hard_bytes: 50 * MIB, soft_inodes: 0, hard_inodes: 0, ballast_bytes: 0 };
    NodeLimits { marks, ..NodeLimits::default() }
}

fn free(cluster: &mut Cluster, id: u64, mib: u64) {
    cluster.event(id, NodeEvent::Space(vec![Free { bytes: mib * MIB, inodes: None, ballast: 0 }]));
}

/// Long enough that a full replica takes nothing more, and that its leader knows.
const KNOWN: u64 = 1_500;

#[test]
fn a_leader_with_little_room_refuses_publishes_says_so_at_once_and_goes_on_with_the_rest() {
    let mut cluster = Cluster::led_with(&limits());
    let before = cluster.publish(1, batch(0, 0, 1));
    cluster.nodes.get_mut(&1).expect("a node").told.clear();
    free(&mut cluster, 1, 99);
    let refused = cluster.publish(1, batch(0, 1, 1));
    let refusal = cluster.refusal(1, refused);
    assert_eq!((refusal.reason, refusal.maybe_applied), (Reason::StorageFull, false));
    assert!(refusal.retry_after.is_some(), "{refusal}");
    assert_eq!(cluster.heartbeats(1).last().map(|beat| (beat.room, beat.partial)), Some((Room::Scarce, true)));
    cluster.settle();
    cluster.receipt(1, before);
    let again = cluster.publish(1, batch(0, 0, 1));
    assert!(cluster.receipt(1, again).duplicate_batch, "what is known is answered");
    let read = cluster.read(1);
    cluster.settle();
    assert!(cluster.read_answer(1, read).expect("answered").is_ok());
    cluster.plan(1, 2);
    cluster.advance(200);
    assert!(cluster.serving(2) && !cluster.serving(1), "it hands over");
    free(&mut cluster, 1, 1_000);
    assert_eq!(cluster.heartbeats(1).last().expect("told").room, Room::Ample);
}

#[test]
fn a_full_follower_takes_no_records_follows_and_votes_and_catches_up_with_room() {
    let mut cluster = Cluster::led_with(&limits());
    free(&mut cluster, 3, 10);
    cluster.advance(KNOWN);
    let at = cluster.report(3).last_index;
    for sequence in 0..20 {
        let ticket = cluster.publish(1, batch(0, sequence, 1));
        cluster.settle();
        assert_eq!(cluster.receipt(1, ticket).durable_on, [1, 2]);
    }
    cluster.advance(1_000);
    assert_eq!(cluster.report(3).last_index, at, "nothing was appended");
    assert!(!cluster.report(3).leader_silent && cluster.serving(1));
    // It votes, and takes the new leader's no-op once it may have what lies before it.
    cluster.plan(1, 2);
    cluster.advance(200);
    assert!(cluster.serving(2));
    assert_eq!(cluster.report(3).leader, cluster.report(2).leader);
    free(&mut cluster, 3, 1_000);
    cluster.advance(1_000);
    assert_eq!(cluster.report(3).last_index, cluster.report(2).last_index);
    assert_eq!(cluster.offsets(3), cluster.offsets(2));
    assert_eq!(cluster.digest(3), cluster.digest(2));
}

#[test]
fn with_a_majority_of_full_disks_publishes_are_refused_and_nothing_is_left_undecided() {
    let mut cluster = Cluster::led_with(&limits());
    let before = cluster.publish(1, batch(0, 0, 1));
    free(&mut cluster, 2, 10);
    free(&mut cluster, 3, 10);
    cluster.settle();
    cluster.receipt(1, before);
    cluster.advance(300);
    // The followers said so with their next answers, and would still have taken what was under way.
    let refused = cluster.publish(1, batch(0, 1, 1));
    let refusal = cluster.refusal(1, refused);
    assert_eq!((refusal.reason, refusal.maybe_applied), (Reason::StorageFull, false));
    cluster.advance(KNOWN);
    assert!(cluster.serving(1), "reads go on");
    // A new leader's no-op carries no records.
    cluster.plan(1, 2);
    cluster.advance(200);
    assert!(cluster.serving(2), "elections go on");
    let full = cluster.publish(2, batch(0, 1, 1));
    assert_eq!(cluster.refusal(2, full).reason, Reason::StorageFull);
    for id in 2..=3 {
        free(&mut cluster, id, 1_000);
    }
    cluster.advance(500);
    let after = cluster.publish(2, batch(0, 1, 1));
    cluster.settle();
    assert_eq!(cluster.receipt(2, after).base_offset, 1);
    // The commit index rides on the next heartbeat.
    cluster.advance(300);
    assert_eq!(cluster.offsets(2), cluster.offsets(3));
}

#[test]
fn everything_full_and_restarted_elects_and_reads() {
    let mut cluster = Cluster::led_with(&limits());
    let ticket = cluster.publish(1, batch(0, 0, 2));
    cluster.settle();
    cluster.receipt(1, ticket);
    for id in 1..=3 {
        free(&mut cluster, id, 10);
    }
    cluster.advance(KNOWN);
    for id in 1..=3 {
        cluster.kill(id);
    }
    for id in 1..=3 {
        cluster.restart(id);
        free(&mut cluster, id, 10);
    }
    cluster.advance(KNOWN);
    cluster.elect(3);
    assert!(cluster.serving(3));
    let read = cluster.read(3);
    cluster.settle();
    let (end, _) = cluster.read_answer(3, read).expect("answered").expect("served");
    assert_eq!(end.get(), 2);
}
