//! Topics, partitions and nodes as operators see them: the directory joined with what the nodes last reported.
//! `authoritative` only from the observer leader, and only on fresh reports.

use std::time::Duration;

use bytes::Bytes;
use quorate_consensus::arbiter::Seen;
use quorate_consensus::directory::{Node, Partition, Topic};
use quorate_consensus::observer::ObserverCore;
use quorate_proto::control::{Memory, ObserverInfo, Role, Room};
use quorate_proto::ids::{LogIndex, NodeId, PartitionNo, ReplicaId, Term};
use quorate_proto::time::BootTime;
use quorate_proto::v1;

use crate::config::ObserverConfig;

/// A report older than this is not shown as the state of now: three heartbeats.
fn fresh_for(core: &ObserverCore) -> Duration {
    core.timing().node_heartbeat * core.timing().missed_heartbeats
}

/// All topics.
#[must_use]
pub fn topics(core: &ObserverCore, now: BootTime) -> v1::ListTopicsResponse {
    let directory = core.directory();
    let mut topics: Vec<_> = directory.topics().map(|topic| describe_topic(core, topic, now)).collect();
    topics.sort_by(|a, b| a.name.cmp(&b.name));
    v1::ListTopicsResponse { directory_version: directory.version().get(), topics }
}

/// One topic by its full name.
#[must_use]
pub fn topic(core: &ObserverCore, name: &str, now: BootTime) -> Option<v1::TopicDescription> {
    core.directory().topic_named(name).map(|topic| describe_topic(core, topic, now))
}

fn describe_topic(core: &ObserverCore, topic: &Topic, now: BootTime) -> v1::TopicDescription {
    let directory = core.directory();
    let partitions = topic.groups.iter().filter_map(|group| directory.partition(*group));
    v1::TopicDescription {
        directory_version: directory.version().get(),
        topic_id: Bytes::copy_from_slice(&topic.id.to_bytes()),
        name: topic.name.clone(),
        partitions: u32::try_from(topic.groups.len()).unwrap_or(u32::MAX),
        created_at_us: topic.created.0,
        partition: partitions.map(|p| describe_partition(core, topic, p, now)).collect(),
    }
}

/// One partition of a topic.
#[must_use]
pub fn partition_of(
    core: &ObserverCore,
    name: &str,
    number: PartitionNo,
    now: BootTime,
) -> Option<v1::PartitionDescription> {
    let topic = core.directory().topic_named(name)?;
    let group = topic.groups.get(usize::try_from(number.get()).ok()?)?;
    core.directory().partition(*group).map(|partition| describe_partition(core, topic, partition, now))
}

