//! Phases of each failover, put together from what the observer leader saw and what the new leader measured.
//!
//! ```text
//! last sign ─ suspected ─ death confirmed ─ permit ─ elected ─ no-op ─ lease ─ first acknowledgement ─ routes pushed
//! └────────── observer leader's clock ──────────┘ └──── new leader's clock, from the permit on ─────┘ └ observer's ┘
//! ```
//! Points that lie before their predecessor (routes are usually pushed before the first acknowledgement) give a phase
//! of zero, so the phases always sum up to the whole.

use std::collections::BTreeMap;
use std::time::Duration;

use quorate_proto::control::{ElectionMarks, Permit};
use quorate_proto::ids::{DirectoryVersion, GroupId, NodeId, PermitEpoch};
use quorate_proto::time::{BootTime, LogTime};
use quorate_proto::v1::{Failover, Phase};

use crate::arbiter::Suspicion;
use crate::directory::{Directory, Lease};

/// Without a first acknowledgement (nobody publishes) a failover is recorded after this long, without the new
/// leader's marks.
const PATIENCE: Duration = Duration::from_secs(10);
/// Permits remembered of one failover.
const PERMITS: usize = 8;

#[derive(Clone, Debug)]
struct Progress {
    suspicion: Suspicion,
    death: Option<BootTime>,
    permits: Vec<(PermitEpoch, BootTime)>,
    won: Option<Won>,
    marks: Option<ElectionMarks>,
    routes: Option<BootTime>,
}

#[derive(Clone, Copy, Debug)]
struct Won {
    lease: Lease,
    node: NodeId,
    version: DirectoryVersion,
    at: BootTime,
}

/// Failovers in progress, on the observer leader.
#[derive(Clone, Debug, Default)]
pub(super) struct Failovers {
    progress: BTreeMap<GroupId, Progress>,
}

impl Failovers {
    /// The old leader's death is in the log.
    pub(super) fn death(&mut self, group: GroupId, suspicion: Suspicion, now: BootTime) {
        self.entry(group, suspicion).death.get_or_insert(now);
    }

    /// A permit is in the log and on its way.
    pub(super) fn permit(&mut self, permit: &Permit, suspicion: Suspicion, now: BootTime) {
        let progress = self.entry(permit.group, suspicion);
        progress.suspicion.cause = suspicion.cause;
        if progress.permits.len() < PERMITS {
            progress.permits.push((permit.epoch, now));
        }
    }

    /// Nothing came of it: the old leader goes on.
    pub(super) fn forget(&mut self, group: GroupId) {
        self.progress.remove(&group);
    }

    fn entry(&mut self, group: GroupId, suspicion: Suspicion) -> &mut Progress {
        let fresh = Progress { suspicion, death: None, permits: Vec::new(), won: None, marks: None, routes: None };
        let progress = self.progress.entry(group).or_insert_with(|| fresh.clone());
        if progress.won.is_some() && progress.suspicion.found != suspicion.found {
            // The last one was not yet recorded, and the next one began.
            *progress = fresh;
        }
        progress
    }

    /// The first lease of the new leader is granted.
    pub(super) fn lease(
        &mut self,
        group: GroupId,
        node: NodeId,
        lease: Lease,
        version: DirectoryVersion,
        at: BootTime,
    ) {
        if let Some(progress) = self.progress.get_mut(&group) {
            progress.won = Some(Won { lease, node, version, at });
        }
    }

    /// The new leader's marks.
    pub(super) fn marks(&mut self, marks: ElectionMarks) {
        let progress = self.progress.get_mut(&marks.group);
        if let Some(progress) = progress.filter(|p| p.won.is_some_and(|won| won.lease.term == marks.term)) {
            progress.marks = Some(marks);
        }
    }

    /// Routes of `version` went out.
    pub(super) fn routes_pushed(&mut self, version: DirectoryVersion, now: BootTime) {
        for progress in self.progress.values_mut() {
            if progress.won.is_some_and(|won| won.version <= version) {
                progress.routes.get_or_insert(now);
            }
        }
    }

    /// Records of those that are over.
    pub(super) fn finished(&mut self, directory: &Directory, time: LogTime, now: BootTime) -> Vec<Failover> {
        let over: Vec<GroupId> = self
            .progress
            .iter()
            .filter(|(_, p)| {
                let complete = p.marks.is_some() && p.routes.is_some();
                p.won.is_some_and(|won| complete || now.since(won.at) >= PATIENCE)
            })
            .map(|(group, _)| *group)
            .collect();
        let records = over.into_iter().filter_map(|group| {
            let progress = self.progress.remove(&group)?;
            record(group, &progress, directory, time, now)
        });
        records.collect()
    }
}

fn record(
    group: GroupId,
    progress: &Progress,
    directory: &Directory,
    time: LogTime,
    now: BootTime,
) -> Option<Failover> {
    let partition = directory.partition(group)?;
    let won = progress.won?;
    let suspicion = progress.suspicion;
    let permit = progress.permits.iter().find(|(epoch, _)| *epoch == won.lease.epoch).map_or(suspicion.found, |p| p.1);
    let marks = progress.marks.unwrap_or(ElectionMarks {
        // All that is known here: the lease was granted at `won.at`.
        lease: won.at.since(permit),
        first_ack: won.at.since(permit),
        ..ElectionMarks::default()
    });
    let points = [
        ("suspected", suspicion.found),
        ("death_confirmed", progress.death.unwrap_or(suspicion.found)),
        ("permit", permit),
        ("elected", permit + marks.elected),
        ("noop_committed", permit + marks.noop_committed),
        ("lease", permit + marks.lease),
        ("first_acknowledgement", permit + marks.first_ack),
        ("routes_pushed", progress.routes.unwrap_or(suspicion.since)),
    ];
    let mut last = suspicion.since;
    let phases = points.map(|(name, at)| {
        let duration = at.since(last);
        last = last.max(at);
        Phase { name: name.to_owned(), duration_us: u64::try_from(duration.as_micros()).unwrap_or(u64::MAX) }
    });
    let ago = i64::try_from(now.since(suspicion.since).as_micros()).unwrap_or(i64::MAX);
    Some(Failover {
        topic: directory.topic(partition.topic).map(|t| t.name.clone()).unwrap_or_default(),
        partition: partition.number.get(),
        group_id: group.get(),
        old_leader_node: suspicion.was.map_or(0, |l| l.node.get()),
        new_leader_node: won.node.get(),
        old_term: suspicion.was.map_or(0, |l| l.term.get()),
        new_term: won.lease.term.get(),
        cause: suspicion.cause.to_string(),
        phases: phases.to_vec(),
        at_us: time.0.saturating_sub(ago),
        id: 0,
    })
}

#[cfg(test)]
mod tests;
