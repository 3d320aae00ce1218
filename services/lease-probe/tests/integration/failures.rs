//! Every way in which a probe can fail: its outcome, its message, its metric; that these show no secret; and that it is
//! mended without a restart.

use serde_json::{Value, json};
use watchdog_proto::probe::v1::Outcome;
use watchdog_sandbox::resource::keys;
use watchdog_sandbox::{Fault, FaultAction};
use watchdog_test_support::fixtures::PROBE_SECRET;
use watchdog_test_support::in_process::{modify, rule};
use watchdog_test_support::simulation::{Cut, SimulatedShoot};

use crate::fixture::{Fixture, LEASES, NODE_LEASES, faster, field, real, with_field, without_controllers};
use crate::replica::Replica;

/// The user of the kubeconfigs of the shoots.
const PROBE_USER: &str = "system:serviceaccount:kube-system:dependency-watchdog-probe";

/// In a kubeconfig that is refused.
const COMMAND: &str = "hunter2-hunter2";

/// The ways to fail: the shoot, and how its failure shows as a reason and in the message.
const ROWS: [[&str; 3]; 16] = [
    ["refused", "connect", "cannot be reached"],
    ["foreign", "tls", "TLS handshake"],
    ["silent", "timeout", "did not answer within 2s"],
    ["throttled", "throttled", "asks to wait for 3s"],
    ["expired", "unauthorized", "(401)"],
    [
        "forbidden",
        "forbidden",
        "list leases in namespace kube-node-lease; list nodes",
    ],
    ["garbage", "list_failed", "not a Kubernetes list"],
    ["failing", "list_failed", "500"],
    ["slow", "list_timeout", "took longer than 2s"],
    ["halfway", "list_broke_off", "interrupted: page 2: 500"],
    [
        "no-secret",
        "kubeconfig",
        "does not exist in namespace shoot--sandbox--no-secret",
    ],
    ["no-key", "kubeconfig", "has no data key kubeconfig"],
    ["no-name", "name_lookup", "cannot be resolved"],
    ["no-server", "kubeconfig", "The kubeconfig cannot be used"],
    ["no-authority", "kubeconfig", "certificate-authority-data"],
    [
        "program",
        "kubeconfig",
        "users[0].user.exec: is not supported: programs are not run",
    ],
];

fn outcome(reason: &str) -> Outcome {
    match reason {
        "connect" | "tls" | "timeout" => Outcome::ApiServerUnreachable,
        "throttled" => Outcome::Throttled,
        _ => Outcome::Inconclusive,
    }
}

/// The series that counts the failures of a shoot for this reason.
fn failures(shoot: &SimulatedShoot, reason: &str) -> String {
    let name = shoot.namespace();
    format!(
        "watchdog_shoot_probe_failures_total{{shoot=\"{name}\",endpoint=\"internal\",reason=\"{reason}\"}}"
    )
}

async fn fail(fixture: &Fixture, shoot: &SimulatedShoot) {
    let api = shoot.api();
    let leases = |action| {
        api.inject(Fault::always(action).path(LEASES));
    };
    let kubeconfig = shoot.probe_kubeconfig();
    let edited = |field: &str, value: &str| with_field(&kubeconfig, field, value);
    let write = |kubeconfig: &str| fixture.set_kubeconfig(shoot, PROBE_SECRET, kubeconfig);
    match shoot.name() {
        "refused" => api.stop().await.unwrap(),
        "foreign" => {
            let other = fixture.shoot("slow").probe_kubeconfig();
            let authority = "certificate-authority-data";
            write(&edited(authority, &field(&other, authority)));
        }
        "silent" => api.freeze(),
        "throttled" => leases(FaultAction::TooManyRequests { retry_after: 3 }),
        "expired" => api.revoke(PROBE_USER),
        "forbidden" => api.deny(rule(&["list"], &["leases", "nodes"])),
        "garbage" => leases(FaultAction::Garbage),
        "failing" => leases(FaultAction::InternalError),
        "slow" => leases(FaultAction::Hang),
        "halfway" => {
            // More than one page, all of nodes that are gone.
            for number in 0..501 {
                let lease = json!({
                    "metadata": { "name": format!("gone-{number}") },
                    "spec": { "leaseDurationSeconds": 40 },
                });
                api.create(&keys::LEASES, NODE_LEASES, lease).unwrap();
            }
            api.inject(
                Fault::always(FaultAction::InternalError)
                    .path(LEASES)
                    .query("continue="),
            );
        }
        "no-secret" => fixture.delete_secret(shoot, PROBE_SECRET),
        "no-key" => fixture.set_secret(shoot, PROBE_SECRET, json!({})),
        // A name that is reserved for having no address (RFC 2606).
        "no-name" => write(&edited("server", "\"https://api.invalid\"")),
        "no-server" => write(&edited("server", "\"http://127.0.0.1:1\"")),
        "no-authority" => write(&edited("certificate-authority-data", "bm9uZQ==")),
        "program" => {
            let token = format!("token: {}", field(&kubeconfig, "token"));
            let exec = format!("exec: {{apiVersion: client.authentication.k8s.io/v1, command: {COMMAND}}}");
            write(&kubeconfig.replace(&token, &exec));
        }
        name => panic!("{name}"),
    }
}

