//! The weeder on a real API server, by EndpointSlices and by Endpoints: what recovers while no weeder runs is weeded by
//! the next one, and however often it starts, nothing is weeded twice.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use kube::{Api, Client};
use watchdog_proto::weeder::v1::weeder_service_client::WeederServiceClient;
use watchdog_proto::weeder::v1::{KeepReason, ListWeedersRequest};
use watchdog_test_support::crash_loop::{self, CrashingControlPlane, next_second};
use watchdog_test_support::fixtures;
use watchdog_test_support::real::{ApiServerOptions, RealControlPlane, create_namespace};
use watchdog_test_support::wait::{self, BOUND};
use watchdog_test_support::watchdog::{Service, Setup};

const SHOOTS: usize = 50;

const STARTS: usize = 10;

const STOP: Duration = Duration::from_secs(30);

/// Requests at once: the API server works on two cores beside its tests.
const AT_ONCE: usize = 16;

/// The crash loops of all shoots.
struct CrashLoops {
    shoots: Vec<CrashingControlPlane>,
    pods: Api<Pod>,
}

async fn at_once<T>(actions: impl IntoIterator<Item = impl Future<Output = anyhow::Result<T>>>) -> Vec<T> {
    let actions: Vec<_> = actions.into_iter().collect();
    let done = stream::iter(actions).buffer_unordered(AT_ONCE).try_collect();
    done.await.unwrap()
}

// === impl CrashLoops ===

impl CrashLoops {
    async fn new(seed: &Client) -> Self {
        let new = |i| async move { CrashingControlPlane::new(seed, &format!("shoot--weeder--{i}")).await };
        Self {
            shoots: at_once((0..SHOOTS).map(new)).await,
            pods: Api::all(seed.clone()),
        }
    }

    async fn set_ready(&self, is_ready: bool) {
        at_once(self.shoots.iter().map(|shoot| shoot.set_ready(is_ready))).await;
    }

    /// One pod in each. Returns their UIDs.
    async fn crash(&self) -> BTreeSet<String> {
        let pods = at_once(self.shoots.iter().map(CrashingControlPlane::crash)).await;
        pods.into_iter().collect()
    }

    async fn uids(&self) -> anyhow::Result<BTreeSet<String>> {
        crash_loop::uids(&self.pods).await
    }

    async fn wait_weeded(&self) {
        wait::until("all pods are weeded", BOUND, || async {
            let left = self.uids().await?.len();
            anyhow::ensure!(left == 0, "{left} are left");
            Ok(Some(()))
        })
        .await
        .unwrap();
    }
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

/// Waits until all deletions are answered, one in each shoot and no more. Returns how many of them the weeder knows to
/// be done: of one to which a slow API server did not answer in time, it does not.
async fn wait_answered(weeder: &Service) -> usize {
    let answered = wait::until("all deletions are answered", BOUND, || async {
        let metric = async |series| Ok::<_, anyhow::Error>(weeder.metric(series).await?.unwrap_or_default());
        let deleted = metric("watchdog_weeder_deletions_total{result=\"deleted\"}").await?;
        let failed = metric("watchdog_weeder_deletions_total{result=\"failed\"}").await?;
        let in_flight = metric("watchdog_weeder_requests_in_flight").await?;
        anyhow::ensure!(
            in_flight == 0.0 && deleted + failed >= SHOOTS as f64,
            "{deleted} deleted, {failed} failed, {in_flight} in flight"
        );
        Ok(Some(deleted as usize))
    });
    let deleted = answered.await.unwrap();
    assert!(deleted <= SHOOTS, "{deleted} pods were deleted");
    deleted
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
    let shoots = CrashLoops::new(&seed).await;
    shoots.set_ready(false).await;
    shoots.crash().await;
    next_second().await.unwrap();
    shoots.set_ready(true).await;

    let identities = ["weeder-0", "weeder-1"];
    let start = |identity| setup.weeder(identity, &kubeconfig);
    let [first, second] = identities.map(start);
    let (first, second) = tokio::try_join!(first, second).unwrap();
    shoots.wait_weeded().await;
    for weeder in [first, second] {
        weeder.process.stop(STOP).await.unwrap();
    }

    next_second().await.unwrap();
    let successors = shoots.crash().await;
    for start_number in 1..=STARTS {
        let weeder = start(identities[0]).await.unwrap();
        wait_left_alone(&setup, &weeder).await;
        weeder.process.stop(STOP).await.unwrap();
        assert_eq!(shoots.uids().await.unwrap(), successors, "start {start_number}");
    }

    let weeder = start(identities[0]).await.unwrap();
    wait_left_alone(&setup, &weeder).await;
    shoots.set_ready(false).await;
    next_second().await.unwrap();
    shoots.set_ready(true).await;
    shoots.wait_weeded().await;
    let deleted = wait_answered(&weeder).await;

    // They crash for reasons of their own: it was of no use to delete them.
    next_second().await.unwrap();
    let successors = shoots.crash().await;
    wait_left_alone(&setup, &weeder).await;
    let useless = weeder
        .metric("watchdog_weeder_useless_deletions_total")
        .await
        .unwrap();
    assert_eq!(useless, Some(deleted as f64));
    let events: Api<Event> = Api::all(seed);
    wait::until_true("an Event warns of each useless deletion", BOUND, || async {
        let listed = events.list(&Default::default()).await?;
        let warnings = listed.items.iter().filter(|event| {
            event.reason.as_deref() == Some("CrashesAlthoughServiceIsReady")
                && event.type_.as_deref() == Some("Warning")
                && event.regarding.as_ref().and_then(|about| about.name.as_deref()) == Some("kube-apiserver")
        });
        let warned: BTreeSet<_> = warnings
            .filter_map(|event| event.metadata.namespace.as_ref())
            .collect();
        Ok(warned.len() == deleted)
    })
    .await
    .unwrap();
    assert_eq!(shoots.uids().await.unwrap(), successors);
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
