//! Disks are lost and replaced by empty ones (M1, M2), and replicas are made anew on purpose, while processes die and links
//! break at every step of the repair: nothing acknowledged may be lost, and everything is whole again in the end.

use super::{at, often, Fault, Plan, Target, MS};
use crate::net::{Host, Weather};
use crate::rng::Chance;

/// What a batch must exercise.
pub(super) const EXERCISES: &[&str] = &[
    "disks wiped",
    "replicas replaced on purpose",
    "membership steps",
    "changes begun",
    "changes finished",
    "snapshots installed",
];

pub(super) fn draw(chance: &mut Chance) -> Plan {
    let mut faults = Vec::new();
    let mut t = chance.between(3_000, 4_000);
    for _ in 0..chance.between(1, 2) {
        if chance.one_in(300) {
            // Acknowledged by two, one of which loses its disk while the other is gone: the third must not lead alone.
            let fall = t + chance.between(300, 2_500);
            faults.push((at(t), Fault::Isolate { target: Target::SecondFollower, span: MS(fall - t + 300) }));
            faults.push((at(fall), Fault::Wipe { target: Target::FirstFollower, down: MS(chance.between(50, 500)) }));
            let down = MS(chance.between(3_000, 5_000));
            faults.push((at(fall), Fault::Crash { target: Target::Leader, down, notice: chance.one_in(700) }));
            t = fall + chance.between(6_000, 8_000);
            continue;
        }
        let victim = Target::Host(Host::Node(chance.between(1, 3)));
        if chance.one_in(650) {
            faults.push((at(t), Fault::Wipe { target: victim, down: MS(chance.between(100, 2_000)) }));
        } else {
            faults.push((at(t), Fault::Replace { target: victim }));
        }
        // A change of members takes some seconds, most of them its patience.
        for _ in 0..chance.between(0, 3) {
            let soon = at(t + chance.between(0, 6_000));
            let (down, span) = (MS(chance.between(50, 2_500)), MS(chance.between(100, 2_500)));
            let target = match chance.between(0, 3) {
                0 => Target::Leader,
                1 => Target::FirstFollower,
                2 => Target::SecondFollower,
                _ => Target::ObserverLeader,
            };
            match chance.between(0, 3) {
                0 | 1 => faults.push((soon, Fault::Crash { target, down, notice: chance.one_in(700) })),
                2 => faults.push((soon, Fault::Pause { target, span, inside: chance.one_in(300) })),
                _ => faults.push((soon, Fault::Isolate { target, span })),
            }
        }
        t += chance.between(4_000, 8_000);
    }
    let weather = often(chance, Weather::ROUGH);
    Plan::healing(faults, t + 3_000, weather)
}
