//! `status`: one screen about a seed.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Serialize, Serializer};
use watchdog_proto::probe::v1::{Outcome, Verdict};
use watchdog_proto::scaling::v1::{Direction, FlowState, Mode, ShootScaling};

use super::seeds::{SeedAnswer, SeedAnswers};
use super::{CommandAnswer, WrittenAnswer};
use crate::api_message::ApiMessage;
use crate::args::{ConnectArgs, StatusArgs};
use crate::connect::ProgramDialer;
use crate::error::CommandError;
use crate::fetch;
use crate::findings::{CheckFinding, Severity};
use crate::output::{LiveScreen, Output};
use crate::program::Program;
use crate::render::table::{Cell, Style, TextTable};
use crate::render::{self, Format, Frame, Unanswered, cells, text};
use crate::seed::cell::{CellInput, CellState};
use crate::seed::model::{ClockReading, SeedModel, ShootRecord};
use crate::seed::{FollowScope, FollowedSeed};

/// Between two updates.
const INTERVAL: Duration = Duration::from_secs(2);

/// The most rows of shoots that are not in mode protect. On a seed in mode observe, no shoot is.
const MOST_UNPROTECTED: usize = 10;

/// One shoot that is held down or not healthy, or whose dependants are on their way.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct StatusRow {
    shoot: String,
    held_down: bool,
    #[serde(skip)]
    state: CellState,
    #[serde(skip_serializing_if = "Option::is_none")]
    verdict: Option<ApiMessage<Verdict>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scaling: Option<ApiMessage<ShootScaling>>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SeedStatus {
    time: Timestamp,
    /// Shoots by outcome, of the whole seed; none without lease-probe.
    #[serde(serialize_with = "counted")]
    counts: Vec<(Outcome, usize)>,
    held_down: usize,
    #[serde(rename = "shoots")]
    rows: Vec<StatusRow>,
    /// Shoots that need attention and are not among the rows.
    not_shown: usize,
    /// Shoots that are not in mode protect, the first of them.
    unprotected: Vec<ApiMessage<ShootScaling>>,
    /// All of them.
    unprotected_count: usize,
    /// Replicas whose items may be absent.
    missing_replicas: Vec<String>,
    /// The programs that did not answer, and why. The rest of the screen is without it.
    unanswered: Vec<Unanswered>,
    /// Faults of the Pods of the release.
    replicas: Vec<CheckFinding>,
}

fn counted<S: Serializer>(counts: &[(Outcome, usize)], serializer: S) -> Result<S::Ok, S::Error> {
    let counts = counts.iter();
    serializer.collect_seq(
        counts
            .map(|(outcome, shoots)| serde_json::json!({"outcome": outcome.as_str_name(), "shoots": shoots})),
    )
}

pub(crate) async fn read(dialer: &ProgramDialer, args: &StatusArgs) -> SeedStatus {
    let seed = FollowedSeed::connected(String::new(), dialer.clone(), FollowScope::Status);
    seed.state.until_read().await;
    SeedStatus::new(&seed.state.model(), args.limit.into(), &ClockReading::now())
}

/// Shows the status again and again, until it is interrupted. What cannot be reached is waited for.
///
/// # Errors
/// When the kubeconfig cannot be used or, of one seed, when that cannot be connected to.
pub(crate) async fn watch(
    connect: &ConnectArgs,
    args: &StatusArgs,
    output: &Output,
) -> Result<(), CommandError> {
    let seeds = FollowedSeed::each(connect, FollowScope::Status).await?;
    tokio::select! {
        () = redraw(&seeds, connect.has_contexts(), args.limit.into(), output) => {}
        // The usual way to end it. A process that cannot be interrupted is killed.
        _ = tokio::signal::ctrl_c() => {}
    }
    Ok(())
}

async fn redraw(seeds: &[FollowedSeed], has_contexts: bool, limit: usize, output: &Output) {
    let screen = LiveScreen::open(output);
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    futures::future::join_all(seeds.iter().map(|seed| seed.state.until_read())).await;
    loop {
        ticks.tick().await;
        let (frame, now) = (output.frame(Format::Table), ClockReading::now());
        let shown = match seeds {
            [seed] if !has_contexts => {
                SeedStatus::new(&seed.state.model(), limit, &now).screen(output.rows(), &frame)
            }
            seeds => several(seeds, limit, &frame, &now).text(&frame),
        };
        match &screen {
            Some(screen) => screen.draw(&shown),
            None => output.print(&shown),
        }
    }
}

