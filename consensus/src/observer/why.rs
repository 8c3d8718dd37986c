//! Puts together what `why` explains: the directory, what was heard, and what the arbiter and the handoffs know.

use std::time::Duration;

use quorate_proto::control::{Memory, Role, Room};
use quorate_proto::ids::{GroupId, NodeId, ReplicaId};
use quorate_proto::time::BootTime;

use super::core::ObserverCore;
use crate::arbiter::{
    assess, full_attendance, reported_leader, Health, Leader, Scene, Seen, BROKEN_GRACE, NEEDS_OPERATOR,
};
use crate::directory::Partition;
use crate::policy::Policy;
use crate::why::{
    explain, AtLeast, Bounds, ChangeFacts, Disk, Explanation, Facts, HandoffFacts, LeaderFacts, Observers, PermitFacts,
    Process, ReplicaFacts, ReportFacts, Verdict,
};

/// Observers tell each other what they heard on every arbiter tick; one that missed so many is not heard.
const MISSED_TABLES: u32 = 10;

impl<P: Policy> ObserverCore<P> {
    /// What a partition is doing, in words.
    #[must_use]
    pub fn why(&self, group: GroupId, now: BootTime) -> Option<Explanation> {
        self.directory.partition(group).map(|partition| explain(&self.facts(partition, now)))
    }

    /// The observers as this one sees them.
    #[must_use]
    pub fn observers(&self, now: BootTime) -> Observers {
        let name = |id: NodeId| {
            let heard = self.view.observers(now).find(|(info, _)| info.node == id).map(|(info, _)| info);
            let known = if id == self.cfg.node() { Some(&self.cfg.me) } else { heard };
            let named = known.filter(|info| !info.name.is_empty());
            named.map_or_else(|| format!("observer {}", id.get()), |info| info.name.clone())
        };
        let span = self.cfg.timing.arbiter_tick * MISSED_TABLES;
        let fresh = |id: NodeId| self.view.observers(now).any(|(info, age)| info.node == id && age <= span);
        let others = self.cfg.members.iter().copied().filter(|id| *id != self.cfg.node());
        Observers {
            asked: self.cfg.me.name.clone(),
            leads: self.leading,
            leader: self.known_leader.map(name),
            total: self.cfg.members.len(),
            unheard: others.filter(|id| !fresh(*id)).map(name).collect(),
            forgetful: self.forgetful(now).into_iter().map(|(id, memory)| (name(id), memory)).collect(),
            know_more: self.know_more(),
            blank: self.directory.is_blank(),
            waits_for: (self.memory() != Memory::Sound).then(|| self.waits_for(now)),
        }
    }

    /// A report older than this is not shown as the state of now: three heartbeats.
    fn fresh(&self) -> Duration {
        self.cfg.timing.node_heartbeat * self.cfg.timing.missed_heartbeats
    }

    fn facts(&self, partition: &Partition, now: BootTime) -> Facts {
        let (scene, group) = (self.scene(now), partition.group);
        let health = self.verdict(&scene, partition);
        let reported = reported_leader(&scene, partition);
        let leader = reported.and_then(|leader| self.leader_facts(&scene, partition, leader));
        let leads = self.directory.leader_of(group).map(|(node, _)| node);
        let misplaced = partition.pin.filter(|pin| leads.is_some_and(|node| node != *pin));
        let replicas = partition.replicas.iter();
        Facts {
            partition: self.directory.label(group),
            observers: self.observers(now),
            health,
            leader,
            replicas: replicas.map(|member| self.replica_facts(&scene, partition, reported, *member)).collect(),
            permit: self.permit_facts(partition, now),
            handoff: self.moves.running(group).map(|(from, to, since)| HandoffFacts {
                from: self.node_name(from.node),
                to: self.node_name(to),
                age: now.since(since),
                released: partition.is_released(from.replica, from.term),
            }),
            change: partition.change.map(|change| ChangeFacts {
                task: change.task,
                from: partition.node_of(change.remove).map(|node| self.node_name(node)).unwrap_or_default(),
                to: self.node_name(change.node),
                phase: change.phase,
                waits_for: self.change_waits_for(group, now).map(str::to_owned),
            }),
            all_logs: full_attendance(&scene, partition).is_some(),
            stuck: self.arbiter.stuck_for(group, now).filter(|_| self.leading),
            misplaced: misplaced.map(|pin| self.node_name(pin)),
            last_served: self.view.last_served(group).map(|at| now.since(at)),
            bounds: Bounds {
                silence: self.cfg.timing.fence + self.cfg.timing.margin,
                lease: self.cfg.timing.lease,
                heartbeat: self.cfg.timing.node_heartbeat,
                operator: NEEDS_OPERATOR,
            },
        }
    }

    fn verdict(&self, scene: &Scene<'_>, partition: &Partition) -> Verdict {
        let seen = self.arbiter.leader_seen(partition.group);
        let elected_at = |leader: Leader| seen.filter(|(term, _)| *term == leader.term).map_or(scene.now, |(_, at)| at);
        match assess(scene, partition, elected_at) {
            Health::Led(_) => Verdict::Led,
            Health::New => Verdict::New,
            Health::Unknown => {
                let holder = partition.lease.and_then(|lease| partition.node_of(lease.replica));
                Verdict::Unknown { holder: holder.map(|node| self.node_name(node)).unwrap_or_default() }
            }
            Health::Leaderless { cause, was, since } => {
                // The first reason counts; while the failover goes on, the state of things changes.
                let first = self.arbiter.suspicion(partition.group).filter(|_| self.leading);
                let (cause, was, since) = first.map_or((cause, was, since), |s| (s.cause, s.was, s.since));
                let was = was.map(|leader| self.node_name(leader.node));
                Verdict::Leaderless { cause, was, since: scene.now.since(since) }
            }
        }
    }

