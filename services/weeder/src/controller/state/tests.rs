use std::time::Duration;

use super::super::task::Task;
use super::*;
use crate::domain::fixtures::{at, config, crashing};
use crate::domain::readiness::Endpoints;
use crate::domain::weeder::{Phase, Weeder};

fn key(service: &str) -> NamespacedName {
    NamespacedName::new("shoot", service)
}

fn slice(service: &str, ready: u32) -> Slice {
    Slice {
        key: NamespacedName {
            namespace: "shoot".into(),
            name: service.into(),
        },
        service: Some(service.into()),
        endpoints: Endpoints { ready, total: 3 },
        pods: Some(vec![format!("{service}-0").into()]),
    }
}

fn namespace(uid: &str, terminating: bool) -> Namespace {
    Namespace {
        uid: uid.to_owned(),
        terminating,
    }
}

/// Another replica, or this one, owns all namespaces from now on.
fn owned(state: &mut WeederState, owned: bool, now: f64) {
    state.owns = Box::new(move |_| owned);
    state.ownership_changed(at(now));
}

/// Names of services, with what is shown of each.
type Shown<T> = Vec<(String, Option<T>)>;

/// The changes of weeders; those of services do not matter.
fn weeder_changes(state: &mut WeederState) -> Vec<(NamespacedName, Option<Weeder>)> {
    state.take_published();
    state.manager.take_changed()
}

/// The published changes: the ready endpoints of services, and the states of weeders.
fn changes(state: &mut WeederState) -> (Shown<u32>, Shown<Phase>) {
    let services = state.take_published().into_iter();
    let weeders = state.manager.take_changed().into_iter();
    (
        services
            .map(|(key, state)| (key.name.to_string(), state.map(|s| s.endpoints.ready)))
            .collect(),
        weeders
            .map(|(key, weeder)| (key.name.to_string(), weeder.map(|w| w.phase)))
            .collect(),
    )
}

fn shown<T>(service: &str, what: T) -> (String, T) {
    (service.to_owned(), what)
}

/// A pod that needs etcd crashes; says whether it would be deleted now.
fn deletes(state: &mut WeederState, now: f64) -> bool {
    let pod = crashing("kube-apiserver", "apiserver", "1", "1");
    state.manager.pod_applied(pod, &Arc::default(), at(now));
    let mut deletes = false;
    while let Some(task) = state.manager.next(at(now)) {
        deletes |= matches!(task, Task::Delete(_));
    }
    deletes
}

#[test]
fn nothing_is_deleted_while_the_service_is_not_ready() {
    let mut state = WeederState::new(&config(), |_| true);
    state.slice_applied(slice("etcd", 1), ReceivedBy::Watch, at(0.0));
    assert!(deletes(&mut state, 1.0), "it is ready");
    for not_ready in [
        (|state| state.slice_applied(slice("etcd", 0), ReceivedBy::Watch, at(2.0))) as fn(&mut WeederState),
        |state| state.slice_removed(&slice("etcd", 0).key, at(2.0)),
    ] {
        let mut state = WeederState::new(&config(), |_| true);
        state.slice_applied(slice("etcd", 1), ReceivedBy::Watch, at(0.0));
        not_ready(&mut state);
        assert!(!deletes(&mut state, 3.0), "its weeder lives, but is paused");
        state.slice_applied(slice("etcd", 1), ReceivedBy::Watch, at(4.0));
        assert!(deletes(&mut state, 5.0), "it is ready again");
    }
}

#[test]
fn a_service_that_becomes_ready_gets_a_weeder() {
    let mut state = WeederState::new(&config(), |_| true);
    state.slice_applied(slice("etcd", 0), ReceivedBy::Watch, at(0.0));
    assert_eq!(changes(&mut state), (vec![shown("etcd", Some(0))], vec![]));
    state.slice_applied(slice("etcd", 1), ReceivedBy::Watch, at(1.0));
    assert_eq!(
        changes(&mut state),
        (
            vec![shown("etcd", Some(1))],
            vec![shown("etcd", Some(Phase::Active))]
        )
    );
    state.slice_applied(slice("etcd", 0), ReceivedBy::Watch, at(2.0));
    assert_eq!(
        changes(&mut state),
        (
            vec![shown("etcd", Some(0))],
            vec![shown("etcd", Some(Phase::Active))]
        ),
        "the weeder lives on, paused"
    );
    state.slice_removed(&slice("etcd", 0).key, at(3.0));
    assert_eq!(changes(&mut state), (vec![shown("etcd", None)], vec![]), "and on");
    state.slice_applied(slice("unrelated", 3), ReceivedBy::Watch, at(4.0));
    assert_eq!(changes(&mut state), (vec![], vec![]), "not configured");
}

