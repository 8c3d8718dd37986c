//! Linearizable reads (R1).

use quorate_proto::control::Ended;
use quorate_proto::ids::ReplicaId;

use super::harness::{led, Cluster};
use crate::policy::Production;
use crate::replica::Mode;

#[test]
fn a_read_is_answered_with_the_commit_index_once_a_majority_confirms() {
    let mut cluster = led::<Production>();
    let (_, index) = cluster.propose(1, "a");
    cluster.read(1, 1);
    assert_eq!(cluster.reads(1), [(1, Some(index.0))]);
    cluster.isolate(1);
    cluster.read(1, 2);
    cluster.run(500);
    assert_eq!(cluster.reads(1).len(), 1, "nobody confirmed");
    cluster.cuts.clear();
    cluster.run(300);
    assert_eq!(cluster.reads(1).len(), 2, "the next heartbeat asks again");
}

#[test]
fn many_reads_share_few_rounds() {
    let mut cluster = led::<Production>();
    cluster.run(100);
    cluster.take_effects(1);
    for ticket in 0..100 {
        cluster.act(1, |r, now, out| r.read_index(now, quorate_proto::ids::Ticket(ticket), out));
    }
    assert!(cluster.wire.len() <= 4, "two rounds to two followers: {}", cluster.wire.len());
    cluster.deliver();
    assert_eq!(cluster.reads(1).len(), 100);
}

#[test]
fn a_change_of_term_fails_every_read_that_waits() {
    let mut cluster = led::<Production>();
    cluster.run(300);
    let term = cluster.replica(1).term();
    cluster.isolate(1);
    cluster.read(1, 1);
    cluster.permit(2, 2, &[Ended::Released { replica: ReplicaId(1), term }], false);
    cluster.cuts.clear();
    cluster.run(500);
    assert_eq!(cluster.reads(1), [(1, None)]);
    cluster.read(1, 2);
    assert_eq!(cluster.reads(1), [(1, None), (2, None)], "a follower answers none");
}

#[test]
fn a_read_before_the_leaders_own_no_op_waits_for_it() {
    let mut cluster = Cluster::<Production>::new(Mode::Governed, 3);
    for id in 1..=3 {
        cluster.nodes.get_mut(&id).unwrap().hold_flush = false;
    }
    cluster.keep = Some(raft::eraftpb::MessageType::MsgAppend);
    cluster.permit(1, 1, &[], true);
    assert_eq!(cluster.leader(), Some(1));
    cluster.read(1, 1);
    assert!(cluster.reads(1).is_empty());
    cluster.keep = None;
    for envelope in std::mem::take(&mut cluster.kept) {
        cluster.hand_over(envelope);
    }
    cluster.deliver();
    assert_eq!(cluster.reads(1), [(1, Some(6))]);
}
