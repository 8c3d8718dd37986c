//! Clocks run up to a fifth too fast or too slow, far beyond their bound. Who serves may then overlap; what was
//! acknowledged must stay, logs must match, offsets must be a function: no clock takes part in W1.

use super::{amnesia, generic, Plan};
use crate::rng::Chance;

/// What a batch must exercise.
pub(super) const EXERCISES: &[&str] = &["elections", "batches sent again", "snapshots installed"];

pub(super) fn draw(chance: &mut Chance) -> Plan {
    let plan = if chance.one_in(500) { generic::draw(chance) } else { amnesia::draw(chance) };
    Plan { drift_ppm: 200_000, ..plan }
}
