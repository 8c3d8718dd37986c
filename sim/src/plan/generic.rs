//! Random faults, several at once.

use super::{at, often, Fault, Plan, Target, MS};
use crate::net::{Host, Weather};
use crate::rng::Chance;

/// What a batch must exercise.
pub(super) const EXERCISES: &[&str] = &[
    "veto silence",
    "veto boot",
    "resigned contact",
    "resigned wal stall",
    "resigned shutdown",
    "exit notices",
    "forged notices",
    "power cuts",
    "flush errors",
    "wall clock steps",
    "snapshots installed",
    "batches sent again",
    "duplicates answered at arrival",
    "copies answered",
    "refused by the shell",
    "refused OUT_OF_SEQUENCE",
    "torn writes",
];

pub(super) fn draw(chance: &mut Chance) -> Plan {
    let count = chance.between(3, 14);
    let mut faults: Vec<_> = (0..count).map(|_| (at(chance.between(3_000, 11_000)), random(chance))).collect();
    if chance.one_in(150) {
        faults.push((at(chance.between(4_000, 10_000)), Fault::PowerCut { down: MS(chance.between(200, 2_000)) }));
    }
    let weather = often(chance, Weather::ROUGH);
    Plan { tight: chance.one_in(400), ..Plan::healing(faults, 13_000, weather) }
}

fn host(chance: &mut Chance) -> Host {
    if chance.one_in(650) {
        Host::Node(chance.between(1, 3))
    } else {
        Host::Observer(chance.between(1, 3))
    }
}

fn node(chance: &mut Chance) -> Target {
    if chance.one_in(500) {
        Target::Leader
    } else {
        Target::Host(Host::Node(chance.between(1, 3)))
    }
}

fn observer(chance: &mut Chance) -> Target {
    Target::Host(Host::Observer(chance.between(1, 3)))
}

pub(super) fn random(chance: &mut Chance) -> Fault {
    match chance.between(0, 14) {
        0 | 1 => Fault::Crash { target: node(chance), down: MS(chance.between(20, 3_000)), notice: chance.one_in(600) },
        2 => Fault::Crash { target: observer(chance), down: MS(chance.between(20, 4_000)), notice: false },
        3 => Fault::Pause { target: node(chance), span: MS(chance.between(50, 7_000)), inside: chance.one_in(500) },
        4 => {
            let target = Target::Host(host(chance));
            Fault::Pause { target, span: MS(chance.between(50, 5_000)), inside: false }
        }
        5 | 6 => Fault::Cut {
            from: Target::Host(host(chance)),
            to: Target::Host(host(chance)),
            span: Some(MS(chance.between(100, 6_000))),
        },
        7 => Fault::CutObservers { target: node(chance), span: Some(MS(chance.between(500, 6_000))) },
        8 => Fault::SlowDisk {
            target: node(chance),
            extra: MS(chance.between(20, 900)),
            span: MS(chance.between(200, 3_000)),
        },
        9 => Fault::FlushError { target: node(chance) },
        10 => Fault::Stall { target: node(chance), span: MS(chance.between(900, 5_000)) },
        11 => Fault::Stop { target: node(chance), down: MS(chance.between(20, 2_000)) },
        12 => Fault::Isolate { target: Target::Host(host(chance)), span: MS(chance.between(100, 5_000)) },
        13 => {
            let seconds = i64::try_from(chance.between(0, 1_200)).expect("small") - 600;
            Fault::WallStep { target: observer(chance), seconds }
        }
        _ => Fault::ForgedNotice { target: node(chance) },
    }
}
