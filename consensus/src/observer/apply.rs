//! Committed entries: applied to the directory on every observer; what follows from them is done by the leader.

use bytes::Bytes;
use quorate_proto::control::LeaseVerdict;
use quorate_proto::ids::{GroupId, Incarnation, LogIndex, NodeId, ReplicaId, Term};
use quorate_proto::refusal::Refusal;
use quorate_proto::time::BootTime;
use raft::eraftpb::{Entry, EntryType};

use super::config::observer_of;
use super::core::{ObserverCore, Out};
use super::pending::Pending;
use super::ObserverEffect;
use crate::directory::{Applied, CommandKind, Directory, DirectoryCommand, Outcome};
use crate::envelope::{Envelope, Lane};
use crate::policy::Policy;
use crate::replica::SnapshotImage;

impl<P: Policy> ObserverCore<P> {
    pub(super) fn apply(&mut self, now: BootTime, entries: Vec<Entry>, out: &mut Out) {
        let version = self.directory.version();
        let topology = self.directory.topology();
        let Some(last) = entries.last().map(|e| LogIndex(e.index)) else { return };
        for entry in entries {
            let at = (LogIndex(entry.index), Term(entry.term));
            if entry.data.is_empty() || entry.get_entry_type() != EntryType::EntryNormal {
                self.directory.skip_to(at.0, at.1);
                self.pending.remove(&at.0);
                continue;
            }
            let command = match DirectoryCommand::decode(entry.data) {
                Ok(command) => command,
                Err(error) => {
                    self.fail(format!("directory log {}: {error}", at.0), out);
                    return;
                }
            };
            self.apply_one(now, at, command, out);
        }
        if self.directory.topology() != topology {
            self.push_assignments(out);
        }
        if self.directory.version() != version {
            out.push(ObserverEffect::DirectoryChanged { version: self.directory.version() });
        }
        self.with_replica(|replica, fx| replica.applied(now, last, fx));
        self.save_if_due(out);
    }

    fn apply_one(&mut self, now: BootTime, at: (LogIndex, Term), command: DirectoryCommand, out: &mut Out) {
        let leased = match &command.kind {
            CommandKind::GrantLease { group, lease } => Some((*group, lease.term)),
            _ => None,
        };
        let released = match &command.kind {
            CommandKind::Release { group, .. } => Some(*group),
            _ => None,
        };
        let died = match &command.kind {
            CommandKind::Death(death) => Some((death.node, death.incarnation)),
            _ => None,
        };
        if let CommandKind::Death(death) | CommandKind::IssuePermits { death: Some(death), .. } = &command.kind {
            self.view.died(death.node, death.incarnation, &death.how);
            if !death.clean() {
                self.view.fault(death.node, now);
            }
        }
        let Outcome { result, .. } = self.directory.apply_as::<P>(at.0, at.1, command);
        // A pending entry of another term lost its place to this one.
        let pending = self.pending.remove(&at.0).filter(|(term, _)| *term == at.1).map(|(_, pending)| pending);
        if !self.leading {
            return;
        }
        match result {
            Ok(applied) => {
                if let Some((group, term)) = leased {
                    self.lease_applied(now, group, term, &applied, out);
                }
                self.follow(now, applied, released, died, out);
            }
            Err(refusal) => self.refused(&refusal, pending.as_ref(), out),
        }
        self.settle(pending, out);
    }

