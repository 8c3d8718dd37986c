//! `observer_loss = "read_index"` (L6): the observers are gone for longer than any lease. A leader with its data majority
//! goes on; no new one can arise; and never do two serve.

use quorate_consensus::replica::ObserverLoss;

use super::{at, often, Fault, Plan, Target, DRIFT_PPM, MS};
use crate::net::{Host, Weather};
use crate::rng::Chance;

/// What a batch must exercise.
pub(super) const EXERCISES: &[&str] =
    &["no observer majority", "served without a lease", "reads answered", "fence closed", "resigned contact"];

/// Leases last 7.75 s at most: beyond that, serving needs no observer.
const LEASE: u64 = 8_000;

pub(super) fn draw(chance: &mut Chance) -> Plan {
    let begin = chance.between(3_000, 4_500);
    let undisturbed = chance.one_in(400);
    let lasting = LEASE + chance.between(1_500, 5_000);
    let first = chance.between(1, 3);
    let gone = chance.between(2, 3);
    let observer = |n: u64| Target::Host(Host::Observer((first + n - 1) % 3 + 1));
    let mut faults = Vec::new();
    for n in 0..gone {
        let down = MS(lasting + if undisturbed { 60_000 } else { chance.between(0, 500) });
        faults.push((at(begin + chance.between(0, 300)), Fault::Crash { target: observer(n), down, notice: false }));
    }
    if undisturbed {
        // It must go on serving to the end.
        let stop = at(begin + lasting);
        return Plan {
            faults,
            heal_at: None,
            stop,
            end: stop + super::REST,
            weather: Weather::CALM,
            drift_ppm: DRIFT_PPM,
            loss: ObserverLoss::ReadIndex,
            ..Plan::healing(Vec::new(), 0, Weather::CALM)
        };
    }
    for _ in 0..chance.between(1, 3) {
        let when = at(begin + chance.between(500, lasting));
        let (down, span) = (MS(chance.between(50, 3_000)), MS(chance.between(100, 4_000)));
        let target = if chance.one_in(500) { Target::Leader } else { Target::Host(Host::Node(chance.between(1, 3))) };
        faults.push((
            when,
            match chance.between(0, 4) {
                0 => Fault::Crash { target, down, notice: chance.one_in(600) },
                1 => Fault::Pause { target, span, inside: chance.one_in(500) },
                2 => Fault::Isolate { target, span },
                3 => Fault::Cut { from: target, to: Target::SecondFollower, span: Some(span) },
                _ => Fault::Stop { target, down },
            },
        ));
    }
    let plan = Plan::healing(faults, begin + lasting + 1_500, often(chance, Weather::ROUGH));
    Plan { loss: ObserverLoss::ReadIndex, ..plan }
}
