//! One screen about a seed.

use serde_json::{Value, json};
use watchdog_proto::probe::v1::{Outcome, Verdict};
use watchdog_proto::scaling::v1::{Direction, FlowState, ResourceState, ShootScaling};

use super::check::{self, CheckFinding};
use super::message::{self, field};
use super::table::{Cell, Style, TextTable};
use super::{Frame, missing, text};
use crate::error::CommandError;
use crate::program::Program;

/// The most rows of shoots that are not in mode protect. On a seed in mode observe, no shoot is.
const MOST_UNPROTECTED: usize = 10;

/// One shoot that is not healthy, or whose dependants are on their way.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct StatusRow {
    pub(crate) shoot: String,
    pub(crate) verdict: Option<Verdict>,
    pub(crate) scaling: Option<ShootScaling>,
}

impl StatusRow {
    fn is_held_down(&self) -> bool {
        let scaling = self.scaling.as_ref();
        scaling.is_some_and(|scaling| scaling.meltdown_protection_active)
    }
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct SeedStatus {
    /// Shoots by outcome, of the whole seed.
    pub(crate) counts: Vec<(Outcome, i32)>,
    pub(crate) rows: Vec<StatusRow>,
    /// Shoots that are not healthy and not among the rows.
    pub(crate) not_read: i32,
    /// Shoots that are not in mode protect, the first of them.
    pub(crate) unprotected: Vec<ShootScaling>,
    /// All of them.
    pub(crate) unprotected_count: i32,
    /// Replicas whose items may be absent.
    pub(crate) missing: Vec<String>,
    /// The programs that did not answer, and why. The rest of the screen is without it.
    pub(crate) unanswered: Vec<(&'static str, CommandError)>,
    /// Faults of the Pods of the release.
    pub(crate) replicas: Vec<CheckFinding>,
}

impl SeedStatus {
    /// True if nothing at all is known of the shoots.
    pub(crate) fn is_unknown(&self) -> bool {
        !self.unanswered.is_empty() && self.counts.is_empty() && self.rows.is_empty()
    }

    /// The exit code: that of what did not answer.
    pub(crate) fn code(&self) -> u8 {
        let codes = self.unanswered.iter().map(|(_, error)| error.code);
        codes.max().unwrap_or_default()
    }

    /// The shoots that are held down, whatever their verdicts.
    pub(crate) fn held_down(&self) -> usize {
        self.rows.iter().filter(|row| row.is_held_down()).count()
    }

    /// True if nothing keeps from saying that all is well.
    fn is_complete(&self) -> bool {
        self.unanswered.is_empty() && self.missing.is_empty() && self.replicas.is_empty()
    }
}

/// Sorted by urgency, those that are held down first; the largest wait first among equals.
pub(crate) fn sort(rows: &mut [StatusRow]) {
    rows.sort_by_cached_key(|row| {
        let verdict = row.verdict.as_ref();
        let since = verdict.and_then(|verdict| verdict.outcome_change_time.as_ref());
        let since = since.map(|since| (since.seconds, since.nanos));
        (
            !row.is_held_down(),
            urgency(row),
            since.unwrap_or((i64::MAX, 0)),
            row.shoot.clone(),
        )
    });
}

/// 0 is the most urgent.
fn urgency(row: &StatusRow) -> usize {
    let direction = row.scaling.as_ref().map(ShootScaling::direction);
    let state = row.scaling.as_ref().map(ShootScaling::state);
    let held_down = row
        .scaling
        .as_ref()
        .is_some_and(|scaling| scaling.meltdown_protection_active);
    let outcome = row
        .verdict
        .as_ref()
        .map_or(Outcome::Unspecified, Verdict::outcome);
    let is_cut_off = matches!(outcome, Outcome::LeasesExpired | Outcome::ExternalUnreachable);
    let is_settled_down = direction == Some(Direction::Down) && state == Some(FlowState::Settled);
    match () {
        () if state == Some(FlowState::Failed) => 0,
        () if is_cut_off && !is_settled_down => 1,
        // Nothing brings it back until there is a verdict again.
        () if held_down && direction == Some(Direction::Hold) => 2,
        () if is_settled_down => 3,
        () if state == Some(FlowState::Running) => 4,
        () => {
            let place = text::OUTCOMES.iter().position(|known| *known == outcome);
            5 + place.unwrap_or(text::OUTCOMES.len())
        }
    }
}

/// The screen. `most_lines` limits it to the height of a terminal.
pub(crate) fn render(status: &SeedStatus, most_lines: Option<usize>, frame: &Frame) -> String {
    let mut out = format!(
        "{}  {}\n",
        text::day_and_clock(frame.now),
        headline(status, frame)
    );
    out.push_str(&missing(&status.missing, frame));
    out.push_str(&trouble(status, frame));
    let unprotected = unprotected(status, frame);
    if status.rows.is_empty() {
        out.push_str(if status.is_complete() {
            "\nEvery shoot that is probed is healthy.\n"
        } else {
            "\nNo shoot is known to be held down or cut off. What is missing above may know of one.\n"
        });
        out.push_str(&unprotected);
        return out;
    }
    let most_lines = most_lines.map(|lines| lines.saturating_sub(unprotected.lines().count()));
    let held = status.held_down();
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
    let shown = status.rows.get(..most_rows).unwrap_or(&status.rows);
    let (held_rows, others) = shown.split_at(held.min(shown.len()));
    let title = format!("Held down: {held}");
    out.push_str(&section(&frame.paint(Style::Bad, &title), held_rows, frame));
    out.push_str(&section("Other shoots that need attention", others, frame));
    let not_shown = status.rows.len() - shown.len() + usize::try_from(status.not_read).unwrap_or(0);
    if not_shown > 0 {
        let held = match held - held_rows.len() {
            0 => String::new(),
            held => format!(", {held} of them held down"),
        };
        let rest = format!("{not_shown} more{held}; watchdogctl verdicts --outcome … lists them");
        out.push_str(&format!("{}\n", frame.paint(Style::Dim, &rest)));
    }
    out.push_str(&unprotected);
    out
}

/// Rows under a title; nothing without rows.
fn section(title: &str, rows: &[StatusRow], frame: &Frame) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut table = TextTable::new([
        "SHOOT",
        "OUTCOME",
        "EXPIRED",
        "SINCE",
        "VALID",
        "DIRECTION",
        "LEVEL",
        "WAITS FOR",
    ]);
    for row in rows {
        table.row(cells(row, frame));
    }
    format!("\n{title}\n{}", table.render(frame))
}

/// The lines about what did not answer, and about Pods.
fn trouble(status: &SeedStatus, frame: &Frame) -> String {
    let mut out = String::new();
    let mut known: Vec<&CommandError> = Vec::new();
    for (what, error) in &status.unanswered {
        let line = format!("NO ANSWER from {what}: {}", error.what());
        out.push_str(&format!("{}\n", frame.paint(Style::Bad, &line)));
        if !known.contains(&error) {
            out.push_str(&format!("  {}\n", error.what_to_do()));
        }
        known.push(error);
    }
    for finding in &status.replicas {
        let line = format!("WRONG: {}: {}", finding.subject, finding.text);
        out.push_str(&format!("{}\n", frame.paint(Style::Bad, &line)));
    }
    if !status.replicas.is_empty() {
        out.push_str("  watchdogctl check says more\n");
    }
    out
}

/// The same for programs.
pub(crate) fn value(status: &SeedStatus, frame: &Frame) -> anyhow::Result<Value> {
    let shoot = |row: &StatusRow| -> anyhow::Result<Value> {
        let mut value = json!({"shoot": row.shoot, "heldDown": row.is_held_down()});
        field(&mut value, "verdict", "probe.v1.Verdict", row.verdict.as_ref())?;
        field(
            &mut value,
            "scaling",
            "scaling.v1.ShootScaling",
            row.scaling.as_ref(),
        )?;
        Ok(value)
    };
    let counts = status.counts.iter();
    let counts = counts.map(|(outcome, shoots)| json!({"outcome": outcome.as_str_name(), "shoots": shoots}));
    let unprotected = status.unprotected.iter();
    let unprotected = unprotected.map(|scaling| message::value("scaling.v1.ShootScaling", scaling));
    let unanswered = status.unanswered.iter();
    let unanswered = unanswered.map(|(what, error)| json!({"program": what, "error": error.what()}));
    Ok(json!({
        "time": frame.now.to_string(),
        "counts": counts.collect::<Vec<_>>(),
        "heldDown": status.held_down(),
        "shoots": status.rows.iter().map(shoot).collect::<anyhow::Result<Vec<_>>>()?,
        "notShown": status.not_read,
        "unprotected": unprotected.collect::<anyhow::Result<Vec<_>>>()?,
        "unprotectedCount": status.unprotected_count,
        "missingReplicas": status.missing,
        "unanswered": unanswered.collect::<Vec<_>>(),
        "replicas": check::value(&status.replicas),
    }))
}

/// The shoots that are not in mode protect; nothing if there are none.
fn unprotected(status: &SeedStatus, frame: &Frame) -> String {
    if status.unprotected.is_empty() {
        return String::new();
    }
    let title = format!("Shoots that are not protected: {}", status.unprotected_count);
    let mut out = format!("\n{}\n", frame.paint(Style::Warn, &title));
    let mut table = TextTable::new(["SHOOT", "MODE", "BY", "UNTIL"]);
    for scaling in status.unprotected.iter().take(MOST_UNPROTECTED) {
        let until = text::timestamp(scaling.mode_expire_time.as_ref());
        table.row([
            scaling.shoot.as_str().into(),
            text::mode(scaling.mode()).into(),
            text::mode_source(scaling).into(),
            until.map_or_else(|| "-".to_owned(), text::day_and_clock).into(),
        ]);
    }
    out.push_str(&table.render(frame));
    let all = usize::try_from(status.unprotected_count).unwrap_or(0);
    let not_shown = all.saturating_sub(status.unprotected.len().min(MOST_UNPROTECTED));
    if not_shown > 0 {
        let rest = format!("{not_shown} more; ListScaling with modes lists them");
        out.push_str(&format!("{}\n", frame.paint(Style::Dim, &rest)));
    }
    out
}

/// The numbers in one line.
pub(crate) fn headline(status: &SeedStatus, frame: &Frame) -> String {
    let shoots: i32 = status.counts.iter().map(|(_, count)| count).sum();
    let counts = status
        .counts
        .iter()
        .filter(|(outcome, count)| *count > 0 || *outcome == Outcome::Healthy);
    let counts: Vec<String> = counts
        .map(|(outcome, count)| {
            frame.paint(
                outcome_style(*outcome),
                &format!("{count} {}", text::outcome(*outcome)),
            )
        })
        .collect();
    // Without the coordinator, a healthy verdict does not mean that a shoot is well: it may be held down.
    let coordinator = Program::ScalingCoordinator.as_str();
    let shoots = usize::try_from(shoots).unwrap_or(0);
    let counted = if status.unanswered.iter().any(|(what, _)| *what == coordinator) {
        check::count(shoots, "verdict", "verdicts")
    } else {
        check::count(shoots, "shoot", "shoots")
    };
    let mut line = if counts.is_empty() {
        "no verdicts".to_owned()
    } else {
        format!("{counted}: {}", counts.join(", "))
    };
    let held = status.held_down();
    if held > 0 {
        line.push_str(&format!(
            "; {}",
            frame.paint(Style::Bad, &format!("{held} held down"))
        ));
    }
    let trouble = status.unanswered.len() + status.replicas.len();
    if trouble > 0 {
        let faults = check::count(trouble, "fault", "faults");
        let of_watchdog = format!("{faults} of the watchdog");
        line.push_str(&format!("; {}", frame.paint(Style::Bad, &of_watchdog)));
    }
    line
}

fn cells(row: &StatusRow, frame: &Frame) -> Vec<Cell> {
    let (outcome, share, since, valid) = match &row.verdict {
        Some(verdict) => (
            outcome_cell(verdict),
            text::share(verdict.evidence.as_ref()),
            text::since(verdict.outcome_change_time.as_ref(), frame.now),
            valid_cell(verdict),
        ),
        None => ("-".into(), "-".to_owned(), "-".to_owned(), "-".into()),
    };
    let scaling = row.scaling.as_ref();
    let direction = scaling.map_or_else(|| "-".to_owned(), |scaling| text::direction(scaling.direction()));
    let level = text::number(scaling.and_then(|scaling| scaling.level));
    let waits_for = scaling.map_or_else(|| "-".to_owned(), waits_for);
    vec![
        row.shoot.as_str().into(),
        outcome,
        share.into(),
        since.into(),
        valid,
        direction.into(),
        level.into(),
        waits_for.into(),
    ]
}

/// The outcome; for a shoot that is not probed with the reason.
pub(crate) fn outcome_cell(verdict: &Verdict) -> Cell {
    let name = match verdict.outcome() {
        Outcome::Skipped => format!("SKIPPED {}", text::skip_reason(verdict.skip_reason())),
        outcome => text::outcome(outcome).to_owned(),
    };
    Cell::styled(outcome_style(verdict.outcome()), name)
}

pub(crate) const fn outcome_style(outcome: Outcome) -> Style {
    match outcome {
        Outcome::LeasesExpired | Outcome::ExternalUnreachable => Style::Bad,
        Outcome::Healthy => Style::Good,
        Outcome::Skipped => Style::Dim,
        _ => Style::Warn,
    }
}

/// How long a verdict may still be acted upon, as it was when it was sent.
pub(crate) fn valid_cell(verdict: &Verdict) -> Cell {
    let left = watchdog_client::wire::forward(verdict.valid_for.as_ref());
    if left.is_zero() {
        Cell::styled(Style::Bad, "expired")
    } else {
        text::duration(left).into()
    }
}

/// Says in one line what a shoot's flow waits for.
pub(crate) fn waits_for(scaling: &ShootScaling) -> String {
    let unfinished = scaling.resources.iter().find(|resource| {
        let at_level = scaling.level.is_none() || resource.level == scaling.level;
        let finished = matches!(
            resource.state(),
            ResourceState::Reached | ResourceState::Absent | ResourceState::Ignored | ResourceState::Pending
        );
        at_level && !finished
    });
    match (scaling.state(), unfinished) {
        (FlowState::Running | FlowState::Failed, Some(resource)) => {
            let name = resource
                .resource
                .as_ref()
                .map_or("?", |reference| &reference.name);
            format!(
                "{name} {}: {}",
                text::resource_state(resource.state()),
                resource.message
            )
        }
        (FlowState::KeptBack, _) => "nothing: the mode is observe".to_owned(),
        (FlowState::Settled, _) if scaling.direction() == Direction::Down => {
            "held down until the leases are renewed".to_owned()
        }
        (FlowState::Settled, _) => "-".to_owned(),
        _ => scaling.reason.clone(),
    }
}

#[cfg(test)]
mod tests {
    use watchdog_proto::scaling::v1::Mode;

