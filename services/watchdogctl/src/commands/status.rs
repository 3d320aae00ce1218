//! `status`: one screen about a seed.
//!
//! The programs count and filter, so on a calm seed of 10,000 shoots the answers have no shoot in them.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::join_all;
use futures::stream;
use jiff::Timestamp;
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::Instant;
use watchdog_client::consumer::CALL_TIMEOUT;
use watchdog_proto::probe::v1::{ListVerdictsRequest, Outcome, OutcomeCount, Verdict};
use watchdog_proto::scaling::v1::{
    Direction, FlowState, ListScalingRequest, ListScalingResponse, Mode, ShootScaling,
};

use super::WrittenAnswer;
use super::seeds::{SeedAnswer, side_by_side};
use crate::api_message::ApiMessage;
use crate::args::{ConnectArgs, StatusArgs};
use crate::connect::ProgramDialer;
use crate::connect::seeds::SeedConnection;
use crate::error::{CommandError, CommandResult};
use crate::findings::{CheckFinding, Severity};
use crate::output::{LiveScreen, Output};
use crate::pods;
use crate::program::Program;
use crate::render::table::TextTable;
use crate::render::{AnswerGaps, Format, Frame, Style, cells, text};
use crate::seed::cell::{CellInput, CellState};
use crate::seed::model::{ClockReading, KnownVerdict};

/// Between two updates.
const INTERVAL: Duration = Duration::from_secs(2);

/// The most rows of shoots that are not in mode protect. On a seed in mode observe, no shoot is.
const MOST_UNPROTECTED: usize = 10;

/// Calls about single shoots at the same time.
const AT_ONCE: usize = 16;

/// One shoot that is held down or not healthy, or whose dependants are on their way.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
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
    /// Shoots by outcome, of the whole seed, the most urgent first; none without lease-probe.
    counts: Vec<ApiMessage<OutcomeCount>>,
    held_down: usize,
    #[serde(rename = "shoots")]
    rows: Vec<StatusRow>,
    /// Shoots that need attention and are not among the rows.
    not_shown: usize,
    /// Shoots that are not in mode protect, the first of them.
    unprotected: Vec<ApiMessage<ShootScaling>>,
    /// All of them.
    unprotected_count: usize,
    /// The rest of the screen is without what did not answer.
    #[serde(flatten)]
    gaps: AnswerGaps,
    /// Faults of the Pods of the release.
    replicas: Vec<CheckFinding>,
    /// The line about a seed without a shoot that needs attention.
    #[serde(skip_serializing_if = "Option::is_none")]
    conclusion: Option<&'static str>,
}

/// An answer of lease-probe.
#[derive(Debug, Default)]
struct VerdictAnswers {
    counts: Vec<ApiMessage<OutcomeCount>>,
    /// Of the shoots that are neither healthy nor skipped.
    verdicts: BTreeMap<String, KnownVerdict>,
    missing: Vec<String>,
}

impl VerdictAnswers {
    async fn read(dialer: &ProgramDialer) -> CommandResult<Self> {
        let now = ClockReading::now();
        let summary = dialer.summary(Program::LeaseProbe).await?;
        let mut counts: Vec<_> = summary.outcomes.into_iter().map(ApiMessage).collect();
        counts.sort_by_key(|count| urgency(count.outcome()));
        let urgent = text::OUTCOMES.into_iter().filter(|outcome| !is_calm(*outcome));
        let request = ListVerdictsRequest {
            outcomes: urgent.map(Into::into).collect(),
            ..ListVerdictsRequest::default()
        };
        let listed = dialer.all_pages(Program::LeaseProbe, request).await?;
        let verdicts = listed.verdicts.into_iter().map(|verdict| {
            let shoot = verdict.shoot.clone();
            (shoot, KnownVerdict::new(ApiMessage(verdict), now.instant, &now))
        });
        Ok(Self {
            counts,
            verdicts: verdicts.collect(),
            missing: summary.missing,
        })
    }
}

/// An answer of the coordinator.
#[derive(Debug, Default)]
struct ScalingAnswers {
    /// Of the shoots that are held down or on their way.
    scalings: BTreeMap<String, ApiMessage<ShootScaling>>,
    /// The first of those that are not in mode protect, and their number.
    unprotected: ListScalingResponse,
}

