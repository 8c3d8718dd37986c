//! Observers that lose their memory, with real files under load (B2, M1): none of them helps to elect what lacks a committed
//! change of the directory, and each becomes one of the three again by itself.

mod common;

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::{cluster, quorate, runtime, until};
use quorate_chaos::cluster::{Cluster, View};
use quorate_chaos::load::{OpenLoop, Shape};
use quorate_chaos::reader::{ends, read_back};
use serde_json::Value;

const POLL: Duration = Duration::from_millis(50);

/// `node list`, observers only: (number, pid, state).
fn observers(cluster: &Cluster) -> Vec<(u64, u32, String)> {
    let done = quorate(cluster, &["node", "list", "--output", "json", "--timeout", "3s"]);
    let Ok(list) = serde_json::from_str::<Value>(done.text().lines().last().unwrap_or_default()) else {
        return Vec::new();
    };
    let all = list["nodes"].as_array().cloned().unwrap_or_default();
    let observer = all.iter().filter(|node| node["role"] == "observer" && node["health"] == "up");
    observer
        .map(|node| {
            let number = |key: &str| node[key].as_u64().unwrap_or_default();
            let state = node["state"].as_str().unwrap_or_default().to_owned();
            (number("id"), u32::try_from(number("pid")).unwrap_or_default(), state)
        })
        .collect()
}

fn leader(cluster: &Cluster) -> Option<u64> {
    observers(cluster).into_iter().find(|(_, _, state)| state == "leader").map(|(id, ..)| id)
}

fn kill(cluster: &Cluster, id: u64) {
    let pid = until("its process", || observers(cluster).into_iter().find(|(o, ..)| *o == id).map(|(_, pid, _)| pid));
    let pid = quorate_chaos::proc::ProcessId(pid);
    pid.kill().expect("an observer");
    until("its end", || (!pid.alive()).then_some(()));
    // Its threads let go of the listeners a moment later.
    let ports = cluster.ports();
    for port in [ports.observer(id), ports.observer_peer(id)] {
        until("its port", || std::net::TcpListener::bind(port).ok().map(drop));
    }
}

fn all_vote(cluster: &Cluster) {
    until("three observers that vote", || {
        let all = observers(cluster);
        let votes = |state: &str| state == "leader" || state == "follower";
        let one = all.iter().filter(|(_, _, state)| state == "leader").count() == 1;
        (all.len() == 3 && one && all.iter().all(|(_, _, state)| votes(state))).then_some(())
    });
}

fn home(cluster: &Cluster, id: u64) -> PathBuf {
    cluster.files().data(&format!("observer-{id}"))
}

fn said(cluster: &Cluster, id: u64) -> String {
    std::fs::read_to_string(cluster.files().log(&format!("observer-{id}"))).unwrap_or_default()
}

fn newest_log(cluster: &Cluster, id: u64) -> PathBuf {
    let files = std::fs::read_dir(home(cluster, id).join("wal")).expect("its log");
    let paths = files.map(|file| file.expect("a file").path());
    paths.filter(|path| path.extension().is_some_and(|ext| ext == "raftlog")).max().expect("a log file")
}

/// Length without the zeros that are preallocated behind the records.
fn used(log: &PathBuf) -> u64 {
    let bytes = std::fs::read(log).unwrap_or_else(|e| panic!("{}: {e}", log.display()));
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |at| at as u64 + 1)
}

fn create(cluster: &Cluster, topic: &str) {
    until(topic, || {
        let done = quorate(cluster, &["topic", "create", topic, "--partitions", "1", "--timeout", "5s"]);
        (done.code() == 0 || done.stderr.contains("ALREADY_EXISTS")).then_some(())
    });
}

/// What becomes of an observer's disk, which had `before` bytes of log at an earlier time.
type Damage = fn(&Cluster, u64, u64);

