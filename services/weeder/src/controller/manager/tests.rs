use proptest::prelude::*;

use super::*;
use crate::controller::task::Deletion;
use crate::domain::dependants::PodQuery;
use crate::domain::evidence::EndpointPod;
use crate::domain::failure::RequestFailure;
use crate::domain::fixtures::{at, config, crashing, dependants, owner, running};
use crate::domain::pods::Pod;
use crate::domain::weeder::{DeletionResult, KEPT_ENTRIES};

fn key(service: &str) -> NamespacedName {
    NamespacedName::new("shoot", service)
}

fn query() -> Arc<PodQuery> {
    Arc::new(PodQuery {
        namespace: None,
        labels: Some("role".into()),
    })
}

fn seen(manager: &mut WeederManager, pod: Pod, now: f64) {
    manager.pod_applied(pod, &query(), at(now));
}

fn start(manager: &mut WeederManager, service: &str, now: f64) {
    manager.start(key(service), dependants(service), OutageProof::Observed, at(now));
}

/// A weeder of etcd that started at 0.
fn started() -> WeederManager {
    let mut manager = WeederManager::new(&config());
    start(&mut manager, "etcd", 0.0);
    manager
}

fn delete(manager: &mut WeederManager, now: f64) -> Deletion {
    match manager.next(at(now)) {
        Some(Task::Delete(deletion)) => *deletion,
        other => panic!("no deletion: {other:?}"),
    }
}

fn nothing(manager: &mut WeederManager, now: f64) {
    let next = manager.next(at(now));
    assert!(next.is_none(), "{next:?}");
}

/// Answers a deletion as a server would whose clock is ahead by a day.
fn deleted(manager: &mut WeederManager, deletion: &Deletion, now: f64) {
    manager.deleted(deletion, &Ok(Some(at(now + 86_400.0))), at(now));
    manager.pod_gone(&deletion.pod.key, &query());
}

/// A successor in a crash loop, by the clock of that server.
fn successor(uid: &str, created: f64) -> Pod {
    let mut pod = crashing("api", "apiserver", uid, "1");
    pod.created = Some(at(created + 86_400.0));
    pod
}

fn weeder(manager: &WeederManager, service: &str) -> Weeder {
    manager.weeders[&key(service)].weeder.clone()
}

fn results(weeder: &Weeder) -> Vec<(u64, DeletionResult)> {
    let deletions = weeder.deletions.iter();
    deletions
        .map(|deletion| (deletion.sequence, deletion.result))
        .collect()
}

#[test]
fn a_weeder_lives_exactly_its_time_and_is_forgotten_a_minute_later() {
    let mut manager = started();
    assert_eq!(weeder(&manager, "etcd").phase, Phase::Active);
    nothing(&mut manager, 299.999_999);
    assert_eq!(
        weeder(&manager, "etcd").remaining(at(299.0)),
        Duration::from_secs(1)
    );
    assert_eq!(manager.next_due(true), Some(at(300.0)));
    nothing(&mut manager, 300.0);
    assert_eq!(weeder(&manager, "etcd").phase, Phase::Ended);
    assert_eq!(weeder(&manager, "etcd").remaining(at(300.0)), Duration::ZERO);
    manager.take_changed();
    nothing(&mut manager, 359.9);
    assert!(manager.take_changed().is_empty());
    nothing(&mut manager, 360.0);
    assert!(matches!(&manager.take_changed()[..], [(_, None)]));
    assert_eq!(manager.next_due(true), None);
}

#[test]
fn what_crashed_before_is_deleted_without_a_list_and_what_crashes_later_too() {
    let mut manager = WeederManager::new(&config());
    seen(&mut manager, crashing("api", "apiserver", "1", "10"), -5.0);
    seen(&mut manager, crashing("kcm", "kcm", "2", "10"), -5.0);
    nothing(&mut manager, -4.0);
    start(&mut manager, "etcd", 0.0);
    let first = delete(&mut manager, 0.0);
    assert_eq!((first.pod.uid.as_str(), first.crashed_later), ("1", false));
    assert_eq!(first.service_ready_since, at(0.0));
    nothing(&mut manager, 0.1);
    deleted(&mut manager, &first, 0.2);
    // Another controller's pod.
    seen(&mut manager, crashing("other", "apiserver", "3", "12"), 20.0);
    let second = delete(&mut manager, 20.5);
    assert_eq!((second.pod.uid.as_str(), second.waiting_since), ("3", at(20.0)));
    assert!(second.crashed_later);
    deleted(&mut manager, &second, 20.6);
    let weeder = weeder(&manager, "etcd");
    assert_eq!(weeder.deleted, 2);
    assert_eq!(
        weeder.deletions[0].message,
        "CrashLoopBackOff of container main (exit code 1, Error, 5 restarts) while service etcd is ready again."
    );
}

#[test]
fn a_pod_that_crashes_for_its_own_reasons_is_deleted_three_times_and_then_left_alone() {
    let mut manager = started();
    let mut deletions = Vec::new();
    let (mut uid, mut created) = (0, -86_500.0);
    // It crashes within a second of each start, for five minutes.
    for second in 1..300 {
        let now = f64::from(second);
        seen(&mut manager, successor(&uid.to_string(), created), now);
        if let Some(Task::Delete(deletion)) = manager.next(at(now)) {
            deleted(&mut manager, &deletion, now);
            deletions.push(second);
            (uid, created) = (uid + 1, now);
        }
    }
    assert_eq!(deletions, [1, 11, 31], "at once, after 10 s, after 20 s");
    let left = weeder(&manager, "etcd").left_alone;
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].crash.exit_code, Some(1));
    let findings = manager.take_findings();
    let left_alone = |finding: &&Finding| matches!(finding, Finding::LeftAlone { .. });
    assert_eq!(findings.iter().filter(left_alone).count(), 1, "reported once");
    let useless = |finding: &&Finding| matches!(finding, Finding::Useless);
    assert_eq!(findings.iter().filter(useless).count(), 3);
    assert!(
        weeder(&manager, "etcd")
            .deletions
            .iter()
            .all(|deletion| deletion.useless)
    );
    // Its service comes back once more: not sooner than 40 s after the last.
    start(&mut manager, "etcd", 299.5);
    delete(&mut manager, 299.5);
}

