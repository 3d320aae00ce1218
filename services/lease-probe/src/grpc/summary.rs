//! The shoots of a seed in numbers.

use std::collections::BTreeMap;

use watchdog_proto::probe::v1 as pb;

/// Numbers of verdicts.
#[derive(Debug, Default)]
pub(super) struct VerdictCounts {
    shoots: u32,
    /// By the numbers of the enums.
    outcomes: BTreeMap<i32, u32>,
    skip_reasons: BTreeMap<i32, u32>,
}

impl VerdictCounts {
    pub(super) fn add(&mut self, verdict: &pb::Verdict) {
        self.shoots += 1;
        *self.outcomes.entry(verdict.outcome).or_default() += 1;
        if verdict.outcome() == pb::Outcome::Skipped {
            *self.skip_reasons.entry(verdict.skip_reason).or_default() += 1;
        }
    }

    pub(super) fn summary(self, replicas: usize) -> pb::SeedSummary {
        let outcomes = self.outcomes.into_iter();
        let skip_reasons = self.skip_reasons.into_iter();
        pb::SeedSummary {
            shoots: self.shoots,
            outcomes: outcomes
                .map(|(outcome, shoots)| pb::OutcomeCount { outcome, shoots })
                .collect(),
            skip_reasons: skip_reasons
                .map(|(skip_reason, shoots)| pb::SkipReasonCount { skip_reason, shoots })
                .collect(),
            replicas: u32::try_from(replicas).unwrap_or(u32::MAX),
        }
    }
}
