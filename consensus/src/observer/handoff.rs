//! Planned handoffs and drains on the observer leader (H1, H2): which leader is to move, and what came of it.
//!
//! ```text
//!  asked for, drained or pinned ─► checked ─► permit logged and pushed ─► target's lease logged: done
//!                                                        └ 1.3 s ─► leader goes on: refused · nobody leads: any replica
//! ```
//! What survives an observer leader is in the directory: drains and pins. A handoff under way is over within its
//! deadline; the next observer leader sees its outcome as any other state of the partition.

use std::collections::BTreeMap;
use std::time::Duration;

use quorate_proto::control::Permit;
use quorate_proto::ids::{GroupId, NodeId, OperationId, PartitionNo, PermitEpoch, ReplicaId, Term, Ticket};
use quorate_proto::refusal::{Reason, Refusal};
use quorate_proto::time::BootTime;

use super::core::{ObserverCore, Out};
use super::ObserverEffect;
use crate::arbiter::{plan, target, Cause, Leader, Scene, Suspicion};
use crate::directory::{CommandKind, Lease, Partition};
use crate::policy::Policy;

/// The old leader's own deadline (1 s) and an election.
const DEADLINE: Duration = Duration::from_millis(1_300);
/// Leaders that move at the same time.
const AT_ONCE: usize = 16;
/// Pause after a handoff that failed, doubled each time.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(8));

#[derive(Clone, Debug)]
struct Move {
    from: Leader,
    candidate: ReplicaId,
    to: NodeId,
    epoch: PermitEpoch,
    since: BootTime,
    /// Whom to answer, and whether its place is to be kept.
    asked: Option<(Ticket, bool)>,
}

/// Handoffs under way.
#[derive(Clone, Debug, Default)]
pub(super) struct Moves {
    running: BTreeMap<GroupId, Move>,
    /// Handoffs that failed in a row, and when the last one did.
    failed: BTreeMap<GroupId, (u32, BootTime)>,
}

impl Moves {
    /// The partition's leader is on its way, and nothing says that it will not arrive.
    pub(super) fn holds(&self, scene: &Scene<'_>, group: GroupId) -> bool {
        self.running.get(&group).is_some_and(|moving| {
            let alive = |node: NodeId| scene.directory.node(node).is_some_and(crate::directory::Node::is_live);
            let released =
                scene.directory.partition(group).is_some_and(|p| p.is_released(moving.from.replica, moving.from.term));
            let able = alive(moving.to) && !scene.view.suspect(moving.to, scene.now);
            scene.now.since(moving.since) < DEADLINE && able && (released || alive(moving.from.node))
        })
    }

    /// The handoff under way: from whom, to which node, since when.
    pub(super) fn running(&self, group: GroupId) -> Option<(Leader, NodeId, BootTime)> {
        self.running.get(&group).map(|moving| (moving.from, moving.to, moving.since))
    }

    fn paused(&self, group: GroupId, now: BootTime) -> bool {
        self.failed.get(&group).is_some_and(|(times, at)| {
            let pause = PAUSE.0 * 2_u32.saturating_pow(times.saturating_sub(1).min(8));
            now.since(*at) < pause.min(PAUSE.1)
        })
    }
}

