//! Metrics of a data node. Handles are registered once per partition; everything counts batches, never records,
//! except where the name says so.

use std::time::Duration;

use metrics::{counter, gauge, histogram, Counter, Gauge, Histogram, Label, Unit};
use quorate_consensus::node::effect::View;
use quorate_consensus::node::{NodeStatus, PartitionStatus};
use quorate_host::telemetry::{Metric, MetricKind};
use quorate_proto::control::{Assignment, ElectionMarks, Role};
use quorate_proto::refusal::Refusal;
use quorate_proto::time::BootTime;
use quorate_proto::v1::Receipt;

const fn metric(name: &'static str, kind: MetricKind, unit: Unit, help: &'static str) -> Metric {
    Metric { name, kind, unit, help }
}

use MetricKind::{Counter as C, Gauge as G, Histogram as H};

/// All of them, with units.
pub(super) const METRICS: &[Metric] = &[
    metric("quorate_publish_batches_total", C, Unit::Count, "Publishes answered with a receipt"),
    metric("quorate_publish_records_total", C, Unit::Count, "Records in them"),
    metric("quorate_publish_bytes_total", C, Unit::Bytes, "Bytes in them"),
    metric("quorate_publish_refused_total", C, Unit::Count, "Publishes refused, by reason"),
    metric("quorate_publish_latency_seconds", H, Unit::Seconds, "From arrival at the shard to the committed answer"),
    metric("quorate_role", G, Unit::Count, "0 follower, 1 candidate, 2 leader, 3 quarantined"),
    metric("quorate_term", G, Unit::Count, "Raft term"),
    metric("quorate_commit_index", G, Unit::Count, "Raft commit index"),
    metric("quorate_applied_index", G, Unit::Count, "Applied index"),
    metric("quorate_high_watermark", G, Unit::Count, "Offset after the last applied record"),
    metric("quorate_serving", G, Unit::Count, "1 while the leader may serve (F1)"),
    metric("quorate_lease_remaining_seconds", G, Unit::Seconds, "Rest of the lease; 0 on others than the leader"),
    metric("quorate_fence_remaining_seconds", G, Unit::Seconds, "Until the leader would stop serving without contact"),
    metric("quorate_contact_age_seconds", G, Unit::Seconds, "Age of the leader's contact with a majority (C2)"),
    metric(
        "quorate_replica_lag_entries",
        G,
        Unit::Count,
        "Entries that a replica is behind, as its leader sees it; NaN where it does not know",
    ),
    metric("quorate_pending_bytes", G, Unit::Bytes, "Publishes admitted and undecided"),
    metric("quorate_uncheckpointed_bytes", G, Unit::Bytes, "Applied log that no checkpoint covers"),
    metric("quorate_ageing_stopped", G, Unit::Count, "1 while nothing is deleted because cluster time leapt (W5)"),
    metric("quorate_wal_queue_bytes", G, Unit::Bytes, "Bytes that wait for their flush"),
    metric("quorate_storage_queue_bytes", G, Unit::Bytes, "Bytes that wait for the storage thread"),
    metric("quorate_tail_cache_bytes", G, Unit::Bytes, "Bytes in tail caches"),
    metric("quorate_leaders", G, Unit::Count, "Replicas of this node that lead"),
    metric("quorate_replicas", G, Unit::Count, "Replicas of this node"),
    metric("quorate_disk_ok", G, Unit::Count, "0 when the write-ahead log failed or stalls"),
    metric("quorate_disk_room", G, Unit::Count, "Room on the disks: 0 ample, 1 nearly full, 2 full"),
    metric("quorate_disk_free_bytes", G, Unit::Bytes, "Free bytes, by directory"),
    metric("quorate_disk_free_inodes", G, Unit::Count, "Free inodes, by directory"),
    metric("quorate_disk_ballast_bytes", G, Unit::Bytes, "Bytes that are released when the disk is full, by directory"),
    metric("quorate_scrub_bytes_total", C, Unit::Bytes, "Bytes read back and found well or not"),
    metric("quorate_scrub_passes_total", C, Unit::Count, "Passes over everything stored"),
    metric("quorate_scrub_damaged_total", C, Unit::Count, "Files found damaged by reading them back"),
    metric("quorate_elections_total", C, Unit::Count, "Elections won"),
    metric("quorate_fences_total", C, Unit::Count, "Times that a fence closed for lack of contact"),
    metric("quorate_vetoes_total", C, Unit::Count, "Votes refused by the gate"),
    metric("quorate_stale_messages_total", C, Unit::Count, "Messages of peers that no replica here may take (M3)"),
    metric(
        "quorate_stale_answers_total",
        C,
        Unit::Count,
        "Messages of this node that a peer answered STALE_INCARNATION",
    ),
    metric("quorate_quarantined_total", C, Unit::Count, "Replicas set aside"),
    metric("quorate_snapshots_sent_total", C, Unit::Count, "Snapshots that this node began to send to a follower"),
    metric(
        "quorate_snapshot_bytes_kept_total",
        C,
        Unit::Bytes,
        "Bytes of broken-off snapshots that were not sent again",
    ),
    metric("quorate_snapshots_installed_total", C, Unit::Count, "Snapshots that took the place of a replica's data"),
    metric(
        "quorate_failover_phase_seconds",
        H,
        Unit::Seconds,
        "Steps of an election from the permit's receipt on, by phase",
    ),
];

