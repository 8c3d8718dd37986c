//! `quorate slo`: what the recorded failovers took, by cause and phase by phase, and how many were false.

use std::process::ExitCode;
use std::time::Duration;

use quorate_chaos::measure::ms;
use quorate_chaos::slo::{is_false, summary, total, ByCause, Spread, Summary, HANDOFF};
use quorate_proto::time::spoken;
use quorate_proto::v1::Failover;
use serde_json::{json, Value};

use crate::args::{Global, SloArgs};
use crate::connect::{client, within};
use crate::fail::{Exit, Fail};
use crate::output::Output;
use crate::span::show_instant;

/// All that the observers keep.
const ALL: u32 = 1_000;

pub async fn run(args: SloArgs, global: &Global, output: &Output) -> Result<ExitCode, Fail> {
    let client = client(global).await?;
    let admin = client.admin();
    let recorded = within(global, "slo", async { Ok(admin.list_failovers(ALL).await?) }).await?;
    let sum = summary(&recorded, args.since);
    let counted: Vec<&Failover> = recorded.failovers.iter().filter(|f| f.at_us >= sum.since_us).collect();
    let newest = &counted[counted.len().saturating_sub(args.limit as usize)..];
    if output.json {
        let all: Vec<Value> = newest.iter().map(|failover| value(failover)).collect();
        output.json(&json!({ "schema": "quorate.slo.v1", "summary": sum, "failovers": all }));
        return Ok(Exit::Ok.into());
    }
    show_summary(&sum, output);
    for failover in newest {
        show(output, failover);
    }
    Ok(Exit::Ok.into())
}

fn show_summary(sum: &Summary, output: &Output) {
    let window = spoken(Duration::from_secs_f64(sum.window_s));
    if sum.causes.is_empty() {
        output.line(&format!("no failover is recorded in {window}"));
        return;
    }
    let figures = |spread: Option<Spread>| {
        let parts = spread.map(|s| [s.p50, s.p99, s.max].map(|figure| format!("{figure:.1}")));
        parts.unwrap_or_else(|| ["-", "-", "-"].map(str::to_owned))
    };
    let row = |name: &str, count: usize, spread: Option<Spread>, wrong: String| {
        let [p50, p99, worst] = figures(spread);
        vec![name.to_owned(), count.to_string(), p50, p99, worst, wrong]
    };
    let wrong = |cause: &ByCause| if cause.cause == HANDOFF { "-".to_owned() } else { cause.wrong.to_string() };
    let mut rows: Vec<Vec<String>> =
        sum.causes.iter().map(|c| row(&c.cause.replace('_', " "), c.count, c.total_ms, wrong(c))).collect();
    rows.push(row("all unplanned", sum.failovers, sum.total_ms, sum.false_failovers.to_string()));
    output.table(&["cause", "count", "p50 ms", "p99 ms", "worst ms", "false"], rows, &[1, 2, 3, 4, 5]);
    let rate =
        sum.false_per_day.map_or_else(|| "too short for a rate per day".to_owned(), |rate| format!("{rate:.2} a day"));
    output.line(&format!("false failovers: {} in {window} ({rate})", sum.false_failovers));
}

fn phase_ms(micros: u64) -> f64 {
    ms(Duration::from_micros(micros))
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
        "old_process": (!f.old_process.is_empty()).then(|| f.old_process.clone()),
        "withdrawn": f.withdrawn,
        "false": is_false(f),
        "at_us": f.at_us,
        "phases": phases,
        "total_ms": ms(total(f)),
    })
}

fn show(output: &Output, f: &Failover) {
    let remark = match (f.withdrawn, is_false(f)) {
        (true, _) => ", withdrawn: it went on",
        (false, true) => ", false: its process was heard again",
        _ => "",
    };
    output.line("");
    output.line(&format!(
        "{}/{}  node {} -> node {}  {}{remark}",
        f.topic, f.partition, f.old_leader_node, f.new_leader_node, f.cause
    ));
    output.line(&format!("    {}, {} ms", show_instant(f.at_us), ms(total(f))));
    for phase in &f.phases {
        output.line(&format!("    {:<24}{:>10.2} ms", phase.name.replace('_', " "), phase_ms(phase.duration_us)));
    }
}
