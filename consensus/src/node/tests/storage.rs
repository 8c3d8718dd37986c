//! Checkpoints, compaction, snapshots, restarts.

use quorate_proto::ids::{LogIndex, Offset};

use super::harness::{batch, Cluster, GROUP};
use super::host::Job;
use crate::node::{NodeEvent, NodeLimits};

fn small() -> NodeLimits {
    NodeLimits { checkpoint_bytes: 2_000, retain_bytes: 500, ..NodeLimits::default() }
}

fn publish_many(cluster: &mut Cluster, id: u64, sequences: std::ops::Range<u64>) {
    for n in sequences {
        let ticket = cluster.publish(id, batch(0, n, 1));
        cluster.settle();
        cluster.receipt(id, ticket);
    }
}

#[test]
fn a_long_tail_is_checkpointed_and_the_log_compacted_in_one_write() {
    let mut cluster = Cluster::led_with(&small());
    publish_many(&mut cluster, 1, 0..40);
    let node = &cluster.nodes[&1];
    let (index, _, _) = node.checkpoint.as_ref().expect("asked for");
    let stored = &node.stored[&GROUP];
    assert!(stored.puts.contains_key("storage"), "the storage's pair is in the same write");
    assert!(stored.entries.len() < 40);
    let status = node.core.partition(GROUP, cluster.now).expect("hosted");
    assert_eq!(status.checkpoint, *index);
    assert!(status.unchecked_bytes <= 2_400);
}

#[test]
fn an_idle_partition_is_checkpointed_after_a_while() {
    let mut cluster = Cluster::led();
    publish_many(&mut cluster, 1, 0..1);
    assert!(cluster.nodes[&1].checkpoint.is_none());
    cluster.advance(31_000);
    assert!(cluster.nodes[&1].checkpoint.is_some());
    let once = cluster.nodes[&1].checkpoint.clone();
    cluster.advance(61_000);
    assert_eq!(cluster.nodes[&1].checkpoint, once, "nothing was applied since");
}

#[test]
fn no_checkpoint_reaches_beyond_the_own_flushed_log() {
    let mut cluster = Cluster::led_with(&small());
    publish_many(&mut cluster, 1, 0..2);
    cluster.nodes.get_mut(&1).expect("a node").hang = true;
    let before = cluster.nodes[&1].checkpoint.as_ref().map(|(index, _, _)| *index);
    let (tickets, events): (Vec<_>, Vec<_>) = (2..42).map(|n| cluster.publish_event(batch(0, n, 1))).unzip();
    cluster.turn(1, events);
    cluster.settle();
    assert!(cluster.receipt(1, tickets[0]).durable_on == [2, 3]);
    let asked = cluster.nodes[&1].checkpoint.as_ref().map(|(index, _, _)| *index);
    assert_eq!(asked, before, "applied, but not flushed here");
    assert!(cluster.nodes[&1].disk.iter().any(|job| matches!(job, Job::Write(_))));
    cluster.nodes.get_mut(&1).expect("a node").hang = false;
    cluster.settle();
    let asked = cluster.nodes[&1].checkpoint.as_ref().map(|(index, _, _)| *index);
    assert!(asked > before);
}

#[test]
fn a_checkpoint_that_storage_did_not_finish_compacts_nothing() {
    let mut cluster = Cluster::led_with(&small());
    cluster.nodes.get_mut(&1).expect("a node").checkpoints = false;
    publish_many(&mut cluster, 1, 0..40);
    let node = &cluster.nodes[&1];
    assert!(node.checkpoint.is_some());
    assert_eq!(node.stored[&GROUP].entries.len(), 41);
    assert_eq!(node.core.partition(GROUP, cluster.now).expect("hosted").checkpoint, LogIndex(5));
}

