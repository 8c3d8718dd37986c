//! Many runs: seeds over modes, in parallel, with progress and a summary.

use std::io::{IsTerminal, Write};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;

use quorate_consensus::policy::{Policy, Production};

use crate::coverage::Coverage;
use crate::mutant;
use crate::plan::Mode;
use crate::world::{Outcome, World};

/// Plays one run.
#[must_use]
pub fn play<P: Policy>(seed: u64, mode: Mode, print: bool) -> Outcome {
    World::<P>::new(seed, mode, print).run()
}

/// Result of many runs.
#[derive(Debug, Default)]
pub struct Summary {
    /// Runs played.
    pub runs: u64,
    /// What they exercised together.
    pub coverage: Coverage,
    /// Runs with a violation, by seed.
    pub failed: Vec<Outcome>,
}

/// Plays every mode with every seed on all cores. Stops early once `enough` runs failed.
#[must_use]
pub fn play_all<P: Policy>(seeds: Range<u64>, modes: &[Mode], enough: usize) -> Summary {
    let jobs: Vec<(u64, Mode)> = seeds.flat_map(|seed| modes.iter().map(move |mode| (seed, *mode))).collect();
    let next = AtomicU64::new(0);
    let summary = Mutex::new(Summary::default());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| loop {
                let job = usize::try_from(next.fetch_add(1, Ordering::Relaxed)).expect("fits");
                let Some((seed, mode)) = jobs.get(job).copied() else { return };
                let outcome = play::<P>(seed, mode, false);
                let mut summary = summary.lock().expect("no thread panics while it holds the summary");
                summary.runs += 1;
                summary.coverage.merge(&outcome.coverage);
                if outcome.violation.is_some() {
                    summary.failed.push(outcome);
                }
                progress(summary.runs, jobs.len() as u64, summary.failed.len());
                if summary.failed.len() >= enough {
                    next.store(jobs.len() as u64, Ordering::Relaxed);
                }
            });
        }
    });
    let mut summary = summary.into_inner().expect("all threads ended");
    summary.failed.sort_by_key(|outcome| (outcome.seed, outcome.mode));
    summary
}

fn progress(done: u64, all: u64, failed: usize) {
    let mut err = std::io::stderr();
    if err.is_terminal() && (done.is_multiple_of(20) || done == all) {
        // Progress is a courtesy: a closed terminal is no reason to stop.
        let _ = write!(err, "\r{done} of {all} runs, {failed} failed ");
    }
}

/// The command that plays a failed run again with its trace.
#[must_use]
pub fn reproduce(outcome: &Outcome) -> String {
    format!("make sim SEED={} MODE={}", outcome.seed, outcome.mode)
}

/// A mutant: its name, the mode and the checkers that ought to catch it.
pub struct Mutant {
    /// Name.
    pub name: &'static str,
    /// Mode that is aimed at it.
    pub mode: Mode,
    /// Checkers that count as catching it.
    pub caught_by: &'static [&'static str],
    /// Plays one run of it.
    pub play: fn(u64, Mode, bool) -> Outcome,
}

/// All mutants.
pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "no boot wait",
        mode: Mode::Amnesia,
        caught_by: &[crate::checker::serving::NAME],
        play: play::<mutant::NoBootWait>,
    },
    Mutant {
        name: "contact at receipt",
        mode: Mode::Amnesia,
        caught_by: &[crate::checker::serving::NAME],
        play: play::<mutant::ContactAtReceipt>,
    },
    Mutant {
        name: "no silence rule in the vote gate",
        mode: Mode::Amnesia,
        caught_by: &[crate::checker::serving::NAME],
        play: play::<mutant::NoSilenceRule>,
    },
    Mutant {
        name: "acknowledge before flush",
        mode: Mode::Generic,
        caught_by: &[crate::checker::durable::NAME, crate::checker::offsets::NAME, crate::checker::identity::NAME],
        play: play::<mutant::AcknowledgeBeforeFlush>,
    },
];

/// Plays a mutant until it is caught by the right checker. The outcome, or how many runs let it live.
///
/// # Errors
/// Number of runs played without catching it.
pub fn hunt(mutant: &Mutant, seeds: Range<u64>) -> Result<Outcome, u64> {
    let count = seeds.end - seeds.start;
    for seed in seeds {
        let outcome = (mutant.play)(seed, mutant.mode, false);
        if outcome.violation.as_ref().is_some_and(|v| mutant.caught_by.contains(&v.checker)) {
            return Ok(outcome);
        }
    }
    Err(count)
}

/// Production.
pub type Rules = Production;