/// The seeds that need attention first: a terminal may end before the last one.
fn several(seeds: &[FollowedSeed], limit: usize, frame: &Frame, now: &ClockReading) -> SeedAnswers {
    let (mut calm, mut urgent) = (Vec::new(), Vec::new());
    for seed in seeds {
        let model = seed.state.model();
        let status = SeedStatus::new(&model, limit, now);
        let (to, result) = match &model.unconnected {
            Some(lost) => (&mut urgent, Err(lost.error.clone())),
            None if status.is_complete() && status.rows.is_empty() => {
                (&mut calm, WrittenAnswer::new(&status, frame))
            }
            None => (&mut urgent, WrittenAnswer::new(&status, frame)),
        };
        let seed = model.title.clone();
        to.push(SeedAnswer { seed, result });
    }
    urgent.extend(calm);
    SeedAnswers { seeds: urgent }
}

impl StatusRow {
    /// None for a shoot that needs no attention.
    fn new(shoot: &str, record: &ShootRecord, now: &ClockReading) -> Option<Self> {
        let (scaling, known) = (record.scaling.as_deref(), record.verdict.as_ref());
        let held_down = scaling.is_some_and(|scaling| scaling.meltdown_protection_active);
        let is_scaled = scaling.is_some_and(|scaling| {
            scaling.direction() == Direction::Down
                || matches!(scaling.state(), FlowState::Running | FlowState::Failed)
        });
        let is_calm = |outcome| matches!(outcome, Outcome::Healthy | Outcome::Skipped);
        let is_calm = known.is_none_or(|known| is_calm(known.verdict.outcome()));
        if is_calm && !is_scaled && !held_down {
            return None;
        }
        let input = CellInput {
            verdict: known.map(|known| &*known.verdict),
            is_valid: true,
            scaling,
            has_current_verdicts: true,
            has_current_scaling: true,
        };
        Some(Self {
            shoot: shoot.to_owned(),
            held_down,
            state: CellState::of(input),
            verdict: known.map(|known| known.at(now.instant)),
            scaling: record.scaling.clone(),
        })
    }

    fn outcome(&self) -> Outcome {
        self.verdict
            .as_ref()
            .map_or(Outcome::Unspecified, |verdict| verdict.outcome())
    }

    fn of_verdict<C: Into<Cell>>(&self, cell: impl Fn(&Verdict) -> C) -> Cell {
        let verdict = self.verdict.as_ref();
        verdict.map_or_else(|| "-".into(), |verdict| cell(verdict).into())
    }

    fn of_scaling(&self, cell: impl Fn(&ShootScaling) -> String) -> String {
        let scaling = self.scaling.as_ref();
        scaling.map_or_else(|| "-".to_owned(), |scaling| cell(scaling))
    }
}

impl SeedStatus {
    /// All that is held down, however many; of the other shoots, `most` less those.
    pub(crate) fn new(seed: &SeedModel, most: usize, now: &ClockReading) -> Self {
        let records = || seed.shoots.iter();
        let outcomes =
            || { records() }.filter_map(|(_, record)| Some(record.verdict.as_ref()?.verdict.outcome()));
        let count = |outcome| outcomes().filter(|one| *one == outcome).count();
        let has_verdicts = { seed.programs.get(&Program::LeaseProbe) }.is_some_and(|one| one.has_snapshot);
        let counts = text::OUTCOMES.iter().filter(|_| has_verdicts);
        let mut status = Self {
            time: now.wall,
            counts: counts.map(|outcome| (*outcome, count(*outcome))).collect(),
            ..Self::default()
        };
        for (program, followed) in &seed.programs {
            fetch::add_missing(&mut status.missing_replicas, followed.missing.clone());
            let lost = followed.lost.iter();
            let lost = lost.map(|lost| Unanswered::by(program.as_str(), lost.error.clone()));
            status.unanswered.extend(lost);
        }
        status.add_pods(seed);
        let scalings = records().filter_map(|(_, record)| record.scaling.as_ref());
        let unprotected = scalings.filter(|scaling| matches!(scaling.mode(), Mode::Observe | Mode::Off));
        status.unprotected = unprotected.cloned().collect();
        status.unprotected_count = status.unprotected.len();
        status.unprotected.truncate(most);
        let rows = records().filter_map(|(shoot, record)| StatusRow::new(shoot, record, now));
        status.set_rows(rows.collect(), most);
        status
    }

