//! Verdicts and scaling as cells of tables.

use watchdog_client::wire::forward;
use watchdog_proto::probe::v1::{Outcome, Verdict};
use watchdog_proto::scaling::v1::{Direction, FlowState, Mode, ResourceState, ShootScaling};

use super::frame::{Frame, Style};
use super::table::{Cell, TextTable};
use super::text;

impl<T> TextTable<T> {
    /// Adds the columns about a verdict.
    pub(crate) fn verdict_columns(self, frame: &Frame, verdict: impl Fn(&T) -> Option<&Verdict>) -> Self {
        let expired = |verdict: &Verdict| text::shown(verdict.evidence.as_ref().map(text::share));
        let since = |verdict: &Verdict| frame.since(verdict.outcome_change_time);
        self.column("OUTCOME", |row| of(verdict(row), outcome))
            .column("EXPIRED", |row| of(verdict(row), expired))
            .column("SINCE", |row| of(verdict(row), since))
            .column("VALID", |row| of(verdict(row), valid))
    }
}

/// A cell about a report; `-` without one.
pub(crate) fn of<M, C: Into<Cell>>(report: Option<&M>, cell: impl Fn(&M) -> C) -> Cell {
    report.map_or_else(|| "-".into(), |report| cell(report).into())
}

/// A value by its name in the API.
pub(crate) fn value(name: &str) -> Cell {
    Cell::styled(style(name), text::value(name))
}

pub(crate) fn style(name: &str) -> Style {
    match name {
        "ACTION_FAIL_ABSENT"
        | "DELETION_RESULT_REFUSED"
        | "DIRECTION_DOWN"
        | "FLOW_STATE_FAILED"
        | "OUTCOME_EXTERNAL_UNREACHABLE"
        | "OUTCOME_LEASES_EXPIRED"
        | "READINESS_NOT_READY"
        | "RESOURCE_STATE_BACKING_OFF"
        | "RESOURCE_STATE_FAILED" => Style::Bad,
        "OUTCOME_HEALTHY" | "READINESS_READY" => Style::Good,
        "OUTCOME_SKIPPED" => Style::Dim,
        "RESOURCE_STATE_ABSENT" | "RESOURCE_STATE_IGNORED" | "RESOURCE_STATE_REACHED" => Style::Plain,
        "ACTION_SCALE" | "DIRECTION_HOLD" | "FLOW_STATE_RUNNING" | "WEEDER_STATE_ACTIVE" => Style::Warn,
        _ if name.starts_with("OUTCOME_") || name.starts_with("RESOURCE_STATE_") => Style::Warn,
        _ => Style::Plain,
    }
}

/// The outcome; for a shoot that is not probed with the reason.
pub(crate) fn outcome(verdict: &Verdict) -> Cell {
    let name = verdict.outcome().as_str_name();
    match verdict.outcome() {
        Outcome::Skipped => {
            let reason = text::value(verdict.skip_reason().as_str_name());
            Cell::styled(style(name), format!("SKIPPED {reason}"))
        }
        _ => value(name),
    }
}

/// The remaining validity of a verdict; `-` for a shoot that is not probed, of which nothing runs out.
pub(crate) fn valid(verdict: &Verdict) -> Cell {
    if verdict.outcome() == Outcome::Skipped {
        return "-".into();
    }
    let left = forward(verdict.valid_for.as_ref());
    if left.is_zero() {
        return Cell::styled(Style::Bad, "expired");
    }
    text::duration(left).into()
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
            let state = text::value(resource.state().as_str_name());
            format!("{name} {state}: {}", resource.message)
        }
        (FlowState::KeptBack, _) => "nothing: the mode is observe".to_owned(),
        (FlowState::Settled, _) if scaling.direction() == Direction::Down => settled_down(scaling),
        (FlowState::Settled, _) => "-".to_owned(),
        _ => scaling.reason.clone(),
    }
}

/// Names what is not held down although nothing is left to do.
fn settled_down(scaling: &ShootScaling) -> String {
    if !scaling.meltdown_protection_active {
        return "nothing is held down: each dependant carries ignore-scaling, is absent or was at 0 before"
            .to_owned();
    }
    let resources = scaling.resources.iter();
    let ignored = resources.filter(|resource| resource.state() == ResourceState::Ignored);
    let ignored: Vec<_> = ignored
        .filter_map(|resource| Some(&*resource.resource.as_ref()?.name))
        .collect();
    let held = "held down until the leases are renewed";
    match ignored.join(", ") {
        none if none.is_empty() => held.to_owned(),
        ignored => format!("{held}, except {ignored} (ignore-scaling)"),
    }
}

#[cfg(test)]
mod tests {
    use prost_reflect::DescriptorPool;

    use super::*;
    use crate::render::testing;

    #[test]
    fn every_kind_that_is_named_is_one_of_the_api() {
        let pool = DescriptorPool::decode(watchdog_proto::FILE_DESCRIPTOR_SET).unwrap();
        let values = pool
            .all_enums()
            .flat_map(|kind| kind.values().collect::<Vec<_>>());
        let names: Vec<String> = values.map(|value| value.name().to_owned()).collect();
        for (prefix, _) in text::KINDS {
            assert!(names.contains(&format!("{prefix}UNSPECIFIED")), "{prefix}");
        }
        let source = include_str!("cells.rs").split("fn style(").nth(1).unwrap();
        let quoted = source
            .split("fn outcome(")
            .next()
            .unwrap()
            .split('"')
            .skip(1)
            .step_by(2);
        for name in quoted.filter(|name| !name.ends_with('_')) {
            assert!(names.contains(&name.to_owned()), "{name}");
        }
    }

    #[test]
    fn a_shoot_that_is_down_says_what_is_not_held_down() {
        let mut down = ShootScaling {
            state: FlowState::Settled.into(),
            ..testing::scaling_down("a")
        };
        assert_eq!(waits_for(&down), "held down until the leases are renewed");
        down.resources[0].set_state(ResourceState::Ignored);
        assert_eq!(
            waits_for(&down),
            "held down until the leases are renewed, except kube-controller-manager (ignore-scaling)"
        );
        down.meltdown_protection_active = false;
        assert!(waits_for(&down).starts_with("nothing is held down: "));
    }

    #[test]
    fn a_verdict_that_is_not_valid_any_more_says_so() {
        let verdict = Verdict {
            valid_for: testing::seconds(-1),
            ..testing::verdict("a", Outcome::LeasesExpired)
        };
        assert_eq!(valid(&verdict), Cell::styled(Style::Bad, "expired"));
        let skipped = Verdict {
            outcome: Outcome::Skipped.into(),
            ..verdict
        };
        assert_eq!(valid(&skipped), "-".into());
    }
}
