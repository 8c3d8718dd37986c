//! Lost disks and moved replicas (M1, M2, M4) with real processes, under load: nothing acknowledged is lost, and the new
//! replica counts like the old one did.

mod common;

use common::{cluster, quorate, runtime, until};
use quorate_chaos::cluster::{Cluster, View};
use quorate_chaos::load::{OpenLoop, Shape};
use quorate_chaos::reader::{ends, read_back};
use serde_json::Value;

fn describe(cluster: &Cluster) -> Value {
    let done = quorate(cluster, &["partition", "describe", "safe/0", "--output", "json"]);
    serde_json::from_str(done.text().lines().last().unwrap_or_default()).unwrap_or(Value::Null)
}

/// Replica id and state on a node.
fn on(partition: &Value, node: &str) -> Option<(u64, String)> {
    let found = partition["replicas"].as_array()?.iter().find(|r| r["node"] == node)?.clone();
    Some((found["replica"].as_u64()?, found["state"].as_str()?.to_owned()))
}

/// All three members are well and hold everything.
fn healthy(cluster: &Cluster) -> Option<Value> {
    let now = describe(cluster);
    let replicas = now["replicas"].as_array()?;
    let well = |r: &Value| (r["state"] == "leader" || r["state"] == "follower") && r["lag"].as_u64() < Some(100);
    (replicas.len() == 3 && !now["leader"].is_null() && replicas.iter().all(well)).then_some(now)
}

/// A node process and its supervisor are gone, as with their host.
fn kill_host(cluster: &Cluster, id: u64) {
    runtime().block_on(async {
        let client = cluster.client().await.unwrap_or_else(|e| panic!("{e}"));
        let view = View::new(&client);
        let supervisor = view.supervisor(id).await.unwrap_or_else(|e| panic!("{e}"));
        let node = view.pid("server", id).await.unwrap_or_else(|e| panic!("{e}"));
        supervisor.kill().and_then(|()| node.kill()).unwrap_or_else(|e| panic!("{e}"));
        until("the processes to be gone", || (!supervisor.alive() && !node.alive()).then_some(()));
    });
}

/// A fourth data node, in a fault domain of its own.
fn add_fourth(cluster: &mut Cluster) {
    let text = std::fs::read_to_string(cluster.files().config("node-3")).expect("node 3's configuration");
    let (ports, mut text) = (cluster.ports(), text.replace("node-3", "node-4").replace("node_id = 3", "node_id = 4"));
    for (third, fourth) in [
        (ports.node(3), ports.node(4)),
        (ports.node_peer(3), ports.node_peer(4)),
        (ports.node_metrics(3), ports.node_metrics(4)),
    ] {
        text = text.replace(&third.to_string(), &fourth.to_string());
    }
    std::fs::write(cluster.files().config("node-4"), text).expect("writable");
    cluster.start_alone("server", 4).unwrap_or_else(|e| panic!("{e}"));
}

/// Publishes while `act` runs, and counts every record afterwards.
fn under_load(cluster: &mut Cluster, run: u64, act: impl FnOnce(&mut Cluster)) {
    let runtime = runtime();
    let (client, load, from) = runtime.block_on(async {
        let client = cluster.client().await.unwrap_or_else(|e| panic!("{e}"));
        let from = ends(&client, "safe").await.unwrap_or_else(|e| panic!("{e}"));
        let topic = "safe".to_owned();
        let shape = Shape::one_producer(topic, run, 300);
        let load = OpenLoop::start(&client, shape, 300.0, None).await.unwrap_or_else(|e| panic!("{e}"));
        (client, load, from)
    });
    act(cluster);
    let (audit, complaints) = runtime.block_on(async {
        let progress = load.stop().await.unwrap_or_else(|e| panic!("{e}"));
        assert!(progress.failures.is_empty(), "no request fails: {:?}", progress.failures);
        let mut ledger = progress.ledger;
        let to_end = read_back(&client, "safe", &from, &mut ledger).await.unwrap_or_else(|e| panic!("{e}"));
        assert!(to_end, "not everything could be read back");
        ledger.close(to_end)
    });
    println!("{audit:?}");
    assert!(audit.clean() && audit.acknowledged > 0, "{audit:?}\n{complaints:?}");
}

