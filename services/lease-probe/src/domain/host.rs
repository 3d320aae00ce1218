//! Detects that the prober's own clock is off.
//!
//! The clock of one node, or of the nodes of one shoot, may be off by anything. That the nodes of *all* shoots, which
//! belong to different people on different infrastructures, are off by the same amount has one explanation: it is the
//! clock of this host.

use std::time::Duration;

use super::moment::micros;
use super::renewals::is_notable;

/// With fewer shoots there is no saying whose clock it is.
const FEWEST_SHOOTS: usize = 3;

/// Estimates of the same skew differ by up to a renew interval of kubelets, 10 s by default: see
/// [`super::skew`].
const AGREE_WITHIN: Duration = Duration::from_secs(10);

/// One shoot in ten may disagree. Its nodes may be new, or their clocks may also be off.
const DISSENTERS: usize = 10;

/// By how much the clock of this host is off in microseconds, positive when it runs ahead; none when the shoots do not
/// say so with one voice. `typical` has, for each shoot whose leases could be judged, by how much the clocks of its
/// nodes typically seem to be off; its order is not kept.
#[must_use]
pub fn skew(typical: &mut [i64]) -> Option<i64> {
    if typical.len() < FEWEST_SHOOTS {
        return None;
    }
    let median = median(typical)?;
    let agree = micros(AGREE_WITHIN);
    let others = typical
        .iter()
        .filter(|skew| !is_notable(**skew) || skew.saturating_sub(median).saturating_abs() > agree)
        .count();
    (is_notable(median) && others * DISSENTERS <= typical.len()).then(|| median.saturating_neg())
}

/// The median, the upper one of two; none of nothing. The order is not kept.
#[must_use]
pub fn median(values: &mut [i64]) -> Option<i64> {
    let middle = values.len() / 2;
    (!values.is_empty()).then(|| *values.select_nth_unstable(middle).1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: i64 = 1_000_000;

    fn host(seconds: &[i64]) -> Option<i64> {
        let mut typical: Vec<i64> = seconds.iter().map(|s| s * SECOND).collect();
        skew(&mut typical).map(|skew| skew / SECOND)
    }

    #[test]
    fn table() {
        let rows: &[(&[i64], Option<i64>, &str)] = &[
            (&[], None, "nobody says anything"),
            (&[-55, -55], None, "two shoots may be of one site"),
            (
                &[-55, -52, -58],
                Some(55),
                "all nodes seem behind: this host is ahead",
            ),
            (
                &[60, 55, 58],
                Some(-58),
                "all nodes seem ahead: this host is behind",
            ),
            (&[0, 0, 0, 1, 0], None, "all is well"),
            (&[-55, 0, -52], None, "one shoot is right, so this host is"),
            (&[-55, 40, -52], None, "they are off each in its own way"),
            (&[-100, -55, -20], None, "all behind, but not by the same amount"),
            (
                &[-55, -55, -55, -55, -55, -55, -55, -55, -55, 0],
                Some(55),
                "one of ten may be wrong itself",
            ),
        ];
        for (seconds, expected, why) in rows {
            assert_eq!(host(seconds), *expected, "{why}");
        }
    }

    proptest! {
        /// Each shoot's estimate falls short of the truth by at most a renew interval.
        #[test]
        fn a_host_that_is_off_is_found_and_its_direction_is_right(
            off in 13_i64..=120, ahead: bool, short in prop::collection::vec(0_i64..=10, 3..200),
        ) {
            let seconds: Vec<i64> = short.iter().map(|short| if ahead { short - off } else { off - short }).collect();
            let found = host(&seconds);
            prop_assert!(found.is_some_and(|found| (found > 0) == ahead && found.abs() <= off), "{found:?}");
        }

        #[test]
        fn a_minority_of_skewed_shoots_never_accuses_the_host(
            skewed in prop::collection::vec(-120_i64..=120, 0..20), right in 20_usize..100,
        ) {
            let mut seconds = skewed;
            seconds.resize(seconds.len() + right, 0);
            prop_assert_eq!(host(&seconds), None);
        }
    }
}
