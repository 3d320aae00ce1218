//! Bad input and faults: each gives a clear log line, metric and gRPC answer, nothing else stops, and the right thing
//! happens once the fault is gone.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::json;
use tonic::Code;
use watchdog_proto::probe::v1 as probe;
use watchdog_proto::scaling::v1 as scaling;
use watchdog_sandbox::Cut;
use watchdog_test_support::fixtures::{CA, KCM, MCM, PROBE_SECRET};
use watchdog_test_support::real::cluster_resource;
use watchdog_test_support::sandboxed::World;
use watchdog_test_support::wait::{BOUND, holds, until, until_true};

const SHOOT: &str = "shoot--sandbox--one";

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_cluster_is_reported_and_stops_nobody() {
    let world = World::start("malformed", &["one"]).await.unwrap();
    let clusters: Api<DynamicObject> = Api::all_with(world.seed.clone(), &cluster_resource());
    let bad = |shoot| {
        DynamicObject::new("shoot--sandbox--bad", &cluster_resource()).data(json!({"spec": {"shoot": shoot}}))
    };
    clusters
        .create(
            &PostParams::default(),
            &bad(json!({"spec": {"provider": "none"}})),
        )
        .await
        .unwrap();
    let lease_probe = world.lease_probe().await.unwrap();
    world
        .wait_outcome(&lease_probe, SHOOT, probe::Outcome::Healthy, BOUND)
        .await
        .unwrap();
    let skipped = world.verdict(&lease_probe, "shoot--sandbox--bad").await.unwrap();
    assert_eq!(skipped.outcome(), probe::Outcome::Skipped);
    assert_eq!(skipped.skip_reason(), probe::SkipReason::Malformed);
    assert!(skipped.message.contains("provider"), "{}", skipped.message);
    let metric = lease_probe
        .metric("watchdog_shoots_skipped{reason=\"malformed\"}")
        .await
        .unwrap();
    assert_eq!(metric, Some(1.0));
    lease_probe
        .process
        .wait_for_text("the Cluster cannot be used", BOUND)
        .await
        .unwrap();

    let unknown = world
        .verdict(&lease_probe, "shoot--sandbox--none")
        .await
        .unwrap_err();
    assert_eq!(
        unknown.downcast_ref::<tonic::Status>().unwrap().code(),
        Code::NotFound
    );
    clusters
        .delete("shoot--sandbox--bad", &DeleteParams::default())
        .await
        .unwrap();
    until_true("the skipped shoot is forgotten", BOUND, || async {
        Ok(world.verdict(&lease_probe, "shoot--sandbox--bad").await.is_err())
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_namespace_is_named_by_every_service() {
    const ANSWER: &str = "namespaces \"garden\" not found (404 NotFound)";
    let world = World::start("namespace", &["one"]).await.unwrap();
    let namespaces: Api<Namespace> = Api::all(world.seed.clone());
    let garden = namespaces.get("garden").await.unwrap();
    namespaces
        .delete("garden", &DeleteParams::default())
        .await
        .unwrap();
    until_true("the namespace is gone", BOUND, || async {
        Ok(namespaces.get_opt("garden").await?.is_none())
    })
    .await
    .unwrap();
    let kubeconfig = world.kubeconfig();
    let setup = &world.setup;
    let services = [
        setup.lease_probe("lease-probe-0", &kubeconfig).await.unwrap(),
        setup
            .coordinator("scaling-coordinator-0", &kubeconfig, &[])
            .await
            .unwrap(),
        setup.weeder("weeder-0", &kubeconfig).await.unwrap(),
    ];
    for service in &services {
        let line = format!("membership: the last try failed: {ANSWER}");
        until_true("/readyz has the answer", BOUND, || async {
            let (code, body) = service.admin_get("/readyz").await?;
            Ok(code == 503 && body.lines().any(|found| found == line))
        })
        .await
        .unwrap();
        let series = "watchdog_last_try_failed{loop=\"membership\",reason=\"not_found\"}";
        assert_eq!(service.metric(series).await.unwrap(), Some(1.0));
    }
    let expired = "membership lease expired before it was renewed: namespaces \\\"garden\\\" not found";
    let [_, coordinator, _] = &services;
    coordinator.process.wait_for_text(expired, BOUND).await.unwrap();
    let garden = Namespace {
        metadata: ObjectMeta {
            name: garden.metadata.name,
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    };
    namespaces.create(&PostParams::default(), &garden).await.unwrap();
    for service in &services {
        service.wait_ready().await.unwrap();
        until_true("nothing fails any more", BOUND, || async {
            let (_, body) = service.admin_get("/readyz").await?;
            Ok(!body.contains("membership"))
        })
        .await
        .unwrap();
    }
}

/// An incident, and in the middle of it the watchdog is taken away.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_held_down_is_released_by_a_run_of_the_program() {
    let world = World::start("release", &["one"]).await.unwrap();
    let lease_probe = world.lease_probe().await.unwrap();
    let coordinator = world.coordinator().await.unwrap();
    coordinator.wait_ready().await.unwrap();
    world
        .wait_outcome(&lease_probe, SHOOT, probe::Outcome::Healthy, BOUND)
        .await
        .unwrap();
    let shoot = world.shoot("one").unwrap();
    shoot.cut(Cut::All);
    world.wait_replicas(&shoot, 0, BOUND).await.unwrap();
    let run = async |options: &[&str]| {
        let command = coordinator.command().clone().arg("--release-all");
        let process = command
            .args(options.iter().copied())
            .spawn(&world.scratch)
            .unwrap();
        let status = process.wait_exit(BOUND).await.unwrap();
        (
            status.code(),
            std::fs::read_to_string(process.log_path()).unwrap(),
        )
    };
    let (code, said) = run(&["--plan"]).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains(&format!("{SHOOT}: level 0: apps/v1 Deployment {KCM}: scale to ")),
        "{said}"
    );
    let (code, said) = run(&["--release-timeout", "3s"]).await;
    assert_eq!(code, Some(1), "the coordinator still runs: {said}");
    assert!(said.contains("scale their Deployment to 0"), "{said}");
    coordinator.process.stop(BOUND).await.unwrap();
    let (code, said) = run(&[]).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains(&format!("{SHOOT}: apps/v1 Deployment {MCM}: restored")),
        "{said}"
    );
    assert!(said.contains("nothing is held down"), "{said}");
    world.wait_replicas(&shoot, 1, BOUND).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_or_broken_kubeconfig_holds_until_it_is_repaired() {
    let world = World::start("kubeconfig", &["one", "two"]).await.unwrap();
    let lease_probe = world.lease_probe().await.unwrap();
    world
        .wait_outcome(&lease_probe, SHOOT, probe::Outcome::Healthy, BOUND)
        .await
        .unwrap();
    let secrets: Api<Secret> = Api::namespaced(world.seed.clone(), SHOOT);
    let good = secrets.get(PROBE_SECRET).await.unwrap();

    let broken = json!({"stringData": null, "data": {"kubeconfig": "bm90IGEga3ViZWNvbmZpZw=="}});
    secrets
        .patch(PROBE_SECRET, &PatchParams::default(), &Patch::Merge(broken))
        .await
        .unwrap();
    let verdict = world
        .wait_outcome(&lease_probe, SHOOT, probe::Outcome::Inconclusive, BOUND)
        .await
        .unwrap();
    assert!(
        verdict.message.starts_with("The kubeconfig cannot be used"),
        "{}",
        verdict.message
    );
    let series = format!(
        "watchdog_shoot_probe_failures_total{{shoot=\"{SHOOT}\",endpoint=\"internal\",reason=\"kubeconfig\"}}"
    );
    assert!(
        lease_probe
            .metric(&series)
            .await
            .unwrap()
            .is_some_and(|n| n >= 1.0)
    );

    secrets
        .delete(PROBE_SECRET, &DeleteParams::default())
        .await
        .unwrap();
    until("the verdict names the missing Secret", BOUND, || async {
        let verdict = world.verdict(&lease_probe, SHOOT).await?;
        Ok(verdict.message.contains(PROBE_SECRET).then_some(()))
    })
    .await
    .unwrap();
    assert_eq!(
        world
            .verdict(&lease_probe, "shoot--sandbox--two")
            .await
            .unwrap()
            .outcome(),
        probe::Outcome::Healthy
    );

    let mut repaired = Secret {
        data: good.data,
        ..Secret::default()
    };
    repaired.metadata.name = Some(PROBE_SECRET.to_owned());
    secrets.create(&PostParams::default(), &repaired).await.unwrap();
    world
        .wait_outcome(&lease_probe, SHOOT, probe::Outcome::Healthy, BOUND)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_without_renew_time_is_left_out_and_reported() {
    let world = World::start("bare-lease", &["one"]).await.unwrap();
    let shoot = world.shoot("one").unwrap();
    let lease = json!({"metadata": {"name": "bare"}, "spec": {"holderIdentity": "bare"}});
    shoot
        .api()
        .create(
            &watchdog_sandbox::resource::keys::LEASES,
            "kube-node-lease",
            lease,
        )
        .unwrap();
    let lease_probe = world.lease_probe().await.unwrap();
    let verdict = world
        .wait_outcome(&lease_probe, SHOOT, probe::Outcome::Healthy, BOUND)
        .await
        .unwrap();
    let evidence = verdict.evidence.unwrap();
    assert_eq!((evidence.leases, evidence.candidates), (6, 5));
    let reasons: Vec<_> = evidence
        .excluded
        .iter()
        .map(|count| (count.reason(), count.leases))
        .collect();
    assert_eq!(reasons, [(probe::Exclusion::NoRenewTime, 1)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_absent_dependant_fails_its_level_visibly_and_an_optional_one_does_not() {
    let world = World::start("absent", &["one"]).await.unwrap();
    let shoot = world.shoot("one").unwrap();
    let deployments: Api<k8s_openapi::api::apps::v1::Deployment> = Api::namespaced(world.seed.clone(), SHOOT);
    let saved = deployments.get(MCM).await.unwrap();
    for name in [MCM, CA] {
        deployments.delete(name, &DeleteParams::default()).await.unwrap();
    }
    let lease_probe = world.lease_probe().await.unwrap();
    let coordinator = world.coordinator().await.unwrap();
    coordinator.wait_ready().await.unwrap();
    world
        .wait_outcome(&lease_probe, SHOOT, probe::Outcome::Healthy, BOUND)
        .await
        .unwrap();
    shoot.cut(Cut::All);
    let failed = until("the level with the absent resource has failed", BOUND, || async {
        let state = world.scaling(&coordinator, SHOOT).await?;
        // The optional one is looked for once before it counts as absent.
        let is_absent = |r: &scaling::ResourceScaling| r.step() == scaling::Step::Absent;
        let known = state.state() == scaling::FlowState::Failed && state.resources.iter().any(is_absent);
        Ok(known.then_some(state))
    })
    .await
    .unwrap();
    let step = |name: &str| {
        let named = |r: &&scaling::ResourceScaling| r.resource.as_ref().is_some_and(|r| r.name == name);
        failed
            .resources
            .iter()
            .find(named)
            .map(|r| (r.step(), r.message.clone()))
            .unwrap()
    };
    assert_eq!(step(MCM).0, scaling::Step::Failed, "{failed:?}");
    assert_eq!(step(CA).0, scaling::Step::Absent);
    assert_eq!(
        shoot.workload(KCM).unwrap().spec_replicas,
        1,
        "the next level has not started"
    );
    // The fault is gone: somebody creates it again, and the flow goes on.
    let mut again = saved;
    again.metadata.resource_version = None;
    again.metadata.uid = None;
    deployments.create(&PostParams::default(), &again).await.unwrap();
    until_true("the flow went on to the end", Duration::from_secs(60), || async {
        Ok(shoot
            .workload(KCM)
            .is_some_and(|w| w.spec_replicas == 0 && w.ready_replicas == 0))
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_that_starts_first_holds_until_it_hears_something() {
    let world = World::start("order", &["one"]).await.unwrap();
    let shoot = world.shoot("one").unwrap();
    let coordinator = world.coordinator().await.unwrap();
    shoot.cut(Cut::All);
    let held = until("the coordinator knows the shoot", BOUND, || async {
        Ok(Some(world.scaling(&coordinator, SHOOT).await?))
    })
    .await
    .unwrap();
    assert_eq!(held.direction(), scaling::Direction::Hold, "{}", held.reason);
    holds(
        "nothing is written without a verdict",
        Duration::from_secs(2),
        || async { Ok(world.writes(&shoot).is_empty()) },
    )
    .await
    .unwrap();
    let _lease_probe = world.lease_probe().await.unwrap();
    world.wait_replicas(&shoot, 0, BOUND).await.unwrap();
    shoot.heal();
    world.wait_replicas(&shoot, 1, BOUND).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_configuration_is_taken_up_and_a_bad_one_refused() {
    let world = World::start("reload", &["one"]).await.unwrap();
    let lease_probe = world.lease_probe().await.unwrap();
    world
        .wait_outcome(&lease_probe, SHOOT, probe::Outcome::Healthy, BOUND)
        .await
        .unwrap();
    let good = std::fs::read_to_string(world.setup.prober_file()).unwrap();
    let valid = |wanted: f64| {
        let lease_probe = &lease_probe;
        until_true("the file is judged", BOUND, move || async move {
            Ok(lease_probe.metric("watchdog_config_valid").await? == Some(wanted))
        })
    };
    std::fs::write(world.setup.prober_file(), good.replace("5s", "soon")).unwrap();
    valid(0.0).await.unwrap();
    lease_probe
        .process
        .wait_for_text("changed configuration file refused", BOUND)
        .await
        .unwrap();
    std::fs::write(
        world.setup.prober_file(),
        format!("nodeLeaseFailureFraction: 0.8\n{good}"),
    )
    .unwrap();
    valid(1.0).await.unwrap();
    until_true("the running probe has the new threshold", BOUND, || async {
        let verdict = world.verdict(&lease_probe, SHOOT).await?;
        Ok(verdict.evidence.is_some_and(|evidence| evidence.threshold == 0.8))
    })
    .await
    .unwrap();
}
