//! Disks that hang (B4) and disks that are full (B5), with real processes on file systems of their own. Needs root and
//! `mount`; says so and does nothing otherwise.

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{pipe, quorate};
use quorate_chaos::bench::{failover, quiet, Burden, FailoverSettings, Fault, QuietSettings, Target};
use quorate_chaos::cluster::Cluster;
use quorate_chaos::layout::{Files, NODES};
use quorate_chaos::volume::{unavailable, Volume};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(90);

/// True if the tests can run here; prints why not.
fn mounts() -> bool {
    match unavailable() {
        Some(why) => println!("skipped: {why}"),
        None => return true,
    }
    false
}

#[test]
fn a_hanging_log_costs_its_leader_two_seconds_at_most() {
    if !mounts() {
        return;
    }
    let settings = FailoverSettings::new(Fault::Hang, 3);
    let target = Target::Private(common::binary().to_owned());
    let told = |text: &str| println!("{text}");
    let report = common::runtime().block_on(failover(target, &settings, &told)).unwrap_or_else(|e| panic!("{e}"));
    println!("{}", report.verdict());
    assert!(report.audit.clean(), "{:?}\n{:?}", report.audit, report.findings);
    let figures = report.failover.expect("figures");
    assert!(figures.gap_ms.p50 <= 2_000.0, "{figures:?}");
    assert_eq!(figures.failed, 0, "{figures:?}");
}

#[test]
fn flushes_of_200_ms_cost_nobody_the_lead() {
    if !mounts() {
        return;
    }
    let time = Duration::from_secs(5);
    let settings = QuietSettings { time, burden: Burden::Flushes, partitions: 3, rate: 100.0, size: 200 };
    let target = Target::Private(common::binary().to_owned());
    let told = |text: &str| println!("{text}");
    let report = common::runtime().block_on(quiet(target, &settings, &told)).unwrap_or_else(|e| panic!("{e}"));
    println!("{}", report.verdict());
    assert!(report.audit.clean() && report.audit.refused == 0, "{:?}\n{:?}", report.audit, report.findings);
    let figures = report.quiet.expect("figures");
    assert!(figures.freezes >= 6, "each of six file systems stood still: {figures:?}");
    // A disk that stalls by itself for so long makes leaders go (B4).
    assert!(figures.calm() || figures.longest_freeze_ms >= 1_000.0, "{figures:?}\n{:?}", report.findings);
}

/// MiB of a node's data directory: the marks of `quorate dev` are 128 and 64, its ballast is 16.
const DATA: u64 = 320;

fn on_small_disks() -> Cluster {
    let mount = |files: &Files| {
        (1..=NODES).map(|id| Volume::in_memory(&files.data(&format!("node-{id}")), DATA, 4_000).map(Arc::new)).collect()
    };
    Cluster::start_on(common::binary(), "never", mount).unwrap_or_else(|e| panic!("{e}"))
}

fn nodes(cluster: &Cluster) -> Value {
    let done = quorate(cluster, &["node", "list", "--output", "json"]);
    serde_json::from_str(done.text().lines().last().unwrap_or_default()).unwrap_or(Value::Null)
}

fn disk_of(cluster: &Cluster, node: u64) -> String {
    let list = nodes(cluster);
    let found = list["nodes"].as_array().and_then(|nodes| {
        nodes.iter().find(|n| n["role"] == "server" && n["id"] == node).and_then(|n| n["disk"].as_str())
    });
    found.unwrap_or("unknown").to_owned()
}

fn leader(cluster: &Cluster) -> Value {
    let done = quorate(cluster, &["partition", "describe", "safe/0", "--output", "json"]);
    serde_json::from_str(done.text().lines().last().unwrap_or_default()).unwrap_or(Value::Null)
}

