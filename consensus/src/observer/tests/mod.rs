//! The observers together: who may decide, when, and what reaches the data nodes.

mod disk;
mod disks;
mod handoff;
mod harness;
mod memory;
mod rebuild;
mod repair;
mod why;

use std::collections::BTreeSet;
use std::time::Duration;

use super::{ObserverEffect, ObserverEvent};
use crate::envelope::Envelope;
use harness::{hello, World, SECRET};
use quorate_proto::control::*;
use quorate_proto::ids::*;
use quorate_proto::v1::Reason;

const MS: fn(u64) -> Duration = Duration::from_millis;

fn group() -> GroupId {
    GroupId(2)
}

fn led_by(world: &World, group: GroupId) -> NodeId {
    world.directory().leader_of(group).expect("led").0
}

#[test]
fn a_new_topic_gets_its_preferred_leaders_without_waiting() {
    let mut world = World::new();
    world.until("a leader", |w| w.leader().is_some());
    for node in 1..=3 {
        world.connect(NodeId(node));
    }
    world.until("three nodes", |w| w.directory().nodes().len() == 3);
    let before = world.now;
    world.create_topic("default/t", 3, OperationId(1));
    world.until("leaders", |w| w.all_led());
    assert!(world.now.since(before) <= MS(150), "took {:?}", world.now.since(before));
    let leaders: BTreeSet<NodeId> = (2..=4).map(|g| led_by(&world, GroupId(g))).collect();
    assert_eq!(leaders.len(), 3, "leaders spread");
    let permits = world.permits(before);
    assert!(permits.iter().all(|(_, _, p)| p.clear && p.epoch == PermitEpoch(1)));
    let told: BTreeSet<NodeId> = permits.iter().filter(|(_, _, p)| p.group == group()).map(|(_, n, _)| *n).collect();
    assert_eq!(told.len(), 3, "every replica's node hears of the permit");
    assert!(permits.iter().all(|(o, ..)| Some(*o) == world.leader()), "only the leader says it");
}

#[test]
fn a_healthy_leader_is_left_alone() {
    let mut world = World::serving(3);
    let since = world.now;
    world.run(Duration::from_secs(30));
    assert_eq!(world.permits(since), vec![]);
    let verdicts = world.verdicts(since);
    assert!(!verdicts.is_empty() && verdicts.iter().all(|(_, v)| *v == LeaseVerdict::Granted), "{verdicts:?}");
}

#[test]
fn an_exit_notice_is_one_record_with_permits_for_all_partitions_of_the_node() {
    let mut world = World::serving(9);
    let victim = NodeId(2);
    let hit: Vec<GroupId> = (2..11).map(GroupId).filter(|g| led_by(&world, *g) == victim).collect();
    assert_eq!(hit.len(), 3);
    let (since, index) = (world.now, world.directory().applied().0);
    let permits_before: Vec<_> =
        hit.iter().map(|g| world.directory().partition(*g).expect("there").permit_epoch).collect();
    world.nodes.values_mut().for_each(|n| n.obedient = false);
    world.silence(victim, true);
    let ticket = world.exit_notice(victim, SECRET);
    assert!(world.exits[&ticket].iter().any(Result::is_ok), "{:?}", world.exits);
    assert_eq!(world.directory().applied().0, index.next(), "one entry");
    for (group, before) in hit.iter().zip(permits_before) {
        let partition = world.directory().partition(*group).expect("there");
        assert_eq!(partition.permit_epoch, before.next());
        let permit = partition.newest.as_ref().expect("issued");
        let dead = partition.replica_on(victim).expect("member");
        assert!(permit.clear && permit.basis.contains(&Ended::Dead { replica: dead, incarnation: Incarnation(1) }));
        assert_ne!(permit.candidate, dead);
    }
    assert_eq!(world.permits(since).iter().map(|(_, _, p)| p.group).collect::<BTreeSet<_>>().len(), 3);
}

