//! `quorate bench`: figures on standard output, progress on standard error.

use std::process::ExitCode;
use std::time::Duration;

use indicatif::ProgressBar;
use quorate_chaos::bench::{
    failover, publish, quiet, steady, Burden, FailoverSettings, Fault, Ground, PublishSettings, QuietSettings, Report,
    SteadySettings, Target,
};
use quorate_chaos::network;
use quorate_client::Client;

use crate::args::{BenchCommon, BenchVerb, BurdenName, FailoverCommon, FaultName, Global, HandoffArgs};
use crate::connect::observers;
use crate::fail::{Exit, Fail};
use crate::output::Output;
use crate::timelines;

pub async fn run(verb: BenchVerb, global: &Global, output: &Output) -> Result<ExitCode, Fail> {
    if let BenchVerb::Timelines { reports, plot } = &verb {
        return timelines::run(reports, plot.as_deref(), output);
    }
    let plot = match &verb {
        BenchVerb::Failover { common, .. } | BenchVerb::Handoff(HandoffArgs { common, .. }) => common.plot.clone(),
        _ => None,
    };
    let target = target(global, output).await?;
    let bar = if output.watched() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
    bar.enable_steady_tick(Duration::from_millis(200));
    let tell = |text: &str| {
        if bar.is_hidden() {
            output.remark(text);
        } else {
            bar.set_message(text.to_owned());
        }
    };
    let report = match verb {
        BenchVerb::Publish { producers, in_flight, common } => {
            let settings = PublishSettings {
                producers,
                in_flight: in_flight as usize,
                size: size(common.size)?,
                time: time(&common)?,
                partitions: common.partitions,
                idempotency_keys: !common.no_idempotency_keys,
            };
            publish(target, &settings, &tell).await?
        }
        BenchVerb::Steady { rate, shape: _, common } => {
            let settings = SteadySettings {
                rate: positive("--rate", rate)?,
                size: size(common.size)?,
                time: time(&common)?,
                partitions: common.partitions,
                idempotency_keys: !common.no_idempotency_keys,
            };
            steady(target, &settings, &tell).await?
        }
        BenchVerb::Failover { fault, repeat, common } => {
            failover(target, &settings(fault.into(), repeat, &common)?, &tell).await?
        }
        BenchVerb::Handoff(HandoffArgs { repeat, target_dies, target_stops, common }) => {
            let fault = match (target_dies, target_stops) {
                (true, _) => Fault::HandoffTargetDies,
                (_, true) => Fault::HandoffTargetStops,
                _ => Fault::Handoff,
            };
            failover(target, &settings(fault, repeat, &common)?, &tell).await?
        }
        BenchVerb::Quiet { minutes, burden, partitions, rate, size: bytes } => {
            let settings = QuietSettings {
                time: Duration::from_secs_f64(positive("--minutes", minutes)? * 60.0),
                burden: burden.into(),
                partitions,
                rate: positive("--rate", rate)?,
                size: size(bytes)?,
            };
            quiet(target, &settings, &tell).await?
        }
        BenchVerb::Timelines { .. } => unreachable!("it measures nothing"),
    };
    bar.finish_and_clear();
    if let Some(plot) = plot {
        timelines::draw_one(&report, &plot)?;
    }
    show(&report, output);
    let disturbed = report.quiet.as_ref().is_some_and(|figures| !figures.calm());
    Ok(match report.audit.clean() {
        false => Exit::Verification.into(),
        true if disturbed => Exit::Objective.into(),
        true => Exit::Ok.into(),
    })
}

impl From<BurdenName> for Burden {
    fn from(name: BurdenName) -> Self {
        match name {
            BurdenName::None => Self::None,
            BurdenName::Processors => Self::Processors,
            BurdenName::Flushes => Self::Flushes,
        }
    }
}

