//! B2, M1 for observers: one whose memory is gone never helps to elect a leader that lacks what was committed.

use std::collections::BTreeSet;
use std::time::Duration;

use quorate_proto::control::Memory;
use quorate_proto::ids::{NodeId, OperationId};

use super::harness::World;
use super::MS;

const A: NodeId = NodeId(101);
const B: NodeId = NodeId(102);
const C: NodeId = NodeId(103);

/// A topic that a majority committed.
fn topic(world: &mut World, name: &str) {
    let ticket = world.create_topic(name, 1, OperationId(world.now.0.into()));
    world.until("the topic", |w| w.admin.contains_key(&ticket));
    assert!(world.admin[&ticket].is_ok(), "{name}: {:?}", world.admin[&ticket]);
}

fn knows(world: &World, observer: NodeId, name: &str) -> bool {
    world.cores[&observer].directory().topic_named(name).is_some()
}

fn reconnect(world: &mut World) {
    for node in 1..=3 {
        world.connect(NodeId(node));
    }
}

/// A leads, B missed the last topic and is cut off, C has it.
fn only_two_have_it(snapshots: u64) -> World {
    let mut world = World::with_snapshots(snapshots);
    world.start(1);
    // Observers' lives with disks from the first write on.
    let leader = world.leader().expect("leads");
    for other in [A, B, C].into_iter().filter(|other| *other != leader && *other != B) {
        world.cut.insert((B, other));
    }
    if leader == B {
        world.kill(B.get());
        world.until("another leader", |w| w.leader().is_some());
        world.start_observer(B.get(), Memory::Sound);
        world.cut.clear();
        world.run(MS(500));
    }
    world.cut = [(A, B), (B, C)].into();
    world.until("A and C go on", |w| w.leader().is_some_and(|leader| leader != B));
    world.run(MS(2_000));
    reconnect(&mut world);
    topic(&mut world, "default/precious");
    world.run(MS(300));
    assert!(knows(&world, A, "default/precious") && knows(&world, C, "default/precious"));
    assert!(!knows(&world, B, "default/precious"));
    world
}

/// A is gone, C lives again with this memory: with B it must not elect. Then A comes back.
fn nothing_is_lost(mut world: World, memory: Memory) {
    world.kill(A.get());
    world.kill(C.get());
    match memory {
        Memory::Suspect => world.disks.get_mut(&C).expect("there").cut(6),
        _ => world.wipe(C.get()),
    }
    world.cut.clear();
    world.start_observer(C.get(), memory);
    for _ in 0..1_000 {
        world.step();
        world.live_again();
        assert_eq!(world.leader(), None, "B and C lack what was committed");
    }
    assert!(world.memory.iter().any(|(who, _, text)| *who == C && text.contains("101 has not answered")));
    world.start_observer(A.get(), Memory::Sound);
    world.until("A leads", |w| w.leader() == Some(A));
    world.until("C remembers", World::all_sound);
    assert!(knows(&world, C, "default/precious"));
    // It votes again, and what it votes for has everything.
    world.kill(A.get());
    world.until("B or C leads", |w| w.leader().is_some());
    let leader = world.leader().expect("leads");
    assert!(knows(&world, leader, "default/precious"));
}

#[test]
fn an_empty_disk_does_not_elect_what_lacks_committed_entries() {
    nothing_is_lost(only_two_have_it(10_000), Memory::Empty);
}

#[test]
fn a_deleted_log_does_not_elect_either() {
    nothing_is_lost(only_two_have_it(10_000), Memory::Lost);
}

#[test]
fn a_log_that_was_cut_back_does_not_elect_either() {
    nothing_is_lost(only_two_have_it(10_000), Memory::Suspect);
}

#[test]
fn what_is_compacted_comes_as_a_snapshot() {
    let mut world = only_two_have_it(4);
    for n in 0..10 {
        topic(&mut world, &format!("default/more-{n}"));
    }
    nothing_is_lost(world, Memory::Empty);
}

#[test]
fn an_empty_disk_is_filled_under_the_same_leader_and_votes_again() {
    let mut world = World::serving(1);
    let leader = world.leader().expect("leads");
    let term = world.cores[&leader].term();
    let victim = [A, B, C].into_iter().find(|other| *other != leader).expect("a follower");
    topic(&mut world, "default/precious");
    world.kill(victim.get());
    world.wipe(victim.get());
    world.run(MS(300));
    world.start_observer(victim.get(), Memory::Empty);
    world.until("it is told that it was somebody else", |w| !w.again.is_empty() || w.all_sound());
    world.live_again();
    world.until("it remembers", World::all_sound);
    assert!(knows(&world, victim, "default/precious"));
    assert_eq!((world.leader(), world.cores[&leader].term()), (Some(leader), term), "no election was needed");
    // The others' majority may change now: the third one dies, and leader and newcomer commit.
    let third = [A, B, C].into_iter().find(|other| *other != leader && *other != victim).expect("a third");
    world.kill(third.get());
    topic(&mut world, "default/later");
    world.kill(leader.get());
    world.start_observer(third.get(), Memory::Sound);
    world.until("the newcomer leads", |w| w.leader() == Some(victim));
    assert!(knows(&world, victim, "default/later"));
}

#[test]
fn a_new_disk_whose_incarnation_is_too_low_begins_another_life() {
    let mut world = World::serving(1);
    let leader = world.leader().expect("leads");
    let victim = [A, B, C].into_iter().find(|other| *other != leader).expect("a follower");
    for _ in 0..3 {
        world.kill(victim.get());
        world.start_observer(victim.get(), Memory::Sound);
        world.run(MS(300));
    }
    let before = world.disks[&victim].incarnation;
    world.kill(victim.get());
    world.wipe(victim.get());
    world.start_observer(victim.get(), Memory::Empty);
    world.until("it is told so", |w| !w.again.is_empty());
    assert_eq!(world.again[0].1.get(), before);
    world.live_again();
    assert!(world.disks[&victim].incarnation > before);
    world.until("it remembers", World::all_sound);
}

