//! P2: who is permitted to campaign.

use std::cmp::Reverse;

use quorate_proto::control::{Permit, PermitKind, Role};
use quorate_proto::ids::{LogIndex, NodeId, ReplicaId, Term};

use super::health::Scene;
use super::view::Seen;
use crate::directory::Partition;

/// Rank of a candidate; the greatest is permitted.
type Rank = (bool, bool, Term, bool, LogIndex, bool, Reverse<usize>);

/// Among reports at most `report_age` old with a healthy disk, by: hears a quorum, not draining, last flushed term,
/// did not fail lately, last flushed index, pinned by an operator, place in the replica list (the first is the preferred leader).
/// `failed`: its permit ran out without a leader within the last 10 s. `dead`: a node that is just found dead.
#[must_use]
pub fn choose(
    scene: &Scene<'_>,
    partition: &Partition,
    dead: Option<NodeId>,
    failed: impl Fn(ReplicaId) -> bool,
) -> Option<Permit> {
    let alive = partition.replicas.iter().enumerate().filter(|(_, (_, node))| Some(*node) != dead);
    let ranked = alive.filter_map(|(place, (replica, node))| {
        let seen = eligible(scene, partition, *node)?;
        let view = scene.view.node(*node)?;
        let report = &seen.report;
        let demoted = scene.failed_last && (report.resigned_for_fence || failed(*replica));
        let hears = report.hears_quorum || !scene.failed_last;
        let (stays, pinned) = (!scene.view.draining(scene.directory, *node), partition.pin == Some(*node));
        let rank: Rank = (hears, stays, report.last_term, !demoted, report.last_index, pinned, Reverse(place));
        Some((rank, *replica, view.incarnation))
    });
    let (_, candidate, candidate_incarnation) = ranked.max_by_key(|(rank, ..)| *rank)?;
    Some(Permit {
        group: partition.group,
        epoch: partition.permit_epoch.next(),
        candidate,
        candidate_incarnation,
        config_version: partition.config_version,
        basis: Vec::new(),
        clear: false,
        kind: PermitKind::Normal,
        planned: None,
    })
}

/// A replica that may be permitted: fresh report, healthy disk, alive, reachable by a directive, with a log that may
/// vote. One that still calls itself leader must resign first: a leader that campaigns would only depose itself.
pub(super) fn eligible<'a>(scene: &Scene<'a>, partition: &Partition, node: NodeId) -> Option<&'a Seen> {
    let view = scene.view.node(node)?;
    let seen = scene.view.report(scene.directory, partition.group, node)?;
    let fresh = scene.now.since(seen.at) <= scene.timing.report_age;
    let able = matches!(seen.report.role, Role::Follower | Role::Candidate) && !seen.report.suspect_log;
    let reachable = view.session.is_some() && !scene.view.suspect(node, scene.now);
    (fresh && able && reachable && view.disk_healthy(scene.timing)).then_some(seen)
}
