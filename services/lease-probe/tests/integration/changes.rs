//! Changes while lease-probe runs: of its configuration, of kubeconfigs and of an external endpoint.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::TcpSocket;
use watchdog_proto::probe::v1::{Evidence, Outcome, Verdict};
use watchdog_sandbox::resource::keys;
use watchdog_sandbox::{Fault, FaultAction, Rule};
use watchdog_test_support::fixtures::PROBE_SECRET;
use watchdog_test_support::in_process::rule;
use watchdog_test_support::simulation::Cut;

use crate::eventually;
use crate::fixture::{Fixture, NODE_LEASES, config, fast, real, with_field, without_controllers};
use crate::replica::{IDENTITY, Replica, evidence, micros};

const CONFIG_VALID: &str = "watchdog_config_valid";

#[tokio::test]
async fn a_changed_configuration_is_taken_up_and_a_bad_one_is_not() {
    let fixture = Fixture::new(fast(), 5, &["alpha"]).await;
    let alpha = fixture.shoot("alpha");
    without_controllers(&alpha).await;
    let replica = Replica::start(&fixture).await;
    replica.until_outcome(&alpha, Outcome::Healthy).await;
    let nodes: Vec<_> = alpha.nodes().into_iter().map(|node| node.name).collect();
    alpha.cut(Cut::Nodes(nodes[..2].to_vec()));
    replica.until_said(&alpha, Outcome::Healthy, "2 of 5").await;
    let judged_by = |outcome: Outcome, threshold: f64| {
        move |verdict: &Verdict| {
            let of = |evidence: &Evidence| (evidence.threshold - threshold).abs() < 1e-9;
            verdict.outcome() == outcome && verdict.evidence.as_ref().is_some_and(of)
        }
    };
    fixture.configure(&[("nodeLeaseFailureFraction", "0.4")]);
    let lost = judged_by(Outcome::LeasesExpired, 0.4);
    replica.until(&alpha, "lost by another threshold", &lost).await;
    assert_eq!(replica.metric(CONFIG_VALID).await, Some(1.0));

    // Two things are wrong with it, and the fraction is neither.
    fixture.configure(&[
        ("nodeLeaseFailureFraction", "0.9"),
        ("probeIntervall", "1s"),
        ("failureThreshold", "0"),
    ]);
    replica
        .until_metric(CONFIG_VALID, |valid| valid == Some(0.0))
        .await;
    let refused = replica.until(&alpha, "lost by the old threshold", &lost).await;
    let later =
        |verdict: &Verdict| micros(verdict.observe_time.as_ref()) > micros(refused.observe_time.as_ref());
    replica
        .until(&alpha, "lost still", |verdict| lost(verdict) && later(verdict))
        .await;

    fixture.configure(&[("nodeLeaseFailureFraction", "0.8")]);
    replica
        .until(
            &alpha,
            "healthy by another threshold",
            judged_by(Outcome::Healthy, 0.8),
        )
        .await;
    replica
        .until_metric(CONFIG_VALID, |valid| valid == Some(1.0))
        .await;
}

#[tokio::test]
async fn thresholds_ask_for_probes_in_a_row() {
    let fixture = Fixture::new(fast(), 3, &["alpha"]).await;
    fixture.configure(&[("failureThreshold", "3"), ("successThreshold", "2")]);
    let alpha = fixture.shoot("alpha");
    without_controllers(&alpha).await;
    let replica = Replica::start(&fixture).await;
    let probes = async |outcome: &str| {
        let series = format!("watchdog_probes_total{{outcome=\"{outcome}\"}}");
        replica.metric(&series).await.unwrap_or(0.0)
    };
    replica.until_outcome(&alpha, Outcome::Healthy).await;
    assert!(probes("healthy").await >= 2.0);
    alpha.cut(Cut::All);
    replica.until_outcome(&alpha, Outcome::LeasesExpired).await;
    assert!(probes("leases_expired").await >= 3.0);
    let healthy = probes("healthy").await;
    alpha.heal();
    replica.until_outcome(&alpha, Outcome::Healthy).await;
    assert!(probes("healthy").await >= healthy + 2.0);
}