#[test]
fn a_killed_leader_is_replaced_at_once_and_the_phases_add_up() {
    let mut world = World::serving(1);
    let old = led_by(&world, group());
    let killed = world.now;
    world.silence(old, true);
    world.run(MS(10));
    world.exit_notice(old, SECRET);
    world.until("a successor", |w| w.all_led());
    assert!(world.now.since(killed) <= MS(50), "took {:?}", world.now.since(killed));
    let new = led_by(&world, group());
    let report = world.nodes[&new].reports[&group()].clone();
    let marks = ElectionMarks {
        group: group(),
        term: report.term,
        permit_epoch: report.won_epoch,
        elected: MS(4),
        noop_committed: MS(6),
        lease: MS(9),
        first_ack: MS(20),
        served: None,
    };
    world.up(new, SessionUp::Phases(marks));
    world.until("a record", |w| !w.directory().failovers().is_empty());
    let record = world.directory().failovers()[0].clone();
    assert_eq!((record.old_leader_node, record.new_leader_node), (old.get(), new.get()));
    assert_eq!(record.cause, "exit_notice");
    let sum: u64 = record.phases.iter().map(|p| p.duration_us).sum();
    assert_eq!(sum, 30_000, "10 ms to the notice, 20 ms to the first acknowledgement: {:?}", record.phases);
}

#[test]
fn an_exit_notice_without_the_supervisors_secret_is_refused() {
    let mut world = World::serving(1);
    let ticket = world.exit_notice(NodeId(1), "guessed");
    assert!(world.exits[&ticket].iter().all(|r| r.as_ref().is_err_and(|e| e.reason == Reason::Forbidden)));
    assert!(world.directory().node(NodeId(1)).expect("there").is_live());
}

#[test]
fn a_silent_node_is_suspect_after_three_missed_beats_and_a_broken_stream_makes_it_earlier() {
    for (broken, latest) in [(false, MS(1_700)), (true, MS(400))] {
        let mut world = World::serving(1);
        let old = led_by(&world, group());
        let since = world.now;
        world.silence(old, broken);
        world.until("a permit", |w| !w.permits(since).is_empty());
        assert!(world.now.since(since) <= latest, "broken {broken}: {:?}", world.now.since(since));
        let permit = &world.permits(since)[0].2;
        assert!(!permit.clear, "silence proves nothing");
        assert!(!permit.basis.iter().any(|f| matches!(f, Ended::Dead { .. })));
    }
}

#[test]
fn an_observer_leader_without_majority_gives_no_lease_and_no_permit() {
    let mut world = World::serving(1);
    let stale = world.leader().expect("leads");
    let others: Vec<NodeId> = world.cores.keys().copied().filter(|n| *n != stale).collect();
    for other in &others {
        world.cut.insert((stale, *other));
    }
    let since = world.now;
    let leader = led_by(&world, group());
    world.ask(leader, &[group()]);
    world.drain();
    world.run(MS(5_000));
    let stale_said: Vec<_> = world.verdicts(since).into_iter().filter(|(o, _)| *o == stale).collect();
    assert!(stale_said.iter().all(|(_, v)| *v != LeaseVerdict::Granted), "{stale_said:?}");
    world.silence(leader, true);
    let since = world.now;
    world.run(MS(3_000));
    let permits = world.permits(since);
    assert!(!permits.is_empty() && permits.iter().all(|(o, ..)| *o != stale), "{permits:?}");
}

#[test]
fn a_permit_leaves_only_after_it_is_committed() {
    let mut world = World::serving(1);
    let old = led_by(&world, group());
    let since = world.now;
    world.hung.extend([NodeId(101), NodeId(102), NodeId(103)]);
    world.silence(old, true);
    world.exit_notice(old, SECRET);
    world.run(MS(300));
    assert_eq!(world.permits(since), vec![], "nothing is flushed, nothing is committed");
}

#[test]
fn the_loss_of_the_observer_leader_costs_no_lease() {
    let mut world = World::serving(3);
    let gone = world.leader().expect("leads");
    let since = world.now;
    world.cores.remove(&gone);
    world.until("another leader", |w| w.leader().is_some());
    assert!(world.now.since(since) <= MS(2_000));
    world.run(Duration::from_secs(12));
    assert_eq!(world.permits(since), vec![], "leaders that renew keep their partitions");
    assert!(world.verdicts(since).iter().all(|(_, v)| *v == LeaseVerdict::Granted));
}

