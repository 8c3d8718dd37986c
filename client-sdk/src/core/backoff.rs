//! Delays between attempts: 100 ms × 2ⁿ, at most 2 s, each ±20 %.

use std::time::Duration;

/// First delay.
const BASE: Duration = Duration::from_millis(100);
/// Longest delay.
const MAX: Duration = Duration::from_secs(2);

/// Draws the jitter. SplitMix64: the seed decides everything, so a simulated run repeats itself.
#[derive(Clone, Debug)]
pub struct Jitter {
    state: u64,
}

impl Jitter {
    /// From a seed; production draws it from the operating system.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Delay before attempt `attempt` (0 = the first repetition).
    pub fn delay(&mut self, attempt: u32) -> Duration {
        let full = BASE.saturating_mul(1 << attempt.min(5)).min(MAX);
        self.spread(full)
    }

    /// The given delay ±20 %.
    pub fn spread(&mut self, delay: Duration) -> Duration {
        // 800 … 1200 thousandths.
        let thousandths = 800 + u32::try_from(self.next_u64() % 401).expect("below 401");
        delay.saturating_mul(thousandths) / 1_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_two_seconds_within_a_fifth() {
        let mut jitter = Jitter::new(7);
        for (attempt, full) in [(0, 100), (1, 200), (2, 400), (3, 800), (4, 1_600), (5, 2_000), (40, 2_000)] {
            for _ in 0..200 {
                let delay = jitter.delay(attempt).as_millis();
                assert!((full * 8 / 10..=full * 12 / 10).contains(&delay), "attempt {attempt}: {delay} ms");
            }
        }
    }

    #[test]
    fn the_seed_decides_the_delays() {
        let draw = |seed| (0..5).map(|n| Jitter::new(seed).delay(n)).collect::<Vec<_>>();
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }
}
