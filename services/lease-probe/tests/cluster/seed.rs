//! The requests of lease-probe to the seed, and its messages while they fail.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use lease_probe::cluster::watches::kubeconfigs;
use lease_probe::controller::prober::ProbeContext;
use lease_probe::controller::prober_manager::{ProberManager, VerdictStore};
use lease_probe::domain::endpoint::Endpoint;
use lease_probe::domain::outcome::Outcome;
use lease_probe::domain::witnesses::{LiveMembers, MemberState};
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use watchdog_api::cluster::Cluster;
use watchdog_api::config::UnknownFields;
use watchdog_api::eligibility::SkipReason;
use watchdog_api::prober::{self, ProberConfig};
use watchdog_kube::key::ObjectKey;
use watchdog_kube::watch::Change;
use watchdog_runtime::clock::Clock;
use watchdog_runtime::readiness::Readiness;
use watchdog_sandbox::resource::keys;
use watchdog_sandbox::{ApiOptions, ApiServer};
use watchdog_test_support::fixtures::{self, PROBE_SECRET};
use watchdog_test_support::in_process::eventually;
use watchdog_test_support::sandboxed::client;

use crate::fixture::{LOCAL, captured_log, nowhere};

const USER: &str = "lease-probe";

fn config(external: Option<&str>) -> Arc<ProberConfig> {
    let external = external.map_or(String::new(), |name| {
        format!("externalKubeConfigSecretName: {name}\n")
    });
    let text = fixtures::prober(&external, "0s");
    let parsed = prober::parse(text.as_bytes(), UnknownFields::Refused);
    Arc::new(parsed.unwrap().config)
}

const ME: &str = "lease-probe-0";

fn manager(seed: kube::Client) -> (Arc<ProberManager>, VerdictStore) {
    let manager = manager_among(seed, watch::channel(members(&[], MemberState::Informed)).1);
    let verdicts = manager.verdicts.clone();
    (manager, verdicts)
}

fn manager_among(seed: kube::Client, members: watch::Receiver<LiveMembers>) -> Arc<ProberManager> {
    ProberManager::new(
        ProbeContext::new(seed, Clock::start(), ME.into(), 1 << 20, rand::random::<f64>),
        watch::channel(config(Some("external"))).1,
        members,
        LOCAL,
    )
}

/// This replica, which has run for long, and others.
fn members(others: &[&str], state: MemberState) -> LiveMembers {
    let others = others.iter().map(|name| (Arc::from(*name), state));
    LiveMembers::new(others.chain([(ME.into(), MemberState::Informed)]))
}

/// Spawns it; dropped, it stops.
fn run(task: impl Future<Output = anyhow::Result<()>> + Send + 'static) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move { task.await.unwrap() })
}

fn cluster(name: &str, hibernates: bool) -> Cluster {
    let cluster = json!({
        "metadata": {"name": name},
        "spec": {"shoot": {
            "spec": {"hibernation": {"enabled": hibernates}, "provider": {"workers": [{"name": "w"}]}},
            "status": {"lastOperation": {"type": "Reconcile", "state": "Succeeded"}},
        }},
    });
    serde_json::from_value(cluster).unwrap()
}

/// Nothing that stops a probe waits for the Secrets, and none waits for those of the external endpoint.
#[tokio::test]
async fn a_shoot_that_hibernates_stops_also_while_the_secrets_are_not_listed() {
    let (manager, verdicts) = manager(nowhere());
    let reported = |shoot: &str| -> Option<Outcome> {
        let all: BTreeMap<_, _> = verdicts.snapshot().into_iter().collect();
        all.get(shoot).map(|verdict| verdict.outcome.clone())
    };
    let hibernating = Some(Outcome::Skipped(SkipReason::Hibernating));
    assert!(!manager.is_unknown("none"), "nothing is certain before the list");
    manager.cluster_changed(&Change::Applied(cluster("sleeps", true)));
    manager.cluster_changed(&Change::Applied(cluster("runs", false)));
    let listed = ["sleeps", "runs"].map(|name| ObjectKey {
        namespace: String::new(),
        name: name.to_owned(),
    });
    manager.cluster_changed(&Change::Synced(listed.into()));
    assert_eq!(reported("sleeps"), hibernating);
    assert_eq!(
        (reported("runs"), manager.active()),
        (None, 0),
        "it has no kubeconfig yet"
    );
    assert!(manager.is_unknown("none") && !manager.is_unknown("runs"));

    manager.kubeconfig_changed(Endpoint::Internal, Change::Synced([].into()));
    assert_eq!(manager.active(), 1);
    manager.kubeconfig_changed(Endpoint::Internal, Change::Restored);
    manager.cluster_changed(&Change::Applied(cluster("runs", true)));
    assert_eq!((reported("runs"), manager.active()), (hibernating, 0));
}

