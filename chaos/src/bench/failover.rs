//! `bench failover`: faults under an open-loop load; the gap is what a client sees.

use std::collections::BTreeMap;
use std::time::Duration;

use quorate_client::PartitionNo;
use quorate_proto::v1::{Failover, PartitionDescription};

use super::{Bench, FailoverFigures, Report, Target, Tell};
use crate::cluster::View;
use crate::load::{OpenLoop, Run, Shape, KEYS};
use crate::measure::{ms, Repeats};
use crate::proc::ProcessId;
use crate::reader::ends;
use crate::Error;

/// What is done to the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `kill -9` of the leader's node process; its supervisor lives.
    Kill,
    /// `kill -9` of both.
    KillWithSupervisor,
    /// `kill -9` of the observer leader.
    ObserverLeader,
    /// `kill -9` of an observer that does not lead.
    Observer,
    /// The disk of the leader's write-ahead log hangs (B4): its file system is frozen. On a private cluster only.
    Hang,
    /// No fault: a planned handoff to the next replica (H1).
    Handoff,
}

impl Fault {
    /// As on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::KillWithSupervisor => "kill-with-supervisor",
            Self::ObserverLeader => "observer-leader",
            Self::Observer => "observer",
            Self::Hang => "hang",
            Self::Handoff => "handoff",
        }
    }
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct FailoverSettings {
    /// The fault.
    pub fault: Fault,
    /// How often.
    pub repeat: u32,
    /// Records a second meanwhile.
    pub rate: f64,
    /// Bytes of a payload.
    pub size: usize,
}

/// Load before the first fault and after each, so that a gap has two ends.
const CALM: Duration = Duration::from_secs(2);
/// The gap has ended when acknowledgements came for this long after the fault's gap.
const SETTLED: Duration = Duration::from_secs(1);
/// Pause after a handoff that was refused: a target is fit again 30 s after its last fault.
const UNFIT: Duration = Duration::from_secs(5);
/// Beyond every objective: an unfinished failover is an error of the cluster.
const GIVE_UP: Duration = Duration::from_secs(60);

/// One fault that counted.
struct Measured {
    gap: Duration,
    phases: Option<Failover>,
}

/// Measures. A fault before which the leader had moved is void and repeated.
///
/// # Errors
/// The cluster cannot be used at all, or does not come back.
pub async fn failover(target: Target, settings: &FailoverSettings, tell: Tell<'_>) -> Result<Report, Error> {
    let bench = if settings.fault == Fault::Hang {
        Bench::prepare_on_volumes(target, 1, tell).await?
    } else {
        Bench::prepare(target, 1, tell).await?
    };
    let from = ends(&bench.client, &bench.topic).await?;
    let shape = Shape {
        topic: bench.topic.clone(),
        run: bench.run,
        producers: 1,
        keys: KEYS,
        size: settings.size,
        idempotency_keys: true,
    };
    let load = OpenLoop::start(&bench.client, shape, settings.rate, None).await?;
    let run = load.run.clone();
    tokio::time::sleep(CALM).await;
    let mut measured = Vec::new();
    let mut void = 0;
    while measured.len() < settings.repeat as usize {
        match one(&bench, &run, settings.fault, tell).await? {
            Some(one) => {
                let number = measured.len() + 1;
                tell(&format!("{number}/{}: gap {} ms", settings.repeat, ms(one.gap)));
                measured.push(one);
            }
            None => {
                void += 1;
                tell("void: the leader moved before the fault, or nothing was done");
                if void > settings.repeat + 3 {
                    return Err(Error::new("leaders move by themselves: nothing to measure"));
                }
            }
        }
    }
    let took = run.now();
    drop(run);
    let progress = load.stop().await?;
    let planned = settings.fault == Fault::Handoff;
    let mut report = Report::new(if planned { "handoff" } else { "failover" });
    report.set("fault", settings.fault.name());
    report.set("repeat", settings.repeat);
    report.set("rate", settings.rate);
    report.set("size", settings.size);
    report.rates(progress.ledger.acknowledged(), settings.size, took, None);
    let resent = progress.resent;
    tell("reading everything back");
    bench.audit(&from, progress, &mut report).await?;
    report.failover = Some(figures(&measured, void, report.audit.refused + report.audit.unresolved, resent));
    Ok(report)
}

