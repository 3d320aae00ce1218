//! Pods, as far as the rule reads them.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use watchdog_api::names::CRASH_LOOP_BACK_OFF;
use watchdog_api::unix_time::UnixTime;

use super::namespaced_name::NamespacedName;

/// The fields of a pod that the rule needs.
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
    /// True when the pod has a deletionTimestamp.
    pub(crate) deleting: bool,
    /// The containers that wait in `CrashLoopBackOff`; see [`CrashLoop::of`].
    pub(crate) crashes: Vec<CrashLoop>,
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
pub struct CrashLoop {
    /// Name of the container.
    pub container: String,
    /// True for an init container.
    pub init: bool,
    /// Restarts so far.
    pub restarts: i32,
    /// None when the status does not have it.
    pub exit_code: Option<i32>,
    /// Such as `Error` or `OOMKilled`; empty when it is not known.
    pub reason: String,
    /// The termination message, cut; may be empty.
    pub message: String,
    /// When the last run ended, by the node's clock.
    pub ended_at: Option<UnixTime>,
}

// === impl Pod ===

impl Pod {
    /// The crash loop for which the pod may be deleted. None for a pod that is being deleted already.
    pub(crate) fn crash_loop(&self) -> Option<&CrashLoop> {
        self.crashes.first().filter(|_| !self.deleting)
    }

    /// The revision of this state; later than all others when it cannot be read.
    pub(crate) fn version(&self) -> u64 {
        self.resource_version.parse().unwrap_or(u64::MAX)
    }
}

// === impl CrashLoop ===

impl CrashLoop {
    /// The containers that are in a crash loop. First the one that was restarted most often, because it would wait
    /// longest. `containers` come with the reason for which they wait.
    pub fn of(containers: impl IntoIterator<Item = (Option<String>, Self)>) -> Vec<Self> {
        let crashing = containers
            .into_iter()
            .filter(|(waiting, _)| waiting.as_deref() == Some(CRASH_LOOP_BACK_OFF));
        let mut crashes: Vec<Self> = crashing.map(|(_, crash)| crash).collect();
        crashes.sort_by_key(|crash| Reverse(crash.restarts));
        crashes
    }

    /// How the last run ended, for people.
    pub(crate) fn exit(&self) -> String {
        let reason = Some(self.reason.as_str()).filter(|reason| !reason.is_empty());
        match (self.exit_code, reason) {
            (Some(code), Some(reason)) => format!("exit code {code}, {reason}"),
            (Some(code), None) => format!("exit code {code}"),
            (None, Some(reason)) => format!("exit code unknown, {reason}"),
            (None, None) => "exit code unknown".to_owned(),
        }
    }
}

impl std::fmt::Display for CrashLoop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if self.init { "init container" } else { "container" };
        let restarts = match self.restarts {
            1 => "1 restart".to_owned(),
            n => format!("{n} restarts"),
        };
        let Self { container, .. } = self;
        write!(f, "{kind} {container} ({}, {restarts})", self.exit())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::fixtures::crashing;

    fn container(
        name: &str,
        init: bool,
        restarts: i32,
        waiting: Option<&str>,
    ) -> (Option<String>, CrashLoop) {
        let crash = CrashLoop {
            container: name.to_owned(),
            init,
            restarts,
            ..CrashLoop::default()
        };
        (waiting.map(str::to_owned), crash)
    }

    fn found(containers: Vec<(Option<String>, CrashLoop)>) -> Vec<(String, bool)> {
        let crashes = CrashLoop::of(containers).into_iter();
        crashes.map(|crash| (crash.container, crash.init)).collect()
    }

    #[test]
    fn containers_and_init_containers_count() {
        let running = container("a", false, 7, None);
        let pulling = container("b", false, 9, Some("ImagePullBackOff"));
        let crashing = container("c", false, 3, Some("CrashLoopBackOff"));
        let init = container("d", true, 5, Some("CrashLoopBackOff"));
        assert_eq!(found(vec![]), []);
        assert_eq!(found(vec![running.clone(), pulling.clone()]), []);
        let (main, setup) = (("c".to_owned(), false), ("d".to_owned(), true));
        assert_eq!(
            found(vec![running, pulling, crashing.clone()]),
            std::slice::from_ref(&main)
        );
        assert_eq!(found(vec![crashing, init]), [setup, main]);
    }

    #[test]
    fn a_crash_in_words() {
        let mut crash = crashing("pod", "kcm", 0, 1).crashes.remove(0);
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
