//! `quorate dev`: start, stop, second start, and everything that keeps it from starting.

mod common;

use std::net::TcpListener;
use std::process::Command;

use common::{alone, binary, cluster, pipe, quorate, Done};
use quorate_chaos::layout::ReservedPorts;
use quorate_chaos::proc::ProcessId;

/// Waits until none of the processes lives.
fn wait_gone(pids: &[ProcessId]) {
    while pids.iter().any(|pid| pid.alive()) {
        std::thread::yield_now();
    }
}

fn dev(data: &std::path::Path, base: u16) -> Done {
    let mut command = Command::new(binary());
    command.arg("dev").arg("--data").arg(data).arg("--port-base").arg(base.to_string());
    Done::from(command.output().expect("the binary runs"))
}

#[test]
fn dev_serves_says_what_to_type_next_and_finds_its_data_again() {
    let mut cluster = cluster();
    let said = cluster.said();
    let mut at = 0;
    for what in ["produce orders", "consume orders", "kill -9", "slo", "Ctrl-C"] {
        let found = said[at..].find(what);
        at += found.unwrap_or_else(|| panic!("`{what}` is missing, or not in order:\n{said}"));
    }
    // As it looks where the binary is on the path.
    let shown = said.replace(&binary().display().to_string(), "quorate");
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    let topic = quorate(&cluster, &["topic", "describe", "orders", "--output", "json"]).ok().json();
    assert_eq!(topic["partitions"], 3);
    let publish = ["produce", "orders", "--idempotency-key", "first", "--key", "k", "--output", "json"];
    let mut first = cluster.command();
    let sent = pipe(first.args(publish), b"kept over a restart\n").ok().json();
    assert_eq!(sent["committed"], 1);

    let pids = cluster.pids();
    assert_eq!(pids.len(), 10, "quorate dev, three supervisors, three nodes, three observers: {pids:?}");
    let status = cluster.interrupt().unwrap_or_else(|e| panic!("{e}"));
    assert!(status.success(), "SIGINT is an orderly end: {status}");
    wait_gone(&pids);

    cluster.start_again().unwrap_or_else(|e| panic!("{e}"));
    let read = quorate(&cluster, &["consume", "orders", "--count", "1", "--timeout", "20s"]).ok();
    assert_eq!(read.stdout, b"kept over a restart\n");
    let again = quorate(&cluster, &["topic", "describe", "orders", "--output", "json"]).ok().json();
    assert_eq!(again["topic_id"], topic["topic_id"], "the topic is the same, not a namesake");
}

#[test]
fn the_death_of_dev_itself_ends_all_its_processes() {
    let cluster = cluster();
    let pids = cluster.pids();
    cluster.dev_pid().expect("runs").kill().expect("our child");
    wait_gone(&pids);
}

#[test]
fn a_second_instance_on_the_same_data_is_refused_in_one_line() {
    let cluster = cluster();
    let ports = ReservedPorts::find().expect("ports");
    let refused = dev(&cluster.files().root, ports.ports.base);
    assert_eq!(refused.code(), 1);
    assert_eq!(refused.stderr.lines().count(), 1, "{}", refused.stderr);
    let pid = cluster.dev_pid().expect("runs").0;
    assert!(refused.stderr.contains("in use") && refused.stderr.contains(&pid.to_string()), "{}", refused.stderr);
    // The first one is undisturbed.
    quorate(&cluster, &["topic", "list"]).ok();
}

#[test]
fn a_port_in_use_is_named_with_its_holder_in_one_line() {
    let dir = tempfile::tempdir().expect("a directory");
    let ports = ReservedPorts::find().expect("ports");
    let _taken = TcpListener::bind(ports.ports.observer(2)).expect("free a moment ago");
    let refused = dev(&dir.path().join("data"), ports.ports.base);
    assert_eq!(refused.code(), 1);
    assert_eq!(refused.stderr.lines().count(), 1, "{}", refused.stderr);
    let port = ports.ports.observer(2).port().to_string();
    let holder = std::process::id().to_string();
    for word in [port.as_str(), holder.as_str(), "--port-base"] {
        assert!(refused.stderr.contains(word), "{word} is missing: {}", refused.stderr);
    }
}

#[test]
fn a_foreign_data_directory_is_refused_in_one_line_and_left_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("thesis.tex"), "years of work").expect("writes");
    let ports = ReservedPorts::find().expect("ports");
    let refused = dev(dir.path(), ports.ports.base);
    assert_eq!(refused.code(), 1);
    assert_eq!(refused.stderr.lines().count(), 1, "{}", refused.stderr);
    assert!(refused.stderr.contains("--data"), "{}", refused.stderr);
    assert_eq!(std::fs::read_dir(dir.path()).expect("readable").count(), 1);
}

#[test]
fn a_node_refuses_the_data_of_another_cluster() {
    let mut cluster = cluster();
    cluster.interrupt().unwrap_or_else(|e| panic!("{e}"));
    let config = cluster.files().config("node-1");
    let foreign = "cluster_id=0123456789abcdef0123456789abcdef";
    let config = config.to_str().expect("a path");
    let refused = alone(&["server", "--config", config, "--set", foreign, "--set", "log_file=/dev/null"]);
    assert_ne!(refused.code(), 0);
    assert!(refused.stderr.contains("cluster"), "{}", refused.stderr);
}

#[test]
fn nothing_runs_here_is_said_with_advice_and_as_json() {
    let ports = ReservedPorts::find().expect("ports");
    let observers = ports.ports.observers().join(",");
    let args = ["node", "list", "--observers", &observers, "--timeout", "1s", "--output", "json"];
    let refused = alone(&args);
    assert_eq!(refused.code(), 1);
    let error = &refused.json()["error"];
    assert_eq!(error["reason"], "UNREACHABLE");
    assert_eq!(error["retryable"], true);
    for address in ports.ports.observers() {
        assert!(refused.stderr.contains(&address), "each observer tried is named: {}", refused.stderr);
    }
    assert!(refused.stderr.contains("quorate dev"), "{}", refused.stderr);
}
