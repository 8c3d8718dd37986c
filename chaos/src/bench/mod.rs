//! Benchmarks: a load, an audit of every record, and figures beside the machine's own limits.

mod failover;
mod fault;
pub mod plot;
mod publish;
mod quiet;
mod report;
mod steady;
pub mod timelines;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use quorate_client::{Client, Reason};
use rand::Rng;

pub use failover::{failover, FailoverSettings};
pub use fault::{Fault, Ground};
pub use publish::{publish, PublishSettings};
pub use quiet::{quiet, Burden, QuietFigures, QuietSettings};
pub use report::{FailoverFigures, Report};
pub use steady::{steady, SteadySettings};

use crate::cluster::{connect, Cluster, View};
use crate::layout::{Files, NODES};
use crate::load::Progress;
use crate::network::Networks;
use crate::probe::{machine, Machine};
use crate::proc::{cpu_by_thread, cpu_of, ProcessId};
use crate::reader::{read_back, Positions};
use crate::volume::{unavailable, Volume};
use crate::Error;

/// Which cluster to measure.
#[derive(Clone, Debug)]
pub enum Target {
    /// One that runs already, by its observers.
    Running(Vec<String>),
    /// A private one of this binary, in a temporary directory, gone afterwards.
    Private(PathBuf),
}

/// Where progress is told; nothing of it is part of the result.
pub type Tell<'a> = &'a (dyn Fn(&str) + Sync);

/// A cluster to measure, with a client and a topic of its own.
pub struct Bench {
    /// Client of the load.
    pub client: Client,
    /// Looks at the cluster.
    pub view: View,
    /// The topic, made for this benchmark.
    pub topic: String,
    /// Number of the run.
    pub run: u64,
    /// The machine's limits.
    pub machine: Machine,
    observers: Vec<String>,
    cluster: Option<Cluster>,
}

/// MiB of a log on a file system of its own.
const LOG_VOLUME: u64 = 256;

impl Bench {
    /// Measures the machine, connects or starts a cluster, makes a topic and waits until it is whole.
    ///
    /// # Errors
    /// Whatever fails of it.
    pub async fn prepare(target: Target, partitions: u32, tell: Tell<'_>) -> Result<Self, Error> {
        match target {
            Target::Running(observers) => Self::prepare_with(observers, None, partitions, tell).await,
            Target::Private(binary) => {
                Self::prepare_private(move || Cluster::start_with(&binary, "2s"), partitions, tell).await
            }
        }
    }

    /// The same with the write-ahead log of each data node and observer on a file system of its own, which can be frozen.
    ///
    /// # Errors
    /// It is not a private cluster, this process may not mount, or whatever fails of it.
    pub async fn prepare_on_volumes(target: Target, partitions: u32, tell: Tell<'_>) -> Result<Self, Error> {
        let Target::Private(binary) = target else {
            let what = "a disk that hangs needs a private cluster, whose logs lie on file systems of their own";
            return Err(Error::new(format!("{what}: stop the running one, or name no observers")));
        };
        if let Some(why) = unavailable() {
            return Err(Error::new(format!("a disk cannot be made to hang here: {why}")));
        }
        let mount = |files: &Files| {
            let nodes = (1..=NODES).map(|id| format!("node-{id}"));
            let all = nodes.chain((1..=NODES).map(|id| format!("observer-{id}")));
            all.map(|name| Volume::on_disk(&files.data(&name).join("wal"), LOG_VOLUME).map(Arc::new)).collect()
        };
        Self::prepare_private(move || Cluster::start_on(&binary, "2s", mount), partitions, tell).await
    }

    /// The same with each data node on a network host of its own, which can be cut off.
    ///
    /// # Errors
    /// It is not a private cluster, this process may not make networks or is not in one of its own, or whatever fails of
    /// it.
    pub async fn prepare_on_networks(target: Target, partitions: u32, tell: Tell<'_>) -> Result<Self, Error> {
        let Target::Private(binary) = target else {
            let what = "a host that is cut off needs a private cluster, whose nodes are in networks of their own";
            return Err(Error::new(format!("{what}: stop the running one, or name no observers")));
        };
        Self::prepare_private(move || Cluster::start_on_networks(&binary, "2s"), partitions, tell).await
    }

    /// The private cluster's disk, else the disk that the user works on.
    #[must_use]
    pub fn place(&self) -> &Path {
        place_of(self.cluster.as_ref())
    }

    /// The networks of the data nodes.
    ///
    /// # Errors
    /// They have none of their own.
    pub fn networks(&self) -> Result<&Networks, Error> {
        let networks = self.cluster.as_ref().and_then(Cluster::networks);
        networks.ok_or_else(|| Error::new("the data nodes have no networks of their own"))
    }

    /// The private cluster, to be given back by [`Self::put_cluster`].
    ///
    /// # Errors
    /// It is none.
    pub fn take_cluster(&mut self) -> Result<Cluster, Error> {
        self.cluster.take().ok_or_else(|| Error::new("this is no private cluster"))
    }

    /// Gives the private cluster back.
    pub fn put_cluster(&mut self, cluster: Cluster) {
        self.cluster = Some(cluster);
    }

