//! The series of every shoot, read from the verdicts at the scrape.

use std::collections::BTreeMap;
use std::sync::Arc;

use watchdog_api::eligibility::SkipReason;
use watchdog_runtime::metrics::{Collector, Exposition, ShootLabel};

use super::prober_manager::ProberManager;
use crate::domain::outcome::Outcome;
use crate::domain::verdict::{Verdict, is_notable};
use crate::metrics::{self, FailureReason, SkipReasonName};

/// Reads the verdicts of this replica.
pub(crate) struct VerdictCollector(pub(crate) Arc<ProberManager>);

impl Collector for VerdictCollector {
    fn collect(&self, out: &mut Exposition) {
        let snapshot = self.0.verdicts.snapshot();
        let all: Vec<_> = { snapshot.iter() }
            .map(|(shoot, verdict)| (ShootLabel(shoot), &**verdict))
            .collect();
        self.collect_numbers(out, &all);
        self.collect_verdicts(out, &all);
    }
}

/// The value of each shoot that has one.
fn values<'a, T>(
    shoots: &[(ShootLabel<'a>, &'a T)],
    value: impl Fn(&T) -> Option<f64>,
) -> impl Iterator<Item = (ShootLabel<'a>, f64)> {
    { shoots.iter() }.filter_map(move |(shoot, of)| Some((*shoot, value(of)?)))
}

impl VerdictCollector {
    /// Totals. Of its witnesses, one counts each shoot.
    fn collect_numbers(&self, out: &mut Exposition, all: &[(ShootLabel<'_>, &Verdict)]) {
        let (me, members) = (&self.0.shared.identity, self.0.members.borrow().clone());
        let mut outcomes: BTreeMap<&str, (&Outcome, f64)> = BTreeMap::new();
        let mut skipped: BTreeMap<SkipReasonName<'_>, f64> = BTreeMap::new();
        for (ShootLabel(shoot), verdict) in all {
            let outcome = &verdict.outcome;
            let counted = f64::from(u8::from(members.counts(me, shoot)));
            outcomes.entry(outcome.as_str()).or_insert((outcome, 0.0)).1 += counted;
            if let Outcome::Skipped(reason) = outcome {
                *skipped.entry(SkipReasonName(reason.as_str())).or_default() += counted;
            }
        }
        out.family(&metrics::SHOOTS, outcomes.into_values());
        out.family(&metrics::SKIPPED, skipped);
        out.family(&metrics::ACTIVE_PROBES, [((), self.0.active() as f64)]);
        let bytes = self.0.shared.limits.answer_bytes();
        out.family(&metrics::ANSWER_BYTES, [((), bytes as f64)]);
    }

    fn collect_verdicts(&self, out: &mut Exposition, all: &[(ShootLabel<'_>, &Verdict)]) {
        let now = self.0.shared.now();
        let is_probed =
            |(_, verdict): &&(ShootLabel<'_>, &Verdict)| !matches!(verdict.outcome, Outcome::Skipped(_));
        let probed: Vec<_> = all.iter().filter(is_probed).copied().collect();
        let evidence: Vec<_> = { probed.iter() }
            .filter_map(|(shoot, verdict)| Some((*shoot, verdict.evidence.as_deref()?)))
            .collect();
        let is = |holds: bool| holds.then_some(1.0);
        // Microseconds since 1970 are far below 2^52.
        let seconds = |micros: i64| micros as f64 / 1e6;
        let malformed = |outcome: &Outcome| matches!(outcome, Outcome::Skipped(SkipReason::Malformed(_)));
        out.family(
            &metrics::SHOOT_MALFORMED,
            values(all, |v| is(malformed(&v.outcome))),
        );
        out.family(
            &metrics::VERDICT_EXPIRED,
            values(&probed, |v| is(now > v.valid_until)),
        );
        let age = values(&probed, |v| Some(now.since(v.observed_at).as_secs_f64()));
        out.family(&metrics::VERDICT_AGE, age);
        let unhealthy = { probed.iter() }.filter(|(_, v)| v.outcome != Outcome::Healthy);
        let unhealthy = unhealthy.map(|(shoot, v)| ((*shoot, &v.outcome), 1.0));
        out.family(&metrics::SHOOT_OUTCOME, unhealthy);
        out.family(
            &metrics::GRACE_TOO_SHORT,
            values(&evidence, |e| is(e.grace_too_short())),
        );
        let changed = values(&probed, |v| Some(seconds(v.outcome_since.0)));
        out.family(&metrics::OUTCOME_CHANGED, changed);
        out.family(
            &metrics::EXPIRED_FRACTION,
            values(&evidence, |e| Some(e.fraction())),
        );
        let eligible = values(&evidence, |e| e.eligible_fraction().filter(|share| *share < 1.0));
        out.family(&metrics::ELIGIBLE_FRACTION, eligible);
        let skews = values(&evidence, |e| {
            is_notable(e.largest_skew).then(|| seconds(e.largest_skew))
        });
        out.family(&metrics::CLOCK_SKEW, skews);
        let dead_zones = values(&evidence, |e| {
            let dead = e.zones.values().filter(|zone| zone.is_expired()).count();
            (dead > 0).then_some(dead as f64)
        });
        out.family(&metrics::ZONES_EXPIRED, dead_zones);
        let refused =
            { probed.iter() }.flat_map(|(shoot, v)| v.refused.iter().map(|one| ((*shoot, *one), 1.0)));
        out.family(&metrics::SHOOT_PERMISSION_MISSING, refused);
        let failures = all.iter().flat_map(|(shoot, v)| {
            let counts = v.failures.iter();
            counts.map(|((endpoint, reason), n)| ((*shoot, (*endpoint, FailureReason(reason))), *n as f64))
        });
        out.family(&metrics::PROBE_FAILURES, failures);
    }
}