async fn one(bench: &Bench, run: &Run, fault: Fault, tell: Tell<'_>) -> Result<Option<Measured>, Error> {
    let whole = bench.view.healthy(&bench.topic, 0).await?;
    tokio::time::sleep(CALM).await;
    let victims = victims(&bench.view, whole.leader_node, fault).await?;
    let now = bench.view.partition(&bench.topic, 0).await?;
    if (now.leader_node, now.term) != (whole.leader_node, whole.term) {
        return Ok(None);
    }
    let known = newest_failover(bench, whole.group_id).await?.map_or(0, |failover| failover.id);
    let whom: Vec<String> = victims.iter().map(|victim| format!("process {}", victim.0)).collect();
    tell(&format!("{} {} (leader: {})", fault.name(), whom.join(", "), whole.leader));
    let at = {
        let mut progress = run.look();
        progress.timeline.forget_gap();
        run.now()
    };
    for victim in &victims {
        victim.kill().map_err(|e| Error::new(format!("kill -9 {victim}: {e}")))?;
    }
    let hanging = if fault == Fault::Hang { Some(bench.log_volume(whole.leader_node)?) } else { None };
    if let Some(volume) = hanging {
        volume.freeze()?;
    }
    if fault == Fault::Handoff {
        let next = next_replica(&whole);
        let moved = bench.client.admin().handoff(&bench.topic, PartitionNo(0), &next, false).await;
        if let Err(refusal) = moved {
            // Nothing was handed over: the target was not fit for it, and that passes.
            tell(&format!("void: handoff to node {next}: {refusal}"));
            tokio::time::sleep(UNFIT).await;
            return Ok(None);
        }
    }
    let gap = wait_for_gap(run, at).await;
    if let Some(volume) = hanging {
        volume.thaw()?;
    }
    let gap = gap?;
    // An observer's death moves no leader.
    let moved = !matches!(fault, Fault::ObserverLeader | Fault::Observer);
    let phases = if moved { wait_for_phases(bench, whole.group_id, known).await? } else { None };
    Ok(Some(Measured { gap, phases }))
}

async fn victims(view: &View, leader: u64, fault: Fault) -> Result<Vec<ProcessId>, Error> {
    match fault {
        Fault::Kill => Ok(vec![view.pid("server", leader).await?]),
        Fault::Handoff | Fault::Hang => Ok(Vec::new()),
        // The supervisor first: it must not see its child die.
        Fault::KillWithSupervisor => Ok(vec![view.supervisor(leader).await?, view.pid("server", leader).await?]),
        Fault::ObserverLeader => observer(view, "leader").await,
        Fault::Observer => observer(view, "follower").await,
    }
}

/// The process of an observer in this state.
async fn observer(view: &View, state: &str) -> Result<Vec<ProcessId>, Error> {
    let nodes = view.nodes().await?;
    let found = nodes.iter().find(|node| node.role == "observer" && node.state == state && node.pid != 0);
    found.map(|node| vec![ProcessId(node.pid)]).ok_or_else(|| Error::new(format!("no observer is known as {state}")))
}

/// The node after the leader's in the list of replicas, by number.
fn next_replica(partition: &PartitionDescription) -> String {
    let nodes: Vec<u64> = partition.replicas.iter().map(|replica| replica.node).collect();
    let at = nodes.iter().position(|node| *node == partition.leader_node).unwrap_or_default();
    nodes.get((at + 1) % nodes.len().max(1)).copied().unwrap_or_default().to_string()
}

/// The longest pause that ended after the fault, once acknowledgements have come for a while again.
async fn wait_for_gap(run: &Run, fault_at: Duration) -> Result<Duration, Error> {
    loop {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let now = run.now();
        let progress = run.look();
        let gap = progress.timeline.longest_gap();
        let last = progress.timeline.last_ack().unwrap_or_default();
        let going_on = last > fault_at && now.saturating_sub(last) < Duration::from_millis(200);
        if going_on && now > fault_at + SETTLED && now > gap.to + SETTLED {
            return Ok(gap.length());
        }
        if now > fault_at + GIVE_UP {
            let failures = progress.failures.join("\n");
            return Err(Error::new(format!("no acknowledgement for {GIVE_UP:?} after the fault\n{failures}")));
        }
    }
}

async fn newest_failover(bench: &Bench, group: u64) -> Result<Option<Failover>, Error> {
    let all =
        bench.client.admin().list_failovers(50).await.map_err(|refusal| Error::new(format!("failovers: {refusal}")))?;
    let all = all.failovers.into_iter().rev();
    Ok(all.into_iter().find(|failover| failover.group_id == group && !failover.withdrawn))
}

/// The record of this failover; it is written after the first acknowledgement.
async fn wait_for_phases(bench: &Bench, group: u64, known: u64) -> Result<Option<Failover>, Error> {
    for _ in 0..250 {
        if let Some(failover) = newest_failover(bench, group).await? {
            if failover.id > known {
                return Ok(Some(failover));
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(None)
}

fn figures(measured: &[Measured], void: u32, failed: u64, resent: u64) -> FailoverFigures {
    let mut phases: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    let mut sums = Vec::new();
    for failover in measured.iter().filter_map(|one| one.phases.as_ref()) {
        let mut sum = Duration::ZERO;
        for phase in &failover.phases {
            let span = Duration::from_micros(phase.duration_us);
            sum += span;
            phases.entry(phase.name.clone()).or_default().push(ms(span));
        }
        sums.push(ms(sum));
    }
    FailoverFigures {
        repeats: u32::try_from(measured.len()).unwrap_or(u32::MAX),
        void,
        gap_ms: Repeats::new(measured.iter().map(|one| ms(one.gap)).collect()),
        failed,
        resent,
        phases_ms: phases.into_iter().map(|(name, all)| (name, Repeats::new(all).p50)).collect(),
        phases_sum_ms: sums,
    }
}
