//! What a running cluster tells Prometheus: every family that operators alarm on, described, with its unit.

mod common;

use std::collections::BTreeMap;

use common::{cluster, order_file, quorate, sample, scrape};

/// Family, type, unit that its name ends with (empty: a count, a state or a position).
type Wanted = (&'static str, &'static str, &'static str);

const NODE: &[Wanted] = &[
    // publish rate and latency
    ("quorate_publish_batches_total", "counter", ""),
    ("quorate_publish_records_total", "counter", ""),
    ("quorate_publish_bytes_total", "counter", "bytes_total"),
    ("quorate_publish_latency_seconds", "histogram", "seconds"),
    // commit
    ("quorate_commit_index", "gauge", ""),
    ("quorate_applied_index", "gauge", ""),
    ("quorate_high_watermark", "gauge", ""),
    // flush
    ("quorate_wal_flush_seconds", "histogram", "seconds"),
    ("quorate_wal_flush_bytes", "histogram", "bytes"),
    // queues
    ("quorate_wal_queue_bytes", "gauge", "bytes"),
    ("quorate_storage_queue_bytes", "gauge", "bytes"),
    ("quorate_pending_bytes", "gauge", "bytes"),
    // role, term, lease, contact, lag
    ("quorate_role", "gauge", ""),
    ("quorate_term", "gauge", ""),
    ("quorate_serving", "gauge", ""),
    ("quorate_lease_remaining_seconds", "gauge", "seconds"),
    ("quorate_contact_age_seconds", "gauge", "seconds"),
    ("quorate_replica_lag_entries", "gauge", "entries"),
    // failover phases
    ("quorate_failover_phase_seconds", "histogram", "seconds"),
    ("quorate_elections_total", "counter", ""),
    // what the runbooks alarm on
    ("quorate_snapshots_installed_total", "counter", ""),
    ("quorate_ageing_stopped", "gauge", ""),
    ("quorate_disk_ok", "gauge", ""),
];

const OBSERVER: &[Wanted] = &[
    ("quorate_observer_leader", "gauge", ""),
    ("quorate_observer_term", "gauge", ""),
    ("quorate_observer_sessions", "gauge", ""),
    ("quorate_wal_queue_bytes", "gauge", "bytes"),
    ("quorate_directory_applied_index", "gauge", ""),
    ("quorate_node_heard_age_seconds", "gauge", "seconds"),
    ("quorate_node_up", "gauge", ""),
    ("quorate_partitions_without_leader", "gauge", ""),
    ("quorate_lease_remaining_min_seconds", "gauge", "seconds"),
    ("quorate_failovers_total", "counter", ""),
    ("quorate_failover_seconds", "histogram", "seconds"),
    ("quorate_failover_phase_seconds", "histogram", "seconds"),
];

/// `# KIND name text` by name.
fn comments<'a>(page: &'a str, kind: &str) -> BTreeMap<&'a str, &'a str> {
    let prefix = format!("# {kind} ");
    page.lines().filter_map(|line| line.strip_prefix(prefix.as_str())?.split_once(' ')).collect()
}

fn has_all(who: &str, page: &str, wanted: &[Wanted]) {
    let (help, types) = (comments(page, "HELP"), comments(page, "TYPE"));
    for (family, kind, unit) in wanted {
        assert!(help.get(family).is_some_and(|text| text.len() > 3), "{who}: {family} has no HELP:\n{page}");
        assert_eq!(types.get(family), Some(kind), "{who}: {family}");
        assert!(family.ends_with(unit), "{who}: {family} does not end in its unit {unit}");
        let series = if *kind == "histogram" { format!("{family}_count") } else { (*family).to_owned() };
        assert!(sample(page, &series).is_some(), "{who}: {family} has no sample");
    }
    // Nothing of ours is undescribed, and every counter says that it is one.
    for (family, kind) in types.iter().filter(|(family, _)| family.starts_with("quorate_")) {
        assert!(help.contains_key(family), "{who}: {family} is not described");
        assert_eq!(*kind == "counter", family.ends_with("_total"), "{who}: {family} is a {kind}");
    }
}

#[test]
fn every_family_is_there_with_help_and_unit_on_data_nodes_and_observers() {
    let cluster = cluster();
    let rows = order_file(&cluster);
    let rows = rows.to_str().expect("a path");
    let args = ["produce", "orders", "--file", rows, "--format", "csv", "--key-field", "3"];
    quorate(&cluster, &args).ok();
    let before = quorate(&cluster, &["partition", "describe", "orders/0", "--output", "json"]).ok().json();
    let to = if before["leader"] == "node-2" { "node-3" } else { "node-2" };
    quorate(&cluster, &["leader", "handoff", "orders/0", "--to", to]).ok();
    // Its first acknowledgement ends the record of a handoff.
    quorate(&cluster, &args).ok();
    let by = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let node = to.trim_start_matches("node-").parse().expect("a number");
    let observer = loop {
        let page = scrape(cluster.ports().observer_metrics(1));
        if sample(&page, "quorate_failovers_total").is_some() {
            break page;
        }
        assert!(std::time::Instant::now() < by, "the handoff is not on record:\n{page}");
        std::thread::sleep(std::time::Duration::from_millis(100));
    };
    let page = scrape(cluster.ports().node_metrics(node));
    has_all(to, &page, NODE);
    has_all("observer-1", &observer, OBSERVER);
    assert!(sample(&page, "quorate_publish_records_total") > Some(0.0), "{page}");
    let quantile = page.lines().any(|line| line.starts_with("quorate_wal_flush_bytes_bucket{le=\"4096\"}"));
    assert!(quantile, "sizes are counted in buckets of bytes: {page}");
}
