//! `quorate why` of a real cluster: healthy, with a replica missing, without a majority of replicas, of observers.

mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use common::{cluster, quorate, runtime, take_away};
use quorate_chaos::cluster::{Cluster, View};
use quorate_chaos::proc::Signal;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);

/// The explanation of a partition, and the exit code.
fn why(cluster: &Cluster) -> (Value, i32) {
    let done = quorate(cluster, &["why", "orders/0", "--output", "json"]);
    (serde_json::from_str(done.text().lines().last().unwrap_or_default()).unwrap_or(Value::Null), done.code())
}

/// Waits for a state. Its page must be there.
fn until(cluster: &Cluster, state: &str) -> (Value, i32) {
    let started = Instant::now();
    loop {
        let (answer, code) = why(cluster);
        let said = &answer["explanations"][0];
        if said["state"] == state {
            let remarks = said["remarks"].as_array().cloned().unwrap_or_default();
            for page in remarks.iter().chain([said]).filter_map(|part| part["runbook"].as_str()) {
                let path = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").join(page);
                assert!(path.is_file(), "{page} is named and not there");
            }
            return (answer, code);
        }
        assert!(started.elapsed() < LIMIT, "{state} was never said; now {answer}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A new leader's report that it serves comes with its next heartbeat.
fn all_serve(cluster: &Cluster) {
    let started = Instant::now();
    loop {
        let done = quorate(cluster, &["why", "--output", "json"]);
        let answer = done.json();
        if done.code() == 0 && answer["explanations"].as_array().is_some_and(Vec::is_empty) {
            return;
        }
        assert!(started.elapsed() < LIMIT, "{answer}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn fits_on_80_columns(cluster: &Cluster, args: &[&str]) -> String {
    let text = quorate(cluster, args).text();
    println!("$ quorate {}\n{text}", args.join(" "));
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    text
}

#[test]
fn it_says_what_is_missing_and_who_must_do_what() {
    let mut cluster = cluster();
    all_serve(&cluster);
    let (answer, code) = until(&cluster, "serving");
    let said = &answer["explanations"][0];
    assert_eq!((code, &said["serving"], &answer["authoritative"]), (0, &Value::from(true), &Value::from(true)));
    let leader = said["leader"].as_str().expect("led").to_owned();
    assert!(said["what"].as_str().is_some_and(|what| what.contains(&leader)), "{said}");
    let text = fits_on_80_columns(&cluster, &["why"]);
    assert!(text.starts_with("All 3 partitions serve. Nothing to do."), "{text}");
    assert_eq!(quorate(&cluster, &["why", "nowhere/0"]).code(), 1);

    let leading = leader.trim_start_matches("node-").parse::<u64>().expect("a number");
    let follower = leading % 3 + 1;
    take_away(&cluster, &[follower]);
    let (answer, code) = until(&cluster, "serving_degraded");
    assert_eq!(code, 0, "one of three may be missing: {answer}");
    let missing = format!("node-{follower}");
    let named = answer["explanations"][0]["remarks"][0]["text"].as_str().unwrap_or_default().to_owned();
    assert!(named.starts_with(&missing), "{named}");

    take_away(&cluster, &[follower % 3 + 1]);
    let (answer, code) = until(&cluster, "no_majority");
    assert_eq!(code, 10, "{answer}");
    let text = fits_on_80_columns(&cluster, &["why", "orders/0"]);
    for part in ["waits", "next", "do", "docs/runbooks/node-dead.md", missing.as_str()] {
        assert!(text.contains(part), "{part}: {text}");
    }

    // Without a majority any observer answers, and says that it is alone.
    runtime().block_on(async {
        let client = cluster.client().await.unwrap_or_else(|e| panic!("{e}"));
        let view = View::new(&client);
        for id in [1, 2] {
            view.pid("observer", id).await.unwrap_or_else(|e| panic!("{e}")).kill().expect("it runs");
        }
    });
    let (answer, code) = until(&cluster, "observers_without_majority");
    assert_eq!(
        (code, answer["authoritative"].as_bool(), answer["observer"].as_str()),
        (10, Some(false), Some("observer-3"))
    );
    let named = |answer: &Value| {
        answer["explanations"][0]["what"].as_str().is_some_and(|what| what.contains("observer-1 and observer-2"))
    };
    let started = Instant::now();
    while !named(&why(&cluster).0) {
        assert!(started.elapsed() < LIMIT, "{}", why(&cluster).0);
        std::thread::sleep(Duration::from_millis(50));
    }
    let text = fits_on_80_columns(&cluster, &["why", "orders/0"]);
    for part in ["observer-1 and observer-2", "docs/runbooks/observers-lost.md", "from observer-3 alone (no majority)"]
    {
        assert!(text.replace("\n           ", " ").contains(part), "{part}: {text}");
    }

    for id in [1, 2] {
        cluster.start_alone("observer", id).unwrap_or_else(|e| panic!("{e}"));
    }
    cluster.dev_pid().expect("runs").signal(Signal::CONT).expect("our child");
    until(&cluster, "serving");
    let slo = quorate(&cluster, &["slo", "--output", "json"]).ok().json();
    assert!(slo["summary"]["window_s"].as_f64() > Some(0.0), "{slo}");

    let nobody = quorate_chaos::layout::ReservedPorts::find().expect("ports").ports.observers().join(",");
    let refused = quorate(&cluster, &["why", "orders/0", "--observers", &nobody, "--timeout", "1s"]);
    assert!(refused.code() == 1 && refused.stderr.contains("docs/runbooks/observers-lost.md"), "{}", refused.stderr);
}
