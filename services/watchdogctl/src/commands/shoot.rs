//! `shoot`: why a shoot is where it is.

use std::collections::BTreeMap;

use serde::Serialize;
use watchdog_client::wire::micros;
use watchdog_proto::probe::v1::{Evidence, ExclusionCount, Outcome, Verdict};
use watchdog_proto::scaling::v1::{Direction, PlanScalingResponse, ResourceScaling, ShootScaling};

use super::WrittenAnswer;
use super::plan;
use crate::api_message::ApiMessage;
use crate::connect::ProgramDialer;
use crate::error::{CommandError, CommandResult, WRONG};
use crate::program::Program;
use crate::render::incident::Prevention;
use crate::render::table::TextTable;
use crate::render::{AnswerGaps, Frame, Style, cells, incident, text};

/// All that the programs report about a shoot.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ShootExplanation {
    pub(crate) shoot: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) verdict: Option<ApiMessage<Verdict>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) scaling: Option<ApiMessage<ShootScaling>>,
    /// Of the current direction; none while the shoot is held, and in reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) plan: Option<ApiMessage<PlanScalingResponse>>,
    /// By the name of each incident what that would have cost; only in reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prevented: Option<BTreeMap<&'static str, Prevention>>,
    #[serde(flatten)]
    pub(crate) gaps: AnswerGaps,
}

/// The explanation of a shoot, with what would happen now.
pub(crate) async fn read(dialer: &ProgramDialer, name: &str, frame: &Frame) -> CommandResult<WrittenAnswer> {
    let mut found = read_reports(dialer, name).await?;
    if let Some(scaling) = &found.scaling
        && let direction @ (Direction::Down | Direction::Up) = scaling.direction()
    {
        let plan = plan::of_direction(dialer, name, direction).await;
        found.plan = found.gaps.answered(Program::ScalingCoordinator.as_str(), plan);
    }
    Ok(WrittenAnswer {
        code: found.gaps.code(),
        ..WrittenAnswer::of(frame, found.text(frame), found)?
    })
}

/// The reports of both programs, also if one of them does not answer.
pub(crate) async fn read_reports(dialer: &ProgramDialer, name: &str) -> CommandResult<ShootExplanation> {
    let (verdict, scaling) = tokio::join!(dialer.verdict(name), dialer.scaling(name));
    // A shoot that a program does not know is an error. A program that is away, or whose address is not given, hides
    // nothing of the other one.
    let errors: Vec<&CommandError> = verdict
        .as_ref()
        .err()
        .into_iter()
        .chain(scaling.as_ref().err())
        .collect();
    let refused = errors.iter().find(|error| error.code == WRONG);
    if let Some(error) = refused.or_else(|| errors.first().filter(|_| errors.len() == 2)) {
        return Err((*error).clone());
    }
    let mut found = ShootExplanation {
        shoot: name.to_owned(),
        ..ShootExplanation::default()
    };
    let (probe, coordinator) = (Program::LeaseProbe, Program::ScalingCoordinator);
    if let Some(answer) = found.gaps.answered(probe.as_str(), verdict) {
        found.gaps.add_missing(probe, answer.completeness.as_ref());
        found.verdict = answer.verdict.map(ApiMessage);
    }
    if let Some(answer) = found.gaps.answered(coordinator.as_str(), scaling) {
        found.gaps.add_missing(coordinator, answer.completeness.as_ref());
        found.scaling = answer.scaling.map(ApiMessage);
    }
    Ok(found)
}

impl ShootExplanation {
    /// The first lines: the shoot, the time, and what is missing.
    pub(crate) fn head(&self, frame: &Frame) -> String {
        let shoot = frame.paint(Style::Bold, &self.shoot);
        let now = text::day_and_clock(frame.now);
        format!("{shoot}  {now}\n{}", self.gaps.lines(frame))
    }

    fn text(&self, frame: &Frame) -> String {
        let mut out = self.head(frame);
        if let Some(verdict) = &self.verdict {
            out.push_str(&frame.section("VERDICT", &verdict_lines(verdict, frame)));
            if let Some(evidence) = &verdict.evidence {
                out.push_str(&frame.section("EVIDENCE", &evidence_lines(evidence, frame)));
            }
            out.push_str(&frame.section("DECIDING RULE", &format!("  {}\n", rule(verdict))));
        }
        if let Some(scaling) = &self.scaling {
            out.push_str(&frame.section("SCALING", &scaling_lines(scaling, frame)));
            let now = match &self.plan {
                Some(plan) => plan::levels(plan, scaling.direction(), scaling, frame),
                None => "Nothing: the shoot is held.\n".to_owned(),
            };
            out.push_str(&frame.section("WHAT WOULD HAPPEN NOW", &format!("  {now}")));
            out.push_str(&frame.section("INCIDENTS", &incident::lines(scaling, frame)));
        }
        out
    }
}

