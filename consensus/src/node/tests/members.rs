//! Members change (M1): learner, snapshot, joint consensus, retirement, on several nodes together.

use quorate_proto::control::{Assignment, Assignments, Change, ChangePhase, ChangeReport, Role, SessionDown};
use quorate_proto::ids::{ConfigVersion, DirectoryVersion, NodeId, ReplicaId, TaskId};

use super::harness::{assignment, assignments, batch, Cluster, GROUP};
use super::host::node;
use crate::node::NodeLimits;

const OLD: ReplicaId = ReplicaId(13);
const NEW: ReplicaId = ReplicaId(20);

/// What the directory says while `NEW` takes the place of `OLD` (on node 3) on node `on`, or once it has.
struct Plan {
    on: u64,
    version: u64,
}

impl Plan {
    fn tell(&mut self, cluster: &mut Cluster, phase: Option<ChangePhase>) {
        self.version += 1;
        let change = phase.map(|phase| Change { task: TaskId(1), add: NEW, node: NodeId(self.on), remove: OLD, phase });
        let mut members = assignment(1).members;
        match phase {
            Some(_) => members.push((NEW, NodeId(self.on))),
            None => members[2] = (NEW, NodeId(self.on)),
        }
        let nodes: Vec<u64> = cluster.nodes.keys().copied().collect();
        for id in nodes {
            let hosted = members.iter().rfind(|(_, on)| *on == NodeId(id)).map(|(replica, _)| *replica);
            let one = hosted.map(|replica| Assignment {
                replica,
                members: members.clone(),
                config_version: ConfigVersion(if phase.is_some() { 1 } else { 2 }),
                change,
                ..assignment(id)
            });
            let retired = if phase.is_none() && id == 3 { vec![(GROUP, OLD)] } else { Vec::new() };
            let all = Assignments {
                version: DirectoryVersion(self.version),
                peers: Vec::new(),
                replicas: one.into_iter().collect(),
                retired,
            };
            cluster.down(id, SessionDown::Assignments(all));
        }
        cluster.settle();
    }
}

fn progress(cluster: &Cluster, leader: u64) -> ChangeReport {
    cluster.report(leader).change.expect("the leader knows of the change")
}

/// A led cluster with records, a fourth node, and a plan for `NEW` on node `on`.
fn begun(on: u64) -> (Cluster, Plan) {
    let mut cluster = Cluster::led();
    for sequence in 0..20 {
        let ticket = cluster.publish(1, batch(0, sequence, 1));
        cluster.settle();
        cluster.receipt(1, ticket);
    }
    cluster.nodes.insert(4, node(4, 1, &NodeLimits::default(), cluster.now));
    let mut plan = Plan { on, version: 10 };
    plan.tell(&mut cluster, Some(ChangePhase::Learn));
    (cluster, plan)
}

fn watermark(cluster: &Cluster, id: u64) -> u64 {
    cluster.report(id).high_watermark.get()
}

#[test]
fn a_learner_gets_everything_and_counts_for_nothing() {
    let (mut cluster, _) = begun(4);
    cluster.advance(2_000);
    let report = progress(&cluster, 1);
    assert!(report.caught_up && report.learners == [NEW] && report.outgoing.is_empty(), "{report:?}");
    assert_eq!(watermark(&cluster, 4), 20);
    assert!(cluster.report(4).learner);
    // With one voter left beside the leader's own, the learner makes no majority.
    for id in [2, 3] {
        cluster.nodes.get_mut(&id).expect("a node").up = false;
    }
    let ticket = cluster.publish(1, batch(0, 20, 1));
    cluster.settle();
    assert_eq!(cluster.answer(1, ticket), None);
}

#[test]
fn a_promoted_replica_takes_the_place_of_the_lost_one() {
    let (mut cluster, mut plan) = begun(4);
    cluster.nodes.get_mut(&3).expect("a node").up = false;
    cluster.advance(2_000);
    plan.tell(&mut cluster, Some(ChangePhase::Promote));
    cluster.advance(1_000);
    let report = progress(&cluster, 1);
    assert_eq!((&report.voters[..], &report.outgoing[..]), (&[ReplicaId(11), ReplicaId(12), NEW][..], &[][..]));
    assert!(report.learners.is_empty());
    plan.tell(&mut cluster, None);
    cluster.nodes.get_mut(&2).expect("a node").up = false;
    let ticket = cluster.publish(1, batch(0, 20, 1));
    cluster.settle();
    assert_eq!(cluster.receipt(1, ticket).durable_on, [1, 4], "the new one makes the majority");
    // It may lead, too.
    cluster.nodes.get_mut(&2).expect("a node").up = true;
    cluster.advance(1_000);
    assert!(!cluster.report(4).learner);
}

#[test]
fn a_cancelled_learner_is_removed_and_its_data_may_go() {
    let (mut cluster, mut plan) = begun(4);
    cluster.advance(2_000);
    plan.tell(&mut cluster, Some(ChangePhase::Cancel));
    cluster.advance(1_000);
    let report = progress(&cluster, 1);
    assert!(report.learners.is_empty() && !report.voters.contains(&NEW), "{report:?}");
}

#[test]
fn a_replica_on_the_same_node_begins_anew_and_is_no_amnesiac_voter() {
    let (mut cluster, mut plan) = begun(3);
    let report = cluster.report(3);
    assert_eq!((report.replica, report.learner), (NEW, true), "the old one is not heard of any more");
    cluster.advance(2_000);
    assert_eq!(watermark(&cluster, 3), 20);
    plan.tell(&mut cluster, Some(ChangePhase::Promote));
    cluster.advance(1_000);
    plan.tell(&mut cluster, None);
    assert!(cluster.nodes[&3].retired.contains(&(GROUP, OLD)));
    assert_eq!(cluster.report(3).role, Role::Follower);
    assert!(!cluster.report(3).learner);
}

