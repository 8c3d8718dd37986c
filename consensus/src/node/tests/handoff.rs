//! H1, H2: a leadership moves on purpose.

use quorate_proto::control::{Role, SessionUp};
use quorate_proto::ids::{NodeId, Term, Ticket};
use quorate_proto::refusal::Reason;

use super::harness::{batch, Cluster, GROUP};
use crate::node::NodeEvent;

fn cut_off(cluster: &mut Cluster, id: u64) {
    for other in (1..=3).filter(|other| *other != id) {
        cluster.cuts.extend([(id, other), (other, id)]);
    }
}

#[test]
fn what_is_in_flight_commits_here_and_what_is_held_commits_there_and_every_client_is_answered_once() {
    let mut cluster = Cluster::led();
    let first = cluster.publish(1, batch(0, 0, 2));
    cluster.settle();
    let in_flight = cluster.publish(1, batch(0, 2, 2));
    cluster.plan(1, 2);
    let held = cluster.publish(1, batch(0, 4, 3));
    assert!(cluster.answer(1, held).is_none(), "held, not refused");
    cluster.settle();
    cluster.advance(50);
    assert_eq!(cluster.report(2).role, Role::Leader);
    assert!(cluster.serving(2) && !cluster.serving(1));
    let (a, b, c) = (cluster.receipt(1, first), cluster.receipt(1, in_flight), cluster.receipt(1, held));
    assert_eq!((a.base_offset, b.base_offset, c.base_offset), (0, 2, 4));
    assert!(c.epoch > b.epoch, "the winner committed it");
    assert!(!c.duplicate_batch);
    cluster.advance(250);
    assert_eq!(cluster.offsets(1), cluster.offsets(2));
}

#[test]
fn the_winner_serves_under_the_lease_that_its_permit_contains() {
    let mut cluster = Cluster::led();
    cluster.verdict = None;
    cluster.lease_requests.clear();
    cluster.plan(1, 2);
    cluster.settle();
    assert!(cluster.serving(2), "no round to the observers lies in the gap");
    assert!(
        cluster.lease_requests.iter().any(|(id, _)| *id == 2),
        "it asks all the same, so that the winner is logged"
    );
}

#[test]
fn what_comes_after_the_handoff_is_sent_to_the_new_leader_by_name() {
    let mut cluster = Cluster::led();
    cluster.plan(1, 2);
    cluster.settle();
    cluster.advance(50);
    let late = cluster.publish(1, batch(0, 0, 1));
    let refusal = cluster.refusal(1, late);
    assert_eq!((refusal.reason, refusal.leader), (Reason::NotLeader, Some(NodeId(2))));
    let there = cluster.publish(2, batch(0, 0, 1));
    cluster.settle();
    assert_eq!(cluster.receipt(2, there).base_offset, 0);
}

#[test]
fn a_target_that_lags_stops_nothing_the_leader_goes_on_with_what_it_held() {
    let mut cluster = Cluster::led();
    cut_off(&mut cluster, 2);
    let before = cluster.publish(1, batch(0, 0, 1));
    cluster.settle();
    cluster.receipt(1, before);
    let term = cluster.report(1).term;
    cluster.plan(1, 2);
    let held = cluster.publish(1, batch(0, 1, 1));
    cluster.settle();
    assert!(cluster.answer(1, held).is_none());
    cluster.advance(1_100);
    assert_eq!(cluster.receipt(1, held).base_offset, 1);
    assert_eq!((cluster.report(1).role, cluster.report(1).term), (Role::Leader, term));
}

/// Node 1 leads in the term, and node 2 is cut off and lacks the newest entry.
fn behind() -> (Cluster, Term) {
    let mut cluster = Cluster::led();
    cut_off(&mut cluster, 2);
    cluster.publish(1, batch(0, 0, 1));
    cluster.settle();
    let term = cluster.report(1).term;
    (cluster, term)
}

/// What came during the handoff is in the log at once, not after the deadline, and the leader is the same.
fn goes_on(cluster: &Cluster, publish: Ticket, term: Term) {
    assert_eq!(cluster.receipt(1, publish).base_offset, 1);
    assert_eq!((cluster.report(1).term, cluster.report(1).role), (term, Role::Leader));
}