#[test]
fn a_lease_that_is_not_renewed_lapses_and_the_partition_is_worked_on() {
    let mut world = World::serving(1);
    let old = led_by(&world, group());
    world.nodes.get_mut(&old).expect("there").disk_ok = true;
    // Its reports go on, but it never renews: as if only its lease requests were lost.
    let since = world.now;
    world.nodes.get_mut(&old).expect("there").reports.get_mut(&group()).expect("there").won_epoch = PermitEpoch(99);
    world.until("a permit", |w| !w.permits(since).is_empty());
    assert!(world.now.since(since) >= MS(6_900), "a renewed lease lasts eight seconds from its last renewal");
}

#[test]
fn the_same_candidate_is_not_chosen_for_ever() {
    let mut world = World::serving(1);
    let old = led_by(&world, group());
    world.nodes.values_mut().for_each(|n| n.obedient = false);
    // One of the others has the longest log, but never wins.
    let deaf = world.nodes.keys().copied().find(|n| *n != old).expect("others");
    let report = world.nodes.get_mut(&deaf).expect("there").reports.get_mut(&group()).expect("there");
    report.last_index = LogIndex(1_000);
    world.beat(deaf);
    let since = world.now;
    world.silence(old, true);
    world.exit_notice(old, SECRET);
    world.run(MS(4_000));
    let partition = world.directory().partition(group()).expect("there").clone();
    let chosen: BTreeSet<ReplicaId> = world.permits(since).iter().map(|(_, _, p)| p.candidate).collect();
    assert_eq!(
        world.permits(since)[0].2.candidate,
        partition.replica_on(deaf).expect("member"),
        "the longest log first"
    );
    assert_eq!(chosen.len(), 2, "then the other");
    let epochs: BTreeSet<PermitEpoch> = world.permits(since).iter().map(|(_, _, p)| p.epoch).collect();
    assert!((3..=5).contains(&epochs.len()), "0, 0.5, 1.5, 3.5 s: {epochs:?}");
}

#[test]
fn a_failing_disk_or_a_lost_fence_costs_the_leadership() {
    for fence in [false, true] {
        let mut world = World::serving(1);
        let old = led_by(&world, group());
        let since = world.now;
        let node = world.nodes.get_mut(&old).expect("there");
        if fence {
            node.reports.get_mut(&group()).expect("there").fence_lost = true;
        } else {
            node.disk_ok = false;
        }
        world.beat(old);
        let permits = world.permits(since);
        assert!(!permits.is_empty(), "at receipt of the report, not at a tick");
        assert_ne!(world.directory().partition(group()).expect("there").node_of(permits[0].2.candidate), Some(old));
    }
}

#[test]
fn a_release_permits_a_successor_at_once() {
    let mut world = World::serving(1);
    let old = led_by(&world, group());
    let report = world.nodes[&old].reports[&group()].clone();
    let since = world.now;
    let (replica, term) = (report.replica, report.term);
    world.up(old, SessionUp::Release { group: group(), replica, term, for_fence: false, stood: Duration::ZERO });
    let permits = world.permits(since);
    assert!(permits.iter().any(|(_, _, p)| p.basis.contains(&Ended::Released { replica, term }) && p.clear));
    world.until("a successor", |w| w.directory().leader_of(group()).is_some_and(|(n, l)| n != old && l.term > term));
}

#[test]
fn a_failover_of_a_hanging_disk_begins_with_the_flush_that_hung() {
    let mut world = World::serving(1);
    let old = led_by(&world, group());
    let report = world.nodes[&old].reports[&group()].clone();
    let (replica, term, stood) = (report.replica, report.term, Duration::from_millis(1_050));
    world.up(old, SessionUp::Release { group: group(), replica, term, for_fence: false, stood });
    world.until("a record", |w| w.directory().failovers().iter().any(|f| f.cause == "disk"));
    let record = world.directory().failovers().iter().find(|f| f.cause == "disk").expect("just seen").clone();
    let suspected = record.phases.iter().find(|phase| phase.name == "suspected").expect("the first phase");
    assert!((1_040_000..1_200_000).contains(&suspected.duration_us), "{record:?}");
}