/// Metrics of the whole node.
pub(super) struct NodeMetrics {
    pub elections: Counter,
    pub fences: Counter,
    pub vetoes: Counter,
    pub quarantined: Counter,
    strangers: Counter,
    stale_answers: Counter,
    pub snapshots_sent: Counter,
    pub snapshots_installed: Counter,
    wal_queue: Gauge,
    storage_queue: Gauge,
    tail_cache: Gauge,
    leaders: Gauge,
    replicas: Gauge,
    disk_ok: Gauge,
    phases: [Histogram; 4],
}

impl NodeMetrics {
    /// Registers them.
    pub fn register() -> Self {
        let phase = |name: &'static str| histogram!("quorate_failover_phase_seconds", "phase" => name);
        Self {
            elections: counter!("quorate_elections_total"),
            fences: counter!("quorate_fences_total"),
            vetoes: counter!("quorate_vetoes_total"),
            quarantined: counter!("quorate_quarantined_total"),
            strangers: counter!("quorate_stale_messages_total"),
            stale_answers: counter!("quorate_stale_answers_total"),
            snapshots_sent: counter!("quorate_snapshots_sent_total"),
            snapshots_installed: counter!("quorate_snapshots_installed_total"),
            wal_queue: gauge!("quorate_wal_queue_bytes"),
            storage_queue: gauge!("quorate_storage_queue_bytes"),
            tail_cache: gauge!("quorate_tail_cache_bytes"),
            leaders: gauge!("quorate_leaders"),
            replicas: gauge!("quorate_replicas"),
            disk_ok: gauge!("quorate_disk_ok"),
            phases: [phase("elected"), phase("noop_committed"), phase("lease"), phase("first_acknowledgement")],
        }
    }

    /// The steps of an election, each from the one before.
    pub fn failover(&self, marks: &ElectionMarks) {
        let at = [marks.elected, marks.noop_committed, marks.lease, marks.first_ack];
        let mut before = Duration::ZERO;
        for (histogram, at) in self.phases.iter().zip(at) {
            histogram.record(at.saturating_sub(before));
            before = before.max(at);
        }
    }

    /// Gauges.
    pub fn refresh(&self, status: &NodeStatus, wal_queue: u64, storage_queue: u64, tail_cache: u64) {
        self.strangers.absolute(status.counters.strangers);
        self.stale_answers.absolute(status.counters.stale_answers);
        self.wal_queue.set(wal_queue as f64);
        self.storage_queue.set(storage_queue as f64);
        self.tail_cache.set(tail_cache as f64);
        self.leaders.set(status.leaders as f64);
        self.replicas.set(status.replicas as f64);
        self.disk_ok.set(f64::from(u8::from(status.disk_ok)));
        gauge!("quorate_disk_room").set(f64::from(status.room.number()));
    }
}

