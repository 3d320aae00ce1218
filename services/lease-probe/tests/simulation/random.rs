//! Random numbers that are the same for the same seed on every machine and with every release of every crate.

/// Microseconds of virtual time; 0 is when the first prober of a history starts.
pub(crate) type Micros = i64;

/// A millisecond.
pub(crate) const MILLISECOND: Micros = 1_000;

/// A second.
pub(crate) const SECOND: Micros = 1_000_000;

/// SplitMix64: a stream of random numbers.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A stream of its own for one of several purposes, so that more numbers for one do not change another.
    pub(crate) fn stream(seed: u64, purpose: u64) -> Self {
        Self(mix(seed ^ mix(purpose.wrapping_add(0x51_7C_C1_B7))))
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN_GAMMA);
        mix(self.0)
    }

    /// In [0, 1).
    pub(crate) fn unit(&mut self) -> f64 {
        unit(self.next())
    }

    pub(crate) fn chance(&mut self, p: f64) -> bool {
        self.unit() < p
    }

    /// In [from, to).
    pub(crate) fn between(&mut self, from: Micros, to: Micros) -> Micros {
        from + ((to - from) as f64 * self.unit()) as Micros
    }

    /// In [from, to), in seconds.
    pub(crate) fn seconds(&mut self, from: f64, to: f64) -> Micros {
        ((to - from).mul_add(self.unit(), from) * SECOND as f64) as Micros
    }

    /// In [0, n).
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.unit() * n as f64) as usize
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

/// The constants of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
const GOLDEN_GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn unit(random: u64) -> f64 {
    // 53 bits fill the mantissa.
    (random >> 11) as f64 / (1_u64 << 53) as f64
}

/// A random number in [0, 1) that depends on its arguments only: a request fails or does not, whatever was asked
/// before.
pub(crate) fn hashed(seed: u64, a: u64, b: u64) -> f64 {
    unit(mix(
        seed.wrapping_add(GOLDEN_GAMMA) ^ mix(a.wrapping_add(GOLDEN_GAMMA) ^ mix(b))
    ))
}

/// Seconds with a fraction, for people.
pub(crate) fn seconds(at: Micros) -> String {
    format!("{:.3}", at as f64 / SECOND as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reference output of SplitMix64 for seed 1234567. A printed seed must reproduce its history in later
    /// versions.
    #[test]
    fn is_splitmix64() {
        let mut random = Random::new(1_234_567);
        assert_eq!(
            [random.next(), random.next()],
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]
        );
    }
}
