//! Judges all leases of a shoot together.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use watchdog_api::unix_time::UnixTime;

use super::answered::AnsweredMark;
use super::candidates::{Exclusion, NodeIndex};
use super::lease_list::LeaseList;
use super::outcome::Outcome;
use super::renewals::{LeaseAge, Renewals, longest_pause, shortest_grace};

/// Zones that are counted apart at most. All further zones share one count; no region of a cloud has that many.
const MOST_ZONES: usize = 20;

/// The rule's numbers for one shoot.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ExpiryRule {
    /// The grace period of kube-controller-manager.
    pub grace: Duration,
    /// Age at which a lease is expired.
    pub expiry_age: Duration,
    /// Share of expired candidates at which the nodes count as cut off; more than 0, at most 1.
    pub threshold: f64,
}

/// Candidates of one zone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ZoneCount {
    /// Eligible leases.
    pub candidates: u32,
    /// Those of them that are expired.
    pub expired: u32,
}

impl ZoneCount {
    /// Returns true if all candidates of the zone are expired.
    #[must_use]
    pub const fn is_expired(&self) -> bool {
        self.candidates > 0 && self.expired == self.candidates
    }
}

/// The result of judging one list of the leases: the evidence for a verdict, and when to look again.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Assessment {
    /// As found now, before the thresholds of a verdict.
    pub outcome: Outcome,
    /// The outcome by the leases alone, without the external endpoint.
    pub by_leases: Outcome,
    /// When the leases were judged.
    pub judged: UnixTime,
    /// Revision of the list.
    pub list_revision: u64,
    /// The rule by which they were judged.
    pub rule: ExpiryRule,
    /// Nodes, when they were listed.
    pub nodes: u32,
    /// Leases, the malformed ones included.
    pub leases: u32,
    /// Eligible leases.
    pub candidates: u32,
    /// Candidates that are expired.
    pub expired: u32,
    /// Candidates that the list does not have, or that are old enough to be expired, but whose kubelets may have had no
    /// API server to renew them at; and, while a loss may stand, those that a connected kubelet would have renewed by
    /// now, and those that are `undated`.
    pub unconfirmed: u32,
    /// Candidates that look renewed, by the clocks of their nodes and of this replica alone. A replica that has just
    /// started does not know how far these are apart.
    pub undated: u32,
    /// Leases as old, but not counted for a reason that passes: a node condition, an update in place.
    pub temporarily_excluded: u32,
    /// Leases as old whose node or Machine is missing while the other one is there.
    pub absent: u32,
    /// Nodes that count and have no lease that was ever seen, when the nodes were listed.
    pub without_lease: u32,
    /// Leases that were renewed lately, also of nodes that do not count.
    pub renewing: u32,
    /// Leases that do not count, by reason.
    pub excluded: BTreeMap<Exclusion, u32>,
    /// Counts per zone, when the nodes were listed.
    pub zones: BTreeMap<Arc<str>, ZoneCount>,
    /// The skew furthest from zero among the nodes, in microseconds.
    pub largest_skew: i64,
    /// Time since the newest renewal among the expired candidates.
    pub newest_expired_renewal: Option<Duration>,
    /// When the threshold was crossed, or would be if no lease were renewed from now on and the API server answered;
    /// none when it cannot be.
    pub crossing: Option<UnixTime>,
    /// When the first candidate expires that has not yet, unless it is renewed.
    pub next_expiry: Option<UnixTime>,
    /// When the nodes and machines must be listed ahead of a crossing, unless a lease is renewed, so that only the
    /// leases must be listed when it comes; `None` if the nodes need not be listed, or are known.
    pub look_ahead: Option<UnixTime>,
    /// True if the next verdict depends on seconds: a loss may be under way, or kubelets have not renewed since an
    /// outage.
    pub urgent: bool,
    /// The pace at which live kubelets of the shoot renew.
    pub renew_interval: Duration,
    /// Two lists are never further apart: see [`longest_pause`].
    pub longest_pause: Duration,
}

impl Assessment {
    /// True if nothing stands in the way but leases whose renewals this replica has not observed yet.
    #[must_use]
    pub const fn is_only_undated(&self) -> bool {
        self.undated > 0 && self.expired == 0 && self.unconfirmed == self.undated
    }

