//! Disks of data nodes and observers fill up and are emptied again (B5), together with deaths and cuts: nothing
//! acknowledged is lost, leaders go where there is room, and everything serves again without a restart.

use super::{at, often, Fault, Plan, Target, MS};
use crate::net::{Host, Weather};
use crate::rng::Chance;

/// What a batch must exercise.
pub(super) const EXERCISES: &[&str] =
    &["disks filled", "disks full", "observers' disks full", "refused STORAGE_FULL", "handoffs permitted"];

pub(super) fn draw(chance: &mut Chance) -> Plan {
    let mut faults = Vec::new();
    let mut t = chance.between(3_000, 4_000);
    for _ in 0..chance.between(1, 4) {
        let host = match chance.between(0, 5) {
            0 | 1 => Target::Leader,
            2 => Target::Host(Host::Observer(chance.between(1, 3))),
            3 => Target::ObserverLeader,
            _ => Target::Host(Host::Node(chance.between(1, 3))),
        };
        let span = MS(chance.between(300, 5_000));
        // Through the soft mark, and perhaps at once through the hard one as well.
        faults.push((at(t), Fault::FillDisk { target: host, full: chance.one_in(600), span }));
        if chance.one_in(250) {
            // The same on a second replica: no majority takes records then.
            let target = Target::Host(Host::Node(chance.between(1, 3)));
            faults.push((at(t + chance.between(0, 800)), Fault::FillDisk { target, full: true, span }));
        }
        if chance.one_in(400) {
            let when = at(t + chance.between(0, 1_500));
            let (down, target) =
                (MS(chance.between(50, 2_500)), if chance.one_in(500) { host } else { Target::Leader });
            faults.push((when, Fault::Crash { target, down, notice: chance.one_in(700) }));
        }
        if chance.one_in(250) {
            let span = MS(chance.between(100, 2_500));
            faults.push((at(t + chance.between(0, 1_500)), Fault::Isolate { target: Target::FirstFollower, span }));
        }
        t += chance.between(500, 3_500);
    }
    Plan::healing(faults, t + 1_500, often(chance, Weather::ROUGH))
}
