//! Every way in which a shoot's API server can fail its probe: each distinct in the verdict, the metric and the log,
//! and none ever leads to a scale-down.

use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use watchdog_proto::probe::v1::Outcome;
use watchdog_sandbox::{Cut, Fault, FaultAction, Rule, SimulatedShoot};
use watchdog_test_support::fixtures::PROBE_SECRET;
use watchdog_test_support::sandboxed::SandboxFixture;
use watchdog_test_support::wait::{BOUND, until_true};
use watchdog_test_support::watchdog::Service;

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

/// One way to fail: what is done to the shoot, and how the failure shows.
struct Row {
    shoot: &'static str,
    outcome: Outcome,
    reason: &'static str,
    message: &'static str,
}

const ROWS: [Row; 9] = [
    Row {
        shoot: "refused",
        outcome: Outcome::ApiServerUnreachable,
        reason: "connect",
        message: "cannot be reached",
    },
    Row {
        shoot: "foreign",
        outcome: Outcome::ApiServerUnreachable,
        reason: "tls",
        message: "TLS handshake",
    },
    Row {
        shoot: "throttled",
        outcome: Outcome::Throttled,
        reason: "throttled",
        message: "asks to wait for 3s",
    },
    Row {
        shoot: "forbidden",
        outcome: Outcome::Inconclusive,
        reason: "forbidden",
        // The first is what was refused, the other what the probe also found to be missing.
        message: "list leases in namespace kube-node-lease; list nodes",
    },
    Row {
        shoot: "expired",
        outcome: Outcome::Inconclusive,
        reason: "unauthorized",
        message: "(401)",
    },
    Row {
        shoot: "garbage",
        outcome: Outcome::Inconclusive,
        reason: "list_failed",
        message: "not a Kubernetes list",
    },
    Row {
        shoot: "broken",
        outcome: Outcome::Inconclusive,
        reason: "list_failed",
        message: "500",
    },
    Row {
        shoot: "slow",
        outcome: Outcome::Inconclusive,
        reason: "list_timeout",
        message: "took longer than 3s",
    },
    Row {
        shoot: "halfway",
        outcome: Outcome::Inconclusive,
        reason: "list_broke_off",
        message: "broke off half way: page 2: 500",
    },
];

async fn fail(fixture: &SandboxFixture, shoot: &SimulatedShoot, how: &str) {
    let leases = |action| Fault::always(action).path(LEASES);
    let api = shoot.api();
    match how {
        "refused" => api.stop().await.unwrap(),
        "foreign" => {
            let other = fixture.shoot("slow").unwrap().probe_kubeconfig();
            let wrong = shoot
                .probe_kubeconfig()
                .replace(&ca(&shoot.probe_kubeconfig()), &ca(&other));
            let data = json!({"data": {"kubeconfig": k8s_openapi::ByteString(wrong.into_bytes())}});
            let secrets: Api<Secret> = Api::namespaced(fixture.seed.clone(), shoot.namespace());
            secrets
                .patch(PROBE_SECRET, &PatchParams::default(), &Patch::Merge(data))
                .await
                .unwrap();
        }
        "throttled" => drop(api.inject(leases(FaultAction::TooManyRequests { retry_after: 3 }))),
        "forbidden" => api.deny(Rule {
            verbs: vec!["list".to_owned()],
            resources: vec!["leases".to_owned(), "nodes".to_owned()],
            ..Rule::default()
        }),
        "expired" => api.revoke("system:serviceaccount:kube-system:dependency-watchdog-probe"),
        "garbage" => drop(api.inject(leases(FaultAction::Garbage))),
        "broken" => drop(api.inject(leases(FaultAction::InternalError))),
        "slow" => drop(api.inject(leases(FaultAction::Hang))),
        "halfway" => drop(api.inject(leases(FaultAction::InternalError).query("continue="))),
        how => panic!("{how}"),
    }
}

/// The authority in a kubeconfig, as it stands there.
fn ca(kubeconfig: &str) -> String {
    let line = kubeconfig
        .lines()
        .find(|line| line.contains("certificate-authority-data"))
        .unwrap();
    line.rsplit(' ').next().unwrap().to_owned()
}

/// Leases whose nodes are gone, so that one page does not hold them all.
fn more_leases(shoot: &SimulatedShoot) {
    for number in 0..600 {
        let lease = json!({
            "metadata": {"name": format!("gone-{number}")},
            "spec": {"renewTime": "2026-01-01T00:00:00.000000Z", "leaseDurationSeconds": 40},
        });
        let leases = &watchdog_sandbox::resource::keys::LEASES;
        shoot.api().create(leases, "kube-node-lease", lease).unwrap();
    }
}

async fn mend(fixture: &SandboxFixture, shoot: &SimulatedShoot, how: &str) {
    let api = shoot.api();
    match how {
        "refused" => api.resume().await.unwrap(),
        "forbidden" => api.allow_all(),
        "foreign" | "expired" => shoot.rotate_kubeconfig().unwrap(),
        _ => api.clear_faults(),
    }
    let _ = fixture;
}

