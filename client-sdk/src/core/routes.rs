//! Who leads what, as the observers push it.

use std::collections::BTreeMap;
use std::sync::Arc;

use quorate_proto::ids::{ClusterId, DirectoryVersion, GroupId, NodeId, PartitionNo, Term, TopicId};
use quorate_proto::slot::{slot_of_record, SLOT_COUNT, SLOT_HASH};
use quorate_proto::v1;

/// Route to one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionRoute {
    /// The partition's incarnation.
    pub group: GroupId,
    /// Who leads; `None` = nobody that the observers know of.
    pub leader: Option<NodeId>,
    /// Leader epoch (Raft term): a route with a higher one supersedes.
    pub epoch: Term,
    /// The leader before handed over on purpose: it answers what was sent to it.
    pub handed_over: bool,
}

/// Routes of one topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicRoutes {
    /// Its identity; a re-created namesake has another one.
    pub id: TopicId,
    /// `namespace/name`.
    pub name: Arc<str>,
    /// Partition of each slot.
    slots: Vec<PartitionNo>,
    /// Partitions by number.
    pub partitions: BTreeMap<PartitionNo, PartitionRoute>,
}

impl TopicRoutes {
    /// Routes of a topic whose slots are spread over `partitions` in turn.
    #[must_use]
    pub fn even(id: TopicId, name: &str, partitions: BTreeMap<PartitionNo, PartitionRoute>) -> Self {
        let numbers: Vec<PartitionNo> = partitions.keys().copied().collect();
        let slots = numbers.iter().copied().cycle().take(usize::from(SLOT_COUNT)).collect();
        Self { id, name: name.into(), slots, partitions }
    }

    /// From the wire; an error names what this client does not understand.
    fn read(route: &v1::TopicRoute) -> Result<Self, String> {
        let name = &route.name;
        let id = TopicId::from_slice(&route.topic_id).ok_or_else(|| format!("topic {name}: its id is not 16 bytes"))?;
        if route.hash != SLOT_HASH || route.slot_count != u32::from(SLOT_COUNT) {
            return Err(format!("topic {name}: unknown key hash {} over {} slots", route.hash, route.slot_count));
        }
        let partitions: BTreeMap<PartitionNo, PartitionRoute> =
            route.partitions.iter().map(|p| (PartitionNo(p.partition), PartitionRoute::from(p))).collect();
        let mut slots = vec![None; usize::from(SLOT_COUNT)];
        for run in &route.slots {
            let (first, count) = (run.first as usize, run.count as usize);
            let range = slots.get_mut(first..first.saturating_add(count));
            range
                .ok_or_else(|| format!("topic {name}: slot run beyond the last slot"))?
                .fill(Some(PartitionNo(run.partition)));
        }
        let slots: Option<Vec<PartitionNo>> = slots.into_iter().collect();
        let slots = slots.ok_or_else(|| format!("topic {name}: a slot has no partition"))?;
        if let Some(lost) = slots.iter().find(|p| !partitions.contains_key(p)) {
            return Err(format!("topic {name}: slots belong to {lost}, which has no route"));
        }
        Ok(Self { id, name: name.as_str().into(), slots, partitions })
    }

    /// Partition of a record; `None` if it has neither key.
    #[must_use]
    pub fn partition_of(&self, key: Option<&[u8]>, idempotency_key: Option<&[u8]>) -> Option<PartitionNo> {
        let slot = slot_of_record(key, idempotency_key)?;
        self.slots.get(usize::from(slot.0)).copied()
    }
}

impl From<&v1::PartitionRoute> for PartitionRoute {
    fn from(route: &v1::PartitionRoute) -> Self {
        Self {
            group: GroupId(route.group_id),
            leader: NodeId(route.leader_node).non_zero(),
            epoch: Term(route.epoch),
            handed_over: route.handed_over,
        }
    }
}

/// A node as the routes describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    /// Its name.
    pub name: String,
    /// host:port for clients.
    pub address: String,
    /// What the observers think of it.
    pub state: v1::NodeState,
}

/// All routes: the merge of what several observers push. Each of their streams begins with a full picture and goes
/// on with deltas that cover everything since its own last message, so taking only what is not older than what is
/// known yields the newest picture that any of them has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteTable {
    /// The cluster; [`ClusterId::NONE`] until the first picture.
    pub cluster: ClusterId,
    /// Version of the directory that this stands for.
    pub version: DirectoryVersion,
    /// Data nodes.
    pub nodes: BTreeMap<NodeId, NodeInfo>,
    /// Topics.
    pub topics: BTreeMap<TopicId, Arc<TopicRoutes>>,
    /// Address of the observer leader; empty = unknown.
    pub observer_leader: String,
}

impl RouteTable {
    /// The topic of this name.
    #[must_use]
    pub fn topic(&self, name: &str) -> Option<&Arc<TopicRoutes>> {
        self.topics.values().find(|topic| &*topic.name == name)
    }