    fn add_pods(&mut self, seed: &SeedModel) {
        let pods = seed.pods.clone().unwrap_or_else(|| {
            let what_to_do = "check the connection to the API server of the seed";
            Err(CommandError::unreachable("no answer within 15 s", what_to_do))
        });
        match pods {
            Ok(faults) => self.replicas = faults,
            Err(error) => self.unanswered.push(Unanswered::by("the Pods", error)),
        }
        self.replicas
            .retain(|finding| finding.severity == Severity::Wrong);
    }

    /// Those that are held down come first, then the most urgent; the largest wait first among equals.
    fn set_rows(&mut self, mut rows: Vec<StatusRow>, most: usize) {
        rows.sort_by_cached_key(|row| {
            let verdict = row.verdict.as_ref();
            let since = verdict.and_then(|verdict| verdict.outcome_change_time.as_ref());
            let since = since.map(|since| (since.seconds, since.nanos));
            // Of those that are held, nothing brings these back until there is a verdict again.
            let direction = row.scaling.as_ref().map(|scaling| scaling.direction());
            let place = text::OUTCOMES.iter().position(|known| *known == row.outcome());
            (
                !row.held_down,
                row.state,
                direction != Some(Direction::Hold),
                place.unwrap_or(text::OUTCOMES.len()),
                since.unwrap_or((i64::MAX, 0)),
                row.shoot.clone(),
            )
        });
        self.held_down = rows.iter().filter(|row| row.held_down).count();
        let most = most.max(self.held_down);
        self.not_shown = rows.len().saturating_sub(most);
        rows.truncate(most);
        self.rows = rows;
    }

    /// True if nothing keeps from saying that all is well.
    fn is_complete(&self) -> bool {
        self.unanswered.is_empty() && self.missing_replicas.is_empty() && self.replicas.is_empty()
    }

    /// The screen. `most_lines` limits it to the height of a terminal.
    pub(crate) fn screen(&self, most_lines: Option<usize>, frame: &Frame) -> String {
        let mut out = format!("{}  {}\n", text::day_and_clock(frame.now), self.headline(frame));
        out.push_str(&render::missing(&self.missing_replicas, frame));
        out.push_str(&render::unanswered(&self.unanswered, frame));
        out.push_str(&self.faults(frame));
        let unprotected = self.unprotected_section(frame);
        if self.rows.is_empty() {
            out.push_str(if self.is_complete() {
                "\nEvery shoot that is probed is healthy.\n"
            } else {
                "\nNo shoot is known to be held down or cut off. What is missing above may know of one.\n"
            });
            return out + &unprotected;
        }
        let most_lines = most_lines.map(|lines| lines.saturating_sub(unprotected.lines().count()));
        let held = self.held_down;
        // An empty line, a title and a header for each section, and the line about the rest.
        let rows_of = |sections: usize| {
            let used = out.lines().count() + 3 * sections + 1;
            most_lines.map_or(usize::MAX, |lines| lines.saturating_sub(used).max(1))
        };
        // The second section is there only where the first one leaves room for it.
        let most_rows = match held {
            0 => rows_of(1),
            held => rows_of(2).max(rows_of(1).min(held)),
        };
        let shown = self.rows.get(..most_rows).unwrap_or(&self.rows);
        let (held_rows, others) = shown.split_at(held.min(shown.len()));
        let title = frame.paint(Style::Bad, &format!("Held down: {held}"));
        out.push_str(&section(&title, held_rows, frame));
        out.push_str(&section("Other shoots that need attention", others, frame));
        let not_shown = self.rows.len() - shown.len() + self.not_shown;
        if not_shown > 0 {
            let held = match held - held_rows.len() {
                0 => String::new(),
                held => format!(", {held} of them held down"),
            };
            let rest = format!("{not_shown} more{held}; watchdogctl verdicts --outcome … lists them");
            out.push_str(&format!("{}\n", frame.paint(Style::Dim, &rest)));
        }
        out + &unprotected
    }

