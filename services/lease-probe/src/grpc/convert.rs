//! Domain <-> proto.

use watchdog_api::eligibility::SkipReason as DomainSkip;
use watchdog_api::unix_time::UnixTime;
use watchdog_proto::probe::v1 as pb;
use watchdog_watch_stream::seed_view::PeerState;
use watchdog_watch_stream::wire::{duration, signed, timestamp};

use crate::domain::assessment::Assessment;
use crate::domain::candidates::Exclusion;
use crate::domain::outcome::Outcome;
use crate::domain::verdict::Verdict;

/// Converts a verdict to its wire form, with its age as of `now`.
pub(crate) fn verdict(shoot: &str, verdict: &Verdict, now: UnixTime) -> pb::Verdict {
    pb::Verdict {
        shoot: shoot.to_owned(),
        outcome: outcome(&verdict.outcome).into(),
        skip_reason: skip_reason(&verdict.outcome).into(),
        message: verdict.message.clone(),
        evidence: verdict.evidence.as_deref().map(evidence),
        observe_time: Some(timestamp(verdict.observed_at.0)),
        expire_time: Some(timestamp(verdict.valid_until.0)),
        age: Some(signed(now.0.saturating_sub(verdict.observed_at.0))),
        valid_for: Some(signed(verdict.valid_until.0.saturating_sub(now.0))),
        observer: verdict.observer.to_string(),
        outcome_change_time: Some(timestamp(verdict.outcome_since.0)),
        list_revision: verdict.list_revision(),
        first_list_revision: verdict.first_list_revision,
    }
}

/// A replica that has reported this number of shoots.
pub(crate) fn replica(name: &str, state: PeerState, shoots: u32) -> pb::Replica {
    let state = match state {
        PeerState::Joined(_) => pb::ReplicaState::Joining,
        PeerState::Synced => pb::ReplicaState::Connected,
        PeerState::Outdated => pb::ReplicaState::Outdated,
    };
    pb::Replica {
        name: name.to_owned(),
        state: state.into(),
        shoots,
    }
}

const fn outcome(outcome: &Outcome) -> pb::Outcome {
    match outcome {
        Outcome::Healthy => pb::Outcome::Healthy,
        Outcome::LeasesExpired => pb::Outcome::LeasesExpired,
        Outcome::ExternalUnreachable => pb::Outcome::ExternalUnreachable,
        Outcome::ApiServerUnreachable => pb::Outcome::ApiServerUnreachable,
        Outcome::Throttled => pb::Outcome::Throttled,
        Outcome::Inconclusive => pb::Outcome::Inconclusive,
        Outcome::TooFewCandidates => pb::Outcome::TooFewCandidates,
        Outcome::Skipped(_) => pb::Outcome::Skipped,
        Outcome::Pending => pb::Outcome::Pending,
    }
}

const fn skip_reason(outcome: &Outcome) -> pb::SkipReason {
    let Outcome::Skipped(reason) = outcome else {
        return pb::SkipReason::Unspecified;
    };
    match reason {
        DomainSkip::Deleting => pb::SkipReason::Deleting,
        DomainSkip::Hibernating => pb::SkipReason::Hibernating,
        DomainSkip::WakingUp => pb::SkipReason::WakingUp,
        DomainSkip::Migrating => pb::SkipReason::Migrating,
        DomainSkip::NoWorkers => pb::SkipReason::NoWorkers,
        DomainSkip::SelfHosted => pb::SkipReason::SelfHosted,
        DomainSkip::NotReconciled => pb::SkipReason::NotReconciled,
        DomainSkip::Malformed(_) => pb::SkipReason::Malformed,
    }
}

fn evidence(evidence: &Assessment) -> pb::Evidence {
    pb::Evidence {
        nodes: (evidence.nodes > 0).then_some(evidence.nodes),
        leases: evidence.leases,
        candidates: evidence.candidates,
        expired: evidence.expired,
        excluded: evidence
            .excluded
            .iter()
            .map(|(reason, leases)| pb::ExclusionCount {
                reason: exclusion(*reason).into(),
                leases: *leases,
            })
            .collect(),
        expired_fraction: (evidence.candidates > 0).then(|| evidence.fraction()),
        threshold: evidence.rule.threshold,
        zones: evidence
            .zones
            .iter()
            .map(|(zone, count)| pb::ZoneEvidence {
                zone: zone.to_string(),
                candidates: count.candidates,
                expired: count.expired,
            })
            .collect(),
        expiry_age: Some(duration(evidence.rule.expiry_age)),
        node_monitor_grace_period: Some(duration(evidence.rule.grace)),
        largest_skew: Some(signed(evidence.largest_skew)),
        unconfirmed: evidence.unconfirmed,
        newest_expired_renewal_age: evidence.newest_expired_renewal.map(duration),
    }
}

const fn exclusion(exclusion: Exclusion) -> pb::Exclusion {
    match exclusion {
        Exclusion::NotManagedByMcm => pb::Exclusion::NotManagedByMcm,
        Exclusion::UnhealthyCondition => pb::Exclusion::UnhealthyCondition,
        Exclusion::InPlaceUpdate => pb::Exclusion::InPlaceUpdate,
        Exclusion::NoMachine => pb::Exclusion::NoMachine,
        Exclusion::MachineFailed => pb::Exclusion::MachineFailed,
        Exclusion::MachineTerminating => pb::Exclusion::MachineTerminating,
        Exclusion::NoNode | Exclusion::NodeMissing => pb::Exclusion::NoNode,
        Exclusion::NoRenewTime => pb::Exclusion::NoRenewTime,
        Exclusion::MalformedLease => pb::Exclusion::MalformedLease,
    }
}