async fn failures(lease_probe: &Service, shoot: &str, reason: &str) -> f64 {
    let series = format!(
        "watchdog_shoot_probe_failures_total{{shoot=\"{shoot}\",endpoint=\"internal\",reason=\"{reason}\"}}"
    );
    lease_probe.metric(&series).await.unwrap().unwrap_or(0.0)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_failure_shows_and_none_scales_anything_down() {
    let names = ROWS.map(|row| row.shoot);
    let fixture = SandboxFixture::start("outcomes", &names).await.unwrap();
    let lease_probe = fixture.lease_probe().await.unwrap();
    let coordinator = fixture.coordinator().await.unwrap();
    coordinator.wait_ready().await.unwrap();
    let shoots: Vec<SimulatedShoot> = names.iter().map(|name| fixture.shoot(name).unwrap()).collect();
    more_leases(&fixture.shoot("halfway").unwrap());
    for shoot in &shoots {
        fixture
            .wait_outcome(&lease_probe, shoot.namespace(), Outcome::Healthy, BOUND)
            .await
            .unwrap();
    }
    // The nodes are also cut off: what cannot be seen must not be guessed.
    for (row, shoot) in ROWS.iter().zip(&shoots) {
        fail(&fixture, shoot, row.shoot).await;
        shoot.cut(Cut::All);
    }
    for (row, shoot) in ROWS.iter().zip(&shoots) {
        let verdict = fixture
            .wait_outcome(&lease_probe, shoot.namespace(), row.outcome, BOUND)
            .await
            .unwrap();
        assert!(
            verdict.message.contains(row.message),
            "{}: {}",
            row.shoot,
            verdict.message
        );
        assert!(
            failures(&lease_probe, shoot.namespace(), row.reason).await >= 1.0,
            "{}",
            row.shoot
        );
        let log = format!(
            "\"reason\":\"{}\",\"shoot\":\"{}\"",
            row.reason,
            shoot.namespace()
        );
        lease_probe.process.wait_for_text(&log, BOUND).await.unwrap();
    }
    assert!(
        lease_probe
            .metric("watchdog_shoot_throttled_total")
            .await
            .unwrap()
            .is_some_and(|n| n >= 1.0)
    );
    let missing = |permission| {
        let shoot = fixture.shoot("forbidden").unwrap().namespace().to_owned();
        format!("watchdog_shoot_permission_missing{{shoot=\"{shoot}\",permission=\"{permission}\"}}")
    };
    let permissions = ["list leases in namespace kube-node-lease", "list nodes"].map(missing);
    for permission in &permissions {
        assert_eq!(
            lease_probe.metric(permission).await.unwrap(),
            Some(1.0),
            "{permission}"
        );
    }
    // Twice the time after which the leases are expired.
    watchdog_test_support::wait::holds("nothing is written", Duration::from_secs(12), || async {
        Ok(shoots.iter().all(|shoot| fixture.writes(shoot).is_empty()))
    })
    .await
    .unwrap();
    let throttled = fixture.shoot("throttled").unwrap();
    let lists = || {
        let audit = throttled.api().audit();
        let times: Vec<_> = audit
            .iter()
            .filter(|entry| entry.code == 429)
            .map(|entry| entry.time)
            .collect();
        times
    };
    until_true("the back-off is over", BOUND, || async { Ok(lists().len() >= 2) })
        .await
        .unwrap();
    let pauses: Vec<_> = lists()
        .windows(2)
        .map(|pair| pair[1].duration_since(pair[0]).as_secs_f64())
        .collect();
    assert!(
        pauses.iter().all(|pause| *pause >= 10.0),
        "asked for 3 s, at least 10 s are kept: {pauses:?}"
    );

    // First the nodes, then what kept the probe from seeing them: there never was a loss that it could have seen.
    let renewals = |shoot: &SimulatedShoot| -> Vec<String> {
        let nodes = shoot.nodes().into_iter();
        nodes.map(|node| node.renew_time).collect()
    };
    for (row, shoot) in ROWS.iter().zip(&shoots) {
        let before = renewals(shoot);
        shoot.heal();
        if row.shoot != "refused" {
            until_true("every lease is renewed", BOUND, || async {
                Ok(renewals(shoot)
                    .iter()
                    .zip(&before)
                    .all(|(now, before)| now != before))
            })
            .await
            .unwrap();
        }
        mend(&fixture, shoot, row.shoot).await;
    }
    for shoot in &shoots {
        fixture
            .wait_outcome(&lease_probe, shoot.namespace(), Outcome::Healthy, BOUND)
            .await
            .unwrap();
        assert_eq!(fixture.writes(shoot), Vec::<String>::new());
    }
    for permission in &permissions {
        assert_eq!(
            lease_probe.metric(permission).await.unwrap(),
            None,
            "{permission}"
        );
    }
}

/// `probeTimeout` is for the probe as a whole: two lists that are in time each are not in time together.
#[tokio::test(flavor = "multi_thread")]
async fn a_probe_has_one_time_limit_for_all_its_lists() {
    let fixture = SandboxFixture::start("whole", &["one"]).await.unwrap();
    let shoot = fixture.shoot("one").unwrap();
    let lease_probe = fixture.lease_probe().await.unwrap();
    fixture
        .wait_outcome(&lease_probe, shoot.namespace(), Outcome::Healthy, BOUND)
        .await
        .unwrap();
    for path in [LEASES, "/api/v1/nodes"] {
        let slow = FaultAction::Delay { millis: 2_000 };
        shoot.api().inject(Fault::always(slow).path(path));
    }
    // Now the nodes matter, and are listed after the leases.
    shoot.cut(Cut::Nodes(vec![shoot.nodes()[0].name.clone()]));
    let verdict = fixture
        .wait_outcome(&lease_probe, shoot.namespace(), Outcome::Inconclusive, BOUND)
        .await
        .unwrap();
    assert!(
        verdict.message.contains("took longer than 3s"),
        "{}",
        verdict.message
    );
    assert!(failures(&lease_probe, shoot.namespace(), "list_timeout").await >= 1.0);
    shoot.api().clear_faults();
    fixture
        .wait_outcome(&lease_probe, shoot.namespace(), Outcome::Healthy, BOUND)
        .await
        .unwrap();
}
