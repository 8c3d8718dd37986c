//! The leader loses the observers and one follower, and keeps the other one, which restarts within the fence window; the
//! cut-off follower hears the observers and wants to lead.

use super::{at, often, Fault, Plan, Target, MS};
use crate::net::Weather;
use crate::rng::Chance;

/// What a batch must exercise.
pub(super) const EXERCISES: &[&str] =
    &["veto silence", "veto boot", "resigned contact", "fence closed", "fence reopened", "dropped incarnation"];

pub(super) fn draw(chance: &mut Chance) -> Plan {
    let mut faults = Vec::new();
    let mut t = chance.between(3_000, 4_000);
    for _ in 0..chance.between(1, 2) {
        let span = Some(MS(chance.between(2_500, 5_000)));
        faults.push((at(t), Fault::CutObservers { target: Target::Leader, span }));
        let span = Some(MS(chance.between(2_500, 5_000)));
        faults.push((at(t), Fault::Cut { from: Target::Leader, to: Target::SecondFollower, span }));
        faults.push((at(t), Fault::Cut { from: Target::SecondFollower, to: Target::Leader, span }));
        for _ in 0..chance.between(1, 5) {
            let restart = t + chance.between(900, 2_600);
            let down = MS(chance.between(5, 250));
            faults
                .push((at(restart), Fault::Crash { target: Target::FirstFollower, down, notice: chance.one_in(300) }));
        }
        if chance.one_in(400) {
            // The follower's old answers still come in while it hears nothing any more.
            let (from, to) = (Target::Leader, Target::FirstFollower);
            faults.push((at(t + chance.between(300, 1_200)), Fault::Cut { from, to, span }));
        }
        if chance.one_in(400) {
            let span = MS(chance.between(50, 3_000));
            let pause = Fault::Pause { target: Target::Leader, span, inside: chance.one_in(300) };
            faults.push((at(t + chance.between(800, 2_000)), pause));
        }
        t += chance.between(5_500, 7_000);
    }
    let weather = often(chance, Weather::STRAGGLING);
    Plan::healing(faults, t, weather)
}
