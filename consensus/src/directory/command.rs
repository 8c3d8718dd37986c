//! What is written into the observers' log: [`DirectoryCommand`], protobuf with a schema version.

use bytes::Bytes;
use prost::Message as _;
use quorate_proto::control::{ChangePhase, Hello, Permit};
use quorate_proto::convert::ConvertError;
use quorate_proto::ids::{
    ClusterId, DirectoryVersion, GroupId, Incarnation, NodeId, OperationId, PermitEpoch, ReplicaId, TaskId, Term,
    TopicId,
};
use quorate_proto::internal as wire;
use quorate_proto::time::LogTime;
use quorate_proto::v1::Failover;

/// Schema of commands and of the machine's state that this software reads and writes.
pub const SCHEMA: u32 = 1;

/// Replicas of a partition.
pub const REPLICAS: usize = 3;

/// Nodes of one partition's replicas; the first is the preferred first leader.
pub type Placement = [NodeId; REPLICAS];

/// One change of the directory.
#[derive(Clone, Debug, PartialEq)]
pub struct DirectoryCommand {
    /// Cluster time when proposed.
    pub at: LogTime,
    /// Names the operator's call, so that a repeated one changes nothing; `NONE` for the observers' own commands.
    pub operation: OperationId,
    /// What changes.
    pub kind: CommandKind,
}

/// A node process that is gone (S2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Death {
    /// The node.
    pub node: NodeId,
    /// The incarnation that is dead; all older ones are too.
    pub incarnation: Incarnation,
    /// How it is known, for people.
    pub how: String,
}

/// The right to serve as granted to one leader (L1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The leader.
    pub replica: ReplicaId,
    /// Its term; the leader epoch of routes.
    pub term: Term,
    /// The permit epoch that it won with.
    pub epoch: PermitEpoch,
    /// Incarnation of its node.
    pub incarnation: Incarnation,
}

/// Kinds of commands.
#[derive(Clone, Debug, PartialEq)]
pub enum CommandKind {
    /// First command of a cluster.
    Bootstrap(ClusterId),
    /// A node came up (S2: with proof, its older incarnation is dead).
    Register(Box<Hello>),
    /// Make a topic with one partition per placement.
    CreateTopic {
        /// `namespace/name`.
        name: String,
        /// Its identity.
        topic: TopicId,
        /// Replicas of each partition, chosen by the proposer, checked at apply.
        partitions: Vec<Placement>,
    },
    /// Consent to elections (P1). The death of a node and the permits for all its partitions are one command.
    /// `basis` and `clear` of the permits are set at apply, from the log alone; those whose epoch is not the next one
    /// are left out.
    IssuePermits {
        /// The death that they follow from, if any.
        death: Option<Death>,
        /// Group, epoch, candidate, its incarnation, configuration version, kind.
        permits: Vec<Permit>,
    },
    /// The winner of an election may serve (L1).
    GrantLease {
        /// The partition.
        group: GroupId,
        /// To whom.
        lease: Lease,
    },
    /// A leader gave up its term and every older one (H1, F3).
    Release {
        /// The partition.
        group: GroupId,
        /// Who led.
        replica: ReplicaId,
        /// The term that is over.
        term: Term,
        /// For lack of contact.
        for_fence: bool,
    },
    /// A node process is gone (S2).
    Death(Death),
    /// Phases of a failover that is over.
    Failover(Box<Failover>),
    /// An operator drains a node, or takes that back (H2).
    SetDraining {
        /// The node.
        node: NodeId,
        /// Its leaders are to go.
        draining: bool,
    },
    /// An operator placed a partition's leader, or leaves the place to the cluster again.
    SetPin {
        /// The partition.
        group: GroupId,
        /// Where its leader belongs; `None` = anywhere.
        node: Option<NodeId>,
    },
    /// An operator permits a replica although too few logs may vote (B2). Leaves an audit record.
    BreakGlass {
        /// The permit.
        permit: Permit,
        /// Who asked.
        principal: String,
        /// What was shown before it was done.
        effect: String,
    },
    /// The directory is made anew from what the data nodes know (M5). Leaves an audit record.
    Rebuild {
        /// `DirectoryState`.
        state: Bytes,
        /// Who asked.
        principal: String,
        /// What was shown before it was done.
        effect: String,
    },
    /// A replica is to take the place of another one (M1).
    BeginChange {
        /// The partition.
        group: GroupId,
        /// Whose place.
        remove: ReplicaId,
        /// Where the new one is to be.
        node: NodeId,
        /// Why, for people.
        reason: String,
    },
    /// The change goes on, or is given up.
    AdvanceChange {
        /// The partition.
        group: GroupId,
        /// Which change.
        task: TaskId,
        /// Its next phase.
        phase: ChangePhase,
        /// Why it is given up; empty if it is not.
        why: String,
    },
    /// The leader's membership is what the change wanted.
    FinishChange {
        /// The partition.
        group: GroupId,
        /// Which change.
        task: TaskId,
    },
}

