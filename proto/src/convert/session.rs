//! The session between a data node (or its supervisor) and an observer.

use std::time::Duration;

use bytes::Bytes;

use super::{all, micros, required, ConvertError, PROTOCOL_VERSION};
use crate::control::{
    Assignment, Assignments, ElectionMarks, ExitNotice, Hello, LastServed, LockProof, PeerInfo, SessionDown, SessionUp,
};
use crate::ids::{
    ClusterId, ConfigVersion, DirectoryVersion, DiskId, GroupId, Incarnation, NodeId, PartitionNo, PermitEpoch,
    ReplicaId, Term, TopicId,
};
use crate::internal as wire;
use crate::time::{BootTime, LogTime};

impl From<Hello> for wire::Hello {
    fn from(hello: Hello) -> Self {
        Self {
            cluster_id: hello.cluster.to_string(),
            node: hello.node.get(),
            node_name: hello.name,
            incarnation: hello.incarnation.get(),
            disk_id: hello.disk.to_string(),
            address: hello.address,
            peer_address: hello.peer_address,
            fault_domain: hello.fault_domain,
            boot_id: hello.lock.boot_id,
            lock_dev: hello.lock.dev,
            lock_ino: hello.lock.ino,
            supervisor_hash: hello.supervisor_hash,
            version: hello.version,
            pid: hello.pid,
            protocol_version: PROTOCOL_VERSION,
            assignments_version: 0,
            fresh: hello.fresh,
            knows: hello.knows.get(),
            knows_born_us: hello.knows_born.0,
        }
    }
}

impl TryFrom<wire::Hello> for Hello {
    type Error = ConvertError;

    fn try_from(raw: wire::Hello) -> Result<Self, ConvertError> {
        if raw.protocol_version > PROTOCOL_VERSION {
            let problem = format!("{} is newer than {PROTOCOL_VERSION}, upgrade this side first", raw.protocol_version);
            return Err(ConvertError::new("Hello", "protocol_version", problem));
        }
        Ok(Self {
            cluster: required(ClusterId::from_hex(&raw.cluster_id), "Hello", "cluster_id")?,
            node: required(NodeId(raw.node).non_zero(), "Hello", "node")?,
            name: raw.node_name,
            incarnation: required(Incarnation(raw.incarnation).non_zero(), "Hello", "incarnation")?,
            disk: required(DiskId::from_hex(&raw.disk_id), "Hello", "disk_id")?,
            address: raw.address,
            peer_address: raw.peer_address,
            fault_domain: raw.fault_domain,
            lock: LockProof { boot_id: raw.boot_id, dev: raw.lock_dev, ino: raw.lock_ino },
            supervisor_hash: raw.supervisor_hash,
            version: raw.version,
            pid: raw.pid,
            fresh: raw.fresh,
            knows: DirectoryVersion(raw.knows),
            knows_born: LogTime(raw.knows_born_us),
        })
    }
}

impl From<ElectionMarks> for wire::FailoverPhases {
    fn from(marks: ElectionMarks) -> Self {
        Self {
            group_id: marks.group.get(),
            term: marks.term.get(),
            permit_epoch: marks.permit_epoch.get(),
            elected_us: micros(marks.elected),
            noop_committed_us: micros(marks.noop_committed),
            lease_us: micros(marks.lease),
            first_ack_us: micros(marks.first_ack),
            last_served_us: marks.served.map(|served| served.last_us),
            waited: marks.served.is_some_and(|served| served.waited),
        }
    }
}

impl TryFrom<wire::FailoverPhases> for ElectionMarks {
    type Error = ConvertError;

    fn try_from(raw: wire::FailoverPhases) -> Result<Self, ConvertError> {
        Ok(Self {
            group: required(GroupId(raw.group_id).non_zero(), "FailoverPhases", "group_id")?,
            term: Term(raw.term),
            permit_epoch: PermitEpoch(raw.permit_epoch),
            elected: Duration::from_micros(raw.elected_us),
            noop_committed: Duration::from_micros(raw.noop_committed_us),
            lease: Duration::from_micros(raw.lease_us),
            first_ack: Duration::from_micros(raw.first_ack_us),
            served: raw.last_served_us.map(|last_us| LastServed { last_us, waited: raw.waited }),
        })
    }
}

