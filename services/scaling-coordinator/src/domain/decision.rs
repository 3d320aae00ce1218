//! From the verdicts on a shoot to one direction.
//!
//! This module keeps S1 and S2: a direction comes only from a verdict that is valid now, from an observer whose stream
//! is open, and that no other valid verdict contradicts. Anything else holds the shoot.
//!
//! Two witnesses look at the same shoot at different times, so a contradiction alone says nothing. What counts is which
//! list of leases is newer, by its revision.

use std::sync::Arc;
use std::time::Duration;

use strum::IntoStaticStr;
use tokio::time::Instant;
use watchdog_api::names::MODE_ANNOTATION;
use watchdog_api::policy::{Mode, ModeInForce};

use super::Direction;

/// The time that the witness with the older list gets to confirm or refute a contrary verdict. Longer than the time
/// between two probes of a shoot that may be lost; a witness that is frozen delays nothing for longer.
pub const CONFIRMATION_WAIT: Duration = Duration::from_secs(3);

/// Tolerance for rounding: otherwise the observation times within a stream are exact.
const ROUNDING: Duration = Duration::from_secs(1);

/// The result of probing a shoot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr)]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
pub enum ReportedOutcome {
    /// The nodes are connected.
    Healthy,
    /// The nodes are cut off.
    LeasesExpired,
    /// The internal endpoint answers, the external one does not.
    ExternalUnreachable,
    /// The shoot is not probed.
    Skipped,
    /// No probe has come to a result yet.
    Pending,
    /// Another outcome without a direction, by its name in the API.
    #[strum(transparent)]
    Undecided(&'static str),
    /// The observer repeats a verdict that is older than its last one.
    #[strum(serialize = "an outdated verdict")]
    Outdated,
}

impl ReportedOutcome {
    /// The direction that follows from it; `None` holds.
    #[must_use]
    pub const fn direction(self) -> Option<Direction> {
        match self {
            Self::Healthy => Some(Direction::Up),
            Self::LeasesExpired | Self::ExternalUnreachable => Some(Direction::Down),
            Self::Skipped | Self::Pending | Self::Undecided(_) | Self::Outdated => None,
        }
    }

    /// As in the API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The evidence of a loss, in counts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct EvidenceCounts {
    /// Leases that count.
    pub candidates: u32,
    /// Those that have expired.
    pub expired: u32,
    /// Name, candidates and expired candidates of each zone.
    pub zones: Vec<(String, u32, u32)>,
    /// Time since the newest renewal of an expired candidate, when the leases were judged.
    pub newest_expired_renewal: Option<Duration>,
    /// The grace period of kube-controller-manager, if the observer says it.
    pub grace: Option<Duration>,
}

/// The verdict of one observer on a shoot, in local monotonic time.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ReceivedVerdict {
    /// The result of the probe.
    pub outcome: ReportedOutcome,
    /// The observer that sent the verdict.
    pub observer: Arc<str>,
    /// When it was observed.
    pub observed: Instant,
    /// When the observer first found this outcome. Every probe since then has found it.
    pub outcome_since: Instant,
    /// The revision of the list of leases; 0 if it is not known. Of two verdicts the one with the higher revision rests
    /// on the newer list.
    pub list_revision: u64,
    /// The revision of the list with which the observer first found this outcome; 0 if it is not known.
    pub first_revision: u64,
    /// The end of its validity.
    pub valid_until: Instant,
    /// One sentence for people.
    pub message: Arc<str>,
    /// The evidence of a loss.
    pub evidence: Option<Arc<EvidenceCounts>>,
}

/// The streams from lease-probe, as far as they explain why there is no verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct StreamCounts {
    /// Replicas of lease-probe that are known.
    pub known: usize,
    /// Those whose stream is synchronized.
    pub synced: usize,
}

/// Why a shoot is held, for statistics; the reason of the decision is for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum HoldReason {
    /// The Cluster forbids it, or is not known.
    Cluster,
    /// Another replica leads, or this one must not act.
    NotLeading,
    /// No connected replica reports it.
    Unreported,
    /// The last verdict is no longer valid.
    Expired,
    /// The verdicts contradict each other.
    Disagreement,
    /// An observer repeats an outdated verdict.
    Outdated,
    /// The outcome has no direction.
    Verdict,
    /// The mode of the shoot is off.
    Mode,
}

impl HoldReason {
    /// As a label value.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The direction of a shoot, and why.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Decision {
    /// The direction; `None` holds.
    pub direction: Option<Direction>,
    /// Why it is held, if it is.
    pub held: Option<HoldReason>,
    /// One sentence for people.
    pub reason: String,
    /// When to decide again even if nothing happens, because the validity of a verdict ends.
    pub again_at: Option<Instant>,
    /// The verdict that decided.
    pub decided_by: Option<ReceivedVerdict>,
}

