//! `bench steady`: latency at a fixed rate, open loop.

use std::time::Duration;

use super::{Bench, Report, Target, Tell};
use crate::load::{OpenLoop, Shape};
use crate::reader::ends;
use crate::Error;

/// What to measure.
#[derive(Clone, Debug)]
pub struct SteadySettings {
    /// Records a second.
    pub rate: f64,
    /// Bytes of a payload.
    pub size: usize,
    /// How long.
    pub time: Duration,
    /// Partitions of the topic.
    pub partitions: u32,
    /// Give each record an idempotency key.
    pub idempotency_keys: bool,
}

/// Measures; record `i` is due at `start + i / rate`.
///
/// # Errors
/// The cluster cannot be used at all.
pub async fn steady(target: Target, settings: &SteadySettings, tell: Tell<'_>) -> Result<Report, Error> {
    let bench = Bench::prepare(target, settings.partitions, tell).await?;
    let from = ends(&bench.client, &bench.topic).await?;
    let shape = Shape {
        idempotency_keys: settings.idempotency_keys,
        ..Shape::one_producer(&bench.topic, bench.run, settings.size)
    };
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let records = (settings.rate * settings.time.as_secs_f64()).round().max(1.0) as u64;
    tell(&format!("publishing {records} records at {} a second", settings.rate));
    let meter = bench.meter().await?;
    let mut load = OpenLoop::start(&bench.client, shape, settings.rate, Some(records)).await?;
    let run = load.run.clone();
    let telling = async {
        let mut last = 0;
        while last < records {
            tokio::time::sleep(Duration::from_secs(5)).await;
            let acknowledged = run.look().ledger.acknowledged();
            tell(&format!("{acknowledged} of {records} acknowledged (+{})", acknowledged - last));
            last = acknowledged;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = load.settled() => {}
        () = telling => {}
    }
    let (spent, took) = (meter.read(), run.now());
    drop(run);
    let progress = load.wait().await?;
    let mut report = Report::new("steady");
    report.set("rate", settings.rate);
    report.set("size", settings.size);
    report.set("seconds", settings.time.as_secs_f64());
    report.set("partitions", settings.partitions);
    report.set("shape", "orders");
    report.set("idempotency_keys", settings.idempotency_keys);
    report.rates(progress.ledger.acknowledged(), settings.size, took, Some(&spent));
    tell("reading everything back");
    bench.audit(&from, progress, &mut report).await?;
    Ok(report)
}
