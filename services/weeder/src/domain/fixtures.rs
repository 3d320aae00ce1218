//! Fixtures for the tests of the rules.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use watchdog_api::config::UnknownFields;
use watchdog_api::unix_time::UnixTime;
use watchdog_api::weeder::WeederConfig;

use super::namespaced_name::NamespacedName;
use super::pods::{ControllerRef, CrashLoop, Pod};
use super::readiness::{Endpoints, Slice, SliceWrite};
use super::recovery::Recovery;

/// A moment, in seconds.
pub(crate) fn at(second: i64) -> UnixTime {
    UnixTime(second * 1_000_000)
}

/// etcd, needed by kube-apiserver, which is needed by the control plane.
pub(crate) fn config() -> WeederConfig {
    // Property tests ask for it a million times.
    static PARSED: LazyLock<WeederConfig> = LazyLock::new(|| {
        let file = b"
watchDuration: 5m
servicesAndDependantSelectors:
  etcd: {podSelectors: [{matchLabels: {role: apiserver}}]}
  kube-apiserver: {podSelectors: [{matchExpressions: [{key: role, operator: In, values: [kcm, apiserver]}]}]}
";
        let parsed = watchdog_api::weeder::parse(file, UnknownFields::Refused);
        parsed.unwrap().config
    });
    PARSED.clone()
}

/// A recovery at this second, by a write of this revision.
pub(crate) fn recovery(second: i64, version: u64) -> Recovery {
    let write = SliceWrite {
        second: at(second),
        version,
    };
    Recovery {
        at: at(second),
        found_ready: false,
        write: Some(write),
        deletes_from: at(second),
        ends_at: at(second).after(Duration::from_secs(300)),
    }
}

pub(crate) fn owner(kind: &str, uid: &str) -> ControllerRef {
    ControllerRef {
        api_version: "apps/v1".to_owned(),
        kind: kind.to_owned(),
        name: format!("{uid}-controller"),
        uid: uid.to_owned(),
    }
}

/// A pod in the namespace `shoot` with the label `role`, of a controller of its own, in a crash loop; created in this
/// second, and its state written with this revision.
pub(crate) fn crashing(name: &str, role: &str, created: i64, version: u64) -> Pod {
    Pod {
        key: NamespacedName::new("shoot", name),
        uid: format!("{name}-{created}"),
        resource_version: version.to_string(),
        labels: BTreeMap::from([("role".to_owned(), role.to_owned())]),
        owner: Some(owner("ReplicaSet", name)),
        created: Some(at(created)),
        crash: CrashLoop {
            container: "main".to_owned(),
            init: false,
            restarts: 5,
            exit_code: Some(1),
            reason: "Error".to_owned(),
            message: "no route to etcd".to_owned(),
            ended_at: Some(at(created + 5)),
        },
    }
}

/// The only slice of a service in the namespace `shoot`, written in this second with this revision, and triggered then.
pub(crate) fn slice(service: &str, ready: bool, second: i64, version: u64) -> Slice {
    Slice {
        key: NamespacedName::new("shoot", format!("{service}-1")),
        service: Some(service.into()),
        endpoints: Endpoints::of([ready]),
        write: Some(SliceWrite {
            second: at(second),
            version,
        }),
        triggered: Some(at(second)),
    }
}
