//! The only source of chance in a run: everything random follows from the seed.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Deterministic generator of one run.
#[derive(Debug)]
pub struct Chance(SmallRng);

impl Chance {
    /// From a seed; two runs of one seed draw the same numbers.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(SmallRng::seed_from_u64(seed))
    }

    /// Uniform in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        self.0.random_range(low..=high)
    }

    /// Uniform in `low..=high`.
    pub fn span(&mut self, low: Duration, high: Duration) -> Duration {
        let nanos = |d: Duration| u64::try_from(d.as_nanos()).expect("spans of a run fit u64 nanoseconds");
        Duration::from_nanos(self.between(nanos(low), nanos(high)))
    }

    /// True `per_mille` times of a thousand.
    pub fn one_in(&mut self, per_mille: u64) -> bool {
        self.between(0, 999) < per_mille
    }

    /// One of the items.
    ///
    /// # Panics
    /// If there is none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        let last = items.len().checked_sub(1).expect("something to pick from");
        &items[usize::try_from(self.between(0, last as u64)).expect("an index fits usize")]
    }

    /// A fresh 64-bit number.
    pub fn word(&mut self) -> u64 {
        self.0.random()
    }

    /// 128 fresh bits.
    pub fn id(&mut self) -> u128 {
        self.0.random()
    }
}