#[tokio::test]
async fn a_kubeconfig_is_rotated_renamed_and_taken_away() {
    let fixture = Fixture::new(real(), 2, &["alpha"]).await;
    let alpha = fixture.shoot("alpha");
    let replica = Replica::start(&fixture).await;
    replica.until_outcome(&alpha, Outcome::Healthy).await;
    let asked = || alpha.api().counters().requests;

    // From now on the old token is refused: what is answered is asked with the new one.
    alpha.rotate_kubeconfig().unwrap();
    let accepted = |since: u64| {
        let audit = alpha.api().audit_since(since);
        audit
            .iter()
            .any(|entry| entry.code == 200 && entry.path.ends_with("/leases"))
    };
    let before = asked();
    eventually("the new token is used", || accepted(before)).await;
    replica.until_outcome(&alpha, Outcome::Healthy).await;

    // Another name: followed from now on, and the old Secret matters no more.
    fixture.set_kubeconfig(&alpha, "other", &alpha.probe_kubeconfig());
    let renamed = config(&[]).replace(PROBE_SECRET, "other");
    fixture.files.configure(&renamed).unwrap();
    let watched = || {
        let audit = fixture.seed().audit();
        audit
            .iter()
            .any(|entry| entry.verb == "watch" && entry.query.contains("metadata.name%3Dother"))
    };
    eventually("the other Secret is watched", watched).await;
    fixture.delete_secret(&alpha, PROBE_SECRET);
    let before = asked();
    eventually("it goes on", || accepted(before)).await;
    replica.until_outcome(&alpha, Outcome::Healthy).await;

    fixture.delete_secret(&alpha, "other");
    let verdict = replica.until_outcome(&alpha, Outcome::Inconclusive).await;
    let missing = "the Secret other does not exist in namespace shoot--sandbox--alpha";
    assert!(verdict.message.contains(missing), "{}", verdict.message);
    fixture.set_kubeconfig(&alpha, "other", &alpha.probe_kubeconfig());
    replica.until_outcome(&alpha, Outcome::Healthy).await;
}

#[tokio::test]
async fn an_external_endpoint_is_probed_too_where_one_is_named() {
    let fixture = Fixture::new(real(), 2, &["alpha"]).await;
    let alpha = fixture.shoot("alpha");
    let replica = Replica::start(&fixture).await;
    replica.until_outcome(&alpha, Outcome::Healthy).await;
    // The silence of a kubelet that it never saw renew is not proven before its lease is expired anyway.
    let renewals = || -> Vec<String> {
        let leases = alpha.api().store().all(&keys::LEASES, Some(NODE_LEASES));
        let renewed = leases
            .iter()
            .map(|lease| lease.text("/spec/renewTime").to_owned());
        renewed.collect()
    };
    let first = renewals();
    eventually("each lease is renewed", || {
        renewals().iter().zip(&first).all(|(now, first)| now != first)
    })
    .await;

    // Without its Secret there is no evidence about the endpoint, but no silence either.
    fixture.configure(&[
        ("externalKubeConfigSecretName", "external"),
        ("failureThreshold", "2"),
    ]);
    let name = alpha.namespace();
    let failures = |reason: &str| {
        format!(
            "watchdog_shoot_probe_failures_total{{shoot=\"{name}\",endpoint=\"external\",reason=\"{reason}\"}}"
        )
    };
    replica.until_counted(&failures("kubeconfig"), 2.0).await;
    replica.until_outcome(&alpha, Outcome::Healthy).await;

    // A closed port that no other process can take.
    let closed = TcpSocket::new_v4().unwrap();
    closed.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let server = format!("https://{}", closed.local_addr().unwrap());
    let inside = alpha.probe_kubeconfig();
    fixture.set_kubeconfig(&alpha, "external", &with_field(&inside, "server", &server));
    replica.until_counted(&failures("connect"), 2.0).await;
    replica.until_outcome(&alpha, Outcome::Healthy).await;

    // A renewal since the endpoint began to fail refutes it. So it begins to fail again after the last one.
    let before = replica.metric(&failures("kubeconfig")).await;
    fixture.delete_secret(&alpha, "external");
    replica
        .until_metric(&failures("kubeconfig"), |n| n > before)
        .await;
    alpha.cut(Cut::All);
    fixture.set_kubeconfig(&alpha, "external", &with_field(&inside, "server", &server));
    let lost = replica.until_outcome(&alpha, Outcome::ExternalUnreachable).await;
    assert!(
        lost.message
            .contains("external endpoint of the API server does not answer"),
        "{}",
        lost.message
    );
    assert_eq!(evidence(&lost).nodes, Some(2), "the nodes were seen");

    fixture.set_kubeconfig(&alpha, "external", &inside);
    alpha.heal();
    replica.until_outcome(&alpha, Outcome::Healthy).await;

    // Who asks to be left alone answers.
    let throttle = FaultAction::TooManyRequests { retry_after: 1 };
    alpha.api().inject(Fault::always(throttle).path("/version"));
    replica.until_counted(&failures("throttled"), 1.0).await;
    replica.until_outcome(&alpha, Outcome::Healthy).await;
}

