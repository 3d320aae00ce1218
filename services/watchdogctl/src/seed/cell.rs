//! The state of a shoot, and its cell on the page.

use serde::Serialize;
use watchdog_proto::probe::v1::{Outcome, Verdict};
use watchdog_proto::scaling::v1::{Direction, FlowState, ShootScaling};

use crate::render::{cells, text};

/// The state of a cell, the most urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum CellState {
    /// A level failed after all its attempts.
    Failed,
    /// The nodes are cut off, and the dependants are not down yet, or nothing holds them down.
    Losing,
    /// The dependants are held down.
    Held,
    /// The dependants are scaled up again.
    Restoring,
    /// There is a verdict, and it says neither healthy nor cut off; or there is none yet.
    Unknown,
    /// The last verdict or report is too old to say anything about now.
    Stale,
    /// The nodes are connected.
    Healthy,
    /// lease-probe does not probe it.
    Skipped,
}

/// One cell. The texts are those of a row in the list of what needs attention, and absent in the others.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct ShootCell {
    pub(crate) name: String,
    pub(crate) state: CellState,
    /// The mode is observe or off.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) unprotected: bool,
    /// Expired leases, for example `100 % (6/6)`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) share: Option<String>,
    /// Since when, in milliseconds of Unix time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) since: Option<i64>,
    /// One sentence: what it waits for, or why nothing is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
    /// The state rests on a report of the coordinator that is not current.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) outdated: bool,
}

/// All that a cell is made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CellInput<'a> {
    pub(crate) verdict: Option<&'a Verdict>,
    /// The verdict is valid now. SKIPPED has no validity of its own: it is as current as the reports of lease-probe.
    pub(crate) is_valid: bool,
    pub(crate) scaling: Option<&'a ShootScaling>,
    /// The coordinator has reported lately, or is not followed.
    pub(crate) has_current_scaling: bool,
}

impl<'a> CellInput<'a> {
    /// The current reports of both programs.
    pub(crate) const fn current(verdict: Option<&'a Verdict>, scaling: Option<&'a ShootScaling>) -> Self {
        Self {
            verdict,
            is_valid: true,
            scaling,
            has_current_scaling: true,
        }
    }
}

impl ShootCell {
    pub(crate) fn new(name: &str, input: CellInput<'_>) -> Self {
        let state = CellState::of(input);
        let mut cell = Self {
            name: name.to_owned(),
            state,
            unprotected: input.scaling.is_some_and(cells::is_unprotected),
            share: None,
            since: None,
            note: None,
            outdated: rests_on_scaling(state) && !input.has_current_scaling,
        };
        if state < CellState::Healthy {
            cell.describe(input);
        }
        cell
    }

    fn describe(&mut self, CellInput { verdict, scaling, .. }: CellInput<'_>) {
        let evidence = verdict.and_then(|verdict| verdict.evidence.as_ref());
        self.share = evidence.map(text::share);
        let of_verdict = verdict.and_then(|verdict| text::unix_millis(verdict.outcome_change_time));
        let of_scaling = scaling.and_then(|scaling| text::unix_millis(scaling.direction_change_time));
        let (since, note) = match self.state {
            CellState::Unknown => (of_verdict, verdict.map(unknown)),
            CellState::Stale => (of_verdict, verdict.map(stale)),
            CellState::Losing => (of_verdict, scaling.map(cells::waits_for)),
            _ => (of_scaling.or(of_verdict), scaling.map(cells::waits_for)),
        };
        self.since = since;
        let missing = || Some("lease-probe or the coordinator has not reported it".to_owned());
        self.note = note.or_else(missing);
        if self.outdated {
            let last = self.note.take().unwrap_or_default();
            self.note = Some(format!(
                "as last reported; the coordinator does not answer: {last}"
            ));
        }
    }
}

/// True for the states that only the coordinator knows.
const fn rests_on_scaling(state: CellState) -> bool {
    matches!(state, CellState::Failed | CellState::Held | CellState::Restoring)
}

/// The outcome and its sentence.
fn unknown(verdict: &Verdict) -> String {
    format!(
        "{}: {}",
        text::value(verdict.outcome().as_str_name()),
        verdict.message
    )
}

fn stale(verdict: &Verdict) -> String {
    format!(
        "was {}; nothing newer is known",
        text::value(verdict.outcome().as_str_name())
    )
}