impl ScalingAnswers {
    /// The fields of a filter must all match, so there are two lists. A shoot that goes down between them is in the
    /// second one. A shoot that is cut off is in neither until it is scaled, but has a verdict that says so.
    async fn read(dialer: &ProgramDialer, limit: u16) -> CommandResult<Self> {
        let states = [FlowState::Running, FlowState::Failed, FlowState::KeptBack];
        let on_their_way = ListScalingRequest {
            meltdown_protection_active: Some(false),
            states: states.map(Into::into).to_vec(),
            ..ListScalingRequest::default()
        };
        let held_down = ListScalingRequest {
            meltdown_protection_active: Some(true),
            ..ListScalingRequest::default()
        };
        let mut scalings = BTreeMap::new();
        for filter in [on_their_way, held_down] {
            let listed = dialer.all_pages(Program::ScalingCoordinator, filter).await?;
            for scaling in listed.scalings {
                scalings.insert(scaling.shoot.clone(), ApiMessage(scaling));
            }
        }
        // Its first page is enough: the rest is only counted.
        let request = ListScalingRequest {
            page_size: limit.into(),
            modes: vec![Mode::Observe.into(), Mode::Off.into()],
            ..ListScalingRequest::default()
        };
        Ok(Self {
            scalings,
            unprotected: dialer.ask(Program::ScalingCoordinator, request).await?,
        })
    }
}

/// Nothing of the weeder is shown, only which of its replicas are missing.
async fn read_weeder(dialer: &ProgramDialer) -> CommandResult<Vec<String>> {
    if !dialer.programs().any(|program| program == Program::Weeder) {
        return Ok(Vec::new());
    }
    Ok(dialer.summary(Program::Weeder).await?.missing)
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
        let dialer = &self.dialer;
        let (verdicts, scaling, missing, pods) = tokio::join!(
            VerdictAnswers::read(dialer),
            ScalingAnswers::read(dialer, self.limit),
            read_weeder(dialer),
            dialer.pods()
        );
        let mut status = SeedStatus {
            time: Timestamp::now(),
            ..SeedStatus::default()
        };
        let gaps = &mut status.gaps;
        let verdicts = gaps.answered(Program::LeaseProbe.as_str(), verdicts);
        let scaling = gaps.answered(Program::ScalingCoordinator.as_str(), scaling);
        let missing = gaps.answered(Program::Weeder.as_str(), missing);
        gaps.missing_replicas.extend(missing.into_iter().flatten());
        let pods = gaps.answered("the Pods", pods).flatten().unwrap_or_default();
        status.replicas = pods::findings(&pods, status.time);
        let is_wrong = |finding: &CheckFinding| finding.severity == Severity::Wrong;
        status.replicas.retain(is_wrong);
        // Only a program that answers is asked for more.
        let (lease_probe, coordinator) = (verdicts.is_some(), scaling.is_some());
        self.verdicts = verdicts.unwrap_or_else(|| take(&mut self.verdicts));
        self.scaling = scaling.unwrap_or_else(|| take(&mut self.scaling));
        status.add_answers(&self.verdicts, &self.scaling, self.limit.into());
        let rows = take(&mut status.rows).into_iter();
        let rows = rows.map(|row| row.completed(dialer, lease_probe, coordinator));
        status.rows = stream::iter(rows).buffered(AT_ONCE).collect().await;
        // What was held down since the lists were read.
        status.sort_rows();
        status.conclusion = status.rows.is_empty().then(|| status.all_clear());
        status
    }
}

/// The last status of a seed, or why there is none.
type LatestStatus = CommandResult<SeedStatus>;

/// Reads the status of a seed until it is dropped. One that cannot be connected to is tried again and again.
async fn read_again(mut seed: SeedConnection, args: &StatusArgs, latest: watch::Sender<LatestStatus>) {
    let mut reader = None;
    loop {
        let status = match seed.dialer().await {
            Ok(dialer) => {
                let reader = reader.get_or_insert_with(|| StatusReader::new(dialer, args));
                Ok(Box::pin(reader.read()).await)
            }
            Err(error) => Err(error),
        };
        let is_answered = status
            .as_ref()
            .is_ok_and(|status| status.gaps.unanswered.is_empty());
        latest.send_modify(|latest| *latest = status);
        if let Some(reader) = reader.as_mut().filter(|_| !is_answered) {
            reader.dialer = reader.dialer.renewed().await;
        }
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
) -> CommandResult<()> {
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
) -> CommandResult<()> {
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
        let shown = side_by_side(answers(&seeds, &frame), &frame)?;
        let shown = match format {
            // Each is a document of its own.
            Format::Yaml => format!("---\n{}", shown.printed(format)?),
            _ => shown.printed(format)?,
        };
        match &screen {
            Some(screen) => screen.draw(&shown),
            None if output.print(&shown) => {}
            // Nobody reads it any more.
            None => return Ok(()),
        }
    }
}

