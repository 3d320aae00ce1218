//! `report`: the incidents of a shoot, also as Markdown to attach to a ticket.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use watchdog_proto::probe::v1::Verdict;
use watchdog_proto::scaling::v1::{Incident, ShootScaling};

use super::CommandAnswer;
use crate::api_message::ApiMessage;
use crate::connect::ProgramDialer;
use crate::error::CommandError;
use crate::fetch;
use crate::program::Program;
use crate::render::incident::{self, Prevention, prevention};
use crate::render::{self, Format, Frame, svg, text};

/// All that a report is made of.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct IncidentReport {
    shoot: String,
    /// The verdict now.
    #[serde(skip_serializing_if = "Option::is_none")]
    verdict: Option<ApiMessage<Verdict>>,
    /// Why there is no verdict.
    #[serde(skip_serializing_if = "Option::is_none")]
    verdict_error: Option<CommandError>,
    scaling: ApiMessage<ShootScaling>,
    /// By the name of the incident.
    prevented: BTreeMap<&'static str, Prevention>,
    missing_replicas: Vec<String>,
}

/// The incidents are those of the coordinator. Without lease-probe, only the verdict of now is missing.
pub(crate) async fn read(dialer: &ProgramDialer, shoot: &str) -> Result<IncidentReport, CommandError> {
    let (verdict, scaling) = tokio::join!(
        async { fetch::verdict(&dialer.lease_probe().await?, shoot).await },
        async { fetch::scaling(&dialer.coordinator().await?, shoot).await },
    );
    let answer = scaling?;
    let scaling = answer.scaling.unwrap_or_default();
    let now = Timestamp::now();
    let mut report = IncidentReport {
        shoot: shoot.to_owned(),
        prevented: incident::incidents(&scaling)
            .map(|(name, incident)| (name, prevention(incident, now)))
            .collect(),
        scaling: ApiMessage(scaling),
        missing_replicas: fetch::missing(Program::ScalingCoordinator, answer.completeness.as_ref()),
        ..IncidentReport::default()
    };
    match verdict {
        Ok(answer) => {
            let missing = fetch::missing(Program::LeaseProbe, answer.completeness.as_ref());
            fetch::add_missing(&mut report.missing_replicas, missing);
            report.verdict = answer.verdict.map(ApiMessage);
        }
        Err(error) => report.verdict_error = Some(error),
    }
    Ok(report)
}

impl CommandAnswer for IncidentReport {
    fn text(&self, frame: &Frame) -> String {
        if frame.format == Format::Markdown {
            return self.markdown(frame);
        }
        let mut out = text::title(&self.shoot, frame);
        out.push_str(&render::missing(&self.missing_replicas, frame));
        out.push_str(&format!("{}\n\n", self.present()));
        out + &incident::render(&self.scaling, frame)
    }

    fn code(&self) -> u8 {
        self.verdict_error.as_ref().map_or(0, |error| error.code)
    }
}

impl IncidentReport {
    /// Where the shoot is now, in one line.
    fn present(&self) -> String {
        let verdict = match (&self.verdict, &self.verdict_error) {
            (Some(verdict), _) => format!("{}: {}", text::outcome(verdict.outcome()), verdict.message),
            (None, Some(error)) => format!("no verdict: {}", error.what()),
            (None, None) => "no verdict".to_owned(),
        };
        let held_down = if self.scaling.meltdown_protection_active {
            "its dependants are held down"
        } else {
            "nothing is held down"
        };
        format!("now {verdict} ({held_down})")
    }

    /// With a picture of each incident, the newest first.
    fn markdown(&self, frame: &Frame) -> String {
        let mut out = format!(
            "# Incidents of {}\n\nAs of {}: {}\n",
            escaped(&self.shoot),
            text::day_and_clock(frame.now),
            escaped(&self.present())
        );
        if !self.missing_replicas.is_empty() {
            let missing = escaped(&self.missing_replicas.join(", "));
            out.push_str(&format!(
                "\n**Incomplete:** {missing} not reached; this may be out of date.\n"
            ));
        }
        let sections = incident::incidents(&self.scaling);
        let sections: String = sections
            .map(|(_, incident)| self.markdown_of(incident, frame))
            .collect();
        if sections.is_empty() {
            out.push_str(&format!("\n{}", incident::NOTHING));
        }
        out + &sections
    }

