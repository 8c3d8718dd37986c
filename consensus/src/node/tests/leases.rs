//! Leases held, releases told, elections marked.

use quorate_proto::control::{LeaseVerdict, Role, SessionUp};
use quorate_proto::refusal::Reason;

use super::harness::{batch, Cluster, GROUP};
use crate::node::effect::Observers;
use crate::node::NodeEvent;

#[test]
fn the_first_lease_is_asked_in_the_turn_of_the_election() {
    let mut cluster = Cluster::new();
    cluster.verdict = None;
    let elected_at = cluster.now;
    cluster.permit(1);
    cluster.settle();
    let (node, request) = cluster.lease_requests.first().expect("asked without waiting for a tick");
    assert_eq!((*node, request.sent, request.write_proof), (1, elected_at, true));
    assert_eq!(request.items[0].group, GROUP);
    assert!(!cluster.serving(1), "not before the lease is granted (F1)");
    let ticket = cluster.publish(1, batch(0, 0, 1));
    assert_eq!(cluster.refusal(1, ticket).reason, Reason::Fenced);
}

#[test]
fn a_leader_without_first_lease_resigns_and_tells_it() {
    let mut cluster = Cluster::new();
    cluster.verdict = None;
    cluster.elect(1);
    assert_eq!(cluster.nodes[&1].view.role, Role::Leader);
    cluster.advance(1_100);
    assert_ne!(cluster.nodes[&1].view.role, Role::Leader);
    let released = |(to, up): &(Observers, SessionUp)| {
        *to == Observers::All && matches!(up, SessionUp::Release { group: GROUP, for_fence: false, .. })
    };
    assert!(cluster.nodes[&1].told.iter().any(released));
}

#[test]
fn a_superseded_leader_resigns_at_once() {
    let mut cluster = Cluster::led();
    cluster.verdict = Some(LeaseVerdict::Superseded);
    cluster.advance(5_200);
    assert!(!cluster.serving(1));
    assert_ne!(cluster.nodes[&1].view.role, Role::Leader);
}

#[test]
fn renewals_begin_at_five_seconds_and_prove_a_recent_flush() {
    let mut cluster = Cluster::led();
    cluster.lease_requests.clear();
    cluster.advance(4_800);
    assert!(cluster.lease_requests.is_empty());
    assert_eq!(cluster.nodes[&1].canaries, 0);
    cluster.advance(400);
    assert_eq!(cluster.lease_requests.len(), 1);
    assert_eq!(cluster.nodes[&1].canaries, 1, "an idle node flushes a canary first (L4)");
    assert!(cluster.lease_requests[0].1.write_proof);
    cluster.advance(60_000);
    assert!(cluster.serving(1), "a healthy leader serves on");
}

#[test]
fn without_proof_of_life_no_lease_is_asked_for() {
    let mut cluster = Cluster::led();
    cluster.advance(4_500);
    cluster.lease_requests.clear();
    cluster.nodes.get_mut(&1).expect("a node").hang = true;
    cluster.advance(900);
    assert!(cluster.lease_requests.is_empty());
}

#[test]
fn a_leader_that_observers_do_not_answer_serves_to_the_end_of_its_lease_only() {
    let mut cluster = Cluster::led();
    cluster.verdict = None;
    cluster.advance(7_500);
    assert!(cluster.serving(1));
    cluster.advance(400);
    assert!(!cluster.serving(1), "8 s − 250 ms from the sending (L2)");
    cluster.advance(1_100);
    assert_ne!(cluster.nodes[&1].view.role, Role::Leader, "and resigns, or its voters would protect it (F3)");
}

#[test]
fn serving_stops_before_the_release_is_told() {
    let mut cluster = Cluster::led();
    cluster.nodes.get_mut(&1).expect("a node").trace.clear();
    cluster.event(1, NodeEvent::Shutdown);
    cluster.advance(50);
    let trace = &cluster.nodes[&1].trace;
    let at = |what: &str| trace.iter().position(|line| line == what).expect(what);
    assert!(at("serve no more") < at("release"), "{trace:?}");
}

#[test]
fn the_phases_of_an_election_are_told_after_the_first_acknowledgement() {
    let mut cluster = Cluster::led();
    let phases = |cluster: &Cluster| {
        let told = cluster.nodes[&1].told.iter();
        told.filter_map(|(_, up)| if let SessionUp::Phases(marks) = up { Some(*marks) } else { None })
            .collect::<Vec<_>>()
    };
    assert!(phases(&cluster).is_empty());
    for n in 0..3 {
        cluster.publish(1, batch(0, n, 1));
        cluster.settle();
    }
    let marks = phases(&cluster);
    assert_eq!(marks.len(), 1);
    assert_eq!(marks[0].group, GROUP);
    assert!(marks[0].elected <= marks[0].noop_committed && marks[0].noop_committed <= marks[0].first_ack);
}