impl From<SessionUp> for wire::SessionUp {
    fn from(message: SessionUp) -> Self {
        use wire::session_up::Kind;
        let kind = match message {
            SessionUp::Hello(hello) => Kind::Hello(hello.into()),
            SessionUp::Heartbeat(beat) => Kind::Heartbeat(beat.into()),
            SessionUp::Lease(request) => Kind::Lease(request.into()),
            SessionUp::Release { group, replica, term, for_fence, stood } => Kind::Release(wire::ReleaseNotice {
                group_id: group.get(),
                replica: replica.get(),
                term: term.get(),
                for_fence,
                stood_us: micros(stood),
            }),
            SessionUp::AskPermit { group, replica } => {
                Kind::Ask(wire::AskPermit { group_id: group.get(), replica: replica.get() })
            }
            SessionUp::Phases(marks) => Kind::Phases(marks.into()),
            SessionUp::Directory(snapshot) => Kind::Directory(wire::KnownDirectory { snapshot }),
        };
        Self { kind: Some(kind) }
    }
}

impl TryFrom<wire::SessionUp> for SessionUp {
    type Error = ConvertError;

    fn try_from(raw: wire::SessionUp) -> Result<Self, ConvertError> {
        use wire::session_up::Kind;
        Ok(match required(raw.kind, "SessionUp", "kind")? {
            Kind::Hello(hello) => Self::Hello(hello.try_into()?),
            Kind::Heartbeat(beat) => Self::Heartbeat(beat.try_into()?),
            Kind::Lease(request) => Self::Lease(request.try_into()?),
            Kind::Release(notice) => Self::Release {
                group: required(GroupId(notice.group_id).non_zero(), "ReleaseNotice", "group_id")?,
                replica: required(ReplicaId(notice.replica).non_zero(), "ReleaseNotice", "replica")?,
                term: Term(notice.term),
                for_fence: notice.for_fence,
                stood: Duration::from_micros(notice.stood_us),
            },
            Kind::Ask(ask) => Self::AskPermit {
                group: required(GroupId(ask.group_id).non_zero(), "AskPermit", "group_id")?,
                replica: required(ReplicaId(ask.replica).non_zero(), "AskPermit", "replica")?,
            },
            Kind::Phases(marks) => Self::Phases(marks.try_into()?),
            Kind::Directory(known) => Self::Directory(known.snapshot),
        })
    }
}

impl From<Assignments> for wire::Assignments {
    fn from(all: Assignments) -> Self {
        let peer = |peer: PeerInfo| wire::PeerAddress {
            node: peer.node.get(),
            name: peer.name,
            peer_address: peer.peer_address,
            incarnation: peer.incarnation.get(),
            address: peer.address,
        };
        let member = |(replica, node): (ReplicaId, NodeId)| wire::Member { replica: replica.get(), node: node.get() };
        let assignment = |one: Assignment| wire::Assignment {
            group_id: one.group.get(),
            replica: one.replica.get(),
            topic: one.topic,
            topic_id: Bytes::copy_from_slice(&one.topic_id.to_bytes()),
            partition: one.partition.get(),
            members: one.members.into_iter().map(member).collect(),
            config_version: one.config_version.get(),
            change: one.change.map(Into::into),
        };
        let retired =
            |(group, replica): (GroupId, ReplicaId)| wire::Retired { group_id: group.get(), replica: replica.get() };
        Self {
            version: all.version.get(),
            peers: all.peers.into_iter().map(peer).collect(),
            replicas: all.replicas.into_iter().map(assignment).collect(),
            retired: all.retired.into_iter().map(retired).collect(),
        }
    }
}

impl TryFrom<wire::PeerAddress> for PeerInfo {
    type Error = ConvertError;

    fn try_from(raw: wire::PeerAddress) -> Result<Self, ConvertError> {
        Ok(Self {
            node: required(NodeId(raw.node).non_zero(), "PeerAddress", "node")?,
            name: raw.name,
            peer_address: raw.peer_address,
            address: raw.address,
            incarnation: Incarnation(raw.incarnation),
        })
    }
}

impl TryFrom<wire::Assignment> for Assignment {
    type Error = ConvertError;

    fn try_from(raw: wire::Assignment) -> Result<Self, ConvertError> {
        let member = |member: wire::Member| {
            Ok((
                required(ReplicaId(member.replica).non_zero(), "Member", "replica")?,
                required(NodeId(member.node).non_zero(), "Member", "node")?,
            ))
        };
        Ok(Self {
            group: required(GroupId(raw.group_id).non_zero(), "Assignment", "group_id")?,
            replica: required(ReplicaId(raw.replica).non_zero(), "Assignment", "replica")?,
            topic: raw.topic,
            topic_id: required(TopicId::from_slice(&raw.topic_id), "Assignment", "topic_id")?,
            partition: PartitionNo(raw.partition),
            members: raw.members.into_iter().map(member).collect::<Result<_, ConvertError>>()?,
            config_version: ConfigVersion(raw.config_version),
            change: raw.change.map(TryInto::try_into).transpose()?,
        })
    }
}

impl TryFrom<wire::Assignments> for Assignments {
    type Error = ConvertError;

