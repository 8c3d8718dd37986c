//! Observers die, stop, are cut off from each other or from nodes, lose their majority; now and then a leader dies at
//! the same instant, or keeps only the observers' old leader.

use super::{at, often, Fault, Plan, Target, MS};
use crate::net::{Host, Weather};
use crate::rng::Chance;

/// What a batch must exercise.
pub(super) const EXERCISES: &[&str] = &[
    "observer crashes",
    "observer pauses",
    "observer leader changes",
    "no observer majority",
    "exit notices",
    "directory snapshots",
    "resigned contact",
];

pub(super) fn draw(chance: &mut Chance) -> Plan {
    let mut faults = Vec::new();
    let mut t = chance.between(3_000, 4_000);
    for _ in 0..chance.between(1, 4) {
        let first = chance.between(1, 3);
        let observer = |n: u64| Target::Host(Host::Observer((first + n - 1) % 3 + 1));
        let span = MS(chance.between(300, 4_500));
        match chance.between(0, 6) {
            0 => {
                // One to all of them, together with a leader perhaps.
                for n in 0..chance.between(1, 3) {
                    let later = chance.between(0, 400);
                    faults.push((at(t + later), Fault::Crash { target: observer(n), down: span, notice: false }));
                }
            }
            1 => faults.push((at(t), Fault::Pause { target: Target::ObserverLeader, span, inside: false })),
            2 => faults.push((at(t), Fault::Isolate { target: Target::ObserverLeader, span })),
            3 => {
                // Cut off from its like, but not from the nodes.
                for n in 0..2 {
                    let (a, b) = (Target::ObserverLeader, observer(n));
                    faults.push((at(t), Fault::Cut { from: a, to: b, span: Some(span) }));
                    faults.push((at(t), Fault::Cut { from: b, to: a, span: Some(span) }));
                }
                let (a, b) = (Target::ObserverLeader, observer(2));
                faults.push((at(t), Fault::Cut { from: a, to: b, span: Some(span) }));
                faults.push((at(t), Fault::Cut { from: b, to: a, span: Some(span) }));
            }
            4 => {
                faults.push((at(t), Fault::Crash { target: Target::ObserverLeader, down: span, notice: false }));
                faults.push((at(t), crash_leader(chance)));
            }
            5 => {
                // No observer can consent, and the leader loses its followers for longer than F + R: nobody may lead
                // until an observer comes back, least of all under a permit that was used.
                for n in 0..2 {
                    let down = MS(chance.between(3_500, 4_500));
                    faults.push((at(t), Fault::Crash { target: observer(n), down, notice: false }));
                }
                let span = Some(MS(chance.between(1_500, 2_500)));
                for peer in [Target::FirstFollower, Target::SecondFollower] {
                    faults.push((at(t + 100), Fault::Cut { from: Target::Leader, to: peer, span }));
                    faults.push((at(t + 100), Fault::Cut { from: peer, to: Target::Leader, span }));
                }
                t += 3_000;
            }
            // Long enough to meet a heartbeat: what nobody notices is no fault.
            _ => {
                let span = Some(span.max(MS(700)));
                faults.push((at(t), Fault::CutObservers { target: Target::Leader, span }));
            }
        }
        if chance.one_in(400) {
            let when = t + chance.between(0, 1_500);
            faults.push((at(when), crash_leader(chance)));
        }
        if chance.one_in(300) {
            let (from, to) = (Target::Leader, Target::SecondFollower);
            let span = Some(MS(chance.between(500, 3_000)));
            faults.push((at(t), Fault::Cut { from, to, span }));
            faults.push((at(t), Fault::Cut { from: to, to: from, span }));
        }
        t += chance.between(1_000, 3_500);
    }
    let weather = often(chance, Weather::ROUGH);
    Plan::healing(faults, t + 1_500, weather)
}

fn crash_leader(chance: &mut Chance) -> Fault {
    Fault::Crash { target: Target::Leader, down: MS(chance.between(20, 2_000)), notice: chance.one_in(800) }
}