#[test]
fn what_a_success_is_worth() {
    let mut manager = started();
    seen(&mut manager, successor("1", -86_500.0), 1.0);
    let first = delete(&mut manager, 1.0);
    deleted(&mut manager, &first, 1.0);
    seen(&mut manager, running(successor("2", 1.0)), 2.0);
    nothing(&mut manager, 61.0);
    assert!(matches!(manager.take_findings()[..], [Finding::Useful(1)]));
    assert!(!weeder(&manager, "etcd").deletions[0].useless);
    seen(&mut manager, successor("2", 1.0), 70.0);
    assert_eq!(delete(&mut manager, 70.0).pod.uid, "2", "at once");
}

#[test]
fn replicas_that_crashed_together_are_deleted_together() {
    let mut manager = started();
    for uid in ["1", "2", "3"] {
        let mut pod = crashing(uid, "apiserver", uid, "1");
        pod.owner = Some(owner("ReplicaSet", "api"));
        seen(&mut manager, pod, 1.0);
    }
    let all: Vec<Deletion> = (0..3).map(|_| delete(&mut manager, 1.0)).collect();
    for deletion in &all {
        manager.deleted(deletion, &Ok(Some(at(1.0))), at(1.1));
    }
    let mut late = crashing("4", "apiserver", "4", "1");
    late.owner = Some(owner("ReplicaSet", "api"));
    seen(&mut manager, late, 5.0);
    assert_eq!(
        delete(&mut manager, 5.0).pod.uid,
        "4",
        "it is as old as the others"
    );
}

#[test]
fn a_successor_waits_for_the_answer_about_its_predecessor() {
    let mut manager = started();
    seen(&mut manager, successor("1", -86_500.0), 1.0);
    let first = delete(&mut manager, 1.0);
    // The deletion took place, and its answer is slow.
    manager.pod_gone(&first.pod.key, &query());
    seen(&mut manager, successor("2", 1.0), 3.0);
    nothing(&mut manager, 3.0);
    manager.deleted(
        &first,
        &Err(RequestFailure::Failed("no answer within 10s".to_owned())),
        at(11.0),
    );
    nothing(&mut manager, 11.0);
    nothing(&mut manager, 20.9);
    assert_eq!(delete(&mut manager, 21.0).pod.uid, "2", "it counts as a deletion");
}

#[test]
fn a_successor_that_crashes_before_the_answer_makes_the_deletion_useless() {
    let mut manager = started();
    seen(&mut manager, successor("1", -86_500.0), 1.0);
    let first = delete(&mut manager, 1.0);
    manager.pod_gone(&first.pod.key, &query());
    seen(&mut manager, successor("2", 1.0), 1.1);
    assert!(
        manager.take_findings().is_empty(),
        "there is nothing to judge yet"
    );
    manager.deleted(&first, &Ok(Some(at(1.0))), at(1.2));
    assert!(matches!(manager.take_findings()[..], [Finding::Useless]));
    assert!(weeder(&manager, "etcd").deletions[0].useless);
}

#[test]
fn only_dependants_in_the_namespace_of_a_live_weeder() {
    let mut manager = started();
    let mut elsewhere = crashing("api", "apiserver", "1", "10");
    elsewhere.key.namespace = "other".into();
    let mut deleting = crashing("c", "apiserver", "3", "10");
    deleting.deleting = true;
    for pod in [elsewhere, crashing("b", "kcm", "2", "10"), deleting] {
        seen(&mut manager, pod, 0.1);
    }
    nothing(&mut manager, 0.1);
    seen(&mut manager, crashing("d", "apiserver", "4", "10"), 300.0);
    nothing(&mut manager, 300.0);
    seen(&mut manager, crashing("e", "apiserver", "5", "10"), 300.1);
    nothing(&mut manager, 300.1);
    assert_eq!(manager.pending_deletions(), 0);
}

#[test]
fn what_is_not_replaced_is_left_alone_until_the_configuration_says_otherwise() {
    let mut manager = started();
    let mut bare = crashing("bare", "apiserver", "1", "1");
    bare.owner = None;
    let mut job = crashing("job", "apiserver", "2", "1");
    job.owner = Some(owner("Job", "migration"));
    let mut set = crashing("set-0", "apiserver", "3", "1");
    set.owner = Some(owner("StatefulSet", "set"));
    let mut file = config();
    file.exclude_kinds.insert("StatefulSet".to_owned());
    manager.reconfigure(&file, at(0.0));
    for pod in [bare, job, set] {
        seen(&mut manager, pod, 1.0);
    }
    nothing(&mut manager, 1.0);
    file.exclude_kinds.clear();
    (file.delete_pods_of_jobs, file.delete_pods_without_controller) = (true, true);
    manager.reconfigure(&file, at(2.0));
    let mut names: Vec<_> = (0..3)
        .map(|_| delete(&mut manager, 2.0).pod.key.name.to_string())
        .collect();
    names.sort();
    assert_eq!(names, ["bare", "job", "set-0"]);
}

