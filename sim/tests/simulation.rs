//! The cluster under the simulator: fixed and fresh seeds, the regression list, the mutants, and determinism.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quorate_sim::mutant::hunt_all;
use quorate_sim::plan::Mode;
use quorate_sim::regressions;
use quorate_sim::runner::{play, play_all, play_quiet, Rules};
use quorate_sim::trace::Lines;

/// Seeds of every run of the tests, spread over the modes.
const FIXED: u64 = 2_000;
/// Seeds that no run played before.
const FRESH: u64 = 500;
/// A mutant that lives longer is not caught.
const MUTANT_SEEDS: u64 = 2_000;

#[test]
fn the_same_seed_twice_gives_the_same_trace() {
    for mode in Mode::ALL {
        let traced = |seed| play::<Rules>(seed, mode, Lines::Hashed);
        let (first, second) = (traced(11), traced(11));
        assert_eq!(first.digest, second.digest, "mode {mode}");
        assert_ne!(first.digest, traced(12).digest, "another seed is another run");
    }
}

#[test]
fn no_promise_is_broken_with_fixed_seeds() {
    let summary = play_all::<Rules>(0..FIXED, &Mode::ALL, None);
    println!("{summary}");
    assert!(summary.is_clean(), "{summary}");
}

#[test]
fn no_promise_is_broken_with_fresh_seeds() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later than 1970");
    let from = now.as_secs() * 1_000;
    let summary = play_all::<Rules>(from..from + FRESH, &Mode::ALL, None);
    println!("{summary}");
    assert!(summary.failed.is_empty(), "{summary}");
}

/// A tenth of the hours that `make sim-quiet` plays.
#[test]
fn nobody_is_suspected_in_quiet_hours() {
    for (burden, outcome) in play_quiet(7, Duration::from_secs(24 * 60)) {
        assert_eq!(outcome.violation, None, "{burden}: {}", outcome.coverage);
    }
}

#[test]
fn what_was_found_once_stays_mended() {
    for known in regressions::all().expect("the list can be read") {
        let outcome = play::<Rules>(known.seed, known.mode, Lines::Dropped);
        assert_eq!(outcome.violation, None, "{} {} {}: {}", known.day, known.mode, known.seed, known.found);
    }
}

#[test]
fn every_mutant_is_caught_by_the_checker_that_ought_to() {
    let hunts = hunt_all(&(0..MUTANT_SEEDS), |_| {});
    let alive: Vec<&str> = hunts.iter().filter(|hunt| hunt.caught.is_none()).map(|hunt| hunt.mutant.name).collect();
    assert!(alive.is_empty(), "not caught within {MUTANT_SEEDS} seeds: {}", alive.join("; "));
}
