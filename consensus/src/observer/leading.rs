//! What only the observer leader does: propose, register, permit, record (protocol P1, S2, S3, L5).

use std::collections::BTreeSet;
use std::time::Duration;

use quorate_proto::control::{Permit, SessionDown};
use quorate_proto::ids::{GroupId, NodeId, OperationId, Ticket};
use quorate_proto::refusal::Refusal;
use quorate_proto::time::{BootTime, LogTime};
use quorate_proto::v1::Reason;

use super::core::{ObserverCore, Out};
use super::event::AdminRequest;
use super::failover::{Failovers, Recorder};
use super::handoff::Moves;
use super::pending::Pending;
use super::repair::Repairs;
use super::ObserverEffect;
use crate::arbiter::{Arbiter, Scene};
use crate::directory::{place, Applied, CommandKind, Death, DirectoryCommand, PARTITIONS_MAX};
use crate::policy::{Policy, Rule};
use crate::replica::ProposeError;

impl<P: Policy> ObserverCore<P> {
    /// Proposes a command; `false` if it was not appended (the caller or the next round tries again).
    pub(super) fn propose(&mut self, now: BootTime, kind: CommandKind, pending: Pending, out: &mut Out) -> bool {
        self.propose_as(now, OperationId::NONE, kind, pending, out).is_ok()
    }

    fn propose_as(
        &mut self,
        now: BootTime,
        operation: OperationId,
        kind: CommandKind,
        pending: Pending,
        _out: &mut Out,
    ) -> Result<(), ProposeError> {
        let data = DirectoryCommand { at: self.clock.read(now), operation, kind }.encode();
        let (term, index) = self.with_replica(|replica, fx| replica.propose(now, data, fx))?;
        self.pending.insert(index, (term, pending));
        Ok(())
    }

    /// This observer leads from here on: its own first entry is applied, so everything older is too.
    pub(super) fn take_over(&mut self, now: BootTime, out: &mut Out) {
        self.leading = true;
        self.arbiter = Arbiter::default();
        self.failovers = Failovers::default();
        self.moves = Moves::default();
        self.repairs = Repairs::default();
        self.compare_directories();
        self.leases.table.take_over(&self.directory, now, self.cfg.timing.lease);
        if self.directory.cluster() != self.cfg.cluster {
            self.propose(now, CommandKind::Bootstrap(self.cfg.cluster), Pending::Plain, out);
        }
        self.take_up_stash(now, out);
        self.round(now, out);
    }

    /// Leadership ended. What was proposed may still be committed by another leader: of unknown fate.
    pub(super) fn step_down(&mut self, out: &mut Out) {
        self.leading = false;
        self.leases.step_down();
        self.forget_moves(out);
        self.registering.clear();
        self.releasing.clear();
        for (_, (_, pending)) in std::mem::take(&mut self.pending) {
            if let Pending::Admin(ticket) = pending {
                let refusal = self.not_leading("topic".to_owned()).of_unknown_fate();
                out.push(ObserverEffect::AdminAnswer { ticket, result: Err(refusal) });
            }
        }
        for ((node, incarnation), tickets) in std::mem::take(&mut self.exits) {
            for ticket in tickets {
                let subject = format!("{node} incarnation {}", incarnation.get());
                let refusal = self.not_leading(subject).of_unknown_fate();
                out.push(ObserverEffect::ExitAnswer { ticket, result: Err(refusal) });
            }
        }
    }

    /// The net under all events, every arbiter tick (S3).
    pub(super) fn round(&mut self, now: BootTime, out: &mut Out) {
        let sessions: Vec<Ticket> = self.sessions.keys().copied().collect();
        for session in sessions {
            self.register(now, session, out);
        }
        self.judge_moves(now, out);
        self.examine_all(now, out);
        self.begin_moves(now, out);
        self.repair(now, out);
        self.record_failovers(now, out);
    }

