//! The rule: a pod is deleted when a container waits in `CrashLoopBackOff`, a service that it depends on has recovered
//! a short while ago, and the pod was there before that recovery.
//!
//! So a pod is deleted at most once for a recovery, and its successor never. Nothing has to be remembered for that: the
//! same data give the same answer after a restart and on every replica.

use watchdog_api::selector::SelectorExt;
use watchdog_api::unix_time::UnixTime;
use watchdog_api::weeder::WeederConfig;

use super::pods::{ControllerRef, Pod};
use super::recovery::Recovery;

/// The answer of [`decide`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PodDecision {
    Delete,
    Keep(KeepReason),
    /// It is no dependant, or this is not the time for it.
    NotConcerned,
}

/// Why a dependant in `CrashLoopBackOff` is not deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeepReason {
    YoungerThanRecovery,
    NoController,
    Job,
    ExcludedKind,
    StaticPod,
}

/// Decides about a pod in a crash loop for the recovery of a service.
pub(crate) fn decide(
    pod: &Pod,
    service: &str,
    recovery: &Recovery,
    config: &WeederConfig,
    now: UnixTime,
) -> PodDecision {
    let is_time = recovery.deletes_from <= now && now <= recovery.ends_at;
    if !is_time || !is_dependant(pod, service, config) {
        PodDecision::NotConcerned
    } else if !was_there_before(pod, recovery) {
        PodDecision::Keep(KeepReason::YoungerThanRecovery)
    } else {
        match kept_for_owner(pod.owner.as_ref(), config) {
            Some(reason) => PodDecision::Keep(reason),
            None => PodDecision::Delete,
        }
    }
}

fn is_dependant(pod: &Pod, service: &str, config: &WeederConfig) -> bool {
    let mut selectors = config.services.get(service).into_iter().flatten();
    selectors.any(|selector| selector.matches(&pod.labels))
}

/// By the API servers' own times and revisions, never by a clock of this process: the pod was created in an earlier
/// second, or this state of it was written before the slice became ready. If neither shows it, the pod is left alone.
fn was_there_before(pod: &Pod, recovery: &Recovery) -> bool {
    recovery.write.is_some_and(|write| {
        pod.created.is_some_and(|created| created < write.second) || pod.version() < write.version
    })
}

/// A pod without a controller is gone for good, and deleting the pod of a Job counts as a failure of the Job.
fn kept_for_owner(owner: Option<&ControllerRef>, config: &WeederConfig) -> Option<KeepReason> {
    match owner {
        None => (!config.delete_pods_without_controller).then_some(KeepReason::NoController),
        Some(owner) if owner.kind == "Node" => Some(KeepReason::StaticPod),
        Some(owner) if config.exclude_kinds.contains(&owner.kind) => Some(KeepReason::ExcludedKind),
        Some(owner) if owner.kind == "Job" => (!config.delete_pods_of_jobs).then_some(KeepReason::Job),
        Some(_) => None,
    }
}

impl KeepReason {
    pub(crate) const ALL: [Self; 5] = [
        Self::YoungerThanRecovery,
        Self::NoController,
        Self::Job,
        Self::ExcludedKind,
        Self::StaticPod,
    ];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::YoungerThanRecovery => "younger_than_recovery",
            Self::NoController => "no_controller",
            Self::Job => "job",
            Self::ExcludedKind => "excluded_kind",
            Self::StaticPod => "static_pod",
        }
    }
}

#[cfg(test)]
mod tests;