fn until(what: &str, mut reached: impl FnMut() -> bool) {
    let started = Instant::now();
    while !reached() {
        assert!(started.elapsed() < LIMIT, "{what}: never seen");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn rows(from: usize, to: usize) -> String {
    (from..to).map(|n| format!("account-{},row {n}\n", n % 7)).collect()
}

fn try_publish(cluster: &Cluster, from: usize, to: usize, timeout: &str) -> common::Done {
    let args = ["produce", "safe", "--format", "csv", "--key-field", "1", "--idempotency-field", "2"];
    let mut command = cluster.command();
    pipe(command.args(args).args(["--output", "json", "--timeout", timeout]), rows(from, to).as_bytes())
}

fn publish(cluster: &Cluster, from: usize, to: usize) {
    let done = try_publish(cluster, from, to, "60s").ok().json();
    assert_eq!(done["committed"], to - from, "{done}");
}

/// Takes all the room there is; what it takes is given back by deleting it.
fn fill(volume: &Volume) -> PathBuf {
    let path = volume.path().join("filler");
    let mut file = std::fs::File::create(&path).expect("a file");
    let block = vec![1_u8; 1 << 20];
    while std::io::Write::write_all(&mut file, &block).is_ok() {}
    let free = free_bytes(volume.path());
    assert!(free < 1 << 20, "{free} bytes are left");
    path
}

fn free_bytes(path: &Path) -> u64 {
    let system = rustix::fs::statvfs(path).expect("a file system");
    system.f_bavail * system.f_frsize
}

fn read_all(cluster: &Cluster, count: usize) {
    let count_text = count.to_string();
    let args = ["consume", "safe", "--from", "earliest", "--count", &count_text, "--timeout", "30s"];
    let read = quorate(cluster, &args).ok();
    let mut lines: Vec<String> = read.text().lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), count, "every acknowledged record is there, once");
}

fn node_pids(cluster: &Cluster) -> Vec<Value> {
    let list = nodes(cluster);
    let all = list["nodes"].as_array().cloned().unwrap_or_default();
    all.into_iter().filter(|n| n["role"] == "server").map(|n| n["pid"].clone()).collect()
}

#[test]
fn one_full_disk_is_passed_by_all_full_disks_refuse_and_room_lets_it_go_on() {
    if !mounts() {
        return;
    }
    let mut cluster = on_small_disks();
    quorate(&cluster, &["topic", "create", "safe", "--partitions", "1"]).ok();
    publish(&cluster, 0, 50);
    let pids = node_pids(&cluster);
    let ballast = |node: u64| cluster_dir(&cluster, node).join("ballast").join("bytes");
    let ballasts: Vec<PathBuf> = (1..=NODES).map(ballast).collect();
    until("the ballasts", || ballasts.iter().all(|path| path.exists()));

    let first = leader(&cluster)["leader"].as_str().expect("it is led").to_owned();
    let number: usize = first.trim_start_matches("node-").parse().expect("node-<number>");
    let full = fill(&cluster.volumes()[number - 1]);
    publish(&cluster, 50, 100);
    until("the full disk is shown", || disk_of(&cluster, number as u64) == "disk full");
    until("its leader elsewhere", || leader(&cluster)["leader"].as_str().is_some_and(|now| now != first));
    publish(&cluster, 100, 150);
    let text = quorate(&cluster, &["partition", "describe", "safe/0"]).ok().text();
    assert!(text.contains("disk full"), "{text}");

    let others: Vec<PathBuf> = (1..=3).filter(|n| *n != number).map(|n| fill(&cluster.volumes()[n - 1])).collect();
    until("all full", || (1..=NODES).all(|node| disk_of(&cluster, node) == "disk full"));
    let refused = try_publish(&cluster, 150, 151, "3s");
    assert!(!refused.status.success(), "{refused:?}");
    assert!(refused.stderr.contains("STORAGE_FULL") || refused.text().contains("STORAGE_FULL"), "{refused:?}");
    read_all(&cluster, 150);
    assert!(ballasts.iter().all(|path| !path.exists()), "the ballasts were released");

    for path in others.iter().chain([&full]) {
        std::fs::remove_file(path).expect("removable");
    }
    publish(&cluster, 150, 200);
    until("room again", || (1..=NODES).all(|node| disk_of(&cluster, node).is_empty()));
    until("ballasts again", || ballasts.iter().all(|path| path.exists()));
    read_all(&cluster, 200);
    assert_eq!(node_pids(&cluster), pids, "nothing was restarted");

    // Full to the last byte while nothing runs: it starts, elects, reads, refuses; and goes on with room.
    cluster.kill_all();
    let fillers: Vec<PathBuf> = cluster.volumes().iter().map(|volume| fill(volume)).collect();
    for id in 1..=NODES {
        cluster.start_alone("observer", id).unwrap_or_else(|e| panic!("{e}"));
        cluster.start_alone("server", id).unwrap_or_else(|e| panic!("{e}"));
    }
    until("a leader on full disks", || {
        let now = leader(&cluster);
        !now["leader"].is_null() && now["authoritative"] == true
    });
    read_all(&cluster, 200);
    let refused = try_publish(&cluster, 200, 201, "3s");
    assert!(refused.stderr.contains("STORAGE_FULL") || refused.text().contains("STORAGE_FULL"), "{refused:?}");
    for path in fillers {
        std::fs::remove_file(path).expect("removable");
    }
    publish(&cluster, 200, 250);
    read_all(&cluster, 250);
}

