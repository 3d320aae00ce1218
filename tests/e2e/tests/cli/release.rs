//! An incident, and in the middle of it the watchdog is taken away: a run of the program restores what is held down.

use watchdog_proto::probe::v1::Outcome;
use watchdog_test_support::fixtures::MCM;
use watchdog_test_support::sandboxed::SandboxFixture;
use watchdog_test_support::simulation::Cut;
use watchdog_test_support::wait::BOUND;

const SHOOT: &str = "shoot--sandbox--one";

#[tokio::test(flavor = "multi_thread")]
async fn what_is_held_down_is_released_by_a_run_of_the_program() {
    let fixture = SandboxFixture::start("release", &["one"]).await.unwrap();
    let lease_probe = fixture.lease_probe().await.unwrap();
    let coordinator = fixture.coordinator().await.unwrap();
    fixture
        .wait_outcome(&lease_probe, SHOOT, Outcome::Healthy)
        .await
        .unwrap();
    let shoot = fixture.shoot("one").unwrap();
    shoot.cut(Cut::All);
    fixture.wait_replicas(&shoot, 0, BOUND).await.unwrap();
    let run = async |options: &[&str], code: i32, line: &str| {
        let command = coordinator.command().clone().arg("--release-all");
        let process = command
            .args(options.iter().copied())
            .spawn(&fixture.scratch)
            .unwrap();
        let status = process.wait_exit(BOUND).await.unwrap();
        let output = std::fs::read_to_string(process.log_path()).unwrap();
        assert_eq!(
            (status.code(), output.contains(line)),
            (Some(code), true),
            "{output}"
        );
        output
    };
    // The coordinator still runs.
    run(&["--release-timeout", "3s"], 1, "scale their Deployment to 0").await;
    coordinator.process.stop(BOUND).await.unwrap();
    let output = run(&[], 0, "nothing is held down").await;
    let restored = format!("{SHOOT}: apps/v1 Deployment {MCM}: restored");
    assert!(output.contains(&restored), "{output}");
    fixture.wait_replicas(&shoot, 1, BOUND).await.unwrap();
}