    /// What the leader does after a command was applied.
    fn follow(
        &mut self,
        now: BootTime,
        applied: Applied,
        released: Option<GroupId>,
        died: Option<(NodeId, Incarnation)>,
        out: &mut Out,
    ) {
        match applied {
            Applied::Registered { node, died } => {
                if died.is_some() {
                    self.after_death(now, node, out);
                }
                let groups = self.groups_on(node);
                for group in &groups {
                    self.arbiter.event(*group);
                }
                self.examine(now, groups, out);
            }
            Applied::Permits { died, issued } => {
                if let Some((node, _)) = died {
                    self.mark_death(now, node);
                }
                for permit in &issued {
                    self.move_permitted(now, permit);
                    let suspicion = self.arbiter.issued(permit, &self.cfg.timing, now);
                    if let Some(suspicion) = suspicion {
                        self.failovers.permit(permit, suspicion, &self.directory, now);
                    }
                }
                self.push_permits(&issued, out);
                self.arbiter.set_pending(issued.iter().map(|p| p.group), false);
                if let Some((node, _)) = died {
                    self.after_death(now, node, out);
                }
            }
            Applied::Released => {
                if let Some(group) = released {
                    if !self.is_moving(now, group) {
                        self.arbiter.urge(group);
                    }
                    self.examine(now, [group], out);
                }
            }
            Applied::Rebuilt => {
                self.compare_directories();
                // L5: whoever leads may have a lease.
                self.leases.table.take_over(&self.directory, now, self.cfg.timing.lease);
                self.round(now, out);
            }
            Applied::Placed => self.begin_moves(now, out),
            Applied::Died => {
                if let Some((node, _)) = died {
                    self.after_death(now, node, out);
                }
            }
            Applied::Bootstrapped
            | Applied::ChangeBegun(_)
            | Applied::ChangeAdvanced
            | Applied::ChangeFinished(_)
            | Applied::Topic(_)
            | Applied::LeaseGranted(_)
            | Applied::LeaseRefused
            | Applied::Failover(_)
            | Applied::Unchanged => {}
        }
    }

    fn mark_death(&mut self, now: BootTime, node: NodeId) {
        for group in self.groups_on(node) {
            let suspicion = self.arbiter.suspicion(group).filter(|s| s.was.is_some_and(|was| was.node == node));
            if let Some(suspicion) = suspicion {
                self.failovers.death(group, suspicion, &self.directory, now);
            }
        }
    }

    /// A process is dead: its partitions need leaders without any waiting.
    fn after_death(&mut self, now: BootTime, node: NodeId, out: &mut Out) {
        let groups = self.groups_on(node);
        for group in &groups {
            if self.directory.partition(*group).and_then(|p| p.lease.map(|l| p.node_of(l.replica))) == Some(Some(node))
                && self.directory.leader_of(*group).is_none()
            {
                // A permit issued together with the death is newer than it and stays good.
                if !self.arbiter.was_just_issued(*group, now) {
                    self.arbiter.urge(*group);
                }
            } else {
                self.arbiter.event(*group);
            }
        }
        self.examine(now, groups, out);
        self.mark_death(now, node);
    }

    fn lease_applied(&mut self, now: BootTime, group: GroupId, term: Term, applied: &Applied, out: &mut Out) {
        let verdict = match applied {
            Applied::LeaseGranted(lease) => {
                self.leases.table.extend(group, now, self.cfg.timing.lease);
                if let Some(node) = self.directory.partition(group).and_then(|p| p.node_of(lease.replica)) {
                    self.failovers.lease(group, node, *lease, self.directory.version(), now);
                }
                self.move_ended(now, group, *lease, out);
                LeaseVerdict::Granted
            }
            _ => LeaseVerdict::Superseded,
        };
        for (session, sent) in self.leases.take_waiters(group, term) {
            self.answer_lease(now, session, sent, vec![(group, term, verdict)], out);
        }
    }

    fn refused(&mut self, refusal: &Refusal, pending: Option<&Pending>, out: &mut Out) {
        match pending {
            Some(Pending::Admin(ticket)) => {
                out.push(ObserverEffect::AdminAnswer { ticket: *ticket, result: Err(refusal.clone()) });
            }
            Some(Pending::Register(node)) => {
                let session = self.view.node(*node).and_then(|v| v.session);
                let hello = session.and_then(|s| self.sessions.get(&s)).and_then(|s| s.hello.clone());
                if let (Some(session), Some(hello)) = (session, hello) {
                    self.refuse_registration(session, &hello, refusal, out);
                }
            }
            _ if self.directory.cluster() != self.cfg.cluster => self.fail(refusal.to_string(), out),
            _ => {}
        }
    }

