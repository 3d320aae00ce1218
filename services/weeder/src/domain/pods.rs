//! Which pods are to be deleted?

use std::collections::BTreeMap;
use std::sync::Arc;

use watchdog_api::names::CRASH_LOOP_BACK_OFF;

use super::moment::Moment;

/// What is read of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// Namespace and name.
    pub key: PodKey,
    /// Tells it from another pod of the same name.
    pub uid: String,
    /// Tells it from its own earlier and later states.
    pub resource_version: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// The controller that replaces it when it is deleted.
    pub owner: Option<Owner>,
    /// Whether somebody deletes it already.
    pub deleting: bool,
    /// The container that waits in `CrashLoopBackOff`, if there is one.
    pub crash: Option<CrashLoop>,
}

/// Namespace and name of a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodKey {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

/// The controller of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// Group and version of its kind.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

/// A container that waits in `CrashLoopBackOff`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CrashLoop {
    /// Its name.
    pub container: String,
    /// Whether it is an init container.
    pub init: bool,
    /// How often it was restarted.
    pub restarts: i32,
    /// When it last ended, by the node's clock.
    pub ended_at: Option<Moment>,
}

/// What is read of the status of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// Its name.
    pub name: String,
    /// Whether it is an init container.
    pub init: bool,
    /// How often it was restarted.
    pub restarts: i32,
    /// Why it waits, if it does.
    pub waiting: Option<String>,
    /// When it last ended.
    pub ended_at: Option<Moment>,
}

impl Pod {
    /// The crash loop for which the pod is to be deleted. Never one of a pod that is being deleted already.
    #[must_use]
    pub fn to_weed(&self) -> Option<&CrashLoop> {
        self.crash.as_ref().filter(|_| !self.deleting)
    }
}

/// The container or init container that waits in `CrashLoopBackOff`; of several the one that was restarted most often,
/// for it would wait longest.
pub fn crash_loop(containers: impl IntoIterator<Item = Container>) -> Option<CrashLoop> {
    containers
        .into_iter()
        .filter(|container| container.waiting.as_deref() == Some(CRASH_LOOP_BACK_OFF))
        .max_by_key(|container| container.restarts)
        .map(|container| CrashLoop {
            container: container.name,
            init: container.init,
            restarts: container.restarts,
            ended_at: container.ended_at,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(name: &str, init: bool, restarts: i32, waiting: Option<&str>) -> Container {
        Container {
            name: name.to_owned(),
            init,
            restarts,
            waiting: waiting.map(str::to_owned),
            ended_at: None,
        }
    }

    fn found(containers: Vec<Container>) -> Option<(String, bool)> {
        crash_loop(containers).map(|crash| (crash.container, crash.init))
    }

    #[test]
    fn containers_and_init_containers_count() {
        let running = container("a", false, 7, None);
        let pulling = container("b", false, 9, Some("ImagePullBackOff"));
        let crashing = container("c", false, 3, Some("CrashLoopBackOff"));
        let init = container("d", true, 5, Some("CrashLoopBackOff"));
        assert_eq!(found(vec![]), None);
        assert_eq!(found(vec![running.clone(), pulling.clone()]), None);
        assert_eq!(
            found(vec![running, pulling, crashing.clone()]),
            Some(("c".to_owned(), false))
        );
        assert_eq!(found(vec![crashing, init]), Some(("d".to_owned(), true)));
    }

    #[test]
    fn a_pod_that_is_being_deleted_is_left_alone() {
        let mut pod = Pod {
            key: PodKey {
                namespace: "shoot".into(),
                name: "pod".into(),
            },
            uid: "1".to_owned(),
            resource_version: "1".to_owned(),
            labels: BTreeMap::new(),
            owner: None,
            deleting: false,
            crash: crash_loop([container("c", false, 3, Some("CrashLoopBackOff"))]),
        };
        assert!(pod.to_weed().is_some());
        pod.deleting = true;
        assert!(pod.to_weed().is_none());
    }
}
