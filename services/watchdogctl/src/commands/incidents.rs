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
use crate::render::incident::ShootIncident;
use crate::render::table::{Cell, Style, TextTable};
use crate::render::{AnswerGaps, Frame, text};

/// The incidents of all seeds that were asked.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct IncidentList {
    incidents: Vec<IncidentRow>,
    /// Replicas of several seeds with the context of each.
    #[serde(flatten)]
    gaps: AnswerGaps,
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
    #[serde(skip)]
    lasted: String,
    #[serde(skip)]
    outcome: String,
    #[serde(skip)]
    prevented: String,
}

pub(crate) async fn read(connect: &ConnectArgs) -> Result<IncidentList, CommandError> {
    let ask = async |dialer: ProgramDialer| dialer.scalings(ListScalingRequest::default()).await;
    Ok(IncidentList::new(ask_each(connect, ask).await?, Timestamp::now()))
}

impl IncidentList {
    /// Those that run come first, then the newest.
    fn new(answers: Vec<SeedAnswer<ListScalingResponse>>, now: Timestamp) -> Self {
        let mut all = Self::default();
        for SeedAnswer { seed, result } in answers {
            match result {
                Ok(answer) => all.add(&seed, &answer, now),
                Err(error) => all.gaps.add(None, Some(seed), error),
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
        self.gaps.add_missing(named);
        for scaling in &answer.scalings {
            self.incidents
                .extend(ShootIncident::all(scaling, now).map(|incident| {
                    let prevention = incident.prevention();
                    IncidentRow {
                        context: seed.to_owned(),
                        shoot: scaling.shoot.clone(),
                        is_running: incident.is_running(),
                        prevented_nodes: prevention.nodes,
                        incident: ApiMessage(incident.incident.clone()),
                        lasted: text::duration(incident.length()),
                        outcome: incident.outcome(),
                        prevented: prevention.text,
                    }
                }));
        }
    }
}

impl CommandAnswer for IncidentList {
    fn text(&self, frame: &Frame) -> String {
        let out = self.gaps.lines(frame);
        if self.incidents.is_empty() {
            return out + "No incident is known since the coordinators became the leaders.\n";
        }
        let has_seeds = self.incidents.iter().any(|row| !row.context.is_empty());
        let table = TextTable::of(&self.incidents)
            .column_if(has_seeds, "SEED", |row| row.context.clone())
            .column("SHOOT", |row| row.shoot.clone())
            .column("STATE", |row| state(row))
            .column("STARTED", |row| text::since(row.incident.start_time, frame.now))
            .column("LASTED", |row| row.lasted.clone())
            .column("OUTCOME", |row| row.outcome.clone())
            .column("MODE", |row| mode(&row.incident))
            .column("DOWN AFTER", |row| {
                text::sent_duration(row.incident.verdict_to_last_write)
            })
            .column("PREVENTED", |row| row.prevented.clone());
        out + &table.render(frame)
    }

    fn code(&self) -> u8 {
        self.gaps.code()
    }
}

fn state(row: &IncidentRow) -> Cell {
    match row.incident.verdict_to_healthy {
        _ if row.is_running => Cell::styled(Style::Warn, "runs"),
        Some(_) => Cell::styled(Style::Good, "ended"),
        None => Cell::styled(Style::Good, "released"),
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
        let unanswered = serde_json::json!({"context": "c", "error": "no answer", "advice": "look"});
        assert_eq!(value["unanswered"][0], unanswered);
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
