//! Changes of a partition's members (M1): one at a time per partition, each a task with an id.
//!
//! ```text
//!  BeginChange ─► Learn ─┬─► AdvanceChange(Promote) ─► FinishChange: the new replica takes the old one's place
//!                        └─► AdvanceChange(Cancel)  ─► FinishChange: nothing changed, the learner is retired
//! ```
//! The leader of the partition does the Raft side by what its node is assigned; the observer leader advances the task
//! by what that leader reports.

use std::collections::BTreeMap;

use quorate_proto::control::{Change, ChangePhase};
use quorate_proto::ids::{GroupId, NodeId, ReplicaId, TaskId};
use quorate_proto::refusal::{Reason, Refusal};
use quorate_proto::time::LogTime;

use super::{Applied, Directory, Node, Partition};

/// Tasks that are over and still shown.
pub const TASKS_KEPT: usize = 1_000;
/// Retired replicas remembered per partition, for nodes that were away.
const RETIRED_KEPT: usize = 32;

/// A change of members, running or over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Names it.
    pub id: TaskId,
    /// The partition.
    pub group: GroupId,
    /// The replica to be, and its node.
    pub add: (ReplicaId, NodeId),
    /// The replica whose place it takes, and its node.
    pub remove: (ReplicaId, NodeId),
    /// How far it is, or was when it ended.
    pub phase: ChangePhase,
    /// Why it was begun, for people.
    pub reason: String,
    /// Cluster time of its begin.
    pub begun: LogTime,
    /// Cluster time of its end; `None` while it runs.
    pub ended: Option<LogTime>,
    /// Why it was given up; empty = it was not.
    pub cancelled: String,
}

/// Why the change of `remove` to a replica on `node` is not possible, by the directory alone.
fn objection(nodes: &BTreeMap<NodeId, Node>, partition: &Partition, remove: ReplicaId, node: NodeId) -> Option<String> {
    if partition.change.is_some() {
        return Some("another change of its members is under way".to_owned());
    }
    let place = partition.replicas.iter().find(|(replica, _)| *replica == remove);
    let Some((_, from)) = place else { return Some(format!("{remove} is no member")) };
    let Some(target) = nodes.get(&node) else { return Some(format!("{node} is not registered")) };
    let others = partition.replicas.iter().filter(|(replica, _)| *replica != remove);
    for (_, other) in others {
        if *other == node {
            return Some(format!("{node} hosts another replica of it"));
        }
        let domain = nodes.get(other).map(|n| &n.registered.fault_domain);
        if node != *from && domain == Some(&target.registered.fault_domain) {
            return Some(format!("{node} shares its fault domain with {other}"));
        }
    }
    None
}

impl Directory {
    /// Tasks, oldest first.
    pub fn tasks(&self) -> impl DoubleEndedIterator<Item = &Task> {
        self.tasks.iter()
    }

    /// One task.
    #[must_use]
    pub fn task(&self, id: TaskId) -> Option<&Task> {
        self.tasks.iter().find(|task| task.id == id)
    }

    /// Whether the replica may be replaced by one on `node`, by what the log says.
    ///
    /// # Errors
    /// Why not.
    pub fn check_change(&self, group: GroupId, remove: ReplicaId, node: NodeId) -> Result<(), Refusal> {
        let action = "see `quorate partition describe` and `quorate task list`";
        let subject = || format!("{}, {remove} to {node}", self.label(group));
        let Some(partition) = self.partitions.get(&group) else {
            return Err(Refusal::new(Reason::UnknownTopic, "there is no such partition", subject(), action));
        };
        match objection(&self.nodes, partition, remove, node) {
            Some(what) => Err(Refusal::new(Reason::RefusedUnsafe, what, subject(), action)),
            None => Ok(()),
        }
    }

