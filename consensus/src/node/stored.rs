//! What the node's core keeps in the key–value pairs of a group beside what its replica keeps there.

use bytes::Bytes;
use prost::Message as _;
use quorate_proto::control::Assignment;
use quorate_proto::ids::{ConfigVersion, GroupId, NodeId, PartitionNo, ReplicaId, TopicId};
use quorate_proto::internal;

use super::config::MachineImage;
use crate::partition::Partition;
use crate::replica::Quarantine;

/// Key of the group's [`Assignment`]: written when the replica is first opened and when its members change, so
/// that a node finds its replicas again without asking anybody.
pub const ASSIGNMENT: &str = "assignment";

/// A stored assignment that can't be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stored assignment can't be read: {0}")]
pub struct BadAssignment(String);

/// As stored under [`ASSIGNMENT`].
#[must_use]
pub fn encode_assignment(assignment: &Assignment) -> Bytes {
    internal::Assignment {
        group_id: assignment.group.get(),
        replica: assignment.replica.get(),
        topic: assignment.topic.clone(),
        topic_id: Bytes::copy_from_slice(&assignment.topic_id.to_bytes()),
        partition: assignment.partition.get(),
        members: assignment
            .members
            .iter()
            .map(|(replica, node)| internal::Member { replica: replica.get(), node: node.get() })
            .collect(),
        config_version: assignment.config_version.get(),
        change: assignment.change.map(Into::into),
    }
    .encode_to_vec()
    .into()
}

/// Reads what [`encode_assignment`] wrote.
///
/// # Errors
/// If it is not protobuf or names no topic id.
pub fn decode_assignment(bytes: Bytes) -> Result<Assignment, BadAssignment> {
    let stored = internal::Assignment::decode(bytes).map_err(|error| BadAssignment(error.to_string()))?;
    let topic_id = TopicId::from_slice(&stored.topic_id).ok_or_else(|| BadAssignment("topic id".into()))?;
    Ok(Assignment {
        group: GroupId(stored.group_id),
        replica: ReplicaId(stored.replica),
        topic: stored.topic,
        topic_id,
        partition: PartitionNo(stored.partition),
        members: stored.members.iter().map(|member| (ReplicaId(member.replica), NodeId(member.node))).collect(),
        config_version: ConfigVersion(stored.config_version),
        change: stored
            .change
            .map(TryInto::try_into)
            .transpose()
            .map_err(|error: quorate_proto::convert::ConvertError| BadAssignment(error.to_string()))?,
    })
}

/// The machine that `image` holds.
pub(super) fn restore_machine(assignment: &Assignment, image: MachineImage) -> Result<Partition, Quarantine> {
    Partition::restore(super::refuse::subject(assignment), &image.state, image.key_runs)
        .map_err(|error| Quarantine { reason: error.to_string() })
}

#[cfg(test)]
mod tests {
    use quorate_proto::control::{Change, ChangePhase};
    use quorate_proto::ids::TaskId;

    use super::*;

    #[test]
    fn an_assignment_survives_being_stored() {
        let assignment = Assignment {
            group: GroupId(7),
            replica: ReplicaId(12),
            topic: "default/orders".into(),
            topic_id: TopicId(99),
            partition: PartitionNo(2),
            members: vec![(ReplicaId(11), NodeId(1)), (ReplicaId(12), NodeId(2))],
            config_version: ConfigVersion(4),
            change: Some(Change {
                task: TaskId(5),
                add: ReplicaId(13),
                node: NodeId(3),
                remove: ReplicaId(12),
                phase: ChangePhase::Promote,
            }),
        };
        assert_eq!(decode_assignment(encode_assignment(&assignment)), Ok(assignment));
        assert!(decode_assignment(Bytes::from_static(b"\xff\xff")).is_err());
    }
}
