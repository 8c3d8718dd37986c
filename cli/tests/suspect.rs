//! B2 with real files: a log that lost flushed records must not help to elect a leader that lacks them.

mod common;

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::{cluster, pipe, quorate};
use quorate_chaos::cluster::Cluster;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(90);

fn start(cluster: &mut Cluster, observers: bool, nodes: &[u64]) {
    if observers {
        for id in 1..=3 {
            cluster.start_alone("observer", id).unwrap_or_else(|e| panic!("{e}"));
        }
    }
    for id in nodes {
        cluster.start_alone("server", *id).unwrap_or_else(|e| panic!("{e}"));
    }
}

fn describe(cluster: &Cluster) -> Value {
    let done = quorate(cluster, &["partition", "describe", "safe/0", "--output", "json"]);
    serde_json::from_str(done.text().lines().last().unwrap_or_default()).unwrap_or(Value::Null)
}

fn until(cluster: &Cluster, what: &str, reached: impl Fn(&Value) -> bool) {
    let started = Instant::now();
    loop {
        let now = describe(cluster);
        if reached(&now) {
            return;
        }
        assert!(started.elapsed() < LIMIT, "{what}: never seen; now {now}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The partition is led from node 1. A leader that never comes back stays on record until something proves its end, so tests
/// that look for none must not leave that to chance.
fn led_by_the_first(cluster: &Cluster) {
    until(cluster, "led by node-1", |p| {
        let led = p["leader"] == "node-1";
        if !led && !p["leader"].is_null() {
            // It may be refused for a moment; the next look tells.
            let _ = quorate(cluster, &["leader", "handoff", "safe/0", "--to", "node-1"]);
        }
        led
    });
}

fn publish(cluster: &Cluster, from: usize, to: usize) {
    let rows: String = (from..to).map(|n| format!("account-{},row {n}\n", n % 7)).collect();
    let args = ["produce", "safe", "--format", "csv", "--key-field", "1", "--idempotency-field", "2"];
    let mut command = cluster.command();
    let done = pipe(command.args(args).args(["--output", "json"]), rows.as_bytes()).ok().json();
    assert_eq!(done["committed"], to - from, "{done}");
}

fn newest_log(cluster: &Cluster) -> PathBuf {
    let wal = cluster.files().root.join("node-1").join("wal");
    let files = std::fs::read_dir(&wal).unwrap_or_else(|e| panic!("{}: {e}", wal.display()));
    let paths = files.map(|file| file.expect("a file").path());
    paths.filter(|path| path.extension().is_some_and(|ext| ext == "raftlog")).max().expect("a log file")
}

/// Length without the zeros that are preallocated behind the records.
fn used(log: &PathBuf) -> u64 {
    let bytes = std::fs::read(log).unwrap_or_else(|e| panic!("{}: {e}", log.display()));
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |at| at as u64 + 1)
}

/// Two replicas acknowledge while the third is down; then the log of one of the two is damaged and the other is down.
/// The stale replica and the damaged one are a majority, and must not elect: all waits for the sound one.
fn what_was_acknowledged_survives(damage: impl Fn(&Cluster, &PathBuf, u64)) {
    let mut cluster = cluster();
    quorate(&cluster, &["topic", "create", "safe", "--partitions", "1"]).ok();
    publish(&cluster, 0, 50);
    cluster.kill_all();
    let log = newest_log(&cluster);
    let before = used(&log);

    start(&mut cluster, true, &[1, 2]);
    until(&cluster, "nodes 1 and 2 lead it", |p| !p["leader"].is_null() && p["authoritative"] == true);
    publish(&cluster, 50, 150);
    let led = describe(&cluster);
    let (epoch, term) = (led["permit_epoch"].as_u64().expect("it is led"), led["term"].as_u64().expect("in a term"));
    cluster.kill_all();
    assert!(used(&log) > before, "the log went on in the same file");
    damage(&cluster, &log, before);

    start(&mut cluster, true, &[1, 3]);
    until(&cluster, "two elections were tried", |p| p["permit_epoch"].as_u64() >= Some(epoch + 2));
    let now = describe(&cluster);
    // Whoever led before may still be named, in its old term: it is down, and nobody saw its lease end.
    let elected = !now["leader"].is_null() && now["term"].as_u64() != Some(term);
    assert!(!elected, "a majority that lacks acknowledged records must not elect: {now}");
    let said = std::fs::read_to_string(cluster.files().root.join("logs").join("node-1.log")).unwrap_or_default();
    assert!(said.contains("lost flushed entries"), "the operator is told: {said}");

    start(&mut cluster, false, &[2]);
    until(&cluster, "a leader that has everything", |p| !p["leader"].is_null() && p["authoritative"] == true);
    let read = quorate(&cluster, &["consume", "safe", "--from", "earliest", "--count", "150", "--timeout", "30s"]).ok();
    let mut rows: Vec<String> = read.text().lines().map(str::to_owned).collect();
    rows.sort_unstable();
    rows.dedup();
    assert_eq!(rows.len(), 150, "every acknowledged record is there, once");
    publish(&cluster, 150, 160);
}

#[test]
fn bytes_flipped_in_the_log() {
    what_was_acknowledged_survives(|_, log, before| {
        let file = OpenOptions::new().write(true).open(log).expect("the log file");
        file.write_all_at(b"ZZZZ", before + 4).expect("writable");
    });
}

#[test]
fn a_log_cut_back_to_an_older_length() {
    what_was_acknowledged_survives(|_, log, before| {
        OpenOptions::new().write(true).open(log).and_then(|file| file.set_len(before)).expect("the log file");
    });
}

#[test]
fn a_log_that_is_gone() {
    what_was_acknowledged_survives(|_, log, _| {
        std::fs::remove_dir_all(log.parent().expect("its folder")).expect("removable");
    });
}

/// Every node met a disk error: no log may vote, but all three are there, and the longest holds everything (full
/// attendance).
#[test]
fn all_logs_suspect_and_all_of_them_there() {
    let mut cluster = cluster();
    quorate(&cluster, &["topic", "create", "safe", "--partitions", "1"]).ok();
    publish(&cluster, 0, 100);
    led_by_the_first(&cluster);
    cluster.kill_all();
    for id in 1..=3 {
        let marker = cluster.files().root.join(format!("node-{id}")).join("SUSPECT");
        std::fs::write(&marker, "a test's disk error").unwrap_or_else(|e| panic!("{}: {e}", marker.display()));
    }
    start(&mut cluster, true, &[1, 2]);
    until(&cluster, "two nodes are up", |p| {
        let up = |r: &&Value| r["state"] != "down" && r["state"] != "unknown";
        p["replicas"].as_array().is_some_and(|all| all.iter().filter(up).count() == 2)
    });
    assert!(describe(&cluster)["leader"].is_null(), "two of three suspect logs prove nothing");
    start(&mut cluster, false, &[3]);
    until(&cluster, "a leader by full attendance", |p| !p["leader"].is_null() && p["authoritative"] == true);
    publish(&cluster, 100, 110);
    let read = quorate(&cluster, &["consume", "safe", "--from", "earliest", "--count", "110", "--timeout", "30s"]).ok();
    assert_eq!(read.text().lines().count(), 110);
}

/// Two logs are suspect and the third is gone: nobody may lead until an operator says whose log is the truth.
#[test]
fn an_operator_breaks_the_glass_by_a_plan_and_leaves_a_record() {
    let mut cluster = cluster();
    quorate(&cluster, &["topic", "create", "safe", "--partitions", "1"]).ok();
    publish(&cluster, 0, 100);
    led_by_the_first(&cluster);
    let glass = |cluster: &Cluster, more: &[&str]| {
        let args = ["partition", "break-glass", "safe/0", "--node", "node-2", "--output", "json"];
        quorate(cluster, &[&args[..], more].concat())
    };
    let refused = glass(&cluster, &[]);
    assert_eq!(refused.json()["error"]["reason"], "REFUSED_UNSAFE", "a leader serves");
    cluster.kill_all();
    for id in 1..=2 {
        let marker = cluster.files().root.join(format!("node-{id}")).join("SUSPECT");
        std::fs::write(&marker, "a test's disk error").unwrap_or_else(|e| panic!("{}: {e}", marker.display()));
    }
    start(&mut cluster, true, &[1, 2]);
    let started = Instant::now();
    let plan = loop {
        let shown = glass(&cluster, &[]);
        if shown.code() == 0 {
            break shown.json();
        }
        assert!(started.elapsed() < LIMIT, "no plan was ever shown: {}", shown.stderr);
        std::thread::sleep(Duration::from_millis(300));
    };
    assert_eq!(plan["done"], false);
    let effect = plan["effect"].to_string();
    assert!(effect.contains("node-2: log up to") && effect.contains("node-3: its log is not known"), "{effect}");
    assert!(describe(&cluster)["leader"].is_null(), "showing a plan does nothing");
    let stale = glass(&cluster, &["--plan", "0000-00"]);
    assert_eq!(stale.json()["error"]["reason"], "PLAN_STALE");
    let token = plan["plan"].as_str().expect("a token").to_owned();
    let done = glass(&cluster, &["--plan", &token]).ok().json();
    assert_eq!(done["done"], true, "{done}");
    until(&cluster, "the named node leads", |p| p["leader"] == "node-2" && p["authoritative"] == true);
    publish(&cluster, 100, 110);
    let audit = quorate(&cluster, &["audit", "show"]).ok().text();
    assert!(audit.contains("partition break-glass") && audit.contains("safe/0"), "{audit}");
}
