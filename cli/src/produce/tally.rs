//! What became of the rows, and the verdict in one line.

use std::collections::BTreeMap;
use std::time::Duration;

use quorate_chaos::measure::Latency;
use quorate_client::{Receipt, SendError};
use serde_json::json;

use crate::fail::Exit;
use crate::output::Output;

/// Failures told one by one; the counts are complete.
const TOLD: usize = 10;
/// Ranges of first copies told; JSON holds all.
const PLACES: usize = 6;

/// Counts of rows.
#[derive(Debug, Default)]
pub struct Tally {
    rows: u64,
    committed: u64,
    duplicates: u64,
    failed: u64,
    unresolved: u64,
    latency: Latency,
    took: Duration,
    told: Vec<String>,
    /// Offsets of the first copies of what was a duplicate, by partition, as ranges in the order they came.
    originals: BTreeMap<u32, Vec<(u64, u64)>>,
}

impl Tally {
    /// A row that could not be made a message.
    pub fn unfit(&mut self, line: u64, why: &str) {
        self.rows += 1;
        self.failed += 1;
        self.tell(format!("line {line}: not published: {why}"));
    }

    /// The outcome of a published row.
    pub fn outcome(&mut self, line: u64, took: Duration, outcome: Result<Receipt, SendError>) {
        self.rows += 1;
        match outcome {
            Ok(receipt) => {
                self.committed += 1;
                if let Some(original) = receipt.duplicate {
                    self.duplicates += 1;
                    self.original(receipt.partition.0, original.0);
                }
                self.latency.record(took);
            }
            Err(error) => {
                if error.decisive() {
                    self.failed += 1;
                } else {
                    self.unresolved += 1;
                }
                self.tell(format!("line {line}: {error}"));
            }
        }
    }

    fn original(&mut self, partition: u32, offset: u64) {
        let ranges = self.originals.entry(partition).or_default();
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == offset => *last = offset,
            _ => ranges.push((offset, offset)),
        }
    }

    /// Where the first copies of the duplicates stand: `1/0-41, 2/7`.
    fn places(&self) -> Vec<String> {
        let place = |(partition, (first, last)): (u32, (u64, u64))| {
            if first == last {
                format!("{partition}/{first}")
            } else {
                format!("{partition}/{first}-{last}")
            }
        };
        let ranges = self.originals.iter().flat_map(|(p, ranges)| ranges.iter().map(|range| (*p, *range)));
        ranges.map(place).collect()
    }

    fn tell(&mut self, text: String) {
        if self.told.len() < TOLD {
            self.told.push(text);
        }
    }

    /// The run is over.
    pub fn ended(&mut self, took: Duration) {
        self.took = took;
    }

    /// Rows committed so far.
    pub fn committed(&self) -> u64 {
        self.committed
    }

    /// 0 only if every row is committed; 3 if nothing failed for certain but some fates are unknown.
    pub fn exit(&self) -> Exit {
        match (self.failed, self.unresolved) {
            (0, 0) => Exit::Ok,
            (0, _) => Exit::Undecided,
            _ => Exit::Error,
        }
    }

    #[allow(clippy::cast_precision_loss)]
    fn msgs_per_s(&self) -> f64 {
        (self.committed as f64 / self.took.as_secs_f64().max(1e-6) * 10.0).round() / 10.0
    }

    /// Failures on standard error, the verdict on standard output.
    pub fn show(&self, output: &Output) {
        for text in &self.told {
            eprintln!("{text}");
        }
        let more = (self.failed + self.unresolved).saturating_sub(self.told.len() as u64);
        if more > 0 {
            eprintln!("… and {more} more");
        }
        let latency = self.latency.summary();
        if output.json {
            output.json(&json!({
                "schema": "quorate.produce.v1",
                "rows": self.rows,
                "committed": self.committed,
                "duplicates": self.duplicates,
                "originals": self.places(),
                "failed": self.failed,
                "unresolved": self.unresolved,
                "msgs_per_s": self.msgs_per_s(),
                "latency_ms": {"p50": latency.p50, "p99": latency.p99, "p999": latency.p999, "max": latency.max},
            }));
        } else if !output.quiet {
            let mut places = self.places();
            if !places.is_empty() {
                let more = places.len().saturating_sub(PLACES);
                places.truncate(PLACES);
                let more = if more > 0 { format!(" and {more} more ranges") } else { String::new() };
                output.remark(&format!("first copies stand at {}{more}", places.join(", ")));
            }
            output.line(&self.line(latency.p99));
        }
    }

    fn line(&self, p99: f64) -> String {
        let mut text = format!("{} rows, {} committed, {} duplicates", self.rows, self.committed, self.duplicates);
        if self.failed > 0 {
            text.push_str(&format!(", {} failed", self.failed));
        }
        if self.unresolved > 0 {
            text.push_str(&format!(", {} unresolved", self.unresolved));
        }
        text.push_str(&format!(", {} msgs/s, p99 {p99} ms", self.msgs_per_s()));
        text
    }
}

#[cfg(test)]
mod tests {
    use quorate_client::{Reason, Refusal};

    use super::*;

    fn refused(maybe_applied: bool) -> SendError {
        let refusal = Refusal::new(Reason::Busy, "a", "b", "c");
        if maybe_applied {
            SendError::Unresolved(std::sync::Arc::new(quorate_client::Unresolved {
                refusal: refusal.of_unknown_fate(),
                partition: quorate_client::PartitionNo(0),
                producer: quorate_proto::ids::ProducerId::NONE,
                epoch: quorate_proto::ids::ProducerEpoch(0),
                sequence: quorate_proto::ids::Sequence(0),
                idempotency_key: None,
            }))
        } else {
            SendError::refused(refusal)
        }
    }

    #[test]
    fn only_a_run_with_every_row_committed_is_a_success() {
        let mut tally = Tally::default();
        assert_eq!(tally.exit(), Exit::Ok);
        tally.outcome(1, Duration::ZERO, Err(refused(true)));
        assert_eq!(tally.exit(), Exit::Undecided);
        tally.outcome(2, Duration::ZERO, Err(refused(false)));
        assert_eq!(tally.exit(), Exit::Error);
    }

    #[test]
    fn an_unfit_row_is_a_failed_row() {
        let mut tally = Tally::default();
        tally.unfit(7, "no column 3");
        assert_eq!((tally.rows, tally.failed, tally.exit()), (1, 1, Exit::Error));
        assert!(tally.line(0.0).starts_with("1 rows, 0 committed, 0 duplicates, 1 failed"));
    }
}
