//! Repair and changes of members on the observer leader (M1, M2, M4): begun by a loss or by an operator, driven and
//! looked at anew in every round. What must survive an observer leader is in the directory: the task with its phase.
//!
//! ```text
//!  lost for 30 s, or asked for ─► M4 checked ─► BeginChange logged ─► assignments ─► leader: learner, snapshot, log
//!  caught up, M4 checked again ─► AdvanceChange(Promote) ─► leader: joint, leave ─► FinishChange ─► old data retired
//! ```

use std::collections::{BTreeMap, BTreeSet};

use quorate_proto::control::{Change, ChangePhase};
use quorate_proto::ids::{GroupId, NodeId, OperationId, PartitionNo, ReplicaId, TaskId, Ticket};
use quorate_proto::refusal::{Reason, Refusal};
use quorate_proto::time::BootTime;

use super::core::{ObserverCore, Out};
use super::pending::Pending;
use crate::arbiter::{loss, next_step, place, plan, safe_without, Loss, Next};
use crate::directory::{CommandKind, Partition};
use crate::policy::Policy;

/// Changes begun by losses that run at the same time: they share disks and network with publishing (M2).
const AT_ONCE: usize = 8;

/// The observer leader's memory of losses.
#[derive(Clone, Debug, Default)]
pub(super) struct Repairs {
    /// Since when each member is lost, and how.
    lost: BTreeMap<(GroupId, ReplicaId), (Loss, BootTime)>,
    /// Since when the node of a new replica is away.
    away: BTreeMap<TaskId, BootTime>,
    /// Proposed, not yet applied.
    proposed: BTreeSet<GroupId>,
}

impl Repairs {
    /// A proposal about the partition's members came to its end.
    pub(super) fn settled(&mut self, group: GroupId) {
        self.proposed.remove(&group);
    }
}

impl<P: Policy> ObserverCore<P> {
    /// The round's look at every partition's members.
    pub(super) fn repair(&mut self, now: BootTime, out: &mut Out) {
        let groups: Vec<GroupId> = self.directory.partitions().keys().copied().collect();
        let running = self.directory.partitions().values().filter(|p| p.change.is_some()).count();
        let mut room = AT_ONCE.saturating_sub(running + self.repairs.proposed.len());
        for group in groups {
            if self.repairs.proposed.contains(&group) {
                continue;
            }
            match self.directory.partition(group).and_then(|partition| partition.change) {
                Some(change) => self.drive(now, group, change, out),
                None => {
                    if let Some(command) = self.overdue(now, group).filter(|_| room > 0) {
                        room -= 1;
                        self.propose_change(now, group, command, out);
                    }
                }
            }
        }
    }

    fn propose_change(&mut self, now: BootTime, group: GroupId, command: CommandKind, out: &mut Out) {
        if self.propose(now, command, Pending::Members(group), out) {
            self.repairs.proposed.insert(group);
        }
    }

    /// The repair that has become due, if one is possible. Notes who is lost, and who is not any more.
    fn overdue(&mut self, now: BootTime, group: GroupId) -> Option<CommandKind> {
        let patience = self.cfg.timing.repair_after;
        let found = {
            let (scene, partition) = (self.scene(now), self.directory.partition(group)?);
            let look = |(replica, node): &(ReplicaId, NodeId)| (*replica, loss(&scene, partition, *replica, *node));
            partition.replicas.iter().map(look).collect::<Vec<_>>()
        };
        let mut due = Vec::new();
        for (replica, found) in found {
            let key = (group, replica);
            let Some(found) = found else {
                self.repairs.lost.remove(&key);
                continue;
            };
            let (kind, since) = self.repairs.lost.entry(key).or_insert((found, now));
            *kind = found;
            if now.since(*since) >= patience {
                due.push((replica, found));
            }
        }
        if due.is_empty() {
            return None;
        }
        let scene = self.scene(now);
        let partition = self.directory.partition(group)?;
        due.into_iter().find_map(|(remove, found)| {
            safe_without(&scene, partition, remove).ok()?;
            let node = place(&scene, partition, remove, found)?;
            self.directory.check_change(group, remove, node).ok()?;
            Some(CommandKind::BeginChange { group, remove, node, reason: found.to_string() })
        })
    }

