//! Faults under an open-loop load, each with the exact audit: how long do clients wait, and is everything there?
//!
//! The gaps are objectives of the design, not speeds of this machine: each lies far below the next slower mechanism
//! (a time-out instead of an exit notice, a lease instead of a fence), so a missed one means that the mechanism failed.
//! The median of three counts, because two processors are shared with whatever else runs.

mod common;

use std::time::Duration;

use common::{cluster, configured, quorate, runtime};
use quorate_chaos::bench::{failover, FailoverSettings, Fault, Report, Target};
use quorate_chaos::cluster::{Cluster, View};
use quorate_chaos::layout::NODES;
use quorate_chaos::load::{OpenLoop, Progress, Shape};
use quorate_chaos::reader::{ends, read_back, Positions};

fn inject(cluster: &Cluster, fault: Fault) -> Report {
    let settings = FailoverSettings::new(fault, 3);
    let target = Target::Running(cluster.observers());
    let told = |text: &str| println!("{text}");
    let report = runtime().block_on(failover(target, &settings, &told)).unwrap_or_else(|e| panic!("{e}"));
    println!("{}", report.verdict());
    assert!(report.audit.clean(), "{:?}\n{:?}", report.audit, report.findings);
    assert_eq!(report.audit.unconfirmed, 0, "{:?}", report.audit);
    report
}