#[test]
fn a_pod_that_recovers_or_goes_before_its_turn_is_left_alone() {
    let mut manager = started();
    let pod = crashing("api", "apiserver", "1", "10");
    seen(&mut manager, pod.clone(), 0.1);
    seen(&mut manager, running(pod.clone()), 0.2);
    nothing(&mut manager, 0.2);
    seen(&mut manager, pod.clone(), 0.3);
    manager.pods_synced(&PodQuery::default(), &BTreeSet::new());
    assert_eq!(manager.crashing_pods(), 1, "another watch sees it");
    manager.pods_synced(&query(), &BTreeSet::from([pod.key.clone()]));
    assert_eq!(manager.crashing_pods(), 1);
    manager.pods_synced(&query(), &BTreeSet::new());
    assert_eq!((manager.crashing_pods(), manager.pending_deletions()), (0, 0));
    nothing(&mut manager, 0.4);
}

#[test]
fn a_pod_is_known_while_one_watch_sees_it() {
    let mut manager = started();
    let other = Arc::new(PodQuery::default());
    let pod = crashing("api", "apiserver", "1", "10");
    for gone in [
        |manager: &mut WeederManager, query: &PodQuery, pod: &Pod| manager.pod_gone(&pod.key, query),
        |manager: &mut WeederManager, query: &PodQuery, _: &Pod| {
            manager.pods_synced(query, &BTreeSet::new());
        },
    ] {
        for query in [&query(), &other] {
            manager.pod_applied(pod.clone(), query, at(0.1));
        }
        // A selector goes, or the pod leaves it.
        gone(&mut manager, &other, &pod);
        assert_eq!(manager.crashing_pods(), 1);
        gone(&mut manager, &other, &pod);
        assert_eq!(manager.crashing_pods(), 1);
        gone(&mut manager, &query(), &pod);
        assert_eq!((manager.crashing_pods(), manager.pending_deletions()), (0, 0));
    }
}

#[test]
fn a_pod_that_changed_is_tried_again_in_its_newer_state() {
    let mut manager = started();
    seen(&mut manager, crashing("api", "apiserver", "1", "10"), 0.1);
    let first = delete(&mut manager, 0.1);
    manager.deleted(&first, &Err(RequestFailure::Changed), at(0.2));
    nothing(&mut manager, 0.2);
    seen(&mut manager, crashing("api", "apiserver", "1", "11"), 0.5);
    let second = delete(&mut manager, 0.5);
    assert_eq!(second.pod.resource_version, "11", "its watch brought it");
    manager.deleted(&second, &Err(RequestFailure::Gone), at(0.8));
    nothing(&mut manager, 299.0);
    let weeder = weeder(&manager, "etcd");
    assert_eq!(weeder.deleted, 0);
    assert_eq!(results(&weeder), [(1, DeletionResult::Obsolete)], "once");
}

#[test]
fn a_pod_that_changes_all_the_time_is_asked_for_less_and_less_often() {
    let mut manager = started();
    let mut asked = Vec::new();
    // It changes twice a second, and each deletion comes too late.
    for half in 1..=120 {
        let now = f64::from(half) / 2.0;
        seen(
            &mut manager,
            crashing("api", "apiserver", "1", &half.to_string()),
            now,
        );
        if let Some(Task::Delete(deletion)) = manager.next(at(now)) {
            let newer = crashing("api", "apiserver", "1", &format!("{half}-newer"));
            seen(&mut manager, newer, now);
            manager.deleted(&deletion, &Err(RequestFailure::Changed), at(now));
            asked.push(now);
        }
    }
    assert_eq!(asked, [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0]);
    // Nor does another weeder make it sooner.
    start(&mut manager, "kube-apiserver", 60.5);
    nothing(&mut manager, 60.5);
}

#[test]
fn what_was_obsolete_does_not_push_out_what_was_done() {
    let mut manager = started();
    let mut attempt = |i: u32, answer: Result<Option<UnixTime>, RequestFailure>| {
        let name = i.to_string();
        seen(&mut manager, crashing(&name, "apiserver", &name, "1"), 1.0);
        let deletion = delete(&mut manager, 1.0);
        manager.deleted(&deletion, &answer, at(1.0));
    };
    (0..20).for_each(|i| attempt(i, Err(RequestFailure::Gone)));
    (20..40).for_each(|i| attempt(i, Ok(None)));
    (40..140).for_each(|i| attempt(i, Err(RequestFailure::Gone)));
    let weeder = weeder(&manager, "etcd");
    let done = |(_, result): &&(u64, DeletionResult)| *result == DeletionResult::Deleted;
    let results = results(&weeder);
    assert_eq!(
        (results.len(), results.iter().filter(done).count()),
        (KEPT_ENTRIES, 20)
    );
}

#[test]
fn a_refused_deletion_is_tried_again_at_its_pace_and_remembered_once() {
    let mut manager = started();
    seen(&mut manager, crashing("a", "apiserver", "1", "10"), 0.1);
    seen(&mut manager, crashing("b", "apiserver", "2", "10"), 0.1);
    let forbidden = || Err(RequestFailure::Forbidden("grant it".to_owned()));
    let first = delete(&mut manager, 0.1);
    manager.deleted(&first, &forbidden(), at(0.2));
    let other = delete(&mut manager, 0.2);
    assert_eq!(other.pod.uid, "2", "the others go on");
    deleted(&mut manager, &other, 0.3);
    seen(&mut manager, crashing("a", "apiserver", "1", "11"), 0.4);
    nothing(&mut manager, 10.1);
    let again = delete(&mut manager, 10.2);
    manager.deleted(&again, &forbidden(), at(10.3));
    let refused_and_deleted = [(1, DeletionResult::Refused), (2, DeletionResult::Deleted)];
    assert_eq!(results(&weeder(&manager, "etcd")), refused_and_deleted);
    let granted = delete(&mut manager, 20.3);
    deleted(&mut manager, &granted, 20.4);
    assert_eq!(
        results(&weeder(&manager, "etcd"))[2],
        (3, DeletionResult::Deleted)
    );
}

