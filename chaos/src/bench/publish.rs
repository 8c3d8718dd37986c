//! `bench publish`: throughput with a fixed number of records in flight.

use std::time::Duration;

use super::{Bench, Report, Target, Tell};
use crate::load::{closed_loop, Shape, KEYS};
use crate::reader::ends;
use crate::Error;

/// What to measure.
#[derive(Clone, Debug)]
pub struct PublishSettings {
    /// Producer objects.
    pub producers: u32,
    /// Records in flight of each.
    pub in_flight: usize,
    /// Bytes of a payload.
    pub size: usize,
    /// How long.
    pub time: Duration,
    /// Partitions of the topic.
    pub partitions: u32,
    /// Give each record an idempotency key.
    pub idempotency_keys: bool,
}

/// Measures; every record acknowledged after the flush of a majority, every record read back.
///
/// # Errors
/// The cluster cannot be used at all.
pub async fn publish(target: Target, settings: &PublishSettings, tell: Tell<'_>) -> Result<Report, Error> {
    let bench = Bench::prepare(target, settings.partitions, tell).await?;
    let from = ends(&bench.client, &bench.topic).await?;
    let shape = Shape {
        topic: bench.topic.clone(),
        run: bench.run,
        producers: settings.producers,
        keys: KEYS,
        size: settings.size,
        idempotency_keys: settings.idempotency_keys,
    };
    tell(&format!("publishing for {:?}", settings.time));
    let meter = bench.meter().await?;
    let closed = closed_loop(&bench.client, shape, settings.in_flight, settings.time).await?;
    let spent = meter.read();
    let mut report = Report::new("publish");
    report.set("producers", settings.producers);
    report.set("in_flight", settings.in_flight);
    report.set("size", settings.size);
    report.set("seconds", settings.time.as_secs_f64());
    report.set("partitions", settings.partitions);
    report.set("idempotency_keys", settings.idempotency_keys);
    let acknowledged = closed.progress.ledger.acknowledged();
    report.rates(acknowledged, settings.size, closed.took, Some(&spent));
    tell("reading everything back");
    bench.audit(&from, closed.progress, &mut report).await?;
    Ok(report)
}