    fn try_from(raw: wire::Assignments) -> Result<Self, ConvertError> {
        let retired = |one: wire::Retired| {
            Ok((
                required(GroupId(one.group_id).non_zero(), "Retired", "group_id")?,
                required(ReplicaId(one.replica).non_zero(), "Retired", "replica")?,
            ))
        };
        Ok(Self {
            version: DirectoryVersion(raw.version),
            peers: all(raw.peers)?,
            replicas: all(raw.replicas)?,
            retired: raw.retired.into_iter().map(retired).collect::<Result<_, ConvertError>>()?,
        })
    }
}

impl From<SessionDown> for wire::SessionDown {
    fn from(message: SessionDown) -> Self {
        use wire::session_down::Kind;
        let id = |node: Option<NodeId>| node.map_or(0, NodeId::get);
        let kind = match message {
            SessionDown::Welcome { observer, observer_leader, cluster_time } => Kind::Welcome(wire::Welcome {
                observer: observer.get(),
                observer_leader: id(observer_leader),
                cluster_time_us: cluster_time.0,
            }),
            SessionDown::Refused { reason, fatal, raise_above } => Kind::Refused(wire::Refused {
                reason,
                r#final: fatal,
                raise_above: raise_above.map_or(0, Incarnation::get),
            }),
            SessionDown::Permits(permits) => {
                Kind::Permits(wire::Permits { permits: permits.into_iter().map(Into::into).collect() })
            }
            SessionDown::Lease(answer) => Kind::Lease(answer.into()),
            SessionDown::Assignments(all) => Kind::Assignments(all.into()),
            SessionDown::Directory(snapshot) => Kind::Directory(wire::KnownDirectory { snapshot }),
            SessionDown::HeartbeatAck { seq, sent, cluster_time, observer_leader, nobody_else } => {
                Kind::Heartbeat(wire::HeartbeatAck {
                    seq,
                    cluster_time_us: cluster_time.0,
                    sent: sent.0,
                    observer_leader: id(observer_leader),
                    nobody_else,
                })
            }
        };
        Self { kind: Some(kind) }
    }
}

impl TryFrom<wire::SessionDown> for SessionDown {
    type Error = ConvertError;

    fn try_from(raw: wire::SessionDown) -> Result<Self, ConvertError> {
        use wire::session_down::Kind;
        Ok(match required(raw.kind, "SessionDown", "kind")? {
            Kind::Welcome(welcome) => Self::Welcome {
                observer: required(NodeId(welcome.observer).non_zero(), "Welcome", "observer")?,
                observer_leader: NodeId(welcome.observer_leader).non_zero(),
                cluster_time: LogTime(welcome.cluster_time_us),
            },
            Kind::Refused(refused) => Self::Refused {
                reason: refused.reason,
                fatal: refused.r#final,
                raise_above: Incarnation(refused.raise_above).non_zero(),
            },
            Kind::Permits(permits) => Self::Permits(all(permits.permits)?),
            Kind::Lease(answer) => Self::Lease(answer.try_into()?),
            Kind::Assignments(all) => Self::Assignments(all.try_into()?),
            Kind::Directory(known) => Self::Directory(known.snapshot),
            Kind::Heartbeat(ack) => Self::HeartbeatAck {
                seq: ack.seq,
                sent: BootTime(ack.sent),
                cluster_time: LogTime(ack.cluster_time_us),
                observer_leader: NodeId(ack.observer_leader).non_zero(),
                nobody_else: ack.nobody_else,
            },
        })
    }
}

/// A supervisor's word for the wire. `hello_only` messages (keep-alive of the stream) are made by the shell.
#[must_use]
pub fn exit_notice_to_wire(cluster: ClusterId, notice: ExitNotice) -> wire::ExitNoticeRequest {
    wire::ExitNoticeRequest {
        cluster_id: cluster.to_string(),
        node: notice.node.get(),
        incarnation: notice.incarnation.get(),
        supervisor_secret: notice.secret,
        exit_status: notice.status,
        hello_only: false,
    }
}

/// The cluster named and the notice itself; `None` if the message only keeps the stream warm.
///
/// # Errors
/// A malformed cluster id, or no node or incarnation.
pub fn exit_notice_from_wire(raw: wire::ExitNoticeRequest) -> Result<(ClusterId, Option<ExitNotice>), ConvertError> {
    let cluster = required(ClusterId::from_hex(&raw.cluster_id), "ExitNoticeRequest", "cluster_id")?;
    if raw.hello_only {
        return Ok((cluster, None));
    }
    let notice = ExitNotice {
        node: required(NodeId(raw.node).non_zero(), "ExitNoticeRequest", "node")?,
        incarnation: required(Incarnation(raw.incarnation).non_zero(), "ExitNoticeRequest", "incarnation")?,
        secret: raw.supervisor_secret,
        status: raw.exit_status,
    };
    Ok((cluster, Some(notice)))
}
