//! When each kubelet of a shoot last renewed its Lease: computed when somebody asks, so that a million kubelets cost
//! nothing.

/// The shortest time between two renewals of a kubelet, in microseconds: a quarter of the 40 s lease duration.
const RENEW_INTERVAL: i64 = 10_000_000;

/// The longest. A kubelet adds up to 4 % to each wait; here every node adds a share of its own, always the same, so
/// that its turns do not stay in step with the probes.
pub const MAX_RENEW_INTERVAL: i64 = RENEW_INTERVAL + RENEW_INTERVAL / 25;

/// A time in which the kubelets of a shoot cannot reach its API server.
#[derive(Debug, Clone, Copy)]
struct Outage {
    /// When it began, in microseconds since 1970.
    from: i64,
    /// With 0, renewals just stop, and the last ones lie up to a renew interval back. Else every node renews once more
    /// within this many microseconds after `from`: all leases expire that close together.
    last_within: i64,
    end: Option<OutageEnd>,
}

#[derive(Debug, Clone, Copy)]
struct OutageEnd {
    /// In microseconds since 1970.
    at: i64,
    /// With 0, every node resumes at the turn that it would have had without the outage. Else it resumes within this
    /// number of microseconds after the end, as a kubelet that retries does, and its later turns count from there.
    resume_within: i64,
}

#[derive(Debug, Clone, Default)]
pub struct ShootKubelets {
    seed: u64,
    outage: Option<Outage>,
    // Of the outages before `outage`, the end of the last one that gave kubelets new turns.
    restart: Option<OutageEnd>,
}

impl ShootKubelets {
    /// Kubelets whose turns follow from `seed`.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            ..Self::default()
        }
    }

    /// Cuts the nodes off. The outage before, if there was one, must have ended, and its nodes must have resumed. See
    /// [`Outage::last_within`].
    pub fn cut(&mut self, from: i64, last_within: i64) {
        let ended = self.outage.and_then(|outage| outage.end);
        self.restart = ended.filter(|end| end.resume_within > 0).or(self.restart);
        self.outage = Some(Outage {
            from,
            last_within,
            end: None,
        });
    }

    /// Ends the outage, if it has not ended yet. See [`OutageEnd::resume_within`].
    pub fn heal(&mut self, at: i64, resume_within: i64) {
        if let Some(outage) = &mut self.outage {
            outage.end.get_or_insert(OutageEnd { at, resume_within });
        }
    }

    /// When a node last renewed, at `now`.
    pub fn renewed(&self, node: usize, now: i64) -> i64 {
        let (phase, interval) = (self.phase(node), self.interval(node));
        // The turn at or before a time.
        let turn = |at: i64| at - (at - phase).rem_euclid(interval);
        let Some(outage) = self.outage else {
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
    pub fn resumed(&self, node: usize) -> Option<i64> {
        let end = self.outage?.end?;
        if end.resume_within > 0 {
            return Some(self.retried(node, end));
        }
        // The first turn at or after the end.
        Some(end.at + (self.phase(node) - end.at).rem_euclid(self.interval(node)))
    }

    /// A time at which a node renews; all others before the end of the present outage are whole intervals away.
    fn phase(&self, node: usize) -> i64 {
        match self.restart {
            Some(restart) => self.retried(node, restart),
            None => self.within(node, 1, RENEW_INTERVAL),
        }
    }

    /// Between two renewals of a node.
    fn interval(&self, node: usize) -> i64 {
        RENEW_INTERVAL + self.within(node, 4, MAX_RENEW_INTERVAL - RENEW_INTERVAL)
    }

    /// When the retries of a node succeed after the end of an outage: another time after each outage.
    fn retried(&self, node: usize, end: OutageEnd) -> i64 {
        let retries = Self::new(self.seed ^ mix(end.at.unsigned_abs()));
        end.at + retries.within(node, 3, end.resume_within)
    }

    /// A number below `limit` that only depends on the node and the purpose.
    fn within(&self, node: usize, purpose: u64, limit: i64) -> i64 {
        let number = mix(self.seed ^ mix(node as u64 ^ (purpose << 40)));
        // Below `limit`, so it fits.
        i64::try_from(number % limit.max(1).unsigned_abs()).unwrap_or(0)
    }
}

/// splitmix64: spreads neighbouring numbers over the whole range.
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
    fn an_outage_stops_renewals_until_it_ends() {
        let mut kubelets = ShootKubelets::new(7);
        let last = kubelets.renewed(0, NOW);
        kubelets.cut(NOW, 0);
        let later = NOW + 6 * RENEW_INTERVAL;
        assert_eq!(kubelets.renewed(0, later), last);
        assert_eq!(kubelets.resumed(0), None);
        kubelets.heal(later, 0);
        assert_eq!(kubelets.renewed(0, later), last, "not before its next turn");
        let back = kubelets.renewed(0, later + MAX_RENEW_INTERVAL);
        assert!((later..=later + MAX_RENEW_INTERVAL).contains(&back));
        let resumed = kubelets.resumed(0);
        kubelets.heal(later + RENEW_INTERVAL, 0);
        assert_eq!(kubelets.resumed(0), resumed, "it ended once");
    }

    #[test]
    fn the_last_renewals_can_be_close_together() {
        let mut kubelets = ShootKubelets::new(7);
        kubelets.cut(NOW, 1_000_000);
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
            kubelets.cut(now, 0);
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