    use super::*;
    use crate::render::testing;

    fn row(shoot: &str, outcome: Outcome, scaling: Option<ShootScaling>) -> StatusRow {
        StatusRow {
            shoot: shoot.to_owned(),
            verdict: Some(testing::verdict(shoot, outcome)),
            scaling,
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
            row("f", Outcome::Throttled, None),
            row("c", Outcome::Healthy, Some(restored)),
            row("b", Outcome::LeasesExpired, Some(settled)),
            row("a", Outcome::LeasesExpired, Some(testing::scaling_down("a"))),
            row("e", Outcome::ApiServerUnreachable, Some(held)),
            row("d", Outcome::LeasesExpired, Some(failed)),
        ]
    }

    #[test]
    fn the_most_urgent_comes_first() {
        let mut rows = rows();
        sort(&mut rows);
        let order: Vec<&str> = rows.iter().map(|row| row.shoot.as_str()).collect();
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
            rows: vec![row(
                "shoot--a--b",
                Outcome::LeasesExpired,
                Some(testing::scaling_down("shoot--a--b")),
            )],
            ..SeedStatus::default()
        };
        let expected = "\
2026-11-23 00:40:00Z  4 shoots: 1 LEASES_EXPIRED, 3 HEALTHY; 1 held down

Held down: 1
SHOOT        OUTCOME         EXPIRED      SINCE              VALID  DIRECTION  LEVEL  WAITS FOR
shoot--a--b  LEASES_EXPIRED  100 % (6/6)  2m10s (00:37:50Z)  12s    down       1      kube-controller-manager WAITING: \
    It has 1 ready replica.
";
        assert_eq!(render(&status, None, &testing::pipe()), expected);
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let mut rows = rows();
        sort(&mut rows);
        let status = SeedStatus {
            rows,
            not_read: 10,
            ..SeedStatus::default()
        };
        for (lines, rest) in [
            (7, "\n14 more, 3 of them held down; "),
            (9, "\n12 more, 1 of them held down; "),
            (10, "\n11 more; "),
            (14, "\n10 more; "),
        ] {
            let text = render(&status, Some(lines), &testing::pipe());
            assert_eq!(text.lines().count(), lines, "{text}");
            assert!(text.contains(rest), "{text}");
        }
    }