#[test]
fn namespaces_come_and_go_between_replicas() {
    let mut state = WeederState::new(&config(), |_| true);
    owned(&mut state, false, 0.0);
    state.slice_applied(slice("etcd", 2), ReceivedBy::Watch, at(0.0));
    state.slice_applied(slice("kube-apiserver", 0), ReceivedBy::Watch, at(0.0));
    assert_eq!(changes(&mut state), (vec![], vec![]), "it is another replica's");
    owned(&mut state, true, 1.0);
    assert_eq!(
        changes(&mut state),
        (
            vec![shown("etcd", Some(2)), shown("kube-apiserver", Some(0))],
            vec![shown("etcd", Some(Phase::Active))]
        ),
        "ready counts as first seen ready"
    );
    assert!(state.follows_ownership());
    state.owns = Box::new(|_| false);
    assert!(!state.follows_ownership());
    owned(&mut state, true, 2.0);
    assert_eq!(changes(&mut state), (vec![], vec![]));
    owned(&mut state, false, 3.0);
    assert_eq!(
        changes(&mut state),
        (
            vec![shown("etcd", None), shown("kube-apiserver", None)],
            vec![shown("etcd", Some(Phase::Cancelled))]
        )
    );
    state.slice_applied(slice("kube-apiserver", 1), ReceivedBy::Watch, at(4.0));
    assert_eq!(changes(&mut state), (vec![], vec![]));
}

#[test]
fn a_paused_weeder_without_slices_is_cancelled_when_its_namespace_moves() {
    let mut state = WeederState::new(&config(), |_| true);
    state.slice_applied(slice("etcd", 1), ReceivedBy::Watch, at(0.0));
    state.slice_removed(&slice("etcd", 1).key, at(1.0));
    assert_eq!(
        changes(&mut state).1,
        [shown("etcd", Some(Phase::Active))],
        "paused"
    );
    owned(&mut state, false, 2.0);
    assert_eq!(changes(&mut state).1, [shown("etcd", Some(Phase::Cancelled))]);
}

#[test]
fn a_namespace_that_ends_takes_its_weeders_along() {
    let mut state = WeederState::new(&config(), |_| true);
    state.namespace_applied("shoot", namespace("1", false), at(0.0));
    state.slice_applied(slice("etcd", 1), ReceivedBy::Watch, at(0.0));
    changes(&mut state);
    state.namespace_applied("shoot", namespace("1", true), at(1.0));
    assert_eq!(changes(&mut state).1, [shown("etcd", Some(Phase::Cancelled))]);
    state.slice_applied(slice("kube-apiserver", 1), ReceivedBy::Watch, at(2.0));
    assert_eq!(changes(&mut state).1, [], "nothing starts there any more");
    state.namespace_removed("shoot", at(3.0));
    state.namespace_applied("shoot", namespace("1", false), at(4.0));
    state.slice_applied(slice("kube-apiserver", 0), ReceivedBy::Watch, at(5.0));
    state.slice_applied(slice("kube-apiserver", 1), ReceivedBy::Watch, at(6.0));
    assert_eq!(
        changes(&mut state).1,
        [shown("kube-apiserver", Some(Phase::Active))],
        "a new one of the same name"
    );
    state.namespaces_synced(&BTreeSet::new(), at(7.0));
    assert_eq!(
        changes(&mut state).1,
        [shown("kube-apiserver", Some(Phase::Cancelled))]
    );
}

