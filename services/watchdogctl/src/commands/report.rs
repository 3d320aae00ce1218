//! `report`: the incidents of a shoot, also as Markdown to attach to a ticket.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

use super::CommandAnswer;
use super::shoot::{self, ShootExplanation};
use crate::connect::ProgramDialer;
use crate::error::CommandError;
use crate::render::incident::{self, Prevention, ShootIncident};
use crate::render::{Format, Frame, code_block, svg, text};

/// All that a report is made of.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct IncidentReport {
    #[serde(flatten)]
    now: ShootExplanation,
    /// By the name of the incident.
    prevented: BTreeMap<&'static str, Prevention>,
}

pub(crate) async fn read(dialer: &ProgramDialer, shoot: &str) -> Result<IncidentReport, CommandError> {
    let reports = shoot::read_reports(dialer, shoot).await?;
    Ok(IncidentReport::new(reports, Timestamp::now()))
}

impl CommandAnswer for IncidentReport {
    fn text(&self, frame: &Frame) -> String {
        if frame.format == Format::Markdown {
            return self.markdown(frame);
        }
        let incidents = self.now.scaling.as_ref();
        let incidents = incidents.map_or_else(String::new, |scaling| incident::lines(scaling, frame));
        format!("{}\n{incidents}", self.present(frame))
    }

    fn code(&self) -> u8 {
        self.now.gaps.code()
    }
}

impl IncidentReport {
    fn new(now: ShootExplanation, at: Timestamp) -> Self {
        let incidents = now
            .scaling
            .iter()
            .flat_map(|scaling| ShootIncident::all(scaling, at));
        let prevented = incidents.map(|incident| (incident.name, incident.prevention()));
        Self {
            prevented: prevented.collect(),
            now,
        }
    }

    /// Where the shoot is now.
    fn present(&self, frame: &Frame) -> String {
        let mut out = self.now.head(frame);
        if let Some(verdict) = &self.now.verdict {
            let outcome = text::value(verdict.outcome().as_str_name());
            out.push_str(&format!("now {outcome}: {}\n", verdict.message));
        }
        if let Some(scaling) = &self.now.scaling {
            out.push_str(if scaling.meltdown_protection_active {
                "its dependants are held down\n"
            } else {
                "nothing is held down\n"
            });
        }
        out
    }

    /// The same lines, with a picture of each incident.
    fn markdown(&self, frame: &Frame) -> String {
        let plain = Frame::plain(frame.now);
        let shoot = &self.now.shoot;
        let mut out = format!("# Incidents of {shoot}\n\n{}", code_block(&self.present(&plain)));
        let Some(scaling) = &self.now.scaling else {
            return out;
        };
        let mut incidents = ShootIncident::all(scaling, frame.now).peekable();
        if incidents.peek().is_none() {
            out.push_str(&format!("\n{}", incident::NOTHING));
        }
        for incident in incidents {
            let started = text::timestamp(incident.incident.start_time);
            let started = started.map_or_else(|| "an unknown time".to_owned(), text::day_and_clock);
            let (state, picture) = (incident.state(), svg::timeline(shoot, &incident));
            let lines = code_block(&incident.lines(&plain));
            out.push_str(&format!(
                "\n## Incident of {started}, {state}\n\n{picture}\n{lines}"
            ));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use watchdog_proto::probe::v1::Outcome;
    use watchdog_proto::scaling::v1::{Incident, ShootScaling};

    use super::*;
    use crate::api_message::ApiMessage;
    use crate::render::incident::tests::ended;
    use crate::render::testing;

    fn report(last: Incident) -> IncidentReport {
        let scaling = ShootScaling {
            last_incident: Some(last),
            incident: Some(Incident {
                start_time: testing::ago(10),
                ..Default::default()
            }),
            replica: "coordinator-0".to_owned(),
            meltdown_protection_active: true,
            ..Default::default()
        };
        let now = ShootExplanation {
            shoot: "shoot--a--b".to_owned(),
            scaling: Some(ApiMessage(scaling)),
            verdict: Some(ApiMessage(testing::verdict(
                "shoot--a--b",
                Outcome::LeasesExpired,
            ))),
            ..ShootExplanation::default()
        };
        IncidentReport::new(now, testing::pipe().now)
    }

    fn markdown() -> Frame {
        Frame {
            format: Format::Markdown,
            color: true,
            ..testing::pipe()
        }
    }

    #[test]
    fn markdown_has_the_lines_of_the_text_and_a_picture_of_each_incident() {
        let (text, shown) = (
            report(ended()).text(&testing::pipe()),
            report(ended()).text(&markdown()),
        );
        assert!(
            text.starts_with(
                "shoot--a--b  2026-11-23 00:40:00Z\nnow LEASES_EXPIRED: A sentence.\nits dependants are held down\n"
            ),
            "{text}"
        );
        for line in text.lines().filter(|line| !line.is_empty()) {
            assert!(shown.contains(&format!("    {line}\n")), "{line}: {shown}");
        }
        let (newest, oldest) = (
            shown.find("\n## Incident of 2026-11-23 00:39:50Z, not ended\n\n<svg "),
            shown.find("\n## Incident of 2026-11-23 00:33:20Z, ended after 5m12s\n\n<svg "),
        );
        assert!(newest.is_some() && newest < oldest, "{shown}");
    }

    #[test]
    fn nothing_of_a_shoot_is_markup() {
        let text = "| x | # y <script>[a](http://b) ``` **d**";
        let hostile = Incident {
            reason: text.to_owned(),
            ..ended()
        };
        let shown = report(hostile).text(&markdown());
        let lines: Vec<&str> = shown.lines().filter(|line| line.contains("<script>")).collect();
        assert_eq!(lines, [format!("      {text}")], "{shown}");
    }

    #[test]
    fn a_shoot_without_incidents_says_so() {
        let calm = ShootExplanation {
            scaling: Some(ApiMessage(ShootScaling::default())),
            ..ShootExplanation::default()
        };
        let calm = IncidentReport::new(calm, testing::pipe().now);
        for frame in [markdown(), testing::pipe()] {
            let shown = calm.text(&frame);
            assert!(shown.contains("\nNothing has happened to this shoot"), "{shown}");
        }
    }
}