    pub(super) fn begin_change(
        &mut self,
        at: LogTime,
        group: GroupId,
        remove: ReplicaId,
        node: NodeId,
        reason: String,
    ) -> Result<Applied, Refusal> {
        self.check_change(group, remove, node)?;
        let (task, add) = (self.next_task, self.next_replica);
        self.next_task = task.next();
        self.next_replica = add.next();
        let partition = self.partitions.get_mut(&group).expect("it was just checked");
        let from = partition.node_of(remove).expect("it was just checked");
        let phase = ChangePhase::Learn;
        partition.change = Some(Change { task, add, node, remove, phase });
        self.tasks.push_back(Task {
            id: task,
            group,
            add: (add, node),
            remove: (remove, from),
            phase,
            reason,
            begun: at,
            ended: None,
            cancelled: String::new(),
        });
        while self.tasks.len() > TASKS_KEPT && self.tasks.front().is_some_and(|task| task.ended.is_some()) {
            self.tasks.pop_front();
        }
        self.bump_topology();
        Ok(Applied::ChangeBegun(task))
    }

    /// Only a learning replica is promoted or given up.
    pub(super) fn advance_change(&mut self, group: GroupId, task: TaskId, to: ChangePhase, why: String) -> Applied {
        let change = self.partitions.get_mut(&group).and_then(|p| p.change.as_mut());
        let Some(change) = change.filter(|c| c.task == task && c.phase == ChangePhase::Learn && c.phase != to) else {
            return Applied::Unchanged;
        };
        change.phase = to;
        if let Some(task) = self.tasks.iter_mut().find(|t| t.id == task) {
            task.phase = to;
            task.cancelled = why;
        }
        self.bump_topology();
        Applied::ChangeAdvanced
    }

    pub(super) fn finish_change(&mut self, at: LogTime, group: GroupId, task: TaskId) -> Applied {
        let Some(partition) = self.partitions.get_mut(&group) else { return Applied::Unchanged };
        let over = |c: &Change| c.task == task && c.phase != ChangePhase::Learn;
        let Some(change) = partition.change.filter(over) else { return Applied::Unchanged };
        partition.finish(change);
        partition.clear_permits(&self.nodes);
        if let Some(task) = self.tasks.iter_mut().find(|t| t.id == task) {
            task.ended = Some(at);
        }
        self.bump_topology();
        Applied::ChangeFinished(task)
    }

    /// The node came up with another, empty disk: what it hosted is lost (M1).
    pub(super) fn lose_replicas_on(&mut self, node: NodeId) {
        for partition in self.partitions.values_mut() {
            let lost: Vec<ReplicaId> = partition.all().filter(|(_, on)| *on == node).map(|(r, _)| r).collect();
            partition.lost.extend(lost);
            // Nothing of them is left there.
            partition.retired.retain(|(_, on)| *on != node);
        }
    }
}

impl Partition {
    /// Members, and the replica that is to become one.
    pub fn all(&self) -> impl Iterator<Item = (ReplicaId, NodeId)> + '_ {
        self.replicas.iter().copied().chain(self.change.map(|change| (change.add, change.node)))
    }

    fn finish(&mut self, change: Change) {
        self.change = None;
        let leaves = match change.phase {
            ChangePhase::Promote => {
                let place = self.replicas.iter_mut().find(|(replica, _)| *replica == change.remove);
                let Some(place) = place else { return };
                let old = std::mem::replace(place, (change.add, change.node));
                self.pin = self.pin.map(|pin| if pin == old.1 { change.node } else { pin });
                old
            }
            ChangePhase::Learn | ChangePhase::Cancel => (change.add, change.node),
        };
        self.config_version = self.config_version.next();
        // It is out of the membership for good: neither its permits nor its releases matter any more. (A permit that
        // it has not spent elects nobody: no member steps its messages, M3.)
        self.lost.remove(&leaves.0);
        self.released.remove(&leaves.0);
        self.uncleared.retain(|permit| permit.candidate != leaves.0);
        self.retired.push(leaves);
        if self.retired.len() > RETIRED_KEPT {
            self.retired.remove(0);
        }
    }
}
