//! Reproducible pseudo-random numbers.

/// A small reproducible generator (`SplitMix64`, Steele et al., OOPSLA 2014).
#[derive(Debug, Clone)]
pub(crate) struct SeededRandom(pub(crate) u64);

impl SeededRandom {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n` (`n` > 0).
    pub(crate) fn next_below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// A number in [0, 1).
    pub(crate) fn next_unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}
