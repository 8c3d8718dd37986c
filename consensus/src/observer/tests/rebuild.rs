//! M5: all observers' disks are lost, the data nodes are whole.

use std::time::Duration;

use quorate_proto::control::Memory;
use quorate_proto::ids::{DirectoryVersion, NodeId, OperationId, PermitEpoch};
use quorate_proto::refusal::Reason;

use super::harness::World;
use super::{group, led_by, MS};
use crate::observer::event::AdminRequest;

const OBSERVERS: [u64; 3] = [101, 102, 103];

/// All observers begin anew on empty disks; the nodes come back to them.
fn wiped(world: &mut World) {
    for observer in OBSERVERS {
        world.kill(observer);
    }
    for observer in OBSERVERS {
        world.wipe(observer);
        world.disks.get_mut(&NodeId(observer)).expect("there").id += u128::from(observer);
        world.start_observer(observer, Memory::Empty);
    }
    world.until("an empty directory", |w| w.leader().is_some() && w.all_sound());
    for node in 1..=3 {
        world.connect(NodeId(node));
    }
    world.run(MS(600));
}

fn plan(world: &World) -> Result<crate::observer::RebuildPlan, Reason> {
    let leader = world.leader().expect("leads");
    world.cores[&leader].rebuild_plan(world.now).map_err(|refusal| refusal.reason)
}

fn rebuild(world: &mut World, plan: &str) -> Result<(), Reason> {
    let request = AdminRequest::Rebuild { plan: plan.to_owned(), principal: "a test".to_owned() };
    let ticket = world.ask_admin(&request);
    world.until("an answer", |w| w.admin.contains_key(&ticket));
    world.admin[&ticket].clone().map(|_| ()).map_err(|refusal| refusal.reason)
}

#[test]
fn an_intact_directory_is_not_rebuilt() {
    let mut world = World::serving(1);
    assert_eq!(plan(&world).expect_err("a directory is there"), Reason::RefusedUnsafe);
    assert_eq!(rebuild(&mut world, "0000-00"), Err(Reason::RefusedUnsafe));
}

#[test]
fn an_empty_directory_takes_nobody_over_who_knows_a_newer_one() {
    let mut world = World::serving(2);
    wiped(&mut world);
    assert!(world.directory().nodes().is_empty(), "nobody is registered");
    let leader = world.leader().expect("leads");
    assert_eq!(world.cores[&leader].observers(world.now).know_more, ["n1", "n2", "n3"]);
    let ticket = world.create_topic("default/other", 1, OperationId(9));
    world.until("an answer", |w| w.admin.contains_key(&ticket));
    assert_eq!(world.admin[&ticket].as_ref().map_err(|refusal| refusal.reason), Err(Reason::NeedsOperator));
}

/// Versions only count: an empty directory grows as well, and must not take the nodes over when it is as new by number.
#[test]
fn an_empty_directory_that_grew_is_still_another_one() {
    let mut world = World::serving(2);
    let born = world.directory().born();
    wiped(&mut world);
    assert_ne!(world.directory().born(), born, "it was begun at another time");
    for node in world.nodes.values_mut() {
        node.hello.knows = DirectoryVersion(1);
    }
    let leader = world.leader().expect("leads");
    for node in 1..=3 {
        world.connect(NodeId(node));
    }
    world.run(MS(2_000));
    assert!(world.directory().version() >= DirectoryVersion(1));
    assert!(world.directory().nodes().is_empty(), "nobody is registered");
    assert_eq!(world.cores[&leader].observers(world.now).know_more, ["n1", "n2", "n3"]);
}

