//! Faults, done and undone.

use std::time::{Duration, Instant};

use futures::future::join_all;
use quorate_client::Reason;
use rustix::process::Signal;
use rustix::time::{clock_gettime, ClockId};

use super::calm::Stage;
use super::{Fault, Series};
use crate::network::Cut;
use crate::proc::ProcessId;
use crate::Error;

/// When, after a handoff is asked for, its target is hit: one after the other, so that every step of it is.
const HITS: [Duration; 5] = [
    Duration::from_millis(5),
    Duration::from_millis(8),
    Duration::from_millis(11),
    Duration::from_millis(15),
    Duration::from_millis(20),
];
/// A target that was hit before the observers looked at the request makes all that follow come later by this.
const LATER: Duration = Duration::from_millis(3);

/// A refusal by the rules of H1 comes at once; one that takes longer tells how a handoff ended that had begun.
const GATE: Duration = Duration::from_millis(300);

/// Whom a fault is going to hit.
pub(super) struct Aim {
    leader: String,
    /// The data node that has a fault; none if it is an observer, or every process.
    node: Option<u64>,
    /// Of the leader's, or the handoff's target's, host: supervisor first, which must not see its child die.
    processes: Vec<ProcessId>,
    /// Of a handoff.
    target: Option<u64>,
}

impl std::fmt::Display for Aim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let processes: Vec<String> = self.processes.iter().map(|process| format!("process {}", process.0)).collect();
        if let Some(target) = self.target {
            write!(f, "to node-{target} ")?;
        }
        if !processes.is_empty() {
            write!(f, "{} ", processes.join(", "))?;
        }
        write!(f, "(leader: {})", self.leader)
    }
}

/// What was done.
#[derive(Default)]
pub(super) struct Wound {
    /// Nothing was, after all.
    pub(super) void: bool,
    /// The gap counts from here instead of from the last acknowledgement: instant of the run.
    pub(super) counted_from: Option<Duration>,
}

