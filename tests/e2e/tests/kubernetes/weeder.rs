//! The weeder on a real API server: through EndpointSlices where `discovery.k8s.io/v1` is served (KUBEBUILDER_ASSETS of
//! a newer Kubernetes), else through Endpoints (Kubernetes 1.20).

use std::time::Duration;

use k8s_openapi::api::core::v1::{Endpoints, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use watchdog_proto::weeder::v1 as weeder;
use watchdog_proto::weeder::v1::weeder_service_client::WeederServiceClient;
use watchdog_test_support::fixtures;
use watchdog_test_support::real::{RealControlPlane, create_namespace};
use watchdog_test_support::wait::{BOUND, holds, until_true};
use watchdog_test_support::watchdog::Setup;

const SHOOT: &str = "shoot--real--one";
const OTHER: &str = "shoot--real--two";

/// Creates a pod of a control plane. `waiting` names the container list in which a container waits in
/// `CrashLoopBackOff`.
pub(crate) async fn pod(
    seed: &Client,
    namespace: &str,
    name: &str,
    role: &str,
    waiting: Option<&str>,
) -> anyhow::Result<()> {
    let pods: Api<Pod> = Api::namespaced(seed.clone(), namespace);
    let container = json!([{"name": "main", "image": "none"}]);
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {
            "name": name, "labels": {"gardener.cloud/role": "controlplane", "role": role},
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": format!("{namespace}-{name}"),
                "controller": true,
            }],
        },
        "spec": {"containers": container, "initContainers": [{"name": "init", "image": "none"}]},
    }))?;
    pods.create(&PostParams::default(), &pod).await?;
    if let Some(list) = waiting {
        crash(&pods, name, list).await?;
    }
    Ok(())
}

async fn crash(pods: &Api<Pod>, name: &str, list: &str) -> anyhow::Result<()> {
    let container = if list == "initContainerStatuses" {
        "init"
    } else {
        "main"
    };
    let status: Value = json!([{
        "name": container, "image": "none", "imageID": "", "ready": false, "restartCount": 7,
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}},
        "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-11-21T08:00:00Z"}},
    }]);
    let patch = Patch::Merge(json!({"status": {list: status}}));
    pods.patch_status(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Writes a slice with one endpoint.
async fn slice(
    seed: &Client,
    namespace: &str,
    name: &str,
    service: &str,
    conditions: Value,
) -> anyhow::Result<()> {
    let slices: Api<EndpointSlice> = Api::namespaced(seed.clone(), namespace);
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.0.0.1"], "conditions": conditions}],
        "ports": [{"port": 443}],
    });
    let params = PatchParams::apply("test").force();
    slices.patch(name, &params, &Patch::Apply(slice)).await?;
    Ok(())
}

/// Writes the endpoints of a service as the weeder reads them on this server.
pub(crate) async fn endpoints(
    seed: &Client,
    namespace: &str,
    service: &str,
    ready: bool,
) -> anyhow::Result<()> {
    let params = PatchParams::apply("test").force();
    if fixtures::serves_endpoint_slices(seed).await? {
        return slice(seed, namespace, service, service, json!({"ready": ready})).await;
    }
    let endpoints: Api<Endpoints> = Api::namespaced(seed.clone(), namespace);
    let key = if ready { "addresses" } else { "notReadyAddresses" };
    let subsets = json!([{key: [{"ip": "10.0.0.1"}], "ports": [{"port": 443}]}]);
    let object =
        json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": service}, "subsets": subsets});
    endpoints.patch(service, &params, &Patch::Apply(object)).await?;
    Ok(())
}