#[test]
fn throttling_pauses_everything_but_the_clock() {
    let mut manager = started();
    seen(&mut manager, crashing("a", "apiserver", "1", "10"), 0.1);
    seen(&mut manager, crashing("b", "apiserver", "2", "10"), 0.1);
    let throttled = delete(&mut manager, 0.1);
    let wait = RequestFailure::Throttled(Some(Duration::from_secs(3)));
    start(&mut manager, "kube-apiserver", 1.0);
    manager.deleted(&throttled, &Err(wait), at(299.0));
    manager.pause(&key("kube-apiserver"));
    nothing(&mut manager, 301.0);
    assert_eq!(weeder(&manager, "kube-apiserver").phase, Phase::Ended);
    start(&mut manager, "etcd", 301.0);
    assert_eq!(manager.next_due(true), Some(at(302.0)));
    assert_eq!(delete(&mut manager, 302.0).pod.uid, "2");
    assert_eq!(delete(&mut manager, 302.0).pod.uid, "1");
}

#[test]
fn a_deletion_that_may_not_be_sent_waits_and_counts_for_nothing() {
    let mut manager = started();
    seen(&mut manager, crashing("a", "apiserver", "1", "10"), 299.0);
    let deletion = delete(&mut manager, 299.0);
    manager.put_back(&deletion, at(300.5));
    nothing(&mut manager, 301.4);
    assert_eq!(
        weeder(&manager, "etcd").phase,
        Phase::Active,
        "its pod has not had its turn"
    );
    assert_eq!(manager.next_due(true), Some(at(301.5)));
    let again = delete(&mut manager, 301.5);
    assert_eq!(
        (again.pod.uid.as_str(), results(&weeder(&manager, "etcd"))),
        ("1", vec![])
    );
    deleted(&mut manager, &again, 301.6);
    assert_eq!(results(&weeder(&manager, "etcd")), [(1, DeletionResult::Deleted)]);
}

/// A seed with thousands of services recovers, and the rate of requests is low.
#[test]
fn a_pod_that_waits_for_a_request_outlives_the_time_of_its_weeder() {
    let mut manager = started();
    seen(&mut manager, crashing("a", "apiserver", "1", "10"), 0.1);
    seen(&mut manager, crashing("unrelated", "kcm", "2", "10"), 0.1);
    seen(&mut manager, crashing("b", "apiserver", "3", "10"), 300.0);
    manager.expire(at(300.0));
    assert_eq!(weeder(&manager, "etcd").phase, Phase::Active);
    assert_eq!(delete(&mut manager, 400.0).pod.uid, "1");
    nothing(&mut manager, 400.0);
    nothing(&mut manager, 401.0);
    assert_eq!(weeder(&manager, "etcd").phase, Phase::Ended);
    assert_eq!(manager.pending_deletions(), 1, "the one that is under way");
}

// === first observed state ===

fn first_sight(manager: &mut WeederManager, now: f64) {
    let pods = BTreeSet::from([Arc::from("etcd-0")]);
    manager.start(
        key("etcd"),
        dependants("etcd"),
        OutageProof::Unread(pods),
        at(now),
    );
}

fn read(manager: &mut WeederManager, now: f64) -> EndpointRead {
    match manager.next(at(now)) {
        Some(Task::ReadEndpoints(read)) => read,
        other => panic!("no read: {other:?}"),
    }
}

fn ready_since(seconds: f64) -> OutageEvidence {
    OutageEvidence(vec![EndpointPod {
        created: Some(at(-1000.0)),
        ready: Some((true, at(seconds))),
        replaces_in_place: true,
        stops: Vec::new(),
    }])
}

fn crashed_at(uid: &str, seconds: f64) -> Pod {
    let mut pod = crashing(uid, "apiserver", uid, "1");
    pod.last_ended = Some(at(seconds));
    pod
}

#[test]
fn at_first_sight_only_pods_that_crashed_during_the_outage_are_deleted() {
    let mut manager = WeederManager::new(&config());
    first_sight(&mut manager, 0.0);
    nothing(&mut manager, 0.0);
    let mut unknown = crashed_at("unknown", 0.0);
    unknown.last_ended = None;
    for pod in [crashed_at("before", -50.0), crashed_at("after", -20.0), unknown] {
        seen(&mut manager, pod, 1.0);
    }
    let read = read(&mut manager, 1.0);
    assert_eq!(read.pods, BTreeSet::from([Arc::from("etcd-0")]));
    nothing(&mut manager, 1.0);
    manager.endpoints_read(&read, Ok(ready_since(-30.0)), at(1.1));
    let deletion = delete(&mut manager, 1.1);
    assert_eq!(
        (deletion.pod.uid.as_str(), deletion.service_ready_since),
        ("before", at(-30.0))
    );
    deleted(&mut manager, &deletion, 1.2);
    nothing(&mut manager, 1.2);
    // It crashes again, after the service became ready, on a node whose clock is a minute behind: it was deleted once.
    let mut again = crashed_at("before", -55.0);
    (again.uid, again.created) = ("before-2".to_owned(), Some(at(86_403.0)));
    seen(&mut manager, again, 10.0);
    nothing(&mut manager, 299.0);
    assert_eq!(weeder(&manager, "etcd").deleted, 1);
}

