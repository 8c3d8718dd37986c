//! The leave entry of a joint membership is held (C2): the leader that entered it loses its followers, its process or its
//! observers before the leave is committed. Two memberships are in force then, and both must consent to everything.

use super::{at, Fault, Plan, Target, MS};
use crate::net::{Host, Weather};
use crate::rng::Chance;

/// What a batch must exercise.
pub(super) const EXERCISES: &[&str] = &["leaves held", "changes finished"];

pub(super) fn draw(chance: &mut Chance) -> Plan {
    let mut faults = Vec::new();
    let t = chance.between(3_000, 4_000);
    faults.push((at(t - 200), Fault::HoldLeave { span: MS(chance.between(300, 4_000)), crash: chance.one_in(500) }));
    faults.push((at(t), Fault::Replace { target: Target::Host(Host::Node(chance.between(1, 3))) }));
    if chance.one_in(400) {
        let soon = at(t + chance.between(500, 3_000));
        let target = if chance.one_in(500) { Target::FirstFollower } else { Target::SecondFollower };
        faults.push((soon, Fault::Crash { target, down: MS(chance.between(50, 2_500)), notice: true }));
    }
    Plan::healing(faults, t + 7_000, Weather::CALM)
}
