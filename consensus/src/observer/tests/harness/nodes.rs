//! Data nodes that obey permits.

use std::collections::BTreeMap;
use std::time::Duration;

use quorate_proto::control::*;
use quorate_proto::ids::*;
use quorate_proto::time::BootTime;

use super::World;
use crate::observer::ObserverEvent;

/// A scripted data node.
#[derive(Clone, Debug)]
pub struct DataNode {
    pub hello: Hello,
    pub up: bool,
    /// Campaigns when permitted, and wins.
    pub obedient: bool,
    pub disk_ok: bool,
    pub room: Room,
    pub reports: BTreeMap<GroupId, ReplicaReport>,
    /// The directory that it keeps (M5).
    pub kept: bytes::Bytes,
    pub(super) members: BTreeMap<GroupId, Vec<(ReplicaId, NodeId)>>,
    pub(super) next_beat: BootTime,
    pub(super) seq: u64,
}

impl World {
    /// A data node hears an observer: hosts what it is assigned, campaigns when permitted, asks for its lease.
    pub(super) fn heard(&mut self, id: NodeId, message: SessionDown) {
        let Some(node) = self.nodes.get_mut(&id).filter(|n| n.up) else { return };
        match message {
            SessionDown::Assignments(all) => {
                for one in all.replicas {
                    node.members.insert(one.group, one.members);
                    if node.reports.get(&one.group).is_some_and(|known| known.replica != one.replica) {
                        node.reports.remove(&one.group);
                    }
                    node.reports.entry(one.group).or_insert(ReplicaReport {
                        group: one.group,
                        replica: one.replica,
                        term: Term(1),
                        last_term: Term(1),
                        last_index: LogIndex(5),
                        hears_quorum: true,
                        learner: one.change.is_some_and(|change| change.add == one.replica),
                        ..ReplicaReport::default()
                    });
                }
                node.next_beat = BootTime::ZERO;
            }
            SessionDown::Directory(asked) if asked.is_empty() => {
                let told = SessionUp::Directory(node.kept.clone());
                self.up(id, told);
            }
            SessionDown::Directory(shown) => {
                let directory = crate::directory::Directory::decode(&shown).expect("a directory");
                let (version, born) = (directory.version(), directory.born());
                let same = node.hello.knows == DirectoryVersion::ZERO || node.hello.knows_born == born;
                if version > node.hello.knows && same {
                    (node.hello.knows, node.hello.knows_born, node.kept) = (version, born, shown);
                }
            }
            SessionDown::Permits(permits) if node.obedient => {
                let (reports, incarnation) = (&node.reports, node.hello.incarnation);
                let mine = permits.into_iter().filter(|permit| {
                    reports.get(&permit.group).is_some_and(|r| r.replica == permit.candidate)
                        && permit.candidate_incarnation == incarnation
                });
                for permit in mine.collect::<Vec<_>>() {
                    self.win(id, &permit);
                }
            }
            SessionDown::Lease(answer) => {
                for (group, term, verdict) in answer.results {
                    let report = node.reports.get_mut(&group).filter(|r| r.term == term);
                    if let Some(report) = report.filter(|_| verdict == LeaseVerdict::Granted) {
                        report.serving = true;
                        node.next_beat = BootTime::ZERO;
                    }
                }
            }
            _ => {}
        }
    }

    fn win(&mut self, id: NodeId, permit: &Permit) {
        if let Some(planned) = permit.planned {
            // The old leader hands over: it releases its term, then the target wins.
            let holds = |n: &&DataNode| n.reports.values().any(|r| r.replica == planned.from);
            let old = self.nodes.values().find(holds).map(|n| n.hello.node).expect("the old leader");
            let (group, replica, term) = (permit.group, planned.from, planned.term);
            self.up(old, SessionUp::Release { group, replica, term, for_fence: false, stood: Duration::ZERO });
        }
        let term = self.nodes.values().filter_map(|n| n.reports.get(&permit.group)).map(|r| r.term).max();
        let term = term.unwrap_or_default().next();
        for node in self.nodes.values_mut().filter(|n| n.up) {
            if let Some(report) = node.reports.get_mut(&permit.group) {
                let leads = node.hello.node == id;
                report.term = term;
                report.role = if leads { Role::Leader } else { Role::Follower };
                report.leader = Some(permit.candidate);
                report.won_epoch = permit.epoch;
                report.last_term = term;
                report.last_index = report.last_index.next();
                report.leader_silent = false;
                report.fence_lost = false;
                report.serving = false;
                let last = report.last_index;
                report.matched = node.members[&permit.group].iter().map(|(replica, _)| (*replica, last)).collect();
                node.next_beat = BootTime::ZERO;
            }
        }
        self.ask(id, &[permit.group]);
    }

    /// The node asks for the leases of the groups that it leads.
    pub fn ask(&mut self, id: NodeId, groups: &[GroupId]) {
        let node = &self.nodes[&id];
        let items = groups.iter().filter_map(|g| node.reports.get(g)).filter(|r| r.role == Role::Leader);
        let items = items
            .map(|r| LeaseItem { group: r.group, replica: r.replica, term: r.term, permit_epoch: r.won_epoch })
            .collect();
        let request = LeaseRequest { sent: self.now, write_proof: node.disk_ok, items };
        let to: Vec<(NodeId, Ticket)> = self.sessions.iter().filter(|(_, n)| **n == id).map(|(k, _)| *k).collect();
        for (observer, session) in to {
            let message = Box::new(SessionUp::Lease(request.clone()));
            self.queue.push_back((observer, ObserverEvent::Session { session, message }));
        }
    }
}
