//! The programs in mode observe through an incident: they report everything and write nothing, until the Shoot asks to
//! be protected.

use tokio::process::Command;
use watchdog_proto::probe::v1::Outcome;
use watchdog_proto::scaling::v1::{Direction, FlowState, Mode, ShootScaling};
use watchdog_sandbox::Cut;
use watchdog_test_support::binaries;
use watchdog_test_support::log::LogRecord;
use watchdog_test_support::sandboxed::SandboxFixture;
use watchdog_test_support::wait::{BOUND, until};
use watchdog_test_support::watchdog::Service;

const MODE_ANNOTATION: &str = "dependency-watchdog.gardener.cloud/mode";

const SHOOT: &str = "shoot--sandbox--one";

/// Names of the observing programs, which are also their users on the seed.
const OBSERVERS: [&str; 2] = ["scaling-coordinator-0", "weeder-0"];

/// Everything that the observing programs have written, except their membership Leases.
fn writes(fixture: &SandboxFixture) -> Vec<String> {
    let audit = fixture.sandbox.seed().audit().into_iter();
    audit
        .filter(|entry| entry.is_write() && OBSERVERS.contains(&entry.user.as_str()))
        .filter(|entry| !entry.path.contains("/leases") && !entry.path.contains("/selfsubjectaccessreviews"))
        .map(|entry| format!("{} {}", entry.verb, entry.path))
        .collect()
}

async fn until_settled(
    fixture: &SandboxFixture,
    coordinator: &Service,
    direction: Direction,
) -> ShootScaling {
    until(&format!("{direction:?} is settled"), BOUND, || async {
        let scaling = fixture.scaling(coordinator, SHOOT).await?;
        let settled = scaling.direction() == direction && scaling.state() == FlowState::Settled;
        anyhow::ensure!(settled, "{:?}: {}", scaling.state(), scaling.reason);
        Ok(Some(scaling))
    })
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_incident_is_observed_and_the_next_one_is_prevented() {
    let fixture = SandboxFixture::start("observe", &["one"]).await.unwrap();
    let kubeconfig = |user: &str| fixture.sandbox.seed().kubeconfig(user);
    let [name, weeder] = OBSERVERS;
    let command = fixture
        .setup
        .coordinator_command(name, &kubeconfig(name))
        .unwrap();
    let coordinator = fixture.setup.custom(command.arg("--mode=observe")).await.unwrap();
    let command = fixture.setup.weeder_command(weeder, &kubeconfig(weeder)).unwrap();
    let weeder = fixture.setup.custom(command.arg("--mode=observe")).await.unwrap();
    let lease_probe = fixture.lease_probe().await.unwrap();
    for service in [&coordinator, &weeder] {
        service.wait_ready().await.unwrap();
    }
    fixture
        .wait_outcome(&lease_probe, SHOOT, Outcome::Healthy, BOUND)
        .await
        .unwrap();

    let shoot = fixture.shoot("one").unwrap();
    shoot.cut(Cut::All);
    let down = until_settled(&fixture, &coordinator, Direction::Down).await;
    assert_eq!(down.mode(), Mode::Observe);
    assert!(
        down.resources.iter().all(|resource| resource.simulated),
        "{down:#?}"
    );
    shoot.heal();
    until_settled(&fixture, &coordinator, Direction::Up).await;
    let ended = |record: LogRecord<'_>| {
        let is_it = record.is_message("an incident has ended");
        is_it.then(|| record.text.to_owned())
    };
    let line = coordinator
        .process
        .wait_for_line("the incident has ended", BOUND, ended)
        .await;
    let line = line.unwrap();
    assert!(line.contains("\"in_mode_observe\":true"), "{line}");
    assert!(
        line.contains("\"first_to_scale_down\":\"scaling-coordinator\""),
        "{line}"
    );
    assert_eq!(writes(&fixture), [""; 0]);

    let files = fixture.setup.client_files();
    let status = Command::new(binaries::path(binaries::WATCHDOGCTL).unwrap())
        .args([
            "--lease-probe",
            &lease_probe.grpc,
            "--scaling-coordinator",
            &coordinator.grpc,
        ])
        .arg("--tls-cert")
        .arg(&files.cert)
        .arg("--tls-key")
        .arg(&files.key)
        .arg("--tls-ca")
        .arg(&files.ca)
        .args(["--tls-server-name", "localhost", "status"])
        .env_remove("KUBECONFIG")
        .kill_on_drop(true)
        .output();
    let status = tokio::time::timeout(BOUND, status).await.unwrap().unwrap();
    let shown = String::from_utf8_lossy(&status.stdout);
    assert!(shown.contains("Shoots that are not protected: 1"), "{status:?}");

    shoot
        .update_cluster(|cluster| {
            cluster["spec"]["shoot"]["metadata"]["annotations"][MODE_ANNOTATION] = "protect".into();
        })
        .unwrap();
    shoot.cut(Cut::All);
    fixture.wait_replicas(&shoot, 0, BOUND).await.unwrap();
    shoot.heal();
    fixture.wait_replicas(&shoot, 1, BOUND).await.unwrap();
    let protected = until_settled(&fixture, &coordinator, Direction::Up).await;
    assert_eq!(
        (protected.mode(), protected.mode_from_annotation),
        (Mode::Protect, true)
    );
}
