//! The network between simulated processes: ordered connections with random delay, one-way cuts, loss and
//! duplication of datagram-like Raft messages.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::rng::Chance;
use crate::time::Instant;

/// A process as the network sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Host {
    /// A data node (its supervisor shares the host).
    Node(u64),
    /// An observer.
    Observer(u64),
    /// The application that publishes.
    Client,
    /// An application that reads end offsets.
    Reader,
}

impl std::fmt::Display for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Node(id) => write!(f, "node-{id}"),
            Self::Observer(id) => write!(f, "obs-{id}"),
            Self::Client => f.write_str("client"),
            Self::Reader => f.write_str("reader"),
        }
    }
}

/// How the links behave.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// Fastest delivery.
    pub delay_min: Duration,
    /// Slowest usual delivery.
    pub delay_max: Duration,
    /// Lost, per mille.
    pub loss: u64,
    /// Delivered twice, per mille.
    pub duplicate: u64,
    /// Held for long, per mille …
    pub straggle: u64,
    /// … up to this.
    pub straggle_max: Duration,
}

impl Weather {
    /// A quiet local network.
    pub const CALM: Self = Self {
        delay_min: Duration::from_micros(80),
        delay_max: Duration::from_micros(400),
        loss: 0,
        duplicate: 0,
        straggle: 0,
        straggle_max: Duration::ZERO,
    };
    /// Nothing is lost, but many answers come late or a second time: contact counted at receipt would lie (C1).
    pub const STRAGGLING: Self = Self { straggle: 150, straggle_max: Duration::from_millis(3_000), ..Self::CALM };
    /// Loss, duplicates and stragglers.
    pub const ROUGH: Self =
        Self { loss: 20, duplicate: 10, straggle: 10, straggle_max: Duration::from_millis(3_000), ..Self::CALM };
}

/// All links.
#[derive(Debug)]
pub struct Network {
    /// How links behave now.
    pub weather: Weather,
    cut: BTreeSet<(Host, Host)>,
    /// Last delivery per ordered connection: a later message never overtakes an earlier one of its lane.
    last: BTreeMap<(Host, Host, u8), Instant>,
    /// Messages dropped or held up by a cut, for the vacuity floor.
    pub dropped_by_cut: u64,
}

impl Network {
    /// Everything connected.
    #[must_use]
    pub fn new(weather: Weather) -> Self {
        Self { weather, cut: BTreeSet::new(), last: BTreeMap::new(), dropped_by_cut: 0 }
    }

    /// Loses everything from `from` to `to` until healed.
    pub fn cut(&mut self, from: Host, to: Host) {
        self.cut.insert((from, to));
    }

    /// Connects `from` to `to` again.
    pub fn heal(&mut self, from: Host, to: Host) {
        self.cut.remove(&(from, to));
    }

    /// Removes all cuts.
    pub fn heal_all(&mut self) {
        self.cut.clear();
    }

    /// Is that direction cut?
    #[must_use]
    pub fn is_cut(&self, from: Host, to: Host) -> bool {
        self.cut.contains(&(from, to))
    }

    /// When a datagram-like message arrives: none (lost), one or two instants. `lane` keeps order unless it straggles.
    pub fn datagram(&mut self, chance: &mut Chance, now: Instant, from: Host, to: Host, lane: u8) -> Vec<Instant> {
        if self.is_cut(from, to) {
            self.dropped_by_cut += 1;
            return Vec::new();
        }
        if chance.one_in(self.weather.loss) {
            return Vec::new();
        }
        let first = self.ordered(chance, now, from, to, lane);
        let mut arrivals = vec![first];
        if chance.one_in(self.weather.duplicate) {
            arrivals.push(first + chance.span(Duration::ZERO, Duration::from_millis(50)));
        }
        if chance.one_in(self.weather.straggle) {
            // A copy that took another way: late, out of order.
            let late = chance.span(Duration::from_millis(10), self.weather.straggle_max);
            if chance.one_in(500) {
                arrivals[0] = now + late;
            } else {
                arrivals.push(now + late);
            }
        }
        arrivals
    }

    /// When a message on a reliable stream arrives; `None` if the stream is cut (it breaks).
    pub fn stream(&mut self, chance: &mut Chance, now: Instant, from: Host, to: Host, lane: u8) -> Option<Instant> {
        if self.is_cut(from, to) {
            self.dropped_by_cut += 1;
            return None;
        }
        Some(self.ordered(chance, now, from, to, lane))
    }

    fn ordered(&mut self, chance: &mut Chance, now: Instant, from: Host, to: Host, lane: u8) -> Instant {
        let delay = chance.span(self.weather.delay_min, self.weather.delay_max);
        let last = self.last.entry((from, to, lane)).or_default();
        let at = (now + delay).max(Instant(last.0 + 1));
        *last = at;
        at
    }
}