#[test]
fn a_killed_leader_process_costs_half_a_second_and_its_phases_add_up_to_the_gap() {
    let cluster = cluster();
    let report = inject(&cluster, Fault::Kill);
    let figures = report.failover.expect("figures");
    assert!(figures.gap_ms.p50 <= 500.0, "{figures:?}");
    assert_eq!(figures.failed, 0, "no record fails in half a second");
    for phase in ["permit", "elected", "noop_committed", "lease", "first_acknowledgement"] {
        assert!(figures.phases_ms.contains_key(phase), "{phase} is missing: {figures:?}");
    }
    let off: Vec<f64> =
        figures.gap_ms.all.iter().zip(&figures.phases_sum_ms).map(|(gap, sum)| (gap - sum).abs()).collect();
    assert_eq!(off.len(), 3, "every failover is on record: {figures:?}");
    let mut sorted = off.clone();
    sorted.sort_by(f64::total_cmp);
    assert!(sorted[1] <= 20.0, "phases {:?} against gaps {:?}", figures.phases_sum_ms, figures.gap_ms.all);
    let text = quorate(&cluster, &["slo"]).ok().text();
    assert!(text.contains("noop committed"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let slo = quorate(&cluster, &["slo", "--output", "json"]).ok().json();
    let causes = slo["summary"]["causes"].as_array().cloned().unwrap_or_default();
    let killed = causes.iter().find(|cause| cause["cause"] == "exit_notice").unwrap_or_else(|| panic!("{slo}"));
    assert!(killed["count"].as_u64() >= Some(3), "{slo}");
    let spread = &killed["total_ms"];
    assert!(spread["p50"].as_f64() <= spread["max"].as_f64() && spread["p99"] == spread["max"], "{slo}");
    assert_eq!(slo["summary"]["false_failovers"], 0, "a dead process is no guess: {slo}");
}

#[test]
fn with_the_supervisor_killed_too_it_costs_two_seconds() {
    let cluster = cluster();
    let figures = inject(&cluster, Fault::KillWithSupervisor).failover.expect("figures");
    assert!(figures.gap_ms.p50 <= 2_000.0, "{figures:?}");
}

#[test]
fn a_killed_observer_is_not_felt_whether_it_leads_or_follows() {
    let cluster = Cluster::start_with(common::binary(), "2s").unwrap_or_else(|e| panic!("{e}"));
    for fault in [Fault::Observer, Fault::ObserverLeader] {
        let figures = inject(&cluster, fault).failover.expect("figures");
        assert!(figures.gap_ms.p50 <= 100.0, "{}: {figures:?}", fault.name());
        assert_eq!(figures.failed, 0, "{}", fault.name());
    }
}

/// A load on a topic of its own.
async fn start_load(cluster: &Cluster, topic: &str, run: u64, rate: f64) -> (OpenLoop, Positions) {
    let client = cluster.client().await.unwrap_or_else(|e| panic!("{e}"));
    match client.admin().create_topic(topic, 1).await {
        Ok(_) => {}
        Err(refusal) => assert_eq!(refusal.reason, quorate_client::Reason::AlreadyExists, "{refusal}"),
    }
    View::new(&client).healthy(topic, 0).await.unwrap_or_else(|e| panic!("{e}"));
    let from = ends(&client, topic).await.unwrap_or_else(|e| panic!("{e}"));
    let shape = Shape::one_producer(topic, run, 200);
    let load = OpenLoop::start(&client, shape, rate, None).await.unwrap_or_else(|e| panic!("{e}"));
    (load, from)
}

async fn audit(cluster: &Cluster, topic: &str, from: &Positions, progress: Progress) {
    let reader = cluster.client().await.unwrap_or_else(|e| panic!("{e}"));
    let mut ledger = progress.ledger;
    let to_end = read_back(&reader, topic, from, &mut ledger).await.unwrap_or_else(|e| panic!("{e}"));
    let (audit, complaints) = ledger.close(to_end);
    println!("{audit:?}");
    assert!(audit.clean() && to_end, "{audit:?}\n{complaints:?}");
    assert!(audit.acknowledged > 0);
}

/// Waits until `reached` holds for the run.
async fn until(load: &OpenLoop, what: &str, limit: Duration, reached: impl Fn(&Progress) -> bool) {
    let started = std::time::Instant::now();
    while !reached(&load.run.look()) {
        assert!(started.elapsed() < limit, "{what} was not reached within {limit:?}: {:?}", load.run.look().failures);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn without_an_observer_majority_publishing_stops_with_the_leases_and_goes_on_when_one_comes_back() {
    let mut cluster = cluster();
    let runtime = runtime();
    let (load, from) = runtime.block_on(start_load(&cluster, "leases", 1, 200.0));
    let seen = |progress: &Progress| progress.ledger.acknowledged();
    runtime.block_on(until(&load, "a steady load", Duration::from_secs(30), |p| seen(p) > 200));
    runtime.block_on(async {
        let client = cluster.client().await.unwrap_or_else(|e| panic!("{e}"));
        let view = View::new(&client);
        for id in [1, 2] {
            let pid = view.pid("observer", id).await.unwrap_or_else(|e| panic!("{e}"));
            pid.kill().expect("an observer");
        }
    });
    let dead_at = load.run.now();
    // The leases end: nothing is acknowledged any more. A pause of two seconds is no hiccup.
    let still = Duration::from_secs(2);
    runtime.block_on(until(&load, "the end of the leases", Duration::from_secs(30), |p| {
        let last = p.timeline.last_ack().unwrap_or_default();
        load.run.now().saturating_sub(last) > still
    }));
    let stopped_at = load.run.look().timeline.last_ack().unwrap_or_default();
    let served = stopped_at.saturating_sub(dead_at);
    println!("served for {served:?} after two observers died");
    assert!(served <= Duration::from_secs(8), "leases of 8 s end: {served:?}");
    // A client asking meanwhile is told so, by a typed error.
    let args = ["produce", "leases", "--key", "k", "--idempotency-key", "typed", "--timeout", "2s", "--output", "json"];
    let refused = quorate(&cluster, &args);
    assert!(refused.code() == 1 || refused.code() == 3, "{refused:?}");
    let typed = ["NO_LEADER", "FENCED", "NOT_LEADER", "DEADLINE", "UNREACHABLE"];
    assert!(typed.iter().any(|reason| refused.stderr.contains(reason)), "{}", refused.stderr);

    cluster.start_alone("observer", 1).unwrap_or_else(|e| panic!("{e}"));
    let back_at = load.run.now();
    let before = seen(&load.run.look());
    runtime.block_on(until(&load, "the same client going on", Duration::from_secs(30), |p| seen(p) > before));
    let took = load.run.now().saturating_sub(back_at);
    println!("went on {took:?} after one observer was started");
    assert!(took <= Duration::from_secs(3), "{took:?}");
    runtime.block_on(until(&load, "a steady load again", Duration::from_secs(30), |p| seen(p) > before + 200));
    let progress = runtime.block_on(load.stop()).unwrap_or_else(|e| panic!("{e}"));
    runtime.block_on(audit(&cluster, "leases", &from, progress));
}

#[test]
fn with_read_index_leaders_go_on_without_observers_and_no_new_one_arises() {
    let mut cluster = configured("observer_loss = \"read_index\"");
    let runtime = runtime();
    let (load, from) = runtime.block_on(start_load(&cluster, "unleased", 1, 200.0));
    let seen = |progress: &Progress| progress.ledger.acknowledged();
    runtime.block_on(until(&load, "a steady load", Duration::from_secs(60), |p| seen(p) > 200));
    let (first, observers) = runtime.block_on(async {
        let client = cluster.client().await.unwrap_or_else(|e| panic!("{e}"));
        let view = View::new(&client);
        let leader = view.partition("unleased", 0).await.unwrap_or_else(|e| panic!("{e}")).leader_node;
        let mut observers = Vec::new();
        for id in 1..=NODES {
            observers.push(view.pid("observer", id).await.unwrap_or_else(|e| panic!("{e}")));
        }
        ((leader, view.pid("server", leader).await.unwrap_or_else(|e| panic!("{e}"))), observers)
    });
    for observer in observers {
        observer.kill().expect("an observer");
    }
    let dead_at = load.run.now();
    // Beyond the last moment of any lease (8 s), and then some.
    let beyond = dead_at + Duration::from_secs(12);
    runtime.block_on(until(&load, "acknowledgements without leases", Duration::from_secs(60), |p| {
        p.timeline.last_ack().is_some_and(|at| at > beyond)
    }));
    assert!(load.run.look().failures.is_empty(), "{:?}", load.run.look().failures);

    // A leader that dies now has no successor: nobody consents to one. Its process is back at once and must wait too.
    first.1.kill().expect("the leader");
    let killed_at = load.run.now();
    let last = load.run.look().timeline.last_ack().unwrap_or_default();
    runtime.block_on(until(&load, "three seconds", Duration::from_secs(60), |_| {
        load.run.now() > killed_at + Duration::from_secs(3)
    }));
    let after = load.run.look().timeline.last_ack().unwrap_or_default();
    assert!(after < last + Duration::from_secs(1), "acknowledged {after:?} although {last:?} was its leader's end");

    for id in [1, 2] {
        cluster.start_alone("observer", id).unwrap_or_else(|e| panic!("{e}"));
    }
    let before = seen(&load.run.look());
    runtime.block_on(until(&load, "going on under a new leader", Duration::from_secs(60), |p| seen(p) > before + 200));
    let progress = runtime.block_on(load.stop()).unwrap_or_else(|e| panic!("{e}"));
    runtime.block_on(audit(&cluster, "unleased", &from, progress));
}

#[test]
fn everything_killed_under_load_ten_times_comes_back_whole_and_no_slower() {
    let mut cluster = cluster();
    let runtime = runtime();
    let mut starts = Vec::new();
    for round in 0..10 {
        let (load, from) = runtime.block_on(start_load(&cluster, "kills", round, 500.0));
        runtime.block_on(until(&load, "a steady load", Duration::from_secs(60), |p| p.ledger.acknowledged() > 300));
        cluster.kill_all();
        let begun = std::time::Instant::now();
        cluster.start_again().unwrap_or_else(|e| panic!("round {round}: {e}"));
        starts.push(begun.elapsed());
        let progress = runtime.block_on(load.stop()).unwrap_or_else(|e| panic!("{e}"));
        runtime.block_on(audit(&cluster, "kills", &from, progress));
    }
    println!("starts: {starts:?}");
    let middle = |part: &[Duration]| {
        let mut sorted = part.to_vec();
        sorted.sort();
        sorted[sorted.len() / 2]
    };
    let (first, last) = (middle(&starts[..5]), middle(&starts[5..]));
    // Growth with what was written would show as a multiple, not as noise.
    assert!(last < first * 2 + Duration::from_secs(1), "start time grows: {starts:?}");
}
