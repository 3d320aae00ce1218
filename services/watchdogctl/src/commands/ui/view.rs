//! The messages to pages, about the seed and about the shoot that a page shows. Pure: the clocks are arguments.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::program::Program;
use crate::render::incident::ShootIncident;
use crate::render::{Frame, text};
use crate::seed::cell::ShootCell;
use crate::seed::model::{ClockReading, FollowedProgram, KnownVerdict, LostContact, SeedModel};

use super::super::shoot::{evidence_lines, rule};

/// All about a seed that its page shows.
#[derive(Debug, PartialEq, Serialize)]
struct SeedNews {
    title: String,
    /// The seeds to choose from, each with its number of shoots that are cut off or scaled.
    seeds: Vec<(String, usize)>,
    /// Of each program its state, a line, and whether that is fine.
    programs: Vec<Value>,
    cells: Vec<ShootCell>,
}

/// The state of the seed, unless the page has it already. Times are milliseconds of Unix time.
#[derive(Debug, Serialize)]
struct SeedMessage<'a> {
    at: i64,
    #[serde(flatten)]
    news: Option<&'a SeedNews>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shoot: Option<Value>,
}

/// Keeps the news that a page was sent last.
#[derive(Debug, Default)]
pub(crate) struct PageView {
    last: Option<SeedNews>,
}

impl PageView {
    /// The message that brings a page up to date, which may show a shoot, and whether it needs that.
    pub(crate) fn next(
        &mut self,
        seed: &SeedModel,
        seeds: Vec<(String, usize)>,
        shoot: Option<&str>,
        now: &ClockReading,
    ) -> (bool, String) {
        let view = Some(SeedNews {
            title: seed.title.clone(),
            seeds,
            programs: programs(seed, now),
            cells: seed.cells(now),
        });
        let is_news = view != self.last;
        self.last = view;
        let message = SeedMessage {
            at: now.unix_millis(),
            news: self.last.as_ref().filter(|_| is_news),
            shoot: shoot.map(|name| shoot_view(seed, name, now)),
        };
        // One that cannot be written is a defect, and tells the page nothing.
        (
            is_news || shoot.is_some(),
            serde_json::to_string(&message).unwrap_or_default(),
        )
    }
}

fn programs(seed: &SeedModel, now: &ClockReading) -> Vec<Value> {
    if let Some(lost) = &seed.unconnected {
        return vec![line("seed", "lost", &since(lost, "seed", now), false)];
    }
    let line = |program| program_line(program, seed.programs.get(&program), now);
    Program::ALL.map(line).to_vec()
}

fn program_line(program: Program, followed: Option<&FollowedProgram>, now: &ClockReading) -> Value {
    let name = program.as_str();
    let Some(followed) = followed else {
        return line(name, "not asked", "", true);
    };
    let (state, mut more) = match &followed.lost {
        Some(lost) => ("lost", since(lost, name, now)),
        None if followed.has_snapshot => ("connected", String::new()),
        None => ("connecting", String::new()),
    };
    if !followed.missing.is_empty() {
        let missing = followed.missing.join(", ");
        more.push_str(&format!(
            ", INCOMPLETE: {missing} not reached; items may be absent or out of date"
        ));
    }
    if followed.unreadable > 0 {
        let unreadable = text::count(followed.unreadable, "unreadable message", "unreadable messages");
        more.push_str(&format!(", {unreadable}"));
    }
    let is_fine = state == "connected" && followed.missing.is_empty();
    line(name, state, &more, is_fine)
}

/// Since when a program does not answer, and why.
fn since(lost: &LostContact, name: &str, now: &ClockReading) -> String {
    let why = lost.error.what.as_str();
    let named = why.strip_prefix(name).and_then(|why| why.strip_prefix(": "));
    let since = text::clock(lost.since.wall, now.wall);
    format!(" since {since}: {}", named.unwrap_or(why))
}

fn line(name: &str, state: &str, more: &str, is_fine: bool) -> Value {
    json!({"state": state, "text": format!("{name} {state}{more}"), "isFine": is_fine})
}

/// All about a shoot; only its name if it is not known. Verdict and scaling are messages of the API.
fn shoot_view(seed: &SeedModel, name: &str, now: &ClockReading) -> Value {
    let record = seed.shoots.get(name);
    let scaling = record.and_then(|record| record.scaling.as_ref());
    let verdict = record.and_then(|record| record.verdict.as_ref());
    let incidents = scaling
        .into_iter()
        .flat_map(|scaling| ShootIncident::all(scaling, now.wall));
    json!({
        "name": name,
        "at": now.unix_millis(),
        "state": record.map(|record| seed.state(record, now)),
        "verdict": verdict.map(|known| verdict_view(known, now)),
        "samples": record.map(|record| &record.samples),
        "scaling": scaling,
        "isCurrent": seed.is_current(Program::ScalingCoordinator, now),
        "modeSource": scaling.map(|scaling| text::mode_source(scaling)),
        "incidents": incidents.map(|incident| incident_view(&incident)).collect::<Vec<_>>(),
    })
}

fn verdict_view(known: &KnownVerdict, now: &ClockReading) -> Value {
    let (verdict, plain) = (&known.verdict, Frame::plain(now.wall));
    let evidence = verdict.evidence.as_ref();
    json!({
        "message": verdict,
        "rule": rule(verdict),
        // The lines of `watchdogctl shoot`.
        "evidence": evidence.map(|evidence| evidence_lines(evidence, &plain)),
        "observedMillisAgo": millis_since(now, known.validity.observed),
        // Negative when it is over.
        "validForMillis": -millis_since(now, known.validity.valid_until),
    })
}

/// Times in seconds since the beginning; the length until the end or until now.
fn incident_view(incident: &ShootIncident<'_>) -> Value {
    json!({
        "summary": incident.summary(),
        "isRunning": incident.is_running(),
        "length": incident.length().as_secs_f64(),
        "moments": incident.moments(),
        "lanes": incident.down_times(),
    })
}

/// Milliseconds since a moment; negative if it is still to come.
fn millis_since(now: &ClockReading, then: Instant) -> i64 {
    let whole = |duration: Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX / 2);
    whole(now.instant.saturating_duration_since(then)) - whole(then.saturating_duration_since(now.instant))
}

#[cfg(test)]
mod tests;