#[test]
fn at_first_sight_nothing_is_deleted_without_evidence() {
    let mut manager = WeederManager::new(&config());
    manager.start(
        key("etcd"),
        dependants("etcd"),
        OutageProof::Read(OutageEvidence::default()),
        at(0.0),
    );
    seen(&mut manager, crashed_at("a", -50.0), 1.0);
    nothing(&mut manager, 1.0);
    let message =
        "Service etcd was ready already, and its endpoints do not say since when: nothing is deleted.";
    assert_eq!(weeder(&manager, "etcd").message, message);
    first_sight(&mut manager, 2.0);
    let gone = read(&mut manager, 2.0);
    manager.endpoints_read(&gone, Ok(OutageEvidence::default()), at(2.1));
    nothing(&mut manager, 2.1);
    assert_eq!(weeder(&manager, "etcd").message, message);
    // A recovery that is seen needs none.
    start(&mut manager, "etcd", 3.0);
    assert_eq!(delete(&mut manager, 3.0).pod.uid, "a");
}

#[test]
fn evidence_that_cannot_be_read_is_asked_for_again() {
    let mut manager = WeederManager::new(&config());
    first_sight(&mut manager, 0.0);
    seen(&mut manager, crashed_at("a", -50.0), 1.0);
    let first = read(&mut manager, 1.0);
    manager.endpoints_read(
        &first,
        Err(RequestFailure::Failed("no answer within 10s".to_owned())),
        at(11.0),
    );
    assert_eq!(
        weeder(&manager, "etcd").message,
        "The pods of the service cannot be read; trying again: no answer within 10s."
    );
    // Neither another pod nor its news make it sooner.
    seen(&mut manager, crashed_at("b", -50.0), 11.5);
    nothing(&mut manager, 11.9);
    let second = read(&mut manager, 12.0);
    // The answer to a weeder that was replaced counts for nothing.
    first_sight(&mut manager, 12.5);
    manager.endpoints_read(&second, Ok(ready_since(-30.0)), at(12.6));
    let third = read(&mut manager, 12.6);
    manager.endpoints_read(&third, Ok(ready_since(-30.0)), at(12.7));
    let mut deleted = [delete(&mut manager, 12.7), delete(&mut manager, 12.7)].map(|d| d.pod.uid.clone());
    deleted.sort();
    assert_eq!(deleted, ["a", "b"]);
}

#[test]
fn evidence_is_read_while_another_weeder_waits_or_cannot_read() {
    let mut manager = WeederManager::new(&config());
    first_sight(&mut manager, 0.0);
    // This one waits until its service stays ready.
    for second in 0..4 {
        start(&mut manager, "kube-apiserver", f64::from(second));
    }
    seen(&mut manager, crashed_at("a", -50.0), 4.0);
    let of_etcd = read(&mut manager, 4.0);
    let refused = RequestFailure::Forbidden("grant it".to_owned());
    manager.endpoints_read(&of_etcd, Err(refused), at(4.1));
    let pods = BTreeSet::from([Arc::from("kube-apiserver-0")]);
    let proof = OutageProof::Unread(pods);
    manager.start(
        key("kube-apiserver"),
        dependants("kube-apiserver"),
        proof,
        at(100.0),
    );
    let due: Vec<_> = [read(&mut manager, 100.0), read(&mut manager, 100.0)]
        .map(|read| read.key)
        .into();
    assert_eq!(due, [key("etcd"), key("kube-apiserver")]);
}

#[test]
fn a_recovery_that_was_seen_comes_before_first_sight() {
    let mut manager = WeederManager::new(&config());
    first_sight(&mut manager, 1.0);
    start(&mut manager, "kube-apiserver", 0.0);
    seen(&mut manager, crashing("a", "apiserver", "1", "10"), 2.0);
    assert_eq!(delete(&mut manager, 2.0).key, key("kube-apiserver"));
    start(&mut manager, "etcd", 3.0);
    seen(&mut manager, crashing("b", "apiserver", "2", "10"), 4.0);
    assert_eq!(delete(&mut manager, 4.0).key, key("etcd"), "the youngest");
}

// === ready for long enough ===

#[test]
fn a_service_must_have_been_ready_for_as_long_as_configured() {
    let mut file = config();
    file.ready_for = Duration::from_secs(5);
    let mut manager = WeederManager::new(&file);
    seen(&mut manager, crashing("a", "apiserver", "1", "10"), -1.0);
    start(&mut manager, "etcd", 0.0);
    assert_eq!(weeder(&manager, "etcd").phase, Phase::Queued);
    assert_eq!(
        weeder(&manager, "etcd").message,
        "Waiting until service etcd has been ready for 5s."
    );
    nothing(&mut manager, 3.0);
    manager.pause(&key("etcd"));
    nothing(&mut manager, 5.0);
    start(&mut manager, "etcd", 6.0);
    nothing(&mut manager, 10.9);
    let deletion = delete(&mut manager, 11.0);
    assert!(!deletion.crashed_later && deletion.waiting_since == at(11.0));
    assert_eq!(
        weeder(&manager, "etcd").ends_at,
        at(311.0),
        "its time begins when it may delete"
    );
}

#[test]
fn a_service_that_comes_and_goes_waits_until_it_stays() {
    let mut manager = WeederManager::new(&config());
    let mut at_once = 0;
    for flap in 0..20 {
        let now = f64::from(flap) * 5.0;
        start(&mut manager, "etcd", now);
        // Pods of another controller crash each time.
        let name = format!("pod-{flap}");
        seen(&mut manager, crashing(&name, "apiserver", &name, "1"), now);
        if let Some(Task::Delete(deletion)) = manager.next(at(now)) {
            deleted(&mut manager, &deletion, now);
            at_once += 1;
        }
        manager.pause(&key("etcd"));
        manager.pod_gone(&NamespacedName::new("shoot", name.as_str()), &query());
    }
    assert_eq!(at_once, 3);
    let flapping = |finding: &&Finding| matches!(finding, Finding::Flapping(_));
    assert_eq!(
        manager.take_findings().iter().filter(flapping).count(),
        1,
        "reported once"
    );
    start(&mut manager, "etcd", 100.0);
    seen(&mut manager, crashing("last", "apiserver", "last", "1"), 101.0);
    nothing(&mut manager, 129.9);
    assert_eq!(delete(&mut manager, 130.0).pod.uid, "last");
}