    /// Takes a message in. `Ok(false)`: it was older than what is known.
    ///
    /// # Errors
    /// What this client does not understand, or another cluster's routes; nothing was changed.
    pub fn apply(&mut self, message: &v1::Routes) -> Result<bool, String> {
        let cluster = ClusterId::from_hex(&message.cluster_id)
            .ok_or_else(|| format!("not a cluster id: `{}`", message.cluster_id))?;
        if self.cluster != ClusterId::NONE && self.cluster != cluster {
            return Err(format!("it belongs to cluster {cluster}, not {}", self.cluster));
        }
        if DirectoryVersion(message.directory_version) < self.version {
            return Ok(false);
        }
        let topics = message.topics.iter().map(TopicRoutes::read).collect::<Result<Vec<_>, _>>()?;
        if message.full {
            let named: Vec<TopicId> = topics.iter().map(|topic| topic.id).collect();
            self.topics.retain(|id, _| named.contains(id));
            self.nodes.clear();
        }
        for id in message.removed_topics.iter().filter_map(|id| TopicId::from_slice(id)) {
            self.topics.remove(&id);
        }
        for topic in topics {
            self.merge(topic);
        }
        for node in &message.nodes {
            let info = NodeInfo { name: node.name.clone(), address: node.address.clone(), state: node.state() };
            self.nodes.insert(NodeId(node.id), info);
        }
        if !message.observer_leader_address.is_empty() {
            self.observer_leader.clone_from(&message.observer_leader_address);
        }
        self.cluster = cluster;
        self.version = DirectoryVersion(message.directory_version);
        Ok(true)
    }

    /// Keeps, per partition, whichever route has the higher epoch: two observers may hold one directory version and
    /// yet have heard of a leader at different times.
    fn merge(&mut self, mut topic: TopicRoutes) {
        if let Some(known) = self.topics.get(&topic.id) {
            for (no, route) in &mut topic.partitions {
                let newer = known.partitions.get(no).filter(|k| k.group == route.group && k.epoch > route.epoch);
                if let Some(newer) = newer {
                    *route = *newer;
                }
            }
        }
        self.topics.insert(topic.id, Arc::new(topic));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(leader: u64, epoch: u64) -> v1::TopicRoute {
        v1::TopicRoute {
            topic_id: TopicId(9).to_bytes().to_vec().into(),
            name: "default/orders".into(),
            hash: SLOT_HASH.into(),
            slot_count: u32::from(SLOT_COUNT),
            slots: vec![v1::SlotRun { first: 0, count: u32::from(SLOT_COUNT), partition: 0 }],
            partitions: vec![v1::PartitionRoute {
                partition: 0,
                group_id: 2,
                leader_node: leader,
                epoch,
                handed_over: false,
            }],
        }
    }

    fn message(version: u64, full: bool, topics: Vec<v1::TopicRoute>) -> v1::Routes {
        v1::Routes {
            directory_version: version,
            full,
            cluster_id: ClusterId(5).to_string(),
            topics,
            ..Default::default()
        }
    }

    fn leader(table: &RouteTable) -> Option<NodeId> {
        table.topic("default/orders").expect("known").partitions[&PartitionNo(0)].leader
    }

    #[test]
    fn an_older_picture_is_ignored_and_a_newer_delta_is_taken() {
        let mut table = RouteTable::default();
        assert_eq!(table.apply(&message(7, true, vec![topic(1, 3)])), Ok(true));
        assert_eq!(table.apply(&message(6, true, vec![topic(2, 2)])), Ok(false));
        assert_eq!(leader(&table), Some(NodeId(1)));
        assert_eq!(table.apply(&message(8, false, vec![topic(3, 4)])), Ok(true));
        assert_eq!(leader(&table), Some(NodeId(3)));
    }

    #[test]
    fn a_route_with_a_lower_epoch_never_replaces_a_higher_one() {
        let mut table = RouteTable::default();
        table.apply(&message(7, true, vec![topic(1, 4)])).expect("valid");
        table.apply(&message(7, true, vec![topic(2, 3)])).expect("valid");
        assert_eq!(leader(&table), Some(NodeId(1)));
    }

    #[test]
    fn a_full_picture_drops_topics_that_are_gone() {
        let mut table = RouteTable::default();
        table.apply(&message(7, true, vec![topic(1, 4)])).expect("valid");
        table.apply(&message(8, true, vec![])).expect("valid");
        assert!(table.topic("default/orders").is_none());
    }

    #[test]
    fn routes_of_another_cluster_are_refused() {
        let mut table = RouteTable::default();
        table.apply(&message(7, true, vec![topic(1, 4)])).expect("valid");
        let mut other = message(9, true, vec![]);
        other.cluster_id = ClusterId(6).to_string();
        assert!(table.apply(&other).is_err());
        assert_eq!(leader(&table), Some(NodeId(1)));
    }

    #[test]
    fn a_picture_with_an_unknown_hash_or_a_slot_without_partition_is_refused_by_name() {
        let mut table = RouteTable::default();
        let mut hashed = topic(1, 1);
        hashed.hash = "md5".into();
        assert!(table.apply(&message(1, true, vec![hashed])).unwrap_err().contains("md5"));
        let mut holes = topic(1, 1);
        holes.slots[0].count -= 1;
        assert!(table.apply(&message(1, true, vec![holes])).unwrap_err().contains("no partition"));
    }
}
