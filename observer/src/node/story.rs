//! One log line per event that an operator needs: nodes that come and die, topics, leaders, failovers.

use std::collections::BTreeMap;

use quorate_consensus::directory::Directory;
use quorate_proto::ids::{Incarnation, NodeId};
use quorate_proto::v1::Failover;

use super::metrics::Metrics;
use crate::routes::Picture;

/// Lines about leaders in one turn; the death of a node may move a thousand.
const LEADER_LINES: usize = 20;

/// What was told already.
#[derive(Debug, Default)]
pub(super) struct Story {
    nodes: BTreeMap<NodeId, (Incarnation, Incarnation)>,
    failover: u64,
}

impl Story {
    /// Nothing of what `directory` holds at the start is news.
    pub(super) fn new(directory: &Directory) -> Self {
        Self { nodes: nodes(directory), failover: directory.failovers().back().map_or(0, |f| f.id) }
    }

    /// Tells what is new in the directory.
    pub(super) fn directory(&mut self, directory: &Directory, metrics: &Metrics) {
        let now = nodes(directory);
        for (node, (registered, dead)) in &now {
            let name = directory.node(*node).map(|n| n.registered.name.as_str()).unwrap_or_default();
            let (before, dead_before) = self.nodes.get(node).copied().unwrap_or_default();
            if *registered != before {
                tracing::info!(node = node.get(), name, incarnation = registered.get(), "data node registered");
            }
            if *dead != dead_before {
                tracing::warn!(node = node.get(), name, incarnation = dead.get(), "data node's process is dead");
            }
        }
        self.nodes = now;
        let news = directory.failovers().iter().rev().take_while(|f| f.id > self.failover);
        let news: Vec<&Failover> = news.collect();
        for failover in news.into_iter().rev() {
            self.failover = failover.id;
            metrics.failover(failover);
            let phases: Vec<String> =
                failover.phases.iter().map(|p| format!("{} {:.1}", p.name, millis(p.duration_us))).collect();
            let total: u64 = failover.phases.iter().map(|p| p.duration_us).sum();
            if failover.withdrawn {
                tracing::warn!(
                    id = failover.id, partition = format!("{}/{}", failover.topic, failover.partition),
                    cause = %failover.cause, leader = failover.old_leader_node,
                    "false alarm: the leader was given up, and goes on"
                );
                continue;
            }
            tracing::info!(
                id = failover.id, partition = format!("{}/{}", failover.topic, failover.partition),
                cause = %failover.cause, from = failover.old_leader_node, to = failover.new_leader_node,
                total_ms = format!("{:.1}", millis(total)), phases_ms = phases.join(", "), "failover"
            );
        }
    }

    /// Tells which partitions changed their leader.
    pub(super) fn routes(&self, before: &Picture, after: &Picture) {
        let old: BTreeMap<(&str, u32), (u64, u64)> =
            before.leaders().map(|(t, p)| ((t, p.partition), (p.leader_node, p.epoch))).collect();
        let moved = after.leaders().filter(|(topic, p)| {
            old.get(&(*topic, p.partition)).is_none_or(|known| *known != (p.leader_node, p.epoch))
        });
        let mut more = 0;
        for (i, (topic, p)) in moved.enumerate() {
            if i >= LEADER_LINES {
                more += 1;
            } else if p.leader_node == 0 && p.epoch == 0 {
                // A new topic: its first leaders are on their way.
            } else if p.leader_node == 0 {
                tracing::warn!(partition = format!("{topic}/{}", p.partition), "no leader");
            } else {
                let partition = format!("{topic}/{}", p.partition);
                tracing::info!(partition, leader = p.leader_node, epoch = p.epoch, "leader");
            }
        }
        if more > 0 {
            tracing::info!(more, "further partitions changed their leader");
        }
    }
}

#[allow(clippy::cast_precision_loss)]
fn millis(micros: u64) -> f64 {
    micros as f64 / 1_000.0
}

fn nodes(directory: &Directory) -> BTreeMap<NodeId, (Incarnation, Incarnation)> {
    directory.nodes().iter().map(|(id, node)| (*id, (node.incarnation(), node.dead))).collect()
}