/// It says nothing about the nodes, so what its prober knows stays.
#[tokio::test(start_paused = true)]
async fn a_prober_goes_on_while_its_cluster_cannot_be_read() {
    let (manager, verdicts) = manager(nowhere());
    manager.kubeconfig_changed(Endpoint::Internal, Change::Synced([].into()));
    let after_a_minute = async |cluster: &Cluster| {
        manager.cluster_changed(&Change::Applied(cluster.clone()));
        tokio::time::sleep(Duration::from_secs(60)).await;
        let verdict = verdicts.get(&"shoot".to_owned()).unwrap();
        let reported = (verdict.outcome.clone(), verdict.outcome_since);
        (manager.active(), reported)
    };
    let good = cluster("shoot", false);
    let malformed = json!({"metadata": {"name": "shoot"}, "spec": {"shoot": "no object"}});
    let malformed: Cluster = serde_json::from_value(malformed).unwrap();
    let is_skipped = |outcome| matches!(outcome, Outcome::Skipped(SkipReason::Malformed(_)));
    let (active, (outcome, _)) = after_a_minute(&malformed).await;
    assert!(active == 0 && is_skipped(outcome), "it does not start");
    let probed = after_a_minute(&good).await;
    assert_eq!((probed.0, &probed.1.0), (1, &Outcome::Inconclusive));
    let (active, (outcome, _)) = after_a_minute(&malformed).await;
    assert!(active == 1 && is_skipped(outcome));
    assert_eq!(after_a_minute(&good).await, probed, "since the same moment");
}

/// Such as when the Deployment is scaled from one replica to three.
#[tokio::test]
async fn a_shoot_is_not_left_to_replicas_that_have_just_started() {
    let (change, live) = watch::channel(members(&[], MemberState::Informed));
    let manager = manager_among(nowhere(), live);
    manager.kubeconfig_changed(Endpoint::Internal, Change::Synced([].into()));
    let probed = |members: LiveMembers| {
        change.send_replace(members);
        for i in 0..30 {
            let cluster = cluster(&format!("shoot-{i}"), false);
            manager.cluster_changed(&Change::Applied(cluster));
        }
        manager.active()
    };
    assert_eq!(probed(members(&[], MemberState::Informed)), 30);
    assert_eq!(probed(members(&["b", "c"], MemberState::Answers)), 30);
    let share = probed(members(&["b", "c"], MemberState::Informed));
    assert!((10..30).contains(&share), "{share}");
}

/// A watch that began anew with a list has hidden that the first one was deleted.
#[tokio::test]
async fn a_shoot_that_was_created_again_starts_by_the_start_rules() {
    let (manager, verdicts) = manager(nowhere());
    manager.kubeconfig_changed(Endpoint::Internal, Change::Synced([].into()));
    let applied = |uid: &str, operation: &str| {
        let mut cluster = cluster("shoot", false);
        cluster.metadata.uid = Some(uid.to_owned());
        cluster.shoot.as_mut().unwrap().last_operation = operation.to_owned();
        manager.cluster_changed(&Change::Applied(cluster));
        manager.active()
    };
    assert_eq!((applied("a", "Reconcile"), applied("a", "")), (1, 1));
    assert_eq!(applied("b", ""), 0);
    let skipped = Outcome::Skipped(SkipReason::NotReconciled);
    assert_eq!(verdicts.get(&"shoot".to_owned()).unwrap().outcome, skipped);
}

/// It is a reason for its own shoot; neither does it hide the others, nor does what is in it reach the log.
#[tokio::test]
async fn a_secret_that_cannot_be_decoded_stops_no_other_and_is_not_logged() {
    let (log, _logs) = captured_log();
    let server = ApiServer::start(ApiOptions::default()).await.unwrap();
    let good = k8s_openapi::ByteString(server.kubeconfig("probe").into_bytes());
    for (shoot, data) in [
        ("shapeless", json!("TOP-SECRET")),
        ("listed", json!({"kubeconfig": ["TOP-SECRET"]})),
        ("unencoded", json!({"kubeconfig": "TOP-SECRET: no base64"})),
        ("whole", json!({"kubeconfig": good, "other": ["TOP-SECRET"]})),
    ] {
        let namespace = json!({"metadata": {"name": shoot}});
        server.create(&keys::NAMESPACES, "", namespace).unwrap();
        let secret = json!({"metadata": {"name": PROBE_SECRET}, "data": data});
        server.create(&keys::SECRETS, shoot, secret).unwrap();
    }
    let (manager, verdicts) = manager(client(&server.kubeconfig(USER)).await.unwrap());
    let shoots = ["shapeless", "listed", "unencoded", "whole"];
    for shoot in shoots {
        manager.cluster_changed(&Change::Applied(cluster(shoot, false)));
    }
    let (_change, rules) = watch::channel(config(None));
    let stop = CancellationToken::new();
    let (seed, changed) = (client(&server.kubeconfig(USER)).await.unwrap(), manager.clone());
    run(kubeconfigs(
        seed,
        Endpoint::Internal,
        rules,
        Readiness::default(),
        stop.clone(),
        move |change| changed.kubeconfig_changed(Endpoint::Internal, change),
    ));
    let reported = |shoot: &str| {
        let all = verdicts.snapshot();
        let found = all.iter().find(|(name, _)| name == shoot);
        found.map(|(_, verdict)| (verdict.outcome.clone(), verdict.message.clone()))
    };
    eventually("every shoot has its verdict", || {
        shoots.iter().all(|shoot| {
            reported(shoot).is_some_and(|(outcome, message)| match *shoot {
                "whole" => outcome == Outcome::Healthy,
                _ => outcome == Outcome::Inconclusive && message.contains("the Secret has malformed data"),
            })
        })
    })
    .await;
    stop.cancel();
    manager.stop();
    let log = log.text();
    assert!(log.contains("the kubeconfig of a shoot cannot be used"));
    assert!(!log.contains("TOP-SECRET"), "{log}");
}
