//! Routes as clients see them: a full picture for a new watcher, then what changed. From any observer, from what it
//! has applied; every message carries the directory version, and clients ignore older ones.

use std::collections::BTreeMap;

use bytes::Bytes;
use quorate_consensus::directory::{Directory, Topic};
use quorate_consensus::observer::ObserverCore;
use quorate_proto::ids::{NodeId, TopicId};
use quorate_proto::slot::{SLOT_COUNT, SLOT_HASH};
use quorate_proto::time::BootTime;
use quorate_proto::v1;
use tokio::sync::mpsc;

/// Version of the routes' protocol.
pub const PROTOCOL_VERSION: u32 = 1;
/// Messages that wait for one watcher. One that reads slower is cut off and starts over with a full picture.
pub const WATCHER_QUEUE: usize = 64;

/// The routes of one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Picture {
    version: u64,
    cluster: String,
    nodes: BTreeMap<NodeId, v1::Node>,
    topics: BTreeMap<TopicId, v1::TopicRoute>,
    leader: (u64, String),
}

impl Picture {
    /// As `core` sees it now. `leader_address`: of the observer that leads.
    #[must_use]
    pub fn take(core: &ObserverCore, leader_address: Option<&str>, now: BootTime) -> Self {
        let directory = core.directory();
        let node = |(id, node): (&NodeId, &quorate_consensus::directory::Node)| {
            let state = if !node.is_live() {
                v1::NodeState::NodeDead
            } else if core.view().suspect(*id, now) {
                v1::NodeState::NodeSuspect
            } else if core.view().draining(directory, *id) {
                v1::NodeState::NodeDraining
            } else {
                v1::NodeState::NodeUp
            };
            let route = v1::Node {
                id: id.get(),
                name: node.registered.name.clone(),
                address: node.registered.address.clone(),
                state: state.into(),
            };
            (*id, route)
        };
        Self {
            version: directory.version().get(),
            cluster: directory.cluster().to_string(),
            nodes: directory.nodes().iter().map(node).collect(),
            topics: directory.topics().map(|t| (t.id, topic_route(directory, t))).collect(),
            leader: (core.leader().map_or(0, NodeId::get), leader_address.unwrap_or_default().to_owned()),
        }
    }

    /// Version of the directory.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Leader of each partition, by topic and number.
    pub fn leaders(&self) -> impl Iterator<Item = (&str, &v1::PartitionRoute)> {
        self.topics.values().flat_map(|t| t.partitions.iter().map(|p| (t.name.as_str(), p)))
    }

    /// Everything.
    #[must_use]
    pub fn full(&self) -> v1::Routes {
        v1::Routes {
            full: true,
            nodes: self.nodes.values().cloned().collect(),
            topics: self.topics.values().cloned().collect(),
            ..self.empty()
        }
    }

    /// What is different from `older`; `None` if nothing.
    #[must_use]
    pub fn since(&self, older: &Self) -> Option<v1::Routes> {
        let nodes: Vec<_> =
            self.nodes.iter().filter(|(id, n)| older.nodes.get(id) != Some(n)).map(|(_, n)| n.clone()).collect();
        let topics: Vec<_> =
            self.topics.iter().filter(|(id, t)| older.topics.get(id) != Some(t)).map(|(_, t)| t.clone()).collect();
        let gone = older.topics.keys().filter(|id| !self.topics.contains_key(id));
        let removed_topics: Vec<Bytes> = gone.map(|id| Bytes::copy_from_slice(&id.to_bytes())).collect();
        let nothing = nodes.is_empty() && topics.is_empty() && removed_topics.is_empty() && self.leader == older.leader;
        (!nothing).then(|| v1::Routes { full: false, nodes, topics, removed_topics, ..self.empty() })
    }

    fn empty(&self) -> v1::Routes {
        v1::Routes {
            directory_version: self.version,
            full: false,
            cluster_id: self.cluster.clone(),
            protocol_version: PROTOCOL_VERSION,
            nodes: Vec::new(),
            topics: Vec::new(),
            removed_topics: Vec::new(),
            observer_leader: self.leader.0,
            observer_leader_address: self.leader.1.clone(),
        }
    }
}

fn topic_route(directory: &Directory, topic: &Topic) -> v1::TopicRoute {
    let partition = |(number, group): (usize, &quorate_proto::ids::GroupId)| {
        let lease = directory.partition(*group).and_then(|p| p.lease);
        v1::PartitionRoute {
            partition: u32::try_from(number).unwrap_or(u32::MAX),
            group_id: group.get(),
            leader_node: directory.leader_of(*group).map_or(0, |(node, _)| node.get()),
            // A leader that is gone keeps its epoch: only a newer one may take its place.
            epoch: lease.map_or(0, |l| l.term.get()),
            handed_over: directory.partition(*group).is_some_and(quorate_consensus::directory::Partition::handed_over),
        }
    };
    v1::TopicRoute {
        topic_id: Bytes::copy_from_slice(&topic.id.to_bytes()),
        name: topic.name.clone(),
        hash: SLOT_HASH.to_owned(),
        slot_count: u32::from(SLOT_COUNT),
        slots: slot_runs(topic.groups.len()),
        partitions: topic.groups.iter().enumerate().map(partition).collect(),
    }
}

