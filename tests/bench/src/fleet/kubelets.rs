//! When each kubelet of a shoot last renewed its Lease: computed when somebody asks, so that a million kubelets cost
//! nothing.

/// Between two renewals of a kubelet, in microseconds: a quarter of the 40 s lease duration.
pub const RENEW_INTERVAL: i64 = 10_000_000;

/// A time in which some kubelets of a shoot cannot reach its API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outage {
    /// When it began, in microseconds since 1970.
    pub from: i64,
    /// When it ended, if it has.
    pub until: Option<i64>,
    /// The first so many nodes are cut off.
    pub nodes: usize,
    /// With 0, renewals just stop, and the last ones lie up to a renew interval back. Else every node renews once more
    /// within so many microseconds after `from`: all leases expire that close together.
    pub last_within: i64,
}

/// The kubelets of one shoot.
#[derive(Debug, Clone, Default)]
pub struct Kubelets {
    seed: u64,
    outage: Option<Outage>,
}

impl Kubelets {
    /// Kubelets whose turns follow from `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { seed, outage: None }
    }

    /// Cuts nodes off. The outage before, if there was one, must have ended.
    pub const fn cut(&mut self, outage: Outage) {
        self.outage = Some(outage);
    }

    /// Ends the outage.
    pub const fn heal(&mut self, now: i64) {
        if let Some(outage) = &mut self.outage
            && outage.until.is_none()
        {
            outage.until = Some(now);
        }
    }

    /// The last or present outage.
    #[must_use]
    pub const fn outage(&self) -> Option<Outage> {
        self.outage
    }

    /// When a node last renewed, at `now`.
    #[must_use]
    pub fn renewed(&self, node: usize, now: i64) -> i64 {
        let phase = self.within(node, 1, RENEW_INTERVAL);
        // The turn at or before a time.
        let turn = |at: i64| at - (at - phase).rem_euclid(RENEW_INTERVAL);
        let Some(outage) = self.outage.filter(|outage| node < outage.nodes) else {
            return turn(now);
        };
        let last = match outage.last_within {
            0 => turn(outage.from),
            within => outage.from + self.within(node, 2, within),
        };
        if now < last {
            return turn(now.min(outage.from));
        }
        match self.resumed(node) {
            Some(back) if now >= back => turn(now),
            _ => last,
        }
    }

    /// When a node that was cut off renews again for the first time; none without an outage that has ended.
    #[must_use]
    pub fn resumed(&self, node: usize) -> Option<i64> {
        let until = self.outage.filter(|outage| node < outage.nodes)?.until?;
        let phase = self.within(node, 1, RENEW_INTERVAL);
        // The first turn at or after the end.
        Some(until + (phase - until).rem_euclid(RENEW_INTERVAL))
    }

    /// A number below `limit` that only depends on the node and the purpose.
    fn within(&self, node: usize, purpose: u64, limit: i64) -> i64 {
        let number = mix(self.seed ^ mix(node as u64 ^ (purpose << 40)));
        // Below `limit`, so it fits.
        i64::try_from(number % limit.max(1).unsigned_abs()).unwrap_or(0)
    }
}

/// splitmix64: spreads neighbouring numbers over the whole range.
#[must_use]
pub const fn mix(number: u64) -> u64 {
    let z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_700_000_000_000_000;

    #[test]
    fn kubelets_renew_every_interval_and_not_all_at_once() {
        let kubelets = Kubelets::new(7);
        let ages: Vec<i64> = (0..50).map(|node| NOW - kubelets.renewed(node, NOW)).collect();
        assert!(ages.iter().all(|age| (0..RENEW_INTERVAL).contains(age)));
        assert!(ages.iter().filter(|age| **age < RENEW_INTERVAL / 2).count() > 10);
        assert_eq!(
            kubelets.renewed(3, NOW + RENEW_INTERVAL),
            kubelets.renewed(3, NOW) + RENEW_INTERVAL
        );
    }

    #[test]
    fn an_outage_stops_the_nodes_that_it_concerns_until_it_ends() {
        let mut kubelets = Kubelets::new(7);
        let last = kubelets.renewed(0, NOW);
        kubelets.cut(Outage {
            from: NOW,
            until: None,
            nodes: 2,
            last_within: 0,
        });
        let later = NOW + 6 * RENEW_INTERVAL;
        assert_eq!(kubelets.renewed(0, later), last);
        assert!(kubelets.renewed(2, later) > NOW);
        kubelets.heal(later);
        assert_eq!(kubelets.renewed(0, later), last, "not before its next turn");
        let back = kubelets.renewed(0, later + RENEW_INTERVAL);
        assert!((later..=later + RENEW_INTERVAL).contains(&back));
    }

    #[test]
    fn the_last_renewals_can_be_close_together() {
        let mut kubelets = Kubelets::new(7);
        kubelets.cut(Outage {
            from: NOW,
            until: None,
            nodes: 50,
            last_within: 1_000_000,
        });
        assert!(kubelets.renewed(0, NOW) <= NOW);
        for node in 0..50 {
            let last = kubelets.renewed(node, NOW + 5_000_000);
            assert!((NOW..NOW + 1_000_000).contains(&last));
            assert!(
                kubelets.renewed(node, NOW + 200_000) <= NOW + 200_000,
                "never from the future"
            );
        }
    }
}
