//! Both roles in process, against a seed in memory that grants what gardenlet grants.

#![cfg(test)]

use std::ffi::OsString;
use std::ops::Deref;
use std::time::Duration;

use dependency_watchdog::args::DropInOptions;
use dependency_watchdog::roles;
use serde_json::json;
use tonic::Code;
use tonic::transport::Channel;
use watchdog_proto::probe::v1 as pb;
use watchdog_proto::probe::v1::lease_probe_service_client::LeaseProbeServiceClient;
use watchdog_proto::stream::v1::Completeness;
use watchdog_runtime::process::Process;
use watchdog_sandbox::resource::keys;
use watchdog_sandbox::{ApiServer, Rule};
use watchdog_test_support::fixtures::{self, KCM, MCM};
use watchdog_test_support::in_process::{self, InProcess, ServiceFiles, eventually};
use watchdog_test_support::simulation::{
    Cut, Sandbox, SandboxConfig, SimTiming, SimulatedShoot, SimulatedShootSpec,
};

/// From pkg/component/nodemanagement/dependencywatchdog/bootstrap.go of Gardener.
fn permissions(role: &str) -> Vec<Rule> {
    let rule = |verbs: &[&str], group: &str, resources: &[&str]| Rule {
        groups: vec![group.to_owned()],
        ..in_process::rule(verbs, resources)
    };
    let in_garden = |rule: Rule| Rule {
        namespaces: vec!["garden".to_owned()],
        ..rule
    };
    let lease = Rule {
        names: vec![format!("dwd-{role}-leader-election")],
        ..rule(&["get", "watch", "update"], "coordination.k8s.io", &["leases"])
    };
    let mut rules = vec![
        in_garden(rule(&["create"], "coordination.k8s.io", &["leases"])),
        in_garden(lease),
        in_garden(rule(&["create", "get", "update", "patch"], "", &["events"])),
    ];
    let read = &["get", "list", "watch"];
    if role == "prober" {
        let scale = &["get", "list", "watch", "update", "patch"];
        rules.extend([
            rule(read, "extensions.gardener.cloud", &["clusters"]),
            rule(read, "", &["namespaces", "secrets"]),
            rule(scale, "apps", &["deployments", "deployments/scale"]),
            rule(read, "machine.sapcloud.io", &["machines"]),
        ]);
    } else {
        rules.extend([
            rule(&["get", "list", "watch", "delete"], "", &["pods"]),
            rule(read, "discovery.k8s.io", &["endpointslices"]),
        ]);
    }
    rules
}

struct Fixture {
    sandbox: Sandbox,
}

impl Fixture {
    async fn start() -> Self {
        let config = SandboxConfig {
            timing: SimTiming {
                ready_delay: Duration::from_millis(100),
                stop_delay: Duration::from_millis(100),
                ..SimTiming::scaled(5.0)
            },
            shoots: vec![SimulatedShootSpec::new("one", 3)],
        };
        let sandbox = Sandbox::start(config).await.unwrap();
        Self { sandbox }
    }

    fn seed(&self) -> &ApiServer {
        self.sandbox.seed()
    }

    fn shoot(&self) -> SimulatedShoot {
        self.sandbox.shoot("one").unwrap()
    }

    /// The users whose writes changed a Deployment, in their order.
    fn scalers(&self) -> Vec<String> {
        let audit = self.seed().audit().into_iter();
        let writes = audit.filter(|entry| entry.code < 300 && entry.verb == "patch");
        let scaling =
            writes.filter(|entry| entry.path.contains("/deployments/") && entry.user.contains("leader"));
        scaling.map(|entry| entry.user).collect()
    }

    fn assert_nothing_refused(&self) {
        let refused = self.seed().audit().into_iter().filter(|entry| entry.code == 403);
        let refused: Vec<_> = refused
            .map(|entry| format!("{} {}", entry.verb, entry.path))
            .collect();
        assert!(
            refused.is_empty(),
            "nothing is asked for that gardenlet does not grant: {refused:?}"
        );
    }

