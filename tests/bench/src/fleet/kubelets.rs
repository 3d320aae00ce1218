//! When each kubelet of a shoot last renewed its Lease: computed when somebody asks, so that a million kubelets cost
//! nothing.

/// The shortest time between two renewals of a kubelet, in microseconds: a quarter of the 40 s lease duration.
const RENEW_INTERVAL: i64 = 10_000_000;

/// The longest. A kubelet adds up to 4 % to each wait; here every node adds a share of its own, always the same, so
/// that its turns do not stay in step with the probes.
pub const MAX_RENEW_INTERVAL: i64 = RENEW_INTERVAL + RENEW_INTERVAL / 25;

/// A time in which some kubelets of a shoot cannot reach its API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outage {
    /// When it began, in microseconds since 1970.
    pub from: i64,
    /// When it ended, if it has.
    pub until: Option<i64>,
    /// The first nodes are cut off, this many.
    pub nodes: usize,
    /// With 0, renewals just stop, and the last ones lie up to a renew interval back. Else every node renews once more
    /// within this many microseconds after `from`: all leases expire that close together.
    pub last_within: i64,
    /// With 0, every node resumes at the turn that it would have had without the outage. Else it resumes within this
    /// number of microseconds after the end, as a kubelet that retries does, and its later turns count from there.
    pub resume_within: i64,
}

/// The end of an outage that gave the kubelets new turns.
#[derive(Debug, Clone, Copy)]
struct Restart {
    at: i64,
    resume_within: i64,
    nodes: usize,
}

#[derive(Debug, Clone, Default)]
pub struct ShootKubelets {
    seed: u64,
    outage: Option<Outage>,
    // Of the outages before `outage`, the last one that gave kubelets new turns.
    restart: Option<Restart>,
}

