//! `bench quiet`: nothing is wrong, under a small load; whoever suspects anybody here would do so in production.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use quorate_proto::v1::PartitionDescription;
use serde::Serialize;

use super::{Bench, Report, Target, Tell};
use crate::load::{OpenLoop, Shape};
use crate::reader::ends;
use crate::slo;
use crate::volume::Volume;
use crate::Error;

/// What weighs on healthy hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Burden {
    /// Nothing.
    None,
    /// Two threads for each processor do nothing but spin.
    Processors,
    /// The file system of every log, observers' too, is frozen for 200 ms again and again: a flush waits for its end.
    Flushes,
}

impl Burden {
    /// As on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Processors => "processors",
            Self::Flushes => "flushes",
        }
    }
}

/// How long a log's file system stands still at a time …
const FROZEN: Duration = Duration::from_millis(200);
/// … and how long it works in between.
const THAWED: Duration = Duration::from_millis(10);
/// Between two words of progress.
const TELL: Duration = Duration::from_secs(60);
/// Spinning threads for each processor.
const SPINNERS: usize = 2;
/// More records than any list holds.
const ALL: u32 = 1_000;

/// What to measure.
#[derive(Clone, Debug)]
pub struct QuietSettings {
    /// How long.
    pub time: Duration,
    /// What weighs on the hosts.
    pub burden: Burden,
    /// Partitions of the topic.
    pub partitions: u32,
    /// Records a second over all partitions.
    pub rate: f64,
    /// Bytes of a payload.
    pub size: usize,
}

/// What was noticed although nothing was wrong.
#[derive(Clone, Debug, Default, Serialize)]
pub struct QuietFigures {
    /// Length of the watch, seconds.
    pub quiet_s: f64,
    /// Failovers that the observers recorded meanwhile, those that were withdrawn among them. There was no reason for any.
    pub failovers: usize,
    /// Those of them in which the observers guessed wrong ([`slo::is_false`]); the others were asked for by a fact, such as a
    /// flush that hung because the disk was busy.
    pub false_failovers: usize,
    /// Partitions that another replica leads, or the same one in another term, than at the start.
    pub leaders_changed: usize,
    /// Processes that are not the ones of the start.
    pub restarts: usize,
    /// Under the burden of flushes: how often a file system stood still.
    pub freezes: u64,
    /// Longest time for which one stood still, with the freezing and thawing, ms: more than 200 is the disk's own trouble.
    pub longest_freeze_ms: f64,
}

impl QuietFigures {
    /// Nobody was suspected and nothing moved.
    #[must_use]
    pub fn calm(&self) -> bool {
        self.failovers == 0 && self.leaders_changed == 0 && self.restarts == 0
    }
}

/// Watches a cluster that nobody harms.
///
/// # Errors
/// The cluster cannot be used at all; file systems cannot be frozen here.
pub async fn quiet(target: Target, settings: &QuietSettings, tell: Tell<'_>) -> Result<Report, Error> {
    let partitions = settings.partitions;
    let bench = match settings.burden {
        Burden::Flushes => Bench::prepare_on_volumes(target, partitions, tell).await?,
        Burden::None | Burden::Processors => Bench::prepare(target, partitions, tell).await?,
    };
    let from = ends(&bench.client, &bench.topic).await?;
    let shape = Shape::one_producer(&bench.topic, bench.run, settings.size);
    let load = OpenLoop::start(&bench.client, shape, settings.rate, None).await?;
    let run = load.run.clone();
    let before = Standing::of(&bench, partitions).await?;
    let weight = Weight::put(settings.burden, &bench)?;
    let watched = watch(settings.time, tell, || run.look().ledger.acknowledged()).await;
    // What weighs is lifted before anybody is asked.
    let (freezes, longest) = weight.lift();
    let after = Standing::of(&bench, partitions).await?;
    let took = run.now();
    drop(run);
    let progress = load.stop().await?;
    let mut report = Report::new("quiet");
    report.set("burden", settings.burden.name());
    report.set("partitions", partitions);
    report.set("rate", settings.rate);
    report.set("size", settings.size);
    report.rates(progress.ledger.acknowledged(), settings.size, took, None);
    tell("reading everything back");
    bench.audit(&from, progress, &mut report).await?;
    let figures = QuietFigures {
        quiet_s: watched.as_secs_f64().round(),
        failovers: after.failovers_since(&before).count(),
        false_failovers: after.failovers_since(&before).filter(|failover| failover.wrong).count(),
        leaders_changed: before.partitions.iter().zip(&after.partitions).filter(|(a, b)| led(a) != led(b)).count(),
        restarts: after.processes.iter().filter(|process| !before.processes.contains(process)).count(),
        freezes,
        longest_freeze_ms: crate::measure::ms(longest),
    };
    report.findings.extend(after.complaints(&before));
    report.quiet = Some(figures);
    Ok(report)
}

async fn watch(time: Duration, tell: Tell<'_>, acknowledged: impl Fn() -> u64) -> Duration {
    let began = Instant::now();
    while let Some(left) = time.checked_sub(began.elapsed()).filter(|left| !left.is_zero()) {
        tokio::time::sleep(left.min(TELL)).await;
        tell(&format!("{} of {} s, {} acknowledged", began.elapsed().as_secs(), time.as_secs(), acknowledged()));
    }
    began.elapsed()
}

