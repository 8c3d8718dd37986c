//! One follower is cut off and lags; then the leader dies while the other follower loses the flushed tail of its log:
//! the two that are left must not elect a leader without what was acknowledged (B2, V1d).

use super::{at, Fault, Plan, Target, MS};
use crate::net::Weather;
use crate::rng::Chance;

/// What a batch must exercise. (Not "suspicions cleared": a replica that restarts while nobody leads takes the first leader
/// that it hears for one that may have led before, so only the second one clears it.)
pub(super) const EXERCISES: &[&str] = &["tails lost", "veto suspect"];

pub(super) fn draw(chance: &mut Chance) -> Plan {
    let mut faults = Vec::new();
    let cut = chance.between(3_000, 4_000);
    let fall = cut + chance.between(300, 2_500);
    faults.push((at(cut), Fault::Isolate { target: Target::SecondFollower, span: MS(fall - cut + 300) }));
    let entries = chance.between(1, 60);
    let (first, second) = (MS(chance.between(50, 500)), MS(chance.between(3_000, 5_000)));
    faults.push((at(fall), Fault::LoseTail { target: Target::FirstFollower, down: first, entries }));
    faults.push((at(fall), Fault::Crash { target: Target::Leader, down: second, notice: chance.one_in(700) }));
    Plan::healing(faults, fall + 6_500, Weather::CALM)
}
