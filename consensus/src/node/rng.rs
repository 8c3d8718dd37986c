//! The core's only source of variety: splitmix64 over the injected seed.

/// Deterministic: the same seed gives the same draws.
#[derive(Clone, Copy, Debug)]
pub(super) struct SplitMix(u64);

impl SplitMix {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `low..high`; `low` if the range is empty.
    pub(super) fn within(&mut self, low: u64, high: u64) -> u64 {
        let span = high.saturating_sub(low);
        if span == 0 {
            low
        } else {
            low + self.next() % span
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_stay_in_range_and_repeat_with_the_seed() {
        let (mut one, mut two) = (SplitMix::new(7), SplitMix::new(7));
        for _ in 0..1_000 {
            let draw = one.within(120, 150);
            assert!((120..150).contains(&draw));
            assert_eq!(draw, two.within(120, 150));
        }
        assert_eq!(one.within(5, 5), 5);
    }
}