/// A command that this software does not know. Applying observers stop: skipping it would make them differ.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// Not protobuf.
    #[error("command is not protobuf: {0}")]
    Malformed(String),
    /// Written by newer software.
    #[error("command has schema {0}, this software knows {SCHEMA}")]
    Schema(u32),
    /// No kind, or one of newer software.
    #[error("command of an unknown kind")]
    UnknownKind,
    /// A field means nothing.
    #[error("command field {0}")]
    Field(#[from] ConvertError),
}

fn field<T>(value: Option<T>, message: &'static str, name: &'static str) -> Result<T, CommandError> {
    value.ok_or_else(|| ConvertError::new(message, name, "missing, zero or malformed").into())
}

/// How a death reads that was an orderly exit.
const CLEAN_EXIT: &str = "exit notice, status 0";

impl Death {
    /// By the word of a node's supervisor.
    #[must_use]
    pub fn noticed(node: NodeId, incarnation: Incarnation, status: i32) -> Self {
        Self { node, incarnation, how: format!("exit notice, status {status}") }
    }

    /// The process ended in order: no fault of its node (H1).
    #[must_use]
    pub fn clean(&self) -> bool {
        self.how == CLEAN_EXIT
    }

    fn to_wire(&self) -> wire::RecordDeath {
        wire::RecordDeath { node: self.node.get(), incarnation: self.incarnation.get(), how: self.how.clone() }
    }

    fn from_wire(raw: wire::RecordDeath) -> Result<Self, CommandError> {
        Ok(Self {
            node: field(NodeId(raw.node).non_zero(), "RecordDeath", "node")?,
            incarnation: Incarnation(raw.incarnation),
            how: raw.how,
        })
    }
}

