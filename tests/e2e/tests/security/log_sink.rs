//! Standard error that nobody reads: the log stops, and nothing else does.

use tokio::net::TcpStream;
use watchdog_proto::probe::v1::Outcome;
use watchdog_test_support::http_exchange::exchange;
use watchdog_test_support::process::Command;
use watchdog_test_support::sandboxed::SandboxFixture;
use watchdog_test_support::wait::{self, BOUND};

use crate::subscriber::list;

const LOST: &str = "watchdog_log_lines_lost_total";

#[tokio::test(flavor = "multi_thread")]
async fn lease_probe_goes_on_and_ends_while_nobody_reads_its_log() {
    let fixture = SandboxFixture::start("log-sink", &["one"]).await.unwrap();
    let shoot = fixture.shoot("one").unwrap();
    let first = fixture.lease_probe().await.unwrap();
    first.process.stop(BOUND).await.unwrap();
    let service = fixture
        .setup
        .again_without_log(&first, Command::onto_unread_pipe)
        .await
        .unwrap();
    let admin = TcpStream::connect(&service.admin).await.unwrap();
    let (code, answer) = exchange(admin, "PUT", "/log-level", "trace").await.unwrap();
    assert_eq!(code, 200, "{answer}");
    let channel = fixture.setup.channel(&service).unwrap();
    wait::until_true("lines are dropped", BOUND, || async {
        // Each call makes many lines.
        for _ in 0..100 {
            list(channel.clone()).await?;
        }
        Ok(service.metric(LOST).await?.is_some_and(|lines| lines > 0.0))
    })
    .await
    .unwrap();
    for _ in 0..20 {
        let health = service.admin_get("/healthz").await.unwrap();
        assert_eq!(health, (200, "ok\n".to_owned()));
    }
    wait::until_true("it says so and is ready", BOUND, || async {
        let (code, ready) = service.admin_get("/readyz").await?;
        anyhow::ensure!(code == 200, "{ready}");
        Ok(ready.contains("standard error is not read"))
    })
    .await
    .unwrap();
    fixture.cut_off(&shoot);
    fixture
        .wait_outcome(&service, shoot.namespace(), Outcome::LeasesExpired, BOUND)
        .await
        .unwrap();
    service.process.sigterm().unwrap();
    let ended = service.process.wait_exit(BOUND).await.unwrap();
    assert_eq!(ended.code(), Some(0));
}
