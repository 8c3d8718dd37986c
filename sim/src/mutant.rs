//! The mutants: production with one rule left out. Each must be caught by the checker that ought to.
//!
//! One type stands for all of them, so that the cores are compiled twice and not twenty times: [`Mutated`] leaves out the
//! rule that was selected for the run that its thread plays.

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;

use quorate_consensus::policy::{Policy, Rule};

use crate::checker::{
    completeness, copies, directory, durable, fenced, leases, linear, liveness, majority, offsets, order, permits,
    serving,
};
use crate::plan::Mode;
use crate::trace::Lines;
use crate::world::{Outcome, World};

thread_local! {
    static LEFT_OUT: Cell<Option<Rule>> = const { Cell::new(None) };
}

/// Production without the rule that [`play`] selected.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mutated;

impl Policy for Mutated {
    fn keeps(rule: Rule) -> bool {
        LEFT_OUT.get() != Some(rule)
    }
}

/// A mutant: what it leaves out, the mode that is aimed at it, and the checkers that ought to catch it.
#[derive(Clone, Copy, Debug)]
pub struct Mutant {
    /// Name.
    pub name: &'static str,
    /// The rule.
    pub rule: Rule,
    /// Mode.
    pub mode: Mode,
    /// Checkers that count as catching it.
    pub caught_by: &'static [&'static str],
}

/// Two leaders at once, in whichever way it shows first.
const TWO: &[&str] = &[serving::NAME, fenced::NAME];

const fn mutant(name: &'static str, rule: Rule, mode: Mode, caught_by: &'static [&'static str]) -> Mutant {
    Mutant { name, rule, mode, caught_by }
}

/// All mutants.
pub const MUTANTS: &[Mutant] = &[
    mutant("no silence rule in the vote gate (V1b)", Rule::Silence, Mode::Amnesia, TWO),
    mutant("boot wait left out (V1c)", Rule::BootWait, Mode::Amnesia, TWO),
    mutant("boot wait as all() over empty memory (V1c)", Rule::EmptyMemory, Mode::Amnesia, TWO),
    mutant(
        "suspect tail votes (V1d, B2)",
        Rule::SuspectVeto,
        Mode::Tail,
        &[completeness::NAME, durable::NAME, offsets::NAME],
    ),
    mutant(
        "wiped replica under its old id (M1)",
        Rule::NewIdAfterLoss,
        Mode::Repair,
        &[completeness::NAME, durable::NAME, offsets::NAME],
    ),
    mutant(
        "observer without memory votes (B2)",
        Rule::Forgetful,
        Mode::Forget,
        &[directory::NAME, permits::NAME, leases::NAME],
    ),
    mutant("contact at receipt (C1)", Rule::ContactStamp, Mode::Amnesia, TWO),
    mutant("first contact at election (C2)", Rule::FirstContact, Mode::Winner, &[fenced::NAME]),
    mutant("vote acknowledges nobody (V2)", Rule::VoteAcknowledges, Mode::Winner, &[fenced::NAME]),
    mutant("clock cached per turn (V2)", Rule::FreshClock, Mode::Pause, TWO),
    mutant("loose death: newer incarnation alone (S2)", Rule::DeathProof, Mode::Copied, TWO),
    mutant("release not final (H1)", Rule::ReleaseFinal, Mode::Generic, TWO),
    mutant("acknowledge before flush (W1)", Rule::FlushBeforeAck, Mode::Generic, &[majority::NAME, durable::NAME]),
    mutant("key remembered before commit (W3)", Rule::KeysAtApply, Mode::Generic, &[copies::NAME, durable::NAME]),
    mutant("sequence gap accepted (I3)", Rule::NoSequenceGap, Mode::Generic, &[order::NAME, durable::NAME]),
    mutant("basis from an uncommitted permit (P1)", Rule::CommittedPermit, Mode::Observers, &[permits::NAME]),
    mutant("read from applied state (R1, F1)", Rule::ReadsWait, Mode::Generic, &[linear::NAME]),
    mutant("no resign (F3)", Rule::Resign, Mode::Deaf, &[liveness::NAME]),
    mutant("leader without lease keeps leading (F3)", Rule::LeaseResign, Mode::Deaf, &[liveness::NAME]),
    mutant("same candidate for ever (P2)", Rule::FailedLast, Mode::Deaf, &[liveness::NAME]),
    mutant("reusable permit (P1)", Rule::PermitOnce, Mode::Observers, &[permits::NAME]),
];

/// Plays one run without `rule`.
#[must_use]
pub fn play(rule: Rule, seed: u64, mode: Mode, lines: Lines) -> Outcome {
    LEFT_OUT.set(Some(rule));
    let outcome = World::<Mutated>::new(seed, mode, lines).run();
    LEFT_OUT.set(None);
    outcome
}

/// How the hunt for one mutant went.
#[derive(Clone, Debug)]
pub struct Hunt {
    /// Which.
    pub mutant: Mutant,
    /// The first run, by seed, that the right checker ended.
    pub caught: Option<Outcome>,
    /// Runs that another checker ended before.
    pub others: u64,
    /// Runs played.
    pub runs: u64,
}

/// Plays a mutant seed by seed until it is caught by the right checker.
#[must_use]
pub fn hunt(mutant: &Mutant, seeds: Range<u64>) -> Hunt {
    let (mut others, mut runs) = (0, 0);
    for seed in seeds {
        let outcome = play(mutant.rule, seed, mutant.mode, Lines::Dropped);
        runs += 1;
        match &outcome.violation {
            Some(violation) if mutant.caught_by.contains(&violation.checker) => {
                return Hunt { mutant: *mutant, caught: Some(outcome), others, runs };
            }
            Some(_) => others += 1,
            None => {}
        }
    }
    Hunt { mutant: *mutant, caught: None, others, runs }
}

/// Hunts all of them on all cores, in the order of the table; `done` hears of each as it ends.
pub fn hunt_all(seeds: &Range<u64>, done: impl Fn(&Hunt) + Sync) -> Vec<Hunt> {
    let next = AtomicU64::new(0);
    let hunts = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| loop {
                let index = usize::try_from(next.fetch_add(1, Ordering::Relaxed)).expect("fits");
                let Some(mutant) = MUTANTS.get(index) else { return };
                let hunt = hunt(mutant, seeds.clone());
                done(&hunt);
                hunts.lock().expect("no thread panics while it holds the list").push((index, hunt));
            });
        }
    });
    let mut hunts = hunts.into_inner().expect("all threads ended");
    hunts.sort_by_key(|(index, _)| *index);
    hunts.into_iter().map(|(_, hunt)| hunt).collect()
}
