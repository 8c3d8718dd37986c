//! What the node tells the observers: who it is, beats, reports, leases, releases.

use std::time::Duration;

use quorate_proto::control::{
    Heartbeat, Hello, LeaseAnswer, LeaseItem, LeaseRequest, ReplicaReport, SessionDown, SessionUp,
};
use quorate_proto::ids::{GroupId, NodeId};
use quorate_proto::time::BootTime;

use super::dispatch::NodeCore;
use super::effect::{NodeEffect, Observers};
use super::hosting::Hosted;
use crate::policy::Policy;

/// A release goes with every beat for so long: the observer leader that heard it may have died of the same fault.
/// Longer than the observers' own election takes; the observers take a release once, however often they hear it.
const RELEASE_REPEATED: Duration = Duration::from_secs(3);

fn tell(to: Observers, message: SessionUp) -> NodeEffect {
    NodeEffect::Session { to, message: Box::new(message) }
}

impl<P: Policy> NodeCore<P> {
    /// A session opened: who I am, what I released (the notice may have been lost), and a beat without delay.
    pub(super) fn session_up(&mut self, observer: NodeId, now: BootTime, out: &mut Vec<NodeEffect>) {
        let to = Observers::One(observer);
        let hello = Hello { knows: self.known.version(), knows_born: self.known.born(), ..self.config.hello.clone() };
        out.push(tell(to, SessionUp::Hello(hello)));
        let live = self.partitions.values().filter_map(Hosted::live);
        out.extend(live.filter_map(|partition| partition.release_notice(now)).map(|notice| tell(to, notice)));
        self.disk.beat_soon(now);
    }

    /// A message from an observer.
    pub(super) fn session_down(
        &mut self,
        from: NodeId,
        message: SessionDown,
        now: BootTime,
        out: &mut Vec<NodeEffect>,
    ) {
        match message {
            // Its time says nothing of when it was asked for: the first beat's acknowledgement follows.
            SessionDown::Welcome { .. } => {}
            SessionDown::Refused { reason, fatal, raise_above } => {
                if let Some(above) = raise_above {
                    out.push(NodeEffect::RaiseIncarnation(above));
                } else if fatal {
                    out.push(NodeEffect::Fatal(reason));
                }
            }
            SessionDown::Permits(permits) => {
                for permit in permits {
                    self.visit(permit.group, now, out, |partition, turn| partition.permit(permit, turn));
                }
            }
            SessionDown::Lease(answer) => self.lease_answered(&answer, now, out),
            SessionDown::Assignments(assignments) => self.assigned(assignments, now, out),
            SessionDown::Directory(snapshot) => self.directory(from, snapshot, out),
            SessionDown::HeartbeatAck { sent, cluster_time, nobody_else, .. } => {
                self.cluster.learn(cluster_time, sent);
                self.nobody_else |= nobody_else;
            }
        }
    }

    fn lease_answered(&mut self, answer: &LeaseAnswer, now: BootTime, out: &mut Vec<NodeEffect>) {
        self.cluster.learn(answer.cluster_time, answer.sent);
        for (group, term, verdict) in &answer.results {
            self.visit(*group, now, out, |partition, turn| {
                partition.lease_answered(*term, *verdict, answer.sent, turn);
            });
        }
    }

    /// The beat: its token came back through the WAL queue (B4).
    pub(super) fn beat(&mut self, seq: u64, now: BootTime, out: &mut Vec<NodeEffect>) {
        let live = self.partitions.values().filter_map(Hosted::live);
        let fresh = live.filter(|p| p.released.is_some_and(|release| now.since(release.at) < RELEASE_REPEATED));
        out.extend(
            fresh.filter_map(|partition| partition.release_notice(now)).map(|notice| tell(Observers::All, notice)),
        );
        let reports = self.partitions.values().map(|hosted| hosted.report(now)).collect();
        out.push(tell(Observers::All, SessionUp::Heartbeat(self.heartbeat(seq, reports, false, now))));
    }

    /// What changed, at once (P2).
    pub(super) fn report_changes(&mut self, now: BootTime, out: &mut Vec<NodeEffect>) {
        if self.report_groups.is_empty() {
            return;
        }
        let mut groups = std::mem::take(&mut self.report_groups);
        groups.sort_unstable();
        groups.dedup();
        let reports = groups.iter().filter_map(|group| self.partitions.get(group)).map(|hosted| hosted.report(now));
        let reports: Vec<ReplicaReport> = reports.collect();
        let seq = self.disk.next_seq();
        out.push(tell(Observers::All, SessionUp::Heartbeat(self.heartbeat(seq, reports, true, now))));
        groups.clear();
        self.report_groups = groups;
    }

    fn heartbeat(&self, seq: u64, reports: Vec<ReplicaReport>, partial: bool, now: BootTime) -> Heartbeat {
        Heartbeat {
            seq,
            sent: now,
            wal_age: self.disk.age(now, self.oldest_write),
            disk_ok: self.disk.ok(),
            draining: self.draining || self.closing.is_some(),
            reports,
            partial,
            room: self.space.room(),
        }
    }

    /// Asks for the leases that are due among `groups`, in one message (L3). Without proof of a recent flush a
    /// canary goes first (L4): its return asks again.
    pub(super) fn ask_leases(&mut self, groups: &[GroupId], now: BootTime, out: &mut Vec<NodeEffect>) {
        if !self.disk.ok() {
            return;
        }
        let items: Vec<LeaseItem> = groups
            .iter()
            .filter_map(|group| self.partitions.get(group).and_then(Hosted::live)?.lease_due(now))
            .collect();
        if items.is_empty() {
            return;
        }
        if !self.disk.write_proof(now, &self.config.timing) {
            if self.disk.want_canary(now) {
                out.push(NodeEffect::Canary);
            }
            return;
        }
        for item in &items {
            self.visit(item.group, now, out, |partition, turn| partition.replica.lease_asked(turn.now));
        }
        let request = LeaseRequest { sent: now, write_proof: true, items };
        out.push(tell(Observers::All, SessionUp::Lease(request)));
    }
}