// === life ===

#[test]
fn a_new_transition_replaces_the_weeder() {
    let mut manager = started();
    seen(&mut manager, crashing("a", "apiserver", "1", "10"), 0.1);
    let under_way = delete(&mut manager, 0.1);
    start(&mut manager, "etcd", 200.0);
    manager.deleted(&under_way, &Ok(None), at(200.1));
    let replaced = weeder(&manager, "etcd");
    assert_eq!((replaced.started_at, replaced.deleted), (at(200.0), 0));
    nothing(&mut manager, 300.0);
    assert_eq!(
        weeder(&manager, "etcd").phase,
        Phase::Active,
        "the old end is not its end"
    );
    nothing(&mut manager, 500.0);
    assert_eq!(weeder(&manager, "etcd").phase, Phase::Ended);
}

#[test]
fn a_cancelled_or_paused_weeder_asks_for_nothing() {
    let mut manager = started();
    seen(&mut manager, crashing("a", "apiserver", "1", "10"), 0.1);
    manager.pause(&key("etcd"));
    nothing(&mut manager, 0.1);
    let message = "Service etcd is not ready: nothing is deleted until it is.";
    assert_eq!(weeder(&manager, "etcd").message, message);
    manager.cancel_namespace("shoot", StopReason::NamespaceEnded, at(5.0));
    nothing(&mut manager, 5.0);
    let weeder = weeder(&manager, "etcd");
    assert_eq!((weeder.phase, weeder.ends_at), (Phase::Cancelled, at(5.0)));
    assert_eq!(manager.next_due(true), Some(at(65.0)));
    manager.cancel_namespace("shoot", StopReason::NotOwned, at(6.0));
    assert_eq!(manager.next_due(true), Some(at(65.0)), "once is enough");
}

#[test]
fn other_dependants_are_deleted_once_they_are_configured() {
    let mut manager = started();
    seen(&mut manager, crashing("kcm", "kcm", "1", "10"), 0.5);
    nothing(&mut manager, 1.0);
    manager.reselect(&key("etcd"), &dependants("etcd"), at(1.0));
    nothing(&mut manager, 1.0);
    manager.reselect(&key("etcd"), &dependants("kube-apiserver"), at(2.0));
    assert_eq!(delete(&mut manager, 2.0).pod.uid, "1");
}

/// Lets a container crash until it is given up; gives the time.
fn give_up(manager: &mut WeederManager, pod: &Pod, begin: f64) -> f64 {
    let mut now = begin;
    for (attempt, pause) in [0.0, 10.0, 20.0, 1.0].into_iter().enumerate() {
        now += pause;
        let mut crashing = pod.clone();
        crashing.uid = format!("{}-{attempt}-{begin}", pod.uid);
        crashing.created = Some(at(now + 86_399.5));
        seen(manager, crashing, now);
        if let Some(Task::Delete(deletion)) = manager.next(at(now)) {
            deleted(manager, &deletion, now);
        }
    }
    now
}

fn left_alone(manager: &mut WeederManager) -> Vec<String> {
    let findings = manager.take_findings().into_iter();
    let pods = findings.filter_map(|finding| match finding {
        Finding::LeftAlone { pod, crash, .. } => Some(format!("{}/{}", pod.key.name, crash.container)),
        _ => None,
    });
    pods.collect()
}

#[test]
fn each_container_is_given_up_once_however_many_there_are() {
    let mut file = config();
    (file.watch_duration, file.delete_pods_without_controller) = (Duration::from_secs(7_200), true);
    let mut manager = WeederManager::new(&file);
    start(&mut manager, "etcd", 0.0);
    let mut now = 1.0;
    let controllers = 3 * KEPT_ENTRIES;
    for i in 0..controllers {
        let mut pod = crashing(&i.to_string(), "apiserver", &i.to_string(), "1");
        if i % 3 == 0 {
            // The same owner, none, is another pod.
            pod.owner = None;
        }
        if i % 3 == 1 {
            let mut sidecar = pod.crashes[0].clone();
            sidecar.container = "sidecar".to_owned();
            pod.crashes.push(sidecar);
        }
        now = give_up(&mut manager, &pod, now);
    }
    let given_up = left_alone(&mut manager);
    let distinct: BTreeSet<_> = given_up.iter().collect();
    assert_eq!(given_up.len(), controllers + controllers / 3, "{given_up:?}");
    assert_eq!(distinct.len(), given_up.len());
    // All of them change once more.
    for i in 0..controllers {
        let name = i.to_string();
        let mut known = (*manager.pods[&NamespacedName::new("shoot", name.as_str())].pod).clone();
        known.resource_version = "2".to_owned();
        seen(&mut manager, known, now);
    }
    nothing(&mut manager, now);
    assert_eq!(left_alone(&mut manager), [""; 0]);
    assert_eq!(weeder(&manager, "etcd").left_alone.len(), KEPT_ENTRIES);
}

#[test]
fn only_the_weeder_that_deleted_a_pod_did_so_in_vain() {
    let mut manager = WeederManager::new(&config());
    start(&mut manager, "etcd", 0.0);
    seen(&mut manager, successor("1", -86_500.0), 1.0);
    let first = delete(&mut manager, 1.0);
    deleted(&mut manager, &first, 1.0);
    nothing(&mut manager, 70.0);
    start(&mut manager, "kube-apiserver", 71.0);
    seen(&mut manager, successor("2", 1.0), 72.0);
    let second = delete(&mut manager, 72.0);
    assert_eq!(second.key, key("kube-apiserver"));
    deleted(&mut manager, &second, 72.0);
    seen(&mut manager, successor("3", 72.0), 73.0);
    let useless = |service| weeder(&manager, service).deletions[0].useless;
    assert!(useless("kube-apiserver") && !useless("etcd"));
}