#[test]
fn a_namespace_that_took_the_place_of_another_does_not_inherit_its_weeders() {
    let mut state = WeederState::new(&config(), |_| true);
    state.namespace_applied("shoot", namespace("1", false), at(0.0));
    state.slice_applied(slice("etcd", 1), ReceivedBy::Watch, at(0.0));
    state.namespace_applied("shoot", namespace("1", false), at(1.0));
    assert_eq!(changes(&mut state).1, [shown("etcd", Some(Phase::Active))]);
    // The watch did not bring the end of the other one.
    state.namespace_applied("shoot", namespace("2", false), at(2.0));
    assert_eq!(changes(&mut state).1, [shown("etcd", Some(Phase::Cancelled))]);
}

#[test]
fn a_list_of_namespaces_that_is_too_old_ends_nothing() {
    let mut state = WeederState::new(&config(), |_| true);
    state.slice_applied(slice("etcd", 1), ReceivedBy::Watch, at(0.0));
    state.namespaces_synced(&BTreeSet::new(), at(1.0));
    assert_eq!(changes(&mut state).1, [shown("etcd", Some(Phase::Active))]);
}

#[test]
fn a_changed_configuration_takes_effect() {
    let mut state = WeederState::new(&config(), |_| true);
    state.slice_applied(slice("etcd", 1), ReceivedBy::Watch, at(0.0));
    state.slice_applied(slice("kube-apiserver", 1), ReceivedBy::Watch, at(0.0));
    changes(&mut state);
    let mut changed = config();
    let selectors = changed.services.remove("etcd").unwrap();
    changed.services.insert("kube-apiserver".to_owned(), selectors);
    changed.watch_duration = Duration::from_secs(7);
    state.reconfigure(&changed, at(1.0));
    let (services, weeders) = changes(&mut state);
    assert_eq!(services, [shown("etcd", None)]);
    assert_eq!(
        weeders,
        [
            shown("etcd", Some(Phase::Cancelled)),
            shown("kube-apiserver", Some(Phase::Active))
        ],
        "the one that stays has other dependants"
    );
    state.slice_applied(slice("kube-apiserver", 0), ReceivedBy::Watch, at(2.0));
    state.slice_applied(slice("kube-apiserver", 1), ReceivedBy::Watch, at(3.0));
    let weeders = weeder_changes(&mut state);
    let weeder = weeders[0].1.as_ref().unwrap();
    assert_eq!(weeder.ends_at, at(10.0), "lives as long as is configured now");
    state.reconfigure(&config(), at(4.0));
    state.slice_applied(slice("etcd", 1), ReceivedBy::Watch, at(4.0));
    assert_eq!(weeder.key, key("kube-apiserver"));
    assert!(
        changes(&mut state)
            .1
            .contains(&shown("etcd", Some(Phase::Active))),
        "first seen ready"
    );
}

fn selectors(text: &str) -> Option<Vec<watchdog_api::selector::Selector>> {
    Some(watchdog_api::weeder::parse_dependants(text).unwrap())
}

/// The live weeders' selectors, by service.
fn weeds(state: &mut WeederState) -> Vec<(String, usize)> {
    let weeders = weeder_changes(state).into_iter();
    let live = weeders.filter_map(|(key, weeder)| Some((key, weeder.filter(Weeder::is_live)?)));
    live.map(|(key, weeder)| (key.name.to_string(), weeder.dependants.queries().count()))
        .collect()
}

#[test]
fn an_annotation_adds_to_the_file() {
    let mut state = WeederState::new(&config(), |_| true);
    state.slice_applied(slice("etcd", 1), ReceivedBy::Watch, at(0.0));
    assert_eq!(weeds(&mut state), [shown("etcd", 1)]);
    state.set_dependants(
        &key("etcd"),
        selectors("[{matchLabels: {role: backup}}]"),
        at(1.0),
    );
    assert_eq!(weeds(&mut state), [shown("etcd", 2)]);
    // What the file has already is not there twice.
    state.set_dependants(
        &key("etcd"),
        selectors("[{matchLabels: {role: apiserver}}]"),
        at(2.0),
    );
    assert_eq!(weeds(&mut state), [shown("etcd", 1)]);
    state.set_dependants(&key("etcd"), None, at(3.0));
    assert_eq!(weeds(&mut state), [], "the file's selectors were all there was");
    assert_eq!(state.declared.annotated().count(), 0);
}

