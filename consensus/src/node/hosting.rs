//! Which replicas the node hosts: found on disk, or assigned by the directory.

use quorate_proto::control::{Assignment, Assignments, PeerInfo, ReplicaReport, Role};
use quorate_proto::ids::{ConfigVersion, GroupId, PersistId, ReplicaId};
use quorate_proto::time::BootTime;

use super::config::MachineImage;
use super::dispatch::NodeCore;
use super::effect::{NodeEffect, View};
use super::partition_replica::{Opening, PartitionReplica, Turn};
use super::stored::{encode_assignment, ASSIGNMENT};
use crate::effect::Restored;
use crate::policy::Policy;
use crate::replica::{bootstrap, learner};

/// Version of the members that a partition was made with.
const FIRST_CONFIG: ConfigVersion = ConfigVersion(1);

/// Members that a partition was made with: all but one that is to join them.
#[must_use]
pub fn first_members(assignment: &Assignment) -> Vec<ReplicaId> {
    let joins = assignment.change.map(|change| change.add);
    assignment.members.iter().map(|(replica, _)| *replica).filter(|replica| Some(*replica) != joins).collect()
}

/// A replica of this node.
#[derive(Debug)]
pub(super) enum Hosted<P: Policy> {
    /// Takes part.
    Live(Box<PartitionReplica<P>>),
    /// Set aside because its data cannot be trusted (M3): its files stay, it is reported, it answers nobody.
    Aside {
        /// What it was.
        assignment: Assignment,
        /// What was found.
        reason: String,
    },
}

impl<P: Policy> Hosted<P> {
    pub(super) fn live(&self) -> Option<&PartitionReplica<P>> {
        match self {
            Self::Live(partition) => Some(partition),
            Self::Aside { .. } => None,
        }
    }

    pub(super) fn replica(&self) -> ReplicaId {
        match self {
            Self::Live(partition) => partition.assignment.replica,
            Self::Aside { assignment, .. } => assignment.replica,
        }
    }

    pub(super) fn report(&self, now: BootTime) -> ReplicaReport {
        match self {
            Self::Live(partition) => partition.report(now),
            Self::Aside { assignment, .. } => ReplicaReport {
                group: assignment.group,
                replica: assignment.replica,
                role: Role::Quarantined,
                config_version: assignment.config_version,
                ..ReplicaReport::default()
            },
        }
    }
}

impl<P: Policy> NodeCore<P> {
    /// Hosts a replica that was found on disk at start. Call it before the first event.
    ///
    /// `assignment`: as stored under [`ASSIGNMENT`] in the group's key–value pairs.
    /// `image`: the newest checkpoint; `None` if there was none yet. Entries after it are applied again, so the
    /// effects contain the `Append`s of everything committed after the checkpoint.
    pub fn open(
        &mut self,
        assignment: Assignment,
        restored: Restored,
        image: Option<MachineImage>,
        now: BootTime,
        out: &mut Vec<NodeEffect>,
    ) {
        let suspect_log = self.config().suspect_log;
        self.host(assignment, restored, image, suspect_log, now, out);
    }

    /// Sets a replica aside that was found on disk at start and cannot be opened: it must not be made anew under
    /// its old id (M1, M3). Call it before the first event.
    pub fn open_aside(&mut self, assignment: Assignment, reason: String, out: &mut Vec<NodeEffect>) {
        out.push(NodeEffect::Open(assignment.clone()));
        self.set_aside(assignment.group, assignment, reason, out);
    }

    /// Data of a replica were found at start beside those of its successor. Call it before the first event.
    pub fn keep(&mut self, group: GroupId, replica: ReplicaId) {
        self.kept.insert((group, replica));
    }

    /// Data of replicas lie here that are not hosted: whether their logs could be trusted nobody can tell but a start.
    #[must_use]
    pub fn keeps_any(&self) -> bool {
        !self.kept.is_empty()
    }

    /// The directory's picture: older ones are ignored, unknown replicas are made.
    pub(super) fn assigned(&mut self, assignments: Assignments, now: BootTime, out: &mut Vec<NodeEffect>) {
        if assignments.version < self.assignments_version {
            return;
        }
        self.assignments_version = assignments.version;
        self.learn_peers(assignments.peers, out);
        // First: what is assigned may be the replica whose place a given-up learner held.
        for (group, replica) in assignments.retired {
            self.retire(group, replica, now, out);
        }
        for assignment in assignments.replicas {
            let group = assignment.group;
            match self.partitions.get_mut(&group).map(|hosted| (hosted.replica(), hosted)) {
                None => self.take_up(assignment, now, out),
                Some((replica, hosted)) if replica == assignment.replica => match hosted {
                    Hosted::Aside { assignment: known, .. } => *known = assignment,
                    Hosted::Live(_) => {
                        self.visit(group, now, out, |partition, turn| partition.reassigned(assignment, turn));
                    }
                },
                // M1: another replica, with a new id, takes its place; the old data stay until that is promoted.
                Some((replica, hosted)) if replica < assignment.replica => {
                    if hosted.live().is_some() {
                        self.kept.insert((group, replica));
                    }
                    self.stop_replica(group, now, out);
                    self.take_up(assignment, now, out);
                }
                Some(_) => {}
            }
        }
    }

