//! The memory of a shoot from one reconciliation to the next: hints, and what was reported.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use watchdog_api::policy::ModeInForce;
use watchdog_api::prober::ResourceRef;

use crate::domain::attempts::{FlowHints, RequestOutcome};
use crate::domain::decision::{Decision, HoldReason};
use crate::domain::next_step::Request;
use crate::domain::other_writes::OtherWrites;
use crate::domain::status::{FlowState, FlowStatus, ShootScaling};
use crate::domain::{Direction, direction_name};
use crate::metrics::{FIRST_WRITE, REACHED, WRITES};

/// A write may rest on a read of the same round, and on one that ended less than this ago.
const JUST_NOW: Duration = Duration::from_secs(1);

/// A write may rest on a Cluster that was read in the same round, or less than this ago: the next level often follows
/// within seconds. The watch reports a change meanwhile, and hibernation begins with other steps than replica counts.
const CLUSTER_LASTS: Duration = Duration::from_secs(5);

/// A warning about an annotation of a resource, or of the Shoot.
type AnnotationWarning = (Option<ResourceRef>, String);

/// It may be lost at any time; a shoot whose mode changes begins with nothing, too.
pub(super) struct ShootMemory {
    /// The state that was published last.
    pub(super) shown: ShootScaling,
    pub(super) hints: FlowHints,
    /// When each resource was read last, or an answer showed what a write has made of it.
    read_at: BTreeMap<ResourceRef, Instant>,
    cluster_read_at: Option<Instant>,
    /// When the round began that the shoot is in. On a slow API server the reads of a round take longer than
    /// [`JUST_NOW`].
    pub(super) round_began: Option<Instant>,
    /// The writes that mode observe has kept back since the direction changed.
    kept_back: BTreeSet<ResourceRef>,
    pub(super) others: OtherWrites,
    // When the verdict was sent that made the direction what it is, until all that follows from it is measured.
    verdict: Option<Instant>,
    first_write: bool,
    /// Warnings that were published.
    warnings: BTreeSet<AnnotationWarning>,
}

impl ShootMemory {
    pub(super) fn new(shown: ShootScaling) -> Self {
        Self {
            shown,
            hints: FlowHints::default(),
            read_at: BTreeMap::new(),
            cluster_read_at: None,
            round_began: None,
            kept_back: BTreeSet::new(),
            others: OtherWrites::default(),
            verdict: None,
            first_write: false,
            warnings: BTreeSet::new(),
        }
    }

    /// Another mode is like a restart of the coordinator: what follows is derived from what is really there. Only what
    /// is reported about the past stays.
    pub(super) fn keep_mode(&mut self, now: Instant, mode: ModeInForce) {
        let (before, replica) = (self.shown.mode.mode, self.shown.replica.clone());
        if before != mode.mode {
            let (from, to) = (before.as_str(), mode.mode.as_str());
            tracing::info!(from, to, "the mode of a shoot has changed");
            *self = Self::new(ShootScaling {
                incidents: std::mem::take(&mut self.shown.incidents),
                write_counts: std::mem::take(&mut self.shown.write_counts),
                ..ShootScaling::new(now, mode, replica)
            });
        }
        self.shown.mode = mode;
    }

    pub(super) fn was_read(&self, now: Instant, reference: &ResourceRef) -> bool {
        self.read_at
            .get(reference)
            .is_some_and(|at| self.is_recent(now, *at, JUST_NOW))
    }

    fn is_recent(&self, now: Instant, at: Instant, lasts: Duration) -> bool {
        now < at + lasts || self.round_began.is_some_and(|began| began <= at)
    }

    pub(super) fn note_read(&mut self, now: Instant, reference: &ResourceRef) {
        self.read_at.insert(reference.clone(), now);
    }

    /// After a write without a good answer the state of the resource is not known.
    pub(super) fn forget_read(&mut self, reference: &ResourceRef) {
        self.read_at.remove(reference);
    }

    pub(super) fn was_cluster_read(&self, now: Instant) -> bool {
        self.cluster_read_at
            .is_some_and(|at| self.is_recent(now, at, CLUSTER_LASTS))
    }

    pub(super) const fn note_cluster_read(&mut self, now: Instant) {
        self.cluster_read_at = Some(now);
    }

    /// Returns true if mode observe has not kept this write back before.
    pub(super) fn is_news(&mut self, kept_back: &Request) -> bool {
        self.kept_back.insert(kept_back.reference.clone())
    }

    /// Takes the warnings that hold now, and returns those that are new.
    pub(super) fn new_warnings(&mut self, now: BTreeSet<AnnotationWarning>) -> Vec<AnnotationWarning> {
        let before = std::mem::replace(&mut self.warnings, now);
        self.warnings.difference(&before).cloned().collect()
    }

    /// Notes a write that has ended or was kept back.
    pub(super) fn note_write(&mut self, now: Instant, write: &Request, outcome: &RequestOutcome) {
        let (direction, shown) = (write.direction, &mut self.shown);
        shown.incidents.note_write(now, write, outcome);
        WRITES.inc((direction, outcome.clone()));
        let counted = shown.write_counts.entry((direction, outcome.as_str()));
        *counted.or_default() += 1;
        if !matches!(outcome, RequestOutcome::Done | RequestOutcome::KeptBack) {
            return;
        }
        let first = shown.direction == Some(direction) && !self.first_write;
        self.first_write |= first;
        if let Some(sent) = self.verdict.filter(|_| first) {
            FIRST_WRITE.record(direction, now.saturating_duration_since(sent));
        }
    }

    pub(super) fn keep_decision(&mut self, now: Instant, decision: &Decision) {
        let shown = &mut self.shown;
        shown.incidents.note_decision(now, decision);
        shown.reason.clone_from(&decision.reason);
        let reason = &shown.reason;
        let held = std::mem::replace(&mut shown.held, decision.held);
        if held != decision.held && decision.held == Some(HoldReason::Disagreement) {
            tracing::warn!(
                reason,
                "a shoot is held because its lease-probe replicas disagree"
            );
        }
        let before = std::mem::replace(&mut shown.direction, decision.direction);
        if before == decision.direction {
            return;
        }
        let (from, to) = (direction_name(before), direction_name(decision.direction));
        // After a start every healthy shoot turns from hold to up: that is no news.
        if [before, decision.direction].contains(&Some(Direction::Down)) {
            tracing::info!(from, to, reason, "the direction of a shoot has changed");
        } else {
            tracing::debug!(from, to, reason, "the direction of a shoot has changed");
        }
        shown.since = now;
        self.verdict = decision.decided_by.as_ref().map(|verdict| verdict.sent);
        self.first_write = false;
        self.kept_back.clear();
    }

    /// Notes the status of the shoot; measures when everything has reached its target.
    pub(super) fn keep_status(&mut self, now: Instant, status: &FlowStatus) {
        let before = self.shown.status.state;
        if *self.shown.status != *status {
            self.shown.status = Arc::new(status.clone());
        }
        let Some(direction) = self.shown.direction else {
            return;
        };
        if status.state != FlowState::Settled || !matches!(before, FlowState::Running | FlowState::Failed) {
            return;
        }
        // A flow that only waited for something to become ready has not scaled.
        if let Some(sent) = self.verdict.take().filter(|_| self.first_write) {
            let took = now.saturating_duration_since(sent);
            REACHED.record(direction, took);
            let took = watchdog_api::duration::format(took);
            tracing::info!(
                direction = direction.as_str(),
                took,
                "all resources have reached their targets"
            );
        }
    }
}
