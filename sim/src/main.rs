//! `quorate-sim`: plays seeds, one seed with its trace, or the mutants.

use std::ops::Range;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Parser;
use quorate_sim::mutant::{hunt_all, play as play_mutant, Hunt, MUTANTS};
use quorate_sim::plan::Mode;
use quorate_sim::runner::{mode_of, play, play_all, play_quiet, Rules};
use quorate_sim::trace::Lines;

/// A run allocates all the time, on one thread.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Deterministic simulation of a Quorate cluster.
#[derive(Parser)]
#[command(name = "quorate-sim")]
struct Arguments {
    /// Play this seed alone and print its trace.
    #[arg(long)]
    seed: Option<u64>,
    /// Mode: generic, amnesia, deaf, pause, observers, winner, tail, copied, handoff,
    /// repair, joint, forget, full, read-index, drift. All in turn if left out.
    #[arg(long)]
    mode: Option<Mode>,
    /// How many seeds.
    #[arg(long, default_value_t = 10_000)]
    seeds: u64,
    /// First seed; with --hours a fresh one.
    #[arg(long)]
    from: Option<u64>,
    /// Play for so long instead.
    #[arg(long)]
    hours: Option<f64>,
    /// Play so many quiet hours instead: nothing is wrong, and nobody may be suspected.
    #[arg(long)]
    quiet: Option<f64>,
    /// Hunt the mutants instead.
    #[arg(long)]
    mutants: bool,
    /// Only this mutant, by a part of its name; with --seed its trace.
    #[arg(long)]
    mutant: Option<String>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let modes = arguments.mode.map_or(Mode::ALL.to_vec(), |mode| vec![mode]);
    let clean = if let Some(name) = &arguments.mutant {
        one_mutant(name, &arguments)
    } else if arguments.mutants {
        mutants(&(0..MUTANT_SEEDS))
    } else if let Some(hours) = arguments.quiet {
        quiet(arguments.seed.unwrap_or(1), hours)
    } else if let Some(seed) = arguments.seed {
        trace(seed, mode_of(seed, &modes))
    } else {
        let (seeds, time) = batch(&arguments);
        let summary = play_all::<Rules>(seeds, &modes, time);
        println!("{summary}");
        summary.is_clean()
    };
    if clean {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// A mutant that lives longer is not caught.
const MUTANT_SEEDS: u64 = 2_000;

fn batch(arguments: &Arguments) -> (Range<u64>, Option<Duration>) {
    match arguments.hours {
        Some(hours) => {
            let fresh = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
            let from = arguments.from.unwrap_or(fresh * 1_000_000);
            println!("from seed {from}");
            (from..u64::MAX, Some(Duration::from_secs_f64(hours * 3_600.0)))
        }
        None => {
            let from = arguments.from.unwrap_or(0);
            (from..from + arguments.seeds, None)
        }
    }
}

fn trace(seed: u64, mode: Mode) -> bool {
    let outcome = play::<Rules>(seed, mode, Lines::Printed);
    println!("exercised: {}", outcome.coverage);
    match &outcome.violation {
        Some(violation) => println!("seed {seed} {mode}: {violation}"),
        None => println!("seed {seed} {mode}: nothing violated, trace {}", outcome.digest),
    }
    outcome.violation.is_none()
}

fn quiet(seed: u64, hours: f64) -> bool {
    let mut clean = true;
    for (burden, outcome) in play_quiet(seed, Duration::from_secs_f64(hours * 3_600.0)) {
        println!("{hours} hours, {burden}: {}", outcome.coverage);
        match &outcome.violation {
            Some(violation) => println!("  {violation}"),
            None => println!("  no false failover, nothing violated"),
        }
        clean &= outcome.violation.is_none();
    }
    clean
}

fn mutants(seeds: &Range<u64>) -> bool {
    let hunts = hunt_all(seeds, |hunt| println!("{}", line(hunt)));
    hunts.iter().all(|hunt| hunt.caught.is_some())
}

fn one_mutant(name: &str, arguments: &Arguments) -> bool {
    let Some(mutant) = MUTANTS.iter().find(|mutant| mutant.name.contains(name)) else {
        eprintln!("no mutant is called `{name}`");
        return false;
    };
    if let Some(seed) = arguments.seed {
        let outcome = play_mutant(mutant.rule, seed, arguments.mode.unwrap_or(mutant.mode), Lines::Printed);
        println!("exercised: {}\n{:?}", outcome.coverage, outcome.violation);
        return outcome.violation.is_some();
    }
    let hunt = quorate_sim::mutant::hunt(mutant, 0..MUTANT_SEEDS.min(arguments.seeds));
    println!("{}", line(&hunt));
    hunt.caught.is_some()
}

fn line(hunt: &Hunt) -> String {
    let (name, mode) = (hunt.mutant.name, hunt.mutant.mode);
    let others = if hunt.others > 0 { format!(", {} runs ended by others before", hunt.others) } else { String::new() };
    match hunt.caught.as_ref().and_then(|outcome| Some((outcome, outcome.violation.as_ref()?))) {
        Some((outcome, violation)) => {
            format!("{name}: caught by `{}`, mode {mode}, seed {}{others}", violation.checker, outcome.seed)
        }
        None => format!("{name}: ALIVE after {} seeds of mode {mode}{others}", hunt.runs),
    }
}
