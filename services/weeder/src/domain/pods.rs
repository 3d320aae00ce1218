//! Pods, as far as the rule reads them.

use std::collections::BTreeMap;

use watchdog_api::names::CRASH_LOOP_BACK_OFF;
use watchdog_api::unix_time::UnixTime;

use super::namespaced_name::NamespacedName;

/// A pod in a crash loop that is not being deleted, as far as the rule needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pod {
    pub(crate) key: NamespacedName,
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    pub(crate) labels: BTreeMap<String, String>,
    /// The controller that replaces the pod when it is deleted.
    pub(crate) owner: Option<ControllerRef>,
    /// By the API server's clock, in whole seconds.
    pub(crate) created: Option<UnixTime>,
    /// See [`CrashLoop::of_pod`].
    pub(crate) crash: CrashLoop,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ControllerRef {
    pub(crate) api_version: String,
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

/// A container that waits in `CrashLoopBackOff`, and how its last run ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CrashLoop {
    pub(crate) container: String,
    pub(crate) init: bool,
    pub(crate) restarts: i32,
    /// None when the status does not have it.
    pub(crate) exit_code: Option<i32>,
    /// Such as `Error` or `OOMKilled`; empty when it is not known.
    pub(crate) reason: String,
    /// The termination message, cut; may be empty.
    pub(crate) message: String,
    /// When the last run ended, by the node's clock.
    pub(crate) ended_at: Option<UnixTime>,
}

impl Pod {
    /// The revision of this state; later than all others when it cannot be read.
    pub(crate) fn version(&self) -> u64 {
        self.resource_version.parse().unwrap_or(u64::MAX)
    }
}

impl CrashLoop {
    /// That for which a pod may be deleted: of the containers in a crash loop, the one that was restarted most often,
    /// because it would wait longest. `containers` come with the reason for which they wait. None for a pod that is
    /// being deleted already or has ended, such as one that was evicted: kubelet starts nothing in it again.
    pub(crate) fn of_pod(
        is_deleted: bool,
        phase: Option<&str>,
        containers: impl IntoIterator<Item = (Option<String>, Self)>,
    ) -> Option<Self> {
        if is_deleted || matches!(phase, Some("Failed" | "Succeeded")) {
            return None;
        }
        let crashing = containers
            .into_iter()
            .filter(|(waiting, _)| waiting.as_deref() == Some(CRASH_LOOP_BACK_OFF));
        crashing
            .map(|(_, crash)| crash)
            .max_by_key(|crash| crash.restarts)
    }
}

/// The container and how its last run ended.
impl std::fmt::Display for CrashLoop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if self.init { "init container" } else { "container" };
        let code = self
            .exit_code
            .map_or_else(|| "unknown".to_owned(), |code| code.to_string());
        let comma = if self.reason.is_empty() { "" } else { ", " };
        let plural = if self.restarts == 1 { "" } else { "s" };
        let Self {
            container,
            reason,
            restarts,
            ..
        } = self;
        write!(
            f,
            "{kind} {container} (exit code {code}{comma}{reason}, {restarts} restart{plural})"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::fixtures::crashing;

    fn container(name: &str, restarts: i32, waiting: Option<&str>) -> (Option<String>, CrashLoop) {
        let crash = CrashLoop {
            container: name.to_owned(),
            restarts,
            ..crashing("pod", "kcm", 0, 1).crash
        };
        (waiting.map(str::to_owned), crash)
    }

    #[test]
    fn the_container_counts_that_waits_longest_in_a_pod_that_may_be_deleted() {
        let calm = [
            container("a", 7, None),
            container("b", 9, Some("ImagePullBackOff")),
        ];
        let crashing = [
            container("c", 3, Some("CrashLoopBackOff")),
            container("d", 5, Some("CrashLoopBackOff")),
        ];
        let of_pod = |is_deleted, phase| {
            let all = calm.iter().chain(&crashing).cloned();
            CrashLoop::of_pod(is_deleted, phase, all).map(|crash| crash.container)
        };
        assert_eq!(of_pod(false, Some("Running")), Some("d".to_owned()));
        assert_eq!(of_pod(false, None), Some("d".to_owned()));
        assert_eq!(of_pod(true, Some("Running")), None);
        assert_eq!(of_pod(false, Some("Failed")), None);
        assert_eq!(of_pod(false, Some("Succeeded")), None);
        assert_eq!(CrashLoop::of_pod(false, None, calm.clone()), None);
    }

    #[test]
    fn a_crash_in_words() {
        let mut crash = crashing("pod", "kcm", 0, 1).crash;
        assert_eq!(
            crash.to_string(),
            "container main (exit code 1, Error, 5 restarts)"
        );
        (crash.init, crash.restarts, crash.exit_code) = (true, 1, None);
        crash.reason.clear();
        assert_eq!(
            crash.to_string(),
            "init container main (exit code unknown, 1 restart)"
        );
    }
}
