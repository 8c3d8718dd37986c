//! What `why` makes of the observers' own state, on their way through a failover and without a majority.

use std::collections::BTreeMap;

use super::harness::{World, SECRET};
use super::*;
use crate::why::{Explanation, State};

fn leading(world: &World) -> Explanation {
    let leader = world.leader().expect("observers are led");
    world.cores[&leader].why(group(), world.now).expect("the partition is known")
}

#[test]
fn a_served_partition_names_its_leader_and_for_how_long() {
    let mut world = World::serving(1);
    world.run(Duration::from_secs(5));
    let said = leading(&world);
    let led = format!("n{}", led_by(&world, group()).get());
    assert_eq!((said.state, said.leader.as_deref()), (State::Serving, Some(led.as_str())), "{said:?}");
    assert!(said.since.is_some_and(|span| span >= Duration::from_secs(5)), "{said:?}");
    assert!(said.remarks.is_empty(), "{said:?}");
    // Another observer says the same, as hearsay.
    let other = world.cores.keys().copied().find(|id| Some(*id) != world.leader()).expect("three");
    let heard = world.cores[&other].why(group(), world.now).expect("known");
    assert_eq!((heard.state, heard.leader), (State::Serving, said.leader));
    let remarks = crate::why::of_observers(&world.cores[&other].observers(world.now));
    assert!(matches!(remarks.as_slice(), [remark] if remark.text.contains("does not lead")), "{remarks:?}");
}

#[test]
fn a_silent_leader_is_explained_from_the_suspicion_to_the_successor() {
    let mut world = World::serving(1);
    let old = led_by(&world, group());
    world.nodes.values_mut().for_each(|node| node.obedient = false);
    world.silence(old, false);
    let mut seen: BTreeMap<State, Explanation> = BTreeMap::new();
    for _ in 0..300 {
        world.step();
        let said = leading(&world);
        seen.entry(said.state).or_insert(said);
    }
    let electing = &seen[&State::Electing];
    assert_eq!(electing.cause, Some(crate::arbiter::Cause::Silence));
    assert!(electing.what.contains(&format!("n{}, which led, is silent", old.get())), "{electing:?}");
    assert!(electing.since.is_some_and(|span| span >= MS(1_400)), "{electing:?}");
    assert!(electing.waits_for.contains("have not heard the old leader"), "{electing:?}");
    world.nodes.values_mut().for_each(|node| node.obedient = true);
    world.until("a successor", |w| w.all_led() && led_by(w, group()) != old);
    world.run(MS(600));
    let said = leading(&world);
    assert_eq!(said.state, State::ServingDegraded, "{said:?}");
    assert!(said.remarks[0].text.starts_with(&format!("n{} is silent", old.get())), "{:?}", said.remarks);
}

#[test]
fn a_dead_process_and_then_a_second_one_are_told_by_how_they_ended() {
    let mut world = World::serving(1);
    let old = led_by(&world, group());
    world.silence(old, true);
    world.exit_notice(old, SECRET);
    world.until("a successor", |w| w.all_led() && led_by(w, group()) != old);
    let second = led_by(&world, group());
    // One of three wins nothing.
    world.nodes.values_mut().for_each(|node| node.obedient = false);
    world.silence(second, true);
    world.exit_notice(second, SECRET);
    world.run(MS(100));
    let said = leading(&world);
    assert_eq!(said.state, State::NoMajority, "{said:?}");
    for node in [old, second] {
        let text = format!("n{} is down: its process is dead (exit notice, status -9)", node.get());
        assert!(said.remarks.iter().any(|remark| remark.text == text), "{text}: {:?}", said.remarks);
    }
}

#[test]
fn a_suspect_log_beside_a_missing_replica_needs_a_person_after_a_while() {
    let mut world = World::serving(1);
    let old = led_by(&world, group());
    let other = (1..=3).map(NodeId).find(|node| *node != old).expect("three");
    world.nodes.values_mut().for_each(|node| node.obedient = false);
    world.nodes.get_mut(&other).expect("there").reports.get_mut(&group()).expect("hosted").suspect_log = true;
    world.silence(old, true);
    world.exit_notice(old, SECRET);
    world.run(MS(700));
    assert_eq!(leading(&world).state, State::SuspectLogs, "{:?}", leading(&world));
    world.run(Duration::from_secs(16));
    let said = leading(&world);
    assert_eq!(said.state, State::NeedsOperator, "{said:?}");
    let log = format!("the log on n{}", other.get());
    assert!(said.remarks.iter().any(|remark| remark.text.starts_with(&log)), "{:?}", said.remarks);
}

#[test]
fn an_observer_that_is_alone_says_so_and_what_it_still_hears() {
    let mut world = World::serving(1);
    let all: Vec<NodeId> = world.cores.keys().copied().collect();
    for (a, b) in [(0, 1), (0, 2), (1, 2)] {
        world.cut.insert((all[a], all[b]));
    }
    world.run(Duration::from_secs(4));
    let said = world.cores[&all[0]].why(group(), world.now).expect("known");
    assert_eq!(said.state, State::ServingWithoutObservers, "{said:?}");
    assert!(said.leader.is_some());
    let old = led_by(&world, group());
    world.silence(old, false);
    world.run(Duration::from_secs(4));
    let said = world.cores[&all[0]].why(group(), world.now).expect("known");
    assert_eq!(said.state, State::ObserversWithoutMajority, "{said:?}");
    assert!(said.what.contains("does not hear observer 102 and observer 103"), "{}", said.what);
    let silent = format!("n{} is silent", old.get());
    assert!(said.remarks.iter().any(|remark| remark.text.contains(&silent)), "{:?}", said.remarks);
}

#[test]
fn a_drained_node_and_a_pin_are_remarked() {
    let mut world = World::serving(1);
    let old = led_by(&world, group());
    let request = crate::observer::event::AdminRequest::Drain { node: format!("n{}", old.get()), draining: true };
    let ticket = world.ask_admin(&request);
    world.until("the drain", |w| w.admin.contains_key(&ticket) && w.all_led() && led_by(w, group()) != old);
    world.run(MS(600));
    let said = leading(&world);
    assert_eq!(said.state, State::Serving, "{said:?}");
    assert!(said.remarks.iter().any(|remark| remark.text.contains("is being drained")), "{:?}", said.remarks);
}
