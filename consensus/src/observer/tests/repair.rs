//! Lost members are replaced (M1, M2), and only where it is safe (M4).

use quorate_proto::control::{ChangePhase, ChangeReport, Role};

use super::*;

const PATIENCE: Duration = Duration::from_secs(30);

fn kill(world: &mut World, node: u64) {
    world.silence(NodeId(node), true);
    let ticket = world.exit_notice(NodeId(node), SECRET);
    world.until("the death is logged", |w| w.exits.contains_key(&ticket));
}

/// The node comes up again with an empty disk.
fn wipe(world: &mut World, node: u64, incarnation: u64) {
    let data = world.nodes.get_mut(&NodeId(node)).expect("known");
    data.hello.incarnation = Incarnation(incarnation);
    data.hello.disk = DiskId(u128::from(node) + 1_000);
    data.hello.fresh = true;
    data.reports.clear();
    world.connect(NodeId(node));
}

fn follower(world: &World, group: GroupId) -> NodeId {
    let leader = led_by(world, group);
    *world.nodes.keys().find(|node| **node != leader).expect("three nodes")
}

/// What the leader of the group says of a change.
fn say(world: &mut World, group: GroupId, change: impl Fn(&quorate_proto::control::Change, &mut ChangeReport)) {
    let leader = led_by(world, group);
    let Some(wanted) = world.directory().partition(group).and_then(|p| p.change) else { return };
    let members = world.directory().partition(group).expect("there").replicas.clone();
    let mut report = ChangeReport {
        task: wanted.task,
        phase: wanted.phase,
        voters: members.iter().map(|(replica, _)| *replica).collect(),
        ..ChangeReport::default()
    };
    change(&wanted, &mut report);
    let data = world.nodes.get_mut(&leader).expect("known");
    data.reports.get_mut(&group).expect("it leads").change = Some(report);
    world.beat(leader);
    world.drain();
}

#[test]
fn a_new_disk_is_turned_away_while_the_old_process_lives_and_told_its_incarnation_once_it_is_dead() {
    let mut world = World::serving(1);
    let mut other = hello(2, 9);
    other.disk = DiskId(77);
    other.fresh = true;
    let leader = world.leader().expect("led");
    let turned_away = |world: &mut World, hello: &Hello| {
        let session = world.ticket();
        world.send(leader, ObserverEvent::SessionOpened { session });
        let mut out = Vec::new();
        let now = world.now;
        let event = ObserverEvent::Session { session, message: Box::new(SessionUp::Hello(hello.clone())) };
        world.cores.get_mut(&leader).expect("known").handle(now, event, &mut out);
        out.into_iter().find_map(|effect| match effect {
            ObserverEffect::Session { message, .. } => match *message {
                SessionDown::Refused { fatal, raise_above, .. } => Some((fatal, raise_above)),
                _ => None,
            },
            _ => None,
        })
    };
    assert_eq!(turned_away(&mut world, &other), Some((false, None)), "another process of that node runs");
    kill(&mut world, 2);
    other.incarnation = Incarnation(1);
    assert_eq!(turned_away(&mut world, &other), Some((false, Some(Incarnation(1)))), "it must start above it");
    other.incarnation = Incarnation(2);
    assert_eq!(turned_away(&mut world, &other), None);
}

#[test]
fn a_wiped_node_is_repaired_after_half_a_minute_on_the_same_node() {
    let mut world = World::serving(1);
    let lost = follower(&world, group());
    let old = world.directory().partition(group()).and_then(|p| p.replica_on(lost)).expect("hosted");
    kill(&mut world, lost.get());
    wipe(&mut world, lost.get(), 2);
    world.until("the disk is known as lost", |w| {
        w.directory().partition(group()).is_some_and(|p| p.lost.contains(&old))
    });
    world.run(PATIENCE - Duration::from_secs(2));
    assert_eq!(world.directory().partition(group()).and_then(|p| p.change), None, "not yet");
    world.run(Duration::from_secs(3));
    let change = world.directory().partition(group()).and_then(|p| p.change).expect("it begins by itself");
    assert_eq!((change.remove, change.node, change.phase), (old, lost, ChangePhase::Learn));
    // The leader tells how far it is.
    say(&mut world, group(), |wanted, report| report.learners = vec![wanted.add]);
    world.run(Duration::from_secs(2));
    let phase = |world: &World| world.directory().partition(group()).and_then(|p| p.change).map(|c| c.phase);
    assert_eq!(phase(&world), Some(ChangePhase::Learn), "it has not caught up");
    say(&mut world, group(), |wanted, report| {
        report.learners = vec![wanted.add];
        report.caught_up = true;
    });
    world.until("promotion", |w| phase(w) == Some(ChangePhase::Promote));
    say(&mut world, group(), |wanted, report| {
        report.voters.retain(|replica| *replica != wanted.remove);
        report.voters.push(wanted.add);
    });
    world.until("the end", |w| phase(w).is_none());
    let partition = world.directory().partition(group()).expect("there");
    assert_eq!(partition.replica_on(lost), Some(change.add));
    assert!(partition.lost.is_empty());
}

