//! The verdict on a shoot, as it is reported to clients.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use watchdog_api::duration::format;
use watchdog_api::unix_time::UnixTime;

use super::assessment::Assessment;
use super::endpoint::Endpoint;
use super::outcome::{Outcome, ProbeFailure, ShootPermission};

/// Clock skews below this are not reported: time service keeps hosts closer than that.
const NOTABLE_SKEW: i64 = 2_000_000;

/// The state of a shoot.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// As reported, after the thresholds.
    pub outcome: Outcome,
    /// The permissions that the shoot refused to the probe.
    pub refused: Vec<ShootPermission>,
    /// One sentence for people.
    pub message: String,
    /// The evidence for the outcome, if it rests on leases.
    pub evidence: Option<Arc<Assessment>>,
    /// When it was observed.
    pub observed_at: UnixTime,
    /// The end of its validity.
    pub valid_until: UnixTime,
    /// When the outcome last changed.
    pub outcome_since: UnixTime,
    /// Revision of the list of leases that the first verdict with this outcome rests on; 0 without one.
    pub first_list_revision: u64,
    /// Name of the replica that observed it.
    pub observer: Arc<str>,
    /// How often probes failed so far.
    pub failures: Arc<FailureCounts>,
}

/// Failures of the probes of one shoot, by endpoint and label.
pub type FailureCounts = BTreeMap<(Endpoint, &'static str), u64>;

impl Verdict {
    /// Returns true if the outcome is another one than that of the verdict before.
    #[must_use]
    pub fn is_turn(&self) -> bool {
        self.outcome_since == self.observed_at
    }

    /// Revision of the list of leases that it rests on; 0 without one.
    #[must_use]
    pub fn list_revision(&self) -> u64 {
        revision(self.evidence.as_deref())
    }
}

fn revision(evidence: Option<&Assessment>) -> u64 {
    evidence.map_or(0, |found| found.list_revision)
}

/// The sentence for an assessment.
#[must_use]
pub fn sentence(e: &Assessment, counting: Option<(u32, u32)>) -> String {
    let age = format(e.rule.expiry_age);
    let mut text = match e.outcome {
        Outcome::Healthy if e.candidates == 0 && e.leases == 0 => {
            "There are no leases, and no Machines or nodes to protect.".to_owned()
        }
        Outcome::Healthy if e.candidates == 0 => format!("None of {} leases is eligible.", e.leases),
        Outcome::Pending if e.renewing == 0 && e.candidates == 0 && e.temporarily_excluded == 0 => format!(
            "None of {} leases shows that a node is connected, but there are Machines or nodes to protect, or \
             lease-probe does not know yet whether there are any.",
            e.leases
        ),
        Outcome::Pending if e.temporarily_excluded > 0 && e.expired + e.unconfirmed == 0 => format!(
            "{} leases have not been renewed for {age}. Their nodes are excluded because of conditions or an in-place \
             update; it is unknown whether they are connected.",
            e.temporarily_excluded
        ),
        Outcome::Pending if e.is_only_undated() => format!(
            "This replica has observed a renewal of {} of {} eligible leases so far; more are needed to call the nodes \
             connected.",
            e.candidates - e.undated,
            e.candidates
        ),
        Outcome::Pending => format!(
            "{} of {} eligible leases are overdue. They do not count as expired: the API server may have been \
             down, or this replica has not observed a renewal of them lately.",
            e.expired + e.unconfirmed,
            e.candidates
        ),
        Outcome::TooFewCandidates => format!(
            "The only eligible lease has not been renewed for {age}. One lease is not enough evidence to scale down."
        ),
        Outcome::ExternalUnreachable => format!(
            "The external endpoint of the API server does not answer, and since then none of {} eligible leases has \
             been renewed.",
            e.candidates
        ),
        Outcome::Healthy if e.expired + e.unconfirmed == 0 => {
            format!("All {} eligible leases are renewed.", e.candidates)
        }
        _ => format!(
            "{} of {} eligible leases have not been renewed for {age}; the shoot counts as cut off at {:.0} %.",
            e.expired,
            e.candidates,
            e.rule.threshold * 100.0
        ),
    };
    if let (Outcome::Pending, Some(crossing)) = (&e.outcome, e.crossing)
        && crossing > e.judged
        && !e.is_only_undated()
    {
        let remaining = crossing.since(e.judged).as_secs_f64().ceil();
        text.push_str(&format!(
            " The loss is proven in {remaining:.0}s if the API server answers and none of them is renewed."
        ));
    }
    if let Some(zones) = expired_zones(e) {
        text.push_str(&format!(" All eligible leases in zone {zones} are expired."));
    }
    if e.eligible_fraction().is_some_and(|fraction| fraction < 0.5) {
        let left_out: Vec<String> = e
            .excluded
            .iter()
            .map(|(reason, count)| format!("{count} {}", reason.as_str()))
            .collect();
        if !left_out.is_empty() {
            text.push_str(&format!(
                " Most leases are not eligible: {}.",
                left_out.join(", ")
            ));
        }
    }
    if is_notable(e.largest_skew) {
        let direction = if e.largest_skew < 0 { "behind" } else { "ahead" };
        let skew = Duration::from_secs(e.largest_skew.unsigned_abs() / 1_000_000);
        text.push_str(&format!(
            " The clock of a node is at least {} {direction}; this was corrected.",
            format(skew)
        ));
    }
    if let Some((so_far, needed)) = counting {
        text.push_str(&format!(" This is probe {so_far} of {needed} in a row."));
    }
    if e.grace_too_short() {
        text.push_str(&format!(
            " The grace period of {} is too short: kube-controller-manager acts before a loss can be proven, so the \
             shoot is not protected.",
            format(e.rule.grace)
        ));
    }
    text
}

/// Returns true if a clock skew in microseconds is worth reporting.
#[must_use]
pub const fn is_notable(skew: i64) -> bool {
    skew.saturating_abs() >= NOTABLE_SKEW
}

/// The zones in which all candidates are expired, unless that is all zones or none.
fn expired_zones(evidence: &Assessment) -> Option<String> {
    let zones = evidence.zones.iter().filter(|(_, zone)| zone.is_expired());
    let names: Vec<&str> = zones.map(|(name, _)| &**name).collect();
    (!names.is_empty() && names.len() < evidence.zones.len()).then(|| names.join(", "))
}

/// Makes verdicts about one shoot.
#[derive(Debug, Clone)]
pub struct VerdictBuilder {
    observer: Arc<str>,
    failures: Arc<FailureCounts>,
    last_reported: Outcome,
    since: UnixTime,
    first_list_revision: u64,
    // The finding of the last probe, how many in a row have found it, and when the last of them was counted.
    finding: Option<Outcome>,
    in_a_row: u32,
    counted_at: UnixTime,
}

impl VerdictBuilder {
    /// For a shoot about which nothing was reported yet.
    #[must_use]
    pub fn new(observer: Arc<str>, now: UnixTime) -> Self {
        Self {
            observer,
            failures: Arc::default(),
            last_reported: Outcome::Pending,
            since: now,
            first_list_revision: 0,
            finding: None,
            in_a_row: 0,
            counted_at: UnixTime(0),
        }
    }

    /// Notes a finding and returns the outcome to report. While fewer probes in a row than `needed` have found it, that
    /// is the last loss or recovery that was reported, or `Pending` if the last outcome was neither; then both numbers
    /// come with it. Healthy probes count a renew interval apart, so that each rests on other renewals than the one
    /// before.
    pub fn note(
        &mut self,
        found: &Outcome,
        needed: u32,
        now: UnixTime,
        renew_interval: Duration,
    ) -> (Outcome, Option<(u32, u32)>) {
        let repeated = self.finding.as_ref() == Some(found);
        if !repeated {
            self.finding = Some(found.clone());
            self.in_a_row = 0;
        }
        let too_soon = *found == Outcome::Healthy && now.since(self.counted_at) < renew_interval;
        if !(repeated && too_soon) {
            self.in_a_row = self.in_a_row.saturating_add(1);
            self.counted_at = now;
        }
        let last = &self.last_reported;
        if found == last || self.in_a_row >= needed {
            return (found.clone(), None);
        }
        let settled = *last == Outcome::Healthy || last.is_loss();
        let outcome = if settled { last.clone() } else { Outcome::Pending };
        (outcome, Some((self.in_a_row, needed)))
    }

    /// Counts a failed request to an endpoint of the shoot.
    pub fn count(&mut self, endpoint: Endpoint, failure: &ProbeFailure) {
        let key = (endpoint, failure.as_str());
        *Arc::make_mut(&mut self.failures).entry(key).or_default() += 1;
    }

    /// A verdict that is reported now, and valid until it is known when the next probe is due.
    pub fn report(
        &mut self,
        outcome: Outcome,
        message: String,
        evidence: Option<Arc<Assessment>>,
        observed_at: UnixTime,
    ) -> Verdict {
        if self.last_reported != outcome {
            self.since = observed_at;
            self.first_list_revision = revision(evidence.as_deref());
            self.last_reported = outcome.clone();
        }
        Verdict {
            outcome,
            refused: Vec::new(),
            message,
            evidence,
            observed_at,
            valid_until: observed_at,
            outcome_since: self.since,
            first_list_revision: self.first_list_revision,
            observer: self.observer.clone(),
            failures: self.failures.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use Outcome::{Healthy as H, Inconclusive as I, LeasesExpired as L, Pending as P};

    use super::super::assessment::ZoneCount;
    use super::super::candidates::Exclusion;
    use super::super::fixtures::nothing_found;
    use super::*;

    const RENEW_INTERVAL: Duration = Duration::from_secs(10);

    /// The numbers of probes in a row that must find a loss and a recovery.
    type Thresholds = (u32, u32);

    /// The reported outcomes of probes that find `found`, `apart` seconds apart.
    fn reported(found: &[Outcome], apart: u64, (of_loss, of_recovery): Thresholds) -> Vec<Outcome> {
        let mut now = UnixTime(1_000_000_000_000);
        let mut verdicts = VerdictBuilder::new("probe".into(), now);
        let mut all = Vec::new();
        for found in found {
            now = now.after(Duration::from_secs(apart));
            let needed = match found {
                L => of_loss,
                H => of_recovery,
                _ => 1,
            };
            let (reported, _) = verdicts.note(found, needed, now, RENEW_INTERVAL);
            verdicts.last_reported = reported.clone();
            all.push(reported);
        }
        all
    }

    const ONE: Thresholds = (1, 1);

    const MORE: Thresholds = (3, 2);

    #[test]
    fn thresholds_ask_for_probes_in_a_row() {
        assert_eq!(reported(&[H, L, H], 10, ONE), [H, L, H]);
        assert_eq!(reported(&[H, H, L, L, L, H, H], 10, MORE), [P, H, H, H, L, L, H]);
        assert_eq!(
            reported(&[H, H, L, L, I, L, L, L], 10, MORE),
            [P, H, H, H, I, P, P, L],
            "the row is broken"
        );
    }

    /// While a loss stands, probes come every two seconds: each renewal must not count five times.
    #[test]
    fn health_counts_once_a_renew_interval() {
        assert_eq!(
            reported(&[L, L, L, H, H, H, H, H], 2, MORE),
            [P, P, L, L, L, L, L, L]
        );
        assert_eq!(reported(&[L, L, L, H, H, H, H, H, H], 2, MORE).last(), Some(&H));
        assert_eq!(reported(&[L, H, L, H], 2, ONE), [L, H, L, H]);
    }

    #[test]
    fn an_outcome_keeps_the_time_and_the_list_with_which_it_began() {
        let at = |second: i64| UnixTime(second * 1_000_000);
        let mut verdicts = VerdictBuilder::new("probe".into(), at(0));
        for (second, outcome, revision, since) in [
            (10, L, 70, (10, 70)),
            (20, L, 80, (10, 70)),
            (30, I, 0, (30, 0)),
            (40, L, 90, (40, 90)),
        ] {
            let found = Assessment {
                list_revision: revision,
                ..nothing_found()
            };
            let verdict = verdicts.report(outcome, String::new(), Some(Arc::new(found)), at(second));
            assert_eq!(verdict.list_revision(), revision);
            let (began, first) = since;
            assert_eq!(
                (verdict.outcome_since, verdict.first_list_revision),
                (at(began), first)
            );
        }
    }

    /// The sentence for a list in which two of four eligible leases are expired.
    fn said(outcome: Outcome, crossing: Option<i64>) -> String {
        let assessment = Assessment {
            outcome,
            candidates: 4,
            expired: 2,
            crossing: crossing.map(|seconds| UnixTime(seconds * 1_000_000)),
            ..nothing_found()
        };
        sentence(&assessment, None)
    }

    #[test]
    fn the_sentence_says_what_was_found() {
        let external = said(Outcome::ExternalUnreachable, None);
        assert!(
            external.starts_with("The external endpoint of the API server does not answer"),
            "{external}"
        );
        assert!(external.contains("none of 4 eligible leases"), "{external}");
        let pending = said(P, None);
        assert!(
            pending.starts_with("2 of 4 eligible leases are overdue."),
            "{pending}"
        );
        let proven = " The loss is proven in 7s if the API server answers and none of them is renewed.";
        assert_eq!(said(P, Some(7)), format!("{pending}{proven}"));
        assert_eq!(said(P, Some(0)), pending, "not a second from now");
    }

    #[test]
    fn the_sentence_says_what_few_eligible_leases_show() {
        let few = |outcome, candidates| Assessment {
            outcome,
            leases: 11,
            candidates,
            ..nothing_found()
        };
        let excluded = Assessment {
            temporarily_excluded: 3,
            ..few(P, 0)
        };
        for (found, begin) in [
            (few(H, 0), "None of 11 leases is eligible."),
            (few(P, 0), "None of 11 leases shows that a node is connected, but"),
            (
                excluded,
                "3 leases have not been renewed for 30s. Their nodes are excluded",
            ),
            (
                few(Outcome::TooFewCandidates, 1),
                "The only eligible lease has not been",
            ),
        ] {
            let text = sentence(&found, None);
            assert!(text.starts_with(begin), "{text}");
        }
    }

    /// node-problem-detector may leave a condition True after the repair, on every node of a pool.
    #[test]
    fn the_sentence_says_how_many_leases_are_left_out_and_why_if_it_rests_on_few() {
        let left_out = |candidates| {
            let found = Assessment {
                leases: 6,
                candidates,
                excluded: [(Exclusion::UnhealthyCondition, 6 - candidates)].into(),
                ..nothing_found()
            };
            sentence(&found, None)
        };
        assert_eq!(left_out(3), "All 3 eligible leases are renewed.");
        let most = "Most leases are not eligible: 4 with an unhealthy node condition.";
        assert_eq!(left_out(2), format!("All 2 eligible leases are renewed. {most}"));
    }

    #[test]
    fn the_sentence_names_dead_zones_unless_all_are() {
        let said = |expired: [u32; 3]| {
            let zone = |(name, expired): (&str, u32)| {
                let candidates = 2;
                (name.into(), ZoneCount { candidates, expired })
            };
            let found = Assessment {
                candidates: 6,
                zones: ["a", "b", "c"].into_iter().zip(expired).map(zone).collect(),
                ..nothing_found()
            };
            sentence(&found, None)
        };
        let healthy = "All 6 eligible leases are renewed.";
        let dead = |zones| format!("{healthy} All eligible leases in zone {zones} are expired.");
        assert_eq!(said([1, 2, 0]), dead("b"));
        assert_eq!(said([2, 1, 2]), dead("a, c"));
        assert_eq!([said([1, 1, 1]), said([2, 2, 2])], [healthy, healthy]);
    }

    const NOTHING: &str = "There are no leases, and no Machines or nodes to protect.";

    #[test]
    fn the_sentence_says_whether_a_clock_is_behind_or_ahead() {
        let skewed = |seconds: i64| {
            let found = Assessment {
                largest_skew: seconds * 1_000_000,
                ..nothing_found()
            };
            sentence(&found, None)
        };
        let clock = |how| format!("{NOTHING} The clock of a node is at least {how}; this was corrected.");
        assert_eq!(skewed(-100), clock("1m40s behind"));
        assert_eq!(skewed(60), clock("1m0s ahead"));
        assert_eq!(skewed(1), NOTHING);
    }
}
