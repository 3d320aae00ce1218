//! The page of the sandbox, in Debian's headless Chromium. Skipped where that is not installed.

#![cfg(test)]

use std::sync::Arc;

use watchdog_test_support::browser::Browser;
use watchdog_test_support::scratch::Scratch;
use watchdog_test_support::simulation::{Control, Sandbox, SandboxConfig, SimTiming, SimulatedShootSpec};

#[tokio::test(flavor = "multi_thread")]
async fn cuts_and_restores_a_network() {
    let scratch = Scratch::new("sandbox-page").unwrap();
    let Some(browser) = Browser::start(&scratch).await.unwrap() else {
        return;
    };
    let config = SandboxConfig {
        timing: SimTiming::scaled(5.0),
        shoots: vec![SimulatedShootSpec::new("one", 5)],
    };
    let sandbox = Arc::new(Sandbox::start(config).await.unwrap());
    let control = Control::start(sandbox).await.unwrap();
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