impl ShootKubelets {
    /// Kubelets whose turns follow from `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self {
            seed,
            outage: None,
            restart: None,
        }
    }

    /// Cuts nodes off. The outage before, if there was one, must have ended, and its nodes must have resumed.
    pub const fn cut(&mut self, outage: Outage) {
        if let Some(Outage {
            until: Some(at),
            resume_within: resume_within @ 1..,
            nodes,
            ..
        }) = self.outage
        {
            self.restart = Some(Restart {
                at,
                resume_within,
                nodes,
            });
        }
        self.outage = Some(outage);
    }

    /// Ends the outage, if it has not ended yet. See [`Outage::resume_within`].
    pub const fn heal(&mut self, now: i64, resume_within: i64) {
        if let Some(outage) = &mut self.outage
            && outage.until.is_none()
        {
            outage.until = Some(now);
            outage.resume_within = resume_within;
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
        let (phase, interval) = (self.phase(node), self.interval(node));
        // The turn at or before a time.
        let turn = |at: i64| at - (at - phase).rem_euclid(interval);
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
            Some(back) if now >= back => now - (now - back).rem_euclid(interval),
            _ => last,
        }
    }

    /// When a node that was cut off renews again for the first time; none without an outage that has ended.
    #[must_use]
    pub fn resumed(&self, node: usize) -> Option<i64> {
        let outage = self.outage.filter(|outage| node < outage.nodes)?;
        let until = outage.until?;
        if outage.resume_within > 0 {
            return Some(self.retried(node, until, outage.resume_within));
        }
        // The first turn at or after the end.
        Some(until + (self.phase(node) - until).rem_euclid(self.interval(node)))
    }

    /// A time at which a node renews; all others before the end of the present outage are whole intervals away.
    fn phase(&self, node: usize) -> i64 {
        match self.restart.filter(|restart| node < restart.nodes) {
            Some(restart) => self.retried(node, restart.at, restart.resume_within),
            None => self.within(node, 1, RENEW_INTERVAL),
        }
    }

    /// Between two renewals of a node.
    fn interval(&self, node: usize) -> i64 {
        RENEW_INTERVAL + self.within(node, 4, MAX_RENEW_INTERVAL - RENEW_INTERVAL)
    }

    /// When the retries of a node succeed after an outage that ended at `until`: another time after each outage.
    fn retried(&self, node: usize, until: i64, within: i64) -> i64 {
        until + Self::new(self.seed ^ mix(until.unsigned_abs())).within(node, 3, within)
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
    use std::collections::BTreeSet;

    use super::*;

    const NOW: i64 = 1_700_000_000_000_000;

    #[test]
    fn kubelets_renew_every_interval_and_not_all_at_once() {
        let kubelets = ShootKubelets::new(7);
        let ages: Vec<i64> = (0..50).map(|node| NOW - kubelets.renewed(node, NOW)).collect();
        assert!(ages.iter().all(|age| (0..MAX_RENEW_INTERVAL).contains(age)));
        assert!(ages.iter().filter(|age| **age < RENEW_INTERVAL / 2).count() > 10);
        let intervals: BTreeSet<i64> = (0..50).map(|node| kubelets.interval(node)).collect();
        assert!(intervals.len() > 40, "{intervals:?}");
        for node in 0..50 {
            let interval = kubelets.interval(node);
            assert!((RENEW_INTERVAL..MAX_RENEW_INTERVAL).contains(&interval));
            assert_eq!(
                kubelets.renewed(node, NOW + interval),
                kubelets.renewed(node, NOW) + interval
            );
        }
    }

    #[test]
    fn an_outage_stops_the_nodes_that_it_concerns_until_it_ends() {
        let mut kubelets = ShootKubelets::new(7);
        let last = kubelets.renewed(0, NOW);
        kubelets.cut(Outage {
            from: NOW,
            until: None,
            nodes: 2,
            last_within: 0,
            resume_within: 0,
        });
        let later = NOW + 6 * RENEW_INTERVAL;
        assert_eq!(kubelets.renewed(0, later), last);
        assert!(kubelets.renewed(2, later) > NOW);
        kubelets.heal(later, 0);
        assert_eq!(kubelets.renewed(0, later), last, "not before its next turn");
        let back = kubelets.renewed(0, later + MAX_RENEW_INTERVAL);
        assert!((later..=later + MAX_RENEW_INTERVAL).contains(&back));
    }

    #[test]
    fn the_last_renewals_can_be_close_together() {
        let mut kubelets = ShootKubelets::new(7);
        kubelets.cut(Outage {
            from: NOW,
            until: None,
            nodes: 50,
            last_within: 1_000_000,
            resume_within: 0,
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

    #[test]
    fn retries_end_within_the_time_given_and_set_the_turns_anew() {
        const WITHIN: i64 = 7_000_000;
        let mut kubelets = ShootKubelets::new(7);
        let mut now = NOW;
        let mut first = Vec::new();
        for _ in 0..2 {
            let before: Vec<i64> = (0..50).map(|node| kubelets.renewed(node, now)).collect();
            assert!(
                before
                    .iter()
                    .all(|at| (now - MAX_RENEW_INTERVAL..=now).contains(at))
            );
            kubelets.cut(Outage {
                from: now,
                until: None,
                nodes: 50,
                last_within: 0,
                resume_within: 0,
            });
            let end = now + 3 * RENEW_INTERVAL;
            kubelets.heal(end, WITHIN);
            for (node, last) in before.into_iter().enumerate() {
                let back = kubelets.resumed(node).unwrap();
                assert!((end..end + WITHIN).contains(&back));
                assert_eq!(kubelets.renewed(node, back - 1), last, "silent until it is back");
                assert_eq!(kubelets.renewed(node, back), back);
                assert_eq!(
                    kubelets.renewed(node, back + 25_000_000),
                    back + 2 * kubelets.interval(node)
                );
            }
            first.push(kubelets.resumed(0).unwrap() - end);
            now = end + 6 * RENEW_INTERVAL;
        }
        assert_ne!(first[0], first[1], "not the same delay after every outage");
    }
}
