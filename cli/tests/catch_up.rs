//! A node that was away for longer than the others' logs reach back.

mod common;

use std::time::{Duration, Instant};

use common::{cluster, pipe, quorate, sample, scrape, take_away};
use quorate_chaos::cluster::Cluster;
use quorate_chaos::proc::Signal;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(120);
const TOPIC: &str = "away";
/// More than a partition's checkpoint bound (8 MiB) and what is kept for followers (4 MiB) together.
const MISSED: usize = 16_000;
const BEFORE: usize = 50;

fn row(n: usize) -> String {
    format!("{n:07},{}", "payment ".repeat(128))
}

fn publish(cluster: &Cluster, from: usize, to: usize) {
    let rows: String = (from..to).map(|n| row(n) + "\n").collect();
    let args = ["produce", TOPIC, "--format", "csv", "--key-field", "1", "--idempotency-field", "1"];
    let mut command = cluster.command();
    let done = pipe(command.args(args).args(["--output", "json"]), rows.as_bytes()).ok().json();
    assert_eq!(done["committed"], to - from, "{done}");
}

fn describe(cluster: &Cluster) -> Value {
    let done = quorate(cluster, &["partition", "describe", &format!("{TOPIC}/0"), "--output", "json"]);
    serde_json::from_str(done.text().lines().last().unwrap_or_default()).unwrap_or(Value::Null)
}

fn until(cluster: &Cluster, what: &str, reached: impl Fn(&Value) -> bool) -> Value {
    let started = Instant::now();
    loop {
        let now = describe(cluster);
        if reached(&now) {
            return now;
        }
        assert!(started.elapsed() < LIMIT, "{what}: never seen; now {now}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn replica(partition: &Value, id: u64) -> &Value {
    let replicas = partition["replicas"].as_array().map(Vec::as_slice).unwrap_or_default();
    replicas.iter().find(|r| r["node_id"] == id).unwrap_or(&Value::Null)
}

/// A target is refused for 30 s after its last fault (H1): the refusal says so, and passes.
fn hand_over(cluster: &Cluster, to: &str) {
    let started = Instant::now();
    loop {
        let args = ["leader", "handoff", &format!("{TOPIC}/0"), "--to", to, "--no-pin", "--output", "json"];
        let done = quorate(cluster, &args);
        if done.code() == 0 {
            return;
        }
        let refused = done.json();
        assert!(refused["error"]["message"].as_str().unwrap_or_default().contains("fault"), "{refused}");
        assert!(started.elapsed() < LIMIT, "{refused}");
        std::thread::sleep(Duration::from_millis(500));
    }
}

#[test]
fn a_node_that_missed_more_than_the_log_holds_catches_up_by_snapshot_and_leads_with_every_record() {
    let cluster = cluster();
    quorate(&cluster, &["topic", "create", TOPIC, "--partitions", "1"]).ok();
    publish(&cluster, 0, BEFORE);
    let led = until(&cluster, "a leader", |p| !p["leader"].is_null() && p["authoritative"] == true);
    let away = (1..=3).find(|id| replica(&led, *id)["state"] == "follower").expect("two follow");
    let name = format!("node-{away}");
    take_away(&cluster, &[away]);
    publish(&cluster, BEFORE, BEFORE + MISSED);
    let behind = until(&cluster, "the node is missed", |p| replica(p, away)["state"] == "down");
    assert!(!behind["leader"].is_null(), "two replicas go on: {behind}");

    cluster.dev_pid().expect("runs").signal(Signal::CONT).expect("our child");
    until(&cluster, "a healthy follower with everything", |p| {
        let last = p["replicas"].as_array().into_iter().flatten().filter_map(|r| r["last_index"].as_u64()).max();
        let back = replica(p, away);
        back["state"] == "follower"
            && back["lag"] == 0
            && back["last_index"].as_u64() == last
            && p["authoritative"] == true
    });
    let page = scrape(cluster.ports().node_metrics(away));
    assert_eq!(sample(&page, "quorate_snapshots_installed_total"), Some(1.0), "not from the log: {page}");
    let said = std::fs::read_to_string(cluster.files().log(&name)).unwrap_or_default();
    assert!(said.contains("snapshot installed"), "the operator is told: {said}");

    hand_over(&cluster, &name);
    let now = until(&cluster, "it leads", |p| p["leader"] == name.as_str());
    assert_eq!(replica(&now, away)["state"], "leader", "{now}");
    let count = (BEFORE + MISSED).to_string();
    let read = quorate(&cluster, &["consume", TOPIC, "--from", "earliest", "--count", &count, "--timeout", "60s"]).ok();
    let mut rows: Vec<String> = read.text().lines().map(str::to_owned).collect();
    rows.sort_unstable();
    let wanted: Vec<String> = (0..BEFORE + MISSED).map(row).collect();
    assert!(rows == wanted, "{} rows read, {} wanted, each once and byte for byte", rows.len(), wanted.len());
}
