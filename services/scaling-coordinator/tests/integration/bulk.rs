//! Many shoots at once, and none at all.

use std::collections::BTreeSet;

use watchdog_proto::scaling::v1 as pb;
use watchdog_proto::scaling::v1::{Direction, FlowState};
use watchdog_sandbox::{AuditEntry, Fault, FaultAction};
use watchdog_test_support::fake_probe::{FakeProbe, Outcome};

use crate::coordinator::Coordinator;
use crate::eventually_async;
use crate::seed::{Seed, USER};

const SHOOTS: usize = 60;
const RATE: u32 = 200;

fn names() -> impl Iterator<Item = String> {
    (0..SHOOTS).map(|i| format!("shoot--{i}"))
}

async fn until_all(coordinator: &Coordinator, direction: Direction) {
    eventually_async("all shoots are settled", async || {
        let request = pb::ListScalingRequest {
            page_size: 1000,
            ..Default::default()
        };
        let all = coordinator
            .client
            .clone()
            .list_scaling(request)
            .await
            .unwrap()
            .into_inner()
            .scalings;
        let settled = |s: &&pb::ShootScaling| s.direction() == direction && s.state() == FlowState::Settled;
        all.iter().filter(settled).count() == SHOOTS
    })
    .await;
}

/// Requests of the coordinator that concern shoots: all but its membership Leases, its permissions, Kubernetes Events,
/// watches, and the lists of one object by which watches notice that etcd was restored.
pub fn requests(seed: &Seed, since: u64) -> Vec<AuditEntry> {
    let of_others = ["/leases", "selfsubjectaccessreviews", "events.k8s.io"];
    let looks_for_restore = |entry: &AuditEntry| entry.query.split('&').any(|part| part == "limit=1");
    let mut entries = seed.api.audit_since(since);
    entries.retain(|entry| {
        entry.user == USER
            && entry.verb != "watch"
            && !(entry.verb == "list" && looks_for_restore(entry))
            && !of_others.iter().any(|part| entry.path.contains(part))
    });
    entries
}

#[tokio::test]
async fn many_shoots_at_once_keep_the_rate_and_take_turns_and_rest_costs_nothing() {
    let (seed, mut probe) = (Seed::new().await, FakeProbe::start().await.unwrap());
    for name in names() {
        seed.shoot(&name, 1, false).await;
    }
    let rate = format!("--request-rate={RATE}");
    let coordinator = Coordinator::start_with(&seed, &[&probe], &[&rate]).await;
    probe.say(names(), Outcome::Healthy);
    until_all(&coordinator, Direction::Up).await;

    let last = |seed: &Seed| seed.api.audit().last().map_or(0, |entry| entry.id);
    let rested = last(&seed);
    probe.say(names(), Outcome::Healthy);
    let renewals = |seed: &Seed| {
        let leases = seed.api.audit_since(rested).into_iter();
        leases
            .filter(|entry| entry.user == USER && entry.is_write() && entry.path.contains("/leases"))
            .count()
    };
    crate::eventually("a while has passed", || renewals(&seed) >= 3).await;
    assert_eq!(requests(&seed, rested).len(), 0, "{:?}", requests(&seed, rested));

    let begun = last(&seed);
    // At one instant: a shoot whose loss is known later rightly writes later.
    probe
        .restart_saying(names(), Outcome::LeasesExpired)
        .await
        .unwrap();
    until_all(&coordinator, Direction::Down).await;
    let requests = requests(&seed, begun);
    let took = requests
        .last()
        .unwrap()
        .time
        .duration_since(requests[0].time)
        .as_secs_f64();
    // A tenth of a second's worth goes at once.
    let least = (requests.len() as f64 - f64::from(RATE) / 10.0) / f64::from(RATE);
    assert!(
        took > least * 0.95,
        "{} requests took {took} s, at least {least} s are due",
        requests.len()
    );
    // The Cluster and a write; the Cluster, a read and a write. A conflict costs another write and a read. A Cluster
    // that was confirmed holds for 5 s: on a machine that takes longer, it is confirmed again, and so are the reads.
    let conflicts = requests.iter().filter(|request| request.code == 409).count();
    let times = 1 + (took / 5.0) as usize;
    assert!(
        requests.len() <= SHOOTS * 5 * times + 2 * conflicts,
        "{} requests in {took} s, {conflicts} conflicts",
        requests.len()
    );
    let writes: Vec<_> = requests.into_iter().filter(AuditEntry::is_write).collect();
    assert_eq!(
        writes.iter().filter(|write| write.code == 200).count(),
        SHOOTS * 2
    );
    // They advance side by side. Shoots that are still being looked at when the first write is answered come a little
    // later; if each went to its end in turn, the last one would begin with the last writes.
    let mut begun = BTreeSet::new();
    let shoot_of = |write: &AuditEntry| write.path.split('/').nth(5).unwrap().to_owned();
    let all_begun = writes.iter().position(|write| {
        begun.insert(shoot_of(write));
        begun.len() == SHOOTS
    });
    assert!(
        all_begun.is_some_and(|position| position < SHOOTS * 3 / 2),
        "the shoots take turns: {all_begun:?}"
    );
}

#[tokio::test]
async fn a_watch_that_fails_in_a_mass_loss_costs_no_shoot_its_turn() {
    let (seed, mut probe) = (Seed::new().await, FakeProbe::start().await.unwrap());
    for name in names() {
        seed.shoot(&name, 1, false).await;
    }
    let coordinator = Coordinator::start_with(&seed, &[&probe], &["--request-rate=40"]).await;
    probe.say(names(), Outcome::Healthy);
    until_all(&coordinator, Direction::Up).await;
    probe
        .restart_saying(names(), Outcome::LeasesExpired)
        .await
        .unwrap();
    let scaled = |write: &AuditEntry| write.verb == "patch" && write.path.contains("/deployments/");
    crate::eventually("the first shoots are scaled down", || {
        seed.api.audit().iter().any(scaled)
    })
    .await;
    let fault = Fault::always(FaultAction::InternalError).verb("watch");
    let fault = seed.api.inject(fault.times(4));
    seed.api.drop_watches();
    until_all(&coordinator, Direction::Down).await;
    assert!(!seed.api.clear_fault(fault), "watches have failed");
    let metrics = coordinator.metrics().await;
    let cancelled = metrics
        .lines()
        .filter(|line| line.starts_with("watchdog_scaling_operations_total{"))
        .filter(|line| line.contains("result=\"cancelled\""))
        .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
        .sum::<f64>();
    // At most those that were under way.
    assert!(
        cancelled < SHOOTS as f64 / 4.0,
        "{cancelled} writes were cancelled"
    );
}