pub(crate) async fn pods(seed: &Client, namespace: &str) -> anyhow::Result<Vec<String>> {
    let pods: Api<Pod> = Api::namespaced(seed.clone(), namespace);
    let list = pods.list(&Default::default()).await?;
    Ok(list
        .items
        .into_iter()
        .filter_map(|pod| pod.metadata.name)
        .collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn crash_looping_dependants_are_deleted_when_their_service_is_back() {
    let plane = RealControlPlane::start("weeder").await.unwrap();
    let server = plane.api_server("seed").await.unwrap();
    let seed = server.client();
    for namespace in ["garden", SHOOT, OTHER] {
        create_namespace(&seed, namespace).await.unwrap();
    }
    for namespace in [SHOOT, OTHER] {
        endpoints(&seed, namespace, "etcd-main-client", false)
            .await
            .unwrap();
        endpoints(&seed, namespace, "kube-apiserver", false)
            .await
            .unwrap();
        pod(
            &seed,
            namespace,
            "kube-apiserver",
            "apiserver",
            Some("containerStatuses"),
        )
        .await
        .unwrap();
        pod(
            &seed,
            namespace,
            "controller-manager",
            "controller-manager",
            Some("containerStatuses"),
        )
        .await
        .unwrap();
        pod(
            &seed,
            namespace,
            "scheduler",
            "scheduler",
            Some("initContainerStatuses"),
        )
        .await
        .unwrap();
        pod(&seed, namespace, "healthy", "controller-manager", None)
            .await
            .unwrap();
    }
    let setup = Setup::new(
        plane.scratch(),
        &fixtures::prober("", "1s"),
        &fixtures::weeder("1m"),
    )
    .unwrap();
    let service = setup
        .weeder("weeder-0", &server.kubeconfig_for("admin").unwrap())
        .await
        .unwrap();
    service.wait_ready().await.unwrap();
    holds(
        "nothing is deleted while the services are down",
        Duration::from_secs(2),
        || async { Ok(pods(&seed, SHOOT).await?.len() == 4) },
    )
    .await
    .unwrap();

    // The chain: etcd is back, so kube-apiserver is weeded, and only that.
    endpoints(&seed, SHOOT, "etcd-main-client", true).await.unwrap();
    until_true("the API server's pod is weeded", BOUND, || async {
        Ok(pods(&seed, SHOOT).await? == ["controller-manager", "healthy", "scheduler"])
    })
    .await
    .unwrap();
    // kube-apiserver is back, so what needs it is weeded.
    endpoints(&seed, SHOOT, "kube-apiserver", true).await.unwrap();
    until_true("its dependants are weeded", BOUND, || async {
        Ok(pods(&seed, SHOOT).await? == ["healthy"])
    })
    .await
    .unwrap();
    // A pod that crashes again is deleted again, 10 s later.
    pod(
        &seed,
        SHOOT,
        "controller-manager",
        "controller-manager",
        Some("containerStatuses"),
    )
    .await
    .unwrap();
    until_true("the pod that crashed again is weeded", BOUND, || async {
        Ok(pods(&seed, SHOOT).await? == ["healthy"])
    })
    .await
    .unwrap();
    assert_eq!(
        pods(&seed, OTHER).await.unwrap().len(),
        4,
        "the other control plane is still down: left alone"
    );

    let mut client = WeederServiceClient::new(setup.channel(&service).unwrap());
    let listed = client
        .list_weeders(weeder::ListWeedersRequest::default())
        .await
        .unwrap()
        .into_inner();
    let deleted: Vec<_> = listed
        .weeders
        .iter()
        .map(|weeding| (weeding.key.clone().unwrap_or_default().service, weeding.deleted))
        .collect();
    assert_eq!(
        deleted,
        [
            ("etcd-main-client".to_owned(), 1),
            ("kube-apiserver".to_owned(), 3)
        ]
    );
    let metric = service
        .metric("watchdog_weeder_deletions_total{result=\"deleted\"}")
        .await
        .unwrap();
    assert_eq!(metric, Some(4.0));

    // What each deletion was for.
    let (_, metrics) = service.admin_get("/metrics").await.unwrap();
    let counted = |service: &str, container: &str| {
        let labels = [
            ("service", service),
            ("container", container),
            ("exit_code", "137"),
            ("reason", "OOMKilled"),
        ]
        .map(|(name, value)| format!("{name}=\"{value}\""));
        let mut series = metrics
            .lines()
            .filter(|line| line.starts_with("watchdog_weeder_deleted_pods_total{"));
        let line = series.find(|line| labels.iter().all(|label| line.contains(label)));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<u32>().ok())
    };
    assert_eq!(counted("etcd-main-client", "main"), Some(1), "{metrics}");
    assert_eq!(counted("kube-apiserver", "main"), Some(2), "{metrics}");
    assert_eq!(counted("kube-apiserver", "init"), Some(1), "{metrics}");
    let note = "Deleted pod scheduler: init container init (exit code 137, OOMKilled, 7 restarts) was in \
                CrashLoopBackOff, and service kube-apiserver is ready since ";
    until_true("an Event says so", BOUND, || async {
        let events: Api<Event> = Api::namespaced(seed.clone(), SHOOT);
        let events = events.list(&Default::default()).await?;
        let notes = events.items.iter().filter_map(|event| event.note.as_deref());
        Ok(notes.into_iter().any(|found| found.starts_with(note)))
    })
    .await
    .unwrap();
}

/// A service that becomes ready. `before` and `after` are slices of one endpoint: name, service, conditions. On a
/// server without EndpointSlices the endpoints of etcd become ready instead.
struct EndpointCase {
    namespace: &'static str,
    /// The Service's `clusterIP` and selector.
    service: Value,
    before: (&'static str, &'static str, Value),
    after: (&'static str, &'static str, Value),
}

fn endpoint_cases() -> [EndpointCase; 5] {
    const ETCD: &str = "etcd-main-client";
    let (ready, not_ready) = (json!({"ready": true}), json!({"ready": false}));
    let ports = json!([{"port": 443}]);
    let selected = json!({"ports": ports, "selector": {"role": "main"}});
    let case = |namespace, before, after| EndpointCase {
        namespace,
        service: selected.clone(),
        before,
        after,
    };
    [
        // publishNotReadyAddresses
        case(
            "published",
            ("etcd", ETCD, json!({"ready": true, "serving": false})),
            ("etcd", ETCD, json!({"ready": true, "serving": true})),
        ),
        EndpointCase {
            service: json!({"ports": ports, "selector": {"role": "main"}, "clusterIP": "None"}),
            ..case(
                "headless",
                ("etcd", ETCD, not_ready.clone()),
                ("etcd", ETCD, json!({})),
            )
        },
        EndpointCase {
            service: json!({"ports": ports}),
            ..case(
                "without-selector",
                ("etcd", ETCD, not_ready.clone()),
                ("etcd", ETCD, ready.clone()),
            )
        },
        case("stale", ("old", ETCD, not_ready), ("new", ETCD, ready.clone())),
        case(
            "moved",
            ("etcd", "kube-apiserver", ready.clone()),
            ("etcd", ETCD, ready),
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn endpoints_of_every_kind_make_a_service_ready() {
    let plane = RealControlPlane::start("weeder-endpoints").await.unwrap();
    let server = plane.api_server("seed").await.unwrap();
    let seed = server.client();
    let slices = fixtures::serves_endpoint_slices(&seed).await.unwrap();
    create_namespace(&seed, "garden").await.unwrap();
    for case in endpoint_cases() {
        create_namespace(&seed, case.namespace).await.unwrap();
        let services: Api<Service> = Api::namespaced(seed.clone(), case.namespace);
        let service = json!({"metadata": {"name": "etcd-main-client"}, "spec": case.service});
        let service = serde_json::from_value(service).unwrap();
        services.create(&PostParams::default(), &service).await.unwrap();
        let (name, service, conditions) = case.before;
        if slices {
            slice(&seed, case.namespace, name, service, conditions)
                .await
                .unwrap();
        } else {
            endpoints(&seed, case.namespace, "etcd-main-client", false)
                .await
                .unwrap();
        }
        let waiting = Some("containerStatuses");
        pod(&seed, case.namespace, "kube-apiserver", "apiserver", waiting)
            .await
            .unwrap();
    }
    let setup = Setup::new(
        plane.scratch(),
        &fixtures::prober("", "1s"),
        &fixtures::weeder("1m"),
    )
    .unwrap();
    let weeder = setup
        .weeder("weeder-0", &server.kubeconfig_for("admin").unwrap())
        .await
        .unwrap();
    weeder.wait_ready().await.unwrap();
    holds("no service is ready", Duration::from_secs(1), || async {
        for case in endpoint_cases() {
            if pods(&seed, case.namespace).await? != ["kube-apiserver"] {
                return Ok(false);
            }
        }
        Ok(true)
    })
    .await
    .unwrap();
    for case in endpoint_cases() {
        let (name, service, conditions) = case.after;
        if slices {
            slice(&seed, case.namespace, name, service, conditions)
                .await
                .unwrap();
        } else {
            endpoints(&seed, case.namespace, "etcd-main-client", true)
                .await
                .unwrap();
        }
        let what = format!("the pod is weeded: {}", case.namespace);
        until_true(&what, BOUND, || async {
            Ok(pods(&seed, case.namespace).await?.is_empty())
        })
        .await
        .unwrap();
    }
}
