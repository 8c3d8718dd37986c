//! B4 and B5 at the observers: one whose disk hangs or is nearly full does not lead, and nobody notices the change; a data
//! node with little room gives its leaders away.

use std::time::Duration;

use quorate_proto::control::{LeaseVerdict, Room};
use quorate_proto::ids::{NodeId, OperationId};
use quorate_proto::v1::Reason;

use super::harness::World;
use super::{group, led_by};
use crate::observer::ObserverEvent;
use crate::space::Free;

const MS: fn(u64) -> Duration = Duration::from_millis;

/// A change of the directory, so that there is something to flush.
fn change(world: &mut World, number: u128) {
    world.create_topic(&format!("default/t{number}"), 1, OperationId(number));
}

#[test]
fn a_leader_whose_disk_hangs_passes_its_leadership_on_and_does_not_take_it_back_while_it_hangs() {
    let mut world = World::serving(3);
    let sick = world.leader().expect("one leads");
    world.hung.insert(sick);
    let since = world.now;
    change(&mut world, 900);
    world.until("another leader", |w| w.leader().is_some_and(|leader| leader != sick));
    assert!(world.now.since(since) <= MS(1_200), "took {:?}", world.now.since(since));
    assert!(!world.cores[&sick].disk_ok());
    let verdicts = world.verdicts(since);
    assert!(verdicts.iter().all(|(_, verdict)| *verdict == LeaseVerdict::Granted), "no lease was lost: {verdicts:?}");
    for number in 901..920 {
        change(&mut world, number);
        world.run(MS(250));
        assert_ne!(world.leader(), Some(sick));
    }
    world.unhang(sick);
    world.run(MS(1_000));
    assert!(world.cores[&sick].disk_ok());
    assert_eq!(world.cores[&sick].directory().version(), world.directory().version(), "it caught up");
}

#[test]
fn an_observer_whose_disk_hangs_is_not_elected_when_the_leader_dies() {
    let mut world = World::serving(1);
    let dead = world.leader().expect("one leads");
    let mut others = world.cores.keys().copied().filter(|node| *node != dead).collect::<Vec<NodeId>>();
    let (sick, sound) = (others.remove(0), others.remove(0));
    world.hung.insert(sick);
    change(&mut world, 900);
    world.run(MS(1_500));
    world.cores.remove(&dead);
    world.run(MS(5_000));
    assert_eq!(world.leader(), None, "neither of the two can be elected without the flush of the other");
    world.unhang(sick);
    world.until("a leader", |w| w.leader().is_some());
    assert!(world.leader() == Some(sound) || world.leader() == Some(sick));
}

fn free(world: &mut World, observer: NodeId, bytes: u64) {
    world.send(observer, ObserverEvent::Space(vec![Free { bytes, inodes: None, ballast: 256 << 20 }]));
}

#[test]
fn a_data_node_with_little_room_hands_its_leaders_over_as_planned() {
    let mut world = World::serving(3);
    let scarce = led_by(&world, group());
    let since = world.now;
    world.nodes.get_mut(&scarce).expect("there").room = Room::Scarce;
    world.beat(scarce);
    world.until("another leader", |w| led_by(w, group()) != scarce);
    assert!(world.now.since(since) <= MS(200), "took {:?}", world.now.since(since));
    assert!(world.permits(since).iter().all(|(_, _, permit)| permit.planned.is_some()), "no election");
    world.nodes.values_mut().for_each(|node| node.room = Room::Full);
    // Until all have said so, the last one seems to be a way out.
    world.run(MS(2_000));
    let since = world.now;
    world.run(MS(10_000));
    assert_eq!(world.permits(since), vec![], "with little room everywhere leaders stay where they are");
}

#[test]
fn an_observer_with_little_room_passes_its_leadership_on_and_one_alone_adds_nothing() {
    let mut world = World::serving(1);
    let scarce = world.leader().expect("one leads");
    let since = world.now;
    free(&mut world, scarce, 1 << 30);
    world.until("another leader", |w| w.leader().is_some_and(|leader| leader != scarce));
    assert!(world.now.since(since) <= MS(200), "took {:?}", world.now.since(since));
    for observer in world.cores.keys().copied().collect::<Vec<NodeId>>() {
        free(&mut world, observer, 1 << 30);
    }
    world.run(MS(3_000));
    let leader = world.leader().expect("one leads all the same");
    world.run(MS(3_000));
    assert_eq!(world.leader(), Some(leader), "and nobody passes it round");
    let ticket = world.create_topic("default/more", 1, OperationId(77));
    let refusal = world.admin[&ticket].clone().expect_err("refused");
    assert_eq!((refusal.reason, refusal.maybe_applied), (Reason::StorageFull, false));
    assert!(world.all_led());
    free(&mut world, leader, 10 << 30);
    let ticket = world.create_topic("default/more", 1, OperationId(78));
    world.until("the topic", |w| w.admin.contains_key(&ticket));
    assert!(world.admin[&ticket].is_ok(), "{:?}", world.admin[&ticket]);
}