impl CellState {
    /// The most urgent state that applies. A shoot is healthy only if everything about it is known now.
    pub(crate) fn of(input: CellInput<'_>) -> Self {
        let scaling = input.scaling;
        let flow = scaling.map(ShootScaling::state);
        let direction = scaling.map(ShootScaling::direction);
        let is_held = scaling.is_some_and(|scaling| scaling.meltdown_protection_active);
        // Nothing is held down where every dependant carries ignore-scaling.
        let is_down = is_held && direction == Some(Direction::Down) && flow == Some(FlowState::Settled);
        let is_restored = direction == Some(Direction::Up) && flow == Some(FlowState::Running);
        let outcome = input.verdict.map(Verdict::outcome);
        let is_cut_off = matches!(
            outcome,
            Some(Outcome::LeasesExpired | Outcome::ExternalUnreachable)
        );
        match outcome {
            _ if flow == Some(FlowState::Failed) => Self::Failed,
            _ if is_cut_off && input.is_valid && !is_down => Self::Losing,
            _ if is_restored => Self::Restoring,
            _ if is_held => Self::Held,
            None => Self::Unknown,
            _ if !input.is_valid => Self::Stale,
            Some(Outcome::Skipped) => Self::Skipped,
            Some(Outcome::Healthy) if !input.has_current_scaling => Self::Stale,
            Some(Outcome::Healthy) => Self::Healthy,
            Some(_) => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;
    use watchdog_client::validity::Validity;
    use watchdog_proto::scaling::v1::Mode;

    use super::*;
    use crate::render::testing;

    /// The cell of a shoot with this verdict, as it was sent at `sent`, and this scaling.
    fn cell(
        outcome: Option<Outcome>,
        scaling: Option<&ShootScaling>,
        sent: Instant,
        now: Instant,
    ) -> ShootCell {
        let verdict = outcome.map(|outcome| testing::verdict("a", outcome));
        let is_valid = |verdict: &Verdict| Validity::of_verdict(verdict, sent).is_valid_at(now);
        let input = CellInput {
            is_valid: verdict.as_ref().is_some_and(is_valid),
            ..CellInput::current(verdict.as_ref(), scaling)
        };
        ShootCell::new("a", input)
    }

    fn scaling(direction: Direction, state: FlowState, held: bool) -> ShootScaling {
        ShootScaling {
            direction: direction.into(),
            state: state.into(),
            meltdown_protection_active: held,
            ..testing::settled("a")
        }
    }

    #[test]
    fn the_most_urgent_state_that_applies_is_shown() {
        let now = Instant::now();
        let up = scaling(Direction::Up, FlowState::Settled, false);
        let down = scaling(Direction::Down, FlowState::Running, true);
        let is_down = scaling(Direction::Down, FlowState::Settled, true);
        let is_ignored = scaling(Direction::Down, FlowState::Settled, false);
        let held = scaling(Direction::Hold, FlowState::Holding, true);
        let back = scaling(Direction::Up, FlowState::Running, true);
        let failed = scaling(Direction::Down, FlowState::Failed, true);
        for (outcome, scaling, expected) in [
            (Outcome::Healthy, &up, CellState::Healthy),
            (Outcome::LeasesExpired, &up, CellState::Losing),
            (Outcome::LeasesExpired, &down, CellState::Losing),
            (Outcome::ExternalUnreachable, &down, CellState::Losing),
            (Outcome::LeasesExpired, &is_down, CellState::Held),
            (Outcome::LeasesExpired, &is_ignored, CellState::Losing),
            (Outcome::ApiServerUnreachable, &held, CellState::Held),
            (Outcome::Healthy, &held, CellState::Held),
            (Outcome::Skipped, &held, CellState::Held),
            (Outcome::Healthy, &back, CellState::Restoring),
            (Outcome::LeasesExpired, &failed, CellState::Failed),
            (Outcome::Throttled, &up, CellState::Unknown),
            (Outcome::Pending, &up, CellState::Unknown),
            (Outcome::Skipped, &up, CellState::Skipped),
        ] {
            let cell = cell(Some(outcome), Some(scaling), now, now);
            assert_eq!(cell.state, expected, "{outcome:?} {:?}", scaling.state());
            let needs_attention = expected < CellState::Healthy;
            assert_eq!(cell.note.is_some(), needs_attention, "{cell:?}");
        }
        assert_eq!(cell(None, Some(&up), now, now).state, CellState::Unknown);
    }

    #[test]
    fn what_only_a_lost_coordinator_knows_is_marked() {
        let is_down = scaling(Direction::Down, FlowState::Settled, true);
        let verdict = testing::verdict("a", Outcome::Healthy);
        let shown = |has_current_scaling| {
            let input = CellInput {
                has_current_scaling,
                ..CellInput::current(Some(&verdict), Some(&is_down))
            };
            ShootCell::new("a", input)
        };
        assert!(!shown(true).outdated);
        let old = shown(false);
        assert_eq!((old.state, old.outdated), (CellState::Held, true));
        assert_eq!(
            old.note.as_deref(),
            Some("as last reported; the coordinator does not answer: held down until the leases are renewed")
        );
    }

    #[test]
    fn a_verdict_that_is_not_valid_any_more_is_never_shown_as_healthy() {
        let sent = Instant::now();
        let up = scaling(Direction::Up, FlowState::Settled, false);
        // It is valid for 12 s.
        for (seconds, expected) in [(11, CellState::Healthy), (12, CellState::Stale)] {
            let now = sent + Duration::from_secs(seconds);
            let shown = cell(Some(Outcome::Healthy), Some(&up), sent, now);
            assert_eq!(shown.state, expected, "after {seconds} s");
        }
        let later = sent + Duration::from_secs(60);
        let lost = cell(Some(Outcome::LeasesExpired), Some(&up), sent, later);
        assert_eq!(lost.state, CellState::Stale);
        assert_eq!(
            lost.note.as_deref(),
            Some("was LEASES_EXPIRED; nothing newer is known")
        );
        // What is held down stays so until it is known to be restored.
        let held = scaling(Direction::Down, FlowState::Settled, true);
        let held = cell(Some(Outcome::LeasesExpired), Some(&held), sent, later);
        assert_eq!(held.state, CellState::Held);
    }

    #[test]
    fn a_row_says_since_when_and_what_it_waits_for() {
        let now = Instant::now();
        let observed = ShootScaling {
            mode: Mode::Observe.into(),
            ..scaling(Direction::Down, FlowState::KeptBack, false)
        };
        let row = cell(Some(Outcome::LeasesExpired), Some(&observed), now, now);
        let expected = ShootCell {
            name: "a".to_owned(),
            state: CellState::Losing,
            unprotected: true,
            share: Some("100 % (6/6)".to_owned()),
            since: Some((testing::NOW - 130) * 1_000),
            note: Some("nothing: the mode is observe".to_owned()),
            outdated: false,
        };
        assert_eq!(row, expected);
    }
}