    /// Returns true if kube-controller-manager acts before a loss can be proven.
    #[must_use]
    pub fn grace_too_short(&self) -> bool {
        self.rule.grace < shortest_grace(self.renew_interval)
    }

    /// When the next lease expires or the next crossing comes, as seen from the list. The crossing may be that of the
    /// external endpoint, and past; leases expire later.
    #[must_use]
    pub fn next_change(&self) -> Option<UnixTime> {
        let changes = [self.crossing, self.next_expiry].into_iter().flatten();
        changes.filter(|at| *at > self.judged).min()
    }

    /// expired / candidates; 0 without candidates.
    #[must_use]
    pub fn fraction(&self) -> f64 {
        if self.candidates == 0 {
            0.0
        } else {
            f64::from(self.expired) / f64::from(self.candidates)
        }
    }

    /// candidates / leases; none without leases.
    #[must_use]
    pub fn eligible_fraction(&self) -> Option<f64> {
        (self.leases > 0).then(|| f64::from(self.candidates) / f64::from(self.leases))
    }

    /// Beyond [`MOST_ZONES`], the zones share one count.
    fn count_in_zone(&mut self, zone: Arc<str>, expired: bool) {
        let zone = if self.zones.len() < MOST_ZONES || self.zones.contains_key(&zone) {
            zone
        } else {
            "others".into()
        };
        let count = self.zones.entry(zone).or_default();
        count.candidates += 1;
        count.expired += u32::from(expired);
    }
}

/// The number of candidates that must expire to reach the threshold: the smallest whose share, as the division rounds
/// it, is not below the threshold.
#[must_use]
pub fn required(candidates: u32, threshold: f64) -> u32 {
    let all = candidates.max(1);
    let reaches = |k: &u32| f64::from(*k) / f64::from(all) >= threshold;
    (1..all).find(reaches).unwrap_or(all)
}

/// The external endpoint does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExternalOutage {
    /// When it was first found not to answer.
    pub since: UnixTime,
    /// The answered time of the internal endpoint then.
    pub mark: AnsweredMark,
    /// How often it has failed since.
    pub failures: u32,
    /// True if it failed often enough in a row to count.
    pub counts: bool,
}

