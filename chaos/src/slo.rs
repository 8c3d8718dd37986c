//! Recorded failovers summed up: how many of each cause, how long they took, how many were false.
//!
//! A failover is *false* if the observers guessed wrong about the old leader. Of all causes only *silence* is a guess:
//! the others are facts that the process, its supervisor, its replicas or its own release reported. Two things count:
//!
//! - a permit was issued and the old leader went on in its term (`withdrawn`): clients noticed nothing;
//! - the cause was silence and the very process was heard again before the failover was recorded.
//!
//! Both are upper bounds: a process that stood still for two seconds, or a cut that healed meanwhile, looks the same to
//! the observers. Planned handoffs are no failovers and stand on a line of their own.

use std::collections::BTreeMap;
use std::time::Duration;

use quorate_proto::v1::{Failover, ListFailoversResponse};
use serde::Serialize;

use crate::measure::{ms, Repeats};

/// Cause of a planned handoff.
pub const HANDOFF: &str = "handoff";
/// A rate per day from less than this would be made up.
const SHORTEST_WINDOW: Duration = Duration::from_secs(3_600);
const DAY: f64 = 86_400.0;

/// p50, p99 and the worst, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Median.
    pub p50: f64,
    /// 99 %, by nearest rank: the worst of fewer than 100.
    pub p99: f64,
    /// Longest.
    pub max: f64,
}

impl Spread {
    fn of(all: Vec<f64>) -> Self {
        let repeats = Repeats::new(all);
        Self { p50: repeats.p50, p99: repeats.p99, max: repeats.max }
    }
}

/// Failovers of one cause.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ByCause {
    /// As recorded: `exit_notice`, `silence` …
    pub cause: String,
    /// How many changed the leader.
    pub count: usize,
    /// Of the whole; `None` if none changed the leader.
    pub total_ms: Option<Spread>,
    /// Of each phase, by name.
    pub phases_ms: BTreeMap<String, Spread>,
    /// Permits after which the old leader went on.
    pub withdrawn: usize,
    /// False ones, those that were withdrawn among them.
    #[serde(rename = "false")]
    pub wrong: usize,
}

/// All of a window.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Begin of the window, microseconds since the Unix epoch on cluster time.
    pub since_us: i64,
    /// Its end.
    pub as_of_us: i64,
    /// Its length.
    pub window_s: f64,
    /// By cause, planned handoffs last.
    pub causes: Vec<ByCause>,
    /// Unplanned changes of a leader.
    pub failovers: usize,
    /// Of all unplanned changes.
    pub total_ms: Option<Spread>,
    /// False failovers in the window …
    pub false_failovers: usize,
    /// … and per day; `None` for a window of less than an hour.
    pub false_per_day: Option<f64>,
}

/// Whether the observers guessed wrong.
#[must_use]
pub fn is_false(failover: &Failover) -> bool {
    failover.withdrawn || (failover.cause == "silence" && failover.old_process == "alive")
}

/// From the last sign of the old leader to the last phase.
#[must_use]
pub fn total(failover: &Failover) -> Duration {
    Duration::from_micros(failover.phases.iter().map(|phase| phase.duration_us).sum())
}

/// Sums up what was recorded, or the last `within` of it.
#[must_use]
pub fn summary(recorded: &ListFailoversResponse, within: Option<Duration>) -> Summary {
    let as_of = recorded.as_of_us;
    let oldest = recorded.failovers.first().map_or(as_of, |failover| failover.at_us);
    let known = if recorded.recorded_since_us > 0 { recorded.recorded_since_us } else { oldest };
    let wanted = within.map(|span| as_of.saturating_sub(i64::try_from(span.as_micros()).unwrap_or(i64::MAX)));
    let since = wanted.map_or(known, |wanted| wanted.max(known)).min(as_of);
    let window = Duration::from_micros(u64::try_from(as_of - since).unwrap_or_default());
    let mut by: BTreeMap<(bool, &str), Vec<&Failover>> = BTreeMap::new();
    for failover in recorded.failovers.iter().filter(|failover| failover.at_us >= since) {
        by.entry((failover.cause == HANDOFF, &failover.cause)).or_default().push(failover);
    }
    let unplanned = by.iter().filter(|((planned, _), _)| !planned).flat_map(|(_, all)| all.iter().copied());
    let changed: Vec<f64> = unplanned.filter(|f| !f.withdrawn).map(|f| ms(total(f))).collect();
    let causes: Vec<ByCause> = by.iter().map(|((_, cause), all)| by_cause(cause, all)).collect();
    let false_failovers: usize = causes.iter().map(|cause| cause.wrong).sum();
    #[allow(clippy::cast_precision_loss)]
    let rate = false_failovers as f64 * DAY / window.as_secs_f64();
    Summary {
        since_us: since,
        as_of_us: as_of,
        window_s: window.as_secs_f64(),
        causes,
        failovers: changed.len(),
        total_ms: (!changed.is_empty()).then(|| Spread::of(changed)),
        false_failovers,
        false_per_day: (window >= SHORTEST_WINDOW).then_some(rate),
    }
}

