//! The weeder on a real API server: by EndpointSlices where `discovery.k8s.io/v1` is served (KUBEBUILDER_ASSETS of a
//! newer Kubernetes), else by Endpoints (Kubernetes 1.20).

use std::time::Duration;

use kube::Client;
use watchdog_e2e::acceptance::control_plane::objects::Writer;
use watchdog_test_support::fixtures;
use watchdog_test_support::real::{RealControlPlane, create_namespace};
use watchdog_test_support::wait::{self, BOUND};
use watchdog_test_support::watchdog::Setup;

const SERVICE: &str = "etcd-main-client";
const WATCHED: &str = "shoot--real--watched";
const MISSED: &str = "shoot--real--missed";

/// A control plane whose etcd is down, with a pod that crashes for that and one that runs.
async fn control_plane(seed: &Client, writer: &Writer, namespace: &str) -> anyhow::Result<(String, String)> {
    create_namespace(seed, namespace).await?;
    etcd(writer, namespace, false).await?;
    let crashing = crashing(writer, namespace).await?;
    Ok((crashing, pod(writer, namespace).await?))
}

async fn etcd(writer: &Writer, namespace: &str, ready: bool) -> anyhow::Result<()> {
    writer
        .publish(namespace, SERVICE, &[("etcd-main-0".to_owned(), ready)])
        .await
}

async fn pod(writer: &Writer, namespace: &str) -> anyhow::Result<String> {
    let pod = writer.create(namespace, "kube-apiserver", "apiserver").await?;
    Ok(pod.metadata.name.unwrap_or_default())
}

async fn crashing(writer: &Writer, namespace: &str) -> anyhow::Result<String> {
    let pod = pod(writer, namespace).await?;
    writer.crash(namespace, &pod).await?;
    Ok(pod)
}

async fn until_gone(writer: &Writer, namespace: &str, pod: &str) {
    wait::until_true(&format!("{namespace}/{pod} is deleted"), BOUND, || async {
        Ok(writer.is_gone(namespace, pod).await)
    })
    .await
    .unwrap();
}

async fn stays(writer: &Writer, pods: &[(&str, &str)]) {
    wait::holds("they are left alone", Duration::from_secs(4), || async {
        for (namespace, pod) in pods {
            anyhow::ensure!(!writer.is_gone(namespace, pod).await, "{namespace}/{pod} is gone");
        }
        Ok(true)
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_weeder_deletes_what_was_there_before_a_recovery_whether_it_ran_then_or_not() {
    let plane = RealControlPlane::start("weeder").await.unwrap();
    let server = plane.api_server("seed").await.unwrap();
    let (seed, admin) = (server.client(), server.kubeconfig_for("admin").unwrap());
    create_namespace(&seed, "garden").await.unwrap();
    let writer = Writer::new(&seed).await.unwrap();
    let (first, late) = control_plane(&seed, &writer, WATCHED).await.unwrap();
    let (missed, healthy) = control_plane(&seed, &writer, MISSED).await.unwrap();
    let setup = Setup::new(plane.scratch(), "", &fixtures::weeder("1m")).unwrap();
    let weeder = setup.weeder("weeder-0", &admin).await.unwrap();
    weeder.wait_ready().await.unwrap();
    stays(&writer, &[(WATCHED, &first), (MISSED, &missed)]).await;

    etcd(&writer, WATCHED, true).await.unwrap();
    until_gone(&writer, WATCHED, &first).await;
    let successor = crashing(&writer, WATCHED).await.unwrap();
    // It was there before, and crashes only now.
    writer.crash(WATCHED, &late).await.unwrap();
    until_gone(&writer, WATCHED, &late).await;
    stays(&writer, &[(WATCHED, &successor), (MISSED, &missed)]).await;

    weeder.process.kill_9().await.unwrap();
    etcd(&writer, MISSED, true).await.unwrap();
    let younger = crashing(&writer, MISSED).await.unwrap();
    let again = setup.again(&weeder).await.unwrap();
    until_gone(&writer, MISSED, &missed).await;
    let left = [(WATCHED, &*successor), (MISSED, &*younger), (MISSED, &*healthy)];
    stays(&writer, &left).await;
    again.process.kill_9().await.unwrap();
}
