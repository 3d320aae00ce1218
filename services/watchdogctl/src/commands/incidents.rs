//! `incidents`: those of many shoots, of one seed or of several.

use std::cmp::Reverse;

use serde_json::{Value, json};
use watchdog_proto::scaling::v1::{ListScalingRequest, ListScalingResponse};

use super::WrittenAnswer;
use super::seeds::{SeedAnswer, ask_each};
use crate::api_message::ApiMessage;
use crate::args::ConnectArgs;
use crate::connect::ProgramDialer;
use crate::error::CommandError;
use crate::program::Program;
use crate::render::incident::ShootIncident;
use crate::render::table::{Cell, TextTable};
use crate::render::{AnswerGaps, Frame, Style, text};

pub(crate) async fn read(connect: &ConnectArgs, frame: &Frame) -> Result<WrittenAnswer, CommandError> {
    let ask = async |dialer: ProgramDialer| {
        let all = ListScalingRequest::default();
        dialer.all_pages(Program::ScalingCoordinator, all).await
    };
    written(&ask_each(connect, ask).await?, frame)
}

/// An incident of a shoot of a seed.
struct IncidentRow<'a> {
    /// The context; empty if only one seed was asked.
    seed: &'a str,
    shoot: &'a str,
    incident: ShootIncident<'a>,
}

/// Those that run come first, then the newest.
fn written(
    answers: &[SeedAnswer<ListScalingResponse>],
    frame: &Frame,
) -> Result<WrittenAnswer, CommandError> {
    let (mut gaps, mut rows) = (AnswerGaps::default(), Vec::new());
    for SeedAnswer { seed, result } in answers {
        match result {
            Ok(answer) => {
                let missing =
                    text::missing_replicas(Program::ScalingCoordinator, answer.completeness.as_ref());
                gaps.missing_replicas
                    .extend(missing.into_iter().map(|replica| match seed.as_str() {
                        "" => replica,
                        seed => format!("{seed}: {replica}"),
                    }));
                rows.extend(answer.scalings.iter().flat_map(|scaling| {
                    ShootIncident::all(scaling, frame.now).map(move |incident| IncidentRow {
                        seed,
                        shoot: &scaling.shoot,
                        incident,
                    })
                }));
            }
            Err(error) => gaps.add(None, Some(seed.clone()), error.clone()),
        }
    }
    rows.sort_by_cached_key(|row| {
        let started = row.incident.incident.start_time.as_ref();
        let started = started.map(|at| (at.seconds, at.nanos));
        (!row.incident.is_running(), Reverse(started), row.seed, row.shoot)
    });
    let value = json!({
        "incidents": rows.iter().map(json_row).collect::<Vec<_>>(),
        "missingReplicas": gaps.missing_replicas,
        "unanswered": gaps.unanswered,
    });
    Ok(WrittenAnswer {
        code: gaps.code(),
        ..WrittenAnswer::of(frame, gaps.lines(frame) + &lines(&rows, frame), value)?
    })
}

fn json_row(row: &IncidentRow<'_>) -> Value {
    let mut value = json!({
        "shoot": row.shoot,
        "isRunning": row.incident.is_running(),
        "preventedNodes": row.incident.prevention().nodes,
        "incident": ApiMessage(row.incident.incident.clone()),
    });
    if let (false, Value::Object(fields)) = (row.seed.is_empty(), &mut value) {
        fields.insert("context".to_owned(), row.seed.into());
    }
    value
}

fn lines(rows: &[IncidentRow<'_>], frame: &Frame) -> String {
    if rows.is_empty() {
        return "No incident is known since the coordinators became the leaders.\n".to_owned();
    }
    let has_seeds = rows.iter().any(|row| !row.seed.is_empty());
    TextTable::of(rows)
        .column_if(has_seeds, "SEED", |row| row.seed)
        .column("SHOOT", |row| row.shoot)
        .column("STATE", |row| state(&row.incident))
        .column("STARTED", |row| frame.since(row.incident.incident.start_time))
        .column("LASTED", |row| text::duration(row.incident.length()))
        .column("OUTCOME", |row| row.incident.outcome())
        .column("MODE", |row| mode(&row.incident))
        .column("DOWN AFTER", |row| {
            text::sent_duration(row.incident.incident.verdict_to_last_write)
        })
        .column("PREVENTED", |row| row.incident.prevention().text)
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

    fn seed(name: &str, scalings: Vec<ShootScaling>) -> SeedAnswer<ListScalingResponse> {
        SeedAnswer {
            seed: name.to_owned(),
            result: Ok(ListScalingResponse {
                scalings,
                ..ListScalingResponse::default()
            }),
        }
    }

    #[test]
    fn those_that_run_come_first_and_a_seed_that_fails_hides_no_other() {
        let newer = Incident {
            start_time: testing::ago(350),
            ..ended()
        };
        let failed = SeedAnswer {
            seed: "c".to_owned(),
            result: Err(CommandError::unreachable("no answer", "look")),
        };
        let answers = vec![
            seed(
                "a",
                vec![shoot("one", None, Some(ended())), shoot("two", Some(60), None)],
            ),
            seed("b", vec![shoot("one", Some(90), Some(newer))]),
            failed,
        ];
        let written = |format| {
            let frame = Frame {
                format,
                ..testing::pipe()
            };
            super::written(&answers, &frame).unwrap().printed(format).unwrap()
        };
        let shown = written(Format::Table);
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[..2], ["NO ANSWER from c: no answer", "  look"]);
        let order = [
            "SEED  SHOOT",
            "a     two",
            "b     one    runs",
            "b     one    ended",
            "a     one",
        ];
        for (line, start) in lines[2..].iter().zip(order) {
            assert!(line.starts_with(start), "{start}: {shown}");
        }
        let value: Value = serde_json::from_str(&written(Format::Json)).unwrap();
        assert_eq!(value["incidents"][0]["context"], "a");
        assert_eq!(value["incidents"][3]["preventedNodes"], 3);
        assert_eq!(
            value["incidents"][3]["incident"]["outcome"],
            "OUTCOME_LEASES_EXPIRED"
        );
        let unanswered = serde_json::json!({"context": "c", "error": "no answer", "advice": "look"});
        assert_eq!(value["unanswered"][0], unanswered);
    }

    fn shown(scalings: Vec<ShootScaling>) -> String {
        let frame = testing::pipe();
        written(&[seed("", scalings)], &frame)
            .unwrap()
            .printed(frame.format)
            .unwrap()
    }

    #[test]
    fn one_seed_has_no_column_for_it() {
        let one = shown(vec![shoot("one", Some(60), None)]);
        assert!(one.starts_with("SHOOT  STATE  STARTED"), "{one}");
        let none = shown(Vec::new());
        assert!(none.starts_with("No incident is known"), "{none}");
    }
}
