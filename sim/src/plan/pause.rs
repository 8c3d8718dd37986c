//! Processes stop at any point, also between two events of one turn, while the leader has lost the observers and one
//! follower: whoever wakes up must not vouch for what it slept through.

use super::{at, often, Fault, Plan, Target, MS};
use crate::net::Weather;
use crate::rng::Chance;

/// What a batch must exercise.
pub(super) const EXERCISES: &[&str] =
    &["pauses", "pauses inside a turn", "veto silence", "resigned contact", "fence closed", "observer pauses"];

pub(super) fn draw(chance: &mut Chance) -> Plan {
    let mut faults = Vec::new();
    let mut t = chance.between(3_000, 4_000);
    for _ in 0..chance.between(1, 2) {
        let cut = Some(MS(chance.between(3_000, 5_500)));
        faults.push((at(t), Fault::CutObservers { target: Target::Leader, span: cut }));
        let cut = Some(MS(chance.between(3_000, 5_500)));
        faults.push((at(t), Fault::Cut { from: Target::Leader, to: Target::SecondFollower, span: cut }));
        faults.push((at(t), Fault::Cut { from: Target::SecondFollower, to: Target::Leader, span: cut }));
        for _ in 0..chance.between(1, 3) {
            let target =
                *chance.pick(&[Target::Leader, Target::FirstFollower, Target::FirstFollower, Target::SecondFollower]);
            let span = MS(chance.between(200, 2_600));
            let inside = chance.one_in(700);
            faults.push((at(t + chance.between(0, 2_000)), Fault::Pause { target, span, inside }));
        }
        if chance.one_in(300) {
            let span = MS(chance.between(300, 3_000));
            faults.push((
                at(t + chance.between(0, 2_000)),
                Fault::Pause { target: Target::ObserverLeader, span, inside: false },
            ));
        }
        t += chance.between(5_500, 7_000);
    }
    let weather = often(chance, Weather::STRAGGLING);
    Plan::healing(faults, t, weather)
}
