//! The observer leader's decisions: which partition needs a leader, and who may campaign for it (protocol S1, S3, P2).
//!
//! Pure and rebuilt with every observer leadership: what must survive is in the directory. It looks at every partition
//! on every tick (S3) and at those that an event concerns at once.
//!
//! Pace of permits for one partition: the first at once; the next 500 ms, then 1 s, then 2 s after the one before while
//! nothing changes, from 500 ms again after any event. While nothing in the log ended the old leader, voters veto until
//! it was silent for F + D (V1b): no second permit is issued before that, since it could only take the place of one
//! that is still good. When the holder itself is lost, or the old leader's death arrives, the next comes at once.

mod candidate;
mod handoff;
mod health;
mod repair;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quorate_proto::control::{Ended, Permit};
use quorate_proto::ids::{GroupId, Incarnation, NodeId, PermitEpoch, ReplicaId, Term};
use quorate_proto::time::BootTime;

pub use candidate::{choose, full_attendance, sound};
pub(crate) use handoff::serving_leader;
pub use handoff::{plan, target};
pub use health::{assess, reported_leader, Cause, Health, Leader, Scene};
pub use repair::{loss, next as next_step, place, safe_without, Loss, Next};
pub use view::{ClusterView, NodeView, Seen, BROKEN_GRACE};

use crate::directory::Partition;
use crate::timing::Timing;

/// Delays between permits for one partition while nothing changes.
const BACK_OFF: [Duration; 3] = [Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(2)];
/// A candidate whose permit ran out without a leader comes last for this long (P2).
const DEMOTED: Duration = Duration::from_secs(10);
/// Time that an election takes once voters may vote; a permit that had less than this did not run out.
const ELECTION: Duration = Duration::from_millis(300);
/// A new topic waits this long for its preferred first leader once a majority of the replicas report.
const PREFERRED_PATIENCE: Duration = Duration::from_millis(500);

/// The rest of the logs did not come back within this: an operator must decide (B2).
pub const NEEDS_OPERATOR: Duration = Duration::from_secs(15);

/// A failover in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suspicion {
    /// Why.
    pub cause: Cause,
    /// Who led, if known.
    pub was: Option<Leader>,
    /// Last sign that the old leader was in order.
    pub since: BootTime,
    /// When it was found out.
    pub found: BootTime,
}

/// The arbiter's memory of one partition.
#[derive(Clone, Debug, Default)]
struct Work {
    suspicion: Option<Suspicion>,
    last: Option<LastPermit>,
    /// When the newest permit was applied, whatever became of it.
    issued: Option<BootTime>,
    level: usize,
    /// Decide again without waiting: a fact arrived that makes the last permit useless or a new one better.
    urgent: bool,
    /// A permit is proposed and not yet applied.
    pending: bool,
    failed: BTreeMap<ReplicaId, BootTime>,
    /// Since when no majority of logs may vote and not all are there.
    stuck: Option<BootTime>,
    leader_seen: Option<(ReplicaId, Term, BootTime)>,
    majority_since: Option<BootTime>,
}

#[derive(Clone, Copy, Debug)]
struct LastPermit {
    epoch: PermitEpoch,
    candidate: ReplicaId,
    incarnation: Incarnation,
    at: BootTime,
    /// Before this it could not have been used up: voters may still have to wait for silence, then elect.
    tried: BootTime,
}

/// The observer leader's decisions.
#[derive(Clone, Debug, Default)]
pub struct Arbiter {
    work: BTreeMap<GroupId, Work>,
    /// Partitions whose leader was given up, with a permit, and goes on in the same term.
    withdrawn: BTreeSet<GroupId>,
}

impl Arbiter {
    /// Something about the partition changed: permits come at their fastest pace again.
    pub fn event(&mut self, group: GroupId) {
        if let Some(work) = self.work.get_mut(&group) {
            work.level = 0;
        }
    }

    /// A fact arrived that ended the leader, or the permit's holder.
    pub fn urge(&mut self, group: GroupId) {
        let work = self.work.entry(group).or_default();
        work.level = 0;
        work.urgent = true;
    }

    /// A permit for the group is proposed and not yet applied.
    #[must_use]
    pub fn is_pending(&self, group: GroupId) -> bool {
        self.work.get(&group).is_some_and(|w| w.pending)
    }

