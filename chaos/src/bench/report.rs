//! The JSON of a benchmark. Fields are only ever added.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::{QuietFigures, Spent};
use crate::ledger::Audit;
use crate::measure::{LatencyMs, Repeats, Second};
use crate::probe::Machine;

/// One benchmark's result.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Version of this form.
    pub schema: &'static str,
    /// `publish`, `steady`, `failover`, `handoff`, `quiet`.
    pub benchmark: &'static str,
    /// What was asked for.
    pub settings: BTreeMap<&'static str, serde_json::Value>,
    /// The machine's own limits, measured in this run.
    pub machine: Machine,
    /// Acknowledged per second, over the whole run.
    pub msgs_per_s: f64,
    /// Payload bytes acknowledged per second, 10⁶ bytes.
    pub payload_mb_s: f64,
    /// Acknowledgement latency. Open loop: from the instant when the record was due.
    pub latency_ms: LatencyMs,
    /// CPU time of all nodes, supervisors, observers and this client, per acknowledged record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_us_per_record: Option<f64>,
    /// The same by `role/thread`, the largest shares; `client` is this process.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub cpu_us_by_thread: BTreeMap<String, f64>,
    /// Bytes written to storage by all of them, per payload byte acknowledged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_written_per_byte: Option<f64>,
    /// Account of every record.
    pub audit: Audit,
    /// Whole seconds with sends and no acknowledgement.
    pub zero_ack_seconds: u64,
    /// Longest pause between two acknowledgements.
    pub longest_gap_ms: f64,
    /// `failover` only.
    #[serde(flatten)]
    pub failover: Option<FailoverFigures>,
    /// `quiet` only.
    #[serde(flatten)]
    pub quiet: Option<QuietFigures>,
    /// First failures and complaints of the audit, for people.
    pub findings: Vec<String>,
    /// Second by second.
    pub timeline: Vec<Second>,
}

/// What `bench failover` adds.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FailoverFigures {
    /// Faults injected that counted.
    pub repeats: u32,
    /// Faults that did not count, because the leader moved before.
    pub void: u32,
    /// Last acknowledgement before the fault to the first after it, at the client.
    pub gap_ms: Repeats,
    /// Records refused or given up.
    pub failed: u64,
    /// Records that the client sent again.
    pub resent: u64,
    /// Median of each phase, from the observers' records of these failovers.
    pub phases_ms: BTreeMap<String, f64>,
    /// Sum of the phases of each repeat.
    pub phases_sum_ms: Vec<f64>,
    /// The phases of each repeat.
    pub phases_each_ms: Vec<BTreeMap<String, f64>>,
    /// When the gap of each repeat began, after the fault; the last acknowledgement before it if negative.
    pub gap_begins_ms: Vec<f64>,
    /// How much of each gap a small flush beside the cluster's took beyond 5 ms, whoever caused it.
    pub disk_stalled_ms: Vec<f64>,
    /// How much of each gap a thread beside the cluster's was kept from running beyond 5 ms.
    pub processor_stalled_ms: Vec<f64>,
}

impl Report {
    /// An empty report of a kind.
    #[must_use]
    pub fn new(benchmark: &'static str) -> Self {
        Self { schema: "quorate.bench.v1", benchmark, ..Self::default() }
    }

    /// Notes a setting.
    pub fn set(&mut self, name: &'static str, value: impl Into<serde_json::Value>) {
        self.settings.insert(name, value.into());
    }

    /// Rates and costs over a run of `took`.
    #[allow(clippy::cast_precision_loss)]
    pub fn rates(&mut self, acknowledged: u64, size: usize, took: Duration, spent: Option<&Spent>) {
        let (count, seconds) = (acknowledged.max(1) as f64, took.as_secs_f64().max(1e-9));
        self.msgs_per_s = (acknowledged as f64 / seconds * 10.0).round() / 10.0;
        self.payload_mb_s = (acknowledged as f64 * size as f64 / seconds / 1e4).round() / 100.0;
        if let Some(spent) = spent {
            let per_record = |cpu: Duration| (cpu.as_secs_f64() * 1e7 / count).round() / 10.0;
            self.cpu_us_per_record = Some(per_record(spent.cpu));
            let share = spent.written as f64 / (count * size as f64);
            self.bytes_written_per_byte = Some((share * 100.0).round() / 100.0);
            let noticeable = |cpu: &Duration| *cpu * 100 >= spent.cpu && !cpu.is_zero();
            let threads = spent.threads.iter().filter(|(_, cpu)| noticeable(cpu));
            self.cpu_us_by_thread = threads.map(|(name, cpu)| (name.clone(), per_record(*cpu))).collect();
        }
    }

    /// One line for people.
    #[must_use]
    pub fn verdict(&self) -> String {
        let audit = &self.audit;
        let latency = &self.latency_ms;
        let mut text = format!(
            "{}: {:.0} msgs/s, p50 {} ms, p99 {} ms, p99.9 {} ms",
            self.benchmark, self.msgs_per_s, latency.p50, latency.p99, latency.p999
        );
        if let Some(figures) = &self.failover {
            let gap = &figures.gap_ms;
            text =
                format!("{}: {} faults, gap p50 {} ms, max {} ms", self.benchmark, figures.repeats, gap.p50, gap.max);
        }
        if let Some(figures) = &self.quiet {
            text = format!(
                "{}: {} s, {} failovers ({} false), {} leaders changed, {} restarts, longest gap {} ms",
                self.benchmark,
                figures.quiet_s,
                figures.failovers,
                figures.false_failovers,
                figures.leaders_changed,
                figures.restarts,
                self.longest_gap_ms
            );
        }
        format!(
            "{text}; {} acknowledged, {} lost, {} duplicate, {} reordered, {} phantom: {}",
            audit.acknowledged,
            audit.lost,
            audit.duplicate,
            audit.reordered,
            audit.phantom,
            if audit.clean() { "clean" } else { "NOT CLEAN" }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_has_the_documented_fields() {
        let mut report = Report::new("failover");
        report.failover = Some(FailoverFigures::default());
        let threads = [("server/wal".to_owned(), Duration::from_millis(2))].into();
        let spent = Spent { cpu: Duration::from_millis(5), written: 40_000, threads };
        report.rates(100, 200, Duration::from_secs(2), Some(&spent));
        let json = serde_json::to_value(&report).expect("serializes");
        let fields = [
            "/schema",
            "/benchmark",
            "/settings",
            "/machine/flush_us",
            "/machine/write_mb_s",
            "/machine/grpc_rtt_us",
            "/msgs_per_s",
            "/latency_ms/p9999",
            "/audit/unconfirmed",
            "/timeline",
            "/repeats",
            "/gap_ms/all",
            "/failed",
            "/resent",
            "/phases_ms",
        ];
        for field in fields {
            assert!(json.pointer(field).is_some(), "{field} is missing in {json}");
        }
        assert_eq!(json["cpu_us_per_record"], 50.0);
        assert_eq!(json["bytes_written_per_byte"], 2.0);
        assert_eq!(json["cpu_us_by_thread"]["server/wal"], 20.0);
    }
}