#[test]
fn an_annotation_counts_in_its_namespace_only() {
    let mut state = WeederState::new(&config(), |_| true);
    let other = NamespacedName::new("other", "queue");
    state.set_dependants(&other, selectors("[{matchLabels: {role: user}}]"), at(0.0));
    state.slice_applied(slice("queue", 1), ReceivedBy::Watch, at(1.0));
    assert_eq!(changes(&mut state), (vec![], vec![]));
    // Its slices are known when it is annotated too: first seen ready.
    state.set_dependants(&key("queue"), selectors("[{matchLabels: {role: user}}]"), at(2.0));
    assert_eq!(
        changes(&mut state),
        (
            vec![shown("queue", Some(1))],
            vec![shown("queue", Some(Phase::Active))]
        )
    );
    state.annotations_synced(&BTreeSet::from([other]), at(3.0));
    assert_eq!(
        changes(&mut state),
        (
            vec![shown("queue", None)],
            vec![shown("queue", Some(Phase::Cancelled))]
        )
    );
    assert_eq!(state.declared.annotated().count(), 1);
    state.slice_applied(slice("queue", 0), ReceivedBy::Watch, at(4.0));
    state.slice_applied(slice("queue", 1), ReceivedBy::Watch, at(5.0));
    assert_eq!(changes(&mut state), (vec![], vec![]));
}

#[test]
fn an_annotation_outlives_the_file() {
    let mut state = WeederState::new(&config(), |_| true);
    state.set_dependants(
        &key("etcd"),
        selectors("[{matchLabels: {role: backup}}]"),
        at(0.0),
    );
    state.slice_applied(slice("etcd", 1), ReceivedBy::Watch, at(0.0));
    assert_eq!(weeds(&mut state), [shown("etcd", 2)]);
    let mut changed = config();
    changed.services.remove("etcd");
    state.reconfigure(&changed, at(1.0));
    assert_eq!(weeds(&mut state), [shown("etcd", 1)]);
    state.set_dependants(&key("etcd"), None, at(2.0));
    assert_eq!(
        changes(&mut state),
        (
            vec![shown("etcd", None)],
            vec![shown("etcd", Some(Phase::Cancelled))]
        )
    );
    state.reconfigure(&config(), at(3.0));
    state.slice_applied(slice("etcd", 1), ReceivedBy::Watch, at(3.0));
    assert_eq!(weeds(&mut state), [shown("etcd", 1)]);
}

#[test]
fn a_service_that_is_watched_is_known_when_it_is_named() {
    let selectors = || selectors("[{matchLabels: {role: user}}]");
    let mut state = WeederState::new(&config(), |_| true);
    state.slice_applied(slice("queue", 1), ReceivedBy::Watch, at(0.0));
    assert_eq!(changes(&mut state), (vec![], vec![]), "nobody names it");
    for second in [1.0, 3.0] {
        state.set_dependants(&key("queue"), selectors(), at(second));
        let (services, weeders) = changes(&mut state);
        assert_eq!(services, [shown("queue", Some(1))]);
        assert_eq!(weeders, [shown("queue", Some(Phase::Active))]);
        state.set_dependants(&key("queue"), None, at(second + 1.0));
        assert_eq!(changes(&mut state).0, [shown("queue", None)]);
    }
    // Its slices are forgotten when it is no longer watched.
    state.keep_services(|service| service == "etcd", at(5.0));
    state.set_dependants(&key("queue"), selectors(), at(6.0));
    assert_eq!(changes(&mut state), (vec![], vec![]));
    state.slice_applied(slice("queue", 1), ReceivedBy::Watch, at(7.0));
    assert_eq!(changes(&mut state).0, [shown("queue", Some(1))]);
}

