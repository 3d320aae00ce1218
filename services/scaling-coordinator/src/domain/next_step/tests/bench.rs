//! One shoot with Gardener's three resources, whose requests the test answers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use watchdog_api::prober::DependentResource;

use super::super::*;
use crate::domain::observed::Observed;
use crate::domain::request::RequestOutcome;
use crate::domain::testing::{dependent_of, gardener, start};

pub(super) const DOWN: Option<Direction> = Some(Direction::Down);
pub(super) const UP: Option<Direction> = Some(Direction::Up);
pub(super) const MS: Duration = Duration::from_millis(1);

/// One shoot with Gardener's three resources (kcm, mcm, ca), whose writes the test answers.
pub(super) struct Bench {
    config: Vec<DependentResource>,
    observed: BTreeMap<&'static str, Observed>,
    /// The resources that were not read just now.
    pub(super) unread: BTreeSet<&'static str>,
    /// Those that are not configured any more.
    pub(super) dropped: BTreeSet<&'static str>,
    pub(super) mode: Mode,
    pub(super) hints: FlowHints,
    pub(super) now: Instant,
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
    /// A shoot whose resources were all read just now.
    pub(super) fn new(kcm: impl Into<Observed>, mcm: impl Into<Observed>, ca: impl Into<Observed>) -> Self {
        let observed = [("kcm", kcm.into()), ("mcm", mcm.into()), ("ca", ca.into())];
        Self {
            config: gardener(),
            observed: observed.into(),
            unread: BTreeSet::new(),
            dropped: BTreeSet::new(),
            mode: Mode::Protect,
            hints: FlowHints::default(),
            now: start(),
            version: 1,
        }
    }

    pub(super) fn next(&mut self, direction: Option<Direction>) -> NextStep {
        let dependent = |config| {
            let name = short(&DependentResource::clone(config).reference);
            let mut dependent = dependent_of(config, self.observed[name].clone());
            dependent.read = !self.unread.contains(name);
            dependent.dropped = self.dropped.contains(name);
            dependent
        };
        let dependents: Vec<_> = self.config.iter().map(dependent).collect();
        next_step(self.now, direction, self.mode, &dependents, &mut self.hints)
    }

    /// The requests that must be made now, as text.
    pub(super) fn wanted(&mut self, direction: Option<Direction>) -> Vec<String> {
        self.next(direction).requests.iter().map(text).collect()
    }

    /// The states of the three resources, as text.
    pub(super) fn steps(&mut self, direction: Option<Direction>) -> String {
        let resources = self.next(direction).status.resources;
        let states = resources.iter().map(|resource| format!("{:?}", resource.state));
        states.collect::<Vec<_>>().join(" ")
    }

    pub(super) fn state(&mut self, direction: Option<Direction>) -> FlowState {
        self.next(direction).status.state
    }

    /// Makes a request that must be made now, and reports this outcome for it.
    pub(super) fn answer(&mut self, direction: Option<Direction>, wanted: &str, outcome: RequestOutcome) {
        let requests = self.next(direction).requests;
        let request = requests.iter().find(|request| text(request) == wanted);
        let request = request.unwrap_or_else(|| panic!("{wanted} is not among {requests:?}"));
        self.hints.begin(self.now, request);
        if request.write.is_none() && outcome == RequestOutcome::Done {
            self.unread.remove(short(&request.reference));
        }
        self.hints.end(self.now, request, &outcome);
    }

    /// The watch shows this.
    pub(super) fn see(&mut self, name: &'static str, seen: ObservedResource) {
        self.version += 1;
        let seen = ObservedResource {
            resource_version: self.version.to_string().into(),
            ..seen
        };
        self.observed.insert(name, seen.into());
    }

    /// The watch lists again: nothing is known of this resource.
    pub(super) fn forget(&mut self, name: &'static str) {
        self.observed
            .insert(name, Observed::Unknown("not listed yet".into()));
    }

    /// Makes a request that must be made now, after which the watch shows this.
    pub(super) fn done(&mut self, direction: Option<Direction>, wanted: &str, then: ObservedResource) {
        self.answer(direction, wanted, RequestOutcome::Done);
        let names = NAMES.map(|(short, _)| short).into_iter();
        names
            .filter(|short| wanted.split(' ').nth(1) == Some(short))
            .for_each(|short| self.see(short, then.clone()));
    }
}

pub(super) fn text(request: &Request) -> String {
    let name = short(&request.reference);
    let Some((write, _)) = &request.write else {
        return format!("read {name}");
    };
    match write {
        ResourceWrite::Record { replicas } => format!("record {name} {replicas}"),
        ResourceWrite::Scale {
            to, record: false, ..
        } => format!("scale {name} {to}"),
        ResourceWrite::Scale { from, .. } => format!("down {name} {from}"),
        ResourceWrite::CleanUp => format!("clean {name}"),
    }
}

pub(super) fn refused() -> RequestOutcome {
    RequestOutcome::Refused {
        why: "500".into(),
        retry_after: None,
    }
}
