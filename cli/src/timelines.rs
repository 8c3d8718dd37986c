//! `quorate bench timelines`: measured gaps beside their objectives.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use quorate_chaos::bench::plot::svg;
use quorate_chaos::bench::timelines::{parse, read, Row, Verdict};
use quorate_chaos::bench::Report;
use serde_json::{json, Value};

use crate::fail::{Exit, Fail};
use crate::output::Output;

pub fn run(reports: &[PathBuf], plot: Option<&Path>, output: &Output) -> Result<ExitCode, Fail> {
    let rows = read(reports)?;
    if let Some(plot) = plot {
        draw(&rows, plot)?;
    }
    if output.json {
        let all: Vec<Value> = rows.iter().map(value).collect();
        output.json(&json!({ "schema": "quorate.timelines.v1", "rows": all }));
    } else {
        show(&rows, output);
    }
    let found = |wanted: &dyn Fn(Verdict) -> bool| rows.iter().any(|row| wanted(row.verdict()));
    if found(&|verdict| verdict == Verdict::NotClean) {
        return Ok(Exit::Verification.into());
    }
    Ok(if found(&|verdict| verdict != Verdict::Met) { Exit::Objective.into() } else { Exit::Ok.into() })
}

/// The picture of one benchmark.
pub fn draw_one(report: &Report, plot: &Path) -> Result<(), Fail> {
    let text = serde_json::to_string(report).map_err(|e| Fail::error(format!("the report: {e}")))?;
    draw(&[parse(&text)?], plot)
}

fn draw(rows: &[Row], plot: &Path) -> Result<(), Fail> {
    std::fs::write(plot, svg(rows)).map_err(|e| Fail::error(format!("{}: {e}", plot.display())))
}

/// Milliseconds in few digits: the table is 80 columns wide.
fn figure(ms: f64) -> String {
    if ms < 100.0 {
        format!("{ms:.1}")
    } else {
        format!("{ms:.0}")
    }
}

fn objective(row: &Row) -> String {
    let p99 = format!("{:.0}", row.objective.p99_ms);
    row.objective.p50_ms.map_or_else(|| p99.clone(), |p50| format!("{p50:.0}/{p99}"))
}

fn show(rows: &[Row], output: &Output) {
    let line = |row: &Row| {
        let gaps = &row.gaps;
        let repeats = gaps.all.len().to_string();
        let [p50, p99, max] = [gaps.p50, gaps.p99, gaps.max].map(figure);
        vec![row.event(), repeats, p50, p99, max, objective(row), row.verdict().name().to_owned()]
    };
    let header = ["event", "n", "p50 ms", "p99", "max", "objective", "verdict"];
    output.table(&header, rows.iter().map(line).collect(), &[1, 2, 3, 4, 5]);
}

fn value(row: &Row) -> Value {
    json!({
        "event": row.event(),
        "title": row.objective.title,
        "repeats": row.gaps.all.len(),
        "void": row.void,
        "gap_ms": row.gaps,
        "failed": row.failed,
        "resent": row.resent,
        "objective_ms": { "p50": row.objective.p50_ms, "p99": row.objective.p99_ms },
        "verdict": row.verdict(),
    })
}
