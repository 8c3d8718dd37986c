//! Under which key the data of a replica lie, in the write-ahead log and among the files.
//!
//! The replicas that a partition was made with use their group's number: a node hosts one of them. A replica that joined
//! later (M1) uses a number of its own, so that the data of the replica whose place it takes stay untouched until it is
//! promoted.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use quorate_proto::control::Assignment;
use quorate_proto::ids::{GroupId, ReplicaId};

/// Set in the keys of replicas that joined later. Groups are counted from 1 and never get here.
const JOINED: u64 = 1 << 63;

#[derive(Debug, Default)]
struct Inner {
    by_replica: BTreeMap<(GroupId, ReplicaId), GroupId>,
    /// The replica of each group that is hosted now, or was last.
    current: BTreeMap<GroupId, ReplicaId>,
}

/// All keys of a node. Shared with the threads that receive snapshots.
#[derive(Clone, Debug, Default)]
pub struct DataKeys {
    inner: Arc<RwLock<Inner>>,
}

impl DataKeys {
    /// Data of a replica were found at start.
    pub fn found(&self, group: GroupId, replica: ReplicaId, key: GroupId) {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        inner.by_replica.insert((group, replica), key);
    }

    /// The key of a replica that is hosted from now on.
    pub fn host(&self, assignment: &Assignment) -> GroupId {
        let (group, replica) = (assignment.group, assignment.replica);
        let joins = assignment.change.is_some_and(|change| change.add == replica);
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        inner.current.insert(group, replica);
        let fresh = if joins { GroupId(JOINED | replica.get()) } else { group };
        *inner.by_replica.entry((group, replica)).or_insert(fresh)
    }

    /// The key of the group's hosted replica; the group itself if none is.
    #[must_use]
    pub fn of(&self, group: GroupId) -> GroupId {
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        let key = inner.current.get(&group).and_then(|replica| inner.by_replica.get(&(group, *replica)));
        key.copied().unwrap_or(group)
    }

    /// The group whose hosted replica has this key; `None` if that replica was replaced since.
    #[must_use]
    pub fn group(&self, key: GroupId) -> Option<GroupId> {
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        let mut known = inner.by_replica.iter().filter(|(_, of)| **of == key);
        known.find(|((group, replica), _)| inner.current.get(group) == Some(replica)).map(|((group, _), _)| *group)
    }

    /// Forgets a replica; its key, if there are data of it.
    pub fn retire(&self, group: GroupId, replica: ReplicaId) -> Option<GroupId> {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        if inner.current.get(&group) == Some(&replica) {
            inner.current.remove(&group);
        }
        inner.by_replica.remove(&(group, replica))
    }
}

#[cfg(test)]
mod tests {
    use quorate_proto::control::{Change, ChangePhase};
    use quorate_proto::ids::{ConfigVersion, NodeId, PartitionNo, TaskId, TopicId};

    use super::*;

    fn assignment(replica: u64, joins: bool) -> Assignment {
        let change = Change {
            task: TaskId(1),
            add: ReplicaId(replica),
            node: NodeId(1),
            remove: ReplicaId(1),
            phase: ChangePhase::Learn,
        };
        Assignment {
            group: GroupId(7),
            replica: ReplicaId(replica),
            topic: "default/orders".into(),
            topic_id: TopicId(9),
            partition: PartitionNo(0),
            members: Vec::new(),
            config_version: ConfigVersion(1),
            change: joins.then_some(change),
        }
    }

    #[test]
    fn a_replica_that_takes_the_place_of_another_leaves_its_data_alone() {
        let keys = DataKeys::default();
        assert_eq!(keys.host(&assignment(1, false)), GroupId(7));
        assert_eq!(keys.group(GroupId(7)), Some(GroupId(7)));
        let joined = keys.host(&assignment(12, true));
        assert_ne!(joined, GroupId(7));
        assert_eq!((keys.of(GroupId(7)), keys.group(joined)), (joined, Some(GroupId(7))));
        assert_eq!(keys.group(GroupId(7)), None, "what the old one still had under way concerns nobody");
        assert_eq!(keys.retire(GroupId(7), ReplicaId(1)), Some(GroupId(7)));
        assert_eq!(keys.retire(GroupId(7), ReplicaId(1)), None);
        assert_eq!(keys.of(GroupId(7)), joined);
    }

    #[test]
    fn a_replica_keeps_its_key_over_restarts() {
        let keys = DataKeys::default();
        keys.found(GroupId(7), ReplicaId(12), GroupId(JOINED | 12));
        assert_eq!(keys.host(&assignment(12, false)), GroupId(JOINED | 12));
    }
}
