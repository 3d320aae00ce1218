//! Watches on a real kube-apiserver that are open and silent while requests work, as behind a firewall that has
//! forgotten a connection: those of all three services.

use std::time::Duration;

use crate::fixture::{BOUND, Fixture, Seed, create_shoot};
use k8s_openapi::api::core::v1::{Endpoints, Pod};
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use watchdog_proto::probe::v1 as probe;
use watchdog_proto::probe::v1::lease_probe_service_client::LeaseProbeServiceClient;
use watchdog_proto::scaling::v1::{Direction, ResourceScaling, Step};
use watchdog_test_support::coordinator::Outcome;
use watchdog_test_support::fault_proxy::Upstream;
use watchdog_test_support::fixtures::{self, CA, KCM, MCM, PROBE_SECRET};
use watchdog_test_support::real::{KubeApiserver, create_kubeconfig_secret};
use watchdog_test_support::wait;
use watchdog_test_support::watch_proxy::WatchProxy;
use watchdog_test_support::watchdog::{Service, Setup};
use watchdog_test_support::workload_controller::{deployments, kind};

const LOST: &str = "shoot--real--lost";
const HIBERNATED: &str = "shoot--real--hibernated";
const CHANGED: &str = "shoot--real--changed";
const NEW: &str = "shoot--real--new";

/// Parts of the paths of all watches of a coordinator that is given its lease-probe.
const OF_COORDINATOR: [&str; 5] = ["/clusters?", KCM, MCM, CA, "/leases?"];

const OF_LEASE_PROBE: [&str; 3] = ["/clusters?", PROBE_SECRET, "/leases?"];

/// How the names of pods behind Services end.
const MEMBER: &str = "-member-0";

/// The Services are named in the watches on EndpointSlices, or Endpoints, behind them.
const OF_WEEDER: [&str; 6] = [
    "/pods?",
    "/namespaces?",
    "/services?",
    "etcd-main-client",
    "kube-apiserver",
    "/leases?",
];

/// A silent connection counts as dead after 30 s (ADR 0017). The rest is for a machine that is late.
const TRUSTED_AT_MOST: Duration = Duration::from_secs(45);

async fn proxy(server: &KubeApiserver) -> anyhow::Result<(WatchProxy, String)> {
    let upstream = Upstream {
        url: server.url().to_owned(),
        ca_pem: server.ca_pem().to_owned(),
    };
    let proxy = WatchProxy::start(upstream).await?;
    let kubeconfig = proxy.kubeconfig(&server.kubeconfig_for("admin")?);
    Ok((proxy, kubeconfig))
}

async fn silence(proxy: &WatchProxy, parts: &[&str]) -> anyhow::Result<()> {
    wait::until_true("all watches fall silent", BOUND, || async {
        anyhow::ensure!(proxy.silence(parts), "open are {:#?}", proxy.open());
        Ok(true)
    })
    .await
}

async fn resource(fixture: &Fixture, shoot: &str, name: &str) -> anyhow::Result<ResourceScaling> {
    let state = fixture.coordinator.get(shoot).await?;
    let of_name = |r: &ResourceScaling| r.resource.as_ref().is_some_and(|r| r.name == name);
    let found = state.resources.into_iter().find(of_name);
    found.ok_or_else(|| anyhow::anyhow!("{shoot} has no {name}"))
}

async fn verdict(setup: &Setup, lease_probe: &Service, shoot: &str) -> anyhow::Result<probe::Verdict> {
    let mut client = LeaseProbeServiceClient::new(setup.channel(lease_probe)?);
    let request = probe::GetVerdictRequest {
        shoot: shoot.to_owned(),
    };
    let verdict = client.get_verdict(request).await?.into_inner().verdict;
    verdict.ok_or_else(|| anyhow::anyhow!("an answer without a verdict"))
}