/// The seeds that need attention first: a terminal may end before the last one.
fn answers(seeds: &[(String, watch::Receiver<LatestStatus>)], frame: &Frame) -> Vec<SeedAnswer> {
    let latest = seeds.iter().map(|(seed, latest)| (seed, latest.borrow().clone()));
    let mut latest: Vec<_> = latest.collect();
    let is_calm = |status: &SeedStatus| status.is_complete() && status.rows.is_empty();
    latest.sort_by_key(|(_, status)| status.as_ref().is_ok_and(is_calm));
    let answer = |(seed, status): (&String, LatestStatus)| SeedAnswer {
        seed: seed.clone(),
        result: status.and_then(|status| status.written(frame)),
    };
    latest.into_iter().map(answer).collect()
}

impl StatusRow {
    /// The row with the verdict on a shoot that is scaled although it is healthy, or the scaling of one that is neither
    /// held down nor on its way. What a program does not know is left out.
    async fn completed(mut self, dialer: &ProgramDialer, lease_probe: bool, coordinator: bool) -> Self {
        if lease_probe && self.verdict.is_none() {
            let answer = dialer.verdict(&self.shoot).await.ok();
            self.verdict = answer.and_then(|answer| answer.verdict).map(ApiMessage);
        }
        if coordinator && self.scaling.is_none() {
            let answer = dialer.scaling(&self.shoot).await.ok();
            self.set_scaling(answer.and_then(|answer| answer.scaling).map(ApiMessage));
        }
        self
    }

    fn set_scaling(&mut self, scaling: Option<ApiMessage<ShootScaling>>) {
        let is_held = |scaling: &ApiMessage<ShootScaling>| scaling.meltdown_protection_active;
        self.held_down = scaling.as_ref().is_some_and(is_held);
        self.scaling = scaling;
    }
}

/// True if a shoot with this outcome needs no attention.
const fn is_calm(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Healthy | Outcome::Skipped)
}

/// The place of an outcome among all; the last for one that is newer than this program.
fn urgency(outcome: Outcome) -> usize {
    let place = text::OUTCOMES.iter().position(|known| *known == outcome);
    place.unwrap_or(text::OUTCOMES.len())
}

impl SeedStatus {
    /// All that is held down, however many; of the other shoots, `most` less those.
    fn add_answers(&mut self, verdicts: &VerdictAnswers, scaling: &ScalingAnswers, most: usize) {
        let completeness = scaling.unprotected.completeness.as_ref();
        self.gaps.add_missing(Program::ScalingCoordinator, completeness);
        self.gaps
            .missing_replicas
            .extend(verdicts.missing.iter().cloned());
        self.counts.clone_from(&verdicts.counts);
        let unprotected = scaling.unprotected.scalings.iter();
        self.unprotected = unprotected.cloned().map(ApiMessage).collect();
        self.unprotected_count = usize::try_from(scaling.unprotected.total_size).unwrap_or_default();
        let now = Instant::now();
        let shoots: BTreeSet<&String> = verdicts.verdicts.keys().chain(scaling.scalings.keys()).collect();
        for shoot in shoots {
            let known = verdicts.verdicts.get(shoot);
            let mut row = StatusRow {
                shoot: shoot.clone(),
                verdict: known.map(|known| known.at(now)),
                ..StatusRow::default()
            };
            row.set_scaling(scaling.scalings.get(shoot).cloned());
            self.rows.push(row);
        }
        self.sort_rows();
        let most = most.max(self.held_down);
        self.not_shown = self.rows.len().saturating_sub(most);
        self.rows.truncate(most);
    }

