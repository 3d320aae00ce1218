//! The memory of a shoot from one reconciliation to the next: hints, and what was reported.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::time::Instant;
use watchdog_api::policy::ModeInForce;
use watchdog_api::prober::ResourceRef;

use crate::domain::attempts::FlowHints;
use crate::domain::decision::{Decision, HoldReason};
use crate::domain::other_writes::OtherWrites;
use crate::domain::reads::ReadTimes;
use crate::domain::request::Request;
use crate::domain::request::RequestOutcome;
use crate::domain::status::{FlowState, FlowStatus, ShootScaling};
use crate::domain::{Direction, direction_name};
use crate::metrics::{FIRST_WRITE, REACHED, WRITES};

/// A warning about an annotation of a resource, or of the Shoot.
type AnnotationWarning = (Option<ResourceRef>, String);

/// It may be lost at any time; a shoot whose mode changes begins with nothing, too.
pub(super) struct ShootMemory {
    /// The state that was published last.
    pub(super) shown: ShootScaling,
    pub(super) hints: FlowHints,
    pub(super) reads: ReadTimes,
    /// The writes that mode observe has kept back since the direction changed.
    kept_back: BTreeSet<ResourceRef>,
    pub(super) others: OtherWrites,
    /// When the loss or the recovery was found that made the direction what it is, until all that follows from it is
    /// measured.
    found: Option<Instant>,
    /// Until then the shoot was healthy or not protected: a loss that was found before does not count from then.
    no_loss_until: Option<Instant>,
    first_write: bool,
    /// Warnings that were published.
    warnings: BTreeSet<AnnotationWarning>,
}

impl ShootMemory {
    pub(super) fn new(shown: ShootScaling) -> Self {
        Self {
            shown,
            hints: FlowHints::default(),
            reads: ReadTimes::default(),
            kept_back: BTreeSet::new(),
            others: OtherWrites::default(),
            found: None,
            no_loss_until: None,
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
            self.no_loss_until = Some(now);
        }
        self.shown.mode = mode;
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
        if let Some(found) = self.found.filter(|_| first) {
            FIRST_WRITE.record(direction, now.saturating_duration_since(found));
        }
    }

    /// When the loss was found that a decision rests on, also before this replica led; now if it rests on none.
    fn found_at(&self, now: Instant, decision: &Decision) -> Instant {
        let loss = decision
            .decided_by
            .as_ref()
            .filter(|verdict| verdict.outcome.direction() == Some(Direction::Down));
        let since = loss.map(|loss| {
            self.no_loss_until
                .map_or(loss.outcome_since, |until| until.max(loss.outcome_since))
        });
        since.map_or(now, |since| since.min(now))
    }

    pub(super) fn keep_decision(&mut self, now: Instant, decision: &Decision) {
        let found = self.found_at(now, decision);
        let is_unprotected = matches!(decision.held, Some(HoldReason::Cluster | HoldReason::Mode));
        if decision.direction == Some(Direction::Up) || is_unprotected {
            self.no_loss_until = Some(now);
        }
        let shown = &mut self.shown;
        shown.incidents.note_decision(now, found, decision);
        shown.reason.clone_from(&decision.reason);
        let reason = &shown.reason;
        let held = std::mem::replace(&mut shown.held, decision.held);
        if held != decision.held && decision.held == Some(HoldReason::Disagreement) {
            // Most turns have such a moment, because one replica looks before the other. An alert counts the minutes.
            tracing::info!(
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
        self.found = decision.decided_by.as_ref().map(|_| found);
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
        if let Some(found) = self.found.take().filter(|_| self.first_write) {
            let took = now.saturating_duration_since(found);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::decision::{EvidenceCounts, ReceivedVerdict, ReportedOutcome, StreamCounts, decide};
    use crate::domain::request::RequestOutcome;
    use crate::domain::testing::{S, start, verdict, write};

    fn memory(now: Instant) -> ShootMemory {
        ShootMemory::new(ShootScaling::new(now, ModeInForce::default(), "a".into()))
    }

    /// A verdict that repeats at `observed` what was found at `found`, 33 s after the last renewal.
    fn loss(found: Instant, observed: Instant) -> Decision {
        let lost = ReceivedVerdict {
            outcome_since: found,
            evidence: Some(Arc::new(EvidenceCounts {
                candidates: 3,
                expired: 3,
                newest_expired_renewal: Some(33 * S + (observed - found)),
                ..EvidenceCounts::default()
            })),
            ..verdict(ReportedOutcome::LeasesExpired, observed)
        };
        // Once the other witness has had its time.
        decide(found.max(observed) + 4 * S, [&lost], StreamCounts::default())
    }

    /// Otherwise a leader that crashed before it acted would make the reaction to a loss look quick.
    #[test]
    fn a_loss_that_a_new_leader_sees_late_counts_from_when_it_was_found() {
        let found = start();
        let mut memory = memory(found + 5 * S);
        memory.keep_decision(found + 6 * S, &loss(found, found + 4 * S));
        let down = write("kcm", Direction::Down);
        memory.note_write(found + 7 * S, &down, &RequestOutcome::Done);
        assert_eq!(memory.found, Some(found));
        let incident = memory.shown.incidents.current.as_ref().unwrap();
        assert_eq!(
            (incident.started, incident.last_renewal_to_verdict),
            (found, Some(33 * S))
        );
        assert_eq!(incident.until_first_write(), Some(7 * S));
    }

    /// In the hours before, there was nothing to react to.
    #[test]
    fn a_loss_of_a_shoot_that_was_healthy_or_not_protected_counts_from_the_end_of_that() {
        let found = start();
        let healthy = verdict(ReportedOutcome::Healthy, found + 9 * S);
        for before in [
            Decision::hold(HoldReason::Mode, "The mode is off."),
            Decision::release("The shoot hibernates."),
            decide(found + 9 * S, [&healthy], StreamCounts::default()),
        ] {
            let mut memory = memory(found);
            memory.keep_decision(found + 9 * S, &before);
            memory.keep_decision(found + 10 * S, &loss(found, found + 10 * S));
            let incident = memory.shown.incidents.current.as_ref().unwrap();
            assert_eq!(incident.started, found + 9 * S, "{before:?}");
            assert_eq!(incident.last_renewal_to_verdict, Some(42 * S));
        }
        let mut memory = memory(found);
        let observe = ModeInForce {
            mode: watchdog_api::policy::Mode::Observe,
            ..ModeInForce::default()
        };
        memory.keep_mode(found + 9 * S, observe);
        memory.keep_decision(found + 10 * S, &loss(found, found + 10 * S));
        assert_eq!(memory.found, Some(found + 9 * S));
    }
}
