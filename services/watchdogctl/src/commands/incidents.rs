//! `incidents`: those of many shoots, of one seed or of several.

use std::cmp::Reverse;

use jiff::Timestamp;
use serde::Serialize;
use watchdog_proto::scaling::v1::{Incident, ListScalingRequest, ListScalingResponse};

use super::CommandAnswer;
use super::seeds::{SeedAnswer, ask_each};
use crate::api_message::ApiMessage;
use crate::args::ConnectArgs;
use crate::connect::ProgramDialer;
use crate::error::CommandError;
use crate::fetch;
use crate::program::Program;
use crate::render::incident::{self, prevention};
use crate::render::table::{Cell, Style, TextTable};
use crate::render::{self, Frame, Unanswered, text};

/// The incidents of all seeds that were asked.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct IncidentList {
    incidents: Vec<IncidentRow>,
    /// Of several seeds, with the context of each.
    missing_replicas: Vec<String>,
    unanswered: Vec<Unanswered>,
}

/// One incident, and whose it is.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct IncidentRow {
    /// Empty if only one seed was asked.
    #[serde(skip_serializing_if = "String::is_empty")]
    context: String,
    shoot: String,
    is_running: bool,
    prevented_nodes: Option<u32>,
    incident: ApiMessage<Incident>,
}

pub(crate) async fn read(connect: &ConnectArgs) -> Result<IncidentList, CommandError> {
    let answers = ask_each(connect, async |dialer: ProgramDialer| {
        let coordinator = dialer.coordinator().await?;
        fetch::scalings(&coordinator, ListScalingRequest::default()).await
    });
    Ok(IncidentList::new(answers.await?, Timestamp::now()))
}

impl IncidentList {
    /// Those that run come first, then the newest.
    fn new(answers: Vec<SeedAnswer<ListScalingResponse>>, now: Timestamp) -> Self {
        let mut all = Self::default();
        for SeedAnswer { seed, result } in answers {
            match result {
                Ok(answer) => all.add(&seed, &answer, now),
                Err(error) => all.unanswered.push(Unanswered {
                    program: None,
                    context: Some(seed),
                    error,
                }),
            }
        }
        all.incidents.sort_by_cached_key(|row| {
            let started = row.incident.start_time.as_ref().map(|at| (at.seconds, at.nanos));
            (
                !row.is_running,
                Reverse(started),
                row.context.clone(),
                row.shoot.clone(),
            )
        });
        all
    }

    fn add(&mut self, seed: &str, answer: &ListScalingResponse, now: Timestamp) {
        let missing = fetch::missing(Program::ScalingCoordinator, answer.completeness.as_ref());
        let named = missing.into_iter().map(|replica| match seed {
            "" => replica,
            seed => format!("{seed}: {replica}"),
        });
        self.missing_replicas.extend(named);
        for scaling in &answer.scalings {
            let rows = incident::incidents(scaling).map(|(_, incident)| IncidentRow {
                context: seed.to_owned(),
                shoot: scaling.shoot.clone(),
                is_running: incident.verdict_to_restored.is_none(),
                prevented_nodes: prevention(incident, now).nodes,
                incident: ApiMessage(incident.clone()),
            });
            self.incidents.extend(rows);
        }
    }
}

impl CommandAnswer for IncidentList {
    fn text(&self, frame: &Frame) -> String {
        let mut out = render::missing(&self.missing_replicas, frame);
        out.push_str(&render::unanswered(&self.unanswered, frame));
        if self.incidents.is_empty() {
            out.push_str("No incident is known since the coordinators became the leaders.\n");
            return out;
        }
        let has_seeds = self.incidents.iter().any(|row| !row.context.is_empty());
        let table = TextTable::of(&self.incidents)
            .column_if(has_seeds, "SEED", |row| row.context.clone())
            .column("SHOOT", |row| row.shoot.clone())
            .column("STATE", |row| state(row.is_running))
            .column("STARTED", |row| {
                text::since(row.incident.start_time.as_ref(), frame.now)
            })
            .column("LASTED", |row| {
                text::duration(incident::length(&row.incident, frame.now))
            })
            .column("OUTCOME", |row| incident::outcome(&row.incident))
            .column("MODE", |row| mode(&row.incident))
            .column("DOWN AFTER", |row| {
                text::sent_duration(row.incident.verdict_to_last_write.as_ref())
            })
            .column("PREVENTED", |row| prevention(&row.incident, frame.now).text);
        out + &table.render(frame)
    }

    fn code(&self) -> u8 {
        render::code_of(&self.unanswered)
    }
}

fn state(is_running: bool) -> Cell {
    if is_running {
        Cell::styled(Style::Warn, "runs")
    } else {
        Cell::styled(Style::Good, "ended")
    }
}

const fn mode(incident: &Incident) -> &'static str {
    if incident.in_mode_observe {
        "observe"
    } else {
        "protect"
    }
}

#[cfg(test)]
mod tests {
    use watchdog_proto::scaling::v1::ShootScaling;

    use super::*;
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
        let all = IncidentList::new(answers, testing::pipe().now);
        let shown = all.text(&testing::pipe());
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
        let value = serde_json::to_value(&all).unwrap();
        assert_eq!(value["incidents"][0]["context"], "a");
        assert_eq!(value["incidents"][3]["preventedNodes"], 3);
        assert_eq!(
            value["incidents"][3]["incident"]["outcome"],
            "OUTCOME_LEASES_EXPIRED"
        );
        assert_eq!(value["unanswered"][0]["error"], "no answer");
    }

    fn shown(scalings: Vec<ShootScaling>) -> String {
        let all = IncidentList::new(vec![seed("", scalings)], testing::pipe().now);
        all.text(&testing::pipe())
    }

    #[test]
    fn one_seed_has_no_column_for_it() {
        let one = shown(vec![shoot("one", Some(60), None)]);
        assert!(one.starts_with("SHOOT  STATE  STARTED"), "{one}");
        let none = shown(Vec::new());
        assert!(none.starts_with("No incident is known"), "{none}");
    }
}
