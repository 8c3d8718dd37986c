//! `quorate bench`: figures on standard output, progress on standard error.

use std::process::ExitCode;
use std::time::Duration;

use indicatif::ProgressBar;
use quorate_chaos::bench::{
    failover, publish, steady, FailoverSettings, Fault, PublishSettings, Report, SteadySettings, Target,
};
use quorate_client::Client;

use crate::args::{BenchCommon, BenchVerb, FaultName, Global, HandoffArgs};
use crate::connect::observers;
use crate::fail::{Exit, Fail};
use crate::output::Output;

pub async fn run(verb: BenchVerb, global: &Global, output: &Output) -> Result<ExitCode, Fail> {
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
        BenchVerb::Failover { fault, repeat, rate, size: bytes } => {
            let fault = match fault {
                FaultName::Kill => Fault::Kill,
                FaultName::KillWithSupervisor => Fault::KillWithSupervisor,
                FaultName::ObserverLeader => Fault::ObserverLeader,
                FaultName::Observer => Fault::Observer,
                FaultName::Hang => Fault::Hang,
            };
            let settings = FailoverSettings { fault, repeat, rate: positive("--rate", rate)?, size: size(bytes)? };
            failover(target, &settings, &tell).await?
        }
        BenchVerb::Handoff(HandoffArgs { repeat, rate, size: bytes }) => {
            let (fault, rate) = (Fault::Handoff, positive("--rate", rate)?);
            failover(target, &FailoverSettings { fault, repeat, rate, size: size(bytes)? }, &tell).await?
        }
    };
    bar.finish_and_clear();
    show(&report, output);
    Ok(if report.audit.clean() { Exit::Ok.into() } else { Exit::Verification.into() })
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
