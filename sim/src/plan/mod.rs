//! What goes wrong in a run, drawn from its seed before it starts. One file per mode.
//!
//! Generic chaos misses load-bearing rules; the aimed modes find them. A mode is added by a file with `draw` and
//! `EXERCISES`, a variant of [`Mode`] and a line in `Mode::parts`.

mod amnesia;
mod copied;
mod deaf;
mod drift;
mod fault;
mod forget;
mod full;
mod generic;
mod handoff;
mod joint;
mod observers;
mod pause;
pub mod quiet;
mod read_index;
mod repair;
mod tail;
mod winner;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

pub use fault::{Fault, Target};
use quorate_consensus::replica::ObserverLoss;

use crate::net::Weather;
use crate::rng::Chance;
use crate::time::Instant;

/// Kind of run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// Random faults, several at once.
    Generic,
    /// The leader loses the observers and one follower while the other follower restarts.
    Amnesia,
    /// One direction is cut and stays cut: the others must serve all the same.
    Deaf,
    /// Processes stop at any point, also between two events of one turn.
    Pause,
    /// Observers die, stop, are cut off, lose their majority, together with a leader.
    Observers,
    /// A winner's first contact is delayed: it stops between its vote requests and its election.
    Winner,
    /// One replica loses the flushed tail of its log while another is gone.
    Tail,
    /// A copy of a node's disk starts elsewhere while the node lives.
    Copied,
    /// Leaders are handed over on purpose while the target, the leader, links or observers fail.
    Handoff,
    /// Disks are lost and replaced, replicas made anew, while more goes wrong.
    Repair,
    /// The leave of a joint membership is held.
    Joint,
    /// An observer loses its memory.
    Forget,
    /// Disks fill up and are emptied.
    Full,
    /// The observers are gone for long, and leaders go on without them.
    ReadIndex,
    /// Nothing is wrong for hours (not played in turn with the others: `--quiet`).
    Quiet,
    /// Clocks run beyond their bound: what no clock takes part in must hold all the same.
    Drift,
}

type Draw = fn(&mut Chance) -> Plan;

impl Mode {
    /// All that have faults.
    pub const ALL: [Self; 15] = [
        Self::Generic,
        Self::Amnesia,
        Self::Deaf,
        Self::Pause,
        Self::Observers,
        Self::Winner,
        Self::Tail,
        Self::Copied,
        Self::Handoff,
        Self::Repair,
        Self::Joint,
        Self::Forget,
        Self::Full,
        Self::ReadIndex,
        Self::Drift,
    ];

    /// Name, what draws its plan, and what a batch of its runs must exercise.
    fn parts(self) -> (&'static str, Draw, &'static [&'static str]) {
        match self {
            Self::Generic => ("generic", generic::draw, generic::EXERCISES),
            Self::Amnesia => ("amnesia", amnesia::draw, amnesia::EXERCISES),
            Self::Deaf => ("deaf", deaf::draw, deaf::EXERCISES),
            Self::Pause => ("pause", pause::draw, pause::EXERCISES),
            Self::Observers => ("observers", observers::draw, observers::EXERCISES),
            Self::Winner => ("winner", winner::draw, winner::EXERCISES),
            Self::Tail => ("tail", tail::draw, tail::EXERCISES),
            Self::Copied => ("copied", copied::draw, copied::EXERCISES),
            Self::Handoff => ("handoff", handoff::draw, handoff::EXERCISES),
            Self::Repair => ("repair", repair::draw, repair::EXERCISES),
            Self::Joint => ("joint", joint::draw, joint::EXERCISES),
            Self::Forget => ("forget", forget::draw, forget::EXERCISES),
            Self::Full => ("full", full::draw, full::EXERCISES),
            Self::ReadIndex => ("read-index", read_index::draw, read_index::EXERCISES),
            Self::Quiet => ("quiet", |_| quiet::plan(Duration::from_secs(60), quiet::Burden::None), &[]),
            Self::Drift => ("drift", drift::draw, drift::EXERCISES),
        }
    }

    /// What a batch of its runs must exercise, by the names of the coverage counters.
    #[must_use]
    pub fn exercises(self) -> &'static [&'static str] {
        self.parts().2
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.parts().0)
    }
}

impl FromStr for Mode {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().chain([Self::Quiet]).find(|mode| mode.parts().0 == text);
        found.ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|mode| mode.parts().0).collect();
            format!("no mode `{text}`; there are {}", names.join(", "))
        })
    }
}

/// Faults in time order, and when they end.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What and when.
    pub faults: Vec<(Instant, Fault)>,
    /// Everything heals then (modes that keep a fault to the end do not).
    pub heal_at: Option<Instant>,
    /// Nothing is sent any more from here on.
    pub stop: Instant,
    /// The run ends then at the latest.
    pub end: Instant,
    /// How the network behaves from the first fault on.
    pub weather: Weather,
    /// Rate error of clocks at most, in parts per million.
    pub drift_ppm: i64,
    /// Few publishes may wait at a leader, and its shell refuses some by itself: `BUSY`, also between two that are taken.
    pub tight: bool,
    /// Nothing is sent from the first to the second: logs stay equal.
    pub quiet: Vec<(Instant, Instant)>,
    /// What weighs on the hosts all the time.
    pub burden: quiet::Burden,
    /// What leaders do when the observers are gone (L6).
    pub loss: ObserverLoss,
}

/// Rate error within the bound: quartz is off by 100 at most.
const DRIFT_PPM: i64 = 1_000;
/// Time from healing to the last record sent: records sent in its last half second must be acknowledged.
const HEALTHY: Duration = Duration::from_secs(9);
/// Time for the last outcomes.
const REST: Duration = Duration::from_secs(6);

const MS: fn(u64) -> Duration = Duration::from_millis;

fn at(ms: u64) -> Instant {
    Instant::default() + MS(ms)
}

impl Plan {
    /// Draws the plan of a mode.
    #[must_use]
    pub fn draw(mode: Mode, chance: &mut Chance) -> Self {
        let mut plan = (mode.parts().1)(chance);
        plan.faults.sort_by_key(|(when, _)| *when);
        plan
    }

    /// Faults that all end at `heal` ms at the latest.
    fn healing(faults: Vec<(Instant, Fault)>, heal: u64, weather: Weather) -> Self {
        let heal_at = at(heal);
        let stop = heal_at + HEALTHY;
        Self {
            faults,
            heal_at: Some(heal_at),
            stop,
            end: stop + REST,
            weather,
            drift_ppm: DRIFT_PPM,
            tight: false,
            quiet: Vec::new(),
            burden: quiet::Burden::None,
            loss: ObserverLoss::default(),
        }
    }
}

/// `weather` in six of ten runs, else a calm network.
fn often(chance: &mut Chance, weather: Weather) -> Weather {
    if chance.one_in(600) {
        weather
    } else {
        Weather::CALM
    }
}