    /// The lines about Pods.
    fn faults(&self, frame: &Frame) -> String {
        let lines = self.replicas.iter().map(|finding| {
            let line = format!("WRONG: {}: {}", finding.subject, finding.text);
            format!("{}\n", frame.paint(Style::Bad, &line))
        });
        let mut out: String = lines.collect();
        if !out.is_empty() {
            out.push_str("  watchdogctl check says more\n");
        }
        out
    }

    /// The shoots that are not in mode protect; nothing if there are none.
    fn unprotected_section(&self, frame: &Frame) -> String {
        let shown = self
            .unprotected
            .get(..MOST_UNPROTECTED)
            .unwrap_or(&self.unprotected);
        if shown.is_empty() {
            return String::new();
        }
        let title = format!("Shoots that are not protected: {}", self.unprotected_count);
        let until = |scaling: &ShootScaling| {
            let until = text::timestamp(scaling.mode_expire_time.as_ref());
            until.map_or_else(|| "-".to_owned(), text::day_and_clock)
        };
        let table = TextTable::of(shown)
            .column("SHOOT", |scaling| scaling.shoot.clone())
            .column("MODE", |scaling| text::mode(scaling.mode()))
            .column("BY", |scaling| text::mode_source(scaling))
            .column("UNTIL", |scaling| until(scaling));
        let mut out = format!("\n{}\n{}", frame.paint(Style::Warn, &title), table.render(frame));
        let not_shown = self.unprotected_count - shown.len();
        if not_shown > 0 {
            let rest = format!("{not_shown} more; ListScaling with modes lists them");
            out.push_str(&format!("{}\n", frame.paint(Style::Dim, &rest)));
        }
        out
    }
}

impl CommandAnswer for SeedStatus {
    fn text(&self, frame: &Frame) -> String {
        self.screen(None, frame)
    }

    /// The numbers in one line.
    fn headline(&self, frame: &Frame) -> String {
        let shoots: usize = self.counts.iter().map(|(_, count)| count).sum();
        let counts = self.counts.iter();
        let counts = counts.filter(|(outcome, count)| *count > 0 || *outcome == Outcome::Healthy);
        let counts: Vec<String> = counts
            .map(|(outcome, count)| {
                let shown = format!("{count} {}", text::outcome(*outcome));
                frame.paint(cells::outcome_style(*outcome), &shown)
            })
            .collect();
        // Without the coordinator, a healthy verdict does not mean that a shoot is well: it may be held down.
        let coordinator = Some(Program::ScalingCoordinator.as_str());
        let counted = if self.unanswered.iter().any(|one| one.program == coordinator) {
            text::count(shoots, "verdict", "verdicts")
        } else {
            text::count(shoots, "shoot", "shoots")
        };
        let mut parts = match counts.as_slice() {
            [] => vec!["no verdicts".to_owned()],
            counts => vec![format!("{counted}: {}", counts.join(", "))],
        };
        if self.held_down > 0 {
            parts.push(frame.paint(Style::Bad, &format!("{} held down", self.held_down)));
        }
        let faults = self.unanswered.len() + self.replicas.len();
        if faults > 0 {
            let faults = text::count(faults, "fault", "faults");
            parts.push(frame.paint(Style::Bad, &format!("{faults} of the watchdog")));
        }
        parts.join("; ")
    }

    /// That of what did not answer.
    fn code(&self) -> u8 {
        render::code_of(&self.unanswered)
    }
}