    fn markdown_of(&self, incident: &Incident, frame: &Frame) -> String {
        let started = text::timestamp(incident.start_time.as_ref());
        let started = started.map_or_else(|| "an unknown time".to_owned(), text::day_and_clock);
        let mut out = format!("\n## Incident of {started}, {}\n\n", incident::state(incident));
        out.push_str(&svg::timeline(&self.shoot, incident, frame.now));
        let facts = [
            ("Cause", incident::outcome(incident)),
            ("Evidence", incident.reason.clone()),
            ("Peak", incident::peak(incident).unwrap_or_default()),
            ("Scaled", incident::counts(incident)),
            ("Last error", incident.last_error.clone()),
            ("First to scale down", incident.first_to_scale_down.clone()),
            ("Leader", self.scaling.replica.clone()),
            ("Prevented", prevention(incident, frame.now).text),
        ];
        let known = facts.into_iter().filter(|(_, fact)| !fact.is_empty());
        let facts = known.map(|(name, fact)| [format!("**{name}**"), escaped(&fact)]);
        out.push_str(&table(["", ""], facts));
        let moments = incident::moments(incident, &self.scaling.replica).into_iter();
        let moments = moments.map(|moment| {
            [
                incident::duration_of(moment.after),
                incident::clock(incident, &moment, frame.now),
                escaped(&moment.who),
                escaped(&moment.what),
            ]
        });
        out.push_str(&table(["after", "at", "by", "what"], moments));
        let stages = incident::stages(incident).into_iter();
        let stages = stages.map(|(stage, took)| [stage.to_owned(), text::duration(took)]);
        out + &table(["stage", "took"], stages)
    }
}

/// A table of Markdown.
fn table<const N: usize>(head: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let mut out = format!("\n| {} |\n| {} |\n", head.join(" | "), ["---"; N].join(" | "));
    for row in rows {
        out.push_str(&format!("| {} |\n", row.join(" | ")));
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
            shoot: "shoot--a--b".to_owned(),
            scaling: ApiMessage(ShootScaling {
                last_incident: Some(ended()),
                incident: Some(Incident {
                    start_time: testing::ago(10),
                    ..Default::default()
                }),
                replica: "coordinator-0".to_owned(),
                meltdown_protection_active: true,
                ..Default::default()
            }),
            verdict: Some(ApiMessage(testing::verdict(
                "shoot--a--b",
                Outcome::LeasesExpired,
            ))),
            ..IncidentReport::default()
        }
    }

    fn markdown() -> Frame {
        Frame {
            format: Format::Markdown,
            ..testing::pipe()
        }
    }

    #[test]
    fn a_report_says_what_happened_who_did_it_and_what_it_prevented() {
        let shown = report().text(&markdown());
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
        let text = report().text(&testing::pipe());
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
        hostile.scaling.0.last_incident.as_mut().unwrap().reason = text.to_owned();
        (hostile.verdict, hostile.verdict_error) = (None, Some(CommandError::unreachable(text, "")));
        hostile.missing_replicas = vec![text.to_owned()];
        let shown = hostile.text(&markdown());
        let escaped =
            "\\| x \\| # y &lt;script&gt;\\[a\\](http://b) \\`c\\` \\*\\*d\\*\\* \\!\\[e\\](f) \\[2J";
        assert_eq!(shown.matches(escaped).count(), 3, "{shown}");
        assert!(!shown.contains("<script") && !shown.contains('\u{1b}'), "{shown}");
    }

    #[test]
    fn a_shoot_without_incidents_and_a_verdict_that_is_missing_are_said() {
        let calm = IncidentReport {
            shoot: "a".to_owned(),
            verdict_error: Some(CommandError::unreachable("lease-probe: away", "")),
            ..IncidentReport::default()
        };
        for shown in [calm.text(&markdown()), calm.text(&testing::pipe())] {
            assert!(shown.contains("Nothing has happened to this shoot"), "{shown}");
            assert!(shown.contains("now no verdict: lease-probe: away"), "{shown}");
        }
    }
}