    /// Those that are held down come first, then the most urgent; the largest wait first among equals.
    fn sort_rows(&mut self) {
        self.rows.sort_by_cached_key(|row| {
            let (verdict, scaling) = (row.verdict.as_deref(), row.scaling.as_deref());
            // Of those that are held, nothing brings these back until there is a verdict again.
            let is_on_hold = scaling.is_some_and(|scaling| scaling.direction() == Direction::Hold);
            let outcome = verdict.map_or(Outcome::Unspecified, Verdict::outcome);
            let since = verdict.and_then(|verdict| verdict.outcome_change_time);
            (
                !row.held_down,
                CellState::of(CellInput::current(verdict, scaling)),
                !is_on_hold,
                urgency(outcome),
                since.map_or((i64::MAX, 0), |since| (since.seconds, since.nanos)),
                row.shoot.clone(),
            )
        });
        self.held_down = self.rows.iter().filter(|row| row.held_down).count();
    }

    /// True if nothing that may know more is missing or wrong.
    fn is_complete(&self) -> bool {
        self.gaps.count() == 0 && self.replicas.is_empty()
    }

    /// The line about a seed without a shoot that needs attention.
    fn all_clear(&self) -> &'static str {
        let mut counts = self.counts.iter();
        if !self.is_complete() {
            "No shoot is known to be held down or cut off. A replica or program that is named above may know of one."
        } else if counts.any(|count| !is_calm(count.outcome())) {
            "No shoot is known to be held down. Not every shoot is healthy: watchdogctl verdicts lists them."
        } else if self.unprotected_count > 0 {
            "Every shoot that is probed is healthy, but not every shoot is protected."
        } else {
            "Every shoot that is probed is healthy."
        }
    }

    /// The lines about Pods.
    fn faults(&self, frame: &Frame) -> String {
        let mut out = String::new();
        for finding in &self.replicas {
            let line = format!("WRONG: {}: {}", finding.subject, finding.text);
            out.push_str(&format!("{}\n", frame.paint(Style::Bad, &line)));
        }
        if !out.is_empty() {
            out.push_str("  watchdogctl check says more\n");
        }
        out
    }

    /// The shoots that are not in mode protect; nothing if there are none.
    fn unprotected_section(&self, frame: &Frame) -> String {
        let shown = self.unprotected.iter().take(MOST_UNPROTECTED);
        let not_shown = self.unprotected_count.saturating_sub(shown.len());
        let title = format!("Shoots that are not protected: {}", self.unprotected_count);
        let until = |scaling: &ShootScaling| {
            text::shown(text::timestamp(scaling.mode_expire_time).map(text::day_and_clock))
        };
        let table = TextTable::of(shown)
            .column("SHOOT", |scaling| scaling.shoot.clone())
            .column("MODE", |scaling| text::value(scaling.mode().as_str_name()))
            .column("BY", |scaling| text::mode_source(scaling))
            .column("UNTIL", |scaling| until(scaling));
        let mut out = table.after(&format!("\n{}\n", frame.paint(Style::Warn, &title)), frame);
        if !out.is_empty() && not_shown > 0 {
            let rest = format!("{not_shown} more; watchdogctl scaling lists them");
            out.push_str(&format!("{}\n", frame.paint(Style::Dim, &rest)));
        }
        out
    }

    pub(crate) fn written(&self, frame: &Frame) -> CommandResult<WrittenAnswer> {
        let plain = Frame {
            color: false,
            ..*frame
        };
        Ok(WrittenAnswer {
            headline: self.headline(&plain),
            code: self.gaps.code(),
            ..WrittenAnswer::of(frame, self.text(frame), self)?
        })
    }

    fn text(&self, frame: &Frame) -> String {
        let mut out = format!("{}  {}\n", text::day_and_clock(frame.now), self.headline(frame));
        out.push_str(&self.gaps.lines(frame));
        out.push_str(&self.faults(frame));
        let unprotected = self.unprotected_section(frame);
        if self.rows.is_empty() {
            return format!("{out}\n{}\n{unprotected}", self.all_clear());
        }
        let (held, others) = self.rows.split_at(self.held_down);
        let title = frame.paint(Style::Bad, &format!("Held down: {}", self.held_down));
        out.push_str(&table(held, frame).after(&format!("\n{title}\n"), frame));
        out.push_str(&table(others, frame).after("\nOther shoots that need attention\n", frame));
        if self.not_shown > 0 {
            let what = "watchdogctl verdicts and watchdogctl scaling list them";
            let rest = format!("{} more; {what}", self.not_shown);
            out.push_str(&format!("{}\n", frame.paint(Style::Dim, &rest)));
        }
        out + &unprotected
    }

    /// The numbers in one line.
    fn headline(&self, frame: &Frame) -> String {
        // Without the coordinator, a healthy verdict does not mean that a shoot is well: it may be held down.
        let (one, several) = if self.gaps.lacks(Program::ScalingCoordinator) {
            ("verdict", "verdicts")
        } else {
            ("shoot", "shoots")
        };
        let shown = |count: &ApiMessage<OutcomeCount>| {
            let name = count.outcome().as_str_name();
            let text = format!("{} {}", count.shoots, text::value(name));
            frame.paint(cells::style(name), &text)
        };
        let shoots: u32 = self.counts.iter().map(|count| count.shoots).sum();
        let shown: Vec<String> = self.counts.iter().map(shown).collect();
        let mut parts = vec![match shown.as_slice() {
            [] if self.gaps.lacks(Program::LeaseProbe) => "no verdicts".to_owned(),
            [] => "0 shoots".to_owned(),
            shown => format!("{}: {}", text::count(shoots, one, several), shown.join(", ")),
        }];
        if self.held_down > 0 {
            parts.push(frame.paint(Style::Bad, &format!("{} held down", self.held_down)));
        }
        let faults = self.gaps.count() + self.replicas.len();
        if faults > 0 {
            let faults = text::count(faults, "fault", "faults");
            parts.push(frame.paint(Style::Bad, &format!("{faults} of the watchdog")));
        }
        parts.join("; ")
    }
}