    /// The file system of a data node's log.
    ///
    /// # Errors
    /// It has none of its own.
    pub fn log_volume(&self, node: u64) -> Result<&Volume, Error> {
        let volumes = self.cluster.as_ref().map(Cluster::volumes).unwrap_or_default();
        let volume = usize::try_from(node).ok().and_then(|node| volumes.get(node.checked_sub(1)?));
        volume
            .map(Arc::as_ref)
            .ok_or_else(|| Error::new(format!("the log of node {node} has no file system of its own")))
    }

    /// The file systems of all logs that have one of their own.
    #[must_use]
    pub fn log_volumes(&self) -> Vec<Arc<Volume>> {
        self.cluster.as_ref().map(|cluster| cluster.volumes().to_vec()).unwrap_or_default()
    }

    async fn prepare_private(
        start: impl FnOnce() -> Result<Cluster, Error> + Send + 'static,
        partitions: u32,
        tell: Tell<'_>,
    ) -> Result<Self, Error> {
        tell("starting a private cluster");
        let started = tokio::task::spawn_blocking(start).await;
        let started = started.map_err(|e| Error::new(format!("starting the cluster: {e}")))??;
        Self::prepare_with(started.observers(), Some(started), partitions, tell).await
    }

    async fn prepare_with(
        observers: Vec<String>,
        cluster: Option<Cluster>,
        partitions: u32,
        tell: Tell<'_>,
    ) -> Result<Self, Error> {
        tell("measuring the machine's limits");
        let machine = machine(place_of(cluster.as_ref())).await?;
        let client = connect(&observers).await?;
        let run: u64 = rand::rng().random();
        let topic = format!("bench-{run:016x}");
        create_topic(&client, &topic, partitions).await?;
        let view = View::new(&client);
        for partition in 0..partitions {
            view.healthy(&topic, partition).await?;
        }
        Ok(Self { client, view, topic, run, machine, observers, cluster })
    }

    /// Reads everything back through a client of its own and closes the account into `report`.
    ///
    /// # Errors
    /// The topic cannot be read.
    pub async fn audit(&self, from: &Positions, progress: Progress, report: &mut Report) -> Result<(), Error> {
        let Progress { mut ledger, latency, timeline, failures, .. } = progress;
        let reader = connect(&self.observers).await?;
        let to_end = read_back(&reader, &self.topic, from, &mut ledger).await?;
        let (audit, complaints) = ledger.close(to_end);
        report.audit = audit;
        report.findings.extend(failures);
        report.findings.extend(complaints);
        report.latency_ms = latency.summary();
        report.zero_ack_seconds = timeline.zero_ack_seconds();
        report.longest_gap_ms = crate::measure::ms(timeline.longest_gap().length());
        report.timeline = timeline.seconds().to_vec();
        report.machine = self.machine;
        Ok(())
    }

    /// Starts to count what all processes spend.
    ///
    /// # Errors
    /// The observers do not answer.
    pub async fn meter(&self) -> Result<Meter, Error> {
        let mut pids = vec![("client", ProcessId::own())];
        for (role, pid) in self.view.processes().await? {
            pids.push((role, pid));
        }
        let before = Spent::now(&pids);
        Ok(Meter { pids, before })
    }
}

fn place_of(cluster: Option<&Cluster>) -> &Path {
    cluster.map_or_else(|| Path::new("."), |cluster| cluster.files().root.as_path())
}

async fn create_topic(client: &Client, topic: &str, partitions: u32) -> Result<(), Error> {
    match client.admin().create_topic(topic, partitions).await {
        Ok(_) => Ok(()),
        Err(refusal) if refusal.reason == Reason::AlreadyExists => Ok(()),
        Err(refusal) => Err(Error::new(format!("cannot create topic {topic}: {refusal}"))),
    }
}

/// CPU time and bytes written of the cluster's processes and this one, from one moment to another.
#[derive(Debug)]
pub struct Meter {
    pids: Vec<(&'static str, ProcessId)>,
    before: Spent,
}

/// What processes have used up.
#[derive(Clone, Debug, Default)]
pub struct Spent {
    /// CPU time of all.
    pub cpu: Duration,
    /// Bytes that they caused to be written to storage.
    pub written: u64,
    /// CPU time by `role/thread name`, equal names together.
    pub threads: BTreeMap<String, Duration>,
}

impl Spent {
    fn now(pids: &[(&'static str, ProcessId)]) -> Self {
        let mut spent = Self::default();
        for (role, pid) in pids {
            spent.cpu += cpu_of(&[*pid]);
            spent.written += written_by(*pid);
            for (thread, cpu) in cpu_by_thread(*pid) {
                *spent.threads.entry(format!("{role}/{thread}")).or_default() += cpu;
            }
        }
        spent
    }
}

impl Meter {
    /// What was spent since the start.
    #[must_use]
    pub fn read(&self) -> Spent {
        let mut spent = Spent::now(&self.pids);
        spent.cpu = spent.cpu.saturating_sub(self.before.cpu);
        spent.written = spent.written.saturating_sub(self.before.written);
        for (thread, cpu) in &mut spent.threads {
            let before = self.before.threads.get(thread).copied().unwrap_or_default();
            *cpu = cpu.saturating_sub(before);
        }
        spent
    }
}

/// Bytes that a process caused to be written to storage.
fn written_by(pid: ProcessId) -> u64 {
    let read = || -> Option<u64> {
        let text = std::fs::read_to_string(format!("/proc/{}/io", pid.0)).ok()?;
        text.lines().find_map(|line| line.strip_prefix("write_bytes: "))?.trim().parse().ok()
    };
    read().unwrap_or_default()
}
