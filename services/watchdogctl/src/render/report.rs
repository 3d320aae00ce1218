//! The report about the incidents of a shoot, as Markdown to attach to a ticket.

use watchdog_proto::probe::v1::Verdict;
use watchdog_proto::scaling::v1::{Incident, ShootScaling};

use super::incident::{self, at, duration_of, moments, outcome, peak, prevention, stages, state};
use super::{Frame, svg, text};
use crate::error::CommandError;

/// All that a report is made of.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct IncidentReport {
    pub(crate) name: String,
    pub(crate) scaling: ShootScaling,
    /// The verdict now.
    pub(crate) verdict: Option<Verdict>,
    /// Why there is no verdict.
    pub(crate) verdict_error: Option<CommandError>,
    pub(crate) missing: Vec<String>,
}

/// The report as text.
pub(crate) fn render(report: &IncidentReport, frame: &Frame) -> String {
    let at = text::day_and_clock(frame.now);
    let mut out = format!("{}  {at}\n", report.name);
    out.push_str(&super::missing(&report.missing, frame));
    out.push_str(&format!("{}\n\n", present(report)));
    out.push_str(&incident::render(&report.scaling, frame));
    out
}

/// Where the shoot is now, in one line.
fn present(report: &IncidentReport) -> String {
    let verdict = match (&report.verdict, &report.verdict_error) {
        (Some(verdict), _) => format!("{}: {}", text::outcome(verdict.outcome()), verdict.message),
        (None, Some(error)) => format!("no verdict: {}", error.what()),
        (None, None) => "no verdict".to_owned(),
    };
    let held_down = if report.scaling.meltdown_protection_active {
        "its dependants are held down"
    } else {
        "nothing is held down"
    };
    format!("now {verdict} ({held_down})")
}

/// The report with a picture of each incident, the newest first.
pub(crate) fn markdown(report: &IncidentReport, frame: &Frame) -> String {
    let scaling = &report.scaling;
    let mut out = format!(
        "# Incidents of {}\n\nAs of {}: {}\n",
        escaped(&report.name),
        text::day_and_clock(frame.now),
        escaped(&present(report))
    );
    if !report.missing.is_empty() {
        let missing = escaped(&report.missing.join(", "));
        out.push_str(&format!(
            "\n**Incomplete:** {missing} not reached; this may be out of date.\n"
        ));
    }
    let incidents: Vec<&Incident> = scaling.incident.iter().chain(&scaling.last_incident).collect();
    if incidents.is_empty() {
        out.push_str(&format!("\n{}", incident::NOTHING));
    }
    for incident in incidents {
        out.push_str(&markdown_of(report, incident, frame));
    }
    out
}

fn markdown_of(report: &IncidentReport, incident: &Incident, frame: &Frame) -> String {
    let started = text::timestamp(incident.start_time.as_ref());
    let started = started.map_or_else(|| "an unknown time".to_owned(), text::day_and_clock);
    let mut out = format!("\n## Incident of {started}, {}\n\n", state(incident));
    out.push_str(&svg::timeline(&report.name, incident, frame.now));
    let facts = [
        ("Cause", Some(outcome(incident))),
        ("Evidence", Some(incident.reason.clone())),
        ("Peak", peak(incident)),
        ("Scaled", Some(incident::counts(incident))),
        ("Last error", Some(incident.last_error.clone())),
        ("First to scale down", Some(incident.first_to_scale_down.clone())),
        ("Leader", Some(report.scaling.replica.clone())),
        ("Prevented", Some(prevention(incident, frame.now).text)),
    ];
    out.push_str("\n| | |\n| --- | --- |\n");
    for (name, fact) in facts {
        if let Some(fact) = fact.filter(|fact| !fact.is_empty()) {
            out.push_str(&format!("| **{name}** | {} |\n", escaped(&fact)));
        }
    }
    out.push_str("\n| after | at | by | what |\n| --- | --- | --- | --- |\n");
    for moment in moments(incident, &report.scaling.replica) {
        let at = at(incident, moment.after);
        out.push_str(&format!(
            "| {} | {} | {} | {} |\n",
            duration_of(moment.after),
            at.map_or_else(|| "-".to_owned(), |at| text::clock(at, frame.now)),
            escaped(&moment.who),
            escaped(&moment.what)
        ));
    }
    out.push_str("\n| stage | took |\n| --- | --- |\n");
    for (stage, took) in stages(incident) {
        out.push_str(&format!("| {stage} | {} |\n", text::duration(took)));
    }
    out
}