    #[test]
    fn the_shoots_that_are_not_protected_are_listed() {
        let unprotected = |n: usize| ShootScaling {
            mode: Mode::Observe.into(),
            ..testing::scaling_down(&format!("shoot--{n}"))
        };
        let mut status = SeedStatus {
            unprotected: (0..12).map(unprotected).collect(),
            unprotected_count: 15,
            ..SeedStatus::default()
        };
        let shown = render(&status, None, &testing::pipe());
        assert!(
            shown.contains("\nShoots that are not protected: 15\nSHOOT"),
            "{shown}"
        );
        assert!(
            shown.ends_with("\n5 more; ListScaling with modes lists them\n"),
            "{shown}"
        );
        status.unprotected = vec![ShootScaling {
            mode: Mode::Off.into(),
            mode_from_annotation: true,
            mode_expire_time: Some(prost_types::Timestamp {
                seconds: 1_796_104_800,
                nanos: 0,
            }),
            ..testing::scaling_down("a")
        }];
        status.unprotected_count = 1;
        status.rows = rows();
        sort(&mut status.rows);
        let shown = render(&status, Some(14), &testing::pipe());
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
        let mut rows = vec![
            row("cut-off", Outcome::LeasesExpired, Some(free)),
            held("skipped", Outcome::Skipped),
            StatusRow {
                verdict: None,
                ..held("silent", Outcome::Pending)
            },
            held("healthy", Outcome::Healthy),
        ];
        sort(&mut rows);
        let status = SeedStatus {
            rows,
            ..SeedStatus::default()
        };
        let text = render(&status, None, &testing::pipe());
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part}: {text}"));
        for shoot in ["\nskipped ", "\nsilent ", "\nhealthy "] {
            assert!(
                at("Held down: 3\n") < at(shoot) && at(shoot) < at("\nOther shoots"),
                "{text}"
            );
        }
        assert!(at("\nOther shoots") < at("\ncut-off "), "{text}");
        let value = value(&status, &testing::pipe()).unwrap();
        assert_eq!(
            (&value["heldDown"], &value["shoots"][0]["heldDown"]),
            (&json!(3), &json!(true))
        );
        assert_eq!(value["shoots"][3]["verdict"]["outcome"], "OUTCOME_LEASES_EXPIRED");
    }

    #[test]
    fn nobody_is_called_healthy_beside_something_that_is_missing_or_wrong() {
        let healthy = "Every shoot that is probed is healthy.";
        assert!(render(&SeedStatus::default(), None, &testing::pipe()).contains(healthy));
        let unanswered = SeedStatus {
            unanswered: vec![("lease-probe", CommandError::unreachable("it is away", "start it"))],
            ..SeedStatus::default()
        };
        let crashing = SeedStatus {
            replicas: vec![CheckFinding::wrong("weeder b", "pod", "weeder crashes")],
            ..SeedStatus::default()
        };
        let missing = SeedStatus {
            missing: vec!["lease-probe-1".to_owned()],
            ..SeedStatus::default()
        };
        for (status, line) in [
            (unanswered, "NO ANSWER from lease-probe: it is away\n  start it\n"),
            (crashing, "WRONG: weeder b: weeder crashes\n"),
            (missing, "INCOMPLETE: lease-probe-1"),
        ] {
            let text = render(&status, None, &testing::pipe());
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
            missing: vec!["lease-probe-1".to_owned()],
            ..SeedStatus::default()
        };
        let text = render(&status, None, &testing::pipe());
        assert!(text.contains("INCOMPLETE: lease-probe-1 not reached"), "{text}");
    }

    #[test]
    fn a_verdict_that_is_not_valid_any_more_says_so() {
        let verdict = Verdict {
            valid_for: testing::seconds(-1),
            ..testing::verdict("a", Outcome::LeasesExpired)
        };
        assert_eq!(valid_cell(&verdict), Cell::styled(Style::Bad, "expired"));
    }
}