    fn leader_facts(&self, scene: &Scene<'_>, partition: &Partition, leader: Leader) -> Option<LeaderFacts> {
        let (group, now) = (partition.group, scene.now);
        let seen = self.fresh_report(scene, partition, (leader.replica, leader.node))?;
        let elected = self.directory.failovers().iter().rev().find(|failover| {
            failover.group_id == group.get() && failover.new_term == leader.term.get() && !failover.withdrawn
        });
        let since = elected.map(|failover| {
            let took: u64 = failover.phases.iter().map(|phase| phase.duration_us).sum();
            let ago = self.clock.read(now).0.saturating_sub(failover.at_us);
            let ago = u64::try_from(ago).unwrap_or_default().saturating_sub(took);
            (Duration::from_micros(ago), AtLeast::Exactly)
        });
        let first_seen = self.arbiter.leader_seen(group).filter(|(term, _)| self.leading && *term == leader.term);
        Some(LeaderFacts {
            node: self.node_name(leader.node),
            term: leader.term,
            serving: seen.report.serving,
            lease: seen.report.lease_remaining.saturating_sub(now.since(seen.at)),
            leased: partition.lease.is_some_and(|l| (l.replica, l.term) == (leader.replica, leader.term)),
            since: since.or_else(|| first_seen.map(|(_, at)| (now.since(at), AtLeast::AtLeast))),
        })
    }

    fn fresh_report<'a>(
        &'a self,
        scene: &Scene<'a>,
        partition: &Partition,
        (replica, node): (ReplicaId, NodeId),
    ) -> Option<&'a Seen> {
        let seen = scene.view.report(scene.directory, partition.group, replica, node)?;
        (scene.now.since(seen.at) <= self.fresh()).then_some(seen)
    }

    fn replica_facts(
        &self,
        scene: &Scene<'_>,
        partition: &Partition,
        leader: Option<Leader>,
        (replica, node): (ReplicaId, NodeId),
    ) -> ReplicaFacts {
        let view = self.view.node(node);
        let disk = match view {
            Some(view) if view.session.is_some() && !view.disk_ok => Disk::Failed,
            Some(view) if view.wal_age > self.cfg.timing.wal_stall => Disk::Stalled(view.wal_age),
            _ => Disk::Healthy,
        };
        let matched = leader.and_then(|leader| {
            let report = &self.fresh_report(scene, partition, (leader.replica, leader.node))?.report;
            if replica == leader.replica {
                return None;
            }
            let at = report.matched.iter().find(|(id, _)| *id == replica)?.1;
            Some(report.last_index.get().saturating_sub(at.get()))
        });
        let report = self.fresh_report(scene, partition, (replica, node)).map(|seen| ReportFacts {
            leads: seen.report.role == Role::Leader,
            campaigns: seen.report.role == Role::Candidate,
            quarantined: seen.report.role == Role::Quarantined,
            suspect_log: seen.report.suspect_log,
            hears_quorum: seen.report.hears_quorum,
            leader_silent: seen.report.leader_silent,
            lag: matched,
        });
        ReplicaFacts {
            node: self.node_name(node),
            process: self.process(node, scene.now),
            disk,
            room: view.map_or_else(Room::default, |view| view.room),
            lost: partition.lost.contains(&replica),
            draining: self.view.draining(&self.directory, node),
            report,
        }
    }

    fn process(&self, node: NodeId, now: BootTime) -> Process {
        if let Some(dead) = self.directory.node(node).filter(|n| !n.is_live()) {
            return Process::Dead { how: self.view.how_died(node, dead.dead).to_owned() };
        }
        let Some(view) = self.view.node(node) else { return Process::Unconnected };
        let span = now.since(view.heard);
        // An observer that is alone hears no other's table: then its own silence counts.
        let broken = view.broken.is_some_and(|at| now.since(at) >= BROKEN_GRACE);
        if span >= self.fresh() || broken || self.view.suspect(node, now) {
            return Process::Silent { span };
        }
        if view.session.is_some() {
            Process::Up
        } else {
            Process::Unconnected
        }
    }

    /// The newest permit, if nobody has won with it and it is still good.
    fn permit_facts(&self, partition: &Partition, now: BootTime) -> Option<PermitFacts> {
        let permit = partition.newest.as_ref()?;
        let used = partition.lease.is_some_and(|lease| lease.epoch >= permit.epoch);
        let age = now.since(self.arbiter.permitted_at(partition.group).filter(|_| self.leading)?);
        let candidate = partition.node_of(permit.candidate).map(|node| self.node_name(node))?;
        (!used && age <= self.cfg.timing.permit_valid).then_some(PermitFacts { candidate, age, clear: permit.clear })
    }

    fn node_name(&self, node: NodeId) -> String {
        self.directory.node(node).map_or_else(|| node.to_string(), |n| n.registered.name.clone())
    }
}