/// An observer is damaged twice under load: once while the others go on, and once where it and a third that missed a
/// committed change are a majority, which must elect nobody.
fn damaged(damage: Damage, words: &str) {
    let mut cluster = cluster();
    let runtime = runtime();
    let (load, from) = runtime.block_on(async {
        let client = cluster.client().await.unwrap_or_else(|e| panic!("{e}"));
        client.admin().create_topic("load", 1).await.unwrap_or_else(|e| panic!("{e}"));
        View::new(&client).healthy("load", 0).await.unwrap_or_else(|e| panic!("{e}"));
        let from = ends(&client, "load").await.unwrap_or_else(|e| panic!("{e}"));
        let shape = Shape::one_producer("load", 1, 200);
        let load = OpenLoop::start(&client, shape, 200.0, None).await.unwrap_or_else(|e| panic!("{e}"));
        (load, from)
    });
    let acknowledged = || load.run.look().ledger.acknowledged();
    let goes_on = |more: u64| {
        let before = acknowledged();
        until("publishing goes on", || (acknowledged() >= before + more).then_some(()));
    };
    goes_on(200);

    // It comes back by itself, and then carries the group together with one other.
    let first = until("a leader", || leader(&cluster));
    let (victim, third) = (first % 3 + 1, (first + 1) % 3 + 1);
    let before = used(&newest_log(&cluster, victim));
    create(&cluster, "early");
    kill(&cluster, victim);
    damage(&cluster, victim, before);
    let lines = said(&cluster, victim).lines().count();
    cluster.start_alone("observer", victim).unwrap_or_else(|e| panic!("{e}"));
    for what in [words, "is sound again: it votes"] {
        until(what, || said(&cluster, victim).lines().skip(lines).any(|line| line.contains(what)).then_some(()));
    }
    all_vote(&cluster);
    until("no marker", || (!home(&cluster, victim).join("SUSPECT").exists()).then_some(()));
    kill(&cluster, third);
    goes_on(400);
    let worst = load.run.look().timeline.longest_gap();
    println!("{words}: longest gap while it was replaced: {worst:?}");

    // Only the leader and the victim know the next change; then the leader dies, and the victim is damaged.
    let before = used(&newest_log(&cluster, victim));
    create(&cluster, "precious");
    let leads = until("a leader", || leader(&cluster));
    let other = if leads == victim { first } else { leads };
    kill(&cluster, other);
    kill(&cluster, victim);
    damage(&cluster, victim, before);
    let lines = said(&cluster, victim).lines().count();
    cluster.start_alone("observer", victim).unwrap_or_else(|e| panic!("{e}"));
    cluster.start_alone("observer", third).unwrap_or_else(|e| panic!("{e}"));
    let waits = format!("observer {other} has not answered");
    until("it waits for the one that knows", || {
        said(&cluster, victim).lines().skip(lines).any(|line| line.contains(&waits)).then_some(())
    });
    let quiet = Instant::now();
    while quiet.elapsed() < Duration::from_secs(4) {
        assert_eq!(leader(&cluster), None, "a majority that lacks a committed change must not elect");
        std::thread::sleep(POLL);
    }
    cluster.start_alone("observer", other).unwrap_or_else(|e| panic!("{e}"));
    all_vote(&cluster);
    let topics = quorate(&cluster, &["topic", "list"]).ok().text();
    assert!(topics.contains("precious") && topics.contains("early"), "{topics}");
    goes_on(400);
    runtime.block_on(async {
        let progress = load.stop().await.unwrap_or_else(|e| panic!("{e}"));
        let reader = cluster.client().await.unwrap_or_else(|e| panic!("{e}"));
        let mut ledger = progress.ledger;
        let to_end = read_back(&reader, "load", &from, &mut ledger).await.unwrap_or_else(|e| panic!("{e}"));
        let (audit, complaints) = ledger.close(to_end);
        println!("{words}: {audit:?}");
        assert!(audit.clean() && to_end, "{audit:?}\n{complaints:?}");
    });
}

#[test]
fn an_empty_disk() {
    damaged(
        |cluster, id, _| std::fs::remove_dir_all(home(cluster, id)).expect("removable"),
        "this observer remembers nothing",
    );
}

#[test]
fn a_deleted_log() {
    damaged(
        |cluster, id, _| std::fs::remove_dir_all(home(cluster, id).join("wal")).expect("removable"),
        "its log is gone",
    );
}

#[test]
fn a_log_that_was_cut_back() {
    let cut: Damage = |cluster, id, before| {
        let log = newest_log(cluster, id);
        assert!(used(&log) > before, "the log went on in the same file");
        OpenOptions::new().write(true).open(log).and_then(|file| file.set_len(before)).expect("the log file");
    };
    damaged(cut, "flushes are missing");
}

#[test]
fn a_log_with_flipped_bytes() {
    let flip: Damage = |cluster, id, before| {
        let file = OpenOptions::new().write(true).open(newest_log(cluster, id)).expect("the log file");
        file.write_all_at(b"ZZZZ", before + 4).expect("writable");
    };
    damaged(flip, "the write-ahead log lost flushed entries");
}

/// Every observer met a disk error: no log is trusted, but all are there, and the longest leads.
#[test]
fn all_logs_suspect_and_all_of_them_there() {
    let mut cluster = cluster();
    create(&cluster, "precious");
    cluster.kill_all();
    for id in 1..=3 {
        std::fs::write(home(&cluster, id).join("SUSPECT"), "suspect: a test's disk error").expect("writable");
        cluster.start_alone("server", id).unwrap_or_else(|e| panic!("{e}"));
    }
    for id in [1, 2] {
        cluster.start_alone("observer", id).unwrap_or_else(|e| panic!("{e}"));
    }
    until("it waits", || said(&cluster, 1).contains("observer 3 has not answered").then_some(()));
    assert_eq!(leader(&cluster), None, "two of three suspect logs prove nothing");
    cluster.start_alone("observer", 3).unwrap_or_else(|e| panic!("{e}"));
    all_vote(&cluster);
    assert!(quorate(&cluster, &["topic", "list"]).ok().text().contains("precious"));
}
