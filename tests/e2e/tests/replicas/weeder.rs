//! Two weeders share the namespaces of a seed; one is killed in the middle of an incident. The other deletes what is
//! left, and no pod is deleted twice.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;
use watchdog_proto::feed::v1::Scope;
use watchdog_proto::weeder::v1 as pb;
use watchdog_proto::weeder::v1::weeder_service_client::WeederServiceClient;
use watchdog_sandbox::resource::keys;
use watchdog_sandbox::store::object::Object;
use watchdog_sandbox::{AuditEntry, Fault, FaultAction, SimTiming, SimulatedShootSpec};
use watchdog_test_support::fixtures::{self, KCM};
use watchdog_test_support::sandboxed::{SandboxFixture, timing};
use watchdog_test_support::wait::{self, BOUND};
use watchdog_test_support::watchdog::Service;

const SHOOTS: usize = 8;
const API: &str = "kube-apiserver";

/// Namespaces of the weeders that a replica tells of; all of them must be its own.
async fn owned(fixture: &SandboxFixture, replica: &Service) -> anyhow::Result<BTreeSet<String>> {
    let mut client = WeederServiceClient::new(fixture.setup.channel(replica)?);
    let request = pb::ListWeedersRequest {
        page_size: 1_000,
        scope: Scope::Local.into(),
        ..Default::default()
    };
    let weeders = client.list_weeders(request).await?.into_inner().weeders;
    let name = replica.process.name();
    let lives =
        |weeding: &pb::Weeder| matches!(weeding.state(), pb::WeederState::Queued | pb::WeederState::Active);
    let running = weeders.into_iter().filter(lives);
    running
        .filter_map(|weeding| Some((weeding.key?, weeding.owner)))
        .map(|(key, owner)| {
            anyhow::ensure!(owner == name, "{name} tells of a weeder of {owner}");
            Ok(key.namespace)
        })
        .collect()
}

/// Pods in CrashLoopBackOff, UID to name, by namespace.
fn looping(fixture: &SandboxFixture) -> BTreeMap<String, BTreeMap<String, String>> {
    let of_shoot = |shoot: &watchdog_sandbox::SimulatedShoot| {
        let looping = shoot
            .pods()
            .into_iter()
            .filter(|pod| pod.waiting == "CrashLoopBackOff");
        (
            shoot.namespace().to_owned(),
            looping.map(|pod| (pod.uid, pod.name)).collect(),
        )
    };
    fixture.sandbox.shoots().iter().map(of_shoot).collect()
}

