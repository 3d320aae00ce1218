//! The drop-in image in the place of the Go program: on a real API server with RBAC, with the rights of gardenlet and
//! nothing else.

use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ApiResource, DynamicObject, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::Instant;
use watchdog_proto::probe::v1::Outcome;
use watchdog_test_support::crash_loop::CrashingControlPlane;
use watchdog_test_support::fixtures::{self, KCM, MCM};
use watchdog_test_support::history::timeline::{Fact, Timeline};
use watchdog_test_support::http_exchange;
use watchdog_test_support::real::{
    ApiServerOptions, FixtureOptions, KubeApiserver, RealControlPlane, RealFixture, create_namespace,
    grant_as_gardenlet, scale_of,
};
use watchdog_test_support::wait::{self, BOUND};
use watchdog_test_support::watchdog::{self, Service};

use crate::SHOOT;

/// The default of kube-controller-manager: what lease-probe promises begins at 30 s, and a busy machine needs the
/// seconds between the verdict and the first node that is Unknown.
const GRACE: Duration = Duration::from_secs(40);

const LEASE: &str = "dwd-prober-leader-election";

/// How a process of the Go program names itself in the Lease.
const GO: &str = "dependency-watchdog-prober-0_go";

/// The Lease ends this long after its last renewal.
const LEASE_SECONDS: i32 = 15;

/// The users that share gardenlet's rights: one for each process.
pub(crate) const USERS: [&str; 2] = ["dropin-0", "dropin-1"];

/// A process of the drop-in image, with the command line of gardenlet. Killed when dropped.
pub(crate) struct DropIn {
    service: Service,
    health: String,
}

impl DropIn {
    pub(crate) async fn start(
        plane: &RealControlPlane,
        seed: &KubeApiserver,
        role: &str,
        user: &str,
        config: &Path,
    ) -> Self {
        let kubeconfig = seed.kubeconfig_for(user).unwrap();
        let command = watchdog::drop_in_command(plane.scratch(), role, user, &kubeconfig, config);
        let service = Service::start(command.unwrap(), plane.scratch()).await.unwrap();
        let process = &service.process;
        let health = process.wait_for_field("listening for health probes", "health_addr", BOUND);
        let health = health.await.unwrap();
        Self { service, health }
    }

    async fn readyz(&self) -> anyhow::Result<(u16, String)> {
        http_exchange::get(&self.health, "/readyz").await
    }

    pub(crate) async fn wait_ready(&self) {
        wait::until("the drop-in is ready", BOUND, || async {
            let (code, answer) = self.readyz().await?;
            anyhow::ensure!(code == 200, "{answer}");
            Ok(Some(()))
        })
        .await
        .unwrap();
    }

    pub(crate) async fn wait_healthy(&self) {
        wait::until_true("the shoot is healthy", BOUND, || async {
            Ok(self.outcome().await? == Outcome::Healthy)
        })
        .await
        .unwrap();
    }

    pub(crate) async fn outcome(&self) -> anyhow::Result<Outcome> {
        let channel = tonic::transport::Channel::from_shared(format!("http://{}", self.service.grpc))?;
        let verdict = watchdog::verdict(channel.connect().await?, SHOOT).await?;
        Ok(verdict.outcome())
    }

    /// Stops it in the 5 s that gardenlet's Deployment gives it.
    async fn stop(&self) {
        self.service.process.sigterm().unwrap();
        let status = self
            .service
            .process
            .wait_exit(Duration::from_secs(5))
            .await
            .unwrap();
        assert_eq!(status.code(), Some(0), "a clean stop");
    }
}

pub(crate) async fn fixture(name: &str, prober: &str) -> (RealFixture, std::path::PathBuf) {
    let group = ["dependency-watchdog"];
    let seed = USERS.iter().fold(ApiServerOptions::new("seed"), |seed, user| {
        seed.user(user, &group)
    });
    let options = FixtureOptions::new(name, &["one"]).judged(GRACE).seed(seed);
    let fixture = RealFixture::start(options).await.unwrap();
    grant_as_gardenlet(&fixture.seed.client(), "prober", group[0])
        .await
        .unwrap();
    let config = fixture.plane.scratch().write("dep-config.yaml", prober).unwrap();
    (fixture, config)
}

pub(crate) fn config() -> String {
    fixtures::prober("probeInterval: 10s\ninitialDelay: 1s", "2s")
}

fn leases(seed: &Client) -> Api<Lease> {
    Api::namespaced(seed.clone(), "garden")
}

async fn holder(seed: &Client) -> anyhow::Result<String> {
    let lease = leases(seed).get_opt(LEASE).await?;
    let spec = lease.and_then(|lease| lease.spec).unwrap_or_default();
    Ok(spec.holder_identity.unwrap_or_default())
}