fn table<'a>(rows: &'a [StatusRow], frame: &Frame) -> TextTable<&'a StatusRow> {
    let direction = |scaling: &ShootScaling| text::value(scaling.direction().as_str_name());
    let level = |scaling: &ShootScaling| text::shown(scaling.level);
    TextTable::of(rows)
        .column("SHOOT", |row| row.shoot.clone())
        .verdict_columns(frame, |row| row.verdict.as_deref())
        .column("DIRECTION", |row| cells::of(row.scaling.as_deref(), direction))
        .column("LEVEL", |row| cells::of(row.scaling.as_deref(), level))
        .column("WAITS FOR", |row| {
            cells::of(row.scaling.as_deref(), cells::waits_for)
        })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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

    fn counts<const N: usize>(counts: [(Outcome, u32); N]) -> Vec<ApiMessage<OutcomeCount>> {
        let count = |(outcome, shoots): (Outcome, u32)| {
            let outcome = outcome.into();
            ApiMessage(OutcomeCount { outcome, shoots })
        };
        counts.map(count).to_vec()
    }

    fn status(rows: Vec<StatusRow>) -> SeedStatus {
        let mut status = SeedStatus {
            rows,
            ..SeedStatus::default()
        };
        status.sort_rows();
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
            counts: counts([(Outcome::LeasesExpired, 1), (Outcome::Healthy, 3)]),
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
    fn a_shoot_that_is_held_down_since_the_lists_were_read_counts() {
        let mut late = row("a", Some(Outcome::ApiServerUnreachable), None);
        assert_eq!(status(vec![late.clone()]).held_down, 0);
        late.set_scaling(Some(ApiMessage(testing::scaling_down("a"))));
        let status = status(vec![late]);
        assert_eq!((status.held_down, status.rows[0].held_down), (1, true));
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
        let shown = self::shown(&status);
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
        let mut unanswered = SeedStatus::default();
        let away = CommandError::unreachable("it is away", "start it");
        unanswered.gaps.answered("lease-probe", Err::<(), _>(away));
        let json = serde_json::to_value(&unanswered).unwrap();
        let advice = json!([{"program": "lease-probe", "error": "it is away", "advice": "start it"}]);
        assert_eq!(json["unanswered"], advice);
        let crashing = SeedStatus {
            replicas: vec![CheckFinding::new(
                Severity::Wrong,
                "weeder b",
                "pod",
                "weeder crashes".to_owned(),
            )],
            ..SeedStatus::default()
        };
        let mut missing = SeedStatus::default();
        missing.gaps.missing_replicas.insert("lease-probe-1".to_owned());
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
            counts: counts([(Outcome::Healthy, 2), (Outcome::Unspecified, 1)]),
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