    /// The proposal came to its end.
    fn settle(&mut self, pending: Option<Pending>, out: &mut Out) {
        match pending {
            Some(Pending::Register(node)) => {
                self.registering.remove(&node);
            }
            Some(Pending::Admin(ticket)) => {
                let answered = out
                    .iter()
                    .any(|e| matches!(e, ObserverEffect::AdminAnswer { ticket: done, .. } if *done == ticket));
                if !answered {
                    let result = Ok(self.directory.version());
                    out.push(ObserverEffect::AdminAnswer { ticket, result });
                }
            }
            Some(Pending::Permits { groups, death }) => {
                self.arbiter.set_pending(groups, false);
                for ticket in death.and_then(|key| self.exits.remove(&key)).unwrap_or_default() {
                    out.push(ObserverEffect::ExitAnswer { ticket, result: Ok(()) });
                }
            }
            Some(Pending::Release(replica, term)) => {
                self.releasing.remove(&(replica, term));
            }
            Some(Pending::Members(group)) => self.repairs.settled(group),
            Some(Pending::Grant(..) | Pending::Plain) | None => {}
        }
    }

    fn save_if_due(&mut self, out: &mut Out) {
        let (index, term) = self.directory.applied();
        let behind = index.get().saturating_sub(self.snapshot.get());
        if behind >= self.cfg.snapshot_entries && self.saving.is_none() && self.restoring.is_none() {
            self.saving = Some(index);
            out.push(ObserverEffect::SaveSnapshot { index, term, data: self.directory.encode() });
        }
    }

    pub(super) fn snapshot_saved(&mut self, now: BootTime, index: LogIndex, _term: Term, out: &mut Out) {
        if self.restoring.as_ref().is_some_and(|(waiting, _)| *waiting == index) {
            if let Some((_, directory)) = self.restoring.take() {
                self.directory = *directory;
                self.snapshot = index;
                self.saving = None;
                out.push(ObserverEffect::Restored { index });
                out.push(ObserverEffect::DirectoryChanged { version: self.directory.version() });
                self.with_replica(|replica, fx| replica.restored(now, index, Vec::new(), fx));
                self.push_assignments(out);
            }
            return;
        }
        if self.saving == Some(index) {
            self.saving = None;
            self.snapshot = index;
            if self.restoring.is_none() {
                self.with_replica(|replica, fx| replica.compact(now, index, Vec::new(), fx));
            }
        }
    }

    /// A snapshot came from the leader. Its file must be durable before the log that it replaces is given up.
    pub(super) fn restore(&mut self, index: LogIndex, term: Term, data: Bytes, out: &mut Out) {
        match Directory::decode(&data) {
            Ok(directory) if directory.applied().0 == index => {
                self.restoring = Some((index, Box::new(directory)));
                out.push(ObserverEffect::SaveSnapshot { index, term, data });
            }
            Ok(directory) => {
                let at = directory.applied().0;
                self.fail(format!("received a directory snapshot at {at}, announced at {index}"), out);
            }
            Err(error) => self.fail(format!("received a directory snapshot that means nothing: {error}"), out),
        }
    }

    pub(super) fn build_snapshot(&mut self, now: BootTime, to: ReplicaId) {
        let (index, term) = self.directory.applied();
        let data = self.directory.encode();
        let conf_state = self.replica.membership_at(index);
        let image = SnapshotImage { index, term, conf_state, data };
        self.with_replica(|replica, fx| replica.snapshot_built(now, to, Some(image), fx));
    }

    /// The directory is small: its snapshot is one message among the appends.
    pub(super) fn send(&mut self, now: BootTime, lane: Lane, envelope: Box<Envelope>, out: &mut Out) {
        let to = envelope.to;
        let lane = if lane == Lane::Snapshot { Lane::Bulk } else { lane };
        let snapshot = envelope.message.has_snapshot() && !envelope.message.get_snapshot().get_data().is_empty();
        out.push(ObserverEffect::Send { node: observer_of(to), lane, envelope });
        if snapshot {
            // If it is lost, probing finds out and another one is built.
            self.with_replica(|replica, fx| replica.snapshot_sent(now, to, true, fx));
        }
    }
}