#[test]
fn it_is_rebuilt_by_a_plan_once_the_old_leases_have_ended_and_fences_everything_older() {
    let mut world = World::serving(2);
    let (before, leader_before) = (world.directory().clone(), led_by(&world, group()));
    let lease = before.partition(group()).and_then(|p| p.lease).expect("a lease");
    wiped(&mut world);
    assert_eq!(plan(&world).expect_err("a lease may run"), Reason::RefusedUnsafe);
    world.run(Duration::from_secs(14));
    for node in world.nodes.values_mut() {
        for report in node.reports.values_mut() {
            report.seen_epoch = PermitEpoch(77);
        }
    }
    world.run(MS(600));
    let shown = plan(&world).expect("a plan");
    assert!(shown.effect[0].contains("kept by n1, n2, n3"), "{:?}", shown.effect);
    assert!(shown.effect.iter().any(|line| line.contains("goes on")), "{:?}", shown.effect);
    assert_eq!(rebuild(&mut world, "0000-00"), Err(Reason::PlanStale));
    assert!(world.directory().nodes().is_empty(), "showing a plan does nothing");
    rebuild(&mut world, &shown.token).expect("done");
    world.until("all led", World::all_led);
    let after = world.directory().clone();
    assert_eq!(led_by(&world, group()), leader_before, "whoever leads goes on");
    let partition = after.partition(group()).expect("there");
    assert_eq!(partition.replicas, before.partition(group()).expect("there").replicas);
    assert!(partition.permit_epoch > PermitEpoch(77) && partition.lease.expect("leased").term >= lease.term);
    assert!(after.version() > before.version() && after.topology() > before.topology());
    assert!(partition.uncleared.len() >= 3, "no earlier permit is known to be over");
    assert!(after.audit().back().expect("a record").verb.contains("observer rebuild"));
    assert_eq!(rebuild(&mut world, &shown.token), Err(Reason::RefusedUnsafe), "once is enough");
    // Ids of what is made now are beyond whatever the lost observers may have given out.
    let newest = before.partitions().keys().max().copied().expect("some");
    let ticket = world.create_topic("default/new", 1, OperationId(10));
    world.until("the topic", |w| w.admin.contains_key(&ticket));
    let made = world.directory().topic_named("default/new").expect("made").groups[0];
    assert!(made.get() > newest.get() + 1_000, "{made}");
    // And elections go on, with permits that the voters take for the newest.
    world.silence(leader_before, true);
    world.exit_notice(leader_before, super::SECRET);
    world.until("another leader", |w| w.all_led() && led_by(w, group()) != leader_before);
}

#[test]
fn with_too_few_nodes_it_is_refused() {
    let mut world = World::serving(1);
    for observer in OBSERVERS {
        world.kill(observer);
    }
    for observer in OBSERVERS {
        world.wipe(observer);
        world.disks.get_mut(&NodeId(observer)).expect("there").id += u128::from(observer);
        world.start_observer(observer, Memory::Empty);
    }
    world.until("an empty directory", |w| w.leader().is_some() && w.all_sound());
    assert_eq!(plan(&world).expect_err("nobody told"), Reason::RefusedUnsafe);
    world.connect(NodeId(1));
    world.run(Duration::from_secs(15));
    assert_eq!(plan(&world).expect_err("one of three replicas"), Reason::RefusedUnsafe);
    world.connect(NodeId(2));
    world.run(MS(600));
    assert!(plan(&world).expect("two of three").effect.iter().any(|line| line.contains("not heard: n3")));
}

#[test]
fn a_partition_without_majority_does_not_keep_the_others_waiting() {
    let mut world = World::serving(2);
    let groups: Vec<_> = world.directory().partitions().keys().copied().collect();
    let other = groups.into_iter().find(|known| *known != group()).expect("two partitions");
    let before = world.directory().partition(other).expect("there").permit_epoch;
    wiped(&mut world);
    world.run(Duration::from_secs(14));
    for node in [1, 2] {
        world.nodes.get_mut(&NodeId(node)).expect("there").reports.remove(&other);
    }
    world.run(MS(600));
    let shown = plan(&world).expect("a plan");
    assert!(shown.effect[1].contains("only 1 of 3 replicas report"), "{:?}", shown.effect);
    rebuild(&mut world, &shown.token).expect("done");
    let led = |w: &World| w.directory().partition(group()).is_some_and(|p| p.lease.is_some());
    world.until("the other one is led", led);
    let after = world.directory().partition(other).expect("there").permit_epoch;
    assert!(after.get() > before.get() + (1 << 40), "no permit of the lost observers is as new: {after}");
}
