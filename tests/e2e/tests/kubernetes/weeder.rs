//! The weeder on a real API server, by EndpointSlices and by Endpoints: what recovers while no weeder runs is weeded by
//! the next one, and however often it starts, nothing is weeded twice.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use watchdog_e2e::acceptance::control_plane::at_once;
use watchdog_e2e::acceptance::control_plane::objects::Writer;
use watchdog_proto::weeder::v1::weeder_service_client::WeederServiceClient;
use watchdog_proto::weeder::v1::{KeepReason, ListWeedersRequest};
use watchdog_test_support::fixtures;
use watchdog_test_support::real::{ApiServerOptions, RealControlPlane, create_namespace};
use watchdog_test_support::wait::{self, BOUND};
use watchdog_test_support::watchdog::{Service, Setup};

const SHOOTS: usize = 50;

const STARTS: usize = 10;

const SERVICE: &str = "etcd-main-client";

const STOP: Duration = Duration::from_secs(30);

/// The control planes of the shoots: a kube-apiserver in a crash loop, and etcd, which it needs.
struct ControlPlanes {
    writer: Writer,
    pods: Api<Pod>,
}

impl ControlPlanes {
    async fn create_namespaces(&self, seed: &kube::Client) -> anyhow::Result<()> {
        at_once((0..SHOOTS).map(|i| async move { create_namespace(seed, &shoot(i)).await })).await?;
        Ok(())
    }

    async fn publish_etcd(&self, ready: bool) -> anyhow::Result<()> {
        let etcd = [("etcd-main-0".to_owned(), ready)];
        let etcd = &etcd;
        at_once((0..SHOOTS).map(|i| async move { self.writer.publish(&shoot(i), SERVICE, etcd).await }))
            .await?;
        Ok(())
    }

    /// One for each shoot. Returns their UIDs.
    async fn create_crashing(&self) -> anyhow::Result<BTreeSet<String>> {
        let create = |i: usize| async move {
            let (namespace, component) = (shoot(i), "kube-apiserver");
            let pod = self.writer.create(&namespace, component, "apiserver").await?;
            self.writer.crash(&namespace, &pod.name_any()).await?;
            Ok(pod.uid().unwrap_or_default())
        };
        Ok({ at_once((0..SHOOTS).map(create)).await? }.into_iter().collect())
    }

    async fn uids(&self) -> anyhow::Result<BTreeSet<String>> {
        let pods = self.pods.list(&ListParams::default()).await?;
        Ok(pods.items.iter().filter_map(Pod::uid).collect())
    }

    async fn wait_gone(&self) {
        wait::until("all pods are weeded", BOUND, || async {
            let left = self.uids().await?.len();
            anyhow::ensure!(left == 0, "{left} are left");
            Ok(Some(()))
        })
        .await
        .unwrap();
    }
}

fn shoot(i: usize) -> String {
    format!("shoot--weeder--{i}")
}

/// Waits until an object that is written is younger than all that there are: times of objects are whole seconds.
async fn next_second() {
    let now = Timestamp::now().as_second();
    let next = wait::until_true("the next second", BOUND, || async {
        Ok(Timestamp::now().as_second() > now)
    });
    next.await.unwrap();
}

/// Waits until the weeder reports in each shoot the pod that it leaves alone.
async fn wait_left_alone(setup: &Setup, weeder: &Service) {
    let client = WeederServiceClient::new(setup.channel(weeder).unwrap());
    wait::until("every pod is left alone", BOUND, || async {
        let request = ListWeedersRequest {
            page_size: 1_000,
            ..Default::default()
        };
        let weeders = client.clone().list_weeders(request).await?.into_inner().weeders;
        let left = weeders.iter().flat_map(|weeder| &weeder.left_alone);
        let younger = left.filter(|left| left.reason() == KeepReason::YoungerThanRecovery);
        let younger = younger.count();
        anyhow::ensure!(younger == SHOOTS, "{younger} of {} recoveries", weeders.len());
        Ok(Some(()))
    })
    .await
    .unwrap();
}

async fn play(name: &str, options: ApiServerOptions, by_slices: bool) {
    let plane = RealControlPlane::start(name).await.unwrap();
    let server = plane.api_server_with(options).await.unwrap();
    let seed = server.client();
    if fixtures::serves_endpoint_slices(&seed).await.unwrap() != by_slices {
        eprintln!("this API server always serves EndpointSlices");
        return;
    }
    let setup = Setup::new(plane.scratch(), "", &fixtures::weeder("1h")).unwrap();
    let kubeconfig = server.kubeconfig_for("admin").unwrap();
    create_namespace(&seed, "garden").await.unwrap();
    let planes = ControlPlanes {
        writer: Writer::new(&seed).await.unwrap(),
        pods: Api::all(seed.clone()),
    };
    planes.create_namespaces(&seed).await.unwrap();
    planes.publish_etcd(false).await.unwrap();
    planes.create_crashing().await.unwrap();
    next_second().await;
    planes.publish_etcd(true).await.unwrap();

    let identities = ["weeder-0", "weeder-1"];
    let start = |identity| setup.weeder(identity, &kubeconfig);
    let [first, second] = identities.map(start);
    let (first, second) = tokio::try_join!(first, second).unwrap();
    planes.wait_gone().await;
    for weeder in [first, second] {
        weeder.process.stop(STOP).await.unwrap();
    }

    next_second().await;
    let successors = planes.create_crashing().await.unwrap();
    for start_number in 1..=STARTS {
        let weeder = start(identities[0]).await.unwrap();
        wait_left_alone(&setup, &weeder).await;
        weeder.process.stop(STOP).await.unwrap();
        assert_eq!(planes.uids().await.unwrap(), successors, "start {start_number}");
    }

    let weeder = start(identities[0]).await.unwrap();
    wait_left_alone(&setup, &weeder).await;
    planes.publish_etcd(false).await.unwrap();
    next_second().await;
    planes.publish_etcd(true).await.unwrap();
    planes.wait_gone().await;
    let deleted = wait::until("all deletions are counted", BOUND, || async {
        let deleted = weeder
            .metric("watchdog_weeder_deletions_total{result=\"deleted\"}")
            .await?;
        Ok(deleted.filter(|deleted| *deleted >= SHOOTS as f64))
    });
    assert_eq!(deleted.await.unwrap(), SHOOTS as f64);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recovery_without_a_weeder_is_weeded_once_by_endpoint_slices() {
    play(
        "weeder-slices",
        ApiServerOptions::new("seed").endpoint_slices(),
        true,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recovery_without_a_weeder_is_weeded_once_by_endpoints() {
    play("weeder-endpoints", ApiServerOptions::new("seed"), false).await;
}
