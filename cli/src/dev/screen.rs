//! What a newcomer sees: a drawing of what runs, and what to type next.

use std::time::Duration;

use quorate_chaos::layout::{Ports, NODES};
use serde_json::json;

use super::ready::{Picture, PARTITIONS, TOPIC};
use super::setup::Setup;
use crate::output::Output;

pub fn show(setup: &Setup, picture: &Picture, took: Duration, output: &Output) {
    if output.json {
        output.json(&json!({
            "schema": "quorate.dev.v1",
            "data": setup.shown,
            "observers": setup.ports.observers(),
            "topic": TOPIC,
            "started_ms": u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
        }));
    }
    if output.json || output.quiet {
        return;
    }
    let program = std::env::args().next().unwrap_or_else(|| "quorate".to_owned());
    for line in drawing(setup, picture, took) {
        output.line(&line);
    }
    for line in commands(&program, setup, picture) {
        output.line(&line);
    }
}

fn column(text: &str) -> String {
    format!("{text:<20}")
}

fn drawing(setup: &Setup, picture: &Picture, took: Duration) -> Vec<String> {
    let ports = setup.ports;
    let row = |cell: &dyn Fn(u64) -> String| {
        let cells: Vec<String> = (1..=NODES).map(|id| column(&cell(id))).collect();
        format!("   {}", cells.concat().trim_end())
    };
    let observer_state = |id: u64| {
        let found = picture.nodes.iter().find(|n| n.role == "observer" && n.id == id);
        let leads = found.is_some_and(|n| n.state == "leader");
        format!("{}{}", ports.observer(id), if leads { " *" } else { "" })
    };
    let led = |id: u64| {
        let led: Vec<String> = picture
            .topic
            .partition
            .iter()
            .filter(|p| p.leader_node == id)
            .map(|p| format!("/{}", p.partition))
            .collect();
        if led.is_empty() {
            "leads nothing".to_owned()
        } else {
            format!("leads {TOPIC}{}", led.join(" "))
        }
    };
    vec![
        format!(
            "Ready in {:.1} s: 3 observers, 3 data nodes, topic {TOPIC} with {PARTITIONS} partitions.",
            took.as_secs_f64()
        ),
        String::new(),
        row(&|id| format!("observer-{id}")),
        row(&observer_state),
        row(&|_| "    |".to_owned()),
        "   ----+-------------------+-------------------+--- heartbeats, leases, permits".to_owned(),
        row(&|_| "    |".to_owned()),
        row(&|id| format!("node-{id}")),
        row(&|id| ports.node(id).to_string()),
        row(&led),
        String::new(),
        format!("   * leads the observers.   Data and logs: {}", setup.shown.display()),
        String::new(),
    ]
}

fn commands(program: &str, setup: &Setup, picture: &Picture) -> Vec<String> {
    let mut lines = vec!["Next, in another terminal:".to_owned(), String::new()];
    if setup.ports != Ports::default() {
        lines.push(format!("  export QUORATE_OBSERVERS={}", setup.ports.observers().join(",")));
        lines.push(String::new());
    }
    lines.push("  # publish 999 orders, 200 a second".to_owned());
    lines.push(format!("  {program} produce {TOPIC} --format csv \\"));
    lines.push(format!("      --file {} \\", setup.orders()));
    lines.push("      --key-field 3 --idempotency-field '{3}:{line}' --rate 200".to_owned());
    lines.push("  # read them back".to_owned());
    lines.push(format!("  {program} consume {TOPIC} --from earliest --count 999"));
    if let Some((name, pid, partition)) = leader(picture) {
        lines.push(format!("  # kill the leader of {TOPIC}/{partition} ({name}) while you publish"));
        lines.push(format!("  kill -9 {pid}"));
    }
    lines.push("  # see the failover".to_owned());
    lines.push(format!("  {program} slo"));
    lines.push(format!("  {program} node list"));
    lines.push("  # move a leader on purpose: no request fails".to_owned());
    lines.push(format!("  {program} leader handoff {TOPIC}/0 --to node-3"));
    lines.push(String::new());
    lines.push("Ctrl-C here stops everything; the next start finds its data.".to_owned());
    lines
}

/// Name and process of a node that leads, and what it leads.
fn leader(picture: &Picture) -> Option<(&str, u32, u32)> {
    let partition = picture.topic.partition.iter().min_by_key(|p| p.partition)?;
    let node = picture.nodes.iter().find(|n| n.role == "server" && n.id == partition.leader_node && n.pid != 0)?;
    Some((&node.name, node.pid, partition.partition))
}
