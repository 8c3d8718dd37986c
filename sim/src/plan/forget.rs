//! An observer loses its disk, or the flushed end of its log with the votes in it (B2, M1), while others die or links
//! break: whatever was committed stays, and in the end it votes again.

use super::{at, often, Fault, Plan, Target, MS};
use crate::net::{Host, Weather};
use crate::rng::Chance;

/// What a batch must exercise.
pub(super) const EXERCISES: &[&str] = &[
    "observers' disks wiped",
    "observers' tails lost",
    "observers sound again",
    "observers started again",
    "exit notices",
];

pub(super) fn draw(chance: &mut Chance) -> Plan {
    let mut faults = Vec::new();
    let mut t = chance.between(3_000, 4_000);
    for _ in 0..chance.between(1, 2) {
        let first = chance.between(1, 3);
        let observer = |n: u64| Target::Host(Host::Observer((first + n - 1) % 3 + 1));
        let down = MS(chance.between(100, 1_500));
        let entries = (!chance.one_in(500)).then(|| chance.between(1, 12));
        if chance.one_in(600) {
            // Something was committed by the first and the second alone; the first forgets it, and meets the third.
            let gone = chance.between(300, 2_000);
            faults.push((at(t), Fault::Isolate { target: observer(2), span: MS(gone + chance.between(0, 300)) }));
            let second = Fault::Crash { target: observer(1), down: MS(chance.between(1_500, 4_000)), notice: false };
            faults.push((at(t + gone), second));
            // Something to commit: a leader dies, or a replica is made anew.
            faults.push((at(t + chance.between(50, gone)), happening(chance)));
            t += gone;
        } else if chance.one_in(500) {
            faults.push((at(t + chance.between(0, 800)), happening(chance)));
        }
        let target = if chance.one_in(300) { Target::ObserverLeader } else { observer(0) };
        faults.push((at(t), Fault::Forget { target, down, entries }));
        if chance.one_in(500) {
            let (a, b) = (observer(chance.between(0, 2)), observer(chance.between(0, 2)));
            let span = Some(MS(chance.between(100, 3_000)));
            faults.push((at(t + chance.between(0, 1_500)), Fault::Cut { from: a, to: b, span }));
        }
        if chance.one_in(300) {
            let span = MS(chance.between(100, 2_500));
            let target = observer(chance.between(0, 2));
            faults.push((at(t + chance.between(0, 2_000)), Fault::Pause { target, span, inside: false }));
        }
        t += chance.between(2_500, 5_000);
    }
    Plan::healing(faults, t + 1_500, often(chance, Weather::ROUGH))
}

fn happening(chance: &mut Chance) -> Fault {
    match chance.between(0, 2) {
        0 => Fault::Crash { target: Target::Leader, down: MS(chance.between(20, 2_000)), notice: chance.one_in(800) },
        1 => Fault::Handoff { to: chance.between(1, 3) },
        _ => Fault::Stop { target: Target::Leader, down: MS(chance.between(20, 1_000)) },
    }
}
