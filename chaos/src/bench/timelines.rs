//! Measured gaps beside the objectives of the design, from the JSON of several benchmarks.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::measure::Repeats;
use crate::Error;

/// What one kind of event may cost a client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Objective {
    /// The fault, as on the command line.
    pub fault: &'static str,
    /// Partitions that it hits at once.
    pub partitions: u32,
    /// For people.
    pub title: &'static str,
    /// Longest median gap, ms; none where only the longest counts.
    pub p50_ms: Option<f64>,
    /// Longest gap of 99 in a hundred, ms; of fewer than a hundred repeats the longest of all.
    pub p99_ms: f64,
    /// No request may fail or be sent again.
    pub unnoticed: bool,
}

const fn row(fault: &'static str, title: &'static str, p50_ms: f64, p99_ms: f64) -> Objective {
    Objective { fault, partitions: 1, title, p50_ms: Some(p50_ms), p99_ms, unnoticed: false }
}

/// The rows in the order in which they are shown. Each row of the design has one at least.
pub const OBJECTIVES: &[Objective] = &[
    row("kill", "Leader's process killed", 150.0, 500.0),
    Objective { partitions: 5, ..row("kill", "The same, five partitions at once", 150.0, 500.0) },
    row("kill-with-observer-leader", "Observer leader killed with it", 800.0, 1_200.0),
    row("kill-with-supervisor", "Supervisor killed with it", 1_500.0, 2_000.0),
    row("pause", "Leader's host paused", 1_500.0, 2_000.0),
    row("cut", "Leader's host cut off", 1_500.0, 2_000.0),
    row("deaf", "Leader hears nobody, all hear it", 1_700.0, 2_000.0),
    row("cut-observers", "Leader cut from observers, after lease", 1_500.0, 2_000.0),
    row("hang", "Leader's log disk hangs", 1_500.0, 2_000.0),
    Objective { unnoticed: true, ..row("handoff", "Planned handoff", 20.0, 50.0) },
    Objective { partitions: 5, unnoticed: true, ..row("handoff", "The same, five partitions at once", 20.0, 50.0) },
    row("handoff-target-dies", "Handoff, target killed", 200.0, 500.0),
    row("handoff-target-stops", "Handoff, target stopped", 1_600.0, 2_000.0),
    Objective { p50_ms: None, ..row("observer-leader", "Observer leader killed alone", 0.0, 100.0) },
    Objective { partitions: 5, ..row("restart-all", "All restarted, after the last start", 2_000.0, 3_000.0) },
];

/// One event as it was measured.
#[derive(Clone, Debug)]
pub struct Row {
    /// What was asked of it.
    pub objective: Objective,
    /// The gaps, ms.
    pub gaps: Repeats,
    /// Records refused or given up.
    pub failed: u64,
    /// Records that the client sent again.
    pub resent: u64,
    /// Faults that did not count.
    pub void: u32,
    /// The audit found everything in its place.
    pub clean: bool,
}

/// Whether a row holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It does.
    Met,
    /// The median is too long.
    MissedP50,
    /// The longest in a hundred is too long.
    MissedP99,
    /// Requests failed or were sent again where none may.
    Noticed,
    /// Records were lost, doubled, reordered or there against the client's word.
    NotClean,
}

impl Verdict {
    /// For people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::MissedP50 => "MISSED p50",
            Self::MissedP99 => "MISSED p99",
            Self::Noticed => "NOTICED",
            Self::NotClean => "NOT CLEAN",
        }
    }
}

impl Row {
    /// Judges it; the worst first.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        if !self.clean {
            Verdict::NotClean
        } else if self.objective.unnoticed && self.failed + self.resent > 0 {
            Verdict::Noticed
        } else if self.gaps.p99 > self.objective.p99_ms {
            Verdict::MissedP99
        } else if self.objective.p50_ms.is_some_and(|limit| self.gaps.p50 > limit) {
            Verdict::MissedP50
        } else {
            Verdict::Met
        }
    }

    /// The event's name, short.
    #[must_use]
    pub fn event(&self) -> String {
        let Objective { fault, partitions, .. } = self.objective;
        if partitions > 1 {
            format!("{fault} × {partitions}")
        } else {
            fault.to_owned()
        }
    }
}

/// What of a benchmark's JSON is needed.
#[derive(Deserialize)]
struct Stored {
    settings: Settings,
    audit: Found,
    gap_ms: Gaps,
    failed: u64,
    resent: u64,
    void: u32,
}

#[derive(Deserialize)]
struct Settings {
    fault: String,
    #[serde(default = "one")]
    partitions: u32,
}

fn one() -> u32 {
    1
}

#[derive(Deserialize)]
struct Found {
    lost: u64,
    duplicate: u64,
    reordered: u64,
    phantom: u64,
    corrupt: u64,
}

#[derive(Deserialize)]
struct Gaps {
    all: Vec<f64>,
}