    /// A replica that is not hosted yet. Only that of a new partition begins by itself, and one that is to become a
    /// member learns everything. Any other one was here once. If its data were kept for the case that its successor is given
    /// up, a start opens them: only a start judges a log (B2). Else they are gone (M1).
    fn take_up(&mut self, assignment: Assignment, now: BootTime, out: &mut Vec<NodeEffect>) {
        let group = assignment.group;
        if self.kept.contains(&(group, assignment.replica)) {
            out.push(NodeEffect::Reopen { group, replica: assignment.replica });
            return;
        }
        let learns = assignment.change.is_some_and(|change| change.add == assignment.replica);
        if !learns && assignment.config_version > FIRST_CONFIG {
            out.push(NodeEffect::Open(assignment.clone()));
            let reason =
                format!("its data are not here, and {} is not its first membership", assignment.config_version);
            self.set_aside(group, assignment, reason, out);
            return;
        }
        let restored = if learns {
            learner()
        } else {
            let members: Vec<ReplicaId> = first_members(&assignment);
            bootstrap(&members)
        };
        let stored = encode_assignment(&assignment);
        let lost = !learns && (self.config.log_lost || self.config.lost_groups.contains(&group));
        self.host(assignment, restored, None, lost, now, out);
        self.visit(group, now, out, |partition, turn| partition.record(vec![(ASSIGNMENT, stored)], turn));
    }

    fn learn_peers(&mut self, peers: Vec<PeerInfo>, out: &mut Vec<NodeEffect>) {
        if peers != self.peers {
            self.peers.clone_from(&peers);
            out.push(NodeEffect::Peers(peers));
        }
    }

    fn host(
        &mut self,
        assignment: Assignment,
        restored: Restored,
        image: Option<MachineImage>,
        suspect_log: bool,
        now: BootTime,
        out: &mut Vec<NodeEffect>,
    ) {
        let group = assignment.group;
        out.push(NodeEffect::Open(assignment.clone()));
        let opening = Opening {
            assignment: assignment.clone(),
            restored,
            image,
            election_ticks: self.draw_election_ticks(),
            suspect_log,
            first_write: self.next_first_write(),
            started: self.started,
        };
        let opened = {
            let turn = self.turn(now, out);
            PartitionReplica::open(opening, &turn)
        };
        match opened {
            Ok(partition) => {
                self.partitions.insert(group, Hosted::Live(Box::new(partition)));
                self.visit(group, now, out, |partition, turn| {
                    partition.set_room(turn.room);
                    partition.show(turn);
                });
            }
            Err(quarantine) => self.set_aside(group, assignment, quarantine.reason, out),
        }
    }

    /// The group takes no further part: it serves nobody, keeps its files, and is reported.
    pub(super) fn set_aside(
        &mut self,
        group: GroupId,
        assignment: Assignment,
        reason: String,
        out: &mut Vec<NodeEffect>,
    ) {
        out.push(NodeEffect::ServeUntil { group, until: BootTime::ZERO });
        out.push(NodeEffect::View { group, view: View { role: Role::Quarantined, ..View::default() } });
        out.push(NodeEffect::Quarantined { group, reason: reason.clone() });
        self.partitions.insert(group, Hosted::Aside { assignment, reason });
        self.report_groups.push(group);
    }

    /// Far enough above the last hosting's: no replica makes so many writes.
    fn next_first_write(&mut self) -> PersistId {
        self.hostings += 1;
        PersistId((self.hostings << 40) + 1)
    }

    fn draw_election_ticks(&mut self) -> usize {
        let timing = &self.config.timing;
        let tick = timing.tick.as_millis().max(1);
        let ticks = |span: std::time::Duration| u64::try_from(span.as_millis() / tick).unwrap_or(u64::MAX);
        let (low, high) = (ticks(timing.election_min), ticks(timing.election_max));
        usize::try_from(self.rng.within(low, high)).unwrap_or(usize::MAX)
    }

    /// The surroundings of one event, for code that does not go through [`Self::visit`].
    fn turn<'a>(&'a mut self, now: BootTime, out: &'a mut Vec<NodeEffect>) -> Turn<'a> {
        Turn {
            now,
            config: &self.config,
            cluster: &self.cluster,
            node_pending: self.pending,
            closing: self.closing.is_some(),
            room: self.space.room(),
            refuses_records: self.space.refuses_records(now),
            counters: &mut self.counters,
            out,
        }
    }
}
