//! The order file, published while the leader is killed: every row once, in order per key, and again without effect.

mod common;

use std::collections::BTreeMap;
use std::process::Stdio;

use common::{cluster, order_file, order_rows, quorate, runtime, split_rows, Done};
use quorate_chaos::cluster::{Cluster, View};

const PRODUCE: [&str; 6] = ["--format", "csv", "--key-field", "3", "--idempotency-field", "{3}:{line}"];

fn consume_all(cluster: &Cluster, count: usize) -> Vec<(u32, u64, Vec<u8>)> {
    let count = count.to_string();
    let args =
        ["consume", "orders", "--from", "earliest", "--count", &count, "--timeout", "60s", "--format", "%p %o %v"];
    let read = quorate(cluster, &args).ok();
    let parse = |line: &[u8]| {
        let mut parts = line.splitn(3, |&b| b == b' ');
        let mut number = || -> u64 {
            std::str::from_utf8(parts.next().expect("a part")).expect("digits").parse().expect("a number")
        };
        let (partition, offset) = (u32::try_from(number()).expect("small"), number());
        (partition, offset, parts.next().expect("a value").to_vec())
    };
    split_rows(&read.stdout).into_iter().map(parse).collect()
}

/// Partitions are read side by side: only the order within each is fixed.
fn by_place(mut read: Vec<(u32, u64, Vec<u8>)>) -> Vec<(u32, u64, Vec<u8>)> {
    read.sort();
    read
}

fn order_id(row: &[u8]) -> Vec<u8> {
    row.split(|&b| b == b',').nth(2).expect("an order id").to_vec()
}

/// Every row once, byte for byte, and per order id in the order of the file.
fn check_rows(read: &[(u32, u64, Vec<u8>)]) {
    let rows = split_rows(order_rows());
    assert_eq!(read.len(), rows.len());
    let mut expected: BTreeMap<Vec<u8>, Vec<Vec<u8>>> = BTreeMap::new();
    for row in &rows {
        expected.entry(order_id(row)).or_default().push(row.to_vec());
    }
    let mut found: BTreeMap<Vec<u8>, Vec<Vec<u8>>> = BTreeMap::new();
    let mut ends: BTreeMap<u32, u64> = BTreeMap::new();
    for (partition, offset, row) in read {
        let end = ends.entry(*partition).or_default();
        assert_eq!(offset, end, "offsets have no gap and no repeat in partition {partition}");
        *end += 1;
        found.entry(order_id(row)).or_default().push(row.clone());
    }
    assert_eq!(found, expected);
}

