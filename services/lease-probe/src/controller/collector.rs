//! The series of every shoot, read from the verdicts at the scrape.

use std::collections::BTreeMap;
use std::sync::Arc;

use watchdog_api::eligibility::SkipReason;
use watchdog_runtime::metrics::{Collector, Exposition, ShootLabel};

use super::prober_manager::ProberManager;
use crate::domain::outcome::Outcome;
use crate::domain::verdict::is_notable;
use crate::metrics::{self, SkipReasonName};

/// Reads the verdicts of this replica.
pub(crate) struct VerdictCollector(pub(crate) Arc<ProberManager>);

impl Collector for VerdictCollector {
    fn collect(&self, out: &mut Exposition) {
        self.collect_verdicts(out);
        self.collect_probers(out);
    }
}

impl VerdictCollector {
    fn collect_verdicts(&self, out: &mut Exposition) {
        let Self(manager) = self;
        let now = manager.shared.now();
        let all = manager.verdicts.snapshot();
        let members = manager.members.borrow().clone();
        let mut outcomes: BTreeMap<&str, (&Outcome, f64)> = BTreeMap::new();
        let mut skipped: BTreeMap<SkipReasonName<'_>, f64> = BTreeMap::new();
        let (mut ages, mut fractions, mut skews, mut zones) = (vec![], vec![], vec![], vec![]);
        let (mut unhealthy, mut changed, mut eligible, mut too_short) = (vec![], vec![], vec![], vec![]);
        let (mut malformed, mut expired, mut refused) = (vec![], vec![], vec![]);
        for (shoot, verdict) in &all {
            let outcome = &verdict.outcome;
            let counted = f64::from(u8::from(members.counts(&manager.shared.identity, shoot)));
            outcomes.entry(outcome.as_str()).or_insert((outcome, 0.0)).1 += counted;
            if let Outcome::Skipped(reason) = outcome {
                *skipped.entry(SkipReasonName(reason.as_str())).or_default() += counted;
                if matches!(reason, SkipReason::Malformed(_)) {
                    malformed.push((ShootLabel(shoot), 1.0));
                }
                continue;
            }
            let shoot = ShootLabel(shoot);
            if *outcome != Outcome::Healthy {
                unhealthy.push(((shoot, outcome), 1.0));
            }
            // Microseconds since 1970, far below 2^52.
            changed.push((shoot, verdict.outcome_since.0 as f64 / 1e6));
            ages.push((shoot, now.since(verdict.observed_at).as_secs_f64()));
            if now > verdict.valid_until {
                expired.push((shoot, 1.0));
            }
            refused.extend({ verdict.refused.iter() }.map(|permission| ((shoot, *permission), 1.0)));
            let Some(evidence) = &verdict.evidence else {
                continue;
            };
            if evidence.grace_too_short {
                too_short.push((shoot, 1.0));
            }
            fractions.push((shoot, evidence.fraction()));
            eligible.extend(
                evidence
                    .eligible_fraction()
                    .filter(|fraction| *fraction < 1.0)
                    .map(|fraction| (shoot, fraction)),
            );
            if is_notable(evidence.largest_skew) {
                // Microseconds, far below 2^52.
                skews.push((shoot, evidence.largest_skew as f64 / 1e6));
            }
            let dead = evidence.zones.values().filter(|zone| zone.is_expired()).count();
            if dead > 0 {
                zones.push((shoot, dead as f64));
            }
        }
        out.family(&metrics::SHOOTS, outcomes.into_values());
        out.family(&metrics::SKIPPED, skipped);
        out.family(&metrics::SHOOT_MALFORMED, malformed);
        out.family(&metrics::VERDICT_EXPIRED, expired);
        out.family(&metrics::VERDICT_AGE, ages);
        out.family(&metrics::SHOOT_OUTCOME, unhealthy);
        out.family(&metrics::GRACE_TOO_SHORT, too_short);
        out.family(&metrics::OUTCOME_CHANGED, changed);
        out.family(&metrics::EXPIRED_FRACTION, fractions);
        out.family(&metrics::ELIGIBLE_FRACTION, eligible);
        out.family(&metrics::CLOCK_SKEW, skews);
        out.family(&metrics::ZONES_EXPIRED, zones);
        out.family(&metrics::SHOOT_PERMISSION_MISSING, refused);
    }

    fn collect_probers(&self, out: &mut Exposition) {
        let Self(manager) = self;
        out.family(&metrics::ACTIVE_PROBES, [((), manager.active() as f64)]);
        out.family(&metrics::ANSWER_BYTES, [((), manager.answer_bytes() as f64)]);
        let failures = manager.failures();
        let series = failures.iter().flat_map(|(shoot, counts)| {
            let counts = counts.iter();
            counts.map(|(labels, n)| ((ShootLabel(shoot), *labels), *n as f64))
        });
        out.family(&metrics::PROBE_FAILURES, series);
    }
}
