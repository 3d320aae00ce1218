//! Every loop says why its last try failed, whatever the cause.

#![cfg(test)]

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use kube::runtime::watcher;
use kube::{Api, Client};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use watchdog_kube::events::{Notice, recorder};
use watchdog_kube::members::{FollowedMembers, OwnLease};
use watchdog_kube::watch::Watch;
use watchdog_runtime::failure::Reason;
use watchdog_runtime::readiness::Readiness;
use watchdog_sandbox::{ApiOptions, ApiServer, Fault, FaultAction};
use watchdog_test_support::in_process::api_server;
use watchdog_test_support::wait::{self, BOUND};

const USER: &str = "scaling-coordinator";

/// Every loop on the seed that this crate has.
const LOOPS: [&str; 3] = ["membership", "events", "leases"];

/// The loops that notice a missing namespace: to list in one is no error.
const WRITERS: [&str; 2] = ["membership", "events"];

/// A fault, and the answer that the loops must show.
struct Cause {
    wrong: &'static str,
    reason: Reason,
    text: &'static str,
    loops: &'static [&'static str],
}

const fn cause(wrong: &'static str, reason: Reason, text: &'static str) -> Cause {
    Cause {
        wrong,
        reason,
        text,
        loops: &LOOPS,
    }
}

const CAUSES: [Cause; 7] = [
    Cause {
        loops: &WRITERS,
        ..cause(
            "no namespace",
            Reason::NotFound,
            "namespaces \"garden\" not found (404 NotFound)",
        )
    },
    cause("no right", Reason::Forbidden, "(403 Forbidden)"),
    cause(
        "wrong certificate",
        Reason::Certificate,
        "invalid peer certificate",
    ),
    cause("wrong server name", Reason::ServerName, "other.example"),
    cause("refused", Reason::ConnectionRefused, "Connection refused"),
    cause("hanging", Reason::Timeout, ""),
    cause("expired token", Reason::Unauthorized, "(401 Unauthorized)"),
];

/// An API server with this wrong with it, and a client that finds out.
async fn seed(wrong: &str) -> (ApiServer, Client) {
    let namespaces: &[&str] = if wrong == "no namespace" { &[] } else { &["garden"] };
    let api = api_server(namespaces).await.unwrap();
    let mut kubeconfig = Kubeconfig::from_yaml(&api.kubeconfig(USER)).unwrap();
    let cluster = kubeconfig.clusters[0].cluster.as_mut().unwrap();
    match wrong {
        "no right" => api.restrict(USER, Vec::new()),
        "wrong certificate" => {
            let other = ApiServer::start(ApiOptions::default()).await.unwrap();
            let other = Kubeconfig::from_yaml(&other.kubeconfig(USER)).unwrap();
            let other = other.clusters[0].cluster.clone().unwrap();
            cluster.certificate_authority_data = other.certificate_authority_data;
        }
        "wrong server name" => cluster.tls_server_name = Some("other.example".to_owned()),
        "refused" => api.stop().await.unwrap(),
        "hanging" => {
            api.inject(Fault::always(FaultAction::Hang));
        }
        "expired token" => api.revoke(USER),
        _ => {}
    }
    let options = KubeConfigOptions::default();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .unwrap();
    config.default_retry = false;
    config.read_timeout = Some(Duration::from_secs(2));
    (api, Client::try_from(config).unwrap())
}

/// Starts every loop.
fn start(client: &Client, readiness: &Readiness) -> JoinSet<()> {
    let stop = CancellationToken::new();
    let own = OwnLease {
        identity: "lease-probe-0".into(),
        address: "127.0.0.1:9645".into(),
    };
    let (_, member) = FollowedMembers::new(
        client.clone(),
        "garden",
        "lease-probe",
        readiness.clone(),
        Some(own),
    );
    let watch = Watch {
        name: "leases".into(),
        api: Api::<Lease>::namespaced(client.clone(), "garden"),
        config: watcher::Config::default(),
        ends_if_not_served: false,
    };
    let watch = watch.run(readiness.clone(), stop.clone(), |_| {});
    let (sink, publish) = recorder(
        client.clone(),
        "scaling-coordinator",
        "scaling-coordinator-0",
        TaskTracker::new(),
        readiness.clone(),
        stop.clone(),
    );
    sink.publish(Notice {
        about: ObjectReference {
            namespace: Some("garden".to_owned()),
            ..ObjectReference::default()
        },
        warning: true,
        reason: "ScaleDownFailed",
        action: "ScaleDown",
        note: "a note".to_owned(),
    });
    let mut tasks = JoinSet::new();
    tasks.spawn(member.run(stop.clone()));
    tasks.spawn(async move { watch.await.unwrap() });
    tasks.spawn(async move { publish.await.unwrap() });
    tasks
}

#[tokio::test]
async fn every_loop_says_why_its_last_try_failed() {
    let mut started = Vec::new();
    for cause in CAUSES {
        let (api, client) = seed(cause.wrong).await;
        let readiness = Readiness::default();
        let tasks = start(&client, &readiness);
        started.push((cause, readiness, api, tasks));
    }
    for (cause, readiness, _api, _tasks) in &started {
        let shown = |name: &str| {
            let failures = readiness.failures().into_iter();
            let mut of_loop = failures.filter(|(shown, _, _)| *shown == name);
            of_loop.any(|(_, instance, failure)| {
                instance == Arc::from("")
                    && failure.reason == cause.reason
                    && failure.to_string().contains(cause.text)
            })
        };
        for name in cause.loops {
            let what = format!("{}: {name} says {:?}", cause.wrong, cause.text);
            let said = wait::until_true(&what, BOUND, || async {
                let (lines, failures) = (readiness.lines(), readiness.failures());
                anyhow::ensure!(shown(name), "but it says {lines:#?} {failures:?}");
                Ok(true)
            });
            said.await.unwrap();
        }
        let failures = format!("{:?}", readiness.failures());
        assert!(!failures.contains("Bearer"), "{failures}");
    }
}
