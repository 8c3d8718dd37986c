//! A copy of the leader's disk starts on another host while the leader lives, cut off from the observers: its newer
//! incarnation alone proves nobody's death (S2).

use super::{at, Fault, Plan, Target, MS};
use crate::net::Weather;
use crate::rng::Chance;

/// What a batch must exercise.
pub(super) const EXERCISES: &[&str] = &["disks copied", "refused identities", "veto silence"];

pub(super) fn draw(chance: &mut Chance) -> Plan {
    let mut faults = Vec::new();
    let t = chance.between(3_000, 4_500);
    let span = Some(MS(chance.between(2_500, 6_000)));
    faults.push((at(t), Fault::CutObservers { target: Target::Leader, span }));
    if chance.one_in(500) {
        faults.push((at(t), Fault::Cut { from: Target::Leader, to: Target::SecondFollower, span }));
        faults.push((at(t), Fault::Cut { from: Target::SecondFollower, to: Target::Leader, span }));
    }
    faults.push((at(t + chance.between(0, 1_500)), Fault::CopiedDisk { target: Target::Leader }));
    Plan::healing(faults, t + 7_000, Weather::CALM)
}
