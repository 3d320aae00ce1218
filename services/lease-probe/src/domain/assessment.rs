//! What the leases of a shoot say, taken together.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::candidates::{Exclusion, Roster};
use super::moment::Moment;
use super::outcome::Outcome;
use super::renewals::{Freshness, ListedLease, Renewals};

/// The rule's numbers for one shoot.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rule {
    /// Age at which a lease is expired.
    pub expiry_age: Duration,
    /// Share of expired candidates at which the nodes count as cut off; more than 0, at most 1.
    pub threshold: f64,
}

/// The leases of a shoot as one probe listed them.
#[derive(Debug, Clone, Default)]
pub struct Leases {
    /// Those that could be decoded.
    pub leases: Vec<ListedLease>,
    /// How many could not.
    pub malformed: u32,
}

/// Candidates of one zone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ZoneCount {
    /// Leases that count as evidence.
    pub candidates: u32,
    /// Those of them that are expired.
    pub expired: u32,
}

/// What a verdict rests on.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Evidence {
    /// Nodes, when they were listed.
    pub nodes: u32,
    /// Leases, the malformed ones included.
    pub leases: u32,
    /// Leases that count as evidence.
    pub candidates: u32,
    /// Candidates that are expired.
    pub expired: u32,
    /// Candidates that look expired but were not watched for long enough.
    pub unconfirmed: u32,
    /// Leases that do not count, by reason.
    pub excluded: BTreeMap<Exclusion, u32>,
    /// Counts per zone, when the nodes were listed.
    pub zones: BTreeMap<Arc<str>, ZoneCount>,
    /// Age at which a lease is expired.
    pub expiry_age: Duration,
    /// Threshold of the rule.
    pub threshold: f64,
    /// The skew furthest from zero among the nodes, in microseconds.
    pub largest_skew: i64,
    /// The median skew of the nodes, in microseconds.
    pub typical_skew: i64,
}

impl Evidence {
    /// expired / candidates; 0 without candidates.
    #[must_use]
    pub fn fraction(&self) -> f64 {
        if self.candidates == 0 {
            0.0
        } else {
            f64::from(self.expired) / f64::from(self.candidates)
        }
    }
}

/// What follows from one look at the leases.
#[derive(Debug, Clone, PartialEq)]
pub struct Assessment {
    /// What was found.
    pub outcome: Outcome,
    /// What it rests on.
    pub evidence: Evidence,
    /// When the leases were judged.
    pub judged: Moment,
    /// When the threshold was crossed or would be if no lease were renewed from now on; none when it cannot be.
    pub crossing: Option<Moment>,
    /// When the first candidate that is fresh now expires unless it is renewed.
    pub next_expiry: Option<Moment>,
    /// When the nodes are to be listed ahead of a crossing; none when they need not be, or are known.
    pub look_ahead: Option<LookAhead>,
}

/// A crossing before which the nodes and machines are to be listed, so that only the leases are left to look at when it
/// comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LookAhead {
    /// The crossing, as if all leases counted.
    pub crossing: Moment,
    /// How long before it at most.
    pub window: Duration,
}

/// How many of `candidates` must be expired for the threshold to be reached: the smallest number whose share, as the
/// division rounds it, is not below.
#[must_use]
pub fn required(candidates: u32, threshold: f64) -> u32 {
    let reaches = |k: u32| f64::from(k) / f64::from(candidates) >= threshold;
    // The product may be rounded to either side of the true value: look at its neighbours.
    let estimate = (f64::from(candidates) * threshold).ceil();
    // In range: the threshold is at most 1.
    let estimate = (estimate as u32).clamp(1, candidates.max(1));
    (estimate.saturating_sub(1).max(1)..=estimate)
        .find(|k| reaches(*k))
        .unwrap_or(estimate)
}

/// Judges the leases at `now`. Without a roster every lease that can be judged counts as a candidate.
#[must_use]
pub fn assess(
    listed: &Leases,
    renewals: &Renewals,
    excluded: impl Fn(&str) -> Option<Exclusion>,
    roster: Option<&Roster>,
    rule: Rule,
    now: Moment,
) -> Assessment {
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let mut evidence = Evidence {
        nodes: roster.map_or(0, |roster| count(roster.len())),
        leases: count(listed.leases.len()).saturating_add(listed.malformed),
        expiry_age: rule.expiry_age,
        threshold: rule.threshold,
        largest_skew: renewals.largest_skew(),
        typical_skew: renewals.typical_skew(),
        ..Default::default()
    };
    if listed.malformed > 0 {
        evidence
            .excluded
            .insert(Exclusion::MalformedLease, listed.malformed);
    }
    let mut instants = Vec::with_capacity(listed.leases.len());
    let mut next_expiry: Option<Moment> = None;
    for lease in &listed.leases {
        let freshness = renewals.freshness(&lease.name, now, rule.expiry_age);
        let exclusion = excluded(&lease.name);
        let (None, Some(freshness)) = (exclusion, freshness) else {
            *evidence
                .excluded
                .entry(exclusion.unwrap_or(Exclusion::NoRenewTime))
                .or_default() += 1;
            continue;
        };
        evidence.candidates += 1;
        let mut zone = roster.map(|roster| evidence.zones.entry(roster.zone(&lease.name)).or_default());
        if let Some(zone) = &mut zone {
            zone.candidates += 1;
        }
        match freshness {
            Freshness::Fresh(until) => {
                next_expiry = Some(next_expiry.map_or(until, |next| next.min(until)));
                instants.push(until);
            }
            Freshness::Unconfirmed(until) => {
                evidence.unconfirmed += 1;
                next_expiry = Some(next_expiry.map_or(until, |next| next.min(until)));
                instants.push(until);
            }
            Freshness::Expired(since) => {
                evidence.expired += 1;
                if let Some(zone) = zone {
                    zone.expired += 1;
                }
                instants.push(since);
            }
        }
    }
    let required = required(evidence.candidates, rule.threshold) as usize;
    // One candidate is too little evidence for a loss: nothing to be on time for.
    let crossing = (evidence.candidates > 1).then(|| *instants.select_nth_unstable(required - 1).1);
    Assessment {
        outcome: outcome(&evidence, required),
        evidence,
        judged: now,
        crossing,
        next_expiry,
        look_ahead: None,
    }
}

fn outcome(evidence: &Evidence, required: usize) -> Outcome {
    let (expired, unconfirmed) = (evidence.expired as usize, evidence.unconfirmed as usize);
    if evidence.candidates == 0 {
        return Outcome::Healthy;
    }
    if expired >= required {
        return if evidence.candidates == 1 {
            Outcome::TooFewCandidates
        } else {
            Outcome::LeasesExpired
        };
    }
    if expired + unconfirmed >= required {
        Outcome::Pending
    } else {
        Outcome::Healthy
    }
}

#[cfg(test)]
#[path = "assessment_tests.rs"]
mod tests;
