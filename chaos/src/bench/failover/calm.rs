//! Before each fault: the cluster is whole and quiet. Conditions are waited for, not seconds.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures::future::join_all;
use quorate_client::PartitionNo;
use quorate_proto::v1::{NodeDescription, PartitionDescription};

use super::{Fault, Series};
use crate::proc::ProcessId;
use crate::Error;

/// Without a longer pause for this long, every partition's acknowledgements flow again …
const QUIET: Duration = Duration::from_millis(300);
/// … where this is a pause.
const PAUSE: Duration = Duration::from_millis(60);
/// Longest wait for the condition.
const GIVE_UP: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(50);
/// A handoff's target is fit again 30 s after the observers last saw it at fault (H1).
const FIT_AGAIN: Duration = Duration::from_secs(31);

/// A process that ran for 10 s is started again at once when it dies.
const RESTED: Duration = Duration::from_secs(11);

/// The cluster right before a fault.
pub(super) struct Stage {
    pub(super) partitions: Vec<PartitionDescription>,
    /// Every node, with the process that runs.
    nodes: Vec<NodeDescription>,
}

impl Stage {
    /// The node that leads partition 0, and all others where the fault concerns the leader.
    pub(super) fn leader(&self) -> u64 {
        self.partitions.first().map_or(0, |partition| partition.leader_node)
    }

    /// The process of an observer in this state.
    pub(super) fn observer(&self, state: &str) -> Result<ProcessId, Error> {
        let found = self.nodes.iter().find(|node| node.role == "observer" && node.state == state && node.pid != 0);
        found.map(|node| ProcessId(node.pid)).ok_or_else(|| Error::new(format!("no observer is known as {state}")))
    }

    pub(super) fn leaders(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.partitions.iter().map(|partition| (partition.leader_node, partition.term))
    }
}

impl Series<'_> {
    /// Waits until three replicas of each partition are healthy and every node is up.
    pub(super) async fn whole(&mut self) -> Result<Vec<PartitionDescription>, Error> {
        let mut partitions = Vec::new();
        for number in 0..self.settings.partitions {
            partitions.push(self.bench.view.healthy(&self.bench.topic, number).await?);
        }
        // From here on the observers see no fault of it any more.
        if let Some(node) = self.recovering.take() {
            self.harmed.insert(node, Instant::now());
        }
        Ok(partitions)
    }

    /// Waits until the cluster is whole, one observer leads, and acknowledgements of every partition flow without a
    /// pause.
    pub(super) async fn calm(&mut self) -> Result<Stage, Error> {
        let started = Instant::now();
        loop {
            let partitions = self.whole().await?;
            let nodes = self.bench.view.nodes().await?;
            let led = nodes.iter().filter(|node| node.role == "observer" && node.state == "leader").count() == 1;
            // One that was killed a moment ago may still be listed.
            let ghost = |node: &NodeDescription| node.pid != 0 && !ProcessId(node.pid).alive();
            let whole = led && !(self.settings.fault.kills() && nodes.iter().any(ghost));
            if whole && self.quiet().await {
                return Ok(Stage { partitions, nodes });
            }
            if started.elapsed() > GIVE_UP {
                let failures = self.run.look().failures.join("\n");
                return Err(Error::new(format!("no calm within {GIVE_UP:?}: {nodes:?}\n{failures}")));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn quiet(&self) -> bool {
        self.run.look().timeline.forget_gap();
        tokio::time::sleep(QUIET).await;
        let now = self.run.now();
        let progress = self.run.look();
        (0..self.settings.partitions).all(|number| {
            let gaps = progress.timeline.partition(number);
            let since = gaps.last_ack().map(|last| now.saturating_sub(last));
            gaps.longest().length() < PAUSE && since.is_some_and(|since| since < PAUSE)
        })
    }

    /// All measured partitions as the observers see them.
    pub(super) async fn described(&self) -> Result<Vec<PartitionDescription>, Error> {
        let mut all = Vec::new();
        for number in 0..self.settings.partitions {
            all.push(self.bench.view.partition(&self.bench.topic, number).await?);
        }
        Ok(all)
    }

    /// Moves the leaders of all measured partitions to one node, by planned handoffs.
    pub(super) async fn gather(&self) -> Result<(), Error> {
        let started = Instant::now();
        loop {
            let all = self.described().await?;
            let mut led: BTreeMap<u64, usize> = BTreeMap::new();
            for partition in &all {
                *led.entry(partition.leader_node).or_default() += 1;
            }
            if led.len() == 1 && !led.contains_key(&0) {
                return Ok(());
            }
            if started.elapsed() > GIVE_UP {
                return Err(Error::new(format!("the leaders cannot be brought to one node: {led:?}")));
            }
            let fit = led.iter().filter(|(node, _)| **node != 0 && self.fit(**node));
            if let Some((node, _)) = fit.max_by_key(|(_, count)| **count) {
                let elsewhere = all.iter().filter(|partition| partition.leader_node != *node);
                // A refusal passes: the next round asks again.
                join_all(elsewhere.map(|partition| self.hand_over(partition.partition, *node))).await;
            }
            tokio::time::sleep(POLL * 4).await;
        }
    }

    pub(super) async fn hand_over(&self, partition: u32, to: u64) -> Result<(), quorate_client::Refusal> {
        let admin = self.bench.client.admin();
        admin.handoff(&self.bench.topic, PartitionNo(partition), &to.to_string(), false).await.map(drop)
    }

    /// Waits until the leader has run for a while since it was last killed: a supervisor starts a process that dies again and
    /// again ever later.
    pub(super) async fn rested(&self) -> Result<(), Error> {
        while self.settings.fault.kills_leader() {
            let leader = self.bench.view.leader(&self.bench.topic, 0).await?;
            if self.harmed.get(&leader).is_none_or(|at| at.elapsed() > RESTED) {
                break;
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    fn fit(&self, node: u64) -> bool {
        self.harmed.get(&node).is_none_or(|at| at.elapsed() > FIT_AGAIN)
    }

    /// The node to hand over to: the next one by number that is fit, and where targets are harmed the one that has had the longest
    /// time to recover, once it has. `None` where nothing is handed over.
    pub(super) async fn unharmed_target(&self) -> Result<Option<u64>, Error> {
        if !self.settings.fault.planned() {
            return Ok(None);
        }
        let mut waiting = false;
        loop {
            // Looked up anew each time: meanwhile the leader may move.
            let partition = self.bench.view.healthy(&self.bench.topic, 0).await?;
            let nodes: Vec<u64> = partition.replicas.iter().map(|replica| replica.node).collect();
            let at = nodes.iter().position(|node| *node == partition.leader_node).unwrap_or_default();
            let others: Vec<u64> = (1..nodes.len()).map(|step| nodes[(at + step) % nodes.len()]).collect();
            let rested = |node: &&u64| self.harmed.get(node).map_or(Duration::MAX, Instant::elapsed);
            let chosen = match self.settings.fault {
                Fault::Handoff => others.iter().find(|node| self.fit(**node)).or(others.first()),
                // The first of several that never were harmed.
                _ => others.iter().rev().max_by_key(rested),
            };
            let chosen = *chosen.ok_or_else(|| Error::new("the partition has one replica: nothing to hand over to"))?;
            if self.fit(chosen) {
                return Ok(Some(chosen));
            }
            if !waiting {
                (self.tell)("waiting until a node is fit to be a handoff's target again: 30 s after its last fault");
            }
            waiting = true;
            tokio::time::sleep(POLL).await;
        }
    }
}