#[test]
fn a_replica_whose_successor_on_the_same_node_was_given_up_is_opened_again() {
    let (mut cluster, _) = begun(3);
    assert_eq!(cluster.report(3).replica, NEW);
    assert!(cluster.nodes[&3].core.keeps_any());
    let back = Assignments {
        version: DirectoryVersion(20),
        peers: Vec::new(),
        replicas: vec![Assignment { config_version: ConfigVersion(2), ..assignment(3) }],
        retired: vec![(GROUP, NEW)],
    };
    cluster.down(3, SessionDown::Assignments(back.clone()));
    let node = &cluster.nodes[&3];
    assert_eq!(node.reopened, [(GROUP, OLD)], "a start judges its log and opens it");
    assert_eq!((&node.retired[..], &node.quarantined[..]), (&[(GROUP, NEW)][..], &[][..] as &[String]));
    // Nobody takes part until then, and once its data may go it is not waited for any more.
    assert!(node.core.partition(GROUP, cluster.now).is_none());
    cluster.down(
        3,
        SessionDown::Assignments(Assignments {
            retired: vec![(GROUP, NEW), (GROUP, OLD)],
            replicas: Vec::new(),
            ..back
        }),
    );
    assert!(!cluster.nodes[&3].core.keeps_any());
}

#[test]
fn whoever_leads_a_joint_membership_leaves_it() {
    let (mut cluster, mut plan) = begun(4);
    cluster.advance(2_000);
    // The leave is held: the leader falls silent as soon as the joint membership is in force.
    plan.tell(&mut cluster, Some(ChangePhase::Promote));
    assert_eq!(progress(&cluster, 1).outgoing.len(), 3, "the next step waits for a tick");
    cluster.nodes.get_mut(&1).expect("a node").up = false;
    cluster.wire.clear();
    cluster.advance(2_000);
    cluster.elect(2);
    cluster.advance(1_000);
    let report = progress(&cluster, 2);
    assert!(report.outgoing.is_empty() && report.voters.contains(&NEW) && !report.voters.contains(&OLD), "{report:?}");
}

#[test]
fn a_replica_whose_data_are_gone_is_not_made_anew() {
    let mut cluster = Cluster::led();
    cluster.nodes.insert(4, node(4, 1, &NodeLimits::default(), cluster.now));
    let one = Assignment {
        replica: NEW,
        members: vec![(ReplicaId(11), NodeId(1)), (ReplicaId(12), NodeId(2)), (NEW, NodeId(4))],
        config_version: ConfigVersion(2),
        ..assignment(4)
    };
    let all = Assignments { version: DirectoryVersion(9), peers: Vec::new(), replicas: vec![one], retired: Vec::new() };
    cluster.down(4, SessionDown::Assignments(all));
    assert_eq!(cluster.nodes[&4].quarantined.len(), 1);
    assert_eq!(cluster.report(4).role, Role::Quarantined);
}

#[test]
fn a_learner_that_a_leader_took_for_a_stray_is_added_again() {
    let (mut cluster, mut plan) = begun(4);
    cluster.advance(2_000);
    assert_eq!(progress(&cluster, 1).learners, [NEW]);
    // The leader has not heard of the change.
    plan.version += 1;
    cluster.down(1, SessionDown::Assignments(assignments(1, plan.version)));
    cluster.settle();
    cluster.advance(500);
    plan.tell(&mut cluster, Some(ChangePhase::Promote));
    cluster.advance(3_000);
    let report = progress(&cluster, 1);
    assert!(report.voters.contains(&NEW) && !report.voters.contains(&OLD) && report.outgoing.is_empty(), "{report:?}");
    assert_eq!(watermark(&cluster, 4), 20);
}

#[test]
fn a_leader_that_is_to_go_hands_over_before_it_does_anything_for_its_removal() {
    let (mut cluster, mut plan) = begun(4);
    cluster.advance(2_000);
    cluster.plan(1, 3);
    cluster.settle();
    cluster.advance(500);
    plan.tell(&mut cluster, Some(ChangePhase::Promote));
    cluster.advance(1_000);
    assert_eq!(progress(&cluster, 3).learners, [NEW], "it does not remove itself (M4)");
    cluster.plan(3, 1);
    cluster.settle();
    cluster.advance(1_000);
    let report = progress(&cluster, 1);
    assert!(report.voters.contains(&NEW) && !report.voters.contains(&OLD) && report.outgoing.is_empty(), "{report:?}");
}

#[test]
fn a_leader_that_is_to_go_stays_in_a_joint_membership_until_it_has_handed_over() {
    let (mut cluster, mut plan) = begun(4);
    cluster.advance(2_000);
    plan.tell(&mut cluster, Some(ChangePhase::Promote));
    assert_eq!(progress(&cluster, 1).outgoing.len(), 3, "the leave waits for a tick");
    cluster.nodes.get_mut(&1).expect("a node").up = false;
    cluster.wire.clear();
    cluster.advance(2_000);
    cluster.elect(3);
    cluster.advance(1_000);
    assert_eq!(progress(&cluster, 3).outgoing.len(), 3, "it would lead what it is no member of");
    assert!(cluster.serving(3));
    cluster.plan(3, 2);
    cluster.settle();
    cluster.advance(1_000);
    let report = progress(&cluster, 2);
    assert!(report.outgoing.is_empty() && !report.voters.contains(&OLD), "{report:?}");
}
