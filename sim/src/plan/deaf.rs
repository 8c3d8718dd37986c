//! One direction is cut and stays cut to the end of the run: the others must serve within the bound of the Timelines.

use super::{at, Fault, Plan, Target, DRIFT_PPM};
use crate::net::Weather;
use crate::rng::Chance;

/// What a batch must exercise.
pub(super) const EXERCISES: &[&str] =
    &["cut messages", "resigned contact", "resigned lease", "fence closed", "elections"];

pub(super) fn draw(chance: &mut Chance) -> Plan {
    let when = chance.between(3_000, 5_000);
    let one_way = |inbound, peers_only| Fault::OneWay { target: Target::Leader, inbound, peers_only };
    let (fault, served_by) = match chance.between(0, 6) {
        0 => (one_way(true, true), 8_000),
        1 => (one_way(false, true), 8_000),
        2 => (one_way(true, false), 8_000),
        3 => (one_way(false, false), 8_000),
        4 | 5 => (Fault::CutObservers { target: Target::Leader, span: None }, 13_000),
        _ => {
            let (inbound, peers_only) = (chance.one_in(500), chance.one_in(500));
            (Fault::OneWay { target: Target::FirstFollower, inbound, peers_only }, 8_000)
        }
    };
    let stop = at(when + served_by);
    Plan {
        faults: vec![(at(when), fault)],
        heal_at: None,
        stop,
        end: stop + super::REST,
        weather: Weather::CALM,
        drift_ppm: DRIFT_PPM,
        ..Plan::healing(Vec::new(), 0, Weather::CALM)
    }
}