/// The Lease as its last leader left it, so that the first process need not wait for one that may still act.
async fn release_lease(seed: &Client, name: &str, renew_time: &str) {
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name},
        "spec": {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": renew_time},
    });
    let kind = ApiResource::erase::<Lease>(&());
    let leases: Api<DynamicObject> = Api::namespaced_with(seed.clone(), "garden", &kind);
    let lease = serde_json::from_value(lease).unwrap();
    leases.create(&PostParams::default(), &lease).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_meltdown_is_prevented_with_the_rights_of_gardenlet() {
    let (fixture, config) = fixture("dropin-main-job", &config()).await;
    release_lease(&fixture.seed.client(), LEASE, "2026-11-23T07:00:00.000000Z").await;
    let shoot = fixture.shoot("one").unwrap();
    let leader = DropIn::start(&fixture.plane, &fixture.seed, "prober", USERS[0], &config).await;
    leader.wait_ready().await;
    let seed = fixture.seed.client();
    wait::until_true("the process leads", BOUND, || async {
        Ok(!holder(&seed).await?.is_empty())
    })
    .await
    .unwrap();
    let go = tokio::spawn(take_over_as_go(seed.clone()));
    shoot.hand_over().await.unwrap();
    leader.wait_healthy().await;
    shoot.cut_off().await;
    let cut = Instant::now();
    shoot.wait_down("all dependants are at 0").await.unwrap();
    let took = cut.elapsed();
    wait::holds("no node turns Unknown", GRACE, || async {
        let unknown = shoot.nodes.ever_unknown();
        anyhow::ensure!(
            unknown.is_empty(),
            "{unknown:?} did; all dependants at 0 after {took:?}"
        );
        Ok(true)
    })
    .await
    .unwrap();
    shoot.reconnect();
    shoot.wait_restored().await.unwrap();
    fixture.check_history().await.unwrap();
    eprintln!("all dependants at 0 after {took:?}, grace period {GRACE:?}");

    // Killed, ours does not release its Lease. A process of the Go program that has waited all the time takes it then.
    assert_ne!(holder(&seed).await.unwrap(), GO, "ours leads");
    leader.service.process.kill_9().await.unwrap();
    let [ours, go] = tokio::time::timeout(BOUND, go).await.unwrap().unwrap();
    assert_eq!(ours.lease_duration_seconds, Some(LEASE_SECONDS));
    assert_taken_after_its_end(&ours, &go);
}

/// The Lease as the Go program writes it.
fn lease_of_go(holder: &str, seconds: i32) -> Lease {
    let now = MicroTime(Timestamp::now());
    Lease {
        metadata: ObjectMeta {
            name: Some(LEASE.to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(seconds),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            ..LeaseSpec::default()
        }),
    }
}

/// Takes the Lease over as the Go program does: when it was released, or has not changed for the duration that its
/// holder wrote. Returns what the Lease was before, and is then.
async fn take_over_as_go(seed: Client) -> [LeaseSpec; 2] {
    let leases = leases(&seed);
    let mut retry_period = tokio::time::interval(Duration::from_secs(2));
    let mut observed: Option<(Option<String>, Instant)> = None;
    loop {
        retry_period.tick().await;
        let lease = leases.get(LEASE).await.unwrap();
        let version = lease.metadata.resource_version;
        let before = lease.spec.unwrap();
        let since = match &observed {
            Some((seen, since)) if *seen == version => *since,
            _ => Instant::now(),
        };
        let seconds = u64::try_from(before.lease_duration_seconds.unwrap()).unwrap();
        let is_free = before.holder_identity.as_deref() == Some("");
        if is_free || since.elapsed() >= Duration::from_secs(seconds) {
            let mut next = lease_of_go(GO, LEASE_SECONDS);
            next.metadata.resource_version = version;
            let taken = leases
                .replace(LEASE, &PostParams::default(), &next)
                .await
                .unwrap();
            return [before, taken.spec.unwrap()];
        }
        observed = Some((version, since));
    }
}

/// Checks that a Lease was taken once it had ended. Both times are of the clock of this machine.
fn assert_taken_after_its_end(before: &LeaseSpec, taken: &LeaseSpec) {
    let renewed = before.renew_time.as_ref().unwrap().0;
    let acquired = taken.acquire_time.as_ref().unwrap().0;
    let waited = acquired.duration_since(renewed);
    assert!(waited.as_secs() >= i64::from(LEASE_SECONDS), "{waited}");
    assert_ne!(before.holder_identity, taken.holder_identity);
}

/// Holds the Lease as the Go program does, until it is asked to release it.
async fn lead_as_go(seed: Client, mut release: tokio::sync::oneshot::Receiver<()>) {
    let leases = leases(&seed);
    let create = PostParams::default();
    let mut held = leases
        .create(&create, &lease_of_go(GO, LEASE_SECONDS))
        .await
        .unwrap();
    let mut renewals = tokio::time::interval(Duration::from_secs(2));
    loop {
        let released = tokio::select! {
            _ = renewals.tick() => false,
            _ = &mut release => true,
        };
        let mut next = if released {
            lease_of_go("", 1)
        } else {
            lease_of_go(GO, LEASE_SECONDS)
        };
        next.metadata.resource_version = held.metadata.resource_version;
        held = leases.replace(LEASE, &create, &next).await.unwrap();
        if released {
            return;
        }
    }
}