/// Deletions of pods that were granted: which UID, and by whom.
fn deletions(fixture: &SandboxFixture) -> Vec<(String, String)> {
    let audit = fixture.sandbox.seed().audit();
    let granted =
        |entry: &&AuditEntry| entry.verb == "delete" && entry.path.contains("/pods/") && entry.code == 200;
    audit
        .iter()
        .filter(granted)
        .map(|entry| {
            let body: Value = serde_json::from_slice(&entry.body).unwrap();
            let uid = body
                .pointer("/preconditions/uid")
                .and_then(Value::as_str)
                .unwrap();
            (uid.to_owned(), entry.user.clone())
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_two_is_killed_in_the_middle_of_an_incident() {
    // Nobody comes out of the back-off alone: whatever runs again was deleted.
    let crash_backoff = Duration::from_secs(600);
    let timing = SimTiming {
        crash_backoff,
        crash_backoff_max: crash_backoff,
        ..timing()
    };
    let specs = (0..SHOOTS)
        .map(|i| SimulatedShootSpec::new(&format!("s{i}"), 1).timing(timing.clone()))
        .collect();
    let prober = fixtures::prober("probeInterval: 5s", "1s");
    let fixture = SandboxFixture::start_with("replicas-weeder", specs, &prober, &fixtures::weeder("5m"))
        .await
        .unwrap();
    let seed = fixture.sandbox.seed();
    let start = async |name: &str| fixture.setup.weeder(name, &seed.kubeconfig(name)).await;
    let (victim, successor) = tokio::try_join!(start("victim"), start("successor")).unwrap();
    let of_victim = wait::until("they share the namespaces", BOUND, || async {
        let (one, other) = (
            owned(&fixture, &victim).await?,
            owned(&fixture, &successor).await?,
        );
        anyhow::ensure!(!one.is_empty() && !other.is_empty(), "one has nothing");
        anyhow::ensure!(
            one.is_disjoint(&other),
            "both have {:?}",
            one.intersection(&other)
        );
        Ok((one.len() + other.len() == SHOOTS).then_some(one))
    })
    .await
    .unwrap();

    let shoots = fixture.sandbox.shoots();
    // At first sight, a pod behind the service that is as young as the crash may have replaced one that was ready.
    wait::until_true("the pods are older than nodes' clocks differ", BOUND, || async {
        let recent = jiff::Timestamp::now() - jiff::SignedDuration::from_secs(3);
        let pods = seed.store().all(&keys::PODS, None);
        let created =
            |pod: &std::sync::Arc<Object>| pod.text("/metadata/creationTimestamp").parse::<jiff::Timestamp>();
        Ok(pods
            .iter()
            .all(|pod| created(pod).is_ok_and(|time| time < recent)))
    })
    .await
    .unwrap();
    shoots.iter().for_each(|shoot| shoot.service_down(API));
    let sick = wait::until("what needs the API server crashes", BOUND, || async {
        let looping = looping(&fixture);
        let few = looping.iter().find(|(_, pods)| pods.len() < 3);
        anyhow::ensure!(few.is_none(), "{few:?}");
        Ok(Some(looping))
    })
    .await
    .unwrap();
    // The successor deletes at first sight: only what crashed before the service was ready, by the clocks of nodes.
    wait::until_true(
        "the crashes are older than nodes' clocks differ",
        BOUND,
        || async {
            let recent = jiff::Timestamp::now() - jiff::SignedDuration::from_secs(3);
            let ended = "/status/containerStatuses/0/lastState/terminated/finishedAt";
            let pods = seed.store().all(&keys::PODS, None);
            let times = pods
                .iter()
                .filter_map(|pod| pod.text(ended).parse::<jiff::Timestamp>().ok());
            Ok(times.into_iter().all(|time| time < recent))
        },
    )
    .await
    .unwrap();
    // In each of its namespaces the victim gets stuck with one pod.
    for namespace in &of_victim {
        let path = format!("/api/v1/namespaces/{namespace}/pods/{KCM}");
        seed.inject(
            Fault::always(FaultAction::Hang)
                .verb("delete")
                .path(&path)
                .user("victim"),
        );
    }
    shoots.iter().for_each(|shoot| shoot.service_up(API));
    let stuck = wait::until("only what the victim is stuck with is left", BOUND, || async {
        let left = looping(&fixture);
        for (namespace, pods) in &left {
            let expected = usize::from(of_victim.contains(namespace));
            anyhow::ensure!(pods.len() == expected, "{namespace}: {pods:?}");
        }
        Ok(Some(left))
    })
    .await
    .unwrap();
    victim.process.kill_9().await.unwrap();
    wait::until("everything runs", BOUND, || async {
        for shoot in &shoots {
            let sick = shoot.pods().into_iter().find(|pod| !pod.ready);
            anyhow::ensure!(sick.is_none(), "{}: {sick:?}", shoot.namespace());
        }
        Ok(Some(()))
    })
    .await
    .unwrap();

    let deletions = deletions(&fixture);
    let deleted: BTreeSet<_> = deletions.iter().map(|(uid, _)| uid).collect();
    let looped: BTreeSet<_> = sick.values().flat_map(BTreeMap::keys).collect();
    assert_eq!(deleted, looped, "what looped was deleted, and nothing else");
    assert_eq!(deletions.len(), looped.len(), "once each: {deletions:?}");
    let by = |name: &str| {
        deletions
            .iter()
            .filter(|(_, user)| user == name)
            .map(|(uid, _)| uid)
            .collect()
    };
    let (by_victim, by_heir): (BTreeSet<_>, BTreeSet<_>) = (by("victim"), by("successor"));
    let left: BTreeSet<_> = stuck.values().flat_map(BTreeMap::keys).collect();
    assert!(!by_victim.is_empty() && !left.is_empty() && left.is_subset(&by_heir));
    assert_eq!(
        owned(&fixture, &successor).await.unwrap().len(),
        SHOOTS,
        "the successor tells that all is its own"
    );
}
