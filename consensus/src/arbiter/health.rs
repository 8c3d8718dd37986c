//! S1: is a partition's leader in order? Causes of suspicion, from the directory and from what was heard.

use std::fmt;
use std::time::Duration;

use quorate_proto::control::Role;
use quorate_proto::ids::{NodeId, ReplicaId, Term};
use quorate_proto::time::BootTime;

use super::view::ClusterView;
use crate::directory::{Directory, Partition};
use crate::lease::LeaseTable;
use crate::timing::Timing;

/// What started a failover. The texts are part of the failover record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// The leader's process is dead, by its supervisor or by its own successor (S2).
    ExitNotice,
    /// Its node was silent: a majority of the observers missed three heartbeats.
    Silence,
    /// A majority of its replicas have not heard it for longer than F, whatever the observers hear.
    Unheard,
    /// It reports its fence closed for lack of contact.
    FenceLost,
    /// Its lease ran out at the observers.
    LeaseLapsed,
    /// Its disk fails or stalls.
    Disk,
    /// It was handed over on purpose (H1).
    Handoff,
    /// It released its term.
    Released,
    /// No replica says that it leads.
    NoLeader,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ExitNotice => "exit_notice",
            Self::Silence => "silence",
            Self::Unheard => "unheard",
            Self::FenceLost => "fence_lost",
            Self::LeaseLapsed => "lease_lapsed",
            Self::Disk => "disk",
            Self::Handoff => "handoff",
            Self::Released => "released",
            Self::NoLeader => "no_leader",
        })
    }
}

/// A leader as its node reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leader {
    /// Where.
    pub node: NodeId,
    /// Which replica.
    pub replica: ReplicaId,
    /// Its term.
    pub term: Term,
}

/// State of a partition as the arbiter sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// A leader serves, or has just been elected and asks for its lease: no permit is issued.
    Led(Leader),
    /// The holder of the lease has not been heard here, and nothing says that it is gone: wait.
    Unknown,
    /// Never had a leader.
    New,
    /// Needs a leader.
    Leaderless {
        /// Why.
        cause: Cause,
        /// Who led, if known.
        was: Option<Leader>,
        /// Where the failover begins: the last sign that the old leader was in order.
        since: BootTime,
    },
}

/// What an assessment looks at.
#[derive(Clone, Copy)]
pub struct Scene<'a> {
    /// The directory as applied.
    pub directory: &'a Directory,
    /// What was heard.
    pub view: &'a ClusterView,
    /// Leases on this clock.
    pub leases: &'a LeaseTable,
    /// Durations.
    pub timing: &'a Timing,
    /// Now.
    pub now: BootTime,
    /// P2: a candidate that failed, resigned or hears nobody comes last. False only in a mutant.
    pub failed_last: bool,
}

/// How long an elected leader may take to its first lease before it counts as none: it resigns by itself after
/// `lease_resign` (F3).
fn first_lease_patience(timing: &Timing) -> Duration {
    timing.lease_resign + timing.node_heartbeat
}

/// The leader of the greatest term among live processes' reports, with when it reported. A released term is no
/// leadership any more, whatever an older report says.
#[must_use]
pub fn reported_leader(scene: &Scene<'_>, partition: &Partition) -> Option<Leader> {
    let reports = partition.all().filter_map(|(replica, node)| {
        let seen = scene.view.report(scene.directory, partition.group, replica, node)?;
        let leads = seen.report.role == Role::Leader && !partition.is_released(replica, seen.report.term);
        leads.then_some(Leader { node, replica, term: seen.report.term })
    });
    reports.max_by_key(|leader| leader.term)
}

/// S1. `elected_at`: when the reported leader was first seen in its term.
#[must_use]
pub fn assess(scene: &Scene<'_>, partition: &Partition, elected_at: impl Fn(Leader) -> BootTime) -> Health {
    let holder = partition.lease.and_then(|lease| {
        let node = partition.node_of(lease.replica)?;
        Some(Leader { node, replica: lease.replica, term: lease.term })
    });
    // A leader reported in an older term than that of the lease was voted out.
    let reported = reported_leader(scene, partition).filter(|l| holder.is_none_or(|h| l.term >= h.term));
    match reported {
        Some(leader) => match fault(scene, partition, leader, elected_at(leader)) {
            Some((cause, since)) => Health::Leaderless { cause, was: Some(leader), since },
            None => Health::Led(leader),
        },
        None if partition.permit_epoch.non_zero().is_none() => Health::New,
        None => without_report(scene, partition, holder),
    }
}

fn without_report(scene: &Scene<'_>, partition: &Partition, holder: Option<Leader>) -> Health {
    let served = scene.view.last_served(partition.group).unwrap_or(scene.now);
    let Some(leader) = holder else {
        return Health::Leaderless { cause: Cause::NoLeader, was: None, since: served };
    };
    let lost = |cause, since| Health::Leaderless { cause, was: Some(leader), since };
    // B4: it gave up because a flush hung, and acknowledged nothing since that began.
    let hung = scene.view.hung_since(partition.group, leader.term).map(|since| lost(Cause::Disk, since));
    let sign = scene.view.last_sign(leader.node, scene.now);
    if scene.directory.leader_of(partition.group).is_none() {
        if partition.is_released(leader.replica, leader.term) {
            return hung.unwrap_or(lost(Cause::Released, served));
        }
        return lost(Cause::ExitNotice, sign);
    }
    if scene.view.report(scene.directory, partition.group, leader.replica, leader.node).is_some() {
        // It says itself that it leads no more; its release may not be logged yet.
        return hung.unwrap_or(lost(Cause::NoLeader, served));
    }
    if scene.view.suspect(leader.node, scene.now) {
        return lost(Cause::Silence, sign);
    }
    if scene.leases.lapsed(partition.group, scene.now) {
        return lost(Cause::LeaseLapsed, scene.now);
    }
    Health::Unknown
}

/// What is wrong with a reported leader, and since when.
fn fault(scene: &Scene<'_>, partition: &Partition, leader: Leader, elected_at: BootTime) -> Option<(Cause, BootTime)> {
    let Scene { directory, view, leases, timing, now, .. } = *scene;
    let node = view.node(leader.node)?;
    let seen = node.reports.get(&partition.group)?;
    if view.suspect(leader.node, now) {
        return Some((Cause::Silence, view.last_sign(leader.node, now)));
    }
    if !node.disk_healthy(timing) {
        return Some((Cause::Disk, now - node.wal_age));
    }
    if seen.report.fence_lost {
        return Some((Cause::FenceLost, now - timing.fence));
    }
    let silent = partition.replicas.iter().filter(|(replica, node)| {
        view.report(directory, partition.group, *replica, *node)
            .is_some_and(|s| s.report.leader_silent && s.report.leader == Some(leader.replica))
    });
    if silent.count() >= partition.majority() {
        return Some((Cause::Unheard, now - timing.fence));
    }
    let leased = partition.lease.is_some_and(|l| l.replica == leader.replica && l.term == leader.term);
    if leased && leases.lapsed(partition.group, now) {
        return Some((Cause::LeaseLapsed, now));
    }
    if !leased && now.since(elected_at) > first_lease_patience(timing) {
        return Some((Cause::LeaseLapsed, elected_at));
    }
    // One that is only being drained goes on until it has handed over (H2).
    None
}