impl Decision {
    /// The decision to leave the shoot as it is.
    #[must_use]
    pub fn hold(held: HoldReason, reason: impl Into<String>) -> Self {
        Self {
            direction: None,
            held: Some(held),
            reason: reason.into(),
            again_at: None,
            decided_by: None,
        }
    }

    /// Adds a sentence to the reason, unless a verdict has brought it already.
    pub fn explain(&mut self, sentence: &str) {
        if !self.reason.contains(sentence) {
            self.reason.push(' ');
            self.reason.push_str(sentence);
        }
    }

    /// Restores what is held down, without a verdict.
    pub(crate) fn restore() -> Self {
        Self {
            direction: Some(Direction::Up),
            held: None,
            reason: "All held-down resources are being restored.".to_owned(),
            again_at: None,
            decided_by: None,
        }
    }

    /// Leaves the shoot to others, because of its Cluster.
    #[must_use]
    pub fn release(reason: impl Into<String>) -> Self {
        Self {
            direction: Some(Direction::Release),
            ..Self::hold(HoldReason::Cluster, reason)
        }
    }
}

impl EvidenceCounts {
    pub(crate) fn expired_share(&self) -> Option<f64> {
        let share = f64::from(self.expired) / f64::from(self.candidates);
        (self.candidates > 0).then_some(share)
    }
}

impl ReceivedVerdict {
    /// This verdict as it counts after another one of the same stream. If it is older than that, neither can be
    /// trusted: it counts as [`ReportedOutcome::Outdated`] until something new comes.
    pub(crate) fn after(self, before: &Self) -> Self {
        if self.observed + ROUNDING >= before.observed {
            return self;
        }
        Self {
            outcome: ReportedOutcome::Outdated,
            observed: before.observed,
            valid_until: self.valid_until.max(before.valid_until),
            ..self
        }
    }

    /// The newest renewal of an expired candidate, if there is one.
    pub(crate) fn last_renewal(&self) -> Option<Instant> {
        let silent = self.evidence.as_ref()?.newest_expired_renewal?;
        self.observed.checked_sub(silent)
    }

    /// Returns true if this verdict is known to rest on a newer list than another one.
    fn is_newer(&self, other: &Self) -> bool {
        match (self.list_revision, other.list_revision) {
            (0, _) | (_, 0) => self.observed > other.observed,
            (own, other) => own > other,
        }
    }

    /// Returns true if this witness has reported PENDING since about the time at which another one found the loss. It
    /// observed renewals until then and observes the silence now, but knows of a reason, such as an outage, why that
    /// may prove nothing. A witness that has reported PENDING for longer, such as one that has just started, knows
    /// less, not more.
    fn doubts(&self, loss: &Self) -> bool {
        self.outcome == ReportedOutcome::Pending
            && loss.outcome.direction() == Some(Direction::Down)
            && self.outcome_since + CONFIRMATION_WAIT > loss.outcome_since
    }

    /// Returns true if the list of this verdict could have confirmed the other one: it came after the probe that first
    /// found the other outcome, and it is not known to be older than the list of that probe. Silence grows with time,
    /// so an earlier list refutes nothing, however high its revision. An older list does not show what was written
    /// since, so it refutes nothing, however late it came.
    fn looked_since(&self, other: &Self) -> bool {
        self.observed > other.outcome_since
            && (self.list_revision == 0 || self.list_revision >= other.first_revision)
    }
}

/// The decision that no verdict can change: by the Cluster, the leadership and the mode, in this order. None if the
/// verdicts count. `of_cluster` is what the Cluster alone decides (S4), and `not_leading` says why this replica does
/// not lead.
pub(crate) fn decide_without_verdicts(
    of_cluster: Option<Decision>,
    not_leading: Option<String>,
    mode: ModeInForce,
) -> Option<Decision> {
    match (of_cluster, not_leading) {
        // Only the leader releases.
        (Some(of_cluster), Some(_)) => Some(Decision {
            direction: None,
            ..of_cluster
        }),
        (Some(of_cluster), None) if of_cluster.direction.is_none() || mode.mode != Mode::Off => {
            Some(of_cluster)
        }
        (None, Some(why)) => Some(Decision::hold(HoldReason::NotLeading, why)),
        _ if mode.mode == Mode::Off => {
            let until = mode.until.map(|until| format!(" until {until}"));
            let until = until.unwrap_or_default();
            let why = format!("The annotation {MODE_ANNOTATION} switches the watchdog off{until}.");
            Some(Decision::hold(HoldReason::Mode, why))
        }
        _ => None,
    }
}