    fn leader(&self, role: &str) -> String {
        let name = format!("dwd-{role}-leader-election");
        let lease = self.seed().store().find(&keys::LEASES, "garden", &name);
        let holder =
            lease.and_then(|lease| Some(lease.value()["spec"]["holderIdentity"].as_str()?.to_owned()));
        holder.unwrap_or_default()
    }
}

/// A process of the drop-in image.
struct DropIn {
    service: InProcess,
    _files: ServiceFiles,
}

impl Deref for DropIn {
    type Target = InProcess;

    fn deref(&self) -> &InProcess {
        &self.service
    }
}

impl DropIn {
    /// Starts a role with the permissions that gardenlet grants, as the user of this name, and waits until it is ready.
    async fn start(fixture: &Fixture, role: &str, user: &str) -> Self {
        fixture.seed().restrict(user, permissions(role));
        let drop_in = Self::launch(fixture, role, user).await;
        drop_in.wait_ready().await;
        drop_in
    }

    async fn launch(fixture: &Fixture, role: &str, user: &str) -> Self {
        let config = match role {
            "prober" => fixtures::prober("probeInterval: 1s\ninitialDelay: 0s", "0s"),
            _ => fixtures::weeder("5m"),
        };
        let files = ServiceFiles::new(&config).unwrap();
        let kubeconfig = files.kubeconfig(fixture.seed(), user).unwrap();
        let args = [
            "dependency-watchdog".to_owned(),
            role.to_owned(),
            format!("--config-file={}", files.config().display()),
            format!("--kubeconfig={}", kubeconfig.display()),
            "--enable-leader-election=true".to_owned(),
            "--leader-elect-lease-duration=3s".to_owned(),
            "--leader-elect-renew-deadline=2s".to_owned(),
            "--leader-elect-retry-period=400ms".to_owned(),
            "--metrics-bind-addr=127.0.0.1:0".to_owned(),
            "--health-bind-addr=127.0.0.1:0".to_owned(),
            "--grpc-addr=127.0.0.1:0".to_owned(),
            "--allow-local-addresses".to_owned(),
        ];
        let options = DropInOptions::parse(args.map(OsString::from)).unwrap();
        let service = InProcess::start(roles::build(options, Process::default()));
        Self {
            service: service.await.unwrap(),
            _files: files,
        }
    }

    fn client(&self) -> LeaseProbeServiceClient<Channel> {
        LeaseProbeServiceClient::new(self.channel().unwrap())
    }

    async fn verdicts(&self) -> (Vec<pb::Verdict>, Completeness) {
        let request = pb::ListVerdictsRequest::default();
        let answer = self.client().list_verdicts(request).await.unwrap();
        let answer = answer.into_inner();
        (answer.verdicts, answer.completeness.unwrap())
    }

    async fn verdict(&self, shoot: &SimulatedShoot) -> Result<pb::GetVerdictResponse, tonic::Status> {
        let shoot = shoot.namespace().to_owned();
        let request = pb::GetVerdictRequest { shoot };
        Ok(self.client().get_verdict(request).await?.into_inner())
    }
}

fn wants(shoot: &SimulatedShoot, name: &str) -> i64 {
    shoot.workload(name).unwrap().spec_replicas
}

