//! Processes stop at any point, also between two events of one turn, while the leader has lost the observers and one
//! follower: whoever wakes up must not vouch for what it slept through.

use super::{at, often, Fault, Plan, Target, MS};
use crate::net::Weather;
use crate::rng::Chance;
use crate::time::Instant;

/// What a batch must exercise.
pub(super) const EXERCISES: &[&str] =
    &["pauses", "pauses inside a turn", "veto silence", "resigned contact", "fence closed", "observer pauses"];

pub(super) fn draw(chance: &mut Chance) -> Plan {
    let (mut faults, mut quiet) = (Vec::new(), Vec::new());
    let mut t = chance.between(3_000, 4_000);
    for _ in 0..chance.between(1, 2) {
        let cut = Some(MS(chance.between(3_000, 5_500)));
        faults.push((at(t), Fault::CutObservers { target: Target::Leader, span: cut }));
        let cut = Some(MS(chance.between(3_000, 5_500)));
        faults.push((at(t), Fault::Cut { from: Target::Leader, to: Target::SecondFollower, span: cut }));
        faults.push((at(t), Fault::Cut { from: Target::SecondFollower, to: Target::Leader, span: cut }));
        if chance.one_in(500) {
            // Directed (V2): the follower sleeps inside a turn for just longer than F + D, while the leader waits out
            // its fence, and takes up the leader's newest message in that same turn. Nothing is published meanwhile,
            // or the log of the follower that is cut off would be too old to win.
            quiet.push((at(t - 300), at(t + 4_000)));
            let span = MS(chance.between(1_300, 1_480));
            let fault = Fault::Pause { target: Target::FirstFollower, span, inside: true };
            faults.push((at(t + chance.between(200, 1_500)), fault));
        } else {
            random(chance, t, &mut faults);
        }
        t += chance.between(5_500, 7_000);
    }
    let weather = often(chance, Weather::STRAGGLING);
    Plan { quiet, ..Plan::healing(faults, t, weather) }
}

fn random(chance: &mut Chance, t: u64, faults: &mut Vec<(Instant, Fault)>) {
    for _ in 0..chance.between(1, 3) {
        let target =
            *chance.pick(&[Target::Leader, Target::FirstFollower, Target::FirstFollower, Target::SecondFollower]);
        let span = MS(chance.between(200, 2_600));
        let inside = chance.one_in(700);
        faults.push((at(t + chance.between(0, 2_000)), Fault::Pause { target, span, inside }));
    }
    if chance.one_in(300) {
        let span = MS(chance.between(300, 3_000));
        let fault = Fault::Pause { target: Target::ObserverLeader, span, inside: false };
        faults.push((at(t + chance.between(0, 2_000)), fault));
    }
}