#[test]
fn a_target_that_dies_before_the_release_costs_nothing() {
    let (mut cluster, term) = behind();
    cluster.plan(1, 2);
    let held = cluster.publish(1, batch(0, 1, 1));
    cluster.event(1, NodeEvent::PeerLost(NodeId(3)));
    cluster.settle();
    assert!(cluster.answer(1, held).is_none(), "the target has not everything yet, and another peer is no reason");
    cluster.event(1, NodeEvent::PeerLost(NodeId(2)));
    cluster.settle();
    goes_on(&cluster, held, term);
}

#[test]
fn a_target_that_died_while_its_permit_was_on_its_way_costs_nothing() {
    let (mut cluster, term) = behind();
    cluster.event(1, NodeEvent::PeerLost(NodeId(2)));
    cluster.plan(1, 2);
    let there = cluster.publish(1, batch(0, 1, 1));
    cluster.settle();
    goes_on(&cluster, there, term);
}

#[test]
fn a_target_whose_connection_broke_and_came_back_takes_over() {
    let mut cluster = Cluster::led();
    cluster.event(1, NodeEvent::PeerLost(NodeId(2)));
    cluster.advance(300);
    cluster.plan(1, 2);
    cluster.settle();
    assert_eq!((cluster.report(1).role, cluster.report(2).role), (Role::Follower, Role::Leader));
}

#[test]
fn a_target_that_dies_after_the_release_leaves_no_request_unanswered_and_any_replica_may_follow() {
    let mut cluster = Cluster::led();
    cluster.advance(200);
    cut_off(&mut cluster, 2);
    cluster.plan(1, 2);
    cluster.settle();
    assert!(!cluster.serving(1), "released");
    assert!(cluster.nodes[&1].told.iter().any(|(_, up)| matches!(up, SessionUp::Release { group: GROUP, .. })));
    let held = cluster.publish(1, batch(0, 0, 1));
    cluster.advance(900);
    assert!(cluster.answer(1, held).is_none());
    cluster.advance(150);
    let refusal = cluster.refusal(1, held);
    assert_eq!(refusal.reason, Reason::Handoff);
    assert!(!refusal.maybe_applied, "it was never sent anywhere");
    cluster.elect(1);
    assert!(cluster.serving(1), "in a new term, itself included");
    let again = cluster.publish(1, batch(0, 0, 1));
    cluster.settle();
    assert_eq!(cluster.receipt(1, again).base_offset, 0);
}

#[test]
fn a_publish_that_is_held_when_the_same_replica_is_elected_again_commits_there() {
    let mut cluster = Cluster::led();
    cluster.advance(200);
    cut_off(&mut cluster, 2);
    cluster.plan(1, 2);
    cluster.settle();
    let held = cluster.publish(1, batch(0, 0, 1));
    cluster.elect(1);
    assert_eq!(cluster.receipt(1, held).base_offset, 0);
}

#[test]
fn a_forwarded_publish_whose_answer_is_lost_has_an_unknown_fate_and_one_result() {
    let mut cluster = Cluster::led();
    cluster.advance(200);
    cluster.plan(1, 2);
    let held = cluster.publish(1, batch(0, 0, 1));
    cluster.cuts.insert((2, 1));
    // The winner is heard of through nobody: node 1 learns it only when the cut heals.
    cluster.settle();
    assert!(cluster.serving(2));
    cluster.cuts.clear();
    cluster.advance(250);
    assert_eq!(cluster.receipt(1, held).base_offset, 0, "forwarded late, but within the deadline");
    let repeat = cluster.publish(2, batch(0, 0, 1));
    assert!(cluster.receipt(2, repeat).duplicate_batch);
}

#[test]
fn an_unreleased_planned_permit_elects_nobody() {
    let mut cluster = Cluster::led();
    cut_off(&mut cluster, 1);
    cluster.plan(1, 2);
    // Longer than silence would take (F + D), while the permit is valid.
    cluster.advance(2_500);
    assert!(cluster.report(1).role == Role::Follower, "it resigned for lack of contact: a release");
    assert_ne!(cluster.report(2).role, Role::Leader, "which nobody heard of");
}
