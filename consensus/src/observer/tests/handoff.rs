//! H1, H2 on the observer leader: checks, drains, pins, and handoffs that do not come to their end.

use std::time::Duration;

use quorate_proto::control::*;
use quorate_proto::ids::*;
use quorate_proto::refusal::Refusal;
use quorate_proto::v1::Reason;

use super::harness::{World, SECRET};
use super::{group, led_by, MS};
use crate::observer::event::AdminRequest;

fn handoff(to: u64, pin: bool) -> AdminRequest {
    AdminRequest::Handoff { topic: "default/t".to_owned(), partition: PartitionNo(0), to: format!("n{to}"), pin }
}

fn drain(node: u64, draining: bool) -> AdminRequest {
    AdminRequest::Drain { node: format!("n{node}"), draining }
}

fn refused(world: &World, ticket: Ticket) -> Refusal {
    world.admin[&ticket].clone().expect_err("refused")
}

/// The leader of the first partition, and two other nodes.
fn cast(world: &World) -> (NodeId, u64, u64) {
    let leader = led_by(world, group());
    let mut others = (1..=3).filter(|n| NodeId(*n) != leader);
    (leader, others.next().expect("a follower"), others.next().expect("a follower"))
}

#[test]
fn a_leader_moves_where_it_is_told_and_stays_there() {
    let mut world = World::serving(1);
    let (old, to, _) = cast(&world);
    let since = world.now;
    let ticket = world.ask_admin(&handoff(to, true));
    world.until("the answer", |w| w.admin.contains_key(&ticket));
    assert!(world.admin[&ticket].is_ok(), "{:?}", world.admin[&ticket]);
    assert_eq!(led_by(&world, group()), NodeId(to));
    let permits = world.permits(since);
    let planned = permits[0].2.planned.expect("a planned permit");
    assert!(permits.iter().all(|(_, _, p)| p.epoch == permits[0].2.epoch), "one permit, to every replica's node");
    assert_eq!(permits.len(), 3);
    assert_eq!(world.directory().partition(group()).expect("there").replica_on(old), Some(planned.from));
    assert!(planned.lease_from <= since);
    world.until("the pin", |w| w.directory().partition(group()).is_some_and(|p| p.pin == Some(NodeId(to))));
    world.step();
    let since = world.now;
    world.run(Duration::from_secs(10));
    assert_eq!(world.permits(since), vec![]);
    world.until("a record", |w| w.directory().failovers().iter().any(|f| f.cause == "handoff"));
}

#[test]
fn a_target_that_cannot_take_it_is_refused_with_the_reason() {
    let mut world = World::serving(1);
    let (leader, to, third) = cast(&world);
    let ticket = world.ask_admin(&handoff(leader.get(), false));
    assert_eq!(refused(&world, ticket).reason, Reason::InvalidArgument);
    let ticket = world.ask_admin(&handoff(9, false));
    assert!(refused(&world, ticket).what.contains("there are n1, n2, n3"));

    let report = |world: &mut World, node: NodeId, change: fn(&mut ReplicaReport)| {
        change(world.nodes.get_mut(&node).expect("there").reports.get_mut(&group()).expect("hosted"));
        world.beat(node);
        world.drain();
    };
    report(&mut world, leader, |r| r.matched.iter_mut().for_each(|m| m.1 = LogIndex(1)));
    report(&mut world, leader, |r| r.last_index = LogIndex(1_000));
    let ticket = world.ask_admin(&handoff(to, false));
    let lagging = refused(&world, ticket);
    assert_eq!(lagging.reason, Reason::Lagging);
    assert!(lagging.what.contains("999 entries behind"), "{lagging}");
    report(&mut world, leader, |r| r.matched.iter_mut().for_each(|m| m.1 = LogIndex(1_000)));

    world.nodes.get_mut(&NodeId(to)).expect("there").disk_ok = false;
    world.beat(NodeId(to));
    world.drain();
    let ticket = world.ask_admin(&handoff(to, false));
    let sick = refused(&world, ticket);
    assert!(sick.reason == Reason::RefusedUnsafe && sick.what.contains("disk"), "{sick}");
    world.nodes.get_mut(&NodeId(to)).expect("there").disk_ok = true;
    world.beat(NodeId(to));
    world.drain();
    let ticket = world.ask_admin(&handoff(to, false));
    let faulty = refused(&world, ticket);
    assert!(faulty.reason == Reason::RefusedUnsafe && faulty.what.contains("had a fault"), "{faulty}");

    let ticket = world.ask_admin(&drain(third, true));
    world.until("the drain", |w| w.admin.contains_key(&ticket));
    let ticket = world.ask_admin(&handoff(third, false));
    let draining = refused(&world, ticket);
    assert!(draining.reason == Reason::RefusedUnsafe && draining.what.contains("drained"), "{draining}");
    assert_eq!(led_by(&world, group()), leader, "nothing moved");
}