fn describe_partition(
    core: &ObserverCore,
    topic: &Topic,
    partition: &Partition,
    now: BootTime,
) -> v1::PartitionDescription {
    let directory = core.directory();
    let report = |replica: ReplicaId, node: NodeId| {
        let seen = core.view().report(directory, partition.group, replica, node)?;
        (now.since(seen.at) <= fresh_for(core)).then_some(seen)
    };
    let leader = directory.leader_of(partition.group);
    let leading = leader.and_then(|(node, lease)| report(lease.replica, node));
    let last = leading.map(|seen| seen.report.last_index);
    let replica = |(replica, node): (ReplicaId, NodeId)| {
        let seen = report(replica, node);
        let index = seen.map_or(LogIndex::ZERO, |s| s.report.last_index);
        v1::ReplicaDescription {
            node: node.get(),
            node_name: name_of(core, node),
            replica: replica.get(),
            state: if partition.lost.contains(&replica) {
                "lost".to_owned()
            } else {
                state_of(core, node, seen, partition, now).to_owned()
            },
            last_index: index.get(),
            lag: last.map_or(0, |last| last.get().saturating_sub(index.get())),
            disk: disk_of(core, node).to_owned(),
        }
    };
    let reported_term =
        partition.all().filter_map(|(replica, node)| report(replica, node)).map(|s| s.report.term).max();
    let remaining = core.lease_remaining(partition.group, now).filter(|_| leader.is_some());
    v1::PartitionDescription {
        directory_version: directory.version().get(),
        topic: topic.name.clone(),
        partition: partition.number.get(),
        group_id: partition.group.get(),
        leader_node: leader.map_or(0, |(node, _)| node.get()),
        leader: leader.map(|(node, _)| name_of(core, node)).unwrap_or_default(),
        epoch: partition.lease.map_or(0, |lease| lease.term.get()),
        term: reported_term.max(partition.lease.map(|lease| lease.term)).map_or(0, Term::get),
        permit_epoch: partition.permit_epoch.get(),
        replicas: partition.all().map(replica).collect(),
        lease_remaining_ms: remaining.map_or(-1, |span| i64::try_from(span.as_millis()).unwrap_or(i64::MAX)),
        high_watermark: leading.map_or(0, |seen| seen.report.high_watermark.get()),
        digest: leading.map(|seen| hex(&seen.report.digest)).unwrap_or_default(),
        authoritative: core.is_leading() && (leader.is_none() || leading.is_some()),
        as_of_us: core.cluster_time(now).0,
        pinned_to: partition.pin.map(|node| name_of(core, node)).unwrap_or_default(),
    }
}

fn state_of(
    core: &ObserverCore,
    node: NodeId,
    seen: Option<&Seen>,
    partition: &Partition,
    now: BootTime,
) -> &'static str {
    let live = core.directory().node(node).is_some_and(Node::is_live);
    let Some(seen) = seen.filter(|_| live) else {
        return if !live || core.view().suspect(node, now) { "down" } else { "unknown" };
    };
    match seen.report.role {
        // It was voted out and has not heard of it.
        Role::Leader if partition.lease.is_some_and(|lease| lease.term > seen.report.term) => "unknown",
        Role::Leader => "leader",
        Role::Follower if seen.report.learner => "learner",
        Role::Follower => "follower",
        Role::Candidate => "candidate",
        Role::Quarantined => "quarantined",
    }
}

fn name_of(core: &ObserverCore, node: NodeId) -> String {
    core.directory().node(node).map(|n| n.registered.name.clone()).unwrap_or_default()
}

/// Data nodes, then observers.
#[must_use]
pub fn nodes(core: &ObserverCore, config: &ObserverConfig, now: BootTime) -> v1::ListNodesResponse {
    let directory = core.directory();
    let mut nodes: Vec<v1::NodeDescription> =
        directory.nodes().iter().map(|(id, node)| data_node(core, *id, node, now)).collect();
    let me = core.me();
    nodes.extend(config.observers.iter().map(|member| {
        let id = NodeId(member.id);
        let heard = core.view().observers(now).find(|(info, _)| info.node == id);
        let (info, age) = if id == me.node {
            (Some(&me), Duration::ZERO)
        } else {
            (heard.map(|(info, _)| info), heard.map_or(Duration::MAX, |(_, age)| age))
        };
        let mut described = observer(core, id, info, age);
        described.name.clone_from(&member.name);
        described.address.clone_from(&member.address);
        described
    }));
    v1::ListNodesResponse {
        directory_version: directory.version().get(),
        nodes,
        as_of_us: core.cluster_time(now).0,
        authoritative: core.is_leading(),
    }
}

