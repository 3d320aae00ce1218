//! The page of `watchdogctl ui` through an incident, in Debian's headless Chromium. Skipped where that is not
//! installed.

use watchdog_proto::probe::v1::Verdict;
use watchdog_test_support::browser::{Browser, Tab};
use watchdog_test_support::page_process::PageProcess;
use watchdog_test_support::real::RealFixture;
use watchdog_test_support::watchdog::Service;

/// The list of what needs attention has the shoot in it.
const ROW: &str = "document.querySelector('.row[data-name=\"shoot--real--one\"]')";

const ALL_HEALTHY: &str = "document.querySelectorAll('.cell.healthy').length === 2";

/// The page of two shoots, of which the first one has the incident.
pub(crate) struct Page {
    browser: Browser,
    tab: Tab,
    process: PageProcess,
}

// === impl Page ===

impl Page {
    pub(crate) async fn open(
        fixture: &RealFixture,
        lease_probe: &Service,
        coordinator: &Service,
    ) -> Option<Self> {
        let browser = Browser::start(fixture.scratch()).await.unwrap()?;
        let process = PageProcess::start(&fixture.setup, fixture.scratch(), lease_probe, coordinator);
        let process = process.await.unwrap();
        let mut tab = browser.open(&process.url, 1280).await.unwrap();
        tab.until(ALL_HEALTHY).await.unwrap();
        Some(Self {
            browser,
            tab,
            process,
        })
    }

    /// It appears within two seconds of its verdict.
    pub(crate) async fn shows_an_incident(&mut self, verdict: &Verdict) {
        let tab = &mut self.tab;
        let shown = tab.until(&format!("Number({ROW}.dataset.shown)")).await.unwrap();
        let since = verdict.outcome_change_time.unwrap();
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
    }

    /// Of a page that has shown the incident.
    pub(crate) async fn shows_its_end(mut self) {
        let tab = &mut self.tab;
        tab.until("document.getElementById('parts').textContent.includes('everything restored')")
            .await
            .unwrap();
        tab.until(ALL_HEALTHY).await.unwrap();
        assert_eq!(tab.complaints(), [""; 0]);
        let is_own = |url: &String| url.starts_with(&self.process.url) || url == "about:blank";
        assert!(tab.requests().iter().all(is_own), "{:?}", tab.requests());
        self.browser.close().await.unwrap();
    }
}
