//! `incidents`: those of all shoots.

use std::cmp::Reverse;

use serde_json::{Value, json};
use watchdog_proto::scaling::v1::{ListScalingRequest, ListScalingResponse};

use super::WrittenAnswer;
use crate::api_message::ApiMessage;
use crate::connect::ProgramDialer;
use crate::error::CommandResult;
use crate::program::Program;
use crate::render::incident::ShootIncident;
use crate::render::table::{Cell, TextTable};
use crate::render::{Frame, Style, incomplete, text};

pub(crate) async fn read(dialer: &ProgramDialer, frame: &Frame) -> CommandResult<WrittenAnswer> {
    let all = ListScalingRequest::default();
    let list = dialer.all_pages(Program::ScalingCoordinator, all).await?;
    written(&list, frame)
}

/// Those that run come first, then the newest.
fn written(list: &ListScalingResponse, frame: &Frame) -> CommandResult<WrittenAnswer> {
    let program = Program::ScalingCoordinator;
    let rows = list.scalings.iter().flat_map(|scaling| {
        ShootIncident::all(scaling, frame.now).map(move |incident| (scaling.shoot.as_str(), incident))
    });
    let mut rows: Vec<(&str, ShootIncident<'_>)> = rows.collect();
    rows.sort_by_cached_key(|(shoot, incident)| {
        let started = incident.incident.start_time.as_ref();
        let started = started.map(|at| (at.seconds, at.nanos));
        (!incident.is_running(), Reverse(started), *shoot)
    });
    let value = json!({
        "incidents": rows.iter().map(json_row).collect::<Vec<_>>(),
        "missingReplicas": text::missing_replicas(program, list.completeness.as_ref()),
    });
    let text = incomplete(program, list.completeness.as_ref(), frame) + &lines(&rows, frame);
    let running = rows.iter().filter(|(_, incident)| incident.is_running()).count();
    Ok(WrittenAnswer {
        headline: format!(
            "{}, {running} running",
            text::count(rows.len(), "incident", "incidents")
        ),
        ..WrittenAnswer::of(frame, text, value)?
    })
}

fn json_row((shoot, incident): &(&str, ShootIncident<'_>)) -> Value {
    json!({
        "shoot": shoot,
        "isRunning": incident.is_running(),
        "preventedNodes": incident.prevention().nodes,
        "incident": ApiMessage(incident.incident.clone()),
    })
}

fn lines(rows: &[(&str, ShootIncident<'_>)], frame: &Frame) -> String {
    if rows.is_empty() {
        return "No incident is known since the coordinator became the leader.\n".to_owned();
    }
    TextTable::of(rows)
        .column("SHOOT", |(shoot, _)| *shoot)
        .column("STATE", |(_, one)| state(one))
        .column("STARTED", |(_, one)| frame.since(one.incident.start_time))
        .column("LASTED", |(_, one)| text::duration(one.length()))
        .column("OUTCOME", |(_, one)| one.outcome())
        .column("MODE", |(_, one)| mode(one))
        .column("DOWN AFTER", |(_, one)| {
            text::sent_duration(one.incident.verdict_to_last_write)
        })
        .column("PREVENTED", |(_, one)| one.prevention().text)
        .render(frame)
}

fn state(incident: &ShootIncident<'_>) -> Cell {
    if incident.is_running() {
        Cell::styled(Style::Warn, "runs")
    } else if incident.is_released() {
        Cell::styled(Style::Good, "released")
    } else {
        Cell::styled(Style::Good, "ended")
    }
}

const fn mode(incident: &ShootIncident<'_>) -> &'static str {
    if incident.incident.in_mode_observe {
        "observe"
    } else {
        "protect"
    }
}

#[cfg(test)]
mod tests {
    use watchdog_client::message::COMPLETE;
    use watchdog_proto::scaling::v1::{Incident, ShootScaling};

    use super::*;
    use crate::render::incident::tests::ended;
    use crate::render::{Format, testing};

    fn shoot(name: &str, running: Option<i64>, last: Option<Incident>) -> ShootScaling {
        ShootScaling {
            shoot: name.to_owned(),
            incident: running.map(|seconds| Incident {
                start_time: testing::ago(seconds),
                ..Incident::default()
            }),
            last_incident: last,
            ..ShootScaling::default()
        }
    }

    fn answer(scalings: Vec<ShootScaling>, format: Format) -> WrittenAnswer {
        let frame = Frame {
            format,
            ..testing::pipe()
        };
        let list = ListScalingResponse {
            scalings,
            completeness: Some(COMPLETE),
            ..ListScalingResponse::default()
        };
        written(&list, &frame).unwrap()
    }

    #[test]
    fn those_that_run_come_first_and_then_the_newest() {
        let newer = Incident {
            start_time: testing::ago(350),
            ..ended()
        };
        let scalings = vec![
            shoot("one", None, Some(ended())),
            shoot("two", Some(90), Some(newer)),
            shoot("three", Some(60), None),
        ];
        let table = answer(scalings.clone(), Format::Table);
        assert_eq!(table.headline, "4 incidents, 2 running");
        let order = [
            "SHOOT  STATE  STARTED",
            "three  runs",
            "two    runs",
            "two    ended",
            "one    ended",
        ];
        for (line, start) in table.text().lines().zip(order) {
            assert!(line.starts_with(start), "{start}: {}", table.text());
        }
        let json = answer(scalings, Format::Json).printed(Format::Json).unwrap();
        let value: Value = serde_json::from_str(&json).unwrap();
        let last = &value["incidents"][3];
        assert_eq!(
            (&last["shoot"], &last["preventedNodes"]),
            (&"one".into(), &3.into())
        );
        assert_eq!(last["incident"]["outcome"], "OUTCOME_LEASES_EXPIRED");
        assert_eq!(value["missingReplicas"], json!([]));
    }

    #[test]
    fn a_seed_without_incidents_says_so() {
        let none = answer(Vec::new(), Format::Table);
        assert!(none.text().starts_with("No incident is known"), "{}", none.text());
    }
}
