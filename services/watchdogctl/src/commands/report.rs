//! `report`: the incidents of a shoot, also as Markdown to attach to a ticket.

use watchdog_proto::scaling::v1::ShootScaling;

use super::WrittenAnswer;
use super::shoot::{self, ShootExplanation};
use crate::connect::ProgramDialer;
use crate::error::CommandResult;
use crate::render::incident::{self, ShootIncident};
use crate::render::{Format, Frame, code_block, text};

pub(crate) async fn read(dialer: &ProgramDialer, shoot: &str, frame: &Frame) -> CommandResult<WrittenAnswer> {
    written(shoot::read_reports(dialer, shoot).await?, frame)
}

fn written(mut found: ShootExplanation, frame: &Frame) -> CommandResult<WrittenAnswer> {
    let scaling = found.scaling.as_deref();
    let text = if frame.format == Format::Markdown {
        markdown(&found, scaling, frame)
    } else {
        let lines = scaling.map(|scaling| incident::lines(scaling, frame));
        format!("{}\n{}", present(&found, frame), lines.unwrap_or_default())
    };
    let incidents = scaling
        .into_iter()
        .flat_map(|scaling| ShootIncident::all(scaling, frame.now));
    let prevented = incidents.map(|incident| (incident.name, incident.prevention()));
    found.prevented = Some(prevented.collect());
    Ok(WrittenAnswer {
        code: found.gaps.code(),
        ..WrittenAnswer::of(frame, text, found)?
    })
}

/// Where the shoot is now.
fn present(found: &ShootExplanation, frame: &Frame) -> String {
    let mut out = found.head(frame);
    if let Some(verdict) = &found.verdict {
        let outcome = text::value(verdict.outcome().as_str_name());
        out.push_str(&format!("now {outcome}: {}\n", verdict.message));
    }
    if let Some(scaling) = &found.scaling {
        out.push_str(if scaling.meltdown_protection_active {
            "its dependants are held down\n"
        } else {
            "nothing is held down\n"
        });
    }
    out
}

/// The same lines, with a picture of each incident.
fn markdown(found: &ShootExplanation, scaling: Option<&ShootScaling>, frame: &Frame) -> String {
    let plain = Frame::plain(frame.now);
    let shoot = &found.shoot;
    let mut out = format!(
        "# Incidents of {shoot}\n\n{}",
        code_block(&present(found, &plain))
    );
    let Some(scaling) = scaling else {
        return out;
    };
    let incidents: Vec<_> = ShootIncident::all(scaling, frame.now).collect();
    if incidents.is_empty() {
        out.push_str(&format!("\n{}", incident::NOTHING));
    }
    for incident in incidents {
        let started = text::timestamp(incident.incident.start_time);
        let started = started.map_or_else(|| "an unknown time".to_owned(), text::day_and_clock);
        let (state, picture) = (incident.state(), incident.picture(shoot));
        let lines = code_block(&incident.lines(&plain));
        out.push_str(&format!(
            "\n## Incident of {started}, {state}\n\n{picture}\n{lines}"
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use watchdog_proto::probe::v1::Outcome;
    use watchdog_proto::scaling::v1::Incident;

    use super::*;
    use crate::api_message::ApiMessage;
    use crate::render::incident::tests::ended;
    use crate::render::testing;

    fn report(last: Incident, frame: &Frame) -> String {
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
        written(now, frame).unwrap().printed(frame.format).unwrap()
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
        let (text, shown) = (report(ended(), &testing::pipe()), report(ended(), &markdown()));
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
            shown.find("\n## Incident of 2026-11-23 00:39:50Z, not ended\n\n```mermaid\ngantt\n"),
            shown.find("\n## Incident of 2026-11-23 00:33:20Z, ended after 5m12s\n\n```mermaid\ngantt\n"),
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
        let shown = report(hostile, &markdown());
        let lines: Vec<&str> = shown.lines().filter(|line| line.contains("<script>")).collect();
        assert_eq!(lines, [format!("      {text}")], "{shown}");
    }

    #[test]
    fn a_shoot_without_incidents_says_so() {
        let calm = ShootExplanation {
            scaling: Some(ApiMessage(ShootScaling::default())),
            ..ShootExplanation::default()
        };
        for frame in [markdown(), testing::pipe()] {
            let shown = written(calm.clone(), &frame)
                .unwrap()
                .printed(frame.format)
                .unwrap();
            assert!(shown.contains("\nNothing has happened to this shoot"), "{shown}");
        }
    }
}