async fn mend(fixture: &Fixture, shoot: &SimulatedShoot) {
    let api = shoot.api();
    match shoot.name() {
        "refused" => api.resume().await.unwrap(),
        "silent" => api.thaw(),
        "forbidden" => api.allow_all(),
        _ => api.clear_faults(),
    }
    // Whose pause is long looks again at once, because its kubeconfig changed.
    api.revoke(PROBE_USER);
    fixture.set_kubeconfig(shoot, PROBE_SECRET, &shoot.probe_kubeconfig());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_failure_shows_with_its_reason_and_ends_when_it_is_mended() {
    let names = ROWS.map(|[shoot, ..]| shoot);
    let fixture = Fixture::new(real(), 2, &names).await;
    fixture.configure(&[("probeTimeout", "2s")]);
    let replica = Replica::start(&fixture).await;
    for name in names {
        replica
            .until_outcome(&fixture.shoot(name), Outcome::Healthy)
            .await;
    }
    for name in names {
        fail(&fixture, &fixture.shoot(name)).await;
    }
    for [name, reason, message] in ROWS {
        let shoot = fixture.shoot(name);
        let verdict = replica.until_said(&shoot, outcome(reason), message).await;
        assert_eq!(verdict.evidence, None, "{name}");
        replica.until_counted(&failures(&shoot, reason), 1.0).await;
        let (_, metrics) = replica.admin_get("/metrics").await.unwrap();
        let kubeconfig = shoot.probe_kubeconfig();
        for secret in [COMMAND, field(&kubeconfig, "token").trim_matches('"')] {
            let is_shown = verdict.message.contains(secret) || metrics.contains(secret);
            assert!(!is_shown, "{name} shows a secret: {}", verdict.message);
        }
    }
    let throttled = "watchdog_shoot_throttled_total";
    replica.until_counted(throttled, 1.0).await;
    let failed = "watchdog_shoot_connections_total{result=\"failed\"}";
    replica.until_counted(failed, 1.0).await;
    let forbidden = fixture.shoot("forbidden");
    let missing = ["list leases in namespace kube-node-lease", "list nodes"].map(|permission| {
        let name = forbidden.namespace();
        format!("watchdog_shoot_permission_missing{{shoot=\"{name}\",permission=\"{permission}\"}}")
    });
    for series in &missing {
        replica.until_metric(series, |missing| missing == Some(1.0)).await;
    }

    for name in names {
        mend(&fixture, &fixture.shoot(name)).await;
    }
    for name in names {
        replica
            .until_outcome(&fixture.shoot(name), Outcome::Healthy)
            .await;
    }
    for series in &missing {
        replica.until_metric(series, |missing| missing.is_none()).await;
    }
    // What has failed stays counted.
    let counted = failures(&fixture.shoot("refused"), "connect");
    assert!(replica.metric(&counted).await.is_some());
}

/// Nodes and machines are asked for only when it matters; without them there is no loss.
#[tokio::test]
async fn without_the_nodes_and_the_machines_nothing_is_concluded() {
    let fixture = Fixture::new(faster(), 3, &["alpha"]).await;
    let alpha = fixture.shoot("alpha");
    let machine = alpha.machines()[0].name.clone();
    without_controllers(&alpha).await;
    let replica = Replica::start(&fixture).await;
    let shown = async |reason: &str, message: &str| {
        replica.until_said(&alpha, outcome(reason), message).await;
        replica.until_counted(&failures(&alpha, reason), 1.0).await;
    };
    replica.until_outcome(&alpha, Outcome::Healthy).await;
    let answered = "watchdog_shoot_requests_total{code=\"200\"}";
    replica.until_counted(answered, 1.0).await;

    let path = "/apis/machine.sapcloud.io/v1alpha1/namespaces/shoot--sandbox--alpha/machines";
    let fault = Fault::always(FaultAction::InternalError).path(path);
    fixture.seed().inject(fault);
    alpha.cut(Cut::All);
    shown("machines", "machines cannot be listed on the seed").await;
    fixture.seed().clear_faults();
    replica.until_outcome(&alpha, Outcome::LeasesExpired).await;

    let set_status = |status| {
        let set = |machine: &mut Value| machine["status"] = status;
        modify(fixture.seed(), &keys::MACHINES, alpha.namespace(), &machine, set).unwrap();
    };
    set_status(json!("broken"));
    shown("machines", &format!("machine {machine} is malformed")).await;
    set_status(json!({ "currentStatus": { "phase": "Running" } }));
    replica.until_outcome(&alpha, Outcome::LeasesExpired).await;

    let nodes = Fault::always(FaultAction::TooManyRequests { retry_after: 1 }).path("/api/v1/nodes");
    alpha.api().inject(nodes);
    shown("throttled", "asks to wait for 1s").await;
    alpha.api().clear_faults();
    // It has the name of its machine.
    modify(alpha.api(), &keys::NODES, "", &machine, |node| {
        node["status"]["conditions"] = json!("many");
    })
    .unwrap();
    // Throttled, it would look again in 10 s only.
    alpha.rotate_kubeconfig().unwrap();
    shown("list_failed", &format!("node {machine} is malformed")).await;
}
