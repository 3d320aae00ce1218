//! One shoot with Gardener's three resources, whose requests the test answers.

use std::collections::BTreeMap;
use std::time::Duration;

use watchdog_api::prober::DependentResource;

use super::super::*;
use crate::domain::next_step::ResourceWrite;
use crate::domain::observed::{Observed, ResourceState};
use crate::domain::testing::{dependent_of, gardener, start};

pub(in crate::domain::flow) const DOWN: Option<Direction> = Some(Direction::Down);
pub(in crate::domain::flow) const UP: Option<Direction> = Some(Direction::Up);
pub(in crate::domain::flow) const MS: Duration = Duration::from_millis(1);

/// One shoot with Gardener's three resources (kcm, mcm, ca), whose writes the test answers.
pub(in crate::domain::flow) struct Bench {
    config: Vec<DependentResource>,
    observed: BTreeMap<&'static str, Observed>,
    pub(in crate::domain::flow) flow: Flow,
    pub(in crate::domain::flow) now: Instant,
    version: u32,
}

const NAMES: [(&str, &str); 3] = [
    ("kcm", "kube-controller-manager"),
    ("mcm", "machine-controller-manager"),
    ("ca", "cluster-autoscaler"),
];

fn short(reference: &ResourceRef) -> &'static str {
    NAMES
        .iter()
        .find(|(_, long)| *long == reference.name)
        .map_or("?", |(short, _)| short)
}

impl Bench {
    /// A shoot that has been this replica's for long: all that is seen is believed.
    pub(in crate::domain::flow) fn new(
        kcm: impl Into<Observed>,
        mcm: impl Into<Observed>,
        ca: impl Into<Observed>,
    ) -> Self {
        let observed = [("kcm", kcm.into()), ("mcm", mcm.into()), ("ca", ca.into())];
        let (config, mut flow) = (gardener(), Flow::default());
        for dependent in &config {
            flow.handover.ended(&dependent.reference, &ActionOutcome::Done);
        }
        Self {
            config,
            observed: observed.into(),
            flow,
            now: start(),
            version: 1,
        }
    }

    pub(in crate::domain::flow) fn next(&mut self, direction: Option<Direction>) -> Steps {
        let dependents: Vec<_> = self
            .config
            .iter()
            .map(|d| dependent_of(d, self.observed[short(&d.reference)].clone()))
            .collect();
        self.flow.next(self.now, direction, &dependents)
    }

    /// The requests that must be made now, as text.
    pub(in crate::domain::flow) fn wanted(&mut self, direction: Option<Direction>) -> Vec<String> {
        self.next(direction).actions.iter().map(text).collect()
    }

    pub(in crate::domain::flow) fn steps(&mut self, direction: Option<Direction>) -> Vec<Step> {
        self.next(direction)
            .status
            .resources
            .iter()
            .map(|r| r.step)
            .collect()
    }

    pub(in crate::domain::flow) fn state(&mut self, direction: Option<Direction>) -> FlowState {
        self.next(direction).status.state
    }

    /// Makes the only request that must be made now, and reports this outcome for it.
    pub(in crate::domain::flow) fn answer(
        &mut self,
        direction: Option<Direction>,
        wanted: &str,
        outcome: ActionOutcome,
    ) {
        let steps = self.next(direction);
        let action = steps.actions.iter().find(|a| text(a) == wanted);
        let action = action
            .unwrap_or_else(|| panic!("{wanted} is not among {:?}", steps.actions))
            .clone();
        self.flow.start(self.now, &action);
        self.flow.finish(self.now, &action, outcome);
    }

    /// The watch shows this.
    pub(in crate::domain::flow) fn see(&mut self, name: &'static str, seen: ResourceState) {
        self.version += 1;
        let seen = ResourceState {
            resource_version: self.version.to_string().into(),
            ..seen
        };
        self.observed.insert(name, seen.into());
    }

    /// The watch lists again: nothing is known of this resource.
    pub(in crate::domain::flow) fn forget(&mut self, name: &'static str) {
        self.observed
            .insert(name, Observed::Unknown("not listed yet".into()));
    }

    pub(in crate::domain::flow) fn done(
        &mut self,
        direction: Option<Direction>,
        wanted: &str,
        name: &'static str,
        then: ResourceState,
    ) {
        self.answer(direction, wanted, ActionOutcome::Done);
        self.see(name, then);
    }
}

fn text(action: &Action) -> String {
    let name = short(&action.reference);
    match &action.kind {
        ActionKind::Read => format!("read {name}"),
        ActionKind::Write(ResourceWrite::Record { replicas }) => format!("record {name} {replicas}"),
        ActionKind::Write(ResourceWrite::Scale {
            to, record: false, ..
        }) => format!("scale {name} {to}"),
        ActionKind::Write(ResourceWrite::Scale { from, .. }) => format!("down {name} {from}"),
        ActionKind::Write(ResourceWrite::CleanUp) => format!("clean {name}"),
    }
}

pub(in crate::domain::flow) fn unknown() -> ActionOutcome {
    ActionOutcome::Unknown {
        why: "no answer within 10s".into(),
        retry_after: None,
    }
}

pub(in crate::domain::flow) fn refused() -> ActionOutcome {
    ActionOutcome::Refused {
        why: "500".into(),
        retry_after: None,
    }
}
