//! What is told about a shoot.

use std::sync::Arc;
use std::time::Duration;

use watchdog_api::eligibility::SkipReason;

use super::assessment::{Assessment, Evidence};
use super::moment::Moment;
use super::outcome::{Failure, Outcome};
use super::renewals::{is_notable, magnitude};

/// The state of a shoot.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// What was found.
    pub outcome: Outcome,
    /// Why a probe failed, as a label; empty when it did not.
    pub failure: &'static str,
    /// One sentence for people.
    pub message: String,
    /// What it rests on.
    pub evidence: Option<Arc<Evidence>>,
    /// When it was observed.
    pub observed_at: Moment,
    /// Until when it may be acted upon.
    pub valid_until: Moment,
    /// When the outcome last changed.
    pub outcome_since: Moment,
    /// Which replica observed it.
    pub observer: Arc<str>,
    /// The trace that the probe which changed the outcome began, if it is traced.
    pub traceparent: Option<Arc<str>>,
}

/// How many probes in a row a turn takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thresholds {
    /// `failureThreshold`: losses in a row.
    pub failure: u32,
    /// `successThreshold`: healthy probes in a row.
    pub success: u32,
}

/// Counts probes in a row with the same finding.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Streak {
    finding: Option<Outcome>,
    length: u32,
}

/// What the thresholds make of a finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn {
    /// What is to be told.
    pub outcome: Outcome,
    /// Whether more probes in a row are needed before what was found is told: so many of so many.
    pub counting: Option<(u32, u32)>,
}

impl Streak {
    /// Notes a finding. A loss or recovery is told only after as many probes in a row as the thresholds ask for;
    /// until then the last of the two stays told, or `Pending` if there is none. Everything else is told at once, and
    /// breaks the row.
    pub fn note(&mut self, found: &Outcome, told: &Outcome, thresholds: Thresholds) -> Turn {
        if self.finding.as_ref() == Some(found) {
            self.length = self.length.saturating_add(1);
        } else {
            self.finding = Some(found.clone());
            self.length = 1;
        }
        let needed = match found {
            Outcome::Healthy => thresholds.success,
            loss if loss.is_loss() => thresholds.failure,
            _ => 1,
        };
        if found == told || self.length >= needed {
            return Turn {
                outcome: found.clone(),
                counting: None,
            };
        }
        let settled = *told == Outcome::Healthy || told.is_loss();
        let outcome = if settled { told.clone() } else { Outcome::Pending };
        Turn {
            outcome,
            counting: Some((self.length, needed)),
        }
    }
}

/// The sentence for an assessment.
#[must_use]
pub fn sentence(assessment: &Assessment, counting: Option<(u32, u32)>) -> String {
    let e = &assessment.evidence;
    let age = watchdog_api::duration::format(e.expiry_age);
    let mut text = match assessment.outcome {
        Outcome::Healthy if e.candidates == 0 && e.leases == 0 => "There are no leases.".to_owned(),
        Outcome::Healthy if e.candidates == 0 => format!("None of {} leases counts as evidence.", e.leases),
        Outcome::Pending => format!(
            "{} of {} leases look expired, but were not watched for long enough yet since the first look, or since the \
             API server last failed to answer.",
            e.expired + e.unconfirmed,
            e.candidates
        ),
        Outcome::TooFewCandidates => format!(
            "The only lease that counts as evidence was not renewed for {age}: too little to scale down on."
        ),
        _ => format!(
            "{} of {} leases that count as evidence were not renewed for {age}; from {:.0} % the nodes count as cut off.",
            e.expired,
            e.candidates,
            e.threshold * 100.0
        ),
    };
    let dead: Vec<&str> = e
        .zones
        .iter()
        .filter(|(_, zone)| zone.candidates > 0 && zone.expired == zone.candidates)
        .map(|(name, _)| &**name)
        .collect();
    if !dead.is_empty() && dead.len() < e.zones.len() {
        text.push_str(&format!(" All of them in zone {} are expired.", dead.join(", ")));
    }
    if is_notable(e.largest_skew) {
        let direction = if e.largest_skew < 0 { "behind" } else { "ahead" };
        let skew = watchdog_api::duration::format(Duration::from_secs(magnitude(e.largest_skew).as_secs()));
        text.push_str(&format!(
            " The clock of a node runs at least {skew} {direction}; this was corrected."
        ));
    }
    if let Some((so_far, needed)) = counting {
        text.push_str(&format!(" This is probe {so_far} of {needed} in a row."));
    }
    text
}

