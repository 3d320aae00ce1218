//! The page of `watchdogctl ui` through an incident, in Debian's headless Chromium. Skipped where that is not
//! installed.

use watchdog_proto::probe::v1::Outcome;
use watchdog_test_support::browser::Browser;
use watchdog_test_support::page_process::PageProcess;
use watchdog_test_support::sandboxed::SandboxFixture;
use watchdog_test_support::simulation::Control;
use watchdog_test_support::simulation::Cut;
use watchdog_test_support::wait::BOUND;

const SHOOT: &str = "shoot--sandbox--one";

/// The list of what needs attention has the shoot in it.
const ROW: &str = "document.querySelector('.row[data-name=\"shoot--sandbox--one\"]')";

#[tokio::test(flavor = "multi_thread")]
async fn an_incident_appears_within_two_seconds_of_its_verdict() {
    let fixture = SandboxFixture::start("page", &["one", "two"]).await.unwrap();
    let Some(browser) = Browser::start(&fixture.scratch).await.unwrap() else {
        return;
    };
    let lease_probe = fixture.lease_probe().await.unwrap();
    let coordinator = fixture.coordinator().await.unwrap();
    let page = PageProcess::start(&fixture.setup, &fixture.scratch, &lease_probe, &coordinator);
    let page = page.await.unwrap();
    let mut tab = browser.open(&page.url, 1280).await.unwrap();
    tab.until("document.querySelectorAll('.cell.healthy').length === 2")
        .await
        .unwrap();

    let shoot = fixture.shoot("one").unwrap();
    shoot.cut(Cut::All);
    let shown = tab.until(&format!("Number({ROW}.dataset.shown)")).await.unwrap();
    let verdict = fixture.wait_outcome(&lease_probe, SHOOT, Outcome::LeasesExpired);
    let since = verdict.await.unwrap().outcome_change_time.unwrap();
    let since = since.seconds * 1_000 + i64::from(since.nanos) / 1_000_000;
    // By what the page itself has recorded: nothing of this test is in it.
    let delay = shown.as_f64().unwrap() - since as f64;
    assert!(
        (0.0..2_000.0).contains(&delay),
        "shown {delay} ms after the verdict"
    );

    tab.until(&format!("{ROW}.classList.contains('held')"))
        .await
        .unwrap();
    tab.evaluate(&format!("{ROW}.click()")).await.unwrap();
    tab.until("document.querySelectorAll('#part-incidents .lane').length >= 4")
        .await
        .unwrap();
    let shown = tab
        .evaluate("document.getElementById('parts').textContent")
        .await
        .unwrap();
    for part in [
        "LEASES_EXPIRED",
        "cut off at 60 %",
        "down; dependants are held down",
        "Deployment/kube-controller-manager scaled down",
        "all zones",
    ] {
        assert!(shown.as_str().unwrap().contains(part), "{part} is not in {shown}");
    }
    shoot.heal();
    fixture.wait_replicas(&shoot, 1, BOUND).await.unwrap();
    tab.until("document.getElementById('parts').textContent.includes('everything restored')")
        .await
        .unwrap();
    tab.until("document.querySelectorAll('.cell.healthy').length === 2")
        .await
        .unwrap();
    assert_eq!(tab.complaints(), [""; 0]);
    let is_own = |url: &String| url.starts_with(&page.url) || url == "about:blank";
    assert!(tab.requests().iter().all(is_own), "{:?}", tab.requests());
    browser.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_the_sandbox_cuts_and_restores_a_network() {
    let fixture = SandboxFixture::start("sandbox-page", &["one"]).await.unwrap();
    let Some(browser) = Browser::start(&fixture.scratch).await.unwrap() else {
        return;
    };
    let control = Control::start(fixture.sandbox.clone()).await.unwrap();
    let mut tab = browser.open(&control.url(), 800).await.unwrap();
    let press = |label: &str| {
        format!("document.querySelector('[aria-label=\"{label} the network of one\"]').click()")
    };
    tab.until("document.querySelector('#shoots button')")
        .await
        .unwrap();
    tab.evaluate(&press("Cut")).await.unwrap();
    let unknown = "document.querySelector('#shoots tr').cells[2].textContent";
    // Without a watchdog, kube-controller-manager marks the nodes.
    tab.until(&format!("{unknown} === '5 of 5'")).await.unwrap();
    tab.evaluate(&press("Restore")).await.unwrap();
    tab.until(&format!("{unknown} === '0 of 5'")).await.unwrap();
    browser.close().await.unwrap();
}