    /// The newest permit was applied in this very instant: in one command with the death that it follows from.
    #[must_use]
    pub fn was_just_issued(&self, group: GroupId, now: BootTime) -> bool {
        self.work.get(&group).and_then(|w| w.last).is_some_and(|last| last.at == now)
    }

    /// Permits were proposed, or the proposal came to an end.
    pub fn set_pending(&mut self, groups: impl IntoIterator<Item = GroupId>, pending: bool) {
        for group in groups {
            self.work.entry(group).or_default().pending = pending;
        }
    }

    /// A permit was applied. Returns the failover that it belongs to.
    pub fn issued(&mut self, permit: &Permit, timing: &Timing, now: BootTime) -> Option<Suspicion> {
        let work = self.work.entry(permit.group).or_default();
        // Its predecessor ran out without a leader, if it had the time to win.
        if let Some(last) = work.last.filter(|last| now >= last.tried && last.epoch < permit.epoch) {
            work.failed.insert(last.candidate, now);
        }
        // Voters need not wait for the silence of a leader that the permit itself shows to be over.
        let was = work.suspicion.and_then(|s| s.was);
        let backed = was.is_some_and(|was| permit.basis.iter().any(|fact| ends(fact, was)));
        let silent = work.suspicion.map_or(now, |s| s.since) + timing.fence + timing.margin;
        work.level = if work.last.is_some() { (work.level + 1).min(BACK_OFF.len() - 1) } else { 0 };
        work.last = Some(LastPermit {
            epoch: permit.epoch,
            candidate: permit.candidate,
            incarnation: permit.candidate_incarnation,
            at: now,
            tried: if backed { now } else { now.max(silent) } + ELECTION,
        });
        work.issued = Some(now);
        work.urgent = false;
        work.pending = false;
        work.suspicion
    }

    /// Looks at one partition; returns a permit to propose, if one is due.
    pub fn examine(&mut self, scene: &Scene<'_>, partition: &Partition) -> Option<Permit> {
        let work = self.work.entry(partition.group).or_default();
        if work.pending {
            // A decision is on its way: an older report that still shows the old leader must not undo its reason.
            return None;
        }
        let health = work.assess(scene, partition);
        let now = scene.now;
        match health {
            Health::Led(leader) => {
                if work.last.is_some() && work.suspicion.is_some_and(|s| s.was == Some(leader)) {
                    self.withdrawn.insert(partition.group);
                }
                work.suspicion = None;
                work.last = None;
                work.level = 0;
                work.urgent = false;
                work.stuck = None;
                return None;
            }
            Health::Unknown => return None,
            Health::New => {
                if !work.new_topic_ready(scene, partition) {
                    return None;
                }
            }
            Health::Leaderless { cause, was, since } => {
                let first = Suspicion { cause, was, since, found: now };
                let known = work.suspicion.get_or_insert(first);
                // A fact is worth more than a guess; the beginning stays.
                if cause == Cause::ExitNotice {
                    known.cause = cause;
                }
            }
        }
        if sound(scene, partition) >= partition.majority() || full_attendance(scene, partition).is_some() {
            work.stuck = None;
        } else {
            work.stuck.get_or_insert(now);
        }
        if !work.due(scene, partition) {
            return None;
        }
        work.failed.retain(|_, at| now.since(*at) < DEMOTED);
        let longest = full_attendance(scene, partition);
        let permit =
            longest.or_else(|| choose(scene, partition, None, |replica| work.failed.contains_key(&replica)))?;
        // Nobody but a node that is being drained is left: it gives the leadership up again, at once perhaps.
        let draining =
            partition.node_of(permit.candidate).is_some_and(|node| scene.view.draining(scene.directory, node));
        let paced = work.issued.is_none_or(|at| now >= at + BACK_OFF[0]);
        (!draining || paced).then_some(permit)
    }