impl Series<'_> {
    /// Looks up the processes, so that the fault itself takes no time.
    pub(super) async fn aim(&self, stage: &Stage, target: Option<u64>) -> Result<Aim, Error> {
        let view = &self.bench.view;
        let leader = stage.leader();
        let name = stage.partitions.first().map(|partition| partition.leader.clone()).unwrap_or_default();
        let fault = self.settings.fault;
        let hit = match fault {
            Fault::ObserverLeader | Fault::Observer | Fault::RestartAll | Fault::Handoff => None,
            Fault::HandoffTargetDies | Fault::HandoffTargetStops => target,
            _ => Some(leader),
        };
        let processes = match (fault, hit) {
            (Fault::Kill | Fault::HandoffTargetDies, Some(node)) => vec![view.pid("server", node).await?],
            (Fault::KillWithSupervisor | Fault::Pause | Fault::HandoffTargetStops, Some(node)) => {
                vec![view.supervisor(node).await?, view.pid("server", node).await?]
            }
            (Fault::KillWithObserverLeader, Some(node)) => {
                vec![view.pid("server", node).await?, stage.observer("leader")?]
            }
            (Fault::ObserverLeader, _) => vec![stage.observer("leader")?],
            (Fault::Observer, _) => vec![stage.observer("follower")?],
            _ => Vec::new(),
        };
        Ok(Aim { leader: name, node: hit, processes, target })
    }

    pub(super) async fn inflict(&mut self, stage: &Stage, aim: &Aim) -> Result<Wound, Error> {
        self.recovering = aim.node;
        let leader = stage.leader();
        match self.settings.fault {
            Fault::Kill
            | Fault::KillWithSupervisor
            | Fault::KillWithObserverLeader
            | Fault::ObserverLeader
            | Fault::Observer => signal(&aim.processes, Signal::KILL)?,
            Fault::Pause => signal(&aim.processes, Signal::STOP)?,
            Fault::Hang => self.bench.log_volume(leader)?.freeze()?,
            Fault::Cut => self.bench.networks()?.cut(leader, Cut::All)?,
            Fault::Deaf => self.bench.networks()?.cut(leader, Cut::Incoming)?,
            Fault::CutObservers => self.bench.networks()?.cut(leader, Cut::Observers)?,
            Fault::RestartAll => return self.restart_all().await,
            Fault::Handoff | Fault::HandoffTargetDies | Fault::HandoffTargetStops => {
                return self.hand_over_all(stage, aim).await;
            }
        }
        Ok(Wound::default())
    }

    /// Undoes what does not pass by itself.
    pub(super) fn heal(&self, aim: &Aim) -> Result<(), Error> {
        if matches!(self.settings.fault, Fault::Pause | Fault::HandoffTargetStops) {
            // The node first: its supervisor would take a stopped one for alive all the same.
            for process in aim.processes.iter().rev() {
                process.signal(Signal::CONT).map_err(|e| Error::new(format!("SIGCONT to {process}: {e}")))?;
            }
        }
        if let (Fault::Hang, Some(node)) = (self.settings.fault, aim.node) {
            self.bench.log_volume(node)?.thaw()?;
        }
        if let (Fault::Cut | Fault::Deaf | Fault::CutObservers, Some(node)) = (self.settings.fault, aim.node) {
            self.bench.networks()?.heal(node)?;
        }
        Ok(())
    }

    /// Every partition to the target at once; the target may be hit meanwhile.
    async fn hand_over_all(&self, stage: &Stage, aim: &Aim) -> Result<Wound, Error> {
        let target = aim.target.ok_or_else(|| Error::new("a handoff without a target"))?;
        let hit = match self.settings.fault {
            Fault::HandoffTargetDies => Some(Signal::KILL),
            Fault::HandoffTargetStops => Some(Signal::STOP),
            _ => None,
        };
        let after = HITS[self.measured.len() % HITS.len()] + LATER * self.void;
        let began = Instant::now();
        let asked = stage.partitions.iter().map(|partition| async move {
            let answer = self.hand_over(partition.partition, target).await;
            (answer, began.elapsed())
        });
        let asked = join_all(asked);
        let hitting = async {
            let Some(what) = hit else { return Ok(()) };
            tokio::time::sleep(after).await;
            signal(&aim.processes, what)
        };
        let (answers, hitting) = tokio::join!(asked, hitting);
        hitting?;
        for (answer, took) in answers {
            let Err(refusal) = answer else { continue };
            // With a target that is hit, a handoff that began and failed is what is to be measured.
            if hit.is_none() || (took < GATE && nothing_was_done(refusal.reason)) {
                (self.tell)(&format!("void: handoff to node-{target}: {refusal}"));
                return Ok(Wound { void: true, ..Wound::default() });
            }
        }
        Ok(Wound::default())
    }

    /// Kills every process at once and starts all again.
    async fn restart_all(&mut self) -> Result<Wound, Error> {
        let mut cluster = self.bench.take_cluster()?;
        let restarted = tokio::task::spawn_blocking(move || {
            cluster.kill_all();
            let started = cluster.start_again();
            (cluster, started)
        });
        let (cluster, started) = restarted.await.map_err(|e| Error::new(format!("restarting everything: {e}")))?;
        // Start times are given in the clock that counts from the boot, sleep included.
        let starts = cluster.pids().into_iter().filter_map(|process| process.stat().ok()).map(|stat| stat.started());
        let last = starts.max().ok_or_else(|| Error::new("no process runs after the start"));
        self.bench.put_cluster(cluster);
        started?;
        let (boot, now) = (clock_gettime(ClockId::Boottime), self.run.now());
        let boot = Duration::new(
            u64::try_from(boot.tv_sec).unwrap_or_default(),
            u32::try_from(boot.tv_nsec).unwrap_or_default(),
        );
        let ago = boot.saturating_sub(last?);
        Ok(Wound { counted_from: Some(now.saturating_sub(ago)), ..Wound::default() })
    }
}

/// Refused before anything began. `LAGGING` is also how a handoff ends that began and was called off, so it is not here.
fn nothing_was_done(reason: Reason) -> bool {
    matches!(reason, Reason::RefusedUnsafe | Reason::Busy | Reason::InvalidArgument)
}

fn signal(processes: &[ProcessId], signal: Signal) -> Result<(), Error> {
    for process in processes {
        process.signal(signal).map_err(|e| Error::new(format!("signal {signal:?} to {process}: {e}")))?;
    }
    Ok(())
}
