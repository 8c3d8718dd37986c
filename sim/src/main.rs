//! `quorate-sim`: plays seeds, one seed with its trace, or the mutants.

use std::process::ExitCode;

use clap::Parser;
use quorate_sim::plan::Mode;
use quorate_sim::runner::{hunt, play, play_all, reproduce, Rules, MUTANTS};

/// Deterministic simulation of a Quorate cluster.
#[derive(Parser)]
#[command(name = "quorate-sim")]
struct Arguments {
    /// Play this seed alone and print its trace.
    #[arg(long)]
    seed: Option<u64>,
    /// Mode: generic, amnesia, deaf. All of them if left out.
    #[arg(long)]
    mode: Option<Mode>,
    /// How many seeds.
    #[arg(long, default_value_t = 300)]
    seeds: u64,
    /// First seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Hunt the mutants instead.
    #[arg(long)]
    mutants: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let modes = arguments.mode.map_or(Mode::ALL.to_vec(), |mode| vec![mode]);
    if let Some(seed) = arguments.seed {
        return trace(seed, &modes);
    }
    if arguments.mutants {
        return mutants(arguments.from..arguments.from + arguments.seeds);
    }
    let summary = play_all::<Rules>(arguments.from..arguments.from + arguments.seeds, &modes, 20);
    println!("{} runs, {} failed\nexercised: {}", summary.runs, summary.failed.len(), summary.coverage);
    for outcome in &summary.failed {
        let violation = outcome.violation.as_ref().expect("it failed");
        println!("seed {} {}: {violation}\n  {}", outcome.seed, outcome.mode, reproduce(outcome));
    }
    if summary.failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn trace(seed: u64, modes: &[Mode]) -> ExitCode {
    let mut failed = false;
    for mode in modes {
        let outcome = play::<Rules>(seed, *mode, true);
        println!("exercised: {}", outcome.coverage);
        match &outcome.violation {
            Some(violation) => println!("seed {seed} {mode}: {violation}"),
            None => println!("seed {seed} {mode}: nothing violated, trace {}", outcome.digest),
        }
        failed |= outcome.violation.is_some();
    }
    if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

fn mutants(seeds: std::ops::Range<u64>) -> ExitCode {
    let mut alive = 0;
    for mutant in MUTANTS {
        match hunt(mutant, seeds.clone()) {
            Ok(outcome) => {
                let violation = outcome.violation.expect("it was caught");
                println!(
                    "{}: caught by `{}`, mode {}, seed {}",
                    mutant.name, violation.checker, mutant.mode, outcome.seed
                );
            }
            Err(runs) => {
                alive += 1;
                println!("{}: ALIVE after {runs} seeds of mode {}", mutant.name, mutant.mode);
            }
        }
    }
    if alive == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
