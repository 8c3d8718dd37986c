//! One of each fault of the timelines that `faults.rs` and `handoff.rs` leave out, by the command that measures them: it
//! comes back, leaves a record, and the audit finds everything in its place. How long it takes is measured with many
//! repeats by `make timelines`; here a gap must only be far below the next slower mechanism, the replicas' own time-out
//! of 12 s.

mod common;

use common::alone;
use quorate_chaos::network;
use serde_json::Value;

/// Of one repeat, ms.
const GAP: f64 = 6_000.0;

fn measured(args: &[&str]) -> Value {
    let mut all = vec!["bench"];
    all.extend(args);
    all.extend(["--repeat", "1", "--rate", "500", "--output", "json"]);
    let done = alone(&all);
    println!("{}", done.stderr);
    assert_eq!(done.code(), 0, "{}\n{}", done.text(), done.stderr);
    let report = done.json();
    println!("{}: {} ms, {} resent", report["settings"]["fault"], report["gap_ms"]["all"], report["resent"]);
    assert_eq!(report["repeats"], 1, "{report}");
    let gap = report["gap_ms"]["max"].as_f64().unwrap_or(f64::MAX);
    assert!(gap < GAP, "{gap} ms: {report}");
    assert!(report["audit"]["acknowledged"].as_u64() > Some(0), "{report}");
    report
}

/// A leader moved: its record has phases.
fn failover(fault: &str) -> Value {
    let report = measured(&["failover", "--fault", fault]);
    assert!(report["phases_ms"]["elected"].is_number(), "{report}");
    report
}

/// Faults of networks, on hosts that can be cut off; says so where they cannot.
fn cut(fault: &str) {
    match network::unavailable() {
        None => drop(failover(fault)),
        Some(why) => {
            println!("skipped {fault}: {why}");
            let refused = alone(&["bench", "failover", "--fault", fault, "--repeat", "1"]);
            assert_eq!(refused.code(), 1);
            assert!(refused.stderr.contains(&why), "{}", refused.stderr);
        }
    }
}

#[test]
fn the_observer_leader_killed_with_a_leader() {
    failover("kill-with-observer-leader");
}

#[test]
fn a_paused_leader_host() {
    failover("pause");
}

#[test]
fn a_leader_host_cut_off() {
    cut("cut");
}

#[test]
fn a_leader_host_that_hears_nobody() {
    cut("deaf");
}

#[test]
fn a_leader_host_cut_off_from_the_observers_only() {
    cut("cut-observers");
}

#[test]
fn everything_restarted_at_once() {
    let report = measured(&["failover", "--fault", "restart-all", "--partitions", "5"]);
    assert_eq!(report["failed"], 0, "{report}");
}
