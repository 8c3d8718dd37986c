//! The machine as a snapshot: protobuf `DirectoryState` with a schema version.

use bytes::Bytes;
use prost::Message as _;
use quorate_proto::control::{ChangePhase, Permit};
use quorate_proto::ids::{
    ClusterId, ConfigVersion, DirectoryVersion, GroupId, Incarnation, LogIndex, NodeId, OperationId, PartitionNo,
    PermitEpoch, ReplicaId, TaskId, Term, TopicId,
};
use quorate_proto::internal as wire;
use quorate_proto::time::LogTime;
use quorate_proto::v1::{AuditRecord, Failover};

use super::command::{registration_from_wire, registration_to_wire, Lease, SCHEMA};
use super::{Directory, Node, Partition, Task, Topic};

/// Why a snapshot is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// Not protobuf.
    #[error("snapshot is not protobuf: {0}")]
    Malformed(String),
    /// Written by newer software.
    #[error("snapshot has schema {0}, this software knows {SCHEMA}")]
    Schema(u32),
    /// A record means nothing.
    #[error("snapshot record {0}")]
    Record(String),
}

fn bad(what: impl ToString) -> StateError {
    StateError::Record(what.to_string())
}

impl Directory {
    /// The whole machine.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let node = |n: &Node| wire::NodeRecord {
            registered: Some(registration_to_wire(&n.registered)),
            dead_incarnation: n.dead.get(),
            draining: n.draining,
        };
        let topic = |t: &Topic| wire::TopicRecord {
            topic_id: Bytes::copy_from_slice(&t.id.to_bytes()),
            name: t.name.clone(),
            groups: t.groups.iter().map(|g| g.get()).collect(),
            created_at_us: t.created.0,
        };
        let state = wire::DirectoryState {
            schema: SCHEMA,
            applied_index: self.applied.0.get(),
            applied_term: self.applied.1.get(),
            version: self.version.get(),
            topology_version: self.topology.get(),
            cluster_id: if self.cluster == ClusterId::NONE { String::new() } else { self.cluster.to_string() },
            born_us: self.born.0,
            next_group: self.next_group.get(),
            next_replica: self.next_replica.get(),
            nodes: self.nodes.values().map(node).collect(),
            topics: self.topics.values().map(topic).collect(),
            partitions: self.partitions.values().map(partition_to_wire).collect(),
            failovers: self.failovers.iter().map(|f| f.encode_to_vec().into()).collect(),
            feature_level: 0,
            next_task: self.next_task.get(),
            tasks: self.tasks.iter().map(task_to_wire).collect(),
            audit: self.audit.iter().map(|record| record.encode_to_vec().into()).collect(),
            operations: self.operations.iter().map(|o| Bytes::copy_from_slice(&o.to_bytes())).collect(),
        };
        state.encode_to_vec().into()
    }

    /// From a snapshot.
    ///
    /// # Errors
    /// [`StateError`]: the snapshot is not used.
    pub fn decode(bytes: &[u8]) -> Result<Self, StateError> {
        let raw = wire::DirectoryState::decode(bytes).map_err(|e| StateError::Malformed(e.to_string()))?;
        if raw.schema != SCHEMA {
            return Err(StateError::Schema(raw.schema));
        }
        let mut state = Self {
            applied: (LogIndex(raw.applied_index), Term(raw.applied_term)),
            version: DirectoryVersion(raw.version),
            topology: DirectoryVersion(raw.topology_version),
            cluster: if raw.cluster_id.is_empty() {
                ClusterId::NONE
            } else {
                ClusterId::from_hex(&raw.cluster_id).ok_or_else(|| bad("cluster id"))?
            },
            born: LogTime(raw.born_us),
            next_group: GroupId(raw.next_group),
            next_replica: ReplicaId(raw.next_replica),
            // Written before there were tasks: none were.
            next_task: TaskId(raw.next_task.max(1)),
            ..Self::default()
        };
        for record in raw.nodes {
            let registered = record.registered.ok_or_else(|| bad("node without registration"))?;
            let registered = registration_from_wire(registered).map_err(bad)?;
            let dead = Incarnation(record.dead_incarnation);
            let draining = record.draining;
            state.nodes.insert(registered.node, Node { registered, dead, draining });
        }
        for record in raw.topics {
            let id = TopicId::from_slice(&record.topic_id).ok_or_else(|| bad("topic id"))?;
            let groups = record.groups.into_iter().map(GroupId).collect();
            state.names.insert(record.name.clone(), id);
            let created = LogTime(record.created_at_us);
            state.topics.insert(id, Topic { id, name: record.name, groups, created });
        }
        for record in raw.partitions {
            let partition = partition_from_wire(record)?;
            state.partitions.insert(partition.group, partition);
        }
        for record in raw.failovers {
            state.failovers.push_back(Failover::decode(record).map_err(bad)?);
        }
        for record in raw.audit {
            state.audit.push_back(AuditRecord::decode(record).map_err(bad)?);
        }
        for record in raw.tasks {
            state.tasks.push_back(task_from_wire(record)?);
        }
        for record in raw.operations {
            state.remember_raw(OperationId::from_slice(&record).ok_or_else(|| bad("operation id"))?);
        }
        Ok(state)
    }

    fn remember_raw(&mut self, operation: OperationId) {
        if self.known_operations.insert(operation) {
            self.operations.push_back(operation);
        }
    }
}