/// Metrics of one partition.
pub(super) struct PartitionMetrics {
    labels: Vec<Label>,
    batches: Counter,
    records: Counter,
    bytes: Counter,
    latency: Histogram,
    role: Gauge,
    term: Gauge,
    committed: Gauge,
    applied: Gauge,
    high_watermark: Gauge,
    serving: Gauge,
    lease: Gauge,
    fence: Gauge,
    contact: Gauge,
    pending: Gauge,
    uncheckpointed: Gauge,
    ageing_stopped: Gauge,
    lag: Vec<(u64, Gauge)>,
}

impl PartitionMetrics {
    /// Registers the handles of a partition.
    pub fn register(assignment: &Assignment) -> Self {
        let labels = vec![
            Label::new("topic", assignment.topic.clone()),
            Label::new("partition", assignment.partition.get().to_string()),
        ];
        let count = |name: &'static str| counter!(name, labels.iter());
        let level = |name: &'static str| gauge!(name, labels.iter());
        let others = assignment.members.iter().filter(|(replica, _)| *replica != assignment.replica);
        let lag = others.map(|(replica, node)| {
            let mut labels = labels.clone();
            labels.push(Label::new("node", node.get().to_string()));
            (replica.get(), gauge!("quorate_replica_lag_entries", labels.iter()))
        });
        Self {
            batches: count("quorate_publish_batches_total"),
            records: count("quorate_publish_records_total"),
            bytes: count("quorate_publish_bytes_total"),
            latency: histogram!("quorate_publish_latency_seconds", labels.iter()),
            role: level("quorate_role"),
            term: level("quorate_term"),
            committed: level("quorate_commit_index"),
            applied: level("quorate_applied_index"),
            high_watermark: level("quorate_high_watermark"),
            serving: level("quorate_serving"),
            lease: level("quorate_lease_remaining_seconds"),
            fence: level("quorate_fence_remaining_seconds"),
            contact: level("quorate_contact_age_seconds"),
            pending: level("quorate_pending_bytes"),
            uncheckpointed: level("quorate_uncheckpointed_bytes"),
            ageing_stopped: level("quorate_ageing_stopped"),
            lag: lag.collect(),
            labels,
        }
    }

    /// A publish got its fate.
    pub fn answered(&self, result: &Result<Receipt, Refusal>, took: Duration, bytes: u64) {
        match result {
            Ok(receipt) => {
                self.batches.increment(1);
                self.records.increment(receipt.count.into());
                self.bytes.increment(bytes);
                self.latency.record(took);
            }
            Err(refusal) => {
                let mut labels = self.labels.clone();
                labels.push(Label::new("reason", refusal.reason.as_str_name()));
                counter!("quorate_publish_refused_total", labels.iter()).increment(1);
            }
        }
    }

    /// Gauges.
    pub fn refresh(&self, status: &PartitionStatus, now: BootTime, view: View) {
        let report = &status.report;
        let role = match report.role {
            Role::Follower => 0.0,
            Role::Candidate => 1.0,
            Role::Leader => 2.0,
            Role::Quarantined => 3.0,
        };
        self.role.set(role);
        self.term.set(report.term.get() as f64);
        self.committed.set(report.committed.get() as f64);
        self.applied.set(report.applied.get() as f64);
        self.high_watermark.set(view.high_watermark.get() as f64);
        self.serving.set(f64::from(u8::from(now < status.serve_until)));
        self.lease.set(report.lease_remaining.as_secs_f64());
        self.fence.set(status.serve_until.since(now).as_secs_f64());
        self.contact.set(status.contact_age.map_or(0.0, |age| age.as_secs_f64()));
        self.pending.set(status.pending_bytes as f64);
        self.uncheckpointed.set(status.unchecked_bytes as f64);
        self.ageing_stopped.set(f64::from(u8::from(status.ageing_stopped)));
        for (replica, lag) in &self.lag {
            let matched = report.matched.iter().find(|(id, _)| id.get() == *replica);
            let behind = matched.map(|(_, at)| report.last_index.get().saturating_sub(at.get()) as f64);
            // Followers know nothing of each other: 0. A leader that does not know has no number.
            let unknown = if report.role == Role::Leader { f64::NAN } else { 0.0 };
            lag.set(behind.unwrap_or(unknown));
        }
    }
}
