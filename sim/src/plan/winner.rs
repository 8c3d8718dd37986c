//! Directed: a winner's first contact is delayed (C2, V2). The leader dies; the candidate stops right after it asked for
//! votes and wakes up when its grants are old, while the observers permit another one.

use super::{at, Fault, Plan, Target, MS};
use crate::net::Weather;
use crate::rng::Chance;

/// What a batch must exercise.
pub(super) const EXERCISES: &[&str] = &["candidates stopped", "late winners", "veto silence"];

pub(super) fn draw(chance: &mut Chance) -> Plan {
    let mut faults = Vec::new();
    let mut t = chance.between(3_000, 4_000);
    for _ in 0..chance.between(1, 2) {
        faults.push((at(t), Fault::StopCandidate { span: MS(chance.between(300, 3_500)) }));
        let down = MS(chance.between(3_500, 5_000));
        faults.push((at(t + 1), Fault::Crash { target: Target::Leader, down, notice: chance.one_in(900) }));
        t += chance.between(6_500, 7_500);
    }
    Plan::healing(faults, t, Weather::CALM)
}
