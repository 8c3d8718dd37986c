//! What goes wrong in a run, drawn from its seed before it starts.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::net::{Host, Weather};
use crate::rng::Chance;
use crate::time::Instant;

/// Kind of run. Generic chaos misses load-bearing rules; aimed modes find them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// Random faults, several at once.
    Generic,
    /// The leader loses the observers and one follower while the other follower restarts.
    Amnesia,
    /// One direction is cut and stays cut: the others must serve all the same.
    Deaf,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Generic, Self::Amnesia, Self::Deaf];
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Generic => "generic",
            Self::Amnesia => "amnesia",
            Self::Deaf => "deaf",
        })
    }
}

impl FromStr for Mode {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|mode| mode.to_string() == text);
        found.ok_or_else(|| format!("no mode `{text}`; there are generic, amnesia, deaf"))
    }
}

/// Whom a fault hits: roles are resolved when it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// This host.
    Host(Host),
    /// Who serves partition 0 then.
    Leader,
    /// One of its followers.
    FirstFollower,
    /// The other one.
    SecondFollower,
}

/// One fault or its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The process dies. It is started again after `down`; its supervisor says so if `notice`.
    Crash {
        /// Who.
        target: Target,
        /// How long it is down.
        down: Duration,
        /// The supervisor lives and tells.
        notice: bool,
    },
    /// SIGSTOP for a while.
    Pause {
        /// Who.
        target: Target,
        /// How long.
        span: Duration,
    },
    /// One direction is cut for a while, or for ever.
    Cut {
        /// Sender.
        from: Target,
        /// Receiver.
        to: Target,
        /// How long; `None` = to the end.
        span: Option<Duration>,
    },
    /// All directions between a host and the observers are cut for a while.
    CutObservers {
        /// Who.
        target: Target,
        /// How long; `None` = to the end.
        span: Option<Duration>,
    },
    /// Everything that would reach the target (`inbound`) or leave it is lost, observers and client included or not.
    OneWay {
        /// Who.
        target: Target,
        /// What comes in, else what goes out.
        inbound: bool,
        /// Only traffic with other data nodes.
        peers_only: bool,
    },
    /// The next flush fails (B3).
    FlushError {
        /// Who.
        target: Target,
    },
    /// Flushes take longer for a while.
    SlowDisk {
        /// Who.
        target: Target,
        /// How much longer each flush takes.
        extra: Duration,
        /// How long.
        span: Duration,
    },
}

/// Faults in time order, and when they end.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What and when.
    pub faults: Vec<(Instant, Fault)>,
    /// Everything heals then (modes that keep a fault to the end do not).
    pub heal_at: Option<Instant>,
    /// The run ends then at the latest.
    pub end: Instant,
    /// How the network behaves from the first fault on.
    pub weather: Weather,
}

const MS: fn(u64) -> Duration = Duration::from_millis;

fn at(ms: u64) -> Instant {
    Instant::default() + MS(ms)
}

impl Plan {
    /// Draws the plan of a mode.
    pub fn draw(mode: Mode, chance: &mut Chance) -> Self {
        match mode {
            Mode::Generic => Self::generic(chance),
            Mode::Amnesia => Self::amnesia(chance),
            Mode::Deaf => Self::deaf(chance),
        }
    }

    fn generic(chance: &mut Chance) -> Self {
        let count = chance.between(3, 14);
        let mut faults: Vec<(Instant, Fault)> =
            (0..count).map(|_| (at(chance.between(3_000, 13_000)), random_fault(chance))).collect();
        faults.sort_by_key(|(when, _)| *when);
        Self { faults, heal_at: Some(at(15_000)), end: at(32_000), weather: pick(chance, Weather::ROUGH) }
    }