fn partition_to_wire(p: &Partition) -> wire::PartitionRecord {
    let lease = p.lease.unwrap_or(Lease {
        replica: ReplicaId::ZERO,
        term: Term::ZERO,
        epoch: PermitEpoch::ZERO,
        incarnation: Incarnation::ZERO,
    });
    wire::PartitionRecord {
        group_id: p.group.get(),
        topic_id: Bytes::copy_from_slice(&p.topic.to_bytes()),
        partition: p.number.get(),
        replicas: p.replicas.iter().map(|(r, n)| wire::ReplicaRecord { replica: r.get(), node: n.get() }).collect(),
        config_version: p.config_version.get(),
        permit_epoch: p.permit_epoch.get(),
        uncleared: p.uncleared.iter().cloned().map(Into::into).collect(),
        newest: p.newest.clone().map(Into::into),
        lease_replica: lease.replica.get(),
        lease_term: lease.term.get(),
        lease_epoch: lease.epoch.get(),
        lease_incarnation: lease.incarnation.get(),
        released: p.released.iter().map(|(r, t)| wire::Released { replica: r.get(), term: t.get() }).collect(),
        pin: p.pin.map_or(0, NodeId::get),
        change: p.change.map(Into::into),
        lost: p.lost.iter().map(|r| r.get()).collect(),
        retired: p.retired.iter().map(|(r, n)| wire::ReplicaRecord { replica: r.get(), node: n.get() }).collect(),
    }
}

fn task_to_wire(task: &Task) -> wire::TaskRecord {
    wire::TaskRecord {
        task: task.id.get(),
        group_id: task.group.get(),
        add: task.add.0.get(),
        node: task.add.1.get(),
        remove: task.remove.0.get(),
        from_node: task.remove.1.get(),
        phase: task.phase.number(),
        reason: task.reason.clone(),
        begun_us: task.begun.0,
        ended_us: task.ended.map_or(0, |at| at.0),
        cancelled: task.cancelled.clone(),
    }
}

fn task_from_wire(raw: wire::TaskRecord) -> Result<Task, StateError> {
    Ok(Task {
        id: TaskId(raw.task),
        group: GroupId(raw.group_id),
        add: (ReplicaId(raw.add), NodeId(raw.node)),
        remove: (ReplicaId(raw.remove), NodeId(raw.from_node)),
        phase: ChangePhase::from_number(raw.phase).ok_or_else(|| bad("phase of a task"))?,
        reason: raw.reason,
        begun: LogTime(raw.begun_us),
        ended: (raw.ended_us != 0).then_some(LogTime(raw.ended_us)),
        cancelled: raw.cancelled,
    })
}

fn partition_from_wire(raw: wire::PartitionRecord) -> Result<Partition, StateError> {
    let lease = ReplicaId(raw.lease_replica).non_zero().map(|replica| Lease {
        replica,
        term: Term(raw.lease_term),
        epoch: PermitEpoch(raw.lease_epoch),
        incarnation: Incarnation(raw.lease_incarnation),
    });
    let permits = |raw: Vec<wire::Permit>| raw.into_iter().map(Permit::try_from).collect::<Result<Vec<_>, _>>();
    Ok(Partition {
        group: GroupId(raw.group_id).non_zero().ok_or_else(|| bad("partition without group"))?,
        topic: TopicId::from_slice(&raw.topic_id).ok_or_else(|| bad("topic id of a partition"))?,
        number: PartitionNo(raw.partition),
        replicas: raw.replicas.into_iter().map(|r| (ReplicaId(r.replica), NodeId(r.node))).collect(),
        config_version: ConfigVersion(raw.config_version),
        permit_epoch: PermitEpoch(raw.permit_epoch),
        uncleared: permits(raw.uncleared).map_err(bad)?,
        newest: raw.newest.map(Permit::try_from).transpose().map_err(bad)?,
        lease,
        released: raw.released.into_iter().map(|r| (ReplicaId(r.replica), Term(r.term))).collect(),
        pin: NodeId(raw.pin).non_zero(),
        change: raw.change.map(TryInto::try_into).transpose().map_err(bad)?,
        lost: raw.lost.into_iter().map(ReplicaId).collect(),
        retired: raw.retired.into_iter().map(|r| (ReplicaId(r.replica), NodeId(r.node))).collect(),
    })
}
