//! `status`: one screen about a seed.
//!
//! The programs count and filter, so on a calm seed of 10,000 shoots the answers have no shoot in them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::join_all;
use futures::stream;
use jiff::Timestamp;
use serde::{Serialize, Serializer};
use tokio::sync::watch;
use tokio::time::Instant;
use watchdog_client::consumer::{CALL_TIMEOUT, LeaseProbe, ScalingCoordinator};
use watchdog_proto::probe::v1::{Outcome, Verdict};
use watchdog_proto::scaling::v1::{
    Direction, FlowState, ListScalingRequest, ListScalingResponse, Mode, ShootScaling,
};

use super::seeds::{SeedAnswer, SeedAnswers};
use super::{CommandAnswer, WrittenAnswer};
use crate::api_message::ApiMessage;
use crate::args::{ConnectArgs, StatusArgs};
use crate::connect::ProgramDialer;
use crate::connect::seeds::SeedConnection;
use crate::error::CommandError;
use crate::fetch;
use crate::findings::{CheckFinding, Severity};
use crate::output::{LiveScreen, Output};
use crate::pods;
use crate::program::Program;
use crate::render::table::{Cell, Style, TextTable};
use crate::render::{self, Format, Frame, Unanswered, cells, text};
use crate::seed::cell::{CellInput, CellState};
use crate::seed::model::KnownVerdict;

/// Between two updates.
const INTERVAL: Duration = Duration::from_secs(2);

/// The most rows of shoots that are not in mode protect. On a seed in mode observe, no shoot is.
const MOST_UNPROTECTED: usize = 10;

/// Calls about single shoots at the same time.
const AT_ONCE: usize = 16;

/// One shoot that is held down or not healthy, or whose dependants are on their way.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct StatusRow {
    shoot: String,
    held_down: bool,
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
    counts: Vec<(Outcome, u32)>,
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

fn counted<S: Serializer>(counts: &[(Outcome, u32)], serializer: S) -> Result<S::Ok, S::Error> {
    let counts = counts.iter();
    serializer.collect_seq(
        counts
            .map(|(outcome, shoots)| serde_json::json!({"outcome": outcome.as_str_name(), "shoots": shoots})),
    )
}

/// The last answers of lease-probe.
#[derive(Debug, Default)]
struct VerdictAnswers {
    counts: Vec<(Outcome, u32)>,
    /// Of the shoots that are neither healthy nor skipped.
    verdicts: BTreeMap<String, KnownVerdict>,
    missing: Vec<String>,
}

/// The last answers of the coordinator.
#[derive(Debug, Default)]
struct ScalingAnswers {
    /// Of the shoots that are held down or on their way.
    scalings: BTreeMap<String, ApiMessage<ShootScaling>>,
    /// The first of those that are not in mode protect, and their number.
    unprotected: ListScalingResponse,
}

/// Reads the status of a seed. It keeps the last answers of a program that does not answer any more.
pub(crate) struct StatusReader {
    dialer: ProgramDialer,
    /// Most rows but those that are held down.
    limit: u16,
    verdicts: VerdictAnswers,
    scaling: ScalingAnswers,
}

impl StatusReader {
    pub(crate) fn new(dialer: ProgramDialer, args: &StatusArgs) -> Self {
        Self {
            dialer,
            limit: args.limit,
            verdicts: VerdictAnswers::default(),
            scaling: ScalingAnswers::default(),
        }
    }