async fn until_all(shoot: &SimulatedShoot, what: &str, replicas: i64) {
    eventually(what, || {
        [KCM, MCM].iter().all(|name| wants(shoot, name) == replicas)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_protects_and_restores_with_the_rights_of_gardenlet() {
    let fixture = Fixture::start().await;
    let shoot = fixture.shoot();
    let leader = DropIn::start(&fixture, "prober", "leader-0").await;
    eventually("the first process leads", || !fixture.leader("prober").is_empty()).await;
    let standby = DropIn::start(&fixture, "prober", "leader-1").await;
    shoot.cut(Cut::All);
    until_all(&shoot, "everything is scaled down", 0).await;
    shoot.heal();
    until_all(&shoot, "everything is restored", 1).await;
    assert!(
        fixture.scalers().iter().all(|user| user == "leader-0"),
        "{:?}",
        fixture.scalers()
    );
    let (code, answer) = leader.admin_get("/readyz").await.unwrap();
    assert_eq!(code, 200, "{answer}");
    fixture.assert_nothing_refused();

    let audit = fixture.seed().audit().into_iter();
    let lists = audit.filter(|entry| entry.user == "leader-0" && entry.verb == "list");
    let lists = lists.filter(|entry| entry.path.ends_with("/clusters"));
    assert_eq!(lists.count(), 1, "both halves share one watch of the Clusters");

    let before = fixture.leader("prober");
    // The holder of the Lease is the name of the leader and the number of its process.
    let (name, _) = before.rsplit_once('_').unwrap();
    let error = standby.verdict(&shoot).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert!(error.message().contains(name), "{error}");
    let (verdicts, completeness) = leader.verdicts().await;
    assert!(verdicts.len() == 1 && completeness.complete, "{completeness:?}");
    leader.stop().await;
    eventually("the standby leads", || {
        ![before.as_str(), ""].contains(&fixture.leader("prober").as_str())
    })
    .await;
    shoot.cut(Cut::All);
    until_all(&shoot, "the standby scales down", 0).await;
    let (verdicts, completeness) = standby.verdicts().await;
    assert!(verdicts.len() == 1 && completeness.complete, "{completeness:?}");
    standby.verdict(&shoot).await.unwrap();
    standby.stop().await;
    assert_eq!(fixture.leader("prober"), "", "the Lease is released");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_rights_are_named() {
    let fixture = Fixture::start().await;
    let without = |resources: &[&str]| {
        let rules = permissions("prober").into_iter();
        rules
            .filter(|rule| !rule.resources.iter().any(|of| resources.contains(&of.as_str())))
            .collect::<Vec<_>>()
    };
    for (user, resources, parts) in [
        (
            "leader-0",
            // Only lease-probe needs the one, and only the coordinator the other.
            &["machines", "deployments"][..],
            &[
                "list machines.machine.sapcloud.io in all namespaces",
                "patch deployments.apps named kube-controller-manager in all namespaces",
            ][..],
        ),
        (
            "leader-1",
            &["leases"],
            &["update leases.coordination.k8s.io named dwd-prober-leader-election in namespace garden"],
        ),
    ] {
        fixture.seed().restrict(user, without(resources));
        let drop_in = DropIn::launch(&fixture, "prober", user).await;
        eventually("the missing rights are named", || {
            let lines = drop_in.bound.readiness.lines();
            let named = |part: &&str| {
                lines
                    .iter()
                    .any(|line| line.starts_with("permissions") && line.contains(part))
            };
            parts.iter().all(named)
        })
        .await;
        let (code, answer) = drop_in.admin_get("/readyz").await.unwrap();
        let is_named = parts.iter().all(|part| answer.contains(part));
        assert!(code == 503 && is_named, "{code} {answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_weeder_weeds_with_the_rights_of_gardenlet() {
    let fixture = Fixture::start().await;
    let _weeder = DropIn::start(&fixture, "weeder", "leader-0").await;
    let seed = fixture.seed();
    let namespace = "shoot--weeded";
    seed.create(&keys::NAMESPACES, "", json!({"metadata": {"name": namespace}}))
        .unwrap();
    let owner = json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "scheduler", "uid": "1", "controller": true,
    });
    let crash_loop = json!({
        "name": "main", "image": "none", "imageID": "", "ready": false, "restartCount": 7,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"exitCode": 1, "finishedAt": "2020-11-21T08:00:00Z"}},
    });
    let pod = json!({
        "metadata": {
            "name": "scheduler",
            "labels": {"gardener.cloud/role": "controlplane", "role": "scheduler"},
            "ownerReferences": [owner],
        },
        "spec": {"containers": [{"name": "main", "image": "none"}]},
        "status": {"containerStatuses": [crash_loop]},
    });
    seed.create(&keys::PODS, namespace, pod).unwrap();
    let slice = json!({
        "metadata": {"name": "kube-apiserver", "labels": {"kubernetes.io/service-name": "kube-apiserver"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": true}}],
    });
    // A service that becomes ready while it is watched has recovered.
    seed.create(&keys::ENDPOINT_SLICES, namespace, slice).unwrap();
    eventually("the crashing pod is deleted", || {
        seed.store().find(&keys::PODS, namespace, "scheduler").is_none()
    })
    .await;
    fixture.assert_nothing_refused();
}
