//! The rule: a pod is deleted when a container waits in `CrashLoopBackOff`, a service that it depends on has recovered
//! a short while ago, and the pod was there before that recovery.
//!
//! So a pod is deleted at most once for a recovery, and its successor never. Nothing has to be remembered for that: the
//! same data give the same answer after a restart and on every replica.

use watchdog_api::unix_time::UnixTime;
use watchdog_api::weeder::WeederConfig;

use super::dependants::Dependants;
use super::pods::{ControllerRef, Pod};
use super::recovery::Recovery;

/// Why a dependant in `CrashLoopBackOff` is not deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeepReason {
    YoungerThanRecovery,
    NoController,
    Job,
    ExcludedKind,
    StaticPod,
}

/// The answer of [`decide`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PodDecision {
    Delete,
    Keep(KeepReason),
    /// It is no dependant, does not crash or is being deleted already, or this is not the time for it.
    NotConcerned,
}

/// Decides about a pod for a recovery.
pub(crate) fn decide(
    pod: &Pod,
    dependants: &Dependants,
    recovery: &Recovery,
    config: &WeederConfig,
    now: UnixTime,
) -> PodDecision {
    let is_time = recovery.deletes_from <= now && now <= recovery.ends_at;
    if !is_time || pod.crash_loop().is_none() || !dependants.include(&pod.labels) {
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

/// By the API server's own times and revisions, never by a clock of this process. Both times are whole seconds, rounded
/// down. Within the same second revisions decide: a state of the pod that was written before the slice became ready.
/// What nobody can tell is left alone.
fn was_there_before(pod: &Pod, recovery: &Recovery) -> bool {
    let (Some(created), Some(write)) = (pod.created, recovery.write) else {
        return false;
    };
    created < write.second || (created == write.second && pod.version() < write.version)
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
    pub(crate) const fn sentence(self) -> &'static str {
        match self {
            Self::YoungerThanRecovery => {
                "it is not older than the recovery, so it crashes for reasons of its own"
            }
            Self::NoController => "no controller would replace it",
            Self::Job => "a Job counts the deletion as a failure",
            Self::ExcludedKind => "the configuration excludes the kind of its controller",
            Self::StaticPod => "it mirrors a static pod",
        }
    }
}

#[cfg(test)]
mod tests;