    fn drive(&mut self, now: BootTime, group: GroupId, change: Change, out: &mut Out) {
        let Some(partition) = self.directory.partition(group) else { return };
        let scene = self.scene(now);
        let gone = loss(&scene, partition, change.add, change.node) == Some(Loss::Away);
        // A node that was only away, and is back before its replacement learnt everything, is as good as before.
        let home = partition.replicas.iter().find(|(replica, _)| *replica == change.remove);
        let back = self.directory.task(change.task).is_some_and(|task| task.reason == Loss::Away.to_string())
            && home.is_some_and(|(replica, node)| loss(&scene, partition, *replica, *node).is_none());
        let step = if back && change.phase == ChangePhase::Learn {
            Next::Cancel("the node of the old replica is back")
        } else if partition.lost.contains(&change.add) && change.phase == ChangePhase::Learn {
            Next::Cancel("the disk of the new replica was replaced")
        } else {
            let since = *self.repairs.away.get(&change.task).unwrap_or(&now);
            next_step(&scene, partition, &change, gone && now.since(since) >= self.cfg.timing.repair_after)
        };
        if gone {
            self.repairs.away.entry(change.task).or_insert(now);
        } else {
            self.repairs.away.remove(&change.task);
        }
        let advance =
            |phase, why: &str| CommandKind::AdvanceChange { group, task: change.task, phase, why: why.to_owned() };
        match step {
            Next::Wait(_) => {}
            Next::Promote => self.propose_change(now, group, advance(ChangePhase::Promote, ""), out),
            Next::Cancel(why) => self.propose_change(now, group, advance(ChangePhase::Cancel, why), out),
            Next::Finish => {
                self.propose_change(now, group, CommandKind::FinishChange { group, task: change.task }, out);
            }
            Next::HandOff(nodes) => self.move_away(now, group, &nodes, out),
        }
    }

    /// What the next step of a change waits for. Only the observer leader knows.
    #[must_use]
    pub fn change_waits_for(&self, group: GroupId, now: BootTime) -> Option<&'static str> {
        let partition = self.directory.partition(group).filter(|_| self.leading)?;
        match next_step(&self.scene(now), partition, partition.change.as_ref()?, false) {
            Next::Wait(what) => Some(what),
            Next::HandOff(_) => Some("the leader to hand over"),
            Next::Promote | Next::Cancel(_) | Next::Finish => None,
        }
    }

    /// The operator's `replica replace` and `replica move`.
    pub(super) fn replace(
        &mut self,
        now: BootTime,
        ticket: Ticket,
        place: (&str, PartitionNo),
        (from, to): (&str, &str),
        out: &mut Out,
    ) -> Result<(), Refusal> {
        let subject = format!("{}/{}", place.0, place.1.get());
        if !self.leading {
            return Err(self.not_leading(subject));
        }
        let (group, from, to) = (self.named(place)?.group, self.node_id(from)?, self.node_id(to)?);
        let partition = self.named(place)?;
        let Some((remove, _)) = partition.replicas.iter().copied().find(|(_, node)| *node == from) else {
            let what = "that node holds no replica of the partition";
            let action = "name one that `quorate partition describe` lists";
            return Err(Refusal::new(Reason::InvalidArgument, what, subject, action));
        };
        let scene = self.scene(now);
        if let Err(what) = safe_without(&scene, partition, remove) {
            let action = "wait until the partition is healthy, see `quorate why`, then repeat the call";
            return Err(Refusal::new(Reason::RefusedUnsafe, what, subject, action));
        }
        if !scene.view.usable(&self.directory, &self.cfg.timing, now).any(|node| node == to) {
            let what = "the node of the new replica is not connected, draining, or its disk is failing or slow";
            return Err(Refusal::new(Reason::RefusedUnsafe, what, subject, "choose another node"));
        }
        self.directory.check_change(group, remove, to)?;
        let reason = "an operator asked for it".to_owned();
        let command = CommandKind::BeginChange { group, remove, node: to, reason };
        self.propose_admin(now, OperationId::NONE, command, ticket, subject, out)
    }

    /// The operator gives a change up.
    pub(super) fn cancel_task(
        &mut self,
        now: BootTime,
        ticket: Ticket,
        task: TaskId,
        out: &mut Out,
    ) -> Result<(), Refusal> {
        let subject = task.to_string();
        if !self.leading {
            return Err(self.not_leading(subject));
        }
        let Some(known) = self.directory.task(task) else {
            let action = "see `quorate task list`";
            return Err(Refusal::new(Reason::InvalidArgument, "there is no such task", subject, action));
        };
        let over = known.ended.is_some() || known.phase != ChangePhase::Learn;
        if over {
            let what = match known.ended {
                Some(_) => "the task is over",
                None => "the membership is being changed already, which is finished within moments",
            };
            return Err(Refusal::new(Reason::RefusedUnsafe, what, subject, "nothing is to be done"));
        }
        let why = "an operator cancelled it".to_owned();
        let command = CommandKind::AdvanceChange { group: known.group, task, phase: ChangePhase::Cancel, why };
        self.propose_admin(now, OperationId::NONE, command, ticket, subject, out)
    }

    /// Nodes that may take over from the replica to be removed (M4).
    fn move_away(&mut self, now: BootTime, group: GroupId, nodes: &[NodeId], out: &mut Out) {
        if !self.may_move(now, group) {
            return;
        }
        let permit = {
            let scene = self.scene(now);
            let partition: Option<&Partition> = self.directory.partition(group);
            partition.and_then(|p| nodes.iter().find_map(|node| Some((plan(&scene, p, *node).ok()?, *node))))
        };
        if let Some(permit) = permit {
            self.begin(now, vec![permit], None, out);
        }
    }
}
