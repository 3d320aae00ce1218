//! Why a shoot is where it is.

use watchdog_proto::probe::v1::{Evidence, Outcome, Verdict};
use watchdog_proto::scaling::v1::{Direction, Mode, PlanScalingResponse, ShootScaling};

use super::status::{outcome_style, valid_cell};
use super::table::{Style, TextTable};
use super::{Frame, incident, missing, plan, scaling, text};
use crate::error::CommandError;

/// All that is known of a shoot.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ShootExplanation {
    pub(crate) name: String,
    pub(crate) verdict: Option<Verdict>,
    pub(crate) scaling: Option<ShootScaling>,
    /// Of the direction that holds now; none while the shoot is held.
    pub(crate) plan: Option<PlanScalingResponse>,
    pub(crate) missing: Vec<String>,
    /// The program that did not answer, and why.
    pub(crate) unanswered: Vec<(&'static str, CommandError)>,
}

pub(crate) fn render(report: &ShootExplanation, frame: &Frame) -> String {
    let heading = |title: &str| frame.paint(Style::Bold, title);
    let at = text::day_and_clock(frame.now);
    let mut out = format!("{}  {at}\n", heading(&report.name));
    out.push_str(&missing(&report.missing, frame));
    for (program, error) in &report.unanswered {
        let line = format!("NO ANSWER from {program}: {}", error.what());
        out.push_str(&format!(
            "{}\n  {}\n",
            frame.paint(Style::Bad, &line),
            error.what_to_do()
        ));
    }
    if let Some(verdict) = &report.verdict {
        out.push_str(&format!(
            "\n{}\n{}",
            heading("VERDICT"),
            verdict_lines(verdict, frame)
        ));
        if let Some(evidence) = &verdict.evidence {
            out.push_str(&format!(
                "\n{}\n{}",
                heading("EVIDENCE"),
                evidence_lines(evidence, frame)
            ));
        }
        out.push_str(&format!("\n{}\n  {}\n", heading("DECIDING RULE"), rule(verdict)));
    }
    if let Some(found) = &report.scaling {
        out.push_str(&format!(
            "\n{}\n{}",
            heading("SCALING"),
            scaling_lines(found, frame)
        ));
        out.push_str(&format!(
            "\n{}\n  {}",
            heading("WHAT WOULD HAPPEN NOW"),
            now_lines(report, found, frame)
        ));
        out.push_str(&format!(
            "\n{}\n{}",
            heading("INCIDENTS"),
            incident::render(found, frame)
        ));
    }
    out
}

fn verdict_lines(verdict: &Verdict, frame: &Frame) -> String {
    let outcome = frame.paint(outcome_style(verdict.outcome()), text::outcome(verdict.outcome()));
    let since = text::since(verdict.outcome_change_time.as_ref(), frame.now);
    let mut valid = TextTable::new(["VALID FOR", "UNTIL", "OBSERVED", "BY"]).indented(2);
    let until = text::timestamp(verdict.expire_time.as_ref());
    let age = text::sent_duration(verdict.age.as_ref());
    valid.row([
        valid_cell(verdict),
        until
            .map_or_else(|| "-".to_owned(), |at| text::clock(at, frame.now))
            .into(),
        format!("{age} ago").into(),
        verdict.observer.as_str().into(),
    ]);
    let message = &verdict.message;
    format!("  {outcome} since {since}\n  {message}\n{}", valid.render(frame))
}

fn evidence_lines(evidence: &Evidence, frame: &Frame) -> String {
    let share = text::share(Some(evidence));
    let mut out = format!(
        "  expired {share}, threshold {}; {} leases, {} nodes, {} unconfirmed\n",
        text::percent(evidence.threshold),
        evidence.leases,
        text::number(evidence.nodes),
        evidence.unconfirmed,
    );
    let skew = watchdog_client::wire::micros(evidence.largest_skew.as_ref());
    out.push_str(&format!(
        "  a lease expires at an age of {}; largest clock skew of a node {:.1} s\n",
        text::sent_duration(evidence.expiry_age.as_ref()),
        skew as f64 / 1e6,
    ));
    if !evidence.zones.is_empty() {
        let mut zones = TextTable::new(["ZONE", "EXPIRED", "CANDIDATES"]).indented(2);
        for zone in &evidence.zones {
            let name = if zone.zone.is_empty() {
                "(no label)"
            } else {
                &zone.zone
            };
            zones.row([
                name.into(),
                zone.expired.to_string().into(),
                zone.candidates.to_string().into(),
            ]);
        }
        out.push_str(&zones.render(frame));
    }
    let excluded: Vec<String> = evidence
        .excluded
        .iter()
        .map(|count| format!("{} {}", count.leases, text::exclusion(count.reason())))
        .collect();
    if !excluded.is_empty() {
        out.push_str(&format!("  not counted: {}\n", excluded.join(", ")));
    }
    out
}