impl From<FaultName> for Fault {
    fn from(name: FaultName) -> Self {
        match name {
            FaultName::Kill => Self::Kill,
            FaultName::KillWithSupervisor => Self::KillWithSupervisor,
            FaultName::KillWithObserverLeader => Self::KillWithObserverLeader,
            FaultName::ObserverLeader => Self::ObserverLeader,
            FaultName::Observer => Self::Observer,
            FaultName::Hang => Self::Hang,
            FaultName::Pause => Self::Pause,
            FaultName::Cut => Self::Cut,
            FaultName::Deaf => Self::Deaf,
            FaultName::CutObservers => Self::CutObservers,
            FaultName::RestartAll => Self::RestartAll,
        }
    }
}

fn settings(fault: Fault, repeat: u32, common: &FailoverCommon) -> Result<FailoverSettings, Fail> {
    let rate = positive("--rate", common.rate)?;
    Ok(FailoverSettings { fault, repeat, partitions: common.partitions, rate, size: size(common.size)? })
}

/// Before any thread is started: hosts that can be cut off exist only in a network of this process's own.
pub fn enter_network(verb: &BenchVerb, global: &Global) -> Result<(), Fail> {
    let BenchVerb::Failover { fault, .. } = verb else { return Ok(()) };
    if Fault::from(*fault).ground() != Ground::Networks || !global.observers.is_empty() {
        return Ok(());
    }
    network::enter().map_err(|e| Fail::error(e.to_string()))
}

/// The cluster that was named, else a `quorate dev` that runs, else a private one.
async fn target(global: &Global, output: &Output) -> Result<Target, Fail> {
    if !global.observers.is_empty() {
        return Ok(Target::Running(global.observers.clone()));
    }
    let here = observers(global);
    let probe = Client::builder().observers(here.clone()).connect_timeout(Duration::from_millis(500));
    if probe.build().await.is_ok() {
        output.remark(&format!("using the running cluster at {}", here.join(",")));
        return Ok(Target::Running(here));
    }
    let binary = std::env::current_exe().map_err(|e| Fail::error(format!("where is this binary? {e}")))?;
    output.remark("no cluster runs here: starting a private one in a temporary directory");
    Ok(Target::Private(binary))
}

fn size(bytes: usize) -> Result<usize, Fail> {
    let allowed = quorate_chaos::payload::MIN_SIZE..=1 << 20;
    if allowed.contains(&bytes) {
        return Ok(bytes);
    }
    Err(Fail::usage(format!("--size must lie between {} bytes and 1 MiB", allowed.start())))
}

fn time(common: &BenchCommon) -> Result<Duration, Fail> {
    Ok(Duration::from_secs_f64(positive("--seconds", common.seconds)?))
}

fn positive(name: &str, value: f64) -> Result<f64, Fail> {
    if value.is_finite() && value > 0.0 && value < 1e6 {
        return Ok(value);
    }
    Err(Fail::usage(format!("{name} must be above 0 and below 1 000 000")))
}

fn show(report: &Report, output: &Output) {
    for finding in &report.findings {
        output.remark(finding);
    }
    if output.json {
        output.json(report);
        return;
    }
    output.line(&report.verdict());
    let machine = &report.machine;
    output.line(&format!(
        "this machine: append+fdatasync {} µs, sequential write {} MB/s, loopback gRPC {} µs, {} CPUs",
        machine.flush_us, machine.write_mb_s, machine.grpc_rtt_us, machine.cpus
    ));
    if let (Some(cpu), Some(written)) = (report.cpu_us_per_record, report.bytes_written_per_byte) {
        output.line(&format!("cost: {cpu} µs CPU per record over all processes, {written} bytes written per byte"));
    }
    for (thread, cpu) in &report.cpu_us_by_thread {
        output.line(&format!("    {thread:<24}{cpu:>10.1} µs"));
    }
    if let Some(figures) = &report.failover {
        output.line(&format!("gaps (ms): {:?}", figures.gap_ms.all));
        output.line(&format!("records failed to the application: {}, sent again: {}", figures.failed, figures.resent));
        for (phase, span) in &figures.phases_ms {
            output.line(&format!("    {:<24}{span:>10.2} ms (median)", phase.replace('_', " ")));
        }
    }
}