#[test]
fn a_restarted_node_proves_its_older_incarnation_dead_by_its_lock() {
    let mut world = World::serving(1);
    let old = led_by(&world, group());
    let since = world.now;
    world.silence(old, true);
    world.nodes.get_mut(&old).expect("there").hello = hello(old.get(), 2);
    world.connect(old);
    assert_eq!(world.directory().node(old).expect("there").dead, Incarnation(1));
    let (_, _, permit) = world.permits(since)[0].clone();
    assert!(permit.basis.iter().any(|f| matches!(f, Ended::Dead { incarnation: Incarnation(1), .. })));
}

#[test]
fn a_foreign_cluster_or_a_copied_directory_is_refused_for_good() {
    let mut world = World::serving(1);
    let mut foreign = hello(3, 5);
    foreign.cluster = ClusterId(1);
    let mut copied = hello(2, 9);
    copied.node = NodeId(3);
    for wrong in [foreign, copied] {
        world.silence(NodeId(3), true);
        let since = world.said.len();
        world.nodes.get_mut(&NodeId(3)).expect("there").hello = wrong;
        world.connect(NodeId(3));
        let fatal = |m: &SessionDown| matches!(m, SessionDown::Refused { fatal: true, .. });
        assert_eq!(world.said[since..].iter().filter(|(_, _, _, m)| fatal(m)).count(), 3, "by every observer");
    }
}

#[test]
fn a_repeated_create_call_makes_one_topic() {
    let mut world = World::serving(1);
    let again = world.create_topic("default/t", 1, OperationId(1));
    let other = world.create_topic("default/t", 1, OperationId(2));
    assert!(world.admin[&again].is_ok());
    assert_eq!(world.admin[&other].as_ref().expect_err("taken").reason, Reason::AlreadyExists);
    assert_eq!(world.directory().partitions().len(), 1);
}

#[test]
fn an_observer_that_was_away_catches_up_by_snapshot() {
    let mut world = World::with_snapshots(20);
    world.start(1);
    let away = world.cores.keys().copied().find(|n| Some(*n) != world.leader()).expect("a follower");
    for other in [NodeId(101), NodeId(102), NodeId(103)] {
        if other != away {
            world.cut.insert((away, other));
        }
    }
    for n in 0..60u64 {
        world.create_topic(&format!("default/more-{n}"), 1, OperationId(u128::from(n) + 10));
        world.run(MS(20));
    }
    world.cut.clear();
    world.until("the same version", |w| {
        w.leader().is_some() && w.cores[&away].directory().version() == w.directory().version()
    });
    assert!(world.restored.contains(&away), "by snapshot");
    assert_eq!(world.cores[&away].directory(), world.directory());
}

#[test]
fn a_message_for_a_group_that_no_observer_hosts_is_answered_stale() {
    let mut world = World::serving(1);
    let leader = world.leader().expect("led");
    let follower = *world.cores.keys().find(|id| **id != leader).expect("three observers");
    let mut message = raft::eraftpb::Message { from: leader.0, to: follower.0, term: 99, ..Default::default() };
    message.set_msg_type(raft::eraftpb::MessageType::MsgHeartbeat);
    let term = world.cores[&follower].term();
    let question = Envelope::bare(GroupId(77), Incarnation(1), message);
    let mut out = Vec::new();
    let now = world.now;
    let core = world.cores.get_mut(&follower).expect("known");
    core.handle(now, ObserverEvent::Peer(Box::new(question)), &mut out);
    let answers: Vec<_> = out
        .iter()
        .filter_map(|effect| match effect {
            ObserverEffect::Send { node, envelope, .. } => Some((*node, envelope.stale, envelope.group)),
            _ => None,
        })
        .collect();
    assert_eq!(answers, [(leader, true, GroupId(77))]);
    assert_eq!(core.term(), term, "it was stepped");
}