#[tokio::test]
async fn what_is_not_granted_on_the_seed_is_named_until_it_is() {
    let fixture = Fixture::new(real(), 1, &["alpha"]).await;
    fixture.seed().deny(rule(&["list"], &["secrets", "machines"]));
    let replica = Replica::launch(&fixture, IDENTITY, &[]).await;
    let wanted = [
        format!("list secrets named {PROBE_SECRET} in all namespaces"),
        "list machines.machine.sapcloud.io in all namespaces".to_owned(),
    ];
    eventually("both are named", || {
        let blockers = replica.blockers().join("\n");
        wanted.iter().all(|permission| blockers.contains(permission))
    })
    .await;
    let (code, why) = replica.admin_get("/readyz").await.unwrap();
    assert!(code == 503 && why.contains(&wanted[0]), "{code} {why}");
    let missing = "watchdog_permission_missing{verb=\"list\",resource=\"machines.machine.sapcloud.io\"}";
    replica
        .until_metric(missing, |missing| missing == Some(1.0))
        .await;

    fixture.seed().allow_all();
    replica
        .until_outcome(&fixture.shoot("alpha"), Outcome::Healthy)
        .await;
    replica
        .until_metric(missing, |missing| missing == Some(0.0))
        .await;
    replica.wait_ready().await;
    assert_eq!(replica.admin_get("/readyz").await.unwrap().0, 200);

    // The configuration decides which Secrets it needs.
    let external = "external";
    fixture.seed().deny(Rule {
        names: vec![external.to_owned()],
        ..rule(&["list"], &["secrets"])
    });
    fixture.configure(&[("externalKubeConfigSecretName", external)]);
    eventually(
        "the permission is named, and why the Secret is not listed",
        || {
            let blockers = replica.blockers();
            let of = |name: &str| blockers.iter().find(|line| line.starts_with(name));
            let reasons = replica.bound.readiness.lines().join("\n");
            blockers.len() == 2
                && of("permissions: ").is_some_and(|why| why.contains("secrets named external"))
                && of("external-kubeconfigs: ").is_some()
                && reasons.contains("forbidden")
        },
    )
    .await;
    fixture.configure(&[]);
    replica.wait_ready().await;
    fixture.configure(&[("externalKubeConfigSecretName", external)]);
    eventually("both block again", || replica.blockers().len() == 2).await;
}
