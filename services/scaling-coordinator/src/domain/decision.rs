//! From the verdicts on a shoot to one direction.
//!
//! The invariants S1 and S2 stand here: a direction comes only from a verdict that is valid now, from an observer
//! whose stream lives, and that no other valid verdict contradicts. Everything else holds.

use std::sync::Arc;

use tokio::time::Instant;

use super::Direction;

/// What a probe of the shoot found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The nodes are connected.
    Healthy,
    /// The nodes are cut off.
    LeasesExpired,
    /// The internal endpoint answers, the external one does not.
    ExternalUnreachable,
    /// The API server does not answer.
    ApiServerUnreachable,
    /// The API server throttles.
    Throttled,
    /// Leases, nodes or machines could not be read.
    Inconclusive,
    /// One lease counts, and it is expired.
    TooFewCandidates,
    /// The shoot is not probed.
    Skipped,
    /// No probe has come to a result yet.
    Pending,
    /// An outcome that this version does not know.
    Unknown,
}

impl Outcome {
    /// Where it wants the dependants; `None` holds.
    #[must_use]
    pub const fn direction(self) -> Option<Direction> {
        match self {
            Self::Healthy => Some(Direction::Up),
            Self::LeasesExpired | Self::ExternalUnreachable => Some(Direction::Down),
            Self::ApiServerUnreachable
            | Self::Throttled
            | Self::Inconclusive
            | Self::TooFewCandidates
            | Self::Skipped
            | Self::Pending
            | Self::Unknown => None,
        }
    }

    /// As in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Healthy => "HEALTHY",
            Self::LeasesExpired => "LEASES_EXPIRED",
            Self::ExternalUnreachable => "EXTERNAL_UNREACHABLE",
            Self::ApiServerUnreachable => "API_SERVER_UNREACHABLE",
            Self::Throttled => "THROTTLED",
            Self::Inconclusive => "INCONCLUSIVE",
            Self::TooFewCandidates => "TOO_FEW_CANDIDATES",
            Self::Skipped => "SKIPPED",
            Self::Pending => "PENDING",
            Self::Unknown => "an outcome that this version does not know",
        }
    }
}

/// What one observer says about a shoot, in local monotonic time.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Verdict {
    /// What it found.
    pub outcome: Outcome,
    /// Who says so.
    pub observer: Arc<str>,
    /// When it was observed.
    pub observed: Instant,
    /// When it was sent.
    pub sent: Instant,
    /// Until when it may be acted upon.
    pub valid_until: Instant,
    /// One sentence for people.
    pub message: Arc<str>,
}

/// The streams from lease-probe, as far as they explain why there is no verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Streams {
    /// Replicas of lease-probe that are known.
    pub known: usize,
    /// Those whose stream is synchronised.
    pub synced: usize,
}

/// Where the dependants of a shoot are to go.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Decision {
    /// The direction; `None` holds.
    pub direction: Option<Direction>,
    /// One sentence for people.
    pub reason: String,
    /// When to decide again although nothing has happened: some validity ends then.
    pub again_at: Option<Instant>,
    /// When the verdict that decided was sent.
    pub decided_by: Option<Instant>,
}

impl Decision {
    /// Holds, for a reason that has nothing to do with verdicts.
    #[must_use]
    pub fn hold(reason: impl Into<String>) -> Self {
        Self {
            direction: None,
            reason: reason.into(),
            again_at: None,
            decided_by: None,
        }
    }
}

/// Decides from the verdicts of all observers whose streams live, one each.
///
/// A verdict counts while it is valid. `Pending` never counts: an observer that has not looked says nothing against
/// one that has. All that count must want the same, and holding is a wish like the others.
pub fn decide<'a>(
    now: Instant,
    verdicts: impl IntoIterator<Item = &'a Verdict>,
    streams: Streams,
) -> Decision {
    let (mut newest, mut again_at) = (None::<&Verdict>, None::<Instant>);
    let mut counted: Vec<&Verdict> = Vec::new();
    for verdict in verdicts {
        if newest.is_none_or(|newest| verdict.observed > newest.observed) {
            newest = Some(verdict);
        }
        if verdict.valid_until <= now || verdict.outcome == Outcome::Pending {
            continue;
        }
        again_at = Some(again_at.map_or(verdict.valid_until, |at| at.min(verdict.valid_until)));
        counted.push(verdict);
    }
    counted.sort_by(|a, b| (b.observed, &b.observer).cmp(&(a.observed, &a.observer)));
    let Some(first) = counted.first() else {
        return Decision::hold(newest.map_or_else(|| silence(streams), expired));
    };
    let direction = first.outcome.direction();
    let contrary = counted
        .iter()
        .find(|other| other.outcome.direction() != direction);
    if let Some(contrary) = contrary {
        return Decision {
            again_at,
            ..Decision::hold(format!(
                "The observers disagree: {} says {}, {} says {}.",
                first.observer,
                first.outcome.as_str(),
                contrary.observer,
                contrary.outcome.as_str()
            ))
        };
    }
    Decision {
        direction,
        reason: sentence(first),
        again_at,
        decided_by: Some(first.sent),
    }
}

fn sentence(verdict: &Verdict) -> String {
    let (observer, outcome) = (&verdict.observer, verdict.outcome.as_str());
    // Every renewal of a healthy verdict may count other leases; that is no news about the scaling.
    if verdict.outcome == Outcome::Healthy || verdict.message.is_empty() {
        format!("{observer} says {outcome}.")
    } else {
        format!("{observer} says {outcome}: {}", verdict.message)
    }
}

fn expired(newest: &Verdict) -> String {
    match newest.outcome {
        // These are never valid: they give no reason to act.
        Outcome::Pending | Outcome::Skipped => sentence(newest),
        outcome => format!(
            "The last verdict, {} by {}, is not valid any more and was not renewed.",
            outcome.as_str(),
            newest.observer
        ),
    }
}

fn silence(streams: Streams) -> String {
    match (streams.known, streams.synced) {
        (0, _) => "No replica of lease-probe is known.".to_owned(),
        (_, 0) => "No stream from lease-probe is connected.".to_owned(),
        (known, synced) if synced < known => {
            format!("None of the {synced} connected replicas of lease-probe (of {known}) reports this shoot.")
        }
        _ => "No replica of lease-probe reports this shoot.".to_owned(),
    }
}

#[cfg(test)]
#[path = "decision_tests.rs"]
mod tests;