/// Sets whether there is something behind a Service: as EndpointSlice if the API server serves it, else as Endpoints.
/// The pod behind it says since when: what a watch brings after an interruption is not taken for a recovery without it.
async fn set_ready(seed: &Client, service: &str, ready: bool) -> anyhow::Result<()> {
    let params = PatchParams::apply("test").force();
    let member = format!("{service}{MEMBER}");
    if ready {
        let pods: Api<Pod> = Api::namespaced(seed.clone(), LOST);
        let owner = json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet", "name": service, "uid": service, "controller": true,
        });
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": member, "ownerReferences": [owner]},
            "spec": {"containers": [{"name": "main", "image": "none"}]},
        }))?;
        pods.create(&PostParams::default(), &pod).await?;
        let since = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second())?.to_string();
        let condition = json!({"type": "Ready", "status": "True", "lastTransitionTime": since});
        let patch = Patch::Merge(json!({"status": {"conditions": [condition]}}));
        pods.patch_status(&member, &PatchParams::default(), &patch)
            .await?;
    }
    let target = json!({"kind": "Pod", "namespace": LOST, "name": member});
    if fixtures::serves_endpoint_slices(seed).await? {
        let slices = kind("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices");
        let slices: Api<DynamicObject> = Api::namespaced_with(seed.clone(), LOST, &slices);
        let object = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": service, "labels": {"kubernetes.io/service-name": service}},
            "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": ready}, "targetRef": target}],
        });
        slices.patch(service, &params, &Patch::Apply(object)).await?;
    } else {
        let key = if ready { "addresses" } else { "notReadyAddresses" };
        let endpoints: Api<Endpoints> = Api::namespaced(seed.clone(), LOST);
        let object = json!({
            "apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": service},
            "subsets": [{key: [{"ip": "10.0.0.1", "targetRef": target}], "ports": [{"port": 443}]}],
        });
        endpoints.patch(service, &params, &Patch::Apply(object)).await?;
    }
    Ok(())
}

/// Long enough ago for rules that compare the clocks of nodes.
fn crashed_at() -> anyhow::Result<String> {
    let now = jiff::Timestamp::now().as_second();
    Ok(jiff::Timestamp::from_second(now - 10)?.to_string())
}

/// A pod of a control plane that crashes.
async fn crashing_pod(seed: &Client, role: &str) -> anyhow::Result<()> {
    let pods: Api<Pod> = Api::namespaced(seed.clone(), LOST);
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {
            "name": role, "labels": {"gardener.cloud/role": "controlplane", "role": role},
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": role, "uid": role, "controller": true,
            }],
        },
        "spec": {"containers": [{"name": "main", "image": "none"}]},
    }))?;
    pods.create(&PostParams::default(), &pod).await?;
    let status: Value = json!([{
        "name": "main", "image": "none", "imageID": "", "ready": false, "restartCount": 7,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": crashed_at()?}},
    }]);
    let patch = Patch::Merge(json!({"status": {"containerStatuses": status}}));
    pods.patch_status(role, &PatchParams::default(), &patch).await?;
    Ok(())
}

async fn pods(seed: &Client) -> anyhow::Result<Vec<String>> {
    let pods: Api<Pod> = Api::namespaced(seed.clone(), LOST);
    let pods = pods.list(&Default::default()).await?.items.into_iter();
    let names = pods.filter_map(|pod| pod.metadata.name);
    Ok(names.filter(|name| !name.ends_with(MEMBER)).collect())
}

/// Waits until every silent watch is given up, and checks that none was trusted for too long.
async fn given_up(service: &str, proxy: &WatchProxy) -> anyhow::Result<()> {
    let all = "every silent watch is given up";
    wait::until_true(&format!("{all} by {service}"), BOUND, || async {
        Ok(proxy.silent().iter().all(|watch| watch.given_up.is_some()))
    })
    .await?;
    for watch in proxy.silent() {
        let trusted = watch.trusted_for().unwrap_or_default();
        let path = watch.path.split('?').next().unwrap_or_default();
        eprintln!("{service} trusted a silent watch for {trusted:?}: {path}");
        anyhow::ensure!(
            trusted < TRUSTED_AT_MOST,
            "{service} trusted for {trusted:?}: {watch:?}"
        );
    }
    Ok(())
}

