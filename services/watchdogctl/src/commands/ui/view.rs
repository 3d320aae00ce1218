//! The messages to pages, about the seed and about one shoot. Pure: the clocks are arguments.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Serialize;
use watchdog_proto::probe::v1::Verdict;
use watchdog_proto::scaling::v1::ShootScaling;

use crate::api_message::ApiMessage;
use crate::program::Program;
use crate::render::incident::{DownTime, IncidentMoment, ShootIncident};
use crate::render::{Frame, text};
use crate::seed::cell::{CellState, ShootCell};
use crate::seed::model::{ClockReading, FollowedProgram, LeaseSample, LostContact, SeedModel, ShootRecord};

use super::super::shoot::{evidence_lines, rule};

/// All about a seed that its page shows.
#[derive(Debug, PartialEq, Serialize)]
struct SeedNews {
    title: String,
    /// The seeds to choose from, each with its number of shoots that are cut off or scaled.
    seeds: Vec<(String, usize)>,
    programs: Vec<ProgramView>,
    cells: Vec<ShootCell>,
}

/// The state of the seed, unless the page has it already. Times are milliseconds of Unix time.
#[derive(Debug, Serialize)]
struct SeedMessage<'a> {
    at: i64,
    #[serde(flatten)]
    news: Option<&'a SeedNews>,
}

/// Keeps the news that a page was sent last.
#[derive(Debug, Default)]
pub(crate) struct PageView {
    last: Option<SeedNews>,
}

impl PageView {
    /// The message that brings the page up to date, and whether it needs that.
    pub(crate) fn next(
        &mut self,
        seed: &SeedModel,
        seeds: Vec<(String, usize)>,
        now: &ClockReading,
    ) -> (bool, String) {
        let view = Some(SeedNews {
            title: seed.title.clone(),
            seeds,
            programs: ProgramView::all(seed, now),
            cells: seed.cells(now),
        });
        let is_news = view != self.last;
        self.last = view;
        let message = SeedMessage {
            at: now.unix_millis(),
            news: self.last.as_ref().filter(|_| is_news),
        };
        (is_news, written(&message))
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct ProgramView {
    state: &'static str,
    /// Its name, its state and what is missing.
    text: String,
    is_fine: bool,
}

impl ProgramView {
    fn all(seed: &SeedModel, now: &ClockReading) -> Vec<Self> {
        if let Some(lost) = &seed.unconnected {
            return vec![Self::lost("seed", lost, now)];
        }
        let view = |program| Self::new(program, seed.programs.get(&program), now);
        Program::ALL.map(view).to_vec()
    }

    fn new(program: Program, followed: Option<&FollowedProgram>, now: &ClockReading) -> Self {
        let mut view = match followed {
            None => Self::named(program.as_str(), "not asked"),
            Some(FollowedProgram { lost: Some(lost), .. }) => Self::lost(program.as_str(), lost, now),
            Some(followed) if followed.has_snapshot => Self::named(program.as_str(), "connected"),
            Some(_) => Self::named(program.as_str(), "connecting"),
        };
        view.is_fine = matches!(view.state, "not asked" | "connected");
        let Some(followed) = followed else {
            return view;
        };
        if !followed.missing.is_empty() {
            view.is_fine = false;
            let missing = followed.missing.join(", ");
            let line = format!(", INCOMPLETE: {missing} not reached; items may be absent or out of date");
            view.text.push_str(&line);
        }
        if followed.unreadable > 0 {
            let unreadable = text::count(followed.unreadable, "unreadable message", "unreadable messages");
            view.text.push_str(&format!(", {unreadable}"));
        }
        view
    }

    fn named(name: &str, state: &'static str) -> Self {
        Self {
            state,
            text: format!("{name} {state}"),
            is_fine: false,
        }
    }

    fn lost(name: &str, lost: &LostContact, now: &ClockReading) -> Self {
        let mut view = Self::named(name, "lost");
        let why = lost.error.what.as_str();
        let named = why.strip_prefix(name).and_then(|why| why.strip_prefix(": "));
        let since = text::clock(lost.since.wall, now.wall);
        view.text
            .push_str(&format!(" since {since}: {}", named.unwrap_or(why)));
        view
    }
}

/// All about one shoot; only its name if it is not known. Verdict and scaling are messages of the API.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ShootMessage<'a> {
    name: &'a str,
    at: i64,
    state: Option<CellState>,
    verdict: Option<VerdictView<'a>>,
    samples: Option<&'a VecDeque<LeaseSample>>,
    scaling: Option<&'a ApiMessage<ShootScaling>>,
    /// The coordinator has reported lately.
    is_current: bool,
    mode_source: Option<&'static str>,
    /// The moments of each incident of the scaling, the one that runs first.
    incidents: Vec<IncidentView>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct VerdictView<'a> {
    message: &'a ApiMessage<Verdict>,
    rule: String,
    /// The lines of `watchdogctl shoot`.
    evidence: Option<String>,
    observed_millis_ago: i64,
    /// Negative when it is over.
    valid_for_millis: i64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct IncidentView {
    summary: String,
    is_running: bool,
    /// In seconds, until its end or until now.
    length: f64,
    moments: Vec<IncidentMoment>,
    lanes: Vec<DownTime>,
}

/// All about a shoot.
pub(crate) fn shoot_message(seed: &SeedModel, name: &str, now: &ClockReading) -> String {
    let plain = Frame::plain(now.wall);
    let unknown = ShootRecord::default();
    let known = seed.shoots.get(name);
    let record = known.unwrap_or(&unknown);
    let scaling = record.scaling.as_ref();
    let incidents = scaling
        .iter()
        .flat_map(|scaling| ShootIncident::all(scaling, now.wall));
    let incidents = incidents.map(|incident| IncidentView {
        summary: incident.summary(),
        is_running: incident.is_running(),
        length: incident.length().as_secs_f64(),
        moments: incident.moments(),
        lanes: incident.down_times(),
    });
    written(&ShootMessage {
        name,
        at: now.unix_millis(),
        state: known.map(|record| seed.state(record, now)),
        verdict: record.verdict.as_ref().map(|known| VerdictView {
            message: &known.verdict,
            rule: rule(&known.verdict),
            evidence: known
                .verdict
                .evidence
                .as_ref()
                .map(|one| evidence_lines(one, &plain)),
            observed_millis_ago: millis_since(now, known.validity.observed),
            valid_for_millis: -millis_since(now, known.validity.valid_until),
        }),
        samples: known.map(|record| &record.samples),
        scaling,
        is_current: seed.is_current(Program::ScalingCoordinator, now),
        mode_source: scaling.map(|scaling| text::mode_source(scaling)),
        incidents: incidents.collect(),
    })
}

/// Milliseconds since a moment; negative if it is still to come.
fn millis_since(now: &ClockReading, then: tokio::time::Instant) -> i64 {
    let whole = |duration: Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX / 2);
    whole(now.instant.saturating_duration_since(then)) - whole(then.saturating_duration_since(now.instant))
}

/// A message as it is sent. One that cannot be written is a defect, and tells the page nothing.
fn written(message: &impl Serialize) -> String {
    serde_json::to_string(message).unwrap_or_default()
}

#[cfg(test)]
mod tests;