    /// Registers the node of a session, if the directory does not have it so.
    pub(super) fn register(&mut self, now: BootTime, session: Ticket, out: &mut Out) {
        let Some(hello) = self.sessions.get(&session).and_then(|s| s.hello.clone()) else { return };
        let known = self.directory.node(hello.node).is_some_and(|n| n.registered == *hello);
        if known || self.registering.contains(&hello.node) {
            return;
        }
        // M5: this directory is no successor of the one that the node knows.
        if self.knows_more(session) || self.turned_away(now, session, &hello, out) {
            return;
        }
        let node = hello.node;
        if self.propose(now, CommandKind::Register(hello), Pending::Register(node), out) {
            self.registering.insert(node);
        }
    }

    pub(super) fn examine_all(&mut self, now: BootTime, out: &mut Out) {
        let groups: Vec<GroupId> = self.directory.partitions().keys().copied().collect();
        self.examine(now, groups, out);
    }

    /// Looks at partitions and proposes the permits that are due, in one command.
    pub(super) fn examine(&mut self, now: BootTime, groups: impl IntoIterator<Item = GroupId>, out: &mut Out) {
        let scene = Scene {
            directory: &self.directory,
            view: &self.view,
            leases: &self.leases.table,
            timing: &self.cfg.timing,
            now,
            failed_last: P::keeps(Rule::FailedLast),
        };
        let (arbiter, moves) = (&mut self.arbiter, &self.moves);
        // A handoff is not disturbed while its own deadline runs (H2).
        let partitions = groups
            .into_iter()
            .filter(|group| !moves.holds(&scene, *group))
            .filter_map(|group| self.directory.partition(group));
        let permits: Vec<Permit> = partitions.filter_map(|partition| arbiter.examine(&scene, partition)).collect();
        if !permits.is_empty() {
            self.propose_permits(now, None, permits, out);
        }
    }

    /// One record for the death of a node and the permits for all its partitions (P1).
    pub(super) fn propose_death(&mut self, now: BootTime, death: Death, out: &mut Out) {
        let scene = Scene {
            directory: &self.directory,
            view: &self.view,
            leases: &self.leases.table,
            timing: &self.cfg.timing,
            now,
            failed_last: P::keeps(Rule::FailedLast),
        };
        let hit = self.arbiter.examine_death(&scene, death.node, death.incarnation);
        let permits = hit.into_iter().filter_map(|(_, permit)| permit).collect();
        self.propose_permits(now, Some(death), permits, out);
    }

    pub(super) fn propose_permits(&mut self, now: BootTime, death: Option<Death>, permits: Vec<Permit>, out: &mut Out) {
        let groups: Vec<GroupId> = permits.iter().map(|p| p.group).collect();
        let died = death.as_ref().map(|d| (d.node, d.incarnation));
        let pending = Pending::Permits { groups: groups.clone(), death: died };
        let kind = CommandKind::IssuePermits { death, permits };
        if !P::keeps(Rule::CommittedPermit) {
            self.push_uncommitted(&kind, out);
        }
        if self.propose(now, kind, pending, out) {
            self.arbiter.set_pending(groups, true);
        } else if let Some(key) = died {
            // The supervisor repeats its notice.
            for ticket in self.exits.remove(&key).unwrap_or_default() {
                let result = Err(self.not_leading(key.0.to_string()));
                out.push(ObserverEffect::ExitAnswer { ticket, result });
            }
        }
    }

    /// A mutant's haste: permits, and the basis that they would have, before they are in the log.
    fn push_uncommitted(&self, kind: &CommandKind, out: &mut Out) {
        let mut ahead = self.directory.clone();
        let (index, term) = ahead.applied();
        let command = DirectoryCommand { at: LogTime::ZERO, operation: OperationId::NONE, kind: kind.clone() };
        if let Ok(Applied::Permits { issued, .. }) = ahead.apply_as::<P>(index.next(), term, command).result {
            self.push_permits(&issued, out);
        }
    }

    /// Hands committed, applied permits to the nodes of *all* replicas of each partition (P1).
    pub(super) fn push_permits(&self, permits: &[Permit], out: &mut Out) {
        let mut by_session: std::collections::BTreeMap<Ticket, Vec<Permit>> = std::collections::BTreeMap::new();
        for permit in permits {
            let Some(partition) = self.directory.partition(permit.group) else { continue };
            let nodes = partition.all().filter_map(|(_, node)| self.view.node(node));
            for session in nodes.filter_map(|view| view.session) {
                by_session.entry(session).or_default().push(permit.clone());
            }
        }
        for (session, permits) in by_session {
            Self::say(session, SessionDown::Permits(permits), out);
        }
    }