impl DirectoryCommand {
    /// The bytes of the log entry.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        use wire::directory_command::Kind;
        let kind = match &self.kind {
            CommandKind::Bootstrap(cluster) => Kind::Bootstrap(wire::Bootstrap { cluster_id: cluster.to_string() }),
            CommandKind::Register(hello) => Kind::Register(registration_to_wire(hello)),
            CommandKind::CreateTopic { name, topic, partitions } => Kind::CreateTopic(wire::CreateTopicCommand {
                name: name.clone(),
                topic_id: Bytes::copy_from_slice(&topic.to_bytes()),
                partitions: u32::try_from(partitions.len()).unwrap_or(u32::MAX),
                nodes: partitions.iter().flatten().map(|node| node.get()).collect(),
            }),
            CommandKind::IssuePermits { death, permits } => Kind::Permits(wire::IssuePermits {
                death: death.as_ref().map(Death::to_wire),
                permits: permits.iter().cloned().map(Into::into).collect(),
            }),
            CommandKind::GrantLease { group, lease } => Kind::Grant(wire::GrantLease {
                group_id: group.get(),
                replica: lease.replica.get(),
                term: lease.term.get(),
                permit_epoch: lease.epoch.get(),
                incarnation: lease.incarnation.get(),
            }),
            CommandKind::Release { group, replica, term, for_fence } => Kind::Release(wire::RecordRelease {
                group_id: group.get(),
                replica: replica.get(),
                term: term.get(),
                for_fence: *for_fence,
            }),
            CommandKind::Death(death) => Kind::Death(death.to_wire()),
            CommandKind::Failover(failover) => {
                Kind::Failover(wire::RecordFailover { failover: failover.encode_to_vec().into() })
            }
            CommandKind::SetDraining { node, draining } => {
                Kind::Draining(wire::SetDraining { node: node.get(), draining: *draining })
            }
            CommandKind::SetPin { group, node } => {
                Kind::Pin(wire::SetPin { group_id: group.get(), node: node.map_or(0, NodeId::get) })
            }
            CommandKind::BreakGlass { permit, principal, effect } => Kind::BreakGlass(wire::BreakGlass {
                permit: Some(permit.clone().into()),
                principal: principal.clone(),
                effect: effect.clone(),
            }),
            CommandKind::Rebuild { state, principal, effect } => Kind::Rebuild(wire::RebuildDirectory {
                state: state.clone(),
                principal: principal.clone(),
                effect: effect.clone(),
            }),
            CommandKind::BeginChange { group, remove, node, reason } => Kind::BeginChange(wire::BeginChange {
                group_id: group.get(),
                remove: remove.get(),
                node: node.get(),
                reason: reason.clone(),
            }),
            CommandKind::AdvanceChange { group, task, phase, why } => Kind::AdvanceChange(wire::AdvanceChange {
                group_id: group.get(),
                task: task.get(),
                phase: phase.number(),
                why: why.clone(),
            }),
            CommandKind::FinishChange { group, task } => {
                Kind::FinishChange(wire::FinishChange { group_id: group.get(), task: task.get() })
            }
        };
        let operation_id = if self.operation == OperationId::NONE {
            Bytes::new()
        } else {
            Bytes::copy_from_slice(&self.operation.to_bytes())
        };
        wire::DirectoryCommand { schema: SCHEMA, at_us: self.at.0, operation_id, kind: Some(kind) }
            .encode_to_vec()
            .into()
    }

    /// From the bytes of a log entry.
    ///
    /// # Errors
    /// [`CommandError`]: the observer must stop.
    pub fn decode(bytes: Bytes) -> Result<Self, CommandError> {
        let raw = wire::DirectoryCommand::decode(bytes).map_err(|e| CommandError::Malformed(e.to_string()))?;
        if raw.schema != SCHEMA {
            return Err(CommandError::Schema(raw.schema));
        }
        let operation = if raw.operation_id.is_empty() {
            OperationId::NONE
        } else {
            field(OperationId::from_slice(&raw.operation_id), "DirectoryCommand", "operation_id")?
        };
        let kind = decode_kind(raw.kind.ok_or(CommandError::UnknownKind)?)?;
        Ok(Self { at: LogTime(raw.at_us), operation, kind })
    }
}