    /// Partitions that a node's death leaves without a leader, with a permit for each: one record for all of them.
    pub fn examine_death(
        &mut self,
        scene: &Scene<'_>,
        node: NodeId,
        incarnation: Incarnation,
    ) -> Vec<(GroupId, Option<Permit>)> {
        let hit: Vec<&Partition> = scene
            .directory
            .partitions()
            .values()
            .filter(|p| {
                let holds = p.leader(scene.directory.nodes());
                let by_lease = holds.is_some_and(|(n, lease)| n == node && lease.incarnation <= incarnation);
                let reported = reported_leader(scene, p);
                (by_lease && reported.is_none_or(|l| l.node == node)) || reported.is_some_and(|l| l.node == node)
            })
            .collect();
        hit.into_iter()
            .map(|partition| {
                let work = self.work.entry(partition.group).or_default();
                let was = reported_leader(scene, partition)
                    .or_else(|| partition.lease.map(|l| Leader { node, replica: l.replica, term: l.term }));
                let since = scene.view.last_sign(node, scene.now);
                let first = Suspicion { cause: Cause::ExitNotice, was, since, found: scene.now };
                work.suspicion.get_or_insert(first).cause = Cause::ExitNotice;
                work.urgent = true;
                let failed = |replica| work.failed.contains_key(&replica);
                // The death is not applied yet: the dead node itself must not be chosen.
                let permit = if work.pending { None } else { choose(scene, partition, Some(node), failed) };
                (partition.group, permit)
            })
            .collect()
    }

    /// B2: for so long nobody could be elected, because too few logs may vote and not all of them are there. From
    /// [`NEEDS_OPERATOR`] on it is an operator's affair.
    #[must_use]
    pub fn stuck_for(&self, group: GroupId, now: BootTime) -> Option<Duration> {
        self.work.get(&group).and_then(|w| w.stuck).map(|since| now.since(since))
    }

    /// The failover in progress, if any.
    #[must_use]
    pub fn suspicion(&self, group: GroupId) -> Option<Suspicion> {
        self.work.get(&group).and_then(|w| w.suspicion)
    }

    /// Partitions for which a permit was issued although their leader goes on; each is told once.
    pub fn take_withdrawn(&mut self) -> BTreeSet<GroupId> {
        std::mem::take(&mut self.withdrawn)
    }

    /// Since when this observer has seen the reported leader in its term.
    #[must_use]
    pub fn leader_seen(&self, group: GroupId) -> Option<(Term, BootTime)> {
        self.work.get(&group).and_then(|w| w.leader_seen).map(|(_, term, at)| (term, at))
    }

    /// When the newest permit was applied by this observer as leader.
    #[must_use]
    pub fn permitted_at(&self, group: GroupId) -> Option<BootTime> {
        self.work.get(&group).and_then(|w| w.issued)
    }

    /// Forgets partitions that are gone.
    pub fn retain(&mut self, groups: &BTreeSet<GroupId>) {
        self.work.retain(|group, _| groups.contains(group));
    }
}

fn ends(fact: &Ended, leader: Leader) -> bool {
    match fact {
        Ended::Released { replica, term } => *replica == leader.replica && *term >= leader.term,
        // The leader was reported by, or holds a lease of, an incarnation that was registered before the death.
        Ended::Dead { replica, .. } => *replica == leader.replica,
    }
}

impl Work {
    fn assess(&mut self, scene: &Scene<'_>, partition: &Partition) -> Health {
        let seen = &mut self.leader_seen;
        let current = reported_leader(scene, partition);
        if let Some(leader) = current {
            if seen.is_none_or(|(r, t, _)| (r, t) != (leader.replica, leader.term)) {
                *seen = Some((leader.replica, leader.term, scene.now));
            }
        }
        let since = seen.map_or(scene.now, |(_, _, at)| at);
        assess(scene, partition, |_| since)
    }

    /// A brand-new topic: a majority of its replicas report, its preferred leader among them or waited for.
    fn new_topic_ready(&mut self, scene: &Scene<'_>, partition: &Partition) -> bool {
        let reporting = scene.view.reporting(scene.directory, partition, scene.timing.report_age, scene.now);
        if reporting < partition.majority() {
            self.majority_since = None;
            return false;
        }
        let since = *self.majority_since.get_or_insert(scene.now);
        let preferred = partition.replicas.first().is_some_and(|(replica, node)| {
            scene.view.report(scene.directory, partition.group, *replica, *node).is_some()
        });
        preferred || scene.now.since(since) >= PREFERRED_PATIENCE
    }

    fn due(&self, scene: &Scene<'_>, partition: &Partition) -> bool {
        let Some(last) = self.last else { return true };
        let holder_dead = partition
            .node_of(last.candidate)
            .and_then(|n| scene.directory.node(n))
            .is_some_and(|n| last.incarnation <= n.dead);
        if self.urgent || holder_dead {
            return true;
        }
        scene.now >= (last.at + BACK_OFF[self.level]).max(last.tried)
    }
}

#[cfg(test)]
mod tests;