fn cluster_dir(cluster: &Cluster, node: u64) -> PathBuf {
    cluster.files().data(&format!("node-{node}"))
}

#[test]
fn inodes_count_as_bytes_do() {
    if !mounts() {
        return;
    }
    let cluster = on_small_disks();
    quorate(&cluster, &["topic", "create", "safe", "--partitions", "1"]).ok();
    publish(&cluster, 0, 10);
    let first = leader(&cluster)["leader"].as_str().expect("it is led").to_owned();
    let number: u64 = first.trim_start_matches("node-").parse().expect("node-<number>");
    let many = cluster_dir(&cluster, number).join("many");
    std::fs::create_dir(&many).expect("a directory");
    let made = (0..8_000).take_while(|n| std::fs::File::create(many.join(n.to_string())).is_ok()).count();
    println!("{made} files took every inode");
    until("the full disk is shown", || disk_of(&cluster, number) == "disk full");
    until("its leader elsewhere", || leader(&cluster)["leader"].as_str().is_some_and(|now| now != first));
    publish(&cluster, 10, 60);
    std::fs::remove_dir_all(&many).expect("removable");
    until("room again", || disk_of(&cluster, number).is_empty());
    read_all(&cluster, 60);
}

/// The first segment of the test's partition on a node.
fn segment(cluster: &Cluster, node: u64) -> PathBuf {
    let mut folders = vec![cluster_dir(cluster, node).join("partitions")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ext| ext == "segment") {
                return path;
            }
        }
    }
    panic!("node {node} has no segment")
}

fn state_of(cluster: &Cluster, node: u64) -> String {
    let now = leader(cluster);
    let replicas = now["replicas"].as_array().cloned().unwrap_or_default();
    let found = replicas.iter().find(|r| r["node"] == format!("node-{node}"));
    found.and_then(|r| r["state"].as_str()).unwrap_or("unknown").to_owned()
}

#[test]
fn a_bit_flipped_in_a_segment_of_a_running_node_is_found_never_leads_and_is_repaired() {
    use std::os::unix::fs::FileExt;
    let cluster = common::configured("scrub_every_s = 1");
    quorate(&cluster, &["topic", "create", "safe", "--partitions", "1"]).ok();
    publish(&cluster, 0, 200);
    until("a leader", || leader(&cluster)["authoritative"] == true && !leader(&cluster)["leader"].is_null());
    publish(&cluster, 200, 250);
    let first = leader(&cluster)["leader"].as_str().expect("it is led").to_owned();
    let number: u64 = first.trim_start_matches("node-").parse().expect("node-<number>");
    let file = std::fs::File::options().read(true).write(true).open(segment(&cluster, number)).expect("the segment");
    let mut byte = [0];
    file.read_exact_at(&mut byte, 300).expect("readable");
    file.write_all_at(&[byte[0] ^ 4], 300).expect("writable");

    until("the damage is found", || state_of(&cluster, number) == "quarantined");
    until("another leader", || leader(&cluster)["leader"].as_str().is_some_and(|now| now != first));
    publish(&cluster, 250, 300);
    read_all(&cluster, 300);
    let log = std::fs::read_to_string(cluster.files().log(&first)).expect("a log");
    assert!(log.contains("damaged at byte"), "the operator is told which file and where: {log}");

    // From the two others, by itself (M2).
    let well = |state: &str| state == "leader" || state == "follower";
    until("the replica is repaired", || {
        let now = leader(&cluster);
        let replicas = now["replicas"].as_array().cloned().unwrap_or_default();
        replicas.len() == 3 && replicas.iter().all(|r| r["state"].as_str().is_some_and(well))
    });
    publish(&cluster, 300, 310);
    read_all(&cluster, 310);
}
