//! Fixtures for the tests of the rules.

use std::collections::BTreeMap;
use std::sync::Arc;

use watchdog_api::config::UnknownFields;
use watchdog_api::weeder::WeederConfig;

use super::dependants::Dependants;
use super::namespaced_name::NamespacedName;
use super::pods::{ControllerRef, CrashLoop, Pod};
use watchdog_api::unix_time::UnixTime;

/// A moment.
pub(crate) fn at(seconds: f64) -> UnixTime {
    UnixTime((seconds * 1e6) as i64)
}

/// etcd, needed by kube-apiserver, which is needed by the control plane.
pub(crate) fn config() -> WeederConfig {
    let file = b"
watchDuration: 5m
servicesAndDependantSelectors:
  etcd: {podSelectors: [{matchLabels: {role: apiserver}}]}
  kube-apiserver: {podSelectors: [{matchExpressions: [{key: role, operator: In, values: [kcm, apiserver]}]}]}
";
    let parsed = watchdog_api::weeder::parse(file, UnknownFields::Refused);
    parsed.unwrap().config
}

/// The dependants of one of its services.
pub(crate) fn dependants(service: &str) -> Arc<Dependants> {
    Arc::new(Dependants::new(&config().services[service]))
}

pub(crate) fn owner(kind: &str, uid: &str) -> ControllerRef {
    ControllerRef {
        api_version: "apps/v1".to_owned(),
        kind: kind.to_owned(),
        name: format!("{uid}-controller"),
        uid: uid.to_owned(),
    }
}

/// A pod with the label `role` of a controller of the same name, in a crash loop since second -10, in the namespace
/// `shoot`.
pub(crate) fn crashing(name: &str, role: &str, uid: &str, version: &str) -> Pod {
    Pod {
        key: NamespacedName {
            namespace: "shoot".into(),
            name: name.into(),
        },
        uid: uid.to_owned(),
        resource_version: version.to_owned(),
        labels: BTreeMap::from([("role".to_owned(), role.to_owned())]),
        owner: Some(owner("ReplicaSet", name)),
        created: Some(at(-100.0)),
        deleting: false,
        restarted: vec!["main".to_owned()],
        crashes: vec![CrashLoop {
            container: "main".to_owned(),
            init: false,
            restarts: 5,
            exit_code: Some(1),
            reason: "Error".to_owned(),
            message: "no route to etcd".to_owned(),
            ended_at: Some(at(-10.0)),
        }],
        last_ended: Some(at(-10.0)),
    }
}

/// The same pod, running.
pub(crate) fn running(mut pod: Pod) -> Pod {
    pod.crashes.clear();
    pod.restarted.clear();
    pod
}