#[test]
fn nothing_is_repaired_while_another_member_is_not_healthy() {
    let mut world = World::serving(1);
    let lost = follower(&world, group());
    let leader = led_by(&world, group());
    let other = *world.nodes.keys().find(|node| **node != lost && **node != leader).expect("the third");
    world.nodes.get_mut(&other).expect("known").reports.get_mut(&group()).expect("hosted").suspect_log = true;
    kill(&mut world, lost.get());
    wipe(&mut world, lost.get(), 2);
    world.run(PATIENCE * 3);
    assert_eq!(world.directory().partition(group()).and_then(|p| p.change), None, "M4");
}

#[test]
fn a_damaged_replica_is_repaired_and_a_stopped_node_without_a_spare_one_is_waited_for() {
    let mut world = World::serving(1);
    let victim = follower(&world, group());
    kill(&mut world, victim.get());
    world.run(PATIENCE * 2);
    assert_eq!(world.directory().partition(group()).and_then(|p| p.change), None, "there is no spare node");
    let mut world = World::serving(1);
    let victim = follower(&world, group());
    world.nodes.get_mut(&victim).expect("known").reports.get_mut(&group()).expect("hosted").role = Role::Quarantined;
    world.run(PATIENCE + Duration::from_secs(2));
    let change = world.directory().partition(group()).and_then(|p| p.change).expect("repaired");
    assert_eq!(change.node, victim);
}

#[test]
fn a_change_whose_new_replica_lost_its_disk_too_is_given_up() {
    let mut world = World::serving(1);
    let lost = follower(&world, group());
    kill(&mut world, lost.get());
    wipe(&mut world, lost.get(), 2);
    world.run(PATIENCE + Duration::from_secs(2));
    let change = world.directory().partition(group()).and_then(|p| p.change).expect("it begins by itself");
    kill(&mut world, lost.get());
    let data = world.nodes.get_mut(&lost).expect("known");
    data.hello.disk = DiskId(4_000);
    data.hello.incarnation = Incarnation(3);
    data.reports.clear();
    world.connect(lost);
    world.until("it is given up", |w| {
        let change = w.directory().partition(group()).and_then(|p| p.change);
        change.is_none_or(|c| c.phase == ChangePhase::Cancel)
    });
    say(&mut world, group(), |_, _| {});
    world.until("its end", |w| w.directory().task(change.task).is_some_and(|task| task.ended.is_some()));
    world.run(PATIENCE + Duration::from_secs(2));
    let again = world.directory().partition(group()).and_then(|p| p.change).expect("the next repair");
    assert!(again.task > change.task && again.add > change.add);
}

#[test]
fn a_member_on_its_way_out_is_permitted_no_more() {
    let mut world = World::serving(1);
    let victim = follower(&world, group());
    world.nodes.get_mut(&victim).expect("known").reports.get_mut(&group()).expect("hosted").role = Role::Quarantined;
    world.run(PATIENCE + Duration::from_secs(2));
    say(&mut world, group(), |wanted, report| {
        report.learners = vec![wanted.add];
        report.caught_up = true;
    });
    let phase = |world: &World| world.directory().partition(group()).and_then(|p| p.change).map(|c| c.phase);
    world.until("promotion", |w| phase(w) == Some(ChangePhase::Promote));
    let change = world.directory().partition(group()).and_then(|p| p.change).expect("under way");
    let since = world.now;
    let leader = led_by(&world, group()).get();
    kill(&mut world, leader);
    world.run(Duration::from_secs(5));
    let permits = world.permits(since);
    assert!(!permits.is_empty());
    assert!(permits.iter().all(|(_, _, permit)| permit.candidate != change.remove), "{permits:?}");
}
