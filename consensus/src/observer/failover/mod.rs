//! Phases of each failover, put together from what the observer leader saw and what the new leader measured.
//!
//! ```text
//! last served ─ suspected ─ death confirmed ─ permit ─ elected ─ no-op ─ lease ─ first acknowledgement ─ routes pushed
//! └─────────── observer leader's clock ───────────┘ └──── new leader's clock, from the permit on ─────┘ └ observer's ┘
//! ```
//! *Last served*: when the new leader applied the last record of the old one, if publishes waited behind it, or if it came
//! after, or shortly before, the last sign of the old leader's life; otherwise that last sign (nobody may have published for
//! hours).
//!
//! Points that lie before their predecessor (routes are usually pushed before the first acknowledgement) give a phase
//! of zero, so the phases always sum up to the whole.
//!
//! A permit after which the old leader goes on in its term is a false alarm: it is recorded as *withdrawn* once no
//! permit of it can elect any more.

use std::collections::BTreeMap;
use std::time::Duration;

use quorate_proto::control::{ElectionMarks, Permit};
use quorate_proto::ids::{DirectoryVersion, GroupId, Incarnation, NodeId, PermitEpoch};
use quorate_proto::time::{BootTime, LogTime};
use quorate_proto::v1::{Failover, Phase};

use crate::arbiter::{Cause, ClusterView, Suspicion};
use crate::directory::{Directory, Lease};

/// Without a first acknowledgement (nobody publishes) a failover is recorded after this long, without the new
/// leader's marks.
const PATIENCE: Duration = Duration::from_secs(10);
/// Permits remembered of one failover.
const PERMITS: usize = 8;

#[derive(Clone, Debug)]
struct Progress {
    suspicion: Suspicion,
    /// The old leader's process.
    old: Option<(NodeId, Incarnation)>,
    death: Option<BootTime>,
    permits: Vec<(PermitEpoch, BootTime)>,
    /// The old leader was seen to go on.
    withdrawn: Option<BootTime>,
    won: Option<Won>,
    marks: Option<ElectionMarks>,
    routes: Option<BootTime>,
}

impl Progress {
    /// What the winner measured.
    fn marks_of_winner(&self) -> Option<ElectionMarks> {
        self.marks.filter(|marks| self.won.is_some_and(|won| won.lease.term == marks.term))
    }
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
    /// Not yet recorded when the next one of their partition began.
    overtaken: Vec<(GroupId, Progress)>,
}

impl Failovers {
    /// The old leader's death is in the log.
    pub(super) fn death(&mut self, group: GroupId, suspicion: Suspicion, directory: &Directory, now: BootTime) {
        self.entry(group, suspicion, directory).death.get_or_insert(now);
    }

    /// A permit is in the log and on its way.
    pub(super) fn permit(&mut self, permit: &Permit, suspicion: Suspicion, directory: &Directory, now: BootTime) {
        let progress = self.entry(permit.group, suspicion, directory);
        progress.suspicion.cause = suspicion.cause;
        progress.withdrawn = None;
        if progress.permits.len() == PERMITS {
            // The first one tells when it began, the newest ones which of them won.
            progress.permits.remove(1);
        }
        progress.permits.push((permit.epoch, now));
    }

    /// Nothing came of it: the old leader goes on.
    pub(super) fn forget(&mut self, group: GroupId) {
        self.progress.remove(&group);
    }

    /// The old leader goes on. A permit of it may still elect: it is recorded when that is over.
    pub(super) fn withdraw(&mut self, group: GroupId, now: BootTime) {
        if let Some(progress) = self.progress.get_mut(&group).filter(|p| p.won.is_none()) {
            progress.withdrawn.get_or_insert(now);
        }
    }