/// The rule that decided, and what follows from it.
pub(crate) fn rule(verdict: &Verdict) -> String {
    let evidence = verdict.evidence.clone().unwrap_or_default();
    let share = evidence
        .expired_fraction
        .map_or_else(|| "none".to_owned(), text::percent);
    let threshold = text::percent(evidence.threshold);
    match verdict.outcome() {
        Outcome::Healthy => format!(
            "The share of expired leases ({share}) is below the threshold ({threshold}): the dependants may run. \
             Direction: up."
        ),
        Outcome::LeasesExpired => format!(
            "The share of expired leases ({share}) has reached the threshold ({threshold}): the nodes are cut off. \
             Direction: down."
        ),
        Outcome::ExternalUnreachable => {
            "The external endpoint of the API server does not answer and no eligible lease was renewed for 1.25 renew \
             intervals since: the nodes are cut off. Direction: down."
                .to_owned()
        }
        Outcome::ApiServerUnreachable => {
            "The API server does not answer, so the state of the nodes is unknown. Direction: hold.".to_owned()
        }
        Outcome::Throttled => "The API server answered 429; lease-probe waits. Direction: hold.".to_owned(),
        Outcome::Inconclusive => {
            "The API server answers, but leases, nodes or Machines could not be read. Direction: hold.".to_owned()
        }
        Outcome::TooFewCandidates => {
            "A single lease is eligible and it is expired: too little evidence. Direction: hold.".to_owned()
        }
        Outcome::Skipped => format!(
            "The shoot is not probed ({}). Direction: hold.",
            text::skip_reason(verdict.skip_reason())
        ),
        Outcome::Pending | Outcome::Unspecified => {
            "No result yet, or it is not proven that the kubelets are cut off, because the API server may have been \
             down. Direction: hold."
                .to_owned()
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
        Direction::Hold => format!(" ({})", text::hold_reason(found.hold_reason())),
        _ => String::new(),
    };
    let mut out = format!(
        "  {}{why} since {}, {}, level {}; reported by {}{held_down}\n  {}\n",
        text::direction(found.direction()),
        text::since(found.direction_change_time.as_ref(), frame.now),
        text::flow_state(found.state()),
        text::number(found.level),
        found.replica,
        found.reason,
    );
    if matches!(found.mode(), Mode::Observe | Mode::Off) {
        let (mode, source) = (text::mode(found.mode()), text::mode_source(found));
        out.push_str(&format!("  not protected: mode {mode}, {source}\n"));
    }
    if let Some(at) = text::timestamp(found.retry_time.as_ref()) {
        out.push_str(&format!("  next try at {}\n", text::clock(at, frame.now)));
    }
    out.push_str(&scaling::resources(&found.resources, frame));
    out
}

fn now_lines(report: &ShootExplanation, found: &ShootScaling, frame: &Frame) -> String {
    match &report.plan {
        Some(now) => plan::render(&text::direction(found.direction()), now, frame),
        None => "Nothing: the shoot is held.\n".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::testing;

    #[test]
    fn the_report_goes_from_the_verdict_to_what_would_happen() {
        let report = ShootExplanation {
            name: "shoot--a--b".to_owned(),
            verdict: Some(testing::verdict("shoot--a--b", Outcome::LeasesExpired)),
            scaling: Some(testing::scaling_down("shoot--a--b")),
            plan: Some(PlanScalingResponse {
                allowed: true,
                reason: "The shoot is protected.".to_owned(),
                ..Default::default()
            }),
            missing: vec!["lease-probe-1".to_owned()],
            unanswered: Vec::new(),
        };
        let text = render(&report, &testing::pipe());
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
            scaling: Some(held),
            ..ShootExplanation::default()
        };
        let text = render(&report, &testing::pipe());
        assert!(text.contains("hold (VERDICT) since"), "{text}");
        assert!(text.contains("Nothing: the shoot is held."), "{text}");
    }
}
