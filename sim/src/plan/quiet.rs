//! Nothing is wrong: for hours, with idle processors, with processors that others use, with slow disks. Whoever suspects
//! anybody here would do so in production.

use std::fmt;
use std::time::Duration;

use super::{at, Plan, MS};
use crate::net::Weather;

/// What weighs on healthy hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Burden {
    /// Nothing.
    None,
    /// Other programs take the processors: every turn waits up to 30 ms for one, one in two hundred up to 150 ms.
    Processors,
    /// Every flush takes 200 ms longer.
    Flushes,
}

impl Burden {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::None, Self::Processors, Self::Flushes];

    /// Longest wait of a turn for a processor, usually and now and then.
    #[must_use]
    pub fn late(self) -> Option<(Duration, Duration)> {
        (self == Self::Processors).then_some((MS(30), MS(150)))
    }

    /// What every flush takes longer.
    #[must_use]
    pub fn flush(self) -> Duration {
        if self == Self::Flushes {
            MS(200)
        } else {
            Duration::ZERO
        }
    }
}

impl fmt::Display for Burden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "idle",
            Self::Processors => "busy processors",
            Self::Flushes => "flushes of 200 ms",
        })
    }
}

/// A plan without faults.
#[must_use]
pub fn plan(span: Duration, burden: Burden) -> Plan {
    let stop = at(0) + span;
    Plan { heal_at: None, stop, end: stop + super::REST, burden, ..Plan::healing(Vec::new(), 0, Weather::CALM) }
}