fn verdict_lines(verdict: &Verdict, frame: &Frame) -> String {
    let name = verdict.outcome().as_str_name();
    let outcome = frame.paint(cells::style(name), &text::value(name));
    let since = frame.since(verdict.outcome_change_time);
    let valid = TextTable::of([verdict])
        .indented(2)
        .column("VALID FOR", |verdict| cells::valid(verdict))
        .column("UNTIL", |verdict| {
            let expire_time = verdict
                .expire_time
                .filter(|_| verdict.outcome() != Outcome::Skipped);
            text::sent_clock(expire_time, frame.now)
        })
        .column("OBSERVED", |verdict| {
            format!("{} ago", text::sent_duration(verdict.age))
        })
        .column("BY", |verdict| verdict.observer.clone());
    let message = &verdict.message;
    format!("  {outcome} since {since}\n  {message}\n{}", valid.render(frame))
}

pub(crate) fn evidence_lines(evidence: &Evidence, frame: &Frame) -> String {
    let mut out = format!(
        "  expired {}, threshold {}; {} leases, {} nodes, {} unconfirmed\n",
        text::share(evidence),
        text::percent(evidence.threshold),
        evidence.leases,
        text::shown(evidence.nodes),
        evidence.unconfirmed,
    );
    out.push_str(&format!(
        "  a lease expires at an age of {}; largest clock skew of a node {:.1} s\n",
        text::sent_duration(evidence.expiry_age),
        micros(evidence.largest_skew.as_ref()) as f64 / 1e6,
    ));
    let zones = TextTable::of(&evidence.zones)
        .indented(2)
        .column("ZONE", |zone| text::zone(zone).to_owned())
        .column("EXPIRED", |zone| zone.expired.to_string())
        .column("CANDIDATES", |zone| zone.candidates.to_string());
    out.push_str(&zones.after("", frame));
    let shown = |one: &ExclusionCount| format!("{} {}", one.leases, text::value(one.reason().as_str_name()));
    let excluded: Vec<String> = evidence.excluded.iter().map(shown).collect();
    if !excluded.is_empty() {
        out.push_str(&format!("  not counted: {}\n", excluded.join(", ")));
    }
    out
}

/// The rule that decided, and what follows from it.
pub(crate) fn rule(verdict: &Verdict) -> String {
    let evidence = verdict.evidence.clone().unwrap_or_default();
    let share = evidence.expired_fraction.map(text::percent);
    let share = share.unwrap_or_else(|| "none".to_owned());
    let threshold = text::percent(evidence.threshold);
    let reason = text::value(verdict.skip_reason().as_str_name());
    let (why, direction) = match verdict.outcome() {
        Outcome::Healthy => (
            format!(
                "The share of expired leases ({share}) is below the threshold ({threshold}): the dependants may run"
            ),
            "up",
        ),
        Outcome::LeasesExpired => (
            format!(
                "The share of expired leases ({share}) has reached the threshold ({threshold}): the nodes are cut off"
            ),
            "down",
        ),
        Outcome::ExternalUnreachable => (
            "The external endpoint of the API server does not answer and no eligible lease was renewed for 1.25 renew \
             intervals since: the nodes are cut off"
                .to_owned(),
            "down",
        ),
        Outcome::Skipped => (format!("The shoot is not probed ({reason})"), "hold"),
        other => (inconclusive(other).to_owned(), "hold"),
    };
    format!("{why}. Direction: {direction}.")
}

/// Why an outcome says nothing about the nodes.
const fn inconclusive(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::ApiServerUnreachable => {
            "The API server does not answer, so the state of the nodes is unknown"
        }
        Outcome::Throttled => "The API server answered 429; lease-probe waits",
        Outcome::Inconclusive => "The API server answers, but leases, nodes or Machines could not be read",
        Outcome::TooFewCandidates => "A single lease is eligible and it is expired: too little evidence",
        _ => {
            "No result yet, or it is not proven that the kubelets are cut off, because the API server may have been \
             down"
        }
    }
}

fn scaling_lines(found: &ShootScaling, frame: &Frame) -> String {
    let held_down = if found.meltdown_protection_active {
        "; dependants are held down"
    } else {
        ""
    };
    let why = match found.direction() {
        Direction::Hold => format!(" ({})", text::value(found.hold_reason().as_str_name())),
        _ => String::new(),
    };
    let mut out = format!(
        "  {}{why} since {}, {}, level {}; reported by {}{held_down}\n  {}\n",
        text::value(found.direction().as_str_name()),
        frame.since(found.direction_change_time),
        text::value(found.state().as_str_name()),
        text::shown(found.level),
        found.replica,
        found.reason,
    );
    if cells::is_unprotected(found) {
        let (mode, source) = (text::value(found.mode().as_str_name()), text::mode_source(found));
        out.push_str(&format!("  not protected: mode {mode}, {source}\n"));
    }
    if let Some(at) = text::timestamp(found.retry_time) {
        out.push_str(&format!("  next try at {}\n", text::clock(at, frame.now)));
    }
    out + &resources(&found.resources, frame)
}

