//! A seed that recovers: a thousand services become ready at once.

mod support;

use std::time::Duration;

use support::{Seed, eventually};
use tokio::time::Instant;
use watchdog_sandbox::resource::keys;
use watchdog_sandbox::{ApiOptions, Fault, FaultAction};

const SHOOTS: usize = 1_000;
const DEPENDANTS: usize = 5;

/// Deletions at one time.
const MAX_REQUESTS: u64 = 32;

/// Connections besides those of deletions: watches, leader election, Events, preflight.
const OTHER_CONNECTIONS: u64 = 12;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_thousand_services_become_ready_at_once() {
    let seed = Seed::with(ApiOptions {
        watch_log: 65_536,
        ..ApiOptions::default()
    })
    .await;
    let mut crashing = 0_usize;
    for shoot in 0..SHOOTS {
        let namespace = format!("shoot--{shoot}");
        seed.namespace(&namespace);
        seed.service(&namespace, "kube-apiserver", false);
        for pod in 0..DEPENDANTS {
            let name = format!("pod-{pod}");
            if (shoot + pod) % 3 == 0 {
                seed.crashing(&namespace, &name, "controller-manager");
                crashing += 1;
            } else {
                seed.pod(&namespace, &name, "controller-manager");
            }
        }
    }
    let weeder = seed.start_with("weeder-0", &["--request-rate=1000"]).await;
    weeder.wait_ready().await;
    // As far as a real API server is away.
    seed.api
        .inject(Fault::always(FaultAction::Delay { millis: 2 }).path("/api/v1/namespaces/"));
    let begun = Instant::now();
    let before = seed.api.counters();
    for shoot in 0..SHOOTS {
        seed.service(&format!("shoot--{shoot}"), "kube-apiserver", true);
    }
    let pods = SHOOTS * DEPENDANTS;
    let mut most_watches = 0;
    eventually("all that crashed are deleted", || {
        most_watches = most_watches.max(seed.api.counters().open_watches);
        seed.api.store().all(&keys::PODS, None).len() == pods - crashing
    })
    .await;
    let took = begun.elapsed();
    assert_eq!(seed.deletions().len(), crashing, "each once, and no other");
    assert!(most_watches <= 7, "{most_watches} watches for {SHOOTS} weeders");
    let after = seed.api.counters();
    let connections = after.connections - before.connections;
    assert!(
        connections <= MAX_REQUESTS + OTHER_CONNECTIONS,
        "{connections} new connections"
    );

    let mut delays = Vec::new();
    for page in weeder.pages(1_000).await {
        assert_eq!(page.total_size as usize, SHOOTS);
        for weeding in &page.weeders {
            let started = weeding.started_at.as_ref().unwrap();
            for deletion in &weeding.deletions {
                let at = deletion.at.as_ref().unwrap();
                let nanos =
                    (at.seconds - started.seconds) * 1_000_000_000 + i64::from(at.nanos - started.nanos);
                delays.push(Duration::from_nanos(u64::try_from(nanos).unwrap()));
            }
        }
    }
    delays.sort();
    assert_eq!(delays.len(), crashing);
    let (p50, p99, max) = (
        delays[crashing / 2],
        delays[crashing * 99 / 100],
        delays[crashing - 1],
    );
    println!(
        "{crashing} pods in {took:?}: p50 {p50:?}, p99 {p99:?}, max {max:?}; {connections} connections, \
         {most_watches} watches"
    );
    weeder.stop().await;
}