#[test]
fn all_rows_arrive_once_in_order_although_the_leader_is_killed_and_a_second_run_adds_nothing() {
    let cluster = cluster();
    let file = order_file(&cluster);
    let file = file.to_str().expect("a path");
    let rows = split_rows(order_rows()).len();

    // Published at 200 rows a second; half-way the leader of a partition is killed.
    let mut args = vec!["produce", "orders", "--file", file, "--rate", "200", "--output", "json"];
    args.extend(PRODUCE);
    let mut command = cluster.command();
    let child = command.args(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    let killed = runtime().block_on(async {
        let client = cluster.client().await.unwrap_or_else(|e| panic!("{e}"));
        let view = View::new(&client);
        loop {
            let topic = client.admin().describe_topic("orders").await.unwrap_or_else(|e| panic!("{e}"));
            let published: u64 = topic.partition.iter().map(|p| p.high_watermark).sum();
            if published >= rows as u64 / 3 {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        let leader = view.leader("orders", 0).await.unwrap_or_else(|e| panic!("{e}"));
        let pid = view.pid("server", leader).await.unwrap_or_else(|e| panic!("{e}"));
        pid.kill().expect("the leader's process");
        leader
    });
    let done = Done::from(child.wait_with_output().expect("ends")).ok();
    let verdict = done.json();
    assert_eq!(verdict["schema"], "quorate.produce.v1");
    assert_eq!(verdict["rows"], rows, "{}", done.stderr);
    assert_eq!(verdict["committed"], rows);
    assert_eq!(verdict["failed"], 0);
    assert_eq!(verdict["unresolved"], 0);
    let first = consume_all(&cluster, rows);
    check_rows(&first);

    // The failover is on record, with phases.
    let slo = quorate(&cluster, &["slo", "--output", "json"]).ok().json();
    let failovers = slo["failovers"].as_array().expect("a list").clone();
    let of_orders: Vec<_> =
        failovers.iter().filter(|f| f["topic"].as_str().is_some_and(|t| t.ends_with("orders"))).collect();
    assert!(of_orders.iter().any(|f| f["old_leader_id"] == killed), "{slo}");
    assert!(of_orders.iter().all(|f| !f["phases"].as_array().expect("phases").is_empty()), "{slo}");

    // The same run again: nothing is added, everything is a duplicate.
    let mut args = vec!["produce", "orders", "--file", file, "--output", "json"];
    args.extend(PRODUCE);
    let again = quorate(&cluster, &args).ok().json();
    assert_eq!(again["committed"], rows);
    assert_eq!(again["duplicates"], rows);
    assert!(by_place(consume_all(&cluster, rows)) == by_place(first.clone()), "the log changed");
    // Linearizable ends; what `topic describe` shows may be half a second old.
    let ends: u64 = runtime().block_on(async {
        let client = cluster.client().await.unwrap_or_else(|e| panic!("{e}"));
        let ends = quorate_chaos::reader::ends(&client, "orders").await.unwrap_or_else(|e| panic!("{e}"));
        ends.iter().map(|(_, end)| end.0).sum()
    });
    assert_eq!(ends, rows as u64, "nothing was added");

    // And the verdict for people, with the original offsets in the receipts.
    let mut args = vec!["produce", "orders", "--file", file];
    args.extend(PRODUCE);
    let text = quorate(&cluster, &args).ok().text();
    assert_eq!(text.lines().count(), 1, "one line: {text}");
    for word in [format!("{rows} rows"), format!("{rows} committed"), format!("{rows} duplicates")] {
        assert!(text.contains(&word), "{word} is missing: {text}");
    }
    duplicates_name_their_originals(&cluster, &first);
    a_time_is_where_reading_begins(&cluster, rows);
    a_restarted_node_is_a_follower_again(&cluster, killed);
}

/// Offsets and times of partition 0 from `from` on.
fn times(cluster: &Cluster, from: &str, count: usize) -> Vec<(u64, String)> {
    let (count, timeout) = (count.to_string(), "60s");
    let args = ["consume", "orders", "--partition", "0", "--from", from, "--count", &count, "--timeout", timeout];
    let text = quorate(cluster, &[&args[..], &["--format", "%o %T"]].concat()).ok().text();
    let parse = |line: &str| {
        let (offset, time) = line.split_once(' ').expect("two parts");
        (offset.parse().expect("an offset"), time.to_owned())
    };
    text.lines().map(parse).collect()
}

/// From the time that a record shows, reading begins with the first record of that time or later.
fn a_time_is_where_reading_begins(cluster: &Cluster, rows: usize) {
    let end = runtime().block_on(async {
        let client = cluster.client().await.unwrap_or_else(|e| panic!("{e}"));
        let ends = quorate_chaos::reader::ends(&client, "orders").await.unwrap_or_else(|e| panic!("{e}"));
        ends.into_iter().find(|(partition, _)| partition.0 == 0).map_or(0, |(_, end)| end.0)
    });
    let all = times(cluster, "earliest", usize::try_from(end).expect("few"));
    assert!(all.len() > rows / 10 && all.first().map(|(_, time)| time) < all.last().map(|(_, time)| time));
    for (_, time) in all.iter().step_by(all.len() / 7) {
        let right = all.iter().find(|(_, other)| other >= time).expect("itself at the latest");
        assert_eq!(&times(cluster, time, 1)[0], right, "from {time}");
    }
    // So long ago that it is before all, and a time to come: nothing is there yet.
    assert_eq!(times(cluster, "2h", 1)[0], all[0]);
    let args = ["consume", "orders", "--from", "2999-01-01T00:00:00Z", "--timeout", "1s"];
    assert_eq!(quorate(cluster, &args).ok().text(), "");
}

fn duplicates_name_their_originals(cluster: &Cluster, first: &[(u32, u64, Vec<u8>)]) {
    let rows = split_rows(order_rows());
    runtime().block_on(async {
        let client = cluster.client().await.unwrap_or_else(|e| panic!("{e}"));
        let producer = client.producer("orders").build().await.unwrap_or_else(|e| panic!("{e}"));
        for (line, row) in rows.iter().enumerate() {
            let key = order_id(row);
            let mut identity = key.clone();
            identity.extend_from_slice(format!(":{}", line + 1).as_bytes());
            let record = quorate_client::Record::new(row.to_vec()).key(key).idempotency_key(identity);
            let pending = producer.send(record).await.unwrap_or_else(|e| panic!("{e}"));
            let receipt = pending.await.unwrap_or_else(|e| panic!("{e}"));
            let original = receipt.duplicate.expect("a duplicate");
            let place = first.iter().find(|(p, o, _)| (*p, *o) == (receipt.partition.0, original.0));
            assert_eq!(place.map(|(_, _, found)| found.as_slice()), Some(*row), "line {}", line + 1);
        }
    });
}

fn a_restarted_node_is_a_follower_again(cluster: &Cluster, node: u64) {
    runtime().block_on(async {
        let client = cluster.client().await.unwrap_or_else(|e| panic!("{e}"));
        let view = View::new(&client);
        let whole = view.healthy("orders", 0).await.unwrap_or_else(|e| panic!("{e}"));
        let replica = whole.replicas.iter().find(|r| r.node == node).expect("it still hosts its replica");
        assert_eq!(replica.state, "follower", "its supervisor started it again: {whole:?}");
    });
}

#[test]
fn the_same_key_with_another_payload_is_a_conflict_and_its_row_is_named() {
    let cluster = cluster();
    let file = cluster.files().root.join("conflict.csv");
    std::fs::write(&file, "1,a\n1,b\n2,c").expect("writes");
    let file = file.to_str().expect("a path");
    let args = ["produce", "orders", "--file", file, "--format", "csv", "--key-field", "1", "--idempotency-field", "1"];
    let done = quorate(&cluster, &args);
    assert_eq!(done.code(), 1);
    assert!(done.stderr.contains("line 2") && done.stderr.contains("KEY_CONFLICT"), "{}", done.stderr);
    assert!(done.text().contains("3 rows, 2 committed"), "{}", done.text());
    // A row without its key column is not published; the others are.
    let file = cluster.files().root.join("short.csv");
    std::fs::write(&file, "a,1\nb\nc,3\n").expect("writes");
    let file = file.to_str().expect("a path");
    let done = quorate(&cluster, &["produce", "orders", "--file", file, "--format", "csv", "--key-field", "2"]);
    assert_eq!(done.code(), 1);
    assert!(done.stderr.contains("line 2") && done.stderr.contains("no column 2"), "{}", done.stderr);
    assert!(done.text().contains("3 rows, 2 committed"), "{}", done.text());
    output_forms_are_as_documented(&cluster);
}

fn output_forms_are_as_documented(cluster: &Cluster) {
    let nodes = quorate(cluster, &["node", "list", "--output", "json"]).ok().json();
    let list = nodes["nodes"].as_array().expect("a list");
    assert_eq!(list.len(), 6, "{nodes}");
    for node in list {
        for field in ["name", "id", "role", "address", "pid", "incarnation", "health", "leaders", "replicas", "version"]
        {
            assert!(!node[field].is_null(), "{field} is missing: {node}");
        }
        assert!(std::path::Path::new(&format!("/proc/{}", node["pid"])).exists(), "{node}");
    }
    let partition = quorate(cluster, &["partition", "describe", "orders/0", "--output", "json"]).ok().json();
    for field in [
        "topic",
        "partition",
        "group_id",
        "leader",
        "epoch",
        "term",
        "replicas",
        "lease_remaining_ms",
        "high_watermark",
        "digest",
    ] {
        assert!(partition.get(field).is_some(), "{field} is missing: {partition}");
    }
    let leader = partition["leader"].as_str().expect("a name");
    assert!(list.iter().any(|node| node["name"] == leader), "the leader is given by its node's name");
    assert_eq!(partition["replicas"].as_array().map(Vec::len), Some(3));
    for args in [
        &["node", "list"][..],
        &["topic", "list"],
        &["topic", "describe", "orders"],
        &["partition", "describe", "orders/1"],
    ] {
        let text = quorate(cluster, args).ok().text();
        assert!(text.lines().all(|line| line.chars().count() <= 80), "80 columns: {text}");
    }
    quorate(cluster, &["topic", "create", "payments", "--partitions", "2"]).ok();
    let twice = quorate(cluster, &["topic", "create", "payments", "--partitions", "2", "--output", "json"]);
    assert_eq!((twice.code(), &twice.json()["error"]["reason"]), (1, &"ALREADY_EXISTS".into()));
    let topics = quorate(cluster, &["topic", "list", "--output", "json"]).ok().json();
    assert_eq!(topics["topics"].as_array().map(Vec::len), Some(2));
    let nowhere = quorate(cluster, &["consume", "nothing", "--count", "1", "--timeout", "20s", "--output", "json"]);
    assert_eq!((nowhere.code(), &nowhere.json()["error"]["reason"]), (1, &"UNKNOWN_TOPIC".into()));
}
