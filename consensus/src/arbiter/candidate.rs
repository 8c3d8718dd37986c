//! P2: who is permitted to campaign.

use std::cmp::Reverse;

use quorate_proto::control::{ChangePhase, Permit, PermitKind, Role, Room};
use quorate_proto::ids::{Incarnation, LogIndex, NodeId, ReplicaId, Term};

use super::health::Scene;
use super::view::Seen;
use crate::directory::Partition;

/// Rank of a candidate; the greatest is permitted.
type Rank = (bool, bool, Term, bool, bool, LogIndex, bool, Reverse<usize>);

/// B2: too few replicas have a log that may vote, but all logs are reported.
///
/// The longest of them holds all that was committed: it was on two disks, and none of the three lost more than its own
/// tail. (Two that lost the same entry are beyond what any protocol can mend.)
#[must_use]
pub fn full_attendance(scene: &Scene<'_>, partition: &Partition) -> Option<Permit> {
    let reports: Vec<_> = partition
        .replicas
        .iter()
        .filter_map(|(replica, node)| Some((*replica, *node, present(scene, partition, *replica, *node)?)))
        .collect();
    let changing = partition.change.is_some_and(|change| change.phase != ChangePhase::Learn);
    if reports.len() < partition.replicas.len() || sound(scene, partition) >= partition.majority() || changing {
        return None;
    }
    let (candidate, node, _) = reports.into_iter().max_by_key(|(_, _, seen)| position(seen))?;
    let view = scene.view.node(node).filter(|view| view.disk_healthy(scene.timing))?;
    Some(Permit { kind: PermitKind::FullAttendance, ..permit_for(partition, candidate, view.incarnation) })
}

/// Replicas that report and whose log may vote.
#[must_use]
pub fn sound(scene: &Scene<'_>, partition: &Partition) -> usize {
    let votes = |(replica, node): &(ReplicaId, NodeId)| {
        present(scene, partition, *replica, *node).is_some_and(|seen| !seen.report.suspect_log)
    };
    partition.all().filter(votes).count()
}

fn position(seen: &Seen) -> (Term, LogIndex) {
    (seen.report.last_term, seen.report.last_index)
}

/// A member whose process reports its log freshly, suspect or not.
fn present<'a>(scene: &Scene<'a>, partition: &Partition, replica: ReplicaId, node: NodeId) -> Option<&'a Seen> {
    let view = scene.view.node(node).filter(|view| view.session.is_some())?;
    let seen = scene.view.report(scene.directory, partition.group, replica, node)?;
    let fresh = scene.now.since(seen.at) <= scene.timing.report_age && !scene.view.suspect(node, scene.now);
    let member = seen.report.role != Role::Quarantined && !seen.report.learner;
    (fresh && member && view.incarnation == scene.directory.node(node)?.incarnation()).then_some(seen)
}

fn permit_for(partition: &Partition, candidate: ReplicaId, candidate_incarnation: Incarnation) -> Permit {
    Permit {
        group: partition.group,
        epoch: partition.permit_epoch.next(),
        candidate,
        candidate_incarnation,
        config_version: partition.config_version,
        basis: Vec::new(),
        clear: false,
        kind: PermitKind::Normal,
        planned: None,
    }
}

/// Among reports at most `report_age` old with a healthy disk, by: hears a quorum, not draining, last flushed term,
/// did not fail lately, room on its disks (B5), last flushed index, pinned by an operator, place in the replica list (the first is the preferred leader).
/// `failed`: its permit ran out without a leader within the last 10 s. `dead`: a node that is just found dead.
#[must_use]
pub fn choose(
    scene: &Scene<'_>,
    partition: &Partition,
    dead: Option<NodeId>,
    failed: impl Fn(ReplicaId) -> bool,
) -> Option<Permit> {
    // M4: nor one that is on its way out.
    let goes = partition.change.filter(|change| change.phase == ChangePhase::Promote).map(|change| change.remove);
    let alive =
        partition.all().enumerate().filter(|(_, (replica, node))| Some(*node) != dead && Some(*replica) != goes);
    let ranked = alive.filter_map(|(place, (replica, node))| {
        let seen = eligible(scene, partition, replica, node)?;
        let view = scene.view.node(node)?;
        let report = &seen.report;
        let demoted = scene.failed_last && (report.resigned_for_fence || failed(replica));
        let hears = report.hears_quorum || !scene.failed_last;
        let (stays, pinned) = (!scene.view.draining(scene.directory, node), partition.pin == Some(node));
        // B5: after what decides whether it can win at all: a candidate that lags only loses an election.
        let room = view.room == Room::Ample;
        let rank: Rank = (hears, stays, report.last_term, !demoted, room, report.last_index, pinned, Reverse(place));
        Some((rank, replica, view.incarnation))
    });
    let (_, candidate, candidate_incarnation) = ranked.max_by_key(|(rank, ..)| *rank)?;
    Some(permit_for(partition, candidate, candidate_incarnation))
}

/// A replica that may be permitted: fresh report, healthy disk, alive, reachable by a directive, with a log that may
/// vote. One that still calls itself leader must resign first: a leader that campaigns would only depose itself.
pub(super) fn eligible<'a>(
    scene: &Scene<'a>,
    partition: &Partition,
    replica: ReplicaId,
    node: NodeId,
) -> Option<&'a Seen> {
    let view = scene.view.node(node)?;
    let seen = scene.view.report(scene.directory, partition.group, replica, node)?;
    let fresh = scene.now.since(seen.at) <= scene.timing.report_age;
    let able = matches!(seen.report.role, Role::Follower | Role::Candidate)
        && !seen.report.suspect_log
        && !seen.report.learner;
    let reachable = view.session.is_some() && !scene.view.suspect(node, scene.now);
    (fresh && able && reachable && view.disk_healthy(scene.timing)).then_some(seen)
}