#[test]
fn a_follower_that_lags_behind_the_log_gets_a_snapshot() {
    let mut cluster = Cluster::led_with(&small());
    cluster.kill(3);
    publish_many(&mut cluster, 1, 0..60);
    cluster.restart(3);
    cluster.advance(2_000);
    assert_eq!(cluster.nodes[&3].view.high_watermark, Offset(60));
    assert!(cluster.nodes[&3].checkpoint.is_some(), "installed");
    assert_eq!(cluster.digest(3), cluster.digest(1));
    publish_many(&mut cluster, 1, 60..63);
    cluster.advance(300);
    assert_eq!(cluster.digest(3), cluster.digest(1));
    // It can lead, knows the producer, and survives a restart on what it was given.
    cluster.kill(1);
    cluster.advance(1_600);
    cluster.elect(3);
    let again = cluster.publish(3, batch(0, 62, 1));
    assert!(cluster.receipt(3, again).duplicate_batch);
    cluster.kill(3);
    cluster.restart(3);
    cluster.advance(500);
    assert!(cluster.nodes[&3].quarantined.is_empty());
}

#[test]
fn a_follower_a_little_behind_is_served_from_the_log_that_was_kept() {
    let mut cluster = Cluster::led_with(&NodeLimits { retain_bytes: 100_000, ..small() });
    publish_many(&mut cluster, 1, 0..2);
    cluster.kill(3);
    publish_many(&mut cluster, 1, 2..60);
    cluster.restart(3);
    cluster.advance(2_000);
    assert_eq!(cluster.digest(3), cluster.digest(1));
    assert!(!cluster.nodes[&3].trace.iter().any(|line| line == "install"), "no snapshot was needed");
}

#[test]
fn a_restarted_node_finds_its_replicas_and_applies_the_rest_again() {
    let mut cluster = Cluster::led_with(&small());
    publish_many(&mut cluster, 1, 0..45);
    let (digest, offsets) = (cluster.digest(1), cluster.offsets(1));
    cluster.kill(1);
    cluster.restart(1);
    cluster.advance(1_600);
    assert!(cluster.nodes[&1].quarantined.is_empty(), "{:?}", cluster.nodes[&1].quarantined);
    cluster.elect(1);
    assert!(cluster.serving(1));
    assert_eq!(cluster.digest(1), digest);
    assert_eq!(cluster.offsets(1), offsets);
    let again = cluster.publish(1, batch(0, 44, 1));
    cluster.settle();
    let receipt = cluster.receipt(1, again);
    assert!(receipt.duplicate_batch && receipt.base_offset == 44);
}

#[test]
fn everything_restarted_at_once_keeps_every_acknowledged_record() {
    let mut cluster = Cluster::led_with(&small());
    publish_many(&mut cluster, 1, 0..30);
    for round in 0..5 {
        for id in 1..=3 {
            cluster.kill(id);
        }
        for id in 1..=3 {
            cluster.restart(id);
        }
        cluster.advance(1_600);
        let leader = round % 3 + 1;
        cluster.elect(leader);
        assert!(cluster.serving(leader));
        let next = 30 + round * 3;
        publish_many(&mut cluster, leader, next..next + 3);
        cluster.advance(300);
        assert_eq!(cluster.nodes[&leader].view.high_watermark, Offset(next + 3));
    }
    assert_eq!(cluster.digest(1), cluster.digest(2));
    assert_eq!(cluster.digest(2), cluster.digest(3));
}

#[test]
fn a_damaged_checkpoint_sets_the_replica_aside_and_the_others_go_on() {
    let mut cluster = Cluster::led_with(&small());
    publish_many(&mut cluster, 1, 0..45);
    cluster.kill(3);
    let stored = cluster.nodes.get_mut(&3).expect("a node").stored.get_mut(&GROUP).expect("stored");
    stored.puts.insert("storage", bytes::Bytes::from_static(b"\xff\xff\xff"));
    cluster.restart(3);
    assert_eq!(cluster.nodes[&3].quarantined.len(), 1);
    publish_many(&mut cluster, 1, 45..46);
    cluster.event(3, NodeEvent::Tick);
}