/// Text of Markdown, within a line: no character of it is markup.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in svg::escaped(text).chars() {
        if matches!(c, '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '~' | '!') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use watchdog_proto::probe::v1::Outcome;

    use super::*;
    use crate::render::incident::tests::ended;
    use crate::render::testing;

    fn report() -> IncidentReport {
        IncidentReport {
            name: "shoot--a--b".to_owned(),
            scaling: ShootScaling {
                last_incident: Some(ended()),
                incident: Some(Incident {
                    start_time: testing::ago(10),
                    ..Default::default()
                }),
                replica: "coordinator-0".to_owned(),
                meltdown_protection_active: true,
                ..Default::default()
            },
            verdict: Some(testing::verdict("shoot--a--b", Outcome::LeasesExpired)),
            ..IncidentReport::default()
        }
    }

    #[test]
    fn a_report_says_what_happened_who_did_it_and_what_it_prevented() {
        let shown = markdown(&report(), &testing::pipe());
        for part in [
            "# Incidents of shoot--a--b\n\nAs of 2026-11-23 00:40:00Z: now LEASES\\_EXPIRED: A sentence. (",
            "## Incident of 2026-11-23 00:33:20Z, ended after 5m12s\n\n<svg ",
            "| **Prevented** | 3 nodes that kube-controller-manager would have marked Unknown 40s after",
            "| **Peak** | 75 % of the eligible leases expired: a 3/4 |",
            "| 250ms | 00:33:20Z | coordinator-0 | Deployment/kube-controller-manager scaled down |",
            "| healthy to restored | 12s |",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        let (newest, oldest) = (shown.find("not ended"), shown.find("ended after"));
        assert!(newest < oldest, "{shown}");
        let text = render(&report(), &testing::pipe());
        assert!(
            text.starts_with(
                "shoot--a--b  2026-11-23 00:40:00Z\nnow LEASES_EXPIRED: A sentence. (its dependants"
            ),
            "{text}"
        );
    }

    #[test]
    fn nothing_of_a_shoot_is_markup() {
        let mut hostile = report();
        let text = "| x |\n# y <script>[a](http://b) `c` **d** ![e](f)\u{1b}[2J";
        hostile.scaling.last_incident.as_mut().unwrap().reason = text.to_owned();
        (hostile.verdict, hostile.verdict_error) = (None, Some(CommandError::unreachable(text, "")));
        hostile.missing = vec![text.to_owned()];
        let shown = markdown(&hostile, &testing::pipe());
        let escaped =
            "\\| x \\| # y &lt;script&gt;\\[a\\](http://b) \\`c\\` \\*\\*d\\*\\* \\!\\[e\\](f) \\[2J";
        assert_eq!(shown.matches(escaped).count(), 3, "{shown}");
        assert!(!shown.contains("<script") && !shown.contains('\u{1b}'), "{shown}");
    }

    #[test]
    fn a_shoot_without_incidents_and_a_verdict_that_is_missing_are_said() {
        let calm = IncidentReport {
            name: "a".to_owned(),
            verdict_error: Some(CommandError::unreachable("lease-probe: away", "")),
            ..IncidentReport::default()
        };
        for shown in [markdown(&calm, &testing::pipe()), render(&calm, &testing::pipe())] {
            assert!(shown.contains("Nothing has happened to this shoot"), "{shown}");
            assert!(shown.contains("now no verdict: lease-probe: away"), "{shown}");
        }
    }
}