/// Reads reports of `bench failover` and `bench handoff`: files, or directories of `.json` files; others in a directory
/// are passed over. In the order of [`OBJECTIVES`]; several reports of one event are one row.
///
/// # Errors
/// Nothing there that can be read, or an event without an objective was named.
pub fn read(paths: &[PathBuf]) -> Result<Vec<Row>, Error> {
    let mut rows: Vec<Row> = Vec::new();
    for path in paths {
        let inside = std::fs::read_dir(path).map(|entries| entries.flatten().map(|entry| entry.path()));
        let (files, named) = match inside {
            Ok(files) => (files.filter(|file| file.extension().is_some_and(|e| e == "json")).collect(), false),
            Err(_) => (vec![path.clone()], true),
        };
        for file in files {
            match read_one(&file) {
                Ok(row) => merge(&mut rows, row),
                Err(error) if named => return Err(error),
                Err(_) => {}
            }
        }
    }
    if rows.is_empty() {
        return Err(Error::new("no report of `quorate bench failover` or `handoff` is there"));
    }
    rows.sort_by_key(|row| OBJECTIVES.iter().position(|o| *o == row.objective));
    Ok(rows)
}

fn read_one(file: &Path) -> Result<Row, Error> {
    let failed = |what: &dyn std::fmt::Display| Error::new(format!("{}: {what}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|e| failed(&e))?;
    parse(&text).map_err(|e| failed(&e))
}

/// From one report.
///
/// # Errors
/// It is no report of a failover or handoff, or of one that no objective is known for.
pub fn parse(text: &str) -> Result<Row, Error> {
    let stored: Stored = serde_json::from_str(text)
        .map_err(|e| Error::new(format!("no report of `quorate bench failover` or `handoff`: {e}")))?;
    let Settings { fault, partitions } = stored.settings;
    let same = |o: &&Objective| o.fault == fault;
    let objective = OBJECTIVES.iter().find(|o| same(o) && o.partitions == partitions);
    let objective = objective.or_else(|| OBJECTIVES.iter().find(same)).copied();
    let objective = objective.ok_or_else(|| Error::new(format!("no objective is known for `{fault}`")))?;
    let Found { lost, duplicate, reordered, phantom, corrupt } = stored.audit;
    Ok(Row {
        objective: Objective { partitions, ..objective },
        gaps: Repeats::new(stored.gap_ms.all),
        failed: stored.failed,
        resent: stored.resent,
        void: stored.void,
        clean: [lost, duplicate, reordered, phantom, corrupt].iter().all(|count| *count == 0),
    })
}

fn merge(rows: &mut Vec<Row>, row: Row) {
    match rows.iter_mut().find(|known| known.objective == row.objective) {
        Some(known) => {
            known.gaps = Repeats::new([&known.gaps.all[..], &row.gaps.all[..]].concat());
            known.failed += row.failed;
            known.resent += row.resent;
            known.void += row.void;
            known.clean &= row.clean;
        }
        None => rows.push(row),
    }
}

/// Milliseconds for people, three significant digits.
#[must_use]
pub fn shown(ms: f64) -> String {
    match ms {
        ms if ms < 9.995 => format!("{ms:.2} ms"),
        ms if ms < 99.95 => format!("{ms:.1} ms"),
        ms if ms < 999.5 => format!("{ms:.0} ms"),
        ms => format!("{:.2} s", ms / 1_000.0),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::bench) fn report(fault: &str, partitions: u32, gaps: &[f64], resent: u64, lost: u64) -> String {
        serde_json::json!({
            "settings": { "fault": fault, "partitions": partitions },
            "audit": { "lost": lost, "duplicate": 0, "reordered": 0, "phantom": 0, "corrupt": 0 },
            "gap_ms": { "all": gaps }, "failed": 0, "resent": resent, "void": 1,
        })
        .to_string()
    }

    fn judged(fault: &str, partitions: u32, gaps: &[f64], resent: u64, lost: u64) -> Verdict {
        parse(&report(fault, partitions, gaps, resent, lost)).expect("a report").verdict()
    }

    #[test]
    fn each_way_to_miss_an_objective_is_told_apart() {
        assert_eq!(judged("kill", 1, &[20.0, 30.0, 400.0], 7, 0), Verdict::Met);
        assert_eq!(judged("kill", 1, &[20.0, 30.0, 501.0], 0, 0), Verdict::MissedP99);
        assert_eq!(judged("kill", 5, &[20.0, 151.0, 160.0], 0, 0), Verdict::MissedP50);
        assert_eq!(judged("kill", 1, &[20.0], 0, 1), Verdict::NotClean);
        assert_eq!(judged("handoff", 1, &[10.0], 1, 0), Verdict::Noticed);
        assert_eq!(judged("observer-leader", 1, &[90.0, 95.0], 0, 0), Verdict::Met, "it has no median to keep");
    }

    #[test]
    fn directories_are_read_in_the_order_of_the_design_and_equal_events_are_one_row() {
        let dir = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: String| std::fs::write(dir.path().join(name), text).expect("writes");
        write("a.json", report("handoff", 1, &[10.0], 0, 0));
        write("b.json", report("kill", 5, &[20.0], 0, 0));
        write("c.json", report("kill", 1, &[30.0], 0, 0));
        write("d.json", report("kill", 1, &[40.0], 1, 0));
        write("other.json", "{}".to_owned());
        let rows = read(&[dir.path().to_path_buf()]).expect("rows");
        let events: Vec<String> = rows.iter().map(Row::event).collect();
        assert_eq!(events, ["kill", "kill × 5", "handoff"]);
        assert_eq!((rows[0].gaps.all.len(), rows[0].resent, rows[0].void), (2, 1, 2));
        assert!(read(&[dir.path().join("other.json")]).is_err(), "a file that was named must be a report");
    }
}