/// Rows under a title; nothing without rows.
fn section(title: &str, rows: &[StatusRow], frame: &Frame) -> String {
    let table = TextTable::of(rows)
        .column("SHOOT", |row| row.shoot.clone())
        .column("OUTCOME", |row| row.of_verdict(cells::outcome))
        .column("EXPIRED", |row| {
            row.of_verdict(|verdict| text::share(verdict.evidence.as_ref()))
        })
        .column("SINCE", |row| {
            row.of_verdict(|verdict| text::since(verdict.outcome_change_time.as_ref(), frame.now))
        })
        .column("VALID", |row| row.of_verdict(cells::valid))
        .column("DIRECTION", |row| {
            row.of_scaling(|scaling| text::direction(scaling.direction()))
        })
        .column("LEVEL", |row| {
            row.of_scaling(|scaling| text::number(scaling.level))
        })
        .column("WAITS FOR", |row| row.of_scaling(cells::waits_for));
    match table.render_rows(frame) {
        none if none.is_empty() => none,
        table => format!("\n{title}\n{table}"),
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::render::testing;
    use crate::seed::model::KnownVerdict;

    fn row(shoot: &str, outcome: Option<Outcome>, scaling: Option<ShootScaling>) -> StatusRow {
        let now = ClockReading {
            instant: Instant::now(),
            wall: testing::pipe().now,
        };
        let verdict = |outcome| KnownVerdict::new(ApiMessage(testing::verdict(shoot, outcome)), now.instant);
        let record = ShootRecord {
            verdict: outcome.map(verdict),
            scaling: scaling.map(ApiMessage),
            ..ShootRecord::default()
        };
        StatusRow::new(shoot, &record, &now).unwrap()
    }

    fn status(rows: Vec<StatusRow>) -> SeedStatus {
        let mut status = SeedStatus::default();
        status.set_rows(rows, 100);
        status
    }

    fn shown(status: &SeedStatus) -> String {
        status.text(&testing::pipe())
    }

    fn rows() -> Vec<StatusRow> {
        let settled = ShootScaling {
            state: FlowState::Settled.into(),
            level: None,
            ..testing::scaling_down("b")
        };
        let restored = ShootScaling {
            direction: Direction::Up.into(),
            ..testing::scaling_down("c")
        };
        let failed = ShootScaling {
            state: FlowState::Failed.into(),
            ..testing::scaling_down("d")
        };
        let held = ShootScaling {
            direction: Direction::Hold.into(),
            state: FlowState::Holding.into(),
            ..testing::scaling_down("e")
        };
        vec![
            row("f", Some(Outcome::Throttled), None),
            row("c", Some(Outcome::Healthy), Some(restored)),
            row("b", Some(Outcome::LeasesExpired), Some(settled)),
            row(
                "a",
                Some(Outcome::LeasesExpired),
                Some(testing::scaling_down("a")),
            ),
            row("e", Some(Outcome::ApiServerUnreachable), Some(held)),
            row("d", Some(Outcome::LeasesExpired), Some(failed)),
        ]
    }

    #[test]
    fn the_most_urgent_comes_first() {
        let status = status(rows());
        let order: Vec<&str> = status.rows.iter().map(|row| row.shoot.as_str()).collect();
        assert_eq!(order, ["d", "a", "e", "b", "c", "f"]);
    }

    #[test]
    fn a_row_says_what_its_shoot_waits_for() {
        let status = SeedStatus {
            counts: vec![
                (Outcome::LeasesExpired, 1),
                (Outcome::Throttled, 0),
                (Outcome::Healthy, 3),
            ],
            ..status(vec![row(
                "shoot--a--b",
                Some(Outcome::LeasesExpired),
                Some(testing::scaling_down("shoot--a--b")),
            )])
        };
        let expected = "\
2026-11-23 00:40:00Z  4 shoots: 1 LEASES_EXPIRED, 3 HEALTHY; 1 held down

Held down: 1
SHOOT        OUTCOME         EXPIRED      SINCE              VALID  DIRECTION  LEVEL  WAITS FOR
shoot--a--b  LEASES_EXPIRED  100 % (6/6)  2m10s (00:37:50Z)  12s    down       1      kube-controller-manager WAITING: \
    It has 1 ready replica.
";
        assert_eq!(shown(&status), expected);
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let status = SeedStatus {
            not_shown: 10,
            ..status(rows())
        };
        for (lines, rest) in [
            (7, "\n14 more, 3 of them held down; "),
            (9, "\n12 more, 1 of them held down; "),
            (10, "\n11 more; "),
            (14, "\n10 more; "),
        ] {
            let text = status.screen(Some(lines), &testing::pipe());
            assert_eq!(text.lines().count(), lines, "{text}");
            assert!(text.contains(rest), "{text}");
        }
    }

    #[test]
    fn the_shoots_that_are_not_protected_are_listed() {
        let unprotected = |n: usize| {
            ApiMessage(ShootScaling {
                mode: Mode::Observe.into(),
                ..testing::scaling_down(&format!("shoot--{n}"))
            })
        };
        let mut status = SeedStatus {
            unprotected: (0..12).map(unprotected).collect(),
            unprotected_count: 15,
            ..SeedStatus::default()
        };
        let shown = self::shown(&status);
        assert!(
            shown.contains("\nShoots that are not protected: 15\nSHOOT"),
            "{shown}"
        );
        assert!(
            shown.ends_with("\n5 more; ListScaling with modes lists them\n"),
            "{shown}"
        );
        status.unprotected = vec![ApiMessage(ShootScaling {
            mode: Mode::Off.into(),
            mode_from_annotation: true,
            mode_expire_time: Some(prost_types::Timestamp {
                seconds: 1_796_104_800,
                nanos: 0,
            }),
            ..testing::scaling_down("a")
        })];
        status.unprotected_count = 1;
        status.set_rows(rows(), 100);
        let shown = status.screen(Some(14), &testing::pipe());
        assert_eq!(shown.lines().count(), 14, "{shown}");
        let expected = "\
Shoots that are not protected: 1
SHOOT  MODE  BY          UNTIL
a      off   annotation  2026-12-01 06:00:00Z
";
        assert!(shown.ends_with(expected), "{shown}");
    }

    #[test]
    fn what_is_held_down_comes_first_whatever_its_verdict() {
        let held = |shoot: &str, outcome| row(shoot, outcome, Some(testing::scaling_down(shoot)));
        let free = ShootScaling {
            meltdown_protection_active: false,
            ..testing::scaling_down("cut-off")
        };
        let status = status(vec![
            row("cut-off", Some(Outcome::LeasesExpired), Some(free)),
            held("skipped", Some(Outcome::Skipped)),
            held("silent", None),
            held("healthy", Some(Outcome::Healthy)),
        ]);
        let text = shown(&status);
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part}: {text}"));
        for shoot in ["\nskipped ", "\nsilent ", "\nhealthy "] {
            assert!(
                at("Held down: 3\n") < at(shoot) && at(shoot) < at("\nOther shoots"),
                "{text}"
            );
        }
        assert!(at("\nOther shoots") < at("\ncut-off "), "{text}");
        let value = serde_json::to_value(&status).unwrap();
        assert_eq!(
            (&value["heldDown"], &value["shoots"][0]["heldDown"]),
            (&3.into(), &true.into())
        );
        assert_eq!(value["shoots"][3]["verdict"]["outcome"], "OUTCOME_LEASES_EXPIRED");
    }

    #[test]
    fn nobody_is_called_healthy_beside_something_that_is_missing_or_wrong() {
        let healthy = "Every shoot that is probed is healthy.";
        assert!(shown(&SeedStatus::default()).contains(healthy));
        let unanswered = SeedStatus {
            unanswered: vec![Unanswered::by(
                "lease-probe",
                CommandError::unreachable("it is away", "start it"),
            )],
            ..SeedStatus::default()
        };
        let crashing = SeedStatus {
            replicas: vec![CheckFinding::wrong("weeder b", "pod", "weeder crashes")],
            ..SeedStatus::default()
        };
        let missing = SeedStatus {
            missing_replicas: vec!["lease-probe-1".to_owned()],
            ..SeedStatus::default()
        };
        for (status, line) in [
            (unanswered, "NO ANSWER from lease-probe: it is away\n  start it\n"),
            (crashing, "WRONG: weeder b: weeder crashes\n"),
            (missing, "INCOMPLETE: lease-probe-1"),
        ] {
            let text = shown(&status);
            assert!(text.contains(line) && !text.contains(healthy), "{text}");
            assert!(
                text.contains("No shoot is known to be held down or cut off."),
                "{text}"
            );
        }
    }

    #[test]
    fn a_missing_replica_is_named() {
        let status = SeedStatus {
            missing_replicas: vec!["lease-probe-1".to_owned()],
            ..SeedStatus::default()
        };
        let text = shown(&status);
        assert!(text.contains("INCOMPLETE: lease-probe-1 not reached"), "{text}");
    }
}