    fn entry(&mut self, group: GroupId, suspicion: Suspicion, directory: &Directory) -> &mut Progress {
        let fresh = Progress {
            suspicion,
            old: process_of(group, suspicion, directory),
            death: None,
            permits: Vec::new(),
            withdrawn: None,
            won: None,
            marks: None,
            routes: None,
        };
        let progress = self.progress.entry(group).or_insert_with(|| fresh.clone());
        let over = progress.won.is_some() || progress.withdrawn.is_some();
        if over && progress.suspicion.found != suspicion.found {
            self.overtaken.push((group, std::mem::replace(progress, fresh)));
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

    /// The new leader's marks. They may come before its lease is in the log: a planned handoff's target serves on the
    /// lease that its permit carries (H1).
    pub(super) fn marks(&mut self, marks: ElectionMarks) {
        let progress = self.progress.get_mut(&marks.group);
        if let Some(progress) = progress.filter(|p| p.permits.iter().any(|(epoch, _)| *epoch == marks.permit_epoch)) {
            let newer = progress.marks.is_none_or(|known| marks.term > known.term);
            progress.marks = if newer { Some(marks) } else { progress.marks };
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
    pub(super) fn finished(&mut self, scene: &Recorder<'_>) -> Vec<Failover> {
        let now = scene.now;
        let over: Vec<GroupId> = self
            .progress
            .iter()
            .filter(|(_, p)| {
                let complete = p.marks_of_winner().is_some() && p.routes.is_some();
                let went_on = p.won.is_none() && p.withdrawn.is_some_and(|at| now.since(at) >= PATIENCE);
                went_on || p.won.is_some_and(|won| complete || now.since(won.at) >= PATIENCE)
            })
            .map(|(group, _)| *group)
            .collect();
        let mut ended = std::mem::take(&mut self.overtaken);
        ended.extend(over.into_iter().filter_map(|group| Some((group, self.progress.remove(&group)?))));
        let records = ended.into_iter().filter_map(|(group, progress)| match progress.won {
            Some(won) => scene.failover(group, &progress, won),
            None => scene.withdrawn(group, &progress),
        });
        records.collect()
    }
}

/// The process that led: the one that held the lease, else the one that is registered.
fn process_of(group: GroupId, suspicion: Suspicion, directory: &Directory) -> Option<(NodeId, Incarnation)> {
    let was = suspicion.was?;
    let lease = directory.partition(group).and_then(|p| p.lease);
    let holder = lease.filter(|lease| (lease.replica, lease.term) == (was.replica, was.term));
    let registered = || directory.node(was.node).map(crate::directory::Node::incarnation);
    Some((was.node, holder.map(|lease| lease.incarnation).or_else(registered)?))
}

/// What a record is made from.
pub(super) struct Recorder<'a> {
    pub directory: &'a Directory,
    pub view: &'a ClusterView,
    pub time: LogTime,
    pub now: BootTime,
}

impl Recorder<'_> {
    /// What is known of the old leader's process by now: `dead`, `silent`, `alive`, or nothing.
    fn old_process(&self, progress: &Progress) -> &'static str {
        let Some((id, incarnation)) = progress.old else { return "" };
        let Some(node) = self.directory.node(id) else { return "" };
        if node.dead >= incarnation || node.incarnation() > incarnation {
            return "dead";
        }
        let view = self.view.node(id).filter(|view| view.incarnation == incarnation);
        let heard = view.is_some_and(|view| view.heard >= progress.suspicion.found);
        if heard && !self.view.suspect(id, self.now) {
            "alive"
        } else {
            "silent"
        }
    }

    /// A record without what only its end knows.
    fn draft(
        &self,
        group: GroupId,
        progress: &Progress,
        since: BootTime,
        points: &[(&str, BootTime)],
    ) -> Option<Failover> {
        let partition = self.directory.partition(group)?;
        let suspicion = progress.suspicion;
        let mut last = since;
        let phases = points.iter().map(|(name, at)| {
            let duration = at.since(last);
            last = last.max(*at);
            let duration_us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
            Phase { name: (*name).to_owned(), duration_us }
        });
        let phases = phases.collect();
        let ago = i64::try_from(self.now.since(since).as_micros()).unwrap_or(i64::MAX);
        Some(Failover {
            topic: self.directory.topic(partition.topic).map(|t| t.name.clone()).unwrap_or_default(),
            partition: partition.number.get(),
            group_id: group.get(),
            old_leader_node: suspicion.was.map_or(0, |l| l.node.get()),
            old_term: suspicion.was.map_or(0, |l| l.term.get()),
            cause: suspicion.cause.to_string(),
            phases,
            at_us: self.time.0.saturating_sub(ago),
            old_process: self.old_process(progress).to_owned(),
            ..Failover::default()
        })
    }

    fn withdrawn(&self, group: GroupId, progress: &Progress) -> Option<Failover> {
        let (suspicion, permit) = (progress.suspicion, progress.permits.first()?.1);
        let went_on = progress.withdrawn?;
        let points = [("suspected", suspicion.found), ("permit", permit), ("withdrawn", went_on)];
        let draft = self.draft(group, progress, suspicion.since, &points)?;
        let (node, term) = (draft.old_leader_node, draft.old_term);
        Some(Failover { new_leader_node: node, new_term: term, withdrawn: true, ..draft })
    }

    fn failover(&self, group: GroupId, progress: &Progress, won: Won) -> Option<Failover> {
        let (since, points) = points(progress, won);
        let draft = self.draft(group, progress, since, &points)?;
        Some(Failover { new_leader_node: won.node.get(), new_term: won.lease.term.get(), ..draft })
    }
}

/// How long at most a leader may have stood still before the last sign that the observers had of it. A record of its own from
/// so long before that sign was its last one; an older one only says that nobody published.
///
/// `None`: its last record is no sign. What a leader could not flush commits on its followers all the same, and is not
/// acknowledged (B4).
fn stood_still(cause: Cause) -> Option<Duration> {
    match cause {
        Cause::Disk => None,
        // It gave up by itself: a flush that hung, a fence (F3), a lease that was not renewed.
        Cause::Released | Cause::FenceLost | Cause::LeaseLapsed => Some(Duration::from_secs(2)),
        // Its session breaks when the kernel has taken the process apart, which takes tens of milliseconds.
        Cause::ExitNotice => Some(Duration::from_millis(250)),
        // One that hears nobody is heard for a while yet: what it sends goes out until TCP misses its acknowledgements.
        Cause::Unheard => Some(Duration::from_millis(500)),
        Cause::Silence | Cause::Handoff | Cause::NoLeader => Some(Duration::ZERO),
    }
}

/// When the old leader last served, and the ends of the phases since.
fn points(progress: &Progress, won: Won) -> (BootTime, [(&'static str, BootTime); 8]) {
    let suspicion = progress.suspicion;
    let permit = progress.permits.iter().find(|(epoch, _)| *epoch == won.lease.epoch).map_or(suspicion.found, |p| p.1);
    let marks = progress.marks_of_winner().unwrap_or(ElectionMarks {
        // All that is known here: the lease was granted at `won.at`.
        lease: won.at.since(permit),
        first_ack: won.at.since(permit),
        ..ElectionMarks::default()
    });
    let served = marks.served.map(|served| (permit.shifted_us(served.last_us), served.waited));
    let last_record = stood_still(suspicion.cause)
        .and_then(|span| served.filter(|(at, waited)| *waited || *at + span > suspicion.since).map(|(at, _)| at));
    let since = last_record.unwrap_or(suspicion.since);
    let points = [
        ("suspected", suspicion.found),
        ("death_confirmed", progress.death.unwrap_or(suspicion.found)),
        ("permit", permit),
        ("elected", permit + marks.elected),
        ("noop_committed", permit + marks.noop_committed),
        ("lease", permit + marks.lease),
        ("first_acknowledgement", permit + marks.first_ack),
        // Usually pushed before the first acknowledgement: a phase of zero.
        ("routes_pushed", progress.routes.unwrap_or(suspicion.since)),
    ];
    (since, points)
}

#[cfg(test)]
mod tests;
