//! `quorate slo`: what the recorded failovers took, phase by phase.

use std::process::ExitCode;
use std::time::Duration;

use quorate_chaos::measure::ms;
use quorate_proto::v1::Failover;
use serde_json::{json, Value};

use crate::args::{Global, SloArgs};
use crate::connect::{client, within};
use crate::fail::{Exit, Fail};
use crate::output::Output;
use crate::span::show_instant;

pub async fn run(args: SloArgs, global: &Global, output: &Output) -> Result<ExitCode, Fail> {
    let client = client(global).await?;
    let admin = client.admin();
    let failovers = within(global, "slo", async { Ok(admin.list_failovers(args.limit).await?) }).await?;
    if output.json {
        let all: Vec<Value> = failovers.iter().map(value).collect();
        output.json(&json!({ "schema": "quorate.slo.v1", "failovers": all }));
        return Ok(Exit::Ok.into());
    }
    if failovers.is_empty() {
        output.line("no failover is recorded");
    }
    for failover in &failovers {
        show(output, failover);
    }
    Ok(Exit::Ok.into())
}

fn phase_ms(micros: u64) -> f64 {
    ms(Duration::from_micros(micros))
}

fn sum(failover: &Failover) -> u64 {
    failover.phases.iter().map(|phase| phase.duration_us).sum()
}

fn value(f: &Failover) -> Value {
    let phases: Vec<Value> =
        f.phases.iter().map(|p| json!({ "name": p.name, "ms": phase_ms(p.duration_us) })).collect();
    json!({
        "id": f.id,
        "topic": f.topic,
        "partition": f.partition,
        "group_id": f.group_id,
        "cause": f.cause,
        "old_leader_id": f.old_leader_node,
        "new_leader_id": f.new_leader_node,
        "old_term": f.old_term,
        "new_term": f.new_term,
        "at_us": f.at_us,
        "phases": phases,
        "total_ms": phase_ms(sum(f)),
    })
}

fn show(output: &Output, f: &Failover) {
    output.line(&format!(
        "{}/{}  node {} -> node {}  {}  {} ms  ({})",
        f.topic,
        f.partition,
        f.old_leader_node,
        f.new_leader_node,
        f.cause,
        phase_ms(sum(f)),
        show_instant(f.at_us)
    ));
    for phase in &f.phases {
        output.line(&format!("    {:<24}{:>10.2} ms", phase.name.replace('_', " "), phase_ms(phase.duration_us)));
    }
}