/// The name of the Go program in managedFields.
pub(crate) const GO_PROGRAM: &str = "dependency-watchdog";

/// Scales as the Go program does: down, the annotations by a patch, then the replicas through the scale sub-resource;
/// up, the replicas, and then the annotations go.
pub(crate) async fn scale_as_go(
    seed: &Client,
    timeline: &Timeline,
    name: &str,
    recorded: Option<i32>,
    to: i32,
) {
    let deployments: Api<Deployment> = Api::namespaced(seed.clone(), SHOOT);
    let params = PatchParams {
        field_manager: Some(GO_PROGRAM.to_owned()),
        ..PatchParams::default()
    };
    let note = |meta: ObjectMeta| {
        let version = meta.resource_version.unwrap().parse().unwrap();
        timeline.add(SHOOT, Fact::Operator(version));
    };
    let annotate = async |recorded: Value, protected: Value| {
        let annotation = |name: &str| format!("dependency-watchdog.gardener.cloud/{name}");
        let annotations = json!({
            annotation("replicas"): recorded, annotation("meltdown-protection-active"): protected,
        });
        let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
        note(deployments.patch(name, &params, &patch).await.unwrap().metadata);
    };
    if let Some(recorded) = recorded {
        annotate(json!(recorded.to_string()), json!("")).await;
    }
    let scale = Patch::Merge(json!({"spec": {"replicas": to}}));
    let scaled = deployments.patch_scale(name, &params, &scale).await;
    note(scaled.unwrap().metadata);
    if recorded.is_none() {
        annotate(Value::Null, Value::Null).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_switch_works_in_both_directions_in_the_middle_of_an_incident() {
    let (fixture, config) = fixture("dropin-switch", &config()).await;
    let seed = fixture.seed.client();
    let shoot = fixture.shoot("one").unwrap();
    let (release, released) = tokio::sync::oneshot::channel();
    let go = tokio::spawn(lead_as_go(seed.clone(), released));
    shoot.hand_over().await.unwrap();
    shoot.cut_off().await;
    // The Go program is in the middle of its flow when its Pod is replaced.
    scale_as_go(&seed, &fixture.timeline, MCM, Some(2), 0).await;
    let ours = DropIn::start(&fixture.plane, &fixture.seed, "prober", USERS[0], &config).await;
    ours.wait_ready().await;
    wait::holds("the standby leaves the rest to the leader", GRACE / 5, || async {
        Ok(scale_of(&seed, SHOOT, KCM).await?.0 == 1)
    })
    .await
    .unwrap();
    release.send(()).unwrap();
    go.await.unwrap();
    shoot.wait_down("ours ends the flow").await.unwrap();

    // And back: the Go program restores the recorded count of what has 0 replicas, and removes the protection.
    ours.stop().await;
    assert_eq!(holder(&seed).await.unwrap(), "", "the Go program leads at once");
    fixture.timeline.catch_up(&seed).await.unwrap();
    shoot.wait_down("all is left as it was").await.unwrap();

    // Ours again, after the shoot has recovered.
    shoot.reconnect();
    let again = DropIn::start(&fixture.plane, &fixture.seed, "prober", USERS[1], &config).await;
    shoot.wait_restored().await.unwrap();
    fixture.check_history().await.unwrap();
    again.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_weeder_weeds_by_endpoint_slices_or_names_the_missing_right() {
    let plane = RealControlPlane::start("dropin-weeder").await.unwrap();
    let options = ApiServerOptions::new("seed").user(USERS[0], &["dependency-watchdog"]);
    let server = plane.api_server_with(options).await.unwrap();
    let seed = server.client();
    create_namespace(&seed, "garden").await.unwrap();
    grant_as_gardenlet(&seed, "weeder", "dependency-watchdog")
        .await
        .unwrap();
    let config = plane
        .scratch()
        .write("dep-config.yaml", fixtures::weeder("1m"))
        .unwrap();
    // A time that jiff cannot read.
    release_lease(&seed, "dwd-weeder-leader-election", "9999-12-31T23:59:59.000000Z").await;
    let crash_loop = CrashingControlPlane::new(&seed, SHOOT).await.unwrap();
    crash_loop.set_ready(false).await.unwrap();
    crash_loop.crash().await.unwrap();
    let drop_in = DropIn::start(&plane, &server, "weeder", USERS[0], &config).await;
    if !fixtures::serves_endpoint_slices(&seed).await.unwrap() {
        wait::until("the missing right is named", BOUND, || async {
            let (code, answer) = drop_in.readyz().await?;
            let named = answer.contains("list endpoints named etcd-main-client in all namespaces");
            anyhow::ensure!(named && code == 503, "{answer}");
            Ok(Some(()))
        })
        .await
        .unwrap();
        return;
    }
    drop_in.wait_ready().await;
    crash_loop.set_ready(true).await.unwrap();
    crash_loop.wait_weeded().await.unwrap();
    drop_in.stop().await;
}