/// Slots in equal runs, the first ones longer by one where they do not divide.
fn slot_runs(partitions: usize) -> Vec<v1::SlotRun> {
    let (count, partitions) = (u32::from(SLOT_COUNT), u32::try_from(partitions).unwrap_or(u32::MAX));
    let bound = |i: u32| u32::try_from(u64::from(count) * u64::from(i) / u64::from(partitions)).unwrap_or(count);
    (0..partitions)
        .map(|partition| {
            let (first, next) = (bound(partition), bound(partition + 1));
            v1::SlotRun { first, count: next - first, partition }
        })
        .collect()
}

/// Who gets what changes.
#[derive(Debug, Default)]
pub struct Watchers {
    all: Vec<Watcher>,
}

#[derive(Debug)]
struct Watcher {
    topics: Vec<String>,
    queue: mpsc::Sender<v1::Routes>,
}

impl Watcher {
    fn cut(&self, mut routes: v1::Routes) -> v1::Routes {
        if !self.topics.is_empty() {
            routes.topics.retain(|t| self.topics.contains(&t.name));
        }
        routes
    }
}

impl Watchers {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Nobody watches.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// A new one: it gets the full picture at once. Topics by full name; none = all.
    pub fn add(&mut self, topics: Vec<String>, picture: &Picture) -> mpsc::Receiver<v1::Routes> {
        let (queue, routes) = mpsc::channel(WATCHER_QUEUE);
        let watcher = Watcher { topics, queue };
        // An empty queue takes the first message.
        let _ = watcher.queue.try_send(watcher.cut(picture.full()));
        self.all.push(watcher);
        routes
    }

    /// Sends a change to everybody. Who does not keep up is cut off.
    pub fn push(&mut self, routes: &v1::Routes) {
        self.all.retain(|watcher| watcher.queue.try_send(watcher.cut(routes.clone())).is_ok());
    }

    /// Forgets those that left.
    pub fn sweep(&mut self) {
        self.all.retain(|watcher| !watcher.queue.is_closed());
    }

    /// Ends every stream.
    pub fn close(&mut self) {
        self.all.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(version: u64, leader: u64) -> Picture {
        let topic = |id: u128, name: &str| {
            let route = v1::TopicRoute {
                name: name.to_owned(),
                partitions: vec![v1::PartitionRoute { leader_node: leader, epoch: leader, ..Default::default() }],
                ..Default::default()
            };
            (TopicId(id), route)
        };
        Picture { version, topics: [topic(1, "default/a"), topic(2, "default/b")].into(), ..Picture::default() }
    }

    #[test]
    fn slots_are_all_given_to_exactly_one_partition() {
        for partitions in [1, 3, 7, 1_024] {
            let runs = slot_runs(partitions);
            let mut next = 0;
            for (i, run) in runs.iter().enumerate() {
                assert_eq!((run.first, run.partition), (next, u32::try_from(i).expect("small")));
                assert!(run.count > 0);
                next += run.count;
            }
            assert_eq!(next, u32::from(SLOT_COUNT));
        }
    }

    #[test]
    fn a_delta_holds_only_what_changed() {
        let (old, mut new) = (picture(1, 1), picture(2, 1));
        assert_eq!(new.since(&old), None);
        new.topics.get_mut(&TopicId(2)).expect("there").partitions[0].leader_node = 3;
        let delta = new.since(&old).expect("a change");
        assert_eq!((delta.directory_version, delta.full, delta.topics.len()), (2, false, 1));
        let mut gone = new.clone();
        gone.topics.remove(&TopicId(1));
        assert_eq!(gone.since(&new).expect("a change").removed_topics.len(), 1);
    }

    #[tokio::test]
    async fn a_watcher_gets_the_full_picture_first_and_is_cut_off_when_it_does_not_read() {
        let mut watchers = Watchers::default();
        let first = picture(1, 1);
        let mut reader = watchers.add(vec!["default/a".to_owned()], &first);
        let _idle = watchers.add(Vec::new(), &first);
        let got = reader.recv().await.expect("the first picture");
        assert!(got.full && got.topics.len() == 1, "only the topics of interest");
        for version in 2..(WATCHER_QUEUE as u64 + 2) {
            let delta = picture(version, version).since(&picture(version - 1, version - 1)).expect("a change");
            watchers.push(&delta);
            assert_eq!(reader.recv().await.expect("delta").directory_version, version);
        }
        assert_eq!(watchers.len(), 1, "the one that reads stays");
    }
}