#[test]
fn a_leader_that_goes_on_is_left_in_office() {
    let mut world = World::serving(1);
    let (leader, to, _) = cast(&world);
    world.nodes.get_mut(&NodeId(to)).expect("there").obedient = false;
    let since = world.now;
    let ticket = world.ask_admin(&handoff(to, true));
    world.run(MS(1_000));
    assert!(!world.admin.contains_key(&ticket), "its own deadline runs");
    world.until("the answer", |w| w.admin.contains_key(&ticket));
    let refusal = refused(&world, ticket);
    assert!(refusal.reason == Reason::Lagging && refusal.what.contains("goes on"), "{refusal}");
    world.run(Duration::from_secs(5));
    assert_eq!(led_by(&world, group()), leader);
    let epochs: std::collections::BTreeSet<_> = world.permits(since).iter().map(|(_, _, p)| p.epoch).collect();
    assert_eq!(epochs.len(), 1, "and no other permit follows");
    assert_eq!(world.directory().partition(group()).expect("there").pin, None);
}

#[test]
fn a_target_that_dies_after_the_release_is_replaced_at_once() {
    let mut world = World::serving(1);
    let (leader, to, third) = cast(&world);
    world.nodes.get_mut(&NodeId(to)).expect("there").obedient = false;
    let (replica, term) = {
        let lease = world.directory().partition(group()).expect("there").lease.expect("led");
        (lease.replica, lease.term)
    };
    let ticket = world.ask_admin(&handoff(to, false));
    world.run(MS(20));
    let release = SessionUp::Release { group: group(), replica, term, for_fence: false, stood: Duration::ZERO };
    world.up(leader, release);
    world.run(MS(20));
    let since = world.now;
    assert!(world.permits(since).is_empty(), "the target still has its chance");
    world.silence(NodeId(to), true);
    world.exit_notice(NodeId(to), SECRET);
    world.until("another permit", |w| !w.permits(since).is_empty());
    assert!(world.now.since(since) < MS(200), "{:?}", world.now.since(since));
    let permit = world.permits(since).remove(0).2;
    assert!(permit.planned.is_none());
    let partition = world.directory().partition(group()).expect("there").clone();
    let candidate = partition.node_of(permit.candidate).expect("a member");
    assert!(candidate == leader || candidate == NodeId(third));
    world.until("the answer", |w| w.admin.contains_key(&ticket));
    assert_eq!(refused(&world, ticket).reason, Reason::Handoff);
}

#[test]
fn a_drained_node_loses_every_leader_and_gets_none_until_it_is_undrained() {
    let mut world = World::serving(9);
    let victim = NodeId(2);
    let led = |world: &World| (2..11).map(GroupId).filter(|g| led_by(world, *g) == victim).count();
    assert_eq!(led(&world), 3);
    let ticket = world.ask_admin(&drain(2, true));
    world.until("the answer", |w| w.admin.contains_key(&ticket));
    world.until("no leader left", |w| led(w) == 0);
    assert!(world.all_led());
    world.silence(NodeId(1), true);
    world.exit_notice(NodeId(1), SECRET);
    world.until("all led again", |w| w.all_led());
    assert_eq!(led(&world), 0, "while another node can");
    world.connect(NodeId(1));
    let ticket = world.ask_admin(&drain(2, false));
    world.until("the answer", |w| w.admin.contains_key(&ticket));
    assert!(!world.directory().node(victim).expect("there").draining);
}

#[test]
fn a_pinned_leader_returns_after_a_failover_once_its_node_was_well_for_a_while() {
    let mut world = World::serving(1);
    let (_, to, _) = cast(&world);
    let ticket = world.ask_admin(&handoff(to, true));
    world.until("the answer", |w| w.admin.contains_key(&ticket));
    world.silence(NodeId(to), true);
    world.exit_notice(NodeId(to), SECRET);
    world.until("another leader", |w| w.all_led() && led_by(w, group()) != NodeId(to));
    let node = world.nodes.get_mut(&NodeId(to)).expect("there");
    node.hello.incarnation = node.hello.incarnation.next();
    let back = world.now;
    world.connect(NodeId(to));
    world.run(Duration::from_secs(20));
    assert_ne!(led_by(&world, group()), NodeId(to), "not within 30 s of its fault");
    for _ in 0..2 {
        if led_by(&world, group()) != NodeId(to) {
            world.run(Duration::from_secs(10));
        }
    }
    assert_eq!(led_by(&world, group()), NodeId(to), "after {:?}", world.now.since(back));
}