#[test]
fn a_wiped_node_repairs_itself_and_replicas_move_to_a_fourth_node() {
    let mut cluster = cluster();
    quorate(&cluster, &["topic", "create", "safe", "--partitions", "1"]).ok();
    let before = until("a healthy partition", || healthy(&cluster));
    let leader = before["leader"].as_str().expect("led").to_owned();
    let victim = (1..=3).find(|id| format!("node-{id}") != leader).expect("a follower");
    let name = format!("node-{victim}");
    let (old, _) = on(&before, &name).expect("hosted");

    // The host burns down and comes back with an empty disk.
    under_load(&mut cluster, 1, |cluster| {
        kill_host(cluster, victim);
        std::fs::remove_dir_all(cluster.files().data(&name)).expect("removable");
        cluster.start_alone("server", victim).unwrap_or_else(|e| panic!("{e}"));
        let task = until("a task that repairs it", || {
            let list = quorate(cluster, &["task", "list", "--output", "json"]);
            let list: Value = serde_json::from_str(list.text().lines().last().unwrap_or_default()).ok()?;
            list["tasks"].as_array()?.iter().find(|t| t["subject"].as_str().is_some_and(|s| s.ends_with("safe/0")))?
                ["task"]
                .as_u64()
        });
        let done = quorate(cluster, &["task", "wait", &task.to_string(), "--timeout", "90s", "--output", "json"]).ok();
        assert_eq!(done.json()["reason"], "its disk was replaced");
    });
    let after = until("a healthy partition", || healthy(&cluster));
    let (new, _) = on(&after, &name).expect("hosted again");
    assert!(new > old, "never again under its old id: {after}");

    // The new replica makes majorities: with another host gone, everything goes on.
    let other = (1..=3).find(|id| *id != victim && format!("node-{id}") != leader).expect("the third");
    under_load(&mut cluster, 2, |cluster| {
        kill_host(cluster, other);
        let reached = describe(cluster)["high_watermark"].as_u64().unwrap_or_default();
        until("acknowledgements with the new replica", || {
            (describe(cluster)["high_watermark"].as_u64()? > reached + 300).then_some(())
        });
        cluster.start_alone("server", other).unwrap_or_else(|e| panic!("{e}"));
        until("a healthy partition", || healthy(cluster));
    });

    // A move to a fourth node: the leader itself goes, after it has handed over.
    add_fourth(&mut cluster);
    until("node 4", || {
        let list = quorate(&cluster, &["node", "list", "--output", "json"]).json();
        let up = |n: &Value| n["name"] == "node-4" && n["health"] == "up";
        list["nodes"].as_array()?.iter().any(up).then_some(())
    });
    under_load(&mut cluster, 3, |cluster| {
        let leader = describe(cluster)["leader"].as_str().expect("led").to_owned();
        let args = ["replica", "move", "safe/0", "--from", &leader, "--to", "node-4", "--wait", "--timeout", "90s"];
        let moved = quorate(cluster, &args).ok().text();
        assert!(moved.contains("done"), "{moved}");
        let now = until("a healthy partition", || healthy(cluster));
        assert_eq!(on(&now, &leader), None, "{now}");
        assert!(on(&now, "node-4").is_some(), "{now}");
        // What the moved replica had is deleted there.
        let partitions = cluster.files().data(&leader).join("partitions");
        let group = now["group_id"].to_string();
        until("its data to be gone", || (!partitions.join(&group).exists()).then_some(()));
    });

    // Refusals say why.
    let refused = quorate(&cluster, &["replica", "move", "safe/0", "--from", "node-9", "--to", "node-4"]);
    assert_ne!(refused.code(), 0);
    assert!(refused.stderr.contains("there is no such data node"), "{}", refused.stderr);
}