fn decode_kind(raw: wire::directory_command::Kind) -> Result<CommandKind, CommandError> {
    use wire::directory_command::Kind;
    Ok(match raw {
        Kind::Bootstrap(b) => {
            CommandKind::Bootstrap(field(ClusterId::from_hex(&b.cluster_id), "Bootstrap", "cluster_id")?)
        }
        Kind::Register(raw) => CommandKind::Register(Box::new(registration_from_wire(raw)?)),
        Kind::CreateTopic(raw) => {
            let nodes: Vec<NodeId> = raw.nodes.iter().map(|n| NodeId(*n)).collect();
            let (whole, rest) = nodes.as_chunks::<REPLICAS>();
            if !rest.is_empty() || u32::try_from(whole.len()) != Ok(raw.partitions) {
                return Err(ConvertError::new("CreateTopicCommand", "nodes", "not three per partition").into());
            }
            CommandKind::CreateTopic {
                name: raw.name,
                topic: field(TopicId::from_slice(&raw.topic_id), "CreateTopicCommand", "topic_id")?,
                partitions: whole.to_vec(),
            }
        }
        Kind::Permits(raw) => CommandKind::IssuePermits {
            death: raw.death.map(Death::from_wire).transpose()?,
            permits: raw.permits.into_iter().map(Permit::try_from).collect::<Result<_, _>>()?,
        },
        Kind::Grant(raw) => CommandKind::GrantLease {
            group: GroupId(raw.group_id),
            lease: Lease {
                replica: ReplicaId(raw.replica),
                term: Term(raw.term),
                epoch: PermitEpoch(raw.permit_epoch),
                incarnation: Incarnation(raw.incarnation),
            },
        },
        Kind::Release(raw) => CommandKind::Release {
            group: GroupId(raw.group_id),
            replica: ReplicaId(raw.replica),
            term: Term(raw.term),
            for_fence: raw.for_fence,
        },
        Kind::Death(raw) => CommandKind::Death(Death::from_wire(raw)?),
        Kind::Failover(raw) => CommandKind::Failover(Box::new(
            Failover::decode(raw.failover).map_err(|e| CommandError::Malformed(e.to_string()))?,
        )),
        Kind::Draining(raw) => CommandKind::SetDraining {
            node: field(NodeId(raw.node).non_zero(), "SetDraining", "node")?,
            draining: raw.draining,
        },
        Kind::Pin(raw) => CommandKind::SetPin {
            group: field(GroupId(raw.group_id).non_zero(), "SetPin", "group_id")?,
            node: NodeId(raw.node).non_zero(),
        },
        Kind::BreakGlass(raw) => CommandKind::BreakGlass {
            permit: Permit::try_from(field(raw.permit, "BreakGlass", "permit")?)?,
            principal: raw.principal,
            effect: raw.effect,
        },
        Kind::Rebuild(raw) => CommandKind::Rebuild { state: raw.state, principal: raw.principal, effect: raw.effect },
        Kind::BeginChange(raw) => CommandKind::BeginChange {
            group: field(GroupId(raw.group_id).non_zero(), "BeginChange", "group_id")?,
            remove: field(ReplicaId(raw.remove).non_zero(), "BeginChange", "remove")?,
            node: field(NodeId(raw.node).non_zero(), "BeginChange", "node")?,
            reason: raw.reason,
        },
        Kind::AdvanceChange(raw) => CommandKind::AdvanceChange {
            group: field(GroupId(raw.group_id).non_zero(), "AdvanceChange", "group_id")?,
            task: field(TaskId(raw.task).non_zero(), "AdvanceChange", "task")?,
            phase: field(ChangePhase::from_number(raw.phase), "AdvanceChange", "phase")?,
            why: raw.why,
        },
        Kind::FinishChange(raw) => CommandKind::FinishChange {
            group: field(GroupId(raw.group_id).non_zero(), "FinishChange", "group_id")?,
            task: field(TaskId(raw.task).non_zero(), "FinishChange", "task")?,
        },
    })
}

/// A node's registration as stored. The cluster is not repeated: it is the directory's own.
pub(super) fn registration_to_wire(hello: &Hello) -> wire::RegisterNode {
    wire::RegisterNode {
        node: hello.node.get(),
        name: hello.name.clone(),
        incarnation: hello.incarnation.get(),
        disk_id: hello.disk.to_string(),
        address: hello.address.clone(),
        peer_address: hello.peer_address.clone(),
        fault_domain: hello.fault_domain.clone(),
        boot_id: hello.lock.boot_id.clone(),
        lock_dev: hello.lock.dev,
        lock_ino: hello.lock.ino,
        supervisor_hash: hello.supervisor_hash.clone(),
        version: hello.version.clone(),
        pid: hello.pid,
        fresh: hello.fresh,
    }
}

/// The registration; its cluster is left `NONE`.
pub(super) fn registration_from_wire(raw: wire::RegisterNode) -> Result<Hello, CommandError> {
    use quorate_proto::control::LockProof;
    use quorate_proto::ids::DiskId;
    Ok(Hello {
        cluster: ClusterId::NONE,
        node: field(NodeId(raw.node).non_zero(), "RegisterNode", "node")?,
        name: raw.name,
        incarnation: field(Incarnation(raw.incarnation).non_zero(), "RegisterNode", "incarnation")?,
        disk: field(DiskId::from_hex(&raw.disk_id), "RegisterNode", "disk_id")?,
        address: raw.address,
        peer_address: raw.peer_address,
        fault_domain: raw.fault_domain,
        lock: LockProof { boot_id: raw.boot_id, dev: raw.lock_dev, ino: raw.lock_ino },
        supervisor_hash: raw.supervisor_hash,
        version: raw.version,
        pid: raw.pid,
        fresh: raw.fresh,
        knows: DirectoryVersion::ZERO,
        knows_born: quorate_proto::time::LogTime::ZERO,
    })
}
