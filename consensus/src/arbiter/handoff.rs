//! Planned handoffs (H1, H2): may this leader hand over to that node, and where should a drained node's leaders go?

use std::time::Duration;

use quorate_proto::control::{ChangePhase, Permit, PermitKind, Planned};
use quorate_proto::ids::{LogIndex, NodeId, ReplicaId};
use quorate_proto::refusal::{Reason, Refusal};

use super::candidate::eligible;
use super::health::{reported_leader, Leader, Scene};
use crate::directory::Partition;

/// H1: a target was without a fault for so long. A clean start is none.
const WITHOUT_FAULT: Duration = Duration::from_secs(30);
/// Entries that a target may lag behind in the leader's own report: what is in flight at any moment.
const IN_FLIGHT: u64 = 64;

/// The permit for a handoff to `to`; it is committed before intake pauses.
///
/// # Errors
/// Why not, for the operator.
pub fn plan(scene: &Scene<'_>, partition: &Partition, to: NodeId) -> Result<Permit, Refusal> {
    let subject = || format!("{}, to {}", scene.directory.label(partition.group), name(scene, to));
    let refuse = |reason, what: String, action: &str| Err(Refusal::new(reason, what, subject(), action));
    let Some(replica) = partition.replica_on(to) else {
        let members: Vec<String> = partition.replicas.iter().map(|(_, node)| name(scene, *node)).collect();
        let what = format!("that node holds no replica; {} do", members.join(", "));
        return refuse(Reason::InvalidArgument, what, "name one of them");
    };
    let Some(leader) = serving_leader(scene, partition) else {
        let what = "no leader serves that could hand over".to_owned();
        return refuse(Reason::NoLeader, what, "wait until the partition is led, see `quorate partition describe`");
    };
    // Not while two memberships are in force, unless the leader is the one that goes (M4).
    let changing = partition.change.filter(|change| change.phase != ChangePhase::Learn);
    if changing.is_some_and(|change| change.remove != leader.replica) {
        let what = "the partition's members are being changed".to_owned();
        return refuse(Reason::Busy, what, "repeat the call in a moment, see `quorate task list`");
    }
    if leader.node == to {
        return refuse(Reason::InvalidArgument, "that node leads it already".to_owned(), "nothing is to be done");
    }
    if scene.view.draining(scene.directory, to) {
        let what = "the target is being drained".to_owned();
        return refuse(Reason::RefusedUnsafe, what, "choose another node, or `quorate node undrain` it first");
    }
    if !scene.view.has_room(to) {
        let what = "the target's disk is nearly full".to_owned();
        return refuse(
            Reason::RefusedUnsafe,
            what,
            "choose another node, or make room on it, see docs/runbooks/disk-full.md",
        );
    }
    let Some(seen) = eligible(scene, partition, replica, to) else {
        let what = format!("the target is not fit to lead: {}", ailment(scene, partition, to));
        return refuse(Reason::RefusedUnsafe, what, "choose another node, or repeat the call once it is well");
    };
    if let Some(ago) = scene.view.since_fault(to, scene.now).filter(|ago| *ago < WITHOUT_FAULT) {
        let left = (WITHOUT_FAULT - ago).as_secs() + 1;
        let what = format!("the target had a fault {} s ago", ago.as_secs());
        return refuse(Reason::RefusedUnsafe, what, &format!("repeat the call in {left} s"));
    }
    let lag = lag(scene, partition, leader, replica);
    if lag.is_none_or(|lag| lag > IN_FLIGHT) {
        let what = lag.map_or_else(
            || "the leader does not know how far the target is".to_owned(),
            |lag| format!("the target is {lag} entries behind"),
        );
        return refuse(
            Reason::Lagging,
            what,
            "repeat the call once it has caught up, see `quorate partition describe`",
        );
    }
    let incarnation = scene.view.node(to).map(|view| view.incarnation).unwrap_or_default();
    Ok(Permit {
        group: partition.group,
        epoch: partition.permit_epoch.next(),
        candidate: replica,
        candidate_incarnation: incarnation,
        config_version: partition.config_version,
        basis: Vec::new(),
        clear: false,
        kind: PermitKind::Normal,
        planned: Some(Planned { from: leader.replica, term: leader.term, lease_from: seen.sent }),
    })
}

/// Where the leader of `partition` ought to go, if it ought to move: its node is drained or its disk nearly full, or it is
/// pinned elsewhere.
#[must_use]
pub fn target(scene: &Scene<'_>, partition: &Partition) -> Option<Permit> {
    // Asked of every partition on every tick: by far the most stand where they belong.
    let (node, _) = partition.leader(scene.directory.nodes())?;
    let pinned = partition.pin.filter(|pin| *pin != node);
    // A node whose disk is nearly full is drained by the cluster itself (B5).
    let drained = scene.view.draining(scene.directory, node) || !scene.view.has_room(node);
    if pinned.is_none() && !drained {
        return None;
    }
    let others = partition.replicas.iter().map(|(_, node)| *node).filter(|node| drained && Some(*node) != pinned);
    pinned.into_iter().chain(others).find_map(|node| plan(scene, partition, node).ok())
}

/// The leader that holds the newest lease and reports that it serves.
pub(crate) fn serving_leader(scene: &Scene<'_>, partition: &Partition) -> Option<Leader> {
    let leader = reported_leader(scene, partition)?;
    let seen = scene.view.report(scene.directory, partition.group, leader.replica, leader.node)?;
    let leased = partition.lease.is_some_and(|l| (l.replica, l.term) == (leader.replica, leader.term));
    (leased && seen.report.serving && !scene.view.suspect(leader.node, scene.now)).then_some(leader)
}

/// By the leader's own report: both numbers are of one instant.
fn lag(scene: &Scene<'_>, partition: &Partition, leader: Leader, target: ReplicaId) -> Option<u64> {
    let report = &scene.view.report(scene.directory, partition.group, leader.replica, leader.node)?.report;
    let matched: LogIndex = report.matched.iter().find(|(replica, _)| *replica == target)?.1;
    Some(report.last_index.get().saturating_sub(matched.get()))
}

fn ailment(scene: &Scene<'_>, partition: &Partition, node: NodeId) -> String {
    let Some(view) = scene.view.node(node).filter(|view| view.session.is_some()) else {
        return "it is not connected".to_owned();
    };
    if scene.view.suspect(node, scene.now) {
        return "it is not heard".to_owned();
    }
    if !view.disk_healthy(scene.timing) {
        return format!("its disk is failing or slow (oldest flush {} ms)", view.wal_age.as_millis());
    }
    let replica = partition.replica_on(node).unwrap_or_default();
    match scene.view.report(scene.directory, partition.group, replica, node) {
        None => "it does not report the replica".to_owned(),
        Some(seen) if seen.report.learner => "it is learning, and no member yet".to_owned(),
        Some(seen) if seen.report.suspect_log => "its log is suspect until it has caught up".to_owned(),
        Some(seen) => format!("its replica is {:?}", seen.report.role).to_lowercase(),
    }
}

pub(super) fn name(scene: &Scene<'_>, node: NodeId) -> String {
    scene.directory.node(node).map_or_else(|| node.to_string(), |n| n.registered.name.clone())
}