    pub(crate) async fn read(&mut self) -> SeedStatus {
        let (verdicts, scaling, weeder, pods) = tokio::join!(
            self.read_verdicts(),
            self.read_scaling(),
            self.read_weeder(),
            self.dialer.pods()
        );
        let mut status = SeedStatus {
            time: Timestamp::now(),
            ..SeedStatus::default()
        };
        let lease_probe = status.answered(Program::LeaseProbe.as_str(), verdicts);
        let lease_probe = lease_probe.map(|(report, client)| {
            self.verdicts = report;
            client
        });
        let coordinator = status.answered(Program::ScalingCoordinator.as_str(), scaling);
        let coordinator = coordinator.map(|(report, client)| {
            self.scaling = report;
            client
        });
        let missing = status.answered(Program::Weeder.as_str(), weeder);
        status.missing_replicas = missing.unwrap_or_default();
        let pods = status.answered("the Pods", pods).flatten().unwrap_or_default();
        status.replicas = pods::findings(&pods, status.time);
        status
            .replicas
            .retain(|finding| finding.severity == Severity::Wrong);
        status.add_reports(&self.verdicts, &self.scaling, self.limit.into());
        let rows = std::mem::take(&mut status.rows).into_iter();
        let rows = rows.map(|row| row.completed(lease_probe.as_ref(), coordinator.as_ref()));
        status.rows = stream::iter(rows).buffered(AT_ONCE).collect().await;
        status
    }

    async fn read_verdicts(&self) -> Result<(VerdictAnswers, LeaseProbe), CommandError> {
        let sent_at = Instant::now();
        let summary = fetch::summary(&self.dialer, Program::LeaseProbe).await?;
        let count = |outcome: &Outcome| {
            let mut counts = summary.outcomes.iter();
            let found = counts.find(|count| count.outcome() == *outcome);
            (*outcome, found.map_or(0, |count| count.shoots))
        };
        let mut urgent = text::OUTCOMES.to_vec();
        urgent.retain(|outcome| !matches!(outcome, Outcome::Healthy | Outcome::Skipped));
        let lease_probe = self.dialer.lease_probe().await?;
        let listed = fetch::verdicts(&lease_probe, &urgent).await?;
        let known = |verdict: Verdict| {
            let shoot = verdict.shoot.clone();
            (shoot, KnownVerdict::new(ApiMessage(verdict), sent_at))
        };
        let mut counts: Vec<(Outcome, u32)> = text::OUTCOMES.iter().map(count).collect();
        // Outcomes that are newer than this program.
        let counted: u32 = counts.iter().map(|(_, shoots)| shoots).sum();
        let unknown = summary.items.saturating_sub(counted);
        if unknown > 0 {
            counts.push((Outcome::Unspecified, unknown));
        }
        let report = VerdictAnswers {
            counts,
            verdicts: listed.verdicts.into_iter().map(known).collect(),
            missing: summary.missing,
        };
        Ok((report, lease_probe))
    }

    /// The fields of a filter must all match, so there are two lists. A shoot that goes down between them is in the
    /// second one. A shoot that is cut off is in neither until it is scaled, but has a verdict that says so.
    async fn read_scaling(&self) -> Result<(ScalingAnswers, ScalingCoordinator), CommandError> {
        let coordinator = self.dialer.coordinator().await?;
        let states = [FlowState::Running, FlowState::Failed, FlowState::KeptBack];
        let filters = [
            ListScalingRequest {
                meltdown_protection_active: Some(false),
                states: states.map(Into::into).to_vec(),
                ..ListScalingRequest::default()
            },
            ListScalingRequest {
                meltdown_protection_active: Some(true),
                ..ListScalingRequest::default()
            },
        ];
        let mut scalings = BTreeMap::new();
        for filter in filters {
            let listed = fetch::scalings(&coordinator, filter).await?.scalings.into_iter();
            scalings.extend(listed.map(|scaling| (scaling.shoot.clone(), ApiMessage(scaling))));
        }
        // Its first page is enough: the rest is only counted.
        let request = ListScalingRequest {
            page_size: self.limit.into(),
            modes: vec![Mode::Observe.into(), Mode::Off.into()],
            ..ListScalingRequest::default()
        };
        let answer = fetch::ask(Program::ScalingCoordinator, coordinator.list_scaling(request));
        let mut unprotected = answer.await?;
        // A coordinator that does not know the filter sends all shoots.
        let is_unprotected = |scaling: &ShootScaling| matches!(scaling.mode(), Mode::Observe | Mode::Off);
        if !unprotected.scalings.iter().all(is_unprotected) {
            (unprotected.scalings, unprotected.total_size) = (Vec::new(), 0);
        }
        let report = ScalingAnswers {
            scalings,
            unprotected,
        };
        Ok((report, coordinator))
    }