fn observer(core: &ObserverCore, id: NodeId, info: Option<&ObserverInfo>, age: Duration) -> v1::NodeDescription {
    let health = match info {
        Some(_) if age <= fresh_for(core) => "up",
        Some(_) => "suspect",
        None => "unknown",
    };
    let memory = info.map_or(Memory::Sound, |info| info.memory);
    let state = match core.leader() {
        _ if health == "up" && memory != Memory::Sound => memory_text(memory),
        Some(leader) if leader == id && health == "up" => "leader",
        _ if health == "up" => "follower",
        _ => "",
    };
    let disk =
        info.filter(|_| health == "up").map_or("", |i| if i.stalled { "disk stalled" } else { disk_text(i.room) });
    v1::NodeDescription {
        id: id.get(),
        role: "observer".to_owned(),
        pid: info.map_or(0, |i| i.pid),
        incarnation: info.map_or(0, |i| i.incarnation.get()),
        version: info.map(|i| i.version.clone()).unwrap_or_default(),
        health: health.to_owned(),
        state: state.to_owned(),
        disk: disk.to_owned(),
        ..v1::NodeDescription::default()
    }
}

/// Why an observer does not vote (B2).
fn memory_text(memory: Memory) -> &'static str {
    match memory {
        Memory::Sound => "",
        Memory::Suspect => "no vote: log suspect",
        Memory::Lost => "no vote: log lost",
        Memory::Empty => "no vote: disk empty",
    }
}

/// One data node by name or number.
#[must_use]
pub fn node_named(core: &ObserverCore, text: &str, now: BootTime) -> Option<v1::NodeDescription> {
    core.directory().node_named(text).map(|node| data_node(core, node.registered.node, node, now))
}

fn data_node(core: &ObserverCore, id: NodeId, node: &Node, now: BootTime) -> v1::NodeDescription {
    let directory = core.directory();
    let view = core.view().node(id);
    let health = if !node.is_live() {
        "dead"
    } else if core.view().suspect(id, now) {
        "suspect"
    } else if view.is_some_and(|v| v.session.is_some()) {
        "up"
    } else {
        "unknown"
    };
    let hosted = directory.partitions().values().filter(|p| p.replica_on(id).is_some());
    let led = hosted.clone().filter(|p| directory.leader_of(p.group).is_some_and(|(leader, _)| leader == id));
    let state = if core.view().draining(directory, id) { "draining" } else { "" };
    v1::NodeDescription {
        id: id.get(),
        name: node.registered.name.clone(),
        role: "server".to_owned(),
        address: node.registered.address.clone(),
        pid: node.registered.pid,
        incarnation: node.registered.incarnation.get(),
        health: health.to_owned(),
        leaders: u32::try_from(led.count()).unwrap_or(u32::MAX),
        replicas: u32::try_from(hosted.count()).unwrap_or(u32::MAX),
        version: node.registered.version.clone(),
        state: state.to_owned(),
        disk: disk_of(core, id).to_owned(),
    }
}

/// What is wrong with a data node's disk, as it last said; empty = nothing.
fn disk_of(core: &ObserverCore, node: NodeId) -> &'static str {
    match core.view().node(node) {
        Some(view) if !view.disk_ok && view.wal_age <= core.timing().wal_stall => "disk failed",
        Some(view) if !view.disk_healthy(core.timing()) => "disk stalled",
        Some(view) => disk_text(view.room),
        None => "",
    }
}

fn disk_text(room: Room) -> &'static str {
    match room {
        Room::Ample => "",
        Room::Scarce => "disk nearly full",
        Room::Full => "disk full",
    }
}

/// The newest failovers, and since when every one is on record.
#[must_use]
pub fn failovers(core: &ObserverCore, limit: usize, now: BootTime) -> v1::ListFailoversResponse {
    let directory = core.directory();
    let all = directory.failovers();
    // As long as none was dropped, there was none before the first of them: since the first topic was made.
    let dropped = all.front().is_some_and(|oldest| oldest.id > 1);
    let first_topic = directory.topics().map(|topic| topic.created.0).min();
    let since = if dropped { all.front().map(|oldest| oldest.at_us) } else { first_topic };
    v1::ListFailoversResponse {
        failovers: all.iter().skip(all.len().saturating_sub(limit)).cloned().collect(),
        recorded_since_us: since.unwrap_or_default(),
        as_of_us: core.cluster_time(now).0,
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