/// Decides from the latest verdict of each observer whose stream is open.
///
/// Verdicts that are valid and want a direction vote; those that hold do not. The vote with the newest list decides. A
/// contrary one whose list is older is waited for, [`CONFIRMATION_WAIT`] at most: its observer looks again and confirms
/// or refutes. So is a witness that has just begun to see the same silence and cannot prove it yet.
///
/// Call the list with which the newest vote first wanted its direction the *first list*. The contrary vote refutes if
/// its observer has looked since then and its own list is not known to be older than the first list. Then the shoot is
/// held while both are valid. An observer whose API server lags behind the first list refutes nothing.
pub fn decide<'a>(
    now: Instant,
    verdicts: impl IntoIterator<Item = &'a ReceivedVerdict>,
    streams: StreamCounts,
) -> Decision {
    let mut newest_first: Vec<&ReceivedVerdict> = verdicts.into_iter().collect();
    newest_first.sort_by(|a, b| (b.observed, &b.observer).cmp(&(a.observed, &a.observer)));
    let valid: Vec<&ReceivedVerdict> = newest_first
        .iter()
        .copied()
        .filter(|verdict| verdict.valid_until > now)
        .collect();
    let votes = valid
        .iter()
        .copied()
        .filter(|verdict| verdict.outcome.direction().is_some());
    let newer = |a, b: &'a ReceivedVerdict| if b.is_newer(a) { b } else { a };
    let Some(newest) = votes.clone().reduce(newer) else {
        return without_vote(&valid, newest_first.first().copied(), streams);
    };
    let direction = newest.outcome.direction();
    let first_end = votes.clone().map(|verdict| verdict.valid_until).min();
    let contrary: Vec<&ReceivedVerdict> = votes
        .filter(|verdict| verdict.outcome.direction() != direction)
        .collect();
    let refutes = |other: &&&ReceivedVerdict| !newest.is_newer(other) || other.looked_since(newest);
    if let Some(other) = contrary.iter().find(refutes) {
        let reason = format!(
            "The lease-probe replicas disagree: {}, {}.",
            report(newest),
            report(other)
        );
        return Decision {
            again_at: first_end,
            ..Decision::hold(HoldReason::Disagreement, reason)
        };
    }
    let wait_ends = newest.outcome_since + CONFIRMATION_WAIT;
    let older = contrary.first().map(|other| (*other, " based on an older list"));
    let doubt = newest_first.iter().find(|other| other.doubts(newest));
    let unheard = older.or(doubt.map(|other| (*other, "")));
    if let Some((other, basis)) = unheard.filter(|_| now < wait_ends) {
        let reason = format!(
            "The lease-probe replicas disagree: {}; {}{basis} and has {} s to confirm or correct it.",
            report(newest),
            report(other),
            CONFIRMATION_WAIT.as_secs()
        );
        return Decision {
            again_at: first_end.into_iter().chain([wait_ends]).min(),
            ..Decision::hold(HoldReason::Disagreement, reason)
        };
    }
    Decision {
        direction,
        held: None,
        reason: sentence(newest),
        again_at: first_end,
        decided_by: Some(newest.clone()),
    }
}

/// The decision when no verdict wants a direction.
fn without_vote(
    valid: &[&ReceivedVerdict],
    newest: Option<&ReceivedVerdict>,
    streams: StreamCounts,
) -> Decision {
    if let Some(first) = valid.first() {
        let held = match first.outcome {
            ReportedOutcome::Outdated => HoldReason::Outdated,
            _ => HoldReason::Verdict,
        };
        return Decision {
            again_at: valid.iter().map(|verdict| verdict.valid_until).min(),
            ..Decision::hold(held, sentence(first))
        };
    }
    match newest {
        None => Decision::hold(HoldReason::Unreported, silence(streams)),
        // These are never valid: they give no reason to act.
        Some(verdict)
            if matches!(
                verdict.outcome,
                ReportedOutcome::Pending | ReportedOutcome::Skipped
            ) =>
        {
            Decision::hold(HoldReason::Verdict, sentence(verdict))
        }
        Some(verdict) => Decision::hold(HoldReason::Expired, expired(verdict)),
    }
}

fn report(verdict: &ReceivedVerdict) -> String {
    format!("{} reports {}", verdict.observer, verdict.outcome.as_str())
}

fn sentence(verdict: &ReceivedVerdict) -> String {
    let (observer, outcome) = (&verdict.observer, verdict.outcome.as_str());
    // The counts of a healthy verdict change with every renewal and say nothing new about the scaling.
    if verdict.outcome == ReportedOutcome::Healthy || verdict.message.is_empty() {
        format!("{observer} reports {outcome}.")
    } else {
        format!("{observer} reports {outcome}: {}", verdict.message)
    }
}

fn expired(newest: &ReceivedVerdict) -> String {
    let (outcome, observer) = (newest.outcome.as_str(), &newest.observer);
    format!("The last verdict, {outcome} by {observer}, is no longer valid and was not renewed.")
}

fn silence(streams: StreamCounts) -> String {
    match (streams.known, streams.synced) {
        (0, _) => "No lease-probe replica is known.".to_owned(),
        (_, 0) => "No stream from lease-probe is connected.".to_owned(),
        (known, synced) if synced < known => {
            format!("None of the {synced} connected lease-probe replicas (of {known}) reports this shoot.")
        }
        _ => "No lease-probe replica reports this shoot.".to_owned(),
    }
}

#[cfg(test)]
mod tests;