    /// Nothing of the weeder is shown, only which of its replicas are missing.
    async fn read_weeder(&self) -> Result<Vec<String>, CommandError> {
        if !self.dialer.programs().any(|program| program == Program::Weeder) {
            return Ok(Vec::new());
        }
        Ok(fetch::summary(&self.dialer, Program::Weeder).await?.missing)
    }
}

/// The last status of a seed, or why there is none.
type LatestStatus = Result<SeedStatus, CommandError>;

/// Reads the status of a seed until it is dropped. One that cannot be connected to is tried again and again.
async fn read_again(mut seed: SeedConnection, args: &StatusArgs, latest: watch::Sender<LatestStatus>) {
    let mut reader = None;
    loop {
        let status = async {
            let reader = match &mut reader {
                Some(reader) => reader,
                none => none.insert(StatusReader::new(seed.dialer().await?, args)),
            };
            Ok(Box::pin(reader.read()).await)
        };
        let status = status.await;
        latest.send_modify(|latest| *latest = status);
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Shows the status again and again, until it is interrupted. What cannot be reached is waited for.
///
/// # Errors
/// When the kubeconfig cannot be used or, of one seed, when that cannot be connected to.
pub(crate) async fn watch(
    connect: &ConnectArgs,
    args: &StatusArgs,
    format: Format,
    output: &Output,
) -> Result<(), CommandError> {
    let (mut seeds, mut readers) = (Vec::new(), Vec::new());
    for seed in SeedConnection::each_to_follow(connect).await? {
        let none = CommandError::unreachable(
            "no answer yet",
            "check the connection to the API server of the seed, and the Pods of the watchdog with kubectl",
        );
        let (sender, latest) = watch::channel(Err(none));
        seeds.push((seed.name.clone(), latest));
        readers.push(read_again(seed, args, sender));
    }
    tokio::select! {
        ended = redraw(seeds, connect.has_contexts(), format, output) => ended,
        _ = join_all(readers) => Ok(()),
        // The usual way to end it. A process that cannot be interrupted is killed.
        _ = tokio::signal::ctrl_c() => Ok(()),
    }
}

async fn redraw(
    mut seeds: Vec<(String, watch::Receiver<LatestStatus>)>,
    has_contexts: bool,
    format: Format,
    output: &Output,
) -> Result<(), CommandError> {
    let screen = LiveScreen::open(output, format);
    let first = join_all(seeds.iter_mut().map(|(_, latest)| latest.changed()));
    if has_contexts {
        // A seed that takes longer is shown without an answer.
        let _ = tokio::time::timeout(CALL_TIMEOUT, first).await;
    } else {
        first.await;
    }
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let frame = output.frame(format);
        let shown = match seeds.as_slice() {
            [(_, latest)] if !has_contexts => {
                let rows = output.rows();
                WrittenAnswer::new(&latest.borrow().clone()?, &Frame { rows, ..frame })?
            }
            seeds => WrittenAnswer::new(&several(seeds, &frame), &frame)?,
        };
        let shown = shown.printed(format)?;
        match &screen {
            Some(screen) => screen.draw(&shown),
            None if output.print(&shown) => {}
            // Nobody reads it any more.
            None => return Ok(()),
        }
    }
}

/// The seeds that need attention first: a terminal may end before the last one.
fn several(seeds: &[(String, watch::Receiver<LatestStatus>)], frame: &Frame) -> SeedAnswers {
    let (mut calm, mut urgent) = (Vec::new(), Vec::new());
    for (seed, latest) in seeds {
        let latest = latest.borrow().clone();
        let is_calm = |status: &SeedStatus| status.is_complete() && status.rows.is_empty();
        let to = if latest.as_ref().is_ok_and(is_calm) {
            &mut calm
        } else {
            &mut urgent
        };
        to.push(SeedAnswer {
            seed: seed.clone(),
            result: latest.and_then(|status| WrittenAnswer::new(&status, frame)),
        });
    }
    urgent.extend(calm);
    SeedAnswers { seeds: urgent }
}

impl StatusRow {
    /// The row with the verdict on a shoot that is scaled although it is healthy, or the scaling of one that is neither
    /// held down nor on its way. What a program does not know is left out.
    async fn completed(
        mut self,
        lease_probe: Option<&LeaseProbe>,
        coordinator: Option<&ScalingCoordinator>,
    ) -> Self {
        if let (None, Some(lease_probe)) = (&self.verdict, lease_probe) {
            let answer = fetch::verdict(lease_probe, &self.shoot).await.ok();
            self.verdict = answer.and_then(|answer| answer.verdict).map(ApiMessage);
        }
        if let (None, Some(coordinator)) = (&self.scaling, coordinator) {
            let answer = fetch::scaling(coordinator, &self.shoot).await.ok();
            self.scaling = answer.and_then(|answer| answer.scaling).map(ApiMessage);
        }
        self
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
    /// The answer of a program, or none, which is noted.
    fn answered<T>(&mut self, program: &'static str, answer: Result<T, CommandError>) -> Option<T> {
        let note = |error| self.unanswered.push(Unanswered::by(program, error));
        answer.map_err(note).ok()
    }

    /// All that is held down, however many; of the other shoots, `most` less those.
    fn add_reports(&mut self, verdicts: &VerdictAnswers, scaling: &ScalingAnswers, most: usize) {
        let coordinator = Program::ScalingCoordinator;
        let missing = fetch::missing(coordinator, scaling.unprotected.completeness.as_ref());
        fetch::add_missing(&mut self.missing_replicas, verdicts.missing.clone());
        fetch::add_missing(&mut self.missing_replicas, missing);
        self.counts = verdicts.counts.clone();
        let unprotected = scaling.unprotected.scalings.iter();
        self.unprotected = unprotected.cloned().map(ApiMessage).collect();
        self.unprotected_count = usize::try_from(scaling.unprotected.total_size).unwrap_or_default();
        let shoots: BTreeSet<&String> = verdicts.verdicts.keys().chain(scaling.scalings.keys()).collect();
        let now = Instant::now();
        let row = |shoot: &String| {
            let scaling = scaling.scalings.get(shoot).cloned();
            let is_held = |scaling: &ApiMessage<ShootScaling>| scaling.meltdown_protection_active;
            StatusRow {
                shoot: shoot.clone(),
                held_down: scaling.as_ref().is_some_and(is_held),
                verdict: verdicts.verdicts.get(shoot).map(|known| known.at(now)),
                scaling,
            }
        };
        self.set_rows(shoots.into_iter().map(row).collect(), most);
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
                CellState::of(CellInput::current(row.verdict.as_deref(), row.scaling.as_deref())),
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

    /// True if nothing that may know more is missing or wrong.
    fn is_complete(&self) -> bool {
        self.unanswered.is_empty() && self.missing_replicas.is_empty() && self.replicas.is_empty()
    }

    /// The line about a seed without a shoot that needs attention.
    fn all_clear(&self) -> &'static str {
        let is_calm = |outcome: &Outcome| matches!(outcome, Outcome::Healthy | Outcome::Skipped);
        let urgent = self.counts.iter().filter(|(outcome, _)| !is_calm(outcome));
        if !self.is_complete() {
            "No shoot is known to be held down or cut off. What is missing above may know of one."
        } else if urgent.map(|(_, shoots)| shoots).sum::<u32>() > 0 {
            "No shoot is known to be held down. Not every shoot is healthy: watchdogctl verdicts lists them."
        } else if self.unprotected_count > 0 {
            "Every shoot that is probed is healthy, but not every shoot is protected."
        } else {
            "Every shoot that is probed is healthy."
        }
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
            let rest = format!("{not_shown} more; watchdogctl scaling lists them");
            out.push_str(&format!("{}\n", frame.paint(Style::Dim, &rest)));
        }
        out
    }
}

impl CommandAnswer for SeedStatus {
    /// The screen, no longer than the terminal where it is drawn again and again.
    fn text(&self, frame: &Frame) -> String {
        let mut out = format!("{}  {}\n", text::day_and_clock(frame.now), self.headline(frame));
        out.push_str(&render::missing(&self.missing_replicas, frame));
        out.push_str(&render::unanswered(&self.unanswered, frame));
        out.push_str(&self.faults(frame));
        let unprotected = self.unprotected_section(frame);
        if self.rows.is_empty() {
            out.push_str(&format!("\n{}\n", self.all_clear()));
            return out + &unprotected;
        }
        let most_lines = frame
            .rows
            .map(|rows| rows.saturating_sub(unprotected.lines().count()));
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
            let rest =
                format!("{not_shown} more{held}; watchdogctl verdicts and watchdogctl scaling list them");
            out.push_str(&format!("{}\n", frame.paint(Style::Dim, &rest)));
        }
        out + &unprotected
    }

    /// The numbers in one line.
    fn headline(&self, frame: &Frame) -> String {
        let shoots: u32 = self.counts.iter().map(|(_, count)| count).sum();
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
        let faults = self.unanswered.len() + self.replicas.len() + self.missing_replicas.len();
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
    use super::*;
    use crate::render::testing;

    fn row(shoot: &str, outcome: Option<Outcome>, scaling: Option<ShootScaling>) -> StatusRow {
        StatusRow {
            shoot: shoot.to_owned(),
            held_down: scaling
                .as_ref()
                .is_some_and(|scaling| scaling.meltdown_protection_active),
            verdict: outcome.map(|outcome| ApiMessage(testing::verdict(shoot, outcome))),
            scaling: scaling.map(ApiMessage),
        }
    }

    fn status(rows: Vec<StatusRow>) -> SeedStatus {
        let mut status = SeedStatus::default();
        status.set_rows(rows, 100);
        status
    }

    fn shown(status: &SeedStatus) -> String {
        status.text(&testing::pipe())
    }

    /// Of this height.
    fn terminal(lines: usize) -> Frame {
        Frame {
            rows: Some(lines),
            ..testing::pipe()
        }
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
            let text = status.text(&terminal(lines));
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
            shown.ends_with("\n5 more; watchdogctl scaling lists them\n"),
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
        let shown = status.text(&terminal(14));
        assert_eq!(shown.lines().count(), 14, "{shown}");
        let expected = "\
Shoots that are not protected: 1
SHOOT  MODE  BY          UNTIL
a      off   annotation  2026-12-01 06:00:00Z
";
        assert!(shown.ends_with(expected), "{shown}");
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
        let unprotected = SeedStatus {
            unprotected_count: 3,
            ..SeedStatus::default()
        };
        let unlisted = SeedStatus {
            counts: vec![(Outcome::Healthy, 2), (Outcome::Unspecified, 1)],
            ..SeedStatus::default()
        };
        for (status, line) in [
            (
                unprotected,
                "Every shoot that is probed is healthy, but not every shoot is protected.",
            ),
            (
                unlisted,
                "3 shoots: 2 HEALTHY, 1 UNSPECIFIED\n\nNo shoot is known to be held down. Not every shoot",
            ),
        ] {
            let text = shown(&status);
            assert!(text.contains(line) && !text.contains(healthy), "{text}");
        }
    }
}