/// Judges a list of the leases as of when it was asked for. Without the nodes every lease that can be judged counts as
/// a candidate. `loss_may_stand` is true if this replica reported a loss, or another replica may have, and no recovery
/// was reported since. `external` is set while the external endpoint does not answer.
#[must_use]
pub fn assess(
    list: &LeaseList,
    renewals: &Renewals,
    nodes: Option<&NodeIndex>,
    rule: ExpiryRule,
    loss_may_stand: bool,
    external: Option<ExternalOutage>,
) -> Assessment {
    let now = list.sent;
    let mut found = Assessment {
        judged: now,
        list_revision: list.revision,
        rule,
        leases: count(list.leases.len()).saturating_add(list.malformed),
        largest_skew: renewals.largest_skew(),
        renew_interval: renewals.renew_interval(),
        longest_pause: longest_pause(rule.grace),
        ..Assessment::default()
    };
    let ages = found.count_leases(list, renewals, nodes, loss_may_stand);
    let required = required(found.candidates, rule.threshold) as usize;
    // One candidate is too little evidence for a loss: nothing to be on time for.
    let several = found.candidates > 1;
    // When the threshold is reached, if each candidate counts from these times on.
    let reached = |time: fn(&LeaseAge) -> UnixTime| {
        let mut times: Vec<UnixTime> = ages.iter().map(time).collect();
        (several && required <= times.len()).then(|| *times.select_nth_unstable(required - 1).1)
    };
    let by_external = external
        .filter(|outage| outage.counts && ages.iter().all(|age| age.renewed < outage.since))
        .and_then(|outage| {
            let since_outage = renewals.answered().renewed_at(outage.mark, found.renew_interval);
            Some(since_outage.max(reached(|age| age.silence_proven_at)?))
        });
    found.crossing = reached(|age| age.expired_from)
        .map(|crossing| by_external.map_or(crossing, |external| crossing.min(external)));
    let expiries = ages.iter().map(|age| age.expired_from);
    found.next_expiry = expiries.filter(|expiry| *expiry > now).min();
    found.urgent = reached(|age| age.urgent_from).is_some_and(|at| at <= now);
    found.by_leases = found.outcome_by_leases(loss_may_stand, nodes);
    let lost_outside = !found.by_leases.is_loss() && by_external.is_some_and(|at| at <= now);
    found.outcome = match lost_outside {
        true => Outcome::ExternalUnreachable,
        false => found.by_leases.clone(),
    };
    found
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

impl Assessment {
    /// Counts the leases; returns the ages of the candidates that the list has.
    fn count_leases(
        &mut self,
        list: &LeaseList,
        renewals: &Renewals,
        nodes: Option<&NodeIndex>,
        loss_may_stand: bool,
    ) -> Vec<LeaseAge> {
        let (now, expiry_age) = (self.judged, self.rule.expiry_age);
        if list.malformed > 0 {
            self.excluded.insert(Exclusion::MalformedLease, list.malformed);
        }
        let mut ages = Vec::with_capacity(list.leases.len());
        let present = list.leases.iter().map(|lease| (&lease.name, false));
        let missing = renewals.missing().map(|name| (name, true));
        for (name, is_missing) in present.chain(missing) {
            // A renewTime that was removed is no renewal: kube-controller-manager counts from the last one.
            let age = renewals.age(name, expiry_age, loss_may_stand);
            let exclusion = nodes.and_then(|nodes| nodes.exclusion(name));
            let is_doubtful = is_missing || age.is_some_and(|age| age.doubtful_from <= now);
            let is_undated = !is_doubtful && age.is_some_and(|age| !age.is_dated);
            self.renewing += u32::from(age.is_some() && !is_doubtful && !is_undated);
            let (None, Some(age)) = (exclusion, age) else {
                let reason = exclusion.unwrap_or(Exclusion::NoRenewTime);
                if !is_missing {
                    *self.excluded.entry(reason).or_default() += 1;
                }
                let old = age.is_some_and(|age| age.old_from <= now);
                self.temporarily_excluded += u32::from(old && reason.is_temporary());
                self.absent += u32::from(old && reason.is_absence());
                continue;
            };
            self.candidates += 1;
            // Whether a lease that is missing was renewed is not known.
            let expired = !is_missing && age.expired_from <= now;
            self.expired += u32::from(expired);
            self.unconfirmed += u32::from(!expired && (is_doubtful || is_undated));
            self.undated += u32::from(!expired && is_undated);
            if expired {
                let silent = now.since(age.renewed);
                let newest = self.newest_expired_renewal.get_or_insert(silent);
                *newest = silent.min(*newest);
            }
            if let Some(nodes) = nodes {
                self.count_in_zone(nodes.zone(name), expired);
            }
            if !is_missing {
                ages.push(age);
            }
        }
        if let Some(nodes) = nodes {
            let unknown = |name: &&Arc<str>| renewals.age(name, expiry_age, loss_may_stand).is_none();
            self.nodes = count(nodes.count());
            self.without_lease = count(nodes.eligible().filter(unknown).count());
        }
        ages
    }

    /// Absence is never health: nodes are called connected when enough leases are renewed, or nothing is left to
    /// protect.
    fn outcome_by_leases(&self, loss_may_stand: bool, nodes: Option<&NodeIndex>) -> Outcome {
        let is_reached = |expired: u32, of: u32| expired >= required(of, self.rule.threshold);
        // A loss is ended neither by conditions that appear on silent nodes nor by nodes without a lease.
        let unknown = match loss_may_stand {
            true => self.absent + self.temporarily_excluded + self.without_lease,
            false => self.absent,
        };
        let all = self.candidates + unknown;
        let holds = is_reached(self.expired + self.unconfirmed + unknown, all);
        match (self.candidates, is_reached(self.expired, self.candidates)) {
            (0, _) if self.renewing == 0 && nodes.is_some_and(NodeIndex::nothing_left) => Outcome::Healthy,
            (0, _) if self.renewing == 0 => Outcome::Pending,
            (1, true) => Outcome::TooFewCandidates,
            (1.., true) => Outcome::LeasesExpired,
            _ if all > 0 && holds => Outcome::Pending,
            _ => Outcome::Healthy,
        }
    }
}

#[cfg(test)]
mod tests;