    pub(super) fn record_failovers(&mut self, now: BootTime, out: &mut Out) {
        if !self.leading {
            return;
        }
        for group in self.arbiter.take_withdrawn() {
            self.failovers.withdraw(group, now);
        }
        let (directory, view, time) = (&self.directory, &self.view, self.clock.read(now));
        for failover in self.failovers.finished(&Recorder { directory, view, time, now }) {
            self.propose(now, CommandKind::Failover(Box::new(failover)), Pending::Plain, out);
        }
    }

    pub(super) fn admin(&mut self, now: BootTime, ticket: Ticket, request: AdminRequest, out: &mut Out) {
        let result = match request {
            AdminRequest::CreateTopic { name, partitions, operation, topic_id } => {
                let subject = format!("topic {name}");
                self.create_topic(now, ticket, (name, topic_id), partitions, operation, subject, out)
            }
            AdminRequest::Handoff { topic, partition, to, pin } => {
                self.hand_over(now, ticket, (&topic, partition), &to, pin, out)
            }
            AdminRequest::Drain { node, draining } => self.drain(now, ticket, &node, draining, out),
            AdminRequest::Unpin { topic, partition } => self.unpin(now, ticket, (&topic, partition), out),
            AdminRequest::Replace { topic, partition, from, to } => {
                self.replace(now, ticket, (&topic, partition), (&from, &to), out)
            }
            AdminRequest::BreakGlass { topic, partition, node, plan, principal } => {
                self.break_glass(now, ticket, (&topic, partition), &node, (&plan, principal), out)
            }
            AdminRequest::Rebuild { plan, principal } => self.rebuild(now, ticket, (&plan, principal), out),
            AdminRequest::CancelTask(task) => self.cancel_task(now, ticket, task, out),
        };
        if let Err(refusal) = result {
            out.push(ObserverEffect::AdminAnswer { ticket, result: Err(refusal) });
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn create_topic(
        &mut self,
        now: BootTime,
        ticket: Ticket,
        (name, topic): (String, quorate_proto::ids::TopicId),
        partitions: u32,
        operation: OperationId,
        subject: String,
        out: &mut Out,
    ) -> Result<(), Refusal> {
        if !self.leading {
            return Err(self.not_leading(subject));
        }
        self.room_to_add(&subject)?;
        self.not_before_rebuild(&subject)?;
        if partitions == 0 || partitions > PARTITIONS_MAX {
            let what = format!("{partitions} partitions, allowed are 1 to {PARTITIONS_MAX}");
            return Err(Refusal::new(Reason::InvalidArgument, what, subject, "choose another number"));
        }
        // A repeated call, or a name that is taken, is decided at apply and needs no live nodes.
        let placements = if self.directory.topic_named(&name).is_some() {
            Vec::new()
        } else {
            let live: BTreeSet<NodeId> = self.view.usable(&self.directory, &self.cfg.timing, now).collect();
            place(&self.directory, &live, partitions)?
        };
        let command = CommandKind::CreateTopic { name, topic, partitions: placements };
        self.propose_admin(now, operation, command, ticket, subject, out)
    }

    /// Proposes what an administrator wants; answered once applied.
    pub(super) fn propose_admin(
        &mut self,
        now: BootTime,
        operation: OperationId,
        command: CommandKind,
        ticket: Ticket,
        subject: String,
        out: &mut Out,
    ) -> Result<(), Refusal> {
        self.propose_as(now, operation, command, Pending::Admin(ticket), out).map_err(|error| match error {
            ProposeError::Full => {
                Refusal::new(Reason::Busy, "too many changes in progress", subject, "repeat the call")
                    .retry_after(Duration::from_millis(100))
            }
            ProposeError::NotLeader { .. } => self.not_leading(subject),
        })
    }
}
