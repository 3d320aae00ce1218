//! Programs that issue their own certificates from an authority that they make together.

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use watchdog_test_support::binaries;
use watchdog_test_support::sandboxed::SandboxFixture;
use watchdog_test_support::wait::{self, BOUND};
use watchdog_test_support::watchdog::{NAMESPACE, Service};

const SECRET: &str = "watchdog-authority";
const OBSERVER: &str = "watchdog-observer";

/// A seed with the empty Secrets that the chart renders.
async fn seed(name: &str) -> (SandboxFixture, Api<Secret>) {
    let fixture = SandboxFixture::start(name, &["one"]).await.unwrap();
    let secrets: Api<Secret> = Api::namespaced(fixture.seed.clone(), NAMESPACE);
    for name in [SECRET, OBSERVER] {
        let empty = serde_json::json!({"metadata": {"name": name}});
        let empty = serde_json::from_value(empty).unwrap();
        secrets.create(&PostParams::default(), &empty).await.unwrap();
    }
    (fixture, secrets)
}

async fn start(fixture: &SandboxFixture, binary: &str, name: &str) -> Service {
    let command = fixture.bare_command(binary, name);
    let command = command
        .unwrap()
        .args(["--tls-authority", SECRET, "--tls-observer", OBSERVER]);
    fixture.setup.custom(command).await.unwrap()
}

async fn receives_verdicts(coordinator: &Service) {
    wait::until_true(
        "the coordinator is synchronized with lease-probe",
        BOUND,
        || async {
            let synced = "watchdog_scaling_lease_probe_replicas{state=\"synced\"}";
            Ok(coordinator.metric(synced).await? == Some(1.0))
        },
    )
    .await
    .unwrap();
}

/// Runs watchdogctl with the certificate for people, and gives its exit code and what it shows.
async fn watchdogctl(
    fixture: &SandboxFixture,
    services: &[(&str, &Service)],
    command: &str,
) -> (Option<i32>, String) {
    let kubeconfig = fixture.sandbox.seed().kubeconfig("people");
    let kubeconfig = fixture.scratch.write("people.kubeconfig", kubeconfig);
    let mut process = tokio::process::Command::new(binaries::path(binaries::WATCHDOGCTL).unwrap());
    process.arg("--kubeconfig").arg(kubeconfig.unwrap()).args([
        "--namespace",
        NAMESPACE,
        "--tls-secret",
        OBSERVER,
    ]);
    for (option, service) in services {
        process.args([*option, &service.grpc]);
    }
    let output = process.args(command.split(' ')).kill_on_drop(true).output();
    let output = tokio::time::timeout(BOUND, output).await.unwrap().unwrap();
    let shown = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(shown).unwrap())
}

/// The members that a program knows.
async fn members(service: &Service) -> Option<f64> {
    let members = "watchdog_membership_members{service=\"lease-probe\"}";
    service.metric(members).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_without_a_certificate_takes_no_shoot_from_the_others() {
    let (fixture, secrets) = seed("no-certificate").await;
    let first = start(&fixture, binaries::LEASE_PROBE, "first").await;
    first.wait_ready().await.unwrap();
    let good = secrets.get(SECRET).await.unwrap().data;
    let put = async |data: serde_json::Value| {
        let patch = Patch::Merge(serde_json::json!({ "data": data }));
        let params = PatchParams::default();
        secrets.patch(SECRET, &params, &patch).await.unwrap();
    };
    put(serde_json::json!({"ca.key": "Y2xhc3NpZmllZA=="})).await;
    let second = start(&fixture, binaries::LEASE_PROBE, "second").await;
    wait::until_true("the second one says why it is not ready", BOUND, || async {
        let (_, shown) = second.admin_get("/readyz").await?;
        Ok(shown.contains("certificate: the last try failed: the Secret"))
    })
    .await
    .unwrap();
    assert_eq!(members(&first).await, Some(1.0));

    put(serde_json::to_value(good).unwrap()).await;
    second.wait_ready().await.unwrap();
    wait::until_true("both are members", BOUND, || async {
        Ok(members(&first).await == Some(2.0))
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_issue_their_own_certificates_and_people_call_them_with_one() {
    let (fixture, secrets) = seed("authority").await;
    // At once, as a chart starts them.
    let (lease_probe, coordinator, weeder) = tokio::join!(
        start(&fixture, binaries::LEASE_PROBE, "lease-probe"),
        start(&fixture, binaries::SCALING_COORDINATOR, "coordinator"),
        start(&fixture, binaries::WEEDER, "weeder"),
    );
    for service in [&lease_probe, &coordinator, &weeder] {
        service.wait_ready().await.unwrap();
        let end = "watchdog_certificate_expiry_timestamp_seconds{certificate=\"own\",source=\"issued\"}";
        assert!(service.metric(end).await.unwrap().is_some_and(|end| end > 1.7e9));
    }
    receives_verdicts(&coordinator).await;

    let services = [
        ("--lease-probe", &lease_probe),
        ("--scaling-coordinator", &coordinator),
        ("--weeder", &weeder),
    ];
    wait::until_true("there is a certificate for people", BOUND, || async {
        Ok(secrets
            .get(OBSERVER)
            .await?
            .data
            .is_some_and(|data| data.len() == 3))
    })
    .await
    .unwrap();
    let (code, shown) = watchdogctl(&fixture, &services, "check").await;
    assert_eq!(code, Some(0), "{shown}");
    let folder = fixture.scratch.join("");
    let (code, shown) = watchdogctl(&fixture, &services, &format!("certificate {}", folder.display())).await;
    assert_eq!(code, Some(0), "{shown}");
    // What was written is a certificate that the programs take, without the authority's key.
    let files = [
        "--tls-ca",
        "ca.crt",
        "--tls-cert",
        "tls.crt",
        "--tls-key",
        "tls.key",
    ];
    let mut process = tokio::process::Command::new(binaries::path(binaries::WATCHDOGCTL).unwrap());
    process
        .current_dir(&folder)
        .args(files)
        .args(["--namespace", NAMESPACE]);
    let output = process
        .args(["--lease-probe", &lease_probe.grpc, "verdicts"])
        .output();
    let output = tokio::time::timeout(BOUND, output).await.unwrap().unwrap();
    assert!(String::from_utf8(output.stdout).unwrap().contains("HEALTHY"));

    // Who comes later takes the authority that is there.
    lease_probe.process.kill_9().await.unwrap();
    let successor = start(&fixture, binaries::LEASE_PROBE, "successor").await;
    successor.wait_ready().await.unwrap();
    let secret = secrets.get(SECRET).await.unwrap();
    let data = secret.data.unwrap_or_default();
    let authorities = String::from_utf8(data["ca.crt"].0.clone()).unwrap();
    assert_eq!(authorities.matches("BEGIN CERTIFICATE").count(), 1);
    receives_verdicts(&coordinator).await;

    // The key of the authority is in no log.
    let key = String::from_utf8(data["ca.key"].0.clone()).unwrap();
    let line = key.lines().nth(1).unwrap();
    for service in [&successor, &coordinator, &weeder] {
        let log = std::fs::read_to_string(service.process.log_path()).unwrap();
        assert!(!log.contains(line));
    }
}
