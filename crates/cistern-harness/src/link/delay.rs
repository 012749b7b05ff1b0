//! What a store takes to answer: lognormal, as the small GETs of real ones nearly are. Decides purely;
//! whoever draws does the waiting.

use std::{f64::consts::TAU, time::Duration};

/// So many standard deviations above the middle lies the hundredth part of a normal distribution.
const P99: f64 = 2.326;

/// A lognormal delay. The draws of a seed recur.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay {
    pub median: Duration,
    pub p99: Duration,
    pub seed: u64,
}

impl Delay {
    /// The draw of this number.
    pub fn draw(&self, number: u64) -> Duration {
        let sigma = (self.p99.as_secs_f64() / self.median.as_secs_f64()).ln() / P99;
        let place = self.seed.wrapping_mul(0xD1B5_4A32_D192_ED03).wrapping_add(number * 2);
        let normal = (-2.0 * uniform(place).ln()).sqrt() * (TAU * uniform(place.wrapping_add(1))).cos();
        self.median.mul_f64((sigma * normal).exp())
    }
}

/// In (0, 1]: the place in a sequence decides (splitmix64).
pub fn uniform(place: u64) -> f64 {
    let mixed = place.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (((mixed ^ (mixed >> 31)) >> 11) + 1) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIKE_S3: Delay =
        Delay { median: Duration::from_millis(20), p99: Duration::from_millis(200), seed: 1 };
    const DRAWS: usize = 100_000;

    fn sorted(delay: Delay) -> Vec<f64> {
        let mut draws: Vec<f64> = (0..DRAWS as u64).map(|n| delay.draw(n).as_secs_f64() * 1e3).collect();
        draws.sort_by(f64::total_cmp);
        draws
    }

    /// Half of the draws are below the median, and one in a hundred is above the p99; the logarithms
    /// are symmetric about the median.
    #[test]
    fn draws_are_spread_as_asked() {
        let draws = sorted(LIKE_S3);
        let at = |part: f64| draws[(part * DRAWS as f64) as usize];
        let near = |value: f64, wanted: f64| (value / wanted - 1.0).abs() < 0.03;
        assert!(near(at(0.5), 20.0) && near(at(0.99), 200.0), "{} and {}", at(0.5), at(0.99));
        assert!(near(at(0.01), 2.0), "{}", at(0.01));
        assert!(near(at(0.75) * at(0.25), 400.0), "{} and {}", at(0.75), at(0.25));
    }

    /// A seed gives the same draws again, another one others; neighbours have nothing in common.
    #[test]
    fn draws_recur() {
        let other = Delay { seed: 2, ..LIKE_S3 };
        let first: Vec<_> = (0..4).map(|n| LIKE_S3.draw(n).as_millis()).collect();
        assert_eq!(first, [24, 25, 103, 50]);
        assert!((0..1000).filter(|n| LIKE_S3.draw(*n) == other.draw(*n)).count() < 5);
        let above = |n: u64| LIKE_S3.draw(n) > LIKE_S3.median;
        let alike = (0..DRAWS as u64).filter(|n| above(*n) == above(n + 1)).count();
        assert!((48_000..52_000).contains(&alike), "{alike}");
    }
}