#[test]
fn a_new_cluster_begins_when_all_are_there_and_not_before() {
    let mut world = World::new();
    world.cores.clear();
    for observer in [101, 102, 103] {
        world.wipe(observer);
        world.disks.get_mut(&NodeId(observer)).expect("there").id = observer.into();
    }
    world.start_observer(101, Memory::Empty);
    world.start_observer(102, Memory::Empty);
    world.run(Duration::from_secs(5));
    assert_eq!(world.leader(), None, "the third may have a directory");
    world.start_observer(103, Memory::Empty);
    let began = world.now;
    world.until("a leader", |w| w.leader().is_some() && w.all_sound());
    assert!(world.now.since(began) < MS(1_500), "took {:?}", world.now.since(began));
}

#[test]
fn one_that_died_while_the_cluster_began_finds_its_way() {
    for after in (0..1_000).step_by(10) {
        let mut world = World::new();
        world.cores.clear();
        for observer in [101, 102, 103] {
            world.wipe(observer);
            world.disks.get_mut(&NodeId(observer)).expect("there").id = observer.into();
            world.start_observer(observer, Memory::Empty);
        }
        world.run(MS(after));
        let victim = [101, 102, 103][usize::try_from(after / 10).expect("small") % 3];
        let memory = world.cores[&NodeId(victim)].memory();
        world.kill(victim);
        world.run(MS(after % 170));
        world.start_observer(victim, memory);
        world.until("a leader", |w| w.leader().is_some() && w.all_sound());
    }
}

#[test]
fn when_all_logs_are_suspect_and_all_of_them_there_the_longest_leads() {
    let mut world = only_two_have_it(10_000);
    for observer in [A, B, C] {
        world.kill(observer.get());
    }
    world.cut.clear();
    world.disks.get_mut(&A).expect("there").cut(1);
    world.disks.get_mut(&C).expect("there").cut(3);
    for observer in [B, C] {
        world.start_observer(observer.get(), Memory::Suspect);
    }
    world.run(Duration::from_secs(5));
    assert_eq!(world.leader(), None, "two of three suspect logs prove nothing");
    world.start_observer(A.get(), Memory::Suspect);
    world.until("the longest leads", |w| w.leader() == Some(A));
    world.until("all remember", World::all_sound);
}

#[test]
fn two_that_forgot_everything_need_an_operator() {
    let mut world = World::serving(1);
    world.run(MS(300));
    for observer in [B, C] {
        world.kill(observer.get());
        world.wipe(observer.get());
    }
    for observer in [B, C] {
        world.start_observer(observer.get(), Memory::Empty);
    }
    for _ in 0..1_500 {
        world.step();
        world.live_again();
        let electors: BTreeSet<NodeId> = world.leader().into_iter().collect();
        assert!(electors.is_subset(&[A].into()), "nobody is elected by those who forgot");
    }
    assert!(
        world.cores[&B].waits_for(world.now).contains("observers-rebuild.md"),
        "{}",
        world.cores[&B].waits_for(world.now)
    );
}

/// A generator for the random runs.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// Whatever dies, whichever disk is replaced or cut back, one at a time: what was committed stays, and they go on.
#[test]
fn random_lives_lose_nothing() {
    for seed in 0..60 {
        let mut dice = Dice(seed);
        let mut world = World::with_snapshots(if seed % 2 == 0 { 10_000 } else { 8 });
        world.start(1);
        let mut committed: Vec<String> = Vec::new();
        for round in 0..12_u128 {
            let victim = 101 + dice.roll(3);
            let sound = world.all_sound();
            match dice.roll(4) {
                0 => {
                    let other = 101 + dice.roll(3);
                    world.cut.insert((NodeId(victim), NodeId(other)));
                }
                1 => world.cut.clear(),
                fault if world.cores.contains_key(&NodeId(victim)) => {
                    let before = world.cores[&NodeId(victim)].memory();
                    world.kill(victim);
                    world.run(MS(dice.roll(1_500)));
                    let memory = match (fault, sound) {
                        (2, true) => {
                            world.wipe(victim);
                            Memory::Empty
                        }
                        (3, true) => {
                            let entries = usize::try_from(dice.roll(6)).expect("small");
                            world.disks.get_mut(&NodeId(victim)).expect("there").cut(entries);
                            Memory::Suspect
                        }
                        _ => before,
                    };
                    world.start_observer(victim, memory);
                }
                _ => {}
            }
            for _ in 0..dice.roll(150) {
                world.step();
                world.live_again();
            }
            reconnect(&mut world);
            if world.leader().is_some() {
                let name = format!("default/t-{round}");
                let ticket = world.create_topic(&name, 1, OperationId(round));
                world.run(MS(200));
                if world.admin.get(&ticket).is_some_and(Result::is_ok) {
                    committed.push(name);
                }
            }
        }
        world.cut.clear();
        for _ in 0..1_500 {
            world.step();
            world.live_again();
        }
        assert!(world.leader().is_some() && world.all_sound(), "seed {seed}: {:?}", world.memory.last());
        for name in &committed {
            for observer in [A, B, C] {
                assert!(knows(&world, observer, name), "seed {seed}: {} lost {name}", observer.get());
            }
        }
        assert!(!committed.is_empty(), "seed {seed}: nothing was committed");
    }
}
