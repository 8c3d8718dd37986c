//! Directed: a winner's first contact is delayed (C2, V2). A candidate stops right after it asked for votes and wakes up
//! when its grants are old, while the observers permit another one.

use super::{at, Fault, Plan, Target, MS};
use crate::net::Weather;
use crate::rng::Chance;

/// What a batch must exercise.
pub(super) const EXERCISES: &[&str] = &["candidates stopped", "late winners", "veto silence", "stalls"];

pub(super) fn draw(chance: &mut Chance) -> Plan {
    let mut faults = Vec::new();
    let mut t = chance.between(3_000, 4_000);
    for _ in 0..chance.between(1, 2) {
        if chance.one_in(500) {
            // The old leader dies, comes back at once, and may vote F + D later: with the other voter it makes a
            // majority for somebody else while the first candidate sleeps.
            faults.push((at(t), Fault::StopCandidate { span: MS(chance.between(1_300, 3_500)) }));
            let down = MS(chance.between(20, 200));
            faults.push((at(t + 1), Fault::Crash { target: Target::Leader, down, notice: chance.one_in(900) }));
        } else {
            // The old leader's disk hangs: it releases, and may vote at once, twice if votes acknowledged nobody.
            faults.push((at(t), Fault::StopCandidate { span: MS(chance.between(500, 1_300)) }));
            let span = MS(chance.between(1_030, 1_400));
            faults.push((at(t + 1), Fault::Stall { target: Target::Leader, span }));
        }
        t += chance.between(6_000, 7_000);
    }
    Plan::healing(faults, t, Weather::CALM)
}