/// The dependants, in the order of their levels.
fn resources(resources: &[ResourceScaling], frame: &Frame) -> String {
    let mut ordered: Vec<&ResourceScaling> = resources.iter().collect();
    ordered.sort_by_key(|resource| resource.level);
    TextTable::of(ordered)
        .indented(2)
        .column("DEPENDANT", |one| text::resource(one.resource.as_ref()))
        .column("LEVEL", |one| text::shown(one.level))
        .column("STATE", |one| cells::value(one.state().as_str_name()))
        .column("REPLICAS", |one| text::shown(one.spec_replicas))
        .column("READY", |one| text::shown(one.ready_replicas))
        .column("RECORDED", |one| text::shown(one.recorded_replicas))
        .column("TARGET", |one| text::shown(one.target_replicas))
        .column("NEXT", |one| one.message.clone())
        .render(frame)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::testing;

    #[test]
    fn the_report_goes_from_the_verdict_to_what_would_happen() {
        let report = ShootExplanation {
            shoot: "shoot--a--b".to_owned(),
            verdict: Some(ApiMessage(testing::verdict(
                "shoot--a--b",
                Outcome::LeasesExpired,
            ))),
            scaling: Some(ApiMessage(testing::scaling_down("shoot--a--b"))),
            plan: Some(ApiMessage(PlanScalingResponse {
                allowed: true,
                reason: "The shoot is protected.".to_owned(),
                ..Default::default()
            })),
            gaps: AnswerGaps {
                missing_replicas: ["lease-probe-1".to_owned()].into(),
                ..AnswerGaps::default()
            },
            ..ShootExplanation::default()
        };
        let text = report.text(&testing::pipe());
        let expected = "\
shoot--a--b  2026-11-23 00:40:00Z
INCOMPLETE: lease-probe-1 not reached; their items may be absent or out of date

VERDICT
  LEASES_EXPIRED since 2m10s (00:37:50Z)
  A sentence.
  VALID FOR  UNTIL      OBSERVED  BY
  12s        00:40:12Z  1s ago    lease-probe-0

EVIDENCE
  expired 100 % (6/6), threshold 60 %; 7 leases, 6 nodes, 0 unconfirmed
  a lease expires at an age of 32s; largest clock skew of a node 0.0 s
  ZONE  EXPIRED  CANDIDATES
  a     3        3
  b     3        3
  not counted: 1 NO_MACHINE

DECIDING RULE
  The share of expired leases (100 %) has reached the threshold (60 %): the nodes are cut off. Direction: down.

SCALING
  down since 2m09s (00:37:51Z), running, level 1; reported by scaling-coordinator-0; dependants are held down
  The nodes are cut off.
";
        assert!(text.starts_with(expected), "{text}");
        assert!(
            text.contains("WHAT WOULD HAPPEN NOW\n  would be scaled down: "),
            "{text}"
        );
        assert!(text.contains("INCIDENTS\nNothing has happened"), "{text}");
    }

    #[test]
    fn every_outcome_has_a_rule_that_names_its_direction() {
        for outcome in text::OUTCOMES {
            let rule = rule(&testing::verdict("a", outcome));
            assert!(rule.contains("Direction: "), "{rule}");
        }
    }

    #[test]
    fn a_shoot_that_is_held_says_why() {
        let held = ShootScaling {
            direction: Direction::Hold.into(),
            hold_reason: watchdog_proto::scaling::v1::HoldReason::Verdict.into(),
            ..testing::scaling_down("a")
        };
        let report = ShootExplanation {
            scaling: Some(ApiMessage(held)),
            ..ShootExplanation::default()
        };
        let text = report.text(&testing::pipe());
        assert!(text.contains("hold (VERDICT) since"), "{text}");
        assert!(text.contains("Nothing: the shoot is held."), "{text}");
    }

    #[test]
    fn dependants_stand_in_the_order_of_their_levels() {
        let shown = resources(&testing::scaling_down("a").resources, &testing::pipe());
        let expected = "  \
  DEPENDANT                              LEVEL  STATE    REPLICAS  READY  RECORDED  TARGET  NEXT
  Deployment/machine-controller-manager  0      REACHED  0         1      1         0       It has 1 ready replica.
  Deployment/kube-controller-manager     1      WAITING  0         1      1         0       It has 1 ready replica.
";
        assert_eq!(shown.trim_start(), expected.trim_start());
    }
}