/// A receiver that dies in the middle of a snapshot gets the rest of it, not the whole again; and one that is not wanted any more
/// in the middle of its snapshot gives its place back.
#[test]
fn a_snapshot_whose_receiver_is_killed_goes_on_and_a_cancelled_one_does_no_harm() {
    const PACE: u64 = 3 << 20;
    const ROWS: usize = 160;
    let mut cluster = cluster();
    quorate(&cluster, &["topic", "create", "safe", "--partitions", "1"]).ok();
    until("a healthy partition", || healthy(&cluster));
    cluster.kill_all();
    for id in 1..=3 {
        let file = cluster.files().config(&format!("node-{id}"));
        let text = std::fs::read_to_string(&file).expect("its configuration");
        std::fs::write(&file, format!("snapshot_bytes_per_second = {PACE}\n{text}")).expect("writable");
        cluster
            .start_alone("observer", id)
            .and_then(|()| cluster.start_alone("server", id))
            .unwrap_or_else(|e| panic!("{e}"));
    }
    let before = until("a healthy partition", || healthy(&cluster));
    // Text that no codec makes small.
    let mut state = 7_u64;
    let mut row = || {
        let mut digits = String::with_capacity(100_001);
        while digits.len() < 100_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            digits.push_str(&format!("{:016x}", state ^ (state >> 29)));
        }
        digits.push('\n');
        digits
    };
    let rows: String = (0..ROWS).map(|_| row()).collect();
    let mut command = cluster.command();
    let done =
        common::pipe(command.args(["produce", "safe", "--format", "lines", "--output", "json"]), rows.as_bytes());
    assert_eq!(done.ok().json()["committed"], ROWS);

    let leader = before["leader"].as_str().expect("led").to_owned();
    let victim = (1..=3).find(|id| format!("node-{id}") != leader).expect("a follower");
    let name = format!("node-{victim}");
    let (old, _) = on(&before, &name).expect("hosted");
    quorate(&cluster, &["replica", "replace", "safe/0", "--on", &name]).ok();
    let partitions = cluster.files().data(&name).join("partitions");
    let staged = || {
        let groups = std::fs::read_dir(&partitions).ok()?;
        let chunks = groups.filter_map(|group| Some(group.ok()?.path().join("incoming").join("CHUNKS")));
        chunks.filter_map(|file| std::fs::metadata(file).ok()).map(|file| file.len()).max()
    };
    until("a snapshot half there", || staged().filter(|bytes| *bytes > 600));
    runtime().block_on(async {
        let client = cluster.client().await.unwrap_or_else(|e| panic!("{e}"));
        let node = View::new(&client).pid("server", victim).await.unwrap_or_else(|e| panic!("{e}"));
        node.kill().unwrap_or_else(|e| panic!("{e}"));
    });
    let after = until("a healthy partition with a new replica", || {
        healthy(&cluster).filter(|now| on(now, &name).is_some_and(|(replica, _)| replica > old))
    });
    let sender = (1..=3).find(|id| format!("node-{id}") == leader).expect("one of them");
    let kept =
        common::sample(&common::scrape(cluster.ports().node_metrics(sender)), "quorate_snapshot_bytes_kept_total");
    println!("bytes not sent again: {kept:?}");
    assert!(kept.unwrap_or_default() >= 1_000_000.0, "{kept:?} {after}");

    // A cancelled replacement does no harm: the replica that was there is a member again, with its data.
    let (kept, _) = on(&after, &name).expect("hosted");
    let begun = quorate(&cluster, &["replica", "replace", "safe/0", "--on", &name, "--output", "json"]).ok().json();
    until("its successor to learn", || staged().filter(|bytes| *bytes > 100));
    let pid = |cluster: &Cluster| {
        runtime().block_on(async {
            let client = cluster.client().await.ok()?;
            View::new(&client).pid("server", victim).await.ok()
        })
    };
    let before = pid(&cluster).expect("it runs");
    quorate(&cluster, &["task", "cancel", &begun["task"].to_string()]).ok();
    let back = until("the old replica to be well", || {
        healthy(&cluster).filter(|now| on(now, &name).is_some_and(|(replica, _)| replica == kept))
    });
    let now = pid(&cluster).expect("it runs");
    assert_ne!(now, before, "a start opened its data: {back}");
    let read =
        quorate(&cluster, &["consume", "safe", "--from", "earliest", "--count", &ROWS.to_string(), "--timeout", "60s"]);
    let text = read.ok().text();
    assert!(text == rows, "every row is there, in order: {} of {} bytes", text.len(), rows.len());
}