fn led(partition: &PartitionDescription) -> (u64, u64) {
    (partition.leader_node, partition.term)
}

/// Who leads, who runs, and what the observers have on record.
struct Standing {
    partitions: Vec<PartitionDescription>,
    processes: Vec<(String, u64, u32)>,
    failovers: Vec<Recorded>,
}

/// A failover on record.
struct Recorded {
    id: u64,
    wrong: bool,
    text: String,
}

impl Standing {
    async fn of(bench: &Bench, partitions: u32) -> Result<Self, Error> {
        let mut all = Vec::new();
        for number in 0..partitions {
            all.push(bench.view.healthy(&bench.topic, number).await?);
        }
        let nodes = bench.view.nodes().await?;
        let processes = nodes.iter().map(|node| (node.role.clone(), node.id, node.pid)).collect();
        let recorded = bench.client.admin().list_failovers(ALL).await;
        let recorded = recorded.map_err(|r| Error::new(format!("failovers: {r}")))?;
        let unplanned = recorded.failovers.iter().filter(|failover| failover.cause != slo::HANDOFF);
        let described = unplanned.map(|failover| {
            let how = if failover.withdrawn { ", withdrawn" } else { "" };
            let text = format!("{}/{}: {}{how}", failover.topic, failover.partition, failover.cause);
            Recorded { id: failover.id, wrong: slo::is_false(failover), text }
        });
        let failovers = described.collect();
        Ok(Self { partitions: all, processes, failovers })
    }

    fn failovers_since<'a>(&'a self, before: &Self) -> impl Iterator<Item = &'a Recorded> + use<'a> {
        let last = before.failovers.iter().map(|failover| failover.id).max().unwrap_or_default();
        self.failovers.iter().filter(move |failover| failover.id > last)
    }

    /// What happened since, for people.
    fn complaints(&self, before: &Self) -> Vec<String> {
        let failovers = self.failovers_since(before).map(|failover| format!("failover of {}", failover.text));
        let moved = before.partitions.iter().zip(&self.partitions).filter(|(a, b)| led(a) != led(b)).map(|(a, b)| {
            let (was, is) = (led(a), led(b));
            format!("partition {}: node {} in term {}, now node {} in term {}", a.partition, was.0, was.1, is.0, is.1)
        });
        failovers.chain(moved).collect()
    }
}

/// What weighs on the hosts, until it is lifted.
struct Weight {
    over: Arc<AtomicBool>,
    spinners: Vec<JoinHandle<()>>,
    freezers: Vec<JoinHandle<(u64, Duration)>>,
}

impl Weight {
    fn put(burden: Burden, bench: &Bench) -> Result<Self, Error> {
        let over = Arc::new(AtomicBool::new(false));
        let (mut spinners, mut freezers) = (Vec::new(), Vec::new());
        let failed = |e: std::io::Error| Error::new(format!("no thread for the burden: {e}"));
        match burden {
            Burden::None => {}
            Burden::Processors => {
                let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
                for _ in 0..cpus * SPINNERS {
                    let over = over.clone();
                    let spin = move || while !over.load(Ordering::Relaxed) {};
                    spinners.push(std::thread::Builder::new().name("burden".to_owned()).spawn(spin).map_err(failed)?);
                }
            }
            Burden::Flushes => {
                for volume in bench.log_volumes() {
                    let over = over.clone();
                    let freeze = move || freeze_again_and_again(&volume, &over);
                    freezers.push(std::thread::Builder::new().name("burden".to_owned()).spawn(freeze).map_err(failed)?);
                }
            }
        }
        Ok(Self { over, spinners, freezers })
    }

    /// How often file systems stood still, and the longest time.
    fn lift(mut self) -> (u64, Duration) {
        self.over.store(true, Ordering::Relaxed);
        for spinner in self.spinners.drain(..) {
            let _ = spinner.join();
        }
        let all = self.freezers.drain(..).filter_map(|freezer| freezer.join().ok());
        all.fold((0, Duration::ZERO), |(n, longest), (m, one)| (n + m, longest.max(one)))
    }
}

impl Drop for Weight {
    /// Also when the watch broke off: threads that spin end.
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

fn freeze_again_and_again(volume: &Volume, over: &AtomicBool) -> (u64, Duration) {
    let (mut times, mut longest) = (0, Duration::ZERO);
    while !over.load(Ordering::Relaxed) {
        let began = Instant::now();
        if volume.freeze().is_ok() {
            std::thread::sleep(FROZEN);
            times += 1;
        }
        let _ = volume.thaw();
        longest = longest.max(began.elapsed());
        std::thread::sleep(THAWED);
    }
    (times, longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anything_that_moved_is_no_calm() {
        let calm = QuietFigures { quiet_s: 1_800.0, freezes: 9, ..QuietFigures::default() };
        assert!(calm.calm());
        assert!(!QuietFigures { failovers: 1, ..calm.clone() }.calm());
        assert!(!QuietFigures { leaders_changed: 1, ..calm.clone() }.calm());
        assert!(!QuietFigures { restarts: 1, ..calm }.calm());
    }
}
