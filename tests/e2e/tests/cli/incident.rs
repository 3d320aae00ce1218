//! One incident, and all by which people look at it: watchdogctl, its page and grpcurl.

use watchdog_proto::probe::v1::Outcome;
use watchdog_test_support::crash_loop::CrashingControlPlane;
use watchdog_test_support::real::{FixtureOptions, RealFixture};
use watchdog_test_support::wait::BOUND;

use crate::grpcurl::Grpcurl;
use crate::page::Page;
use crate::watchdogctl::{self, Watchdogctl};

#[tokio::test(flavor = "multi_thread")]
async fn is_shown_as_it_is() {
    let options = FixtureOptions::new("incident", &["one", "two"]);
    let fixture = RealFixture::start(options).await.unwrap();
    let seed = fixture.seed.client();
    for shoot in &fixture.shoots {
        let plane = CrashingControlPlane::new(&seed, &shoot.namespace).await.unwrap();
        for service in ["etcd-main-client", "kube-apiserver"] {
            plane.set_service_ready(service, true).await.unwrap();
        }
    }
    let [lease_probe, coordinator, weeder] = fixture.start_all().await.unwrap();
    for program in [&coordinator, &weeder] {
        let leads = program.process.wait_for_text("this process is the leader", BOUND);
        leads.await.unwrap();
    }
    let services = [
        ("--lease-probe", &lease_probe),
        ("--scaling-coordinator", &coordinator),
        ("--weeder", &weeder),
    ];
    let watchdogctl = Watchdogctl::new(&services, fixture.setup.client_files());
    let grpcurl = Grpcurl::new(&fixture.setup);
    let mut page = Page::open(&fixture, &lease_probe, &coordinator).await;
    let shoot = fixture.shoot("one").unwrap();

    watchdogctl::healthy(&fixture, &watchdogctl).await;
    grpcurl.calls_every_method_of_lease_probe(&lease_probe).await;
    grpcurl.calls_every_method_of_the_weeder(&weeder).await;

    shoot.cut_off().await;
    let verdict = fixture
        .setup
        .wait_outcome(&lease_probe, &shoot.namespace, Outcome::LeasesExpired);
    let verdict = verdict.await.unwrap();
    shoot.wait_down("the loss is acted on").await.unwrap();
    if let Some(page) = &mut page {
        page.shows_an_incident(&verdict).await;
    }
    grpcurl.calls_every_method_of_the_coordinator(&coordinator).await;
    watchdogctl::held_down(&fixture, &lease_probe, &watchdogctl).await;

    shoot.server.stop().await.unwrap();
    watchdogctl::held_without_verdict(&watchdogctl).await;
    shoot.server.start_again().await.unwrap();

    shoot.reconnect();
    shoot.wait_restored().await.unwrap();
    watchdogctl::restored(&watchdogctl, &coordinator).await;
    if let Some(page) = page {
        page.shows_its_end().await;
    }
}