    fn amnesia(chance: &mut Chance) -> Self {
        let mut faults = Vec::new();
        let mut t = chance.between(3_000, 4_000);
        for _ in 0..chance.between(1, 3) {
            // The leader keeps one follower, which restarts within the fence window; the other hears the observers.
            faults.push((
                at(t),
                Fault::CutObservers { target: Target::Leader, span: Some(MS(chance.between(2_500, 5_000))) },
            ));
            let span = Some(MS(chance.between(2_500, 5_000)));
            faults.push((at(t), Fault::Cut { from: Target::Leader, to: Target::SecondFollower, span }));
            faults.push((at(t), Fault::Cut { from: Target::SecondFollower, to: Target::Leader, span }));
            for _ in 0..chance.between(1, 5) {
                let restart = t + chance.between(900, 2_600);
                let down = MS(chance.between(5, 250));
                faults.push((
                    at(restart),
                    Fault::Crash { target: Target::FirstFollower, down, notice: chance.one_in(300) },
                ));
            }
            if chance.one_in(400) {
                // The follower's old answers still come in while it hears nothing any more.
                let (from, to) = (Target::Leader, Target::FirstFollower);
                faults.push((at(t + chance.between(300, 1_200)), Fault::Cut { from, to, span }));
            }
            if chance.one_in(400) {
                let pause = Fault::Pause { target: Target::Leader, span: MS(chance.between(50, 3_000)) };
                faults.push((at(t + chance.between(800, 2_000)), pause));
            }
            t += chance.between(5_500, 7_500);
        }
        faults.sort_by_key(|(when, _)| *when);
        Self { faults, heal_at: Some(at(t)), end: at(t + 16_000), weather: pick(chance, Weather::STRAGGLING) }
    }

    fn deaf(chance: &mut Chance) -> Self {
        let when = at(chance.between(3_000, 5_000));
        let fault = match chance.between(0, 5) {
            0 => Fault::OneWay { target: Target::Leader, inbound: true, peers_only: true },
            1 => Fault::OneWay { target: Target::Leader, inbound: false, peers_only: true },
            2 => Fault::OneWay { target: Target::Leader, inbound: true, peers_only: false },
            3 => Fault::OneWay { target: Target::Leader, inbound: false, peers_only: false },
            4 => Fault::CutObservers { target: Target::Leader, span: None },
            _ => Fault::OneWay {
                target: Target::FirstFollower,
                inbound: chance.one_in(500),
                peers_only: chance.one_in(500),
            },
        };
        Self { faults: vec![(when, fault)], heal_at: None, end: at(20_000), weather: Weather::CALM }
    }
}

fn pick(chance: &mut Chance, weather: Weather) -> Weather {
    if chance.one_in(600) {
        weather
    } else {
        Weather::CALM
    }
}

fn random_host(chance: &mut Chance) -> Host {
    if chance.one_in(650) {
        Host::Node(chance.between(1, 3))
    } else {
        Host::Observer(chance.between(1, 3))
    }
}

fn random_node(chance: &mut Chance) -> Target {
    if chance.one_in(500) {
        Target::Leader
    } else {
        Target::Host(Host::Node(chance.between(1, 3)))
    }
}

fn random_fault(chance: &mut Chance) -> Fault {
    match chance.between(0, 9) {
        0 | 1 => Fault::Crash {
            target: random_node(chance),
            down: MS(chance.between(20, 3_000)),
            notice: chance.one_in(600),
        },
        2 => {
            let target = Target::Host(Host::Observer(chance.between(1, 3)));
            Fault::Crash { target, down: MS(chance.between(20, 4_000)), notice: false }
        }
        3 => Fault::Pause { target: random_node(chance), span: MS(chance.between(50, 5_000)) },
        4 => Fault::Pause { target: Target::Host(random_host(chance)), span: MS(chance.between(50, 5_000)) },
        5 | 6 => Fault::Cut {
            from: Target::Host(random_host(chance)),
            to: Target::Host(random_host(chance)),
            span: Some(MS(chance.between(100, 6_000))),
        },
        7 => Fault::CutObservers { target: random_node(chance), span: Some(MS(chance.between(500, 6_000))) },
        8 => Fault::SlowDisk {
            target: random_node(chance),
            extra: MS(chance.between(20, 900)),
            span: MS(chance.between(200, 3_000)),
        },
        _ => Fault::FlushError { target: random_node(chance) },
    }
}
