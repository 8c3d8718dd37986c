//! Members that are lost, and the steps of a change of members (M1, M2, M4).

use std::fmt;

use quorate_proto::control::{Change, ChangePhase, ReplicaReport, Role};
use quorate_proto::ids::{NodeId, ReplicaId};

use super::handoff::{name, serving_leader};
use super::health::{Leader, Scene};
use crate::directory::{Node, Partition};

/// Why a replica counts as lost. The texts are the reason of its repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Loss {
    /// Its node came up with an empty disk.
    Disk,
    /// It set itself aside: its data cannot be trusted (M3).
    Damaged,
    /// Its log may have lost entries, and under the present leader that cannot be mended (B2).
    Suspect,
    /// Its node is gone, or does not report it.
    Away,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Disk => "its disk was replaced",
            Self::Damaged => "its data are damaged",
            Self::Suspect => "its log is suspect",
            Self::Away => "its node is gone",
        })
    }
}

/// What the observer leader is to do about a change that is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing now, and what is waited for.
    Wait(&'static str),
    /// The learner is promoted.
    Promote,
    /// The change is given up, and why.
    Cancel(&'static str),
    /// The leader's membership is as wanted.
    Finish,
    /// The leader is the one to be removed: it hands over first (M4), to one of these nodes.
    HandOff(Vec<NodeId>),
}

/// Its latest report, if it is fresh and its node is heard.
fn fresh<'a>(scene: &Scene<'a>, partition: &Partition, replica: ReplicaId, node: NodeId) -> Option<&'a ReplicaReport> {
    let seen = scene.view.report(scene.directory, partition.group, replica, node)?;
    let reachable = scene.view.node(node).is_some_and(|view| view.session.is_some());
    let heard = scene.now.since(seen.at) <= scene.timing.report_age && !scene.view.suspect(node, scene.now);
    (reachable && heard).then_some(&seen.report)
}

/// It takes part, its log counts, and its disk takes writes.
fn healthy(scene: &Scene<'_>, partition: &Partition, replica: ReplicaId, node: NodeId) -> bool {
    let well = |r: &ReplicaReport| r.role != Role::Quarantined && !r.suspect_log;
    let disk = scene.view.node(node).is_some_and(|view| view.disk_healthy(scene.timing));
    disk && fresh(scene, partition, replica, node).is_some_and(well)
}

/// Why a member is not what it ought to be; `None` if it is, or if this observer alone does not hear of it.
#[must_use]
pub fn loss(scene: &Scene<'_>, partition: &Partition, replica: ReplicaId, node: NodeId) -> Option<Loss> {
    if partition.lost.contains(&replica) {
        return Some(Loss::Disk);
    }
    if !scene.directory.node(node).is_some_and(Node::is_live) || scene.view.suspect(node, scene.now) {
        return Some(Loss::Away);
    }
    let connected = scene.view.node(node).is_some_and(|view| view.session.is_some());
    match fresh(scene, partition, replica, node) {
        None => connected.then_some(Loss::Away),
        Some(report) if report.role == Role::Quarantined => Some(Loss::Damaged),
        Some(report) if report.suspect_log => Some(Loss::Suspect),
        Some(_) => None,
    }
}

/// M4: a leader serves that is not this replica, and all others are healthy.
///
/// # Errors
/// What stands against it.
pub fn safe_without(scene: &Scene<'_>, partition: &Partition, replica: ReplicaId) -> Result<Leader, String> {
    let Some(leader) = serving_leader(scene, partition) else {
        return Err("no leader serves".to_owned());
    };
    let mut others = partition.replicas.iter().filter(|(other, _)| *other != replica);
    match others.find(|(other, node)| !healthy(scene, partition, *other, *node)) {
        Some((other, node)) => Err(format!("{other} on {} is not healthy either", name(scene, *node))),
        None => Ok(leader),
    }
}

/// Where the replacement of a member goes (M2): the same node if its disk is healthy, else a usable node in a fault
/// domain of its own, the one with the fewest replicas.
#[must_use]
pub fn place(scene: &Scene<'_>, partition: &Partition, replica: ReplicaId, loss: Loss) -> Option<NodeId> {
    let home = partition.node_of(replica)?;
    let usable: Vec<NodeId> = scene.view.usable(scene.directory, scene.timing, scene.now).collect();
    if loss != Loss::Away && usable.contains(&home) {
        return Some(home);
    }
    let fits = |node: &NodeId| *node != home && scene.directory.check_change(partition.group, replica, *node).is_ok();
    let load = |node: &NodeId| {
        let hosts = scene.directory.partitions().values().filter(|p| p.all().any(|(_, on)| on == *node));
        (hosts.count(), *node)
    };
    usable.into_iter().filter(fits).min_by_key(load)
}

/// The next step of a change. `away`: the learner's node has been away for too long.
#[must_use]
pub fn next(scene: &Scene<'_>, partition: &Partition, change: &Change, away: bool) -> Next {
    let Some(leader) = serving_leader(scene, partition) else {
        return Next::Wait("a leader that serves");
    };
    let report = fresh(scene, partition, leader.replica, leader.node).and_then(|report| report.change.as_ref());
    let Some(report) = report.filter(|r| (r.task, r.phase) == (change.task, change.phase)) else {
        return Next::Wait("the leader to hear of the change");
    };
    match change.phase {
        ChangePhase::Learn if away => Next::Cancel("the node of the new replica is gone"),
        ChangePhase::Learn | ChangePhase::Promote if leader.replica == change.remove => {
            let others = partition.replicas.iter().filter(|(replica, _)| *replica != change.remove);
            Next::HandOff(others.map(|(_, node)| *node).collect())
        }
        ChangePhase::Learn if !report.learners.contains(&change.add) => Next::Wait("the leader to add the learner"),
        ChangePhase::Learn if !report.caught_up => Next::Wait("the learner to catch up"),
        ChangePhase::Learn if !healthy(scene, partition, change.add, change.node) => Next::Wait("the learner's node"),
        ChangePhase::Learn => match safe_without(scene, partition, change.remove) {
            Ok(_) => Next::Promote,
            Err(_) => Next::Wait("the other members to be healthy"),
        },
        ChangePhase::Promote => {
            let voters = &report.voters;
            let done = voters.contains(&change.add) && !voters.contains(&change.remove) && report.outgoing.is_empty();
            if done {
                Next::Finish
            } else {
                Next::Wait("the leader to change the membership")
            }
        }
        ChangePhase::Cancel if report.learners.contains(&change.add) => Next::Wait("the leader to remove the learner"),
        ChangePhase::Cancel => Next::Finish,
    }
}