impl<P: Policy> ObserverCore<P> {
    pub(super) fn scene(&self, now: BootTime) -> Scene<'_> {
        Scene {
            directory: &self.directory,
            view: &self.view,
            leases: &self.leases.table,
            timing: &self.cfg.timing,
            now,
            failed_last: P::keeps(crate::policy::Rule::FailedLast),
        }
    }

    /// No handoff or election of the partition is under way, and none failed just now.
    pub(super) fn may_move(&self, now: BootTime, group: GroupId) -> bool {
        !self.moves.running.contains_key(&group) && !self.arbiter.is_pending(group) && !self.moves.paused(group, now)
    }

    pub(super) fn is_moving(&self, now: BootTime, group: GroupId) -> bool {
        self.moves.holds(&self.scene(now), group)
    }

    pub(super) fn named(&self, (topic, number): (&str, PartitionNo)) -> Result<&Partition, Refusal> {
        let group = self.directory.topic_named(topic).and_then(|t| t.groups.get(number.get() as usize));
        group.and_then(|group| self.directory.partition(*group)).ok_or_else(|| {
            let action = "check it with `quorate topic describe`";
            Refusal::new(
                Reason::UnknownTopic,
                "there is no such topic or partition",
                format!("{topic}/{}", number.get()),
                action,
            )
        })
    }

    pub(super) fn node_id(&self, text: &str) -> Result<NodeId, Refusal> {
        self.directory.node_named(text).map(|node| node.registered.node).ok_or_else(|| {
            let names: Vec<&str> = self.directory.nodes().values().map(|n| n.registered.name.as_str()).collect();
            let what = format!("there is no such data node; there are {}", names.join(", "));
            Refusal::new(Reason::InvalidArgument, what, format!("node {text}"), "name one of them")
        })
    }

    /// An operator moves a leader.
    pub(super) fn hand_over(
        &mut self,
        now: BootTime,
        ticket: Ticket,
        place: (&str, PartitionNo),
        to: &str,
        pin: bool,
        out: &mut Out,
    ) -> Result<(), Refusal> {
        if !self.leading {
            return Err(self.not_leading(format!("{}/{}", place.0, place.1.get())));
        }
        let partition = self.named(place)?;
        let (group, to) = (partition.group, self.node_id(to)?);
        if self.moves.running.contains_key(&group) || self.arbiter.is_pending(group) {
            let subject = self.directory.label(group);
            let what = "another election or handoff of the partition is under way";
            return Err(Refusal::new(Reason::Busy, what, subject, "repeat the call").retry_after(DEADLINE));
        }
        let permit = plan(&self.scene(now), partition, to)?;
        self.begin(now, vec![(permit, to)], Some((ticket, pin)), out);
        Ok(())
    }

    pub(super) fn drain(
        &mut self,
        now: BootTime,
        ticket: Ticket,
        node: &str,
        draining: bool,
        out: &mut Out,
    ) -> Result<(), Refusal> {
        if !self.leading {
            return Err(self.not_leading(format!("node {node}")));
        }
        let (subject, node) = (format!("node {node}"), self.node_id(node)?);
        let command = CommandKind::SetDraining { node, draining };
        self.propose_admin(now, OperationId::NONE, command, ticket, subject, out)
    }

    pub(super) fn unpin(
        &mut self,
        now: BootTime,
        ticket: Ticket,
        place: (&str, PartitionNo),
        out: &mut Out,
    ) -> Result<(), Refusal> {
        let subject = format!("{}/{}", place.0, place.1.get());
        if !self.leading {
            return Err(self.not_leading(subject));
        }
        let group = self.named(place)?.group;
        let command = CommandKind::SetPin { group, node: None };
        self.propose_admin(now, OperationId::NONE, command, ticket, subject, out)
    }

    /// Drained nodes and pins: leaders that ought to be elsewhere, several at a time.
    pub(super) fn begin_moves(&mut self, now: BootTime, out: &mut Out) {
        let room = AT_ONCE.saturating_sub(self.moves.running.len());
        if !self.leading || room == 0 {
            return;
        }
        let scene = self.scene(now);
        let wanted = self.directory.partitions().values().filter(|p| self.may_move(now, p.group));
        let begin: Vec<(Permit, NodeId)> = wanted
            .filter_map(|partition| {
                let permit = target(&scene, partition)?;
                let to = partition.node_of(permit.candidate)?;
                Some((permit, to))
            })
            .take(room)
            .collect();
        if !begin.is_empty() {
            self.begin(now, begin, None, out);
        }
    }

    /// The node leads partitions, and none of them has or can get a handoff under way.
    pub(super) fn cannot_drain(&self, now: BootTime, node: NodeId) -> bool {
        let scene = self.scene(now);
        let leads = |p: &&Partition| self.directory.leader_of(p.group).is_some_and(|(leader, _)| leader == node);
        let mut led = self.directory.partitions().values().filter(leads).peekable();
        self.leading
            && led.peek().is_some()
            && led.all(|p| !self.moves.running.contains_key(&p.group) && target(&scene, p).is_none())
    }

    pub(super) fn begin(
        &mut self,
        now: BootTime,
        moves: Vec<(Permit, NodeId)>,
        asked: Option<(Ticket, bool)>,
        out: &mut Out,
    ) {
        let mut permits = Vec::with_capacity(moves.len());
        for (permit, to) in moves {
            let Some(planned) = permit.planned else { continue };
            let node = self.directory.partition(permit.group).and_then(|p| p.node_of(planned.from));
            let from = Leader { node: node.unwrap_or_default(), replica: planned.from, term: planned.term };
            let (candidate, epoch) = (permit.candidate, permit.epoch);
            self.moves.running.insert(permit.group, Move { from, candidate, to, epoch, since: now, asked });
            permits.push(permit);
        }
        self.propose_permits(now, None, permits, out);
    }

    /// The permit is logged: the handoff begins here, as far as its record goes.
    pub(super) fn move_permitted(&mut self, now: BootTime, permit: &Permit) {
        let moving = self.moves.running.get(&permit.group).filter(|m| m.epoch == permit.epoch);
        if let Some(moving) = moving.filter(|_| permit.planned.is_some()) {
            let suspicion = Suspicion { cause: Cause::Handoff, was: Some(moving.from), since: now, found: now };
            self.failovers.permit(permit, suspicion, &self.directory, now);
        }
    }

    /// A lease is logged: somebody won.
    pub(super) fn move_ended(&mut self, now: BootTime, group: GroupId, lease: Lease, out: &mut Out) {
        let Some(moving) = self.moves.running.get(&group) else { return };
        if (lease.replica, lease.term) == (moving.from.replica, moving.from.term) {
            return; // The old one, granted once more.
        }
        let arrived = lease.replica == moving.candidate && lease.epoch == moving.epoch;
        self.finish(now, group, arrived, out);
    }

    /// What is over its deadline did not succeed.
    pub(super) fn judge_moves(&mut self, now: BootTime, out: &mut Out) {
        let scene = self.scene(now);
        let over: Vec<GroupId> =
            self.moves.running.keys().copied().filter(|group| !self.moves.holds(&scene, *group)).collect();
        for group in over {
            self.finish(now, group, false, out);
        }
    }

    fn finish(&mut self, now: BootTime, group: GroupId, arrived: bool, out: &mut Out) {
        let Some(moving) = self.moves.running.remove(&group) else { return };
        let Leader { replica, term, .. } = moving.from;
        let released = self.directory.partition(group).is_some_and(|p| p.is_released(replica, term));
        if arrived {
            self.moves.failed.remove(&group);
        } else {
            let times = self.moves.failed.get(&group).map_or(0, |(times, _)| *times);
            self.moves.failed.insert(group, (times + 1, now));
            if released {
                self.arbiter.urge(group);
            } else {
                self.failovers.forget(group);
            }
        }
        let Some((ticket, pin)) = moving.asked else { return };
        if !arrived {
            let result = Err(self.not_moved(group, &moving, term, released));
            out.push(ObserverEffect::AdminAnswer { ticket, result });
            return;
        }
        let command = CommandKind::SetPin { group, node: Some(moving.to) };
        let subject = self.directory.label(group);
        let placed = pin && self.propose_admin(now, OperationId::NONE, command, ticket, subject, out).is_ok();
        if !placed {
            out.push(ObserverEffect::AdminAnswer { ticket, result: Ok(self.directory.version()) });
        }
    }

    fn not_moved(&self, group: GroupId, moving: &Move, term: Term, released: bool) -> Refusal {
        let target = self.directory.node(moving.to);
        let to = target.map_or_else(String::new, |n| n.registered.name.clone());
        let (reason, what, action) = if released {
            let what = format!("the target did not take over from the leader of {term}; another one is elected");
            (Reason::Handoff, what, "see `quorate partition describe`, then repeat the call")
        } else if !target.is_some_and(crate::directory::Node::is_live) {
            let what = "the target died before it could take over: the leader goes on".to_owned();
            (Reason::Handoff, what, "name another target, or wait until the node is back for 30 s")
        } else {
            let what = "the target lagged, the leader could not reach it, or the last entries did not commit within \
                        1 s: the leader goes on";
            let what = what.to_owned();
            (Reason::Lagging, what, "repeat the call when the load is lower or the target is faster")
        };
        Refusal::new(reason, what, format!("{}, to {to}", self.directory.label(group)), action)
    }

    /// Observer leadership ended: the outcome is not seen here.
    pub(super) fn forget_moves(&mut self, out: &mut Out) {
        for (group, moving) in std::mem::take(&mut self.moves.running) {
            if let Some((ticket, _)) = moving.asked {
                let refusal = self.not_leading(self.directory.label(group)).of_unknown_fate();
                out.push(ObserverEffect::AdminAnswer { ticket, result: Err(refusal) });
            }
        }
    }
}
