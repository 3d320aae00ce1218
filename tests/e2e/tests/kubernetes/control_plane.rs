//! Shows that the real control planes that the other tests stand on behave, and leave nothing behind.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::ListParams;
use tokio::time::{Instant, timeout};
use watchdog_test_support::real::{
    ApiServerOptions, ControllerManagerOptions, FleetOptions, KubeApiserver, MachineOptions, NodeRecorder,
    RealControlPlane, RunningKubelets, create_deployment, create_namespace, install_seed_crds,
    machine_resource, node_readiness, scale_of,
};
use watchdog_test_support::wait;
use watchdog_test_support::workload_controller::{WorkloadController, WorkloadOptions};

/// Seed and shoot, started at the same time.
async fn seed_and_shoot(plane: &RealControlPlane) -> (KubeApiserver, KubeApiserver) {
    tokio::try_join!(plane.api_server("seed"), plane.api_server("shoot")).unwrap()
}

/// Five times shorter than Kubernetes' defaults, in the same proportions.
fn short_grace() -> ControllerManagerOptions {
    ControllerManagerOptions {
        node_monitor_period: Duration::from_secs(2),
        node_monitor_grace_period: Duration::from_secs(8),
        ..ControllerManagerOptions::default()
    }
}

fn alive(pid: &str) -> bool {
    Path::new("/proc").join(pid).exists()
}

