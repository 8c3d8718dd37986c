//! What the observers say of a cluster.

use std::time::Instant;

use quorate_client::{Client, PartitionNo};
use quorate_proto::v1::{NodeDescription, PartitionDescription};

use super::{POLL, WAIT_LIMIT};
use crate::proc::ProcessId;
use crate::Error;

/// A client of the cluster with these observers.
///
/// # Errors
/// No observer answers.
pub async fn connect(observers: &[String]) -> Result<Client, Error> {
    Client::builder()
        .observers(observers.iter().cloned())
        .client_id("chaos")
        .build()
        .await
        .map_err(|e| Error::new(e.to_string()))
}

/// Questions about a running cluster, wherever it came from.
#[derive(Clone, Debug)]
pub struct View {
    client: Client,
}

impl View {
    /// Through this client.
    #[must_use]
    pub fn new(client: &Client) -> Self {
        Self { client: client.clone() }
    }

    /// All nodes.
    ///
    /// # Errors
    /// The observers do not answer.
    pub async fn nodes(&self) -> Result<Vec<NodeDescription>, Error> {
        let list = self.client.admin().list_nodes().await.map_err(|r| Error::new(format!("node list: {r}")))?;
        Ok(list.nodes)
    }

    /// The process of a node, on this host.
    ///
    /// # Errors
    /// Unknown node, or no process id known.
    pub async fn pid(&self, role: &str, id: u64) -> Result<ProcessId, Error> {
        let nodes = self.nodes().await?;
        nodes
            .iter()
            .find(|node| node.role == role && node.id == id)
            .filter(|node| node.pid != 0)
            .map(|node| ProcessId(node.pid))
            .ok_or_else(|| Error::new(format!("no process of {role} {id} is known")))
    }

    /// The supervisor of a data node's process: its parent.
    ///
    /// # Errors
    /// The process is gone.
    pub async fn supervisor(&self, id: u64) -> Result<ProcessId, Error> {
        let node = self.pid("server", id).await?;
        supervisor_of(node).ok_or_else(|| Error::new(format!("node {id} ({node}) has no supervisor as its parent")))
    }

    /// Every process of the cluster on this host, with its role: `server`, `supervisor`, `observer`.
    ///
    /// # Errors
    /// The observers do not answer.
    pub async fn processes(&self) -> Result<Vec<(&'static str, ProcessId)>, Error> {
        let mut all = Vec::new();
        for node in self.nodes().await? {
            let pid = ProcessId(node.pid);
            if !pid.alive() {
                continue;
            }
            let server = node.role == "server";
            all.push((if server { "server" } else { "observer" }, pid));
            if server {
                all.extend(supervisor_of(pid).map(|pid| ("supervisor", pid)));
            }
        }
        Ok(all)
    }

    /// One partition.
    ///
    /// # Errors
    /// The observers do not answer.
    pub async fn partition(&self, topic: &str, partition: u32) -> Result<PartitionDescription, Error> {
        self.client
            .admin()
            .describe_partition(topic, PartitionNo(partition))
            .await
            .map_err(|r| Error::new(format!("partition describe {topic}/{partition}: {r}")))
    }

    /// The node that leads a partition, waiting for one.
    ///
    /// # Errors
    /// None leads within a minute.
    pub async fn leader(&self, topic: &str, partition: u32) -> Result<u64, Error> {
        let found = self.wait(topic, partition, "a leader", |d| d.leader_node != 0).await?;
        Ok(found.leader_node)
    }

    /// Waits until all replicas of a partition follow its leader closely and every node is up.
    ///
    /// # Errors
    /// Not within a minute.
    pub async fn healthy(&self, topic: &str, partition: u32) -> Result<PartitionDescription, Error> {
        let whole = |d: &PartitionDescription| {
            let leads = d.replicas.iter().filter(|r| r.state == "leader").count() == 1;
            let follows = d.replicas.iter().all(|r| r.state == "leader" || r.state == "follower");
            // Reports are up to one heartbeat old, so a busy partition's followers seem a little behind.
            leads && follows && d.authoritative && d.replicas.iter().all(|r| r.lag < 5_000)
        };
        let found = self.wait(topic, partition, "three healthy replicas", whole).await?;
        let started = Instant::now();
        loop {
            let nodes = self.nodes().await?;
            if nodes.iter().all(|node| node.health == "up") {
                return Ok(found);
            }
            if started.elapsed() > WAIT_LIMIT {
                return Err(Error::new(format!("not every node is up: {nodes:?}")));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn wait(
        &self,
        topic: &str,
        partition: u32,
        what: &str,
        reached: impl Fn(&PartitionDescription) -> bool,
    ) -> Result<PartitionDescription, Error> {
        let started = Instant::now();
        loop {
            let last = self.partition(topic, partition).await;
            match last {
                Ok(description) if reached(&description) => return Ok(description),
                _ if started.elapsed() > WAIT_LIMIT => {
                    return Err(Error::new(format!("{topic}/{partition} has not {what}: {last:?}")));
                }
                _ => tokio::time::sleep(POLL).await,
            }
        }
    }
}

/// The parent of a node's process, if it runs the same program: an orphan's parent is none of ours.
fn supervisor_of(node: ProcessId) -> Option<ProcessId> {
    let program = |pid: ProcessId| std::fs::read_link(format!("/proc/{}/exe", pid.0)).ok();
    let parent = node.stat().ok()?.parent;
    (program(parent)? == program(node)?).then_some(parent)
}
