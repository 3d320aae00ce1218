//! The series of every shoot, read from the verdicts at the scrape.

use std::collections::BTreeMap;
use std::sync::Arc;

use watchdog_runtime::metrics::{Collector, Exposition};

use crate::controller::prober::{Endpoint, ProbeContext};
use crate::controller::prober_manager::{ProberManager, VerdictStore};
use crate::domain::outcome::{Outcome, ShootPermission};
use crate::domain::renewals::is_notable;
use crate::metrics;

/// Reads the verdicts of this replica.
pub(crate) struct VerdictCollector {
    pub(crate) manager: Arc<ProberManager>,
    pub(crate) verdicts: VerdictStore,
    pub(crate) shared: Arc<ProbeContext>,
}

impl Collector for VerdictCollector {
    fn collect(&self, out: &mut Exposition) {
        self.collect_verdicts(out);
        self.collect_probers(out);
    }
}

impl VerdictCollector {
    fn collect_verdicts(&self, out: &mut Exposition) {
        let now = self.shared.now();
        let all = self.verdicts.snapshot();
        let mut outcomes: BTreeMap<&str, f64> = BTreeMap::new();
        let mut skipped: BTreeMap<&str, f64> = BTreeMap::new();
        let (mut ages, mut fractions, mut skews, mut zones) = (vec![], vec![], vec![], vec![]);
        let (mut unprotected, mut changed) = (vec![], vec![]);
        let mut stale = 0.0;
        for (shoot, verdict) in &all {
            *outcomes.entry(verdict.outcome.as_str()).or_default() += 1.0;
            if let Outcome::Skipped(reason) = &verdict.outcome {
                *skipped.entry(reason.as_str()).or_default() += 1.0;
                continue;
            }
            if is_unprotected(&verdict.outcome) {
                let labels = [("shoot", shoot.as_str()), ("outcome", verdict.outcome.as_str())];
                unprotected.push((labels, 1.0));
            }
            let shoot = [("shoot", shoot.as_str())];
            // Microseconds since 1970, far below 2^52.
            changed.push((shoot, verdict.outcome_since.0 as f64 / 1e6));
            ages.push((shoot, now.since(verdict.observed_at).as_secs_f64()));
            if now > verdict.valid_until {
                stale += 1.0;
            }
            let Some(evidence) = &verdict.evidence else {
                continue;
            };
            fractions.push((shoot, evidence.fraction()));
            if is_notable(evidence.largest_skew) {
                // Microseconds, far below 2^52.
                skews.push((shoot, evidence.largest_skew as f64 / 1e6));
            }
            let dead = evidence
                .zones
                .values()
                .filter(|z| z.candidates > 0 && z.expired == z.candidates)
                .count();
            if dead > 0 {
                zones.push((shoot, dead as f64));
            }
        }
        let none: [(&str, &str); 0] = [];
        out.family(
            &metrics::SHOOTS,
            outcomes
                .into_iter()
                .map(|(outcome, n)| ([("outcome", outcome)], n)),
        );
        out.family(
            &metrics::SKIPPED,
            skipped.into_iter().map(|(reason, n)| ([("reason", reason)], n)),
        );
        out.family(&metrics::VERDICT_STALE, [(none, stale)]);
        out.family(&metrics::VERDICT_AGE, ages);
        out.family(&metrics::UNPROTECTED, unprotected);
        out.family(&metrics::OUTCOME_CHANGED, changed);
        out.family(&metrics::EXPIRED_FRACTION, fractions);
        out.family(&metrics::CLOCK_SKEW, skews);
        out.family(&metrics::ZONES_EXPIRED, zones);
    }

    fn collect_probers(&self, out: &mut Exposition) {
        let none: [(&str, &str); 0] = [];
        out.family(&metrics::ACTIVE_PROBES, [(none, self.manager.active() as f64)]);
        let failures = self.manager.failures();
        let series = failures.iter().flat_map(|(shoot, counts)| {
            counts.iter().map(|((endpoint, reason), n)| {
                let endpoint = match endpoint {
                    Endpoint::Internal => "internal",
                    Endpoint::External => "external",
                };
                (
                    [
                        ("shoot", shoot.as_str()),
                        ("endpoint", endpoint),
                        ("reason", *reason),
                    ],
                    *n as f64,
                )
            })
        });
        out.family(&metrics::PROBE_FAILURES, series);
        let denied = self.manager.denied();
        let series = denied.iter().flat_map(|(shoot, missing)| {
            let labels = |permission: &ShootPermission| {
                [("shoot", shoot.as_str()), ("permission", permission.as_str())]
            };
            missing.iter().map(move |permission| (labels(permission), 1.0))
        });
        out.family(&metrics::SHOOT_PERMISSION_MISSING, series);
    }
}

/// Returns true if the nodes cannot be judged: a loss would lead to no scale-down.
const fn is_unprotected(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Pending | Outcome::ApiServerUnreachable | Outcome::Throttled | Outcome::Inconclusive => true,
        Outcome::Healthy
        | Outcome::LeasesExpired
        | Outcome::ExternalUnreachable
        | Outcome::TooFewCandidates
        | Outcome::Skipped(_) => false,
    }
}