#[test]
fn first_sights_are_no_recoveries() {
    let mut manager = WeederManager::new(&config());
    for second in 0..10 {
        first_sight(&mut manager, f64::from(second));
    }
    assert_eq!(weeder(&manager, "etcd").deletes_from, at(9.0));
    // One that was not ready before came back, whenever that was.
    for second in 10..14 {
        manager.pause(&key("etcd"));
        first_sight(&mut manager, f64::from(second));
    }
    assert_eq!(weeder(&manager, "etcd").deletes_from, at(43.0));
}

#[test]
fn few_deletions_are_remembered() {
    let mut manager = started();
    for i in 0..100 {
        let name = i.to_string();
        seen(&mut manager, crashing(&name, "apiserver", &name, "10"), 1.0);
        let deletion = delete(&mut manager, 1.0);
        deleted(&mut manager, &deletion, 1.0);
    }
    let weeder = weeder(&manager, "etcd");
    assert_eq!((weeder.deleted, weeder.deletions.len()), (100, KEPT_ENTRIES));
    assert_eq!(weeder.deletions.back().unwrap().sequence, 100);
}

#[derive(Debug, Clone)]
enum Step {
    Start(&'static str, u8),
    Pause(&'static str),
    Cancel,
    Seen {
        slot: usize,
        /// Another pod has taken its place.
        replaced: bool,
        version: u8,
        crashes: bool,
        role: &'static str,
    },
    Gone(usize),
    Synced,
    Answer(usize, u8),
    Wait(u16),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let service = prop::sample::select(vec!["etcd", "kube-apiserver"]);
    // Most are dependants of both services.
    let role = prop::sample::select(vec!["apiserver", "apiserver", "apiserver", "kcm", "other"]);
    let seen = (
        0..REPLICAS,
        prop::bool::weighted(0.4),
        0..5_u8,
        prop::bool::weighted(0.9),
        role,
    );
    let seen = seen.prop_map(|(slot, replaced, version, crashes, role)| Step::Seen {
        slot,
        replaced,
        version,
        crashes,
        role,
    });
    // Weeders must live long enough to use up what they may do.
    let step = prop_oneof![
        2 => (service.clone(), 0..3_u8).prop_map(|(service, how)| Step::Start(service, how)),
        1 => service.prop_map(Step::Pause),
        1 => Just(Step::Cancel),
        40 => seen,
        1 => (0..REPLICAS).prop_map(Step::Gone),
        1 => Just(Step::Synced),
        40 => (any::<usize>(), 0..10_u8).prop_map(|(which, how)| Step::Answer(which, how)),
        20 => (0..20_000_u16).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 0..200)
}

/// Replicas of one controller.
const REPLICAS: usize = 3;

/// A deletion that took place, or may have.
#[derive(Debug)]
struct Effect {
    asked_at: UnixTime,
    created: UnixTime,
    uid: String,
}

/// The rounds of deletions: pods that existed when the first of a round was deleted belong to that round.
fn rounds(mut effects: Vec<Effect>) -> usize {
    effects.sort_by_key(|effect| effect.asked_at);
    let (mut rounds, mut begun, mut known) = (0, None::<UnixTime>, BTreeSet::new());
    for effect in effects {
        if known.insert(effect.uid) && begun.is_none_or(|begun| effect.created >= begun) {
            rounds += 1;
            begun = Some(effect.asked_at);
        }
    }
    rounds
}

fn answer(how: u8) -> Result<(), RequestFailure> {
    match how {
        0 => Err(RequestFailure::Gone),
        1 => Err(RequestFailure::Changed),
        2 => Err(RequestFailure::Forbidden(String::new())),
        3 => Err(RequestFailure::Throttled(None)),
        4 => Err(RequestFailure::Failed(String::new())),
        _ => Ok(()),
    }
}

proptest! {
    /// In any order of events, only dependants of a live weeder are deleted, in at most three rounds of a weeder's life
    /// for a controller. At the end, nothing is left.
    #[test]
    fn never_a_wrong_task_and_nothing_left_at_the_end(steps in steps()) {
        let mut manager = WeederManager::new(&config());
        let mut now = at(0.0);
        let mut under_way: Vec<Task> = Vec::new();
        // The number and the creation of the pod that each replica is now.
        let mut replicas = [(0_u32, now); REPLICAS];
        let key_of = |slot: usize, number: u32| NamespacedName::new("shoot", format!("{slot}-{number}"));
        start(&mut manager, "etcd", 0.0);
        start(&mut manager, "kube-apiserver", 0.0);
        let mut effects: BTreeMap<u64, Vec<Effect>> = BTreeMap::new();
        for step in steps {
            // No two things happen at the same time.
            now = now.after(Duration::from_millis(1));
            match step {
                Step::Start(service, how) => {
                    let proof = match how {
                        0 => OutageProof::Observed,
                        1 => OutageProof::Read(OutageEvidence::default()),
                        _ => OutageProof::Unread(BTreeSet::new()),
                    };
                    manager.start(key(service), dependants(service), proof, now);
                }
                Step::Pause(service) => manager.pause(&key(service)),
                Step::Cancel => manager.cancel(&key("etcd"), StopReason::NotOwned, now),
                Step::Seen { slot, replaced, version, crashes, role } => {
                    let (number, created) = &mut replicas[slot];
                    if replaced {
                        manager.pod_gone(&key_of(slot, *number), &query());
                        (*number, *created) = (*number + 1, now);
                    }
                    let name = format!("{slot}-{number}");
                    let mut pod = crashing(&name, role, &name, &version.to_string());
                    pod.created = Some(*created);
                    pod.owner = Some(owner("ReplicaSet", "shared"));
                    manager.pod_applied(if crashes { pod } else { running(pod) }, &query(), now);
                }
                Step::Gone(slot) => manager.pod_gone(&key_of(slot, replicas[slot].0), &query()),
                Step::Synced => manager.pods_synced(&query(), &BTreeSet::new()),
                Step::Wait(millis) => now = now.after(Duration::from_millis(millis.into())),
                Step::Answer(which, how) if !under_way.is_empty() => {
                    match under_way.remove(which % under_way.len()) {
                        Task::ReadEndpoints(read) => {
                            let evidence = answer(how).map(|()| ready_since(0.0));
                            manager.endpoints_read(&read, evidence, now);
                        }
                        Task::Delete(deletion) => {
                            if how > 3 {
                                effects.entry(deletion.attempt.weeder).or_default().push(Effect {
                                    asked_at: deletion.attempt.asked_at,
                                    created: deletion.pod.created.unwrap_or_default(),
                                    uid: deletion.pod.uid.clone(),
                                });
                            }
                            // It was deleted when it was asked for.
                            let answer = answer(how).map(|()| Some(deletion.attempt.asked_at));
                            manager.deleted(&deletion, &answer, now);
                        }
                    }
                }
                Step::Answer(..) => {}
            }
            while let Some(task) = manager.next(now) {
                match &task {
                    Task::Delete(deletion) => {
                        let entry = &manager.weeders[&deletion.key];
                        prop_assert!(entry.weeder.is_weeding());
                        prop_assert!(now >= entry.weeder.deletes_from);
                        prop_assert!(entry.weeder.dependants.include(&deletion.pod.labels));
                        prop_assert!(deletion.pod.crash_loop().is_some());
                        let same =
                            |task: &Task| matches!(task, Task::Delete(d) if d.pod.uid == deletion.pod.uid);
                        prop_assert!(!under_way.iter().any(same), "two deletions of one pod at one time");
                    }
                    Task::ReadEndpoints(read) => {
                        let generation = read.generation;
                        let same =
                            |task: &Task| matches!(task, Task::ReadEndpoints(r) if r.generation == generation);
                        prop_assert!(!under_way.iter().any(same), "two reads at one time");
                    }
                }
                under_way.push(task);
            }
            let due = manager.next_due(true);
            prop_assert!(due.is_none_or(|due| due > now), "due at {due:?}, but nothing came at {now:?}");
        }
        for task in under_way {
            match task {
                Task::ReadEndpoints(read) => manager.endpoints_read(&read, Ok(OutageEvidence::default()), now),
                Task::Delete(deletion) => manager.deleted(&deletion, &Ok(None), now),
            }
        }
        for (weeder, effects) in effects {
            let context = format!("weeder {weeder}: {effects:?}");
            prop_assert!(rounds(effects) <= 3, "{context}");
        }
        manager.pods_synced(&query(), &BTreeSet::new());
        for _ in 0..4 {
            now = now.after(Duration::from_secs(1_000));
            manager.expire(now);
        }
        prop_assert!(manager.weeders.is_empty() && manager.in_flight.is_empty());
        prop_assert_eq!(manager.pending_deletions(), 0);
        prop_assert!(manager.take_findings().len() < 1_000);
        prop_assert_eq!(manager.due_phases.next_due().or(manager.attempts.next_due()), None);
    }
}

#[test]
fn a_deletion_that_is_kept_back_counts_once_until_its_pod_is_gone() {
    let mut manager = started();
    seen(&mut manager, crashing("api", "apiserver", "1", "1"), 1.0);
    let first = delete(&mut manager, 1.0);
    manager.kept_back(&first, at(1.0));
    nothing(&mut manager, 1.0);
    // It is still there, runs for a while and crashes again.
    seen(&mut manager, crashing("api", "apiserver", "1", "2"), 15.0);
    seen(
        &mut manager,
        running(crashing("api", "apiserver", "1", "3")),
        20.0,
    );
    seen(&mut manager, crashing("api", "apiserver", "1", "4"), 25.0);
    nothing(&mut manager, 50.0);
    let shown = weeder(&manager, "etcd");
    assert_eq!(
        (shown.deleted, results(&shown)),
        (1, vec![(1, DeletionResult::KeptBack)])
    );
    assert!(
        manager
            .take_findings()
            .iter()
            .all(|found| !matches!(found, Finding::DeletedByOthers { .. }))
    );
    // Somebody else deletes it. What comes next has its pause and its limit.
    manager.pod_gone(&first.pod.key, &query());
    let found = manager.take_findings();
    assert!(
        matches!(&found[..], [Finding::DeletedByOthers { kept_back_at, .. }] if *kept_back_at == at(1.0)),
        "{found:?}"
    );
    for (uid, crashes) in [("2", 51.0), ("3", 90.0)] {
        let mut successor = crashing("api", "apiserver", uid, "1");
        successor.created = Some(at(crashes - 1.0));
        seen(&mut manager, successor, crashes);
        let next = delete(&mut manager, crashes);
        manager.kept_back(&next, at(crashes));
        manager.pod_gone(&next.pod.key, &query());
    }
    let mut last = crashing("api", "apiserver", "4", "1");
    last.created = Some(at(100.0));
    seen(&mut manager, last, 101.0);
    nothing(&mut manager, 250.0);
    assert_eq!(
        weeder(&manager, "etcd").left_alone.len(),
        1,
        "three times in the life of a weeder"
    );
    assert_eq!(weeder(&manager, "etcd").deleted, 3);
}
