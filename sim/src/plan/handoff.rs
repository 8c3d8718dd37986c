//! Planned handoffs (H1, H2) that something goes wrong with: at every step the target, the leader, a link between them or
//! the observer leader may fail. Nothing may be lost, served twice or left without a leader.

use super::{at, often, Fault, Plan, Target, MS};
use crate::net::{Host, Weather};
use crate::rng::Chance;

/// What a batch must exercise.
pub(super) const EXERCISES: &[&str] = &[
    "handoffs asked for",
    "handoffs permitted",
    "handoffs given up",
    "publishes forwarded",
    "resigned handoff",
    "drains",
];

pub(super) fn draw(chance: &mut Chance) -> Plan {
    let mut faults = Vec::new();
    let mut t = chance.between(3_000, 4_000);
    for _ in 0..chance.between(3, 7) {
        let to = chance.between(1, 3);
        faults.push((at(t), Fault::Handoff { to }));
        // The permit, the last entries, the release and the election take some 40 ms together.
        let soon = at(t + chance.between(0, 60));
        let target = Target::Host(Host::Node(to));
        match chance.between(0, 9) {
            0 | 1 => faults
                .push((soon, Fault::Crash { target, down: MS(chance.between(50, 2_000)), notice: chance.one_in(700) })),
            2 => faults.push((soon, Fault::Pause { target, span: MS(chance.between(50, 3_000)), inside: false })),
            3 => faults.push((
                soon,
                Fault::Pause {
                    target: Target::Leader,
                    span: MS(chance.between(50, 3_000)),
                    inside: chance.one_in(500),
                },
            )),
            4 => faults.push((
                soon,
                Fault::Crash { target: Target::Leader, down: MS(chance.between(50, 2_000)), notice: true },
            )),
            5 => faults.push((
                soon,
                Fault::Cut { from: Target::Leader, to: target, span: Some(MS(chance.between(100, 2_500))) },
            )),
            6 => faults.push((
                soon,
                Fault::Cut { from: target, to: Target::Leader, span: Some(MS(chance.between(100, 2_500))) },
            )),
            7 => faults.push((
                soon,
                Fault::Crash { target: Target::ObserverLeader, down: MS(chance.between(50, 2_000)), notice: false },
            )),
            8 => faults.push((soon, Fault::Drain { target, drain: chance.one_in(500) })),
            _ => {}
        }
        t += chance.between(600, 2_500);
    }
    // Whoever is drained is taken back: every node may lead in the end.
    for node in 1..=3 {
        faults.push((at(t), Fault::Drain { target: Target::Host(Host::Node(node)), drain: false }));
    }
    let weather = often(chance, Weather::ROUGH);
    Plan::healing(faults, t + 1_000, weather)
}
