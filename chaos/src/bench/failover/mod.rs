//! `bench failover` and `bench handoff`: faults under an open-loop load; the gap is what a client sees.

mod calm;
mod figures;
mod gap;
mod inflict;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use quorate_proto::v1::Failover;

use super::fault::{Fault, Ground};
use super::{Bench, Report, Target, Tell};
use crate::load::{OpenLoop, Run, Shape};
use crate::measure::{ms, Gap};
use crate::pulse::{Pulse, Stalled};
use crate::reader::ends;
use crate::Error;

/// What to measure.
#[derive(Clone, Debug)]
pub struct FailoverSettings {
    /// The fault.
    pub fault: Fault,
    /// How often.
    pub repeat: u32,
    /// Partitions that it hits at once; the gap is the longest of theirs.
    pub partitions: u32,
    /// Records a second meanwhile, over all partitions.
    pub rate: f64,
    /// Bytes of a payload.
    pub size: usize,
}

impl FailoverSettings {
    /// One partition, 500 records of 200 bytes a second.
    #[must_use]
    pub fn new(fault: Fault, repeat: u32) -> Self {
        Self { fault, repeat, partitions: 1, rate: 500.0, size: 200 }
    }
}

/// One fault that counted.
struct Measured {
    gap: Duration,
    /// When the gap began, milliseconds after the fault; negative before it.
    begins_ms: f64,
    /// How much of the gap others on this machine waited, too.
    stalled: Stalled,
    /// Of the partition with the longest gap.
    phases: Option<Failover>,
}

/// All repeats of one fault on one cluster.
struct Series<'a> {
    bench: Bench,
    run: Run,
    settings: &'a FailoverSettings,
    tell: Tell<'a>,
    measured: Vec<Measured>,
    void: u32,
    /// When each data node last had a fault: it is no target of a handoff for a while (H1).
    harmed: BTreeMap<u64, Instant>,
    /// The one whose fault is not over yet.
    recovering: Option<u64>,
    pulse: Pulse,
}

/// Measures. A fault before which the leader had moved is void and repeated.
///
/// # Errors
/// The cluster cannot be used at all, or does not come back.
pub async fn failover(target: Target, settings: &FailoverSettings, tell: Tell<'_>) -> Result<Report, Error> {
    let partitions = settings.partitions;
    let bench = match settings.fault.ground() {
        Ground::Any => Bench::prepare(target, partitions, tell).await?,
        Ground::Private if matches!(target, Target::Running(_)) => {
            let what = "every process is killed: that needs a private cluster";
            return Err(Error::new(format!("{what}; stop the running one, or name no observers")));
        }
        Ground::Private => Bench::prepare(target, partitions, tell).await?,
        Ground::Volumes => Bench::prepare_on_volumes(target, partitions, tell).await?,
        Ground::Networks => Bench::prepare_on_networks(target, partitions, tell).await?,
    };
    let from = ends(&bench.client, &bench.topic).await?;
    let shape = Shape::one_producer(&bench.topic, bench.run, settings.size);
    let load = OpenLoop::start(&bench.client, shape, settings.rate, None).await?;
    let run = load.run.clone();
    let (measured, harmed) = (Vec::new(), BTreeMap::new());
    let pulse = match Pulse::start(bench.place(), run.began()) {
        Ok(pulse) => pulse,
        Err(error) => {
            let _ = load.stop().await;
            return Err(error);
        }
    };
    let mut series = Series { bench, run, settings, tell, measured, void: 0, harmed, recovering: None, pulse };
    if let Err(error) = series.repeat().await {
        // Ends the load while the cluster is still there: it must not go on without its runtime.
        let _ = load.stop().await;
        return Err(error);
    }
    let Series { bench, run, measured, void, .. } = series;
    let took = run.now();
    drop(run);
    let progress = load.stop().await?;
    let mut report = Report::new(if settings.fault.planned() { "handoff" } else { "failover" });
    report.set("fault", settings.fault.name());
    report.set("repeat", settings.repeat);
    report.set("partitions", partitions);
    report.set("rate", settings.rate);
    report.set("size", settings.size);
    if settings.fault == Fault::RestartAll {
        report.set("gap_from", "start of the last process");
    }
    report.rates(progress.ledger.acknowledged(), settings.size, took, None);
    let resent = progress.resent;
    tell("reading everything back");
    bench.audit(&from, progress, &mut report).await?;
    report.failover = Some(figures::sum_up(&measured, void, report.audit.refused + report.audit.unresolved, resent));
    Ok(report)
}

impl Series<'_> {
    async fn repeat(&mut self) -> Result<(), Error> {
        while self.measured.len() < self.settings.repeat as usize {
            match self.one().await? {
                Some(one) => {
                    self.tell_of(&one);
                    self.measured.push(one);
                }
                None => {
                    self.void += 1;
                    if self.void > self.settings.repeat + 3 {
                        return Err(Error::new("leaders move by themselves: nothing to measure"));
                    }
                }
            }
        }
        Ok(())
    }

    fn tell_of(&self, one: &Measured) {
        let mut text = format!("{}/{}: gap {} ms", self.measured.len() + 1, self.settings.repeat, ms(one.gap));
        for (who, waited) in [("a flush", one.stalled.disk), ("a thread", one.stalled.processor)] {
            if !waited.is_zero() {
                text.push_str(&format!("; {who} beside it waited for {} ms of it", ms(waited)));
            }
        }
        (self.tell)(&text);
    }

    /// One fault, from calm to calm. `None`: it does not count.
    async fn one(&mut self) -> Result<Option<Measured>, Error> {
        let fault = self.settings.fault;
        self.whole().await?;
        if fault.concerns_leader() {
            self.gather().await?;
        }
        self.rested().await?;
        let target = self.unharmed_target().await?;
        let stage = self.calm().await?;
        let aim = self.aim(&stage, target).await?;
        if self.described().await?.iter().map(|p| (p.leader_node, p.term)).ne(stage.leaders()) {
            (self.tell)("void: the leader moved before the fault");
            return Ok(None);
        }
        let known = self.newest_record().await?;
        let number = self.measured.len() + 1;
        (self.tell)(&format!("{number}/{}: {} {aim}", self.settings.repeat, fault.name()));
        let at = {
            self.run.look().timeline.forget_gap();
            self.run.now()
        };
        let wound = self.inflict(&stage, &aim).await;
        let gap = match &wound {
            Ok(wound) if !wound.void => self.wait_for_gap(&stage, at, known).await.map(Some),
            // Nothing was handed over, or the fault failed: there is no gap to wait for.
            _ => Ok(None),
        };
        // Whatever came of it: nothing stays stopped or cut off.
        let healed = self.heal(&aim);
        let (wound, gap) = (wound?, gap?);
        healed?;
        if let (true, Some(target)) = (wound.void, target) {
            // The observers saw it at fault, whatever that was.
            self.harmed.insert(target, Instant::now());
        }
        let Some((partition, gap)) = gap else { return Ok(None) };
        let span = wound.counted_from.map_or(gap.length(), |from| gap.to.saturating_sub(from));
        let begins_ms = ms(gap.from) - ms(at);
        let stalled = self.pulse.within(Gap { from: wound.counted_from.unwrap_or(gap.from), to: gap.to });
        let phases = self.record_of(&stage, partition, known).await?;
        Ok(Some(Measured { gap: span, begins_ms, stalled, phases }))
    }
}
