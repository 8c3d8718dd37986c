//! Many runs: seeds over modes, in parallel, with progress and a summary of what they exercised.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{IsTerminal, Write};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use quorate_consensus::policy::{Policy, Production};

use crate::checker::floor;
use crate::coverage::Coverage;
use crate::plan::quiet::{self, Burden};
use crate::plan::Mode;
use crate::trace::Lines;
use crate::world::{Outcome, World};

/// Production.
pub type Rules = Production;

/// Failed runs after which a batch is given up.
const ENOUGH: usize = 20;

/// Plays one run.
#[must_use]
pub fn play<P: Policy>(seed: u64, mode: Mode, lines: Lines) -> Outcome {
    World::<P>::new(seed, mode, lines).run()
}

/// Plays quiet hours under each burden, side by side.
#[must_use]
pub fn play_quiet(seed: u64, span: Duration) -> Vec<(Burden, Outcome)> {
    std::thread::scope(|scope| {
        let running = Burden::ALL.map(|burden| {
            (burden, scope.spawn(move || World::<Rules>::quiet(seed, quiet::plan(span, burden), Lines::Dropped).run()))
        });
        running.into_iter().map(|(burden, run)| (burden, run.join().expect("a run ends"))).collect()
    })
}

/// The mode that a seed of a batch plays: the modes take turns.
#[must_use]
pub fn mode_of(seed: u64, modes: &[Mode]) -> Mode {
    modes[usize::try_from(seed % modes.len() as u64).expect("few modes")]
}

/// Result of many runs.
#[derive(Debug, Default)]
pub struct Summary {
    /// Runs played and what they exercised, by mode.
    pub modes: BTreeMap<Mode, (u64, Coverage)>,
    /// Runs with a violation, by seed.
    pub failed: Vec<Outcome>,
}

impl Summary {
    /// Runs played.
    #[must_use]
    pub fn runs(&self) -> u64 {
        self.modes.values().map(|(runs, _)| runs).sum()
    }

    /// What all runs exercised together.
    #[must_use]
    pub fn coverage(&self) -> Coverage {
        let mut all = Coverage::default();
        self.modes.values().for_each(|(_, coverage)| all.merge(coverage));
        all
    }

    /// Batch floors: what runs of a mode ought to have exercised and did not.
    #[must_use]
    pub fn vacuous(&self) -> Vec<(Mode, &'static str)> {
        let missing = |(mode, (runs, coverage)): (&Mode, &(u64, Coverage))| {
            floor::missing(*mode, *runs, coverage).into_iter().map(|what| (*mode, what)).collect::<Vec<_>>()
        };
        self.modes.iter().flat_map(missing).collect()
    }

    /// Nothing was violated and nothing was vacuous.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.failed.is_empty() && self.vacuous().is_empty()
    }

    fn add(&mut self, outcome: Outcome) {
        let (runs, coverage) = self.modes.entry(outcome.mode).or_default();
        *runs += 1;
        coverage.merge(&outcome.coverage);
        if outcome.violation.is_some() {
            self.failed.push(outcome);
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let modes: Vec<String> = self.modes.iter().map(|(mode, (runs, _))| format!("{mode} {runs}")).collect();
        writeln!(f, "{} runs ({}), {} failed", self.runs(), modes.join(", "), self.failed.len())?;
        writeln!(f, "exercised: {}", self.coverage())?;
        for (mode, what) in self.vacuous() {
            writeln!(f, "mode {mode} never exercised `{what}`")?;
        }
        for outcome in &self.failed {
            let violation = outcome.violation.as_ref().expect("only failed runs are listed");
            writeln!(f, "seed {} {}: {violation}\n  {}", outcome.seed, outcome.mode, reproduce(outcome))?;
        }
        Ok(())
    }
}

/// Plays every seed in the mode whose turn it is, on all cores, until all are played, enough have failed, or time is up.
#[must_use]
pub fn play_all<P: Policy>(seeds: Range<u64>, modes: &[Mode], time: Option<Duration>) -> Summary {
    let (next, all) = (AtomicU64::new(seeds.start), seeds.end - seeds.start);
    let summary = Mutex::new(Summary::default());
    let progress = Progress::new(all);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= seeds.end || time.is_some_and(|time| progress.began.elapsed() >= time) {
                    return;
                }
                let outcome = play::<P>(seed, mode_of(seed, modes), Lines::Dropped);
                let mut summary = summary.lock().expect("no thread panics while it holds the summary");
                progress.failed(&outcome);
                summary.add(outcome);
                progress.after(summary.runs(), summary.failed.len());
                if summary.failed.len() >= ENOUGH {
                    next.store(seeds.end, Ordering::Relaxed);
                }
            });
        }
    });
    let mut summary = summary.into_inner().expect("all threads ended");
    summary.failed.sort_by_key(|outcome| (outcome.seed, outcome.mode));
    summary
}

/// Progress on standard error: on a terminal one line that changes, else a line a minute. A failed run is told at once.
struct Progress {
    all: u64,
    began: Instant,
    terminal: bool,
    minutes: AtomicU64,
}

impl Progress {
    fn new(all: u64) -> Self {
        Self { all, began: Instant::now(), terminal: std::io::stderr().is_terminal(), minutes: AtomicU64::new(0) }
    }

    fn after(&self, done: u64, failed: usize) {
        let (passed, all) = (self.began.elapsed(), self.all);
        let each = passed.as_millis() / u128::from(done);
        let line = format!("{done} of {all} runs, {failed} failed, {each} ms a run");
        // Progress is a courtesy: a closed output is no reason to stop.
        if self.terminal && (done.is_multiple_of(20) || done == all) {
            let _ = write!(std::io::stderr(), "\r{line} ");
        } else if !self.terminal && self.minutes.swap(passed.as_secs() / 60, Ordering::Relaxed) < passed.as_secs() / 60
        {
            let _ = writeln!(std::io::stderr(), "{line}");
        }
    }

    fn failed(&self, outcome: &Outcome) {
        if let Some(violation) = &outcome.violation {
            let line = format!("seed {} {}: {violation}", outcome.seed, outcome.mode);
            let _ = writeln!(std::io::stderr(), "{}{line}", if self.terminal { "\n" } else { "" });
        }
    }
}

/// The command that plays a failed run again with its trace.
#[must_use]
pub fn reproduce(outcome: &Outcome) -> String {
    format!("make sim SEED={} MODE={}", outcome.seed, outcome.mode)
}
