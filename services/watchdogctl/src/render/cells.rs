//! Verdicts and scaling as cells of tables.

use watchdog_client::wire::forward;
use watchdog_proto::probe::v1::{Outcome, Verdict};
use watchdog_proto::scaling::v1::{Direction, FlowState, Mode, ResourceState, ShootScaling};

use super::table::{Cell, Style};
use super::text;

pub(crate) const fn outcome_style(outcome: Outcome) -> Style {
    match outcome {
        Outcome::LeasesExpired | Outcome::ExternalUnreachable => Style::Bad,
        Outcome::Healthy => Style::Good,
        Outcome::Skipped => Style::Dim,
        _ => Style::Warn,
    }
}

/// The outcome; for a shoot that is not probed with the reason.
pub(crate) fn outcome(verdict: &Verdict) -> Cell {
    let name = match verdict.outcome() {
        Outcome::Skipped => format!("SKIPPED {}", text::skip_reason(verdict.skip_reason())),
        outcome => text::outcome(outcome).to_owned(),
    };
    Cell::styled(outcome_style(verdict.outcome()), name)
}

/// The remaining validity of a verdict.
pub(crate) fn valid(verdict: &Verdict) -> Cell {
    let left = forward(verdict.valid_for.as_ref());
    if left.is_zero() {
        return Cell::styled(Style::Bad, "expired");
    }
    text::duration(left).into()
}

pub(crate) fn direction(direction: Direction) -> Cell {
    let style = match direction {
        Direction::Down => Style::Bad,
        Direction::Hold => Style::Warn,
        _ => Style::Plain,
    };
    Cell::styled(style, text::direction(direction))
}

pub(crate) fn flow_state(state: FlowState) -> Cell {
    let style = match state {
        FlowState::Failed => Style::Bad,
        FlowState::Running => Style::Warn,
        _ => Style::Plain,
    };
    Cell::styled(style, text::flow_state(state))
}

pub(crate) fn resource_state(state: ResourceState) -> Cell {
    let style = match state {
        ResourceState::Failed | ResourceState::BackingOff => Style::Bad,
        ResourceState::Reached | ResourceState::Absent | ResourceState::Ignored => Style::Plain,
        _ => Style::Warn,
    };
    Cell::styled(style, text::resource_state(state))
}

/// True if the mode of a shoot is observe or off.
pub(crate) fn is_unprotected(scaling: &ShootScaling) -> bool {
    matches!(scaling.mode(), Mode::Observe | Mode::Off)
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
            let reference = resource.resource.as_ref();
            let name = reference.map_or("?", |reference| &reference.name);
            let state = text::resource_state(resource.state());
            format!("{name} {state}: {}", resource.message)
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
    use super::*;
    use crate::render::testing;

    #[test]
    fn a_verdict_that_is_not_valid_any_more_says_so() {
        let verdict = Verdict {
            valid_for: testing::seconds(-1),
            ..testing::verdict("a", Outcome::LeasesExpired)
        };
        assert_eq!(valid(&verdict), Cell::styled(Style::Bad, "expired"));
    }
}
