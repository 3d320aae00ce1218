//! The incidents of many shoots, of one seed or of several.

use std::cmp::Reverse;

use serde_json::{Value, json};
use watchdog_proto::scaling::v1::{Incident, ShootScaling};

use super::incident::{length, outcome, prevention};
use super::table::{Cell, Style, TextTable};
use super::{Frame, message, missing, text};
use crate::commands::seeds::SeedAnswer;

/// The states of the shoots of one seed that have incidents.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct SeedIncidents {
    pub(crate) shoots: Vec<ShootScaling>,
    pub(crate) missing: Vec<String>,
}

/// One incident, and whose it is.
struct IncidentRow<'a> {
    /// The context; empty if only one seed was asked.
    seed: &'a str,
    scaling: &'a ShootScaling,
    incident: &'a Incident,
}

/// Those that run come first, then the newest.
fn rows(answers: &[SeedAnswer<SeedIncidents>]) -> Vec<IncidentRow<'_>> {
    let mut rows = Vec::new();
    for answer in answers {
        let shoots = answer.result.iter().flat_map(|found| &found.shoots);
        for scaling in shoots {
            let incidents = scaling.incident.iter().chain(&scaling.last_incident);
            rows.extend(incidents.map(|incident| IncidentRow {
                seed: &answer.seed,
                scaling,
                incident,
            }));
        }
    }
    rows.sort_by_cached_key(|row| {
        let started = row.incident.start_time.as_ref().map(|at| (at.seconds, at.nanos));
        let has_ended = row.incident.verdict_to_restored.is_some();
        (
            has_ended,
            Reverse(started),
            row.seed.to_owned(),
            row.scaling.shoot.clone(),
        )
    });
    rows
}

pub(crate) fn render(answers: &[SeedAnswer<SeedIncidents>], frame: &Frame) -> String {
    let has_seeds = answers.iter().any(|answer| !answer.seed.is_empty());
    let mut out = String::new();
    for answer in answers {
        match &answer.result {
            Ok(found) if has_seeds && !found.missing.is_empty() => {
                out.push_str(&format!("{}: {}", answer.seed, missing(&found.missing, frame)));
            }
            Ok(found) => out.push_str(&missing(&found.missing, frame)),
            Err(error) => {
                let line = format!("NO ANSWER from {}: {}", answer.seed, error.what());
                out.push_str(&format!(
                    "{}\n  {}\n",
                    frame.paint(Style::Bad, &line),
                    error.what_to_do()
                ));
            }
        }
    }
    let rows = rows(answers);
    if rows.is_empty() {
        out.push_str("No incident is known since the coordinators became the leaders.\n");
        return out;
    }
    let mut header = vec![
        "SHOOT",
        "STATE",
        "STARTED",
        "LASTED",
        "OUTCOME",
        "MODE",
        "DOWN AFTER",
        "PREVENTED",
    ];
    if has_seeds {
        header.insert(0, "SEED");
    }
    let mut table = TextTable::new(header);
    for row in &rows {
        let incident = row.incident;
        let state = match incident.verdict_to_restored {
            Some(_) => Cell::styled(Style::Good, "ended"),
            None => Cell::styled(Style::Warn, "runs"),
        };
        let mode = if incident.in_mode_observe {
            "observe"
        } else {
            "protect"
        };
        let mut cells: Vec<Cell> = vec![
            row.scaling.shoot.as_str().into(),
            state,
            text::since(incident.start_time.as_ref(), frame.now).into(),
            text::duration(length(incident, frame.now)).into(),
            outcome(incident).into(),
            mode.into(),
            text::sent_duration(incident.verdict_to_last_write.as_ref()).into(),
            prevention(incident, frame.now).text.into(),
        ];
        if has_seeds {
            cells.insert(0, row.seed.into());
        }
        table.row(cells);
    }
    out.push_str(&table.render(frame));
    out
}

/// The same for programs.
pub(crate) fn value(answers: &[SeedAnswer<SeedIncidents>], frame: &Frame) -> anyhow::Result<Value> {
    let incident = |row: &IncidentRow<'_>| -> anyhow::Result<Value> {
        let mut value = json!({
            "shoot": row.scaling.shoot,
            "isRunning": row.incident.verdict_to_restored.is_none(),
            "preventedNodes": prevention(row.incident, frame.now).nodes,
            "incident": message::value("scaling.v1.Incident", row.incident)?,
        });
        if !row.seed.is_empty() {
            message::set(&mut value, "context", row.seed);
        }
        Ok(value)
    };
    let incidents = rows(answers)
        .iter()
        .map(incident)
        .collect::<anyhow::Result<Vec<_>>>()?;
    let failed = answers.iter().filter_map(|answer| {
        let error = answer.result.as_ref().err()?;
        Some(json!({"context": answer.seed, "error": error.what()}))
    });
    let missing = answers
        .iter()
        .flat_map(|answer| &answer.result)
        .flat_map(|found| &found.missing);
    Ok(json!({
        "incidents": incidents,
        "missingReplicas": missing.collect::<Vec<_>>(),
        "unanswered": failed.collect::<Vec<_>>(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::CommandError;
    use crate::render::incident::tests::ended;
    use crate::render::testing;

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

    fn seed(name: &str, shoots: Vec<ShootScaling>) -> SeedAnswer<SeedIncidents> {
        SeedAnswer {
            seed: name.to_owned(),
            result: Ok(SeedIncidents {
                shoots,
                missing: Vec::new(),
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
        let answers = [
            seed(
                "a",
                vec![shoot("one", None, Some(ended())), shoot("two", Some(60), None)],
            ),
            seed("b", vec![shoot("one", Some(90), Some(newer))]),
            failed,
        ];
        let shown = render(&answers, &testing::pipe());
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
        let value = value(&answers, &testing::pipe()).unwrap();
        assert_eq!(value["incidents"][0]["context"], "a");
        assert_eq!(value["incidents"][3]["preventedNodes"], 3);
        assert_eq!(
            value["incidents"][3]["incident"]["outcome"],
            "OUTCOME_LEASES_EXPIRED"
        );
        assert_eq!(value["unanswered"][0]["error"], "no answer");
    }

    #[test]
    fn one_seed_has_no_column_for_it() {
        let shown = render(&[seed("", vec![shoot("one", Some(60), None)])], &testing::pipe());
        assert!(shown.starts_with("SHOOT  STATE  STARTED"), "{shown}");
        let none = render(&[seed("", Vec::new())], &testing::pipe());
        assert!(none.starts_with("No incident is known"), "{none}");
    }
}