/// Changes what no request of the services asks for.
async fn change_everything(fixture: &Fixture, server: &KubeApiserver) -> anyhow::Result<()> {
    let hibernation = json!({"spec": {"hibernation": {"enabled": true}}});
    fixture.change_shoot(HIBERNATED, hibernation).await?;
    let ignore = "dependency-watchdog.gardener.cloud/ignore-scaling";
    fixture.annotate(CHANGED, CA, ignore, json!("true")).await?;
    let replicas = json!({"spec": {"replicas": 4}});
    fixture.patch(CHANGED, KCM, replicas.clone()).await?;
    fixture.patch(CHANGED, MCM, replicas).await?;
    create_shoot(&fixture.client, NEW).await?;
    let kubeconfig = server.kubeconfig_for("admin")?;
    create_kubeconfig_secret(&fixture.client, CHANGED, PROBE_SECRET, &kubeconfig).await?;
    crashing_pod(&fixture.client, "scheduler").await?;
    set_ready(&fixture.client, "etcd-main-client", true).await
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_watches_hold_up_no_flow_and_are_noticed() {
    let seed = Seed::start("half-open-seed").await.unwrap();
    let (to_coordinator, kubeconfig) = proxy(&seed.server).await.unwrap();
    let shoots = [LOST, HIBERNATED, CHANGED].map(str::to_owned);
    let config = fixtures::prober("probeInterval: 1s", "100ms");
    let kinds = vec![deployments()];
    let fixture = Fixture::start_with("half-open", seed, kubeconfig, &shoots, &config, kinds)
        .await
        .unwrap();
    let server = &fixture.seed.server;
    let scratch = fixture.seed.plane.scratch();
    let setup = Setup::new(scratch, &config, &fixtures::weeder("5m")).unwrap();
    let (to_lease_probe, kubeconfig) = proxy(server).await.unwrap();
    let lease_probe = setup.lease_probe("lease-probe-0", &kubeconfig).await.unwrap();
    let (to_weeder, kubeconfig) = proxy(server).await.unwrap();
    let _weeder = setup
        .weeder_with_annotations("weeder-0", &kubeconfig)
        .await
        .unwrap();
    set_ready(&fixture.client, "etcd-main-client", false)
        .await
        .unwrap();
    set_ready(&fixture.client, "kube-apiserver", true).await.unwrap();
    crashing_pod(&fixture.client, "apiserver").await.unwrap();
    wait::until_true("lease-probe lacks a Secret", BOUND, || async {
        let verdict = verdict(&setup, &lease_probe, CHANGED).await?;
        Ok(verdict.message.contains("does not exist"))
    })
    .await
    .unwrap();

    fixture.until_ready(LOST).await.unwrap();
    fixture.workloads.hold(MCM);
    fixture.probe.say([LOST], Outcome::LeasesExpired);
    wait::until_true("the flow waits for machine-controller-manager", BOUND, || async {
        Ok(resource(&fixture, LOST, MCM).await?.step() == Step::Waiting)
    })
    .await
    .unwrap();
    tokio::try_join!(
        silence(&to_coordinator, &OF_COORDINATOR),
        silence(&to_lease_probe, &OF_LEASE_PROBE),
        silence(&to_weeder, &OF_WEEDER),
    )
    .unwrap();
    fixture.workloads.release();
    change_everything(&fixture, server).await.unwrap();
    wait::until_true("the next level begins", BOUND, || async {
        Ok(fixture.replicas(LOST, KCM).await? == 0)
    })
    .await
    .unwrap();
    let silent = to_coordinator.silent();
    let of_mcm = silent.iter().find(|watch| watch.path.contains(MCM)).unwrap();
    assert_eq!(
        of_mcm.given_up, None,
        "the flow reads by itself, long before its watch counts as dead"
    );
    let begun = of_mcm.last_byte.elapsed();
    eprintln!("the next level began {begun:?} after the last byte");
    fixture
        .until_all(&[LOST.to_owned()], Direction::Down)
        .await
        .unwrap();
    for name in [KCM, MCM, CA] {
        let attempts = resource(&fixture, LOST, name).await.unwrap().attempts;
        assert_eq!(attempts, 0, "{name} was tried again");
    }

    tokio::try_join!(
        given_up("scaling-coordinator", &to_coordinator),
        given_up("lease-probe", &to_lease_probe),
        given_up("weeder", &to_weeder),
    )
    .unwrap();
    wait::until("the coordinator knows of all changes", BOUND, || async {
        let state = fixture.coordinator.get(HIBERNATED).await?;
        let hibernated = state.direction() == Direction::Hold && state.reason.contains("hibernat");
        anyhow::ensure!(hibernated, "{state:?}");
        for (shoot, name, replicas) in [(CHANGED, KCM, 4), (CHANGED, MCM, 4), (NEW, KCM, 2)] {
            let seen = resource(&fixture, shoot, name).await?.spec_replicas;
            anyhow::ensure!(seen == Some(replicas), "{shoot}: {name} has {seen:?}");
        }
        let step = resource(&fixture, CHANGED, CA).await?.step();
        anyhow::ensure!(step == Step::Ignored, "{CA} is {step:?}");
        Ok(Some(()))
    })
    .await
    .unwrap();
    wait::until("lease-probe knows of all changes", BOUND, || async {
        let hibernated = verdict(&setup, &lease_probe, HIBERNATED).await?;
        let reason = hibernated.skip_reason();
        anyhow::ensure!(reason == probe::SkipReason::Hibernating, "{hibernated:?}");
        let changed = verdict(&setup, &lease_probe, CHANGED).await?;
        anyhow::ensure!(changed.outcome() == probe::Outcome::Healthy, "{changed:?}");
        verdict(&setup, &lease_probe, NEW).await.map(Some)
    })
    .await
    .unwrap();
    wait::until("the weeder knows of all changes", BOUND, || async {
        let left = pods(&fixture.client).await?;
        anyhow::ensure!(left.is_empty(), "{left:?} are left");
        Ok(Some(()))
    })
    .await
    .unwrap();
    fixture.probe.say([LOST], Outcome::Healthy);
    fixture
        .until_all(&[LOST.to_owned()], Direction::Up)
        .await
        .unwrap();
}
