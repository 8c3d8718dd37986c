//! Changes of a partition's members (M1).

use super::{required, ConvertError};
use crate::control::{Change, ChangePhase, ChangeReport};
use crate::ids::{NodeId, ReplicaId, TaskId};
use crate::internal as wire;

impl ChangePhase {
    /// Its number on the wire and on disk.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::Learn => 0,
            Self::Promote => 1,
            Self::Cancel => 2,
        }
    }

    /// From its number; `None` for one of newer software.
    #[must_use]
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::Learn),
            1 => Some(Self::Promote),
            2 => Some(Self::Cancel),
            _ => None,
        }
    }
}

impl From<Change> for wire::Change {
    fn from(change: Change) -> Self {
        Self {
            task: change.task.get(),
            add: change.add.get(),
            node: change.node.get(),
            remove: change.remove.get(),
            phase: change.phase.number(),
        }
    }
}

impl TryFrom<wire::Change> for Change {
    type Error = ConvertError;

    fn try_from(raw: wire::Change) -> Result<Self, ConvertError> {
        Ok(Self {
            task: required(TaskId(raw.task).non_zero(), "Change", "task")?,
            add: required(ReplicaId(raw.add).non_zero(), "Change", "add")?,
            node: required(NodeId(raw.node).non_zero(), "Change", "node")?,
            remove: required(ReplicaId(raw.remove).non_zero(), "Change", "remove")?,
            phase: required(ChangePhase::from_number(raw.phase), "Change", "phase")?,
        })
    }
}

impl From<ChangeReport> for wire::ChangeReport {
    fn from(report: ChangeReport) -> Self {
        let ids = |replicas: Vec<ReplicaId>| replicas.into_iter().map(ReplicaId::get).collect();
        Self {
            task: report.task.get(),
            phase: report.phase.number(),
            voters: ids(report.voters),
            outgoing: ids(report.outgoing),
            learners: ids(report.learners),
            caught_up: report.caught_up,
        }
    }
}

impl TryFrom<wire::ChangeReport> for ChangeReport {
    type Error = ConvertError;

    fn try_from(raw: wire::ChangeReport) -> Result<Self, ConvertError> {
        let ids = |raw: Vec<u64>| raw.into_iter().map(ReplicaId).collect();
        Ok(Self {
            task: required(TaskId(raw.task).non_zero(), "ChangeReport", "task")?,
            phase: required(ChangePhase::from_number(raw.phase), "ChangeReport", "phase")?,
            voters: ids(raw.voters),
            outgoing: ids(raw.outgoing),
            learners: ids(raw.learners),
            caught_up: raw.caught_up,
        })
    }
}
