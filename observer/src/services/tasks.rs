//! Changes of members as operators see them.

use quorate_consensus::directory::Task;
use quorate_consensus::observer::ObserverCore;
use quorate_proto::control::ChangePhase;
use quorate_proto::ids::{NodeId, ReplicaId, TaskId};
use quorate_proto::time::BootTime;
use quorate_proto::v1;

/// The newest `limit` tasks, newest last.
#[must_use]
pub fn list(core: &ObserverCore, limit: usize, now: BootTime) -> v1::ListTasksResponse {
    let mut tasks: Vec<_> = core.directory().tasks().rev().take(limit).map(|task| describe(core, task, now)).collect();
    tasks.reverse();
    v1::ListTasksResponse { tasks, as_of_us: core.cluster_time(now).0, authoritative: core.is_leading() }
}

/// One task.
#[must_use]
pub fn find(core: &ObserverCore, id: TaskId, now: BootTime) -> Option<v1::TaskDescription> {
    core.directory().task(id).map(|task| describe(core, task, now))
}

fn describe(core: &ObserverCore, task: &Task, now: BootTime) -> v1::TaskDescription {
    let directory = core.directory();
    let name = |node: NodeId| directory.node(node).map(|n| n.registered.name.clone()).unwrap_or_default();
    let index = |replica: ReplicaId, node: NodeId| {
        core.view().report(directory, task.group, replica, node).map_or(0, |seen| seen.report.last_index.get())
    };
    let leader = directory.leader_of(task.group);
    let running = task.ended.is_none();
    let state = match (running, task.phase) {
        (true, ChangePhase::Learn) => "learning",
        (true, ChangePhase::Promote) => "promoting",
        (true, ChangePhase::Cancel) => "cancelling",
        (false, ChangePhase::Promote) => "done",
        (false, _) => "cancelled",
    };
    v1::TaskDescription {
        id: task.id.get(),
        kind: "replace_replica".to_owned(),
        subject: directory.label(task.group),
        state: state.to_owned(),
        reason: task.reason.clone(),
        add_replica: task.add.0.get(),
        to_node: name(task.add.1),
        remove_replica: task.remove.0.get(),
        from_node: name(task.remove.1),
        progress: if running { index(task.add.0, task.add.1) } else { 0 },
        goal: leader.filter(|_| running).map_or(0, |(node, lease)| index(lease.replica, node)),
        waits_for: core.change_waits_for(task.group, now).filter(|_| running).unwrap_or_default().to_owned(),
        cancelled: task.cancelled.clone(),
        begun_us: task.begun.0,
        ended_us: task.ended.map_or(0, |at| at.0),
    }
}
