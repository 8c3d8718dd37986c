//! Planned handoffs, drains and orderly ends under load (H1, H2): nothing fails, nothing is sent twice, nothing is lost.

mod common;

use std::time::Duration;

use common::{cluster, quorate, runtime};
use quorate_chaos::bench::{failover, FailoverSettings, Fault, Target};
use quorate_chaos::cluster::{Cluster, View};
use quorate_chaos::load::{OpenLoop, Shape};
use quorate_chaos::proc::ProcessId;
use quorate_chaos::reader::{ends, read_back};
use serde_json::Value;

#[test]
fn handoffs_under_load_fail_no_request_and_send_none_again() {
    let cluster = cluster();
    let settings = FailoverSettings::new(Fault::Handoff, 5);
    let told = |text: &str| println!("{text}");
    let run = failover(Target::Running(cluster.observers()), &settings, &told);
    let report = runtime().block_on(run).unwrap_or_else(|e| panic!("{e}"));
    println!("{}", report.verdict());
    assert!(report.audit.clean(), "{:?}\n{:?}", report.audit, report.findings);
    let figures = report.failover.expect("figures");
    assert_eq!((figures.failed, figures.resent), (0, 0), "{figures:?}");
    assert_eq!(figures.phases_sum_ms.len(), 5, "every handoff is on record: {figures:?}");
    let slo = quorate(&cluster, &["slo"]).ok().text();
    assert!(slo.contains("handoff"), "{slo}");
}

fn leaders(cluster: &Cluster, node: &str) -> u64 {
    let list = quorate(cluster, &["node", "list", "--output", "json"]).ok().json();
    let found = list["nodes"].as_array().and_then(|nodes| nodes.iter().find(|n| n["name"] == node)).cloned();
    found.unwrap_or(Value::Null)["leaders"].as_u64().unwrap_or_else(|| panic!("no {node} in {list}"))
}

#[test]
fn a_drained_node_and_one_that_is_told_to_end_hand_their_leaders_over_under_load() {
    let cluster = cluster();
    let runtime = runtime();
    let (load, from, view) = runtime.block_on(async {
        let client = cluster.client().await.unwrap_or_else(|e| panic!("{e}"));
        client.admin().create_topic("drained", 6).await.unwrap_or_else(|e| panic!("{e}"));
        let view = View::new(&client);
        for partition in 0..6 {
            view.healthy("drained", partition).await.unwrap_or_else(|e| panic!("{e}"));
        }
        let from = ends(&client, "drained").await.unwrap_or_else(|e| panic!("{e}"));
        let topic = "drained".to_owned();
        let shape = Shape::one_producer(topic, 9, 200);
        let load = OpenLoop::start(&client, shape, 400.0, None).await.unwrap_or_else(|e| panic!("{e}"));
        (load, from, view)
    });
    assert!(leaders(&cluster, "node-1") > 0);
    let drained = quorate(&cluster, &["node", "drain", "node-1", "--output", "json"]).ok().json();
    assert_eq!(drained["node"]["leaders"], 0, "{drained}");
    assert_eq!(leaders(&cluster, "node-1"), 0);
    let refused = quorate(&cluster, &["leader", "handoff", "drained/0", "--to", "node-1", "--output", "json"]);
    assert_ne!(refused.code(), 0);
    let refused = refused.json();
    assert_eq!(refused["error"]["reason"], "REFUSED_UNSAFE", "{refused}");
    quorate(&cluster, &["node", "undrain", "node-1"]).ok();

    // SIGTERM to the node's process: it hands over and ends in order, and its supervisor starts it again.
    let pid = runtime.block_on(view.pid("server", 2)).unwrap_or_else(|e| panic!("{e}"));
    assert!(leaders(&cluster, "node-2") > 0);
    pid.signal(quorate_chaos::proc::Signal::TERM).expect("the node runs");
    wait_for_another(&runtime, &view, pid);

    let progress = runtime.block_on(async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        load.stop().await.unwrap_or_else(|e| panic!("{e}"))
    });
    assert!(progress.failures.is_empty(), "no request fails: {:?}", progress.failures);
    let mut ledger = progress.ledger;
    let to_end = runtime.block_on(async {
        let reader = cluster.client().await.unwrap_or_else(|e| panic!("{e}"));
        read_back(&reader, "drained", &from, &mut ledger).await.unwrap_or_else(|e| panic!("{e}"))
    });
    let (audit, complaints) = ledger.close(to_end);
    println!("{audit:?}");
    assert!(audit.clean() && to_end && audit.acknowledged > 0, "{audit:?}\n{complaints:?}");
}

fn wait_for_another(runtime: &tokio::runtime::Runtime, view: &View, old: ProcessId) {
    let started = std::time::Instant::now();
    loop {
        if runtime.block_on(view.pid("server", 2)).is_ok_and(|pid| pid != old) {
            return;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "the node did not come back");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_pinned_leader_is_shown_and_unpinned() {
    let cluster = cluster();
    let before = quorate(&cluster, &["partition", "describe", "orders/0", "--output", "json"]).ok().json();
    let to = if before["leader"] == "node-2" { "node-3" } else { "node-2" };
    let moved = quorate(&cluster, &["leader", "handoff", "orders/0", "--to", to, "--output", "json"]).ok().json();
    assert_eq!(moved["leader"], to, "{moved}");
    let after = quorate(&cluster, &["partition", "describe", "orders/0", "--output", "json"]).ok().json();
    assert_eq!((&after["leader"], &after["pinned_to"]), (&Value::from(to), &Value::from(to)), "{after}");
    quorate(&cluster, &["leader", "unpin", "orders/0"]).ok();
    let after = quorate(&cluster, &["partition", "describe", "orders/0", "--output", "json"]).ok().json();
    assert_eq!(after["pinned_to"], Value::Null);
    let again = quorate(&cluster, &["leader", "handoff", "orders/0", "--to", to, "--output", "json"]);
    assert_eq!(again.json()["error"]["reason"], "INVALID_ARGUMENT", "it leads already");
}