/// The processes whose command line names the test's folder.
fn processes_of(folder: &Path) -> Vec<String> {
    let folder = folder.display().to_string();
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries
        .filter_map(|e| e.file_name().into_string().ok())
        .filter(|name| name.parse::<u32>().is_ok());
    pids.filter(|pid| {
        std::fs::read_to_string(format!("/proc/{pid}/cmdline"))
            .unwrap_or_default()
            .contains(&folder)
    })
    .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_controller_manager_marks_exactly_the_nodes_that_are_cut_off() {
    let plane = RealControlPlane::start("lifecycle").await.unwrap();
    let (seed, shoot) = seed_and_shoot(&plane).await;
    install_seed_crds(&seed.client()).await.unwrap();

    let options = FleetOptions {
        nodes: 3,
        renew_interval: Duration::from_secs(1),
        status_interval: Duration::from_secs(1),
        machines: Some(MachineOptions {
            seed: seed.client(),
            namespace: "shoot--dev--one".to_owned(),
        }),
        ..FleetOptions::default()
    };
    let fleet = RunningKubelets::start(&shoot.client(), options).await.unwrap();
    let recorder = NodeRecorder::start(&shoot.client()).await.unwrap();
    let controller_manager = plane.controller_manager(&shoot, &short_grace()).unwrap();
    controller_manager.start().await.unwrap();

    let cut = &fleet.names()[..2];
    fleet.cut(cut).await.unwrap();
    let cut_at = Instant::now();
    wait::until_true("both cut nodes are Unknown", Duration::from_secs(25), || async {
        let ready = node_readiness(&shoot.client()).await?;
        Ok(cut
            .iter()
            .all(|node| ready.get(node).is_some_and(|status| status == "Unknown")))
    })
    .await
    .unwrap();
    assert!(
        cut_at.elapsed() >= Duration::from_secs(7),
        "the grace period was not kept: {:?}",
        cut_at.elapsed()
    );
    assert_eq!(
        recorder.ever_unknown().len(),
        2,
        "the connected node was never Unknown"
    );
    wait::until_true("cut nodes are tainted", Duration::from_secs(10), || async {
        let nodes: Api<Node> = Api::all(shoot.client());
        let taints = nodes
            .get(&cut[0])
            .await?
            .spec
            .and_then(|spec| spec.taints)
            .unwrap_or_default();
        Ok(taints
            .iter()
            .any(|t| t.key == "node.kubernetes.io/unreachable" && t.effect == "NoExecute"))
    })
    .await
    .unwrap();

    fleet.reconnect_all().await;
    wait::until_true("all are ready again", Duration::from_secs(10), || async {
        Ok(node_readiness(&shoot.client())
            .await?
            .values()
            .all(|status| status == "True"))
    })
    .await
    .unwrap();

    // Without a controller manager nothing judges the nodes, however long they are cut off.
    controller_manager.stop().await.unwrap();
    assert!(!controller_manager.is_running());
    fleet.cut_all().await;
    wait::holds("no node turns Unknown", Duration::from_secs(12), || async {
        Ok(node_readiness(&shoot.client())
            .await?
            .values()
            .all(|status| status == "True"))
    })
    .await
    .unwrap();
    assert_eq!(fleet.failures(), 0);

    let machines = Api::<kube::api::DynamicObject>::all_with(seed.client(), &machine_resource());
    let machines = machines
        .list(&ListParams::default().labels("node=node-0"))
        .await
        .unwrap();
    assert_eq!(
        machines.items[0].data["status"]["currentStatus"]["phase"],
        "Running"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn api_servers_stop_freeze_and_come_back_with_their_data() {
    let plane = RealControlPlane::start("faults").await.unwrap();
    let options = ApiServerOptions::new("seed").user("nobody-yet", &["viewers"]);
    let server = plane.api_server_with(options).await.unwrap();
    create_namespace(&server.client(), "kept").await.unwrap();

    // RBAC is on: a user without a role may nothing, a token that is none even less.
    let user = server.kubeconfig_for("nobody-yet").unwrap();
    assert_eq!(list_pods(&user).await.unwrap_err(), 403);
    assert_eq!(
        list_pods(&server.kubeconfig_with_token("x", "wrong"))
            .await
            .unwrap_err(),
        401
    );
    list_pods(&server.kubeconfig_for("admin").unwrap()).await.unwrap();
    let token = server.service_account_token("kept", "watchdog").await.unwrap();
    assert_eq!(
        list_pods(&server.kubeconfig_with_token("watchdog", &token))
            .await
            .unwrap_err(),
        403
    );

    // Frozen: connections stay, nobody answers. Then as if nothing had been.
    let client = server.client();
    server.sigstop().unwrap();
    // A signal stops one thread after the other: what was under way may still be answered.
    wait::until_true("nobody answers", Duration::from_secs(20), || async {
        Ok(timeout(Duration::from_secs(1), client.apiserver_version())
            .await
            .is_err())
    })
    .await
    .unwrap();
    server.sigcont().unwrap();
    timeout(Duration::from_secs(10), client.apiserver_version())
        .await
        .unwrap()
        .unwrap();

    // Stopped: connections are refused. Then the same address and the same data.
    server.stop().await.unwrap();
    assert!(
        timeout(Duration::from_secs(10), client.apiserver_version())
            .await
            .unwrap()
            .is_err()
    );
    server.start_again().await.unwrap();
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(client);
    namespaces.get("kept").await.unwrap();
}

/// Lists pods with a kubeconfig; the error is the HTTP status.
async fn list_pods(kubeconfig: &str) -> Result<(), u16> {
    let kubeconfig = kube::config::Kubeconfig::from_yaml(kubeconfig).unwrap();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default())
        .await
        .unwrap();
    let pods: Api<Pod> = Api::all(kube::Client::try_from(config).unwrap());
    match pods.list(&ListParams::default()).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) => Err(status.code),
        Err(other) => panic!("{other}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn deployments_follow_their_spec_and_nothing_outlives_the_test() {
    let plane = RealControlPlane::start("deployments").await.unwrap();
    let seed = plane.api_server("seed").await.unwrap();
    let client = seed.client();
    create_namespace(&client, "shoot--dev--one").await.unwrap();
    let controller_manager = Arc::new(plane.controller_manager(&seed, &short_grace()).unwrap());
    let program = Arc::clone(&controller_manager);
    let options = WorkloadOptions::new(Duration::from_millis(100))
        .namespace("shoot--dev--one")
        .before_ready(move |change| {
            let program = Arc::clone(&program);
            async move {
                if change.replicas > 0 {
                    program.start().await
                } else {
                    program.stop().await
                }
            }
        });
    let workloads = WorkloadController::start(&client, options);
    let name = "kube-controller-manager";
    create_deployment(&client, "shoot--dev--one", name, 1)
        .await
        .unwrap();
    let reaches = async |replicas: i32| {
        wait::until_true("the scale is reached", Duration::from_secs(30), || async {
            Ok(scale_of(&client, "shoot--dev--one", name).await? == (replicas, replicas))
        })
        .await
        .unwrap();
    };
    reaches(1).await;
    assert!(
        controller_manager.is_running(),
        "its Deployment is ready, so it runs"
    );

    scale(&client, name, 0).await;
    reaches(0).await;
    assert!(!controller_manager.is_running());

    workloads.hold(name);
    scale(&client, name, 2).await;
    wait::holds("held pods do not start", Duration::from_secs(1), || async {
        Ok(scale_of(&client, "shoot--dev--one", name).await? == (2, 0))
    })
    .await
    .unwrap();
    workloads.release();
    reaches(2).await;
    let seen: Vec<_> = workloads
        .ready_changes()
        .iter()
        .map(|change| (change.previous, change.replicas))
        .collect();
    assert_eq!(seen, [(0, 1), (1, 0), (0, 2)]);

    let folder = plane.scratch().path().to_owned();
    let running = processes_of(&folder);
    assert_eq!(running.len(), 3, "etcd, the API server, the controller manager");
    drop((workloads, controller_manager, seed, plane));
    assert_eq!(processes_of(&folder), Vec::<String>::new());
    assert!(!running.iter().any(|pid| alive(pid)), "not even a zombie stays");
    assert!(!folder.exists(), "the folder is removed");
}

async fn scale(client: &kube::Client, name: &str, replicas: i32) {
    let deployments: Api<k8s_openapi::api::apps::v1::Deployment> =
        Api::namespaced(client.clone(), "shoot--dev--one");
    let patch = serde_json::json!({"spec": {"replicas": replicas}});
    deployments
        .patch_scale(name, &Default::default(), &kube::api::Patch::Merge(patch))
        .await
        .unwrap();
}
