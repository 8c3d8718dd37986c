//! The cluster under the simulator: 300 seeds, the mutants, and determinism.

use quorate_sim::plan::Mode;
use quorate_sim::runner::{hunt, play, play_all, reproduce, Rules, MUTANTS};

/// Seeds of every run of the tests, spread over the modes.
const SEEDS: u64 = 100;

#[test]
fn the_same_seed_twice_gives_the_same_trace() {
    for mode in Mode::ALL {
        let (first, second) = (play::<Rules>(11, mode, false), play::<Rules>(11, mode, false));
        assert_eq!(first.digest, second.digest, "mode {mode}");
        assert_ne!(first.digest, play::<Rules>(12, mode, false).digest, "another seed is another run");
    }
}

#[test]
fn no_promise_is_broken_in_three_hundred_runs() {
    let summary = play_all::<Rules>(0..SEEDS, &Mode::ALL, 5);
    println!("{} runs; exercised: {}", summary.runs, summary.coverage);
    let failed: Vec<String> = summary
        .failed
        .iter()
        .map(|outcome| format!("{}\n  {}", outcome.violation.as_ref().expect("failed"), reproduce(outcome)))
        .collect();
    assert!(failed.is_empty(), "{} runs failed:\n{}", failed.len(), failed.join("\n"));
    for exercised in
        ["veto silence", "veto boot", "resigned contact", "exit notices", "snapshots installed", "batches sent again"]
    {
        assert!(summary.coverage.get(exercised) > 0, "no run exercised `{exercised}`: {}", summary.coverage);
    }
}

#[test]
fn every_mutant_is_caught_by_the_checker_that_ought_to() {
    for mutant in MUTANTS {
        match hunt(mutant, 0..2_000) {
            Ok(outcome) => println!("{}: {}", mutant.name, outcome.violation.expect("caught")),
            Err(runs) => panic!("{} lives after {runs} seeds of mode {}", mutant.name, mutant.mode),
        }
    }
}