#[test]
fn what_comes_from_a_list_or_from_another_replica_is_first_sight() {
    let first_sights = |state: &mut WeederState| {
        let weeders = weeder_changes(state).into_iter();
        let live = weeders.filter_map(|(_, weeder)| weeder.filter(Weeder::is_live));
        live.map(|weeder| weeder.first_sight).collect::<Vec<_>>()
    };
    let mut state = WeederState::new(&config(), |_| true);
    state.slice_applied(slice("etcd", 1), ReceivedBy::List, at(0.0));
    assert_eq!(first_sights(&mut state), [true], "a start");
    state.slice_applied(slice("etcd", 0), ReceivedBy::Watch, at(1.0));
    state.slice_applied(slice("etcd", 1), ReceivedBy::List, at(2.0));
    assert_eq!(first_sights(&mut state), [true], "a new list");
    state.slice_applied(slice("etcd", 0), ReceivedBy::Watch, at(3.0));
    state.slice_applied(slice("etcd", 1), ReceivedBy::Watch, at(4.0));
    assert_eq!(first_sights(&mut state), [false], "a recovery");
    owned(&mut state, false, 5.0);
    owned(&mut state, true, 6.0);
    assert_eq!(first_sights(&mut state), [true], "a takeover");
    state.slice_applied(slice("queue", 1), ReceivedBy::Watch, at(7.0));
    state.set_dependants(&key("queue"), selectors("[{matchLabels: {role: user}}]"), at(8.0));
    assert_eq!(first_sights(&mut state), [true], "an annotation");
}

/// A service may have a slice in a later page, with an endpoint that was ready all the time.
#[test]
fn endpoints_are_not_read_before_all_of_them_are_listed() {
    let reads = |state: &mut WeederState, now: f64| match state.manager.next(at(now)) {
        Some(Task::ReadEndpoints(read)) => Some(read.pods),
        None => None,
        other => panic!("{other:?}"),
    };
    let mut state = WeederState::new(&config(), |_| true);
    let (first, mut second) = (slice("etcd", 1), slice("etcd", 1));
    second.key.name = "etcd-2".into();
    second.pods = Some(vec!["etcd-1".into()]);
    state.slice_applied(first.clone(), ReceivedBy::List, at(0.0));
    let pod = crashing("kube-apiserver", "apiserver", "1", "1");
    state.manager.pod_applied(pod, &Arc::default(), at(0.0));
    assert_eq!(reads(&mut state, 0.0), None);
    // A takeover meanwhile changes nothing.
    owned(&mut state, false, 0.1);
    owned(&mut state, true, 0.2);
    assert_eq!(reads(&mut state, 0.2), None);
    let live = BTreeSet::from([first.key.clone(), second.key.clone()]);
    state.slice_applied(second, ReceivedBy::List, at(0.3));
    assert_eq!(reads(&mut state, 0.3), None);
    state.slices_synced(None, &live, at(0.4));
    let both = BTreeSet::from([Arc::from("etcd-0"), Arc::from("etcd-1")]);
    assert_eq!(reads(&mut state, 0.4), Some(both));
    // What a watch brings late is complete.
    state.slice_applied(slice("etcd", 0), ReceivedBy::Watch, at(1.0));
    state.slice_removed(&live.last().unwrap().clone(), at(1.0));
    state.slice_applied(first, ReceivedBy::ResumedWatch, at(2.0));
    assert_eq!(
        reads(&mut state, 2.0),
        Some(BTreeSet::from([Arc::from("etcd-0")]))
    );
}

#[test]
fn the_watches_on_pods_follow_selectors_and_namespaces() {
    let mut state = WeederState::new(&config(), |_| true);
    let scopes = |state: &WeederState| {
        state
            .pod_queries
            .borrow()
            .iter()
            .map(PodQuery::scope)
            .collect::<Vec<_>>()
    };
    assert_eq!(scopes(&state), ["selector", "selector"]);
    state.slice_applied(slice("etcd", 1), ReceivedBy::Watch, at(0.0));
    assert_eq!(scopes(&state), ["selector", "selector"], "all there is");
    let mut foreign = slice("etcd", 1);
    foreign.key.namespace = "other".into();
    state.owns = Box::new(|_| false);
    state.slice_applied(foreign, ReceivedBy::Watch, at(1.0));
    assert_eq!(scopes(&state), ["namespace", "namespace"], "one of two");
    let many: String = (0..9)
        .map(|i| format!("{{matchLabels: {{role: r{i}}}}},"))
        .collect();
    state.set_dependants(&key("etcd"), selectors(&format!("[{many}]")), at(2.0));
    assert_eq!(scopes(&state), ["all"]);
    state.set_dependants(&key("etcd"), None, at(3.0));
    assert_eq!(scopes(&state), ["namespace", "namespace"]);
    owned(&mut state, true, 4.0);
    assert_eq!(scopes(&state), ["selector", "selector"]);
}