fn by_cause(cause: &str, all: &[&Failover]) -> ByCause {
    let changed: Vec<&&Failover> = all.iter().filter(|failover| !failover.withdrawn).collect();
    let mut phases: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for phase in changed.iter().flat_map(|failover| &failover.phases) {
        phases.entry(phase.name.clone()).or_default().push(ms(Duration::from_micros(phase.duration_us)));
    }
    let totals: Vec<f64> = changed.iter().map(|failover| ms(total(failover))).collect();
    ByCause {
        cause: cause.to_owned(),
        count: changed.len(),
        total_ms: (!totals.is_empty()).then(|| Spread::of(totals)),
        phases_ms: phases.into_iter().map(|(name, all)| (name, Spread::of(all))).collect(),
        withdrawn: all.len() - changed.len(),
        wrong: all.iter().filter(|failover| is_false(failover)).count(),
    }
}

#[cfg(test)]
mod tests {
    use quorate_proto::v1::Phase;

    use super::*;

    const SECOND: i64 = 1_000_000;

    fn failover(at_s: i64, cause: &str, took_ms: u64, old_process: &str) -> Failover {
        let phase = |name: &str, part: u64| Phase { name: name.to_owned(), duration_us: part * 1_000 };
        Failover {
            cause: cause.to_owned(),
            at_us: at_s * SECOND,
            phases: vec![phase("suspected", took_ms / 2), phase("elected", took_ms - took_ms / 2)],
            old_process: old_process.to_owned(),
            ..Failover::default()
        }
    }

    fn recorded(failovers: Vec<Failover>, hours: i64) -> ListFailoversResponse {
        ListFailoversResponse { failovers, recorded_since_us: SECOND, as_of_us: SECOND + hours * 3_600 * SECOND }
    }

    #[test]
    fn failovers_are_summed_up_by_cause_and_planned_handoffs_apart() {
        let mut all: Vec<Failover> = (1..=200).map(|n| failover(n, "exit_notice", n as u64, "dead")).collect();
        all.push(failover(300, "handoff", 900, "alive"));
        all.push(failover(301, "silence", 1_400, "silent"));
        let sum = summary(&recorded(all, 24), None);
        let causes: Vec<(&str, usize)> = sum.causes.iter().map(|c| (c.cause.as_str(), c.count)).collect();
        assert_eq!(causes, [("exit_notice", 200), ("silence", 1), ("handoff", 1)]);
        let exit = sum.causes[0].total_ms.expect("measured");
        assert_eq!((exit.p50, exit.p99, exit.max), (100.0, 198.0, 200.0));
        assert_eq!(sum.causes[0].phases_ms["suspected"].max, 100.0);
        assert_eq!((sum.failovers, sum.total_ms.map(|t| t.max)), (201, Some(1_400.0)), "a handoff is no failover");
        assert_eq!((sum.false_failovers, sum.false_per_day), (0, Some(0.0)));
    }

    #[test]
    fn only_a_wrong_guess_is_false() {
        let mut withdrawn = failover(5, "unheard", 1_600, "alive");
        withdrawn.withdrawn = true;
        let all = vec![
            failover(1, "silence", 1_400, "dead"),
            failover(2, "silence", 1_400, "silent"),
            failover(3, "silence", 1_400, "alive"),
            failover(4, "fence_lost", 1_400, "alive"),
            withdrawn,
        ];
        let sum = summary(&recorded(all, 48), None);
        assert_eq!((sum.false_failovers, sum.false_per_day), (2, Some(1.0)));
        let unheard = sum.causes.iter().find(|c| c.cause == "unheard").expect("listed");
        assert_eq!((unheard.count, unheard.withdrawn, unheard.wrong, unheard.total_ms), (0, 1, 1, None));
        assert_eq!(sum.failovers, 4, "nobody lost the lead by a permit that was withdrawn");
    }

    #[test]
    fn a_window_counts_its_own_and_a_short_one_gives_no_rate() {
        let all = vec![failover(10, "silence", 10, "alive"), failover(7_000, "silence", 10, "alive")];
        let all = recorded(all, 2);
        assert_eq!(summary(&all, None).false_per_day, Some(24.0));
        let half = summary(&all, Some(Duration::from_secs(1_800)));
        assert_eq!((half.failovers, half.window_s, half.false_per_day), (1, 1_800.0, None));
        let longer = summary(&all, Some(Duration::from_secs(1 << 40)));
        assert_eq!(longer.window_s, 7_200.0, "no longer than what is on record");
    }
}
