//! Pods, as far as the rule reads them.

use std::collections::BTreeMap;

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
    /// Of the containers in a crash loop, the one that was restarted most often, because it would wait longest.
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

impl Pod {
    /// The revision of this state; later than all others when it cannot be read.
    pub(crate) fn version(&self) -> u64 {
        self.resource_version.parse().unwrap_or(u64::MAX)
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
    use crate::domain::fixtures::crashing;

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
