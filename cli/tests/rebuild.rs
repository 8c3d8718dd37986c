//! All observers' disks lost (M5): the directory is rebuilt from what the data nodes know, and the same client goes on.

mod common;

use common::{cluster, quorate, runtime, until};
use quorate_chaos::cluster::View;
use quorate_chaos::load::{OpenLoop, Shape};
use quorate_chaos::reader::{ends, read_back};
use serde_json::Value;

#[test]
fn a_directory_whose_disks_are_all_gone_is_rebuilt_from_the_data_nodes() {
    let mut cluster = cluster();
    let runtime = runtime();
    let rebuild = |cluster: &quorate_chaos::cluster::Cluster, more: &[&str]| {
        let args = ["observer", "rebuild", "--from-nodes", "--output", "json"];
        quorate(cluster, &[&args[..], more].concat())
    };
    quorate(&cluster, &["topic", "create", "keyed", "--partitions", "2"]).ok();
    let keyed = ["produce", "keyed", "--key", "k", "--idempotency-key", "payment-1", "--output", "json"];
    let publish = |cluster: &quorate_chaos::cluster::Cluster| {
        let mut command = cluster.command();
        common::pipe(command.args(keyed), b"one payment")
    };
    assert_eq!(publish(&cluster).ok().json()["committed"], 1);
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
    until("a steady load", || (acknowledged() > 300).then_some(()));
    let refused = rebuild(&cluster, &[]);
    assert_eq!(refused.json()["error"]["reason"], "REFUSED_UNSAFE", "the observers have a directory");
    let before = quorate(&cluster, &["partition", "describe", "load/0", "--output", "json"]).ok().json();

    // Every observer and its disk is gone, at once.
    let observers: Vec<Value> = quorate(&cluster, &["node", "list", "--output", "json"]).ok().json()["nodes"]
        .as_array()
        .cloned()
        .unwrap_or_default()
        .into_iter()
        .filter(|node| node["role"] == "observer")
        .collect();
    for node in &observers {
        let pid = u32::try_from(node["pid"].as_u64().unwrap_or_default()).unwrap_or_default();
        let pid = quorate_chaos::proc::ProcessId(pid);
        pid.kill().expect("an observer");
        until("its end", || (!pid.alive()).then_some(()));
    }
    for id in 1..=3 {
        std::fs::remove_dir_all(cluster.files().data(&format!("observer-{id}"))).expect("removable");
        cluster.start_alone("observer", id).unwrap_or_else(|e| panic!("{e}"));
    }

    // They begin an empty directory, in which nothing can be made while nodes know another one.
    let why = until("the remark", || {
        let text = quorate(&cluster, &["why"]).text();
        text.contains("lost their directory").then_some(text)
    });
    assert!(why.contains("observers-rebuild.md"), "{why}");
    let made = quorate(&cluster, &["topic", "create", "other", "--partitions", "1", "--output", "json"]);
    assert_eq!(made.json()["error"]["reason"], "NEEDS_OPERATOR", "{}", made.text());

    // The leases run out, then a plan is shown; showing it does nothing.
    let plan = until("a plan", || {
        let shown = rebuild(&cluster, &[]);
        (shown.code() == 0).then(|| shown.json())
    });
    println!("plan: {plan}");
    let effect = plan["effect"].to_string();
    assert!(effect.contains("3 nodes") && effect.contains("load/0"), "{effect}");
    let stale = rebuild(&cluster, &["--plan", "0000-00"]);
    assert_eq!(stale.json()["error"]["reason"], "PLAN_STALE");
    let stopped = acknowledged();
    let done = until("the deed", || {
        // A report may have moved what the plan rests on: look again.
        let token = rebuild(&cluster, &[]).json()["plan"].as_str().unwrap_or_default().to_owned();
        let done = rebuild(&cluster, &["--plan", &token]);
        (done.code() == 0).then(|| done.json())
    });
    assert_eq!(done["done"], true);
    until("the same client goes on", || (acknowledged() > stopped + 300).then_some(()));

    let after = quorate(&cluster, &["partition", "describe", "load/0", "--output", "json"]).ok().json();
    println!("before {before}\nafter {after}");
    assert_eq!(after["group_id"], before["group_id"]);
    assert!(after["permit_epoch"].as_u64() > before["permit_epoch"].as_u64(), "{after}");
    assert!(after["epoch"].as_u64() >= before["epoch"].as_u64(), "{after}");
    let again = publish(&cluster).ok().json();
    assert_eq!(again["duplicates"], 1, "the key window answers: {again}");
    quorate(&cluster, &["topic", "create", "other", "--partitions", "1"]).ok();
    let audit = quorate(&cluster, &["audit", "show"]).ok().text();
    assert!(audit.contains("observer rebuild"), "{audit}");
    let refused = rebuild(&cluster, &[]);
    assert_eq!(refused.json()["error"]["reason"], "REFUSED_UNSAFE", "once is enough");
    runtime.block_on(async {
        let progress = load.stop().await.unwrap_or_else(|e| panic!("{e}"));
        let reader = cluster.client().await.unwrap_or_else(|e| panic!("{e}"));
        let mut ledger = progress.ledger;
        let to_end = read_back(&reader, "load", &from, &mut ledger).await.unwrap_or_else(|e| panic!("{e}"));
        let (audit, complaints) = ledger.close(to_end);
        println!("{audit:?}");
        assert!(audit.clean() && to_end, "{audit:?}\n{complaints:?}");
    });
}