/// Makes verdicts about one shoot.
#[derive(Debug, Clone)]
pub struct Teller {
    observer: Arc<str>,
    told: Outcome,
    since: Moment,
}

impl Teller {
    /// For a shoot about which nothing was told yet.
    #[must_use]
    pub const fn new(observer: Arc<str>, now: Moment) -> Self {
        Self {
            observer,
            told: Outcome::Pending,
            since: now,
        }
    }

    /// What was told last.
    #[must_use]
    pub const fn told(&self) -> &Outcome {
        &self.told
    }

    /// A verdict that rests on leases.
    pub fn assessed(
        &mut self,
        outcome: Outcome,
        message: String,
        evidence: Evidence,
        observed_at: Moment,
        valid_until: Moment,
    ) -> Verdict {
        self.tell(
            outcome,
            "",
            message,
            Some(Arc::new(evidence)),
            observed_at,
            valid_until,
        )
    }

    /// A verdict that says why there is none.
    pub fn failed(&mut self, failure: &Failure, observed_at: Moment, valid_until: Moment) -> Verdict {
        self.tell(
            failure.outcome(),
            failure.as_str(),
            failure.to_string(),
            None,
            observed_at,
            valid_until,
        )
    }

    /// A verdict about a shoot that is not probed. It holds until something changes.
    pub fn skipped(&mut self, reason: &SkipReason, now: Moment) -> Verdict {
        self.tell(
            Outcome::Skipped(reason.clone()),
            "",
            reason.to_string(),
            None,
            now,
            now,
        )
    }

    /// A verdict about a shoot whose first probe has not come to a result yet.
    pub fn pending(&mut self, now: Moment) -> Verdict {
        self.tell(
            Outcome::Pending,
            "",
            "The first probe has not come to a result yet.".to_owned(),
            None,
            now,
            now,
        )
    }

    fn tell(
        &mut self,
        outcome: Outcome,
        failure: &'static str,
        message: String,
        evidence: Option<Arc<Evidence>>,
        observed_at: Moment,
        valid_until: Moment,
    ) -> Verdict {
        if self.told != outcome {
            self.since = observed_at;
            self.told = outcome.clone();
        }
        Verdict {
            outcome,
            failure,
            message,
            evidence,
            observed_at,
            valid_until,
            outcome_since: self.since,
            observer: self.observer.clone(),
            traceparent: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(found: &[Outcome], thresholds: Thresholds) -> Vec<Outcome> {
        let mut streak = Streak::default();
        let mut told = Outcome::Pending;
        let mut all = Vec::new();
        for found in found {
            told = streak.note(found, &told, thresholds).outcome;
            all.push(told.clone());
        }
        all
    }

    #[test]
    fn thresholds_ask_for_probes_in_a_row() {
        use Outcome::{Healthy as H, Inconclusive as I, LeasesExpired as L, Pending as P};
        let one = Thresholds {
            failure: 1,
            success: 1,
        };
        assert_eq!(turns(&[H, L, H], one), [H, L, H]);
        let more = Thresholds {
            failure: 3,
            success: 2,
        };
        assert_eq!(turns(&[H, H, L, L, L, H, H], more), [P, H, H, H, L, L, H]);
        assert_eq!(
            turns(&[H, H, L, L, I, L, L, L], more),
            [P, H, H, H, I, P, P, L],
            "the row is broken"
        );
    }
}
