//! Metrics of an observer. Gauges are refreshed once a second.

use metrics::{counter, gauge, histogram, Counter, Gauge, Unit};
use quorate_consensus::observer::ObserverCore;
use quorate_host::telemetry::{Metric, MetricKind};
use quorate_proto::time::BootTime;
use quorate_proto::v1::Failover;

use MetricKind::{Counter as C, Gauge as G, Histogram as H};

const fn metric(name: &'static str, kind: MetricKind, unit: Unit, help: &'static str) -> Metric {
    Metric { name, kind, unit, help }
}

/// All of them, with units.
pub(super) const METRICS: &[Metric] = &[
    metric("quorate_observer_leader", G, Unit::Count, "1 on the observer that leads"),
    metric("quorate_observer_term", G, Unit::Count, "Raft term of the observers"),
    metric("quorate_observer_sessions", G, Unit::Count, "Open sessions of data nodes"),
    metric("quorate_observer_watchers", G, Unit::Count, "Clients that watch routes"),
    metric("quorate_wal_queue_bytes", G, Unit::Bytes, "Bytes that wait for their flush"),
    metric("quorate_disk_ok", G, Unit::Count, "0 when flushes of the write-ahead log do not end in time"),
    metric("quorate_disk_room", G, Unit::Count, "Room on the disk: 0 ample, 1 nearly full, 2 full"),
    metric("quorate_disk_free_bytes", G, Unit::Bytes, "Free bytes, by directory"),
    metric("quorate_disk_free_inodes", G, Unit::Count, "Free inodes, by directory"),
    metric("quorate_disk_ballast_bytes", G, Unit::Bytes, "Bytes that are released when the disk is full, by directory"),
    metric("quorate_directory_version", G, Unit::Count, "Version of the directory"),
    metric("quorate_directory_applied_index", G, Unit::Count, "Last applied entry of the observers' log"),
    metric("quorate_node_heard_age_seconds", G, Unit::Seconds, "Since this observer heard a data node"),
    metric("quorate_node_up", G, Unit::Count, "1 if a data node is neither dead nor suspect"),
    metric("quorate_partitions", G, Unit::Count, "Partitions"),
    metric("quorate_partitions_without_leader", G, Unit::Count, "Partitions that nobody leads"),
    metric("quorate_lease_remaining_min_seconds", G, Unit::Seconds, "Shortest rest of a lease (observer leader only)"),
    metric("quorate_permits_pushed_total", C, Unit::Count, "Permits handed to data nodes"),
    metric("quorate_failovers_total", C, Unit::Count, "Failovers recorded, by cause"),
    metric(
        "quorate_suspicions_withdrawn_total",
        C,
        Unit::Count,
        "Leaders that were given up, with a permit, and went on all the same, by cause",
    ),
    metric(
        "quorate_failover_seconds",
        H,
        Unit::Seconds,
        "Whole failover, from the last sign to the first acknowledgement",
    ),
    metric("quorate_failover_phase_seconds", H, Unit::Seconds, "One phase of a failover"),
];

/// Handles.
pub(super) struct Metrics {
    leader: Gauge,
    term: Gauge,
    sessions: Gauge,
    watchers: Gauge,
    wal_queue: Gauge,
    version: Gauge,
    applied: Gauge,
    partitions: Gauge,
    leaderless: Gauge,
    lease_min: Gauge,
    permits: Counter,
}

#[allow(clippy::cast_precision_loss)]
fn float(number: u64) -> f64 {
    number as f64
}

impl Metrics {
    pub(super) fn register() -> Self {
        Self {
            leader: gauge!("quorate_observer_leader"),
            term: gauge!("quorate_observer_term"),
            sessions: gauge!("quorate_observer_sessions"),
            watchers: gauge!("quorate_observer_watchers"),
            wal_queue: gauge!("quorate_wal_queue_bytes"),
            version: gauge!("quorate_directory_version"),
            applied: gauge!("quorate_directory_applied_index"),
            partitions: gauge!("quorate_partitions"),
            leaderless: gauge!("quorate_partitions_without_leader"),
            lease_min: gauge!("quorate_lease_remaining_min_seconds"),
            permits: counter!("quorate_permits_pushed_total"),
        }
    }

    pub(super) fn permits_pushed(&self, count: usize) {
        self.permits.increment(count as u64);
    }

    pub(super) fn failover(&self, failover: &Failover) {
        if failover.withdrawn {
            counter!("quorate_suspicions_withdrawn_total", "cause" => failover.cause.clone()).increment(1);
            return;
        }
        counter!("quorate_failovers_total", "cause" => failover.cause.clone()).increment(1);
        let mut total = 0.0;
        for phase in &failover.phases {
            let seconds = float(phase.duration_us) / 1e6;
            total += seconds;
            histogram!("quorate_failover_phase_seconds", "phase" => phase.name.clone()).record(seconds);
        }
        histogram!("quorate_failover_seconds").record(total);
    }

    pub(super) fn refresh(&self, core: &ObserverCore, sessions: usize, watchers: usize, wal_queue: u64, now: BootTime) {
        let directory = core.directory();
        self.leader.set(if core.is_leading() { 1.0 } else { 0.0 });
        self.term.set(float(core.term().get()));
        self.sessions.set(float(sessions as u64));
        self.watchers.set(float(watchers as u64));
        self.wal_queue.set(float(wal_queue));
        let me = core.me();
        gauge!("quorate_disk_ok").set(if me.stalled { 0.0 } else { 1.0 });
        gauge!("quorate_disk_room").set(f64::from(me.room.number()));
        self.version.set(float(directory.version().get()));
        self.applied.set(float(directory.applied().0.get()));
        self.partitions.set(float(directory.partitions().len() as u64));
        let leaderless = directory.partitions().keys().filter(|g| directory.leader_of(**g).is_none()).count();
        self.leaderless.set(float(leaderless as u64));
        let shortest = directory.partitions().keys().filter_map(|g| core.lease_remaining(*g, now)).min();
        self.lease_min.set(shortest.map_or(0.0, |span| span.as_secs_f64()));
        for (id, node) in directory.nodes() {
            let labels = [("node", node.registered.name.clone())];
            let heard = core.view().node(*id).map_or(0.0, |view| now.since(view.heard).as_secs_f64());
            gauge!("quorate_node_heard_age_seconds", &labels).set(heard);
            let up = node.is_live() && !core.view().suspect(*id, now);
            gauge!("quorate_node_up", &labels).set(if up { 1.0 } else { 0.0 });
        }
    }
}
