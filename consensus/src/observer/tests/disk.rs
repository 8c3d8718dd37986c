//! B4 at the observers: one whose disk hangs does not lead, and nobody notices the change.

use std::time::Duration;

use quorate_proto::control::LeaseVerdict;
use quorate_proto::ids::{NodeId, OperationId};

use super::harness::World;

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
