use super::*;
use crate::domain::fixtures::{at, config, crashing};
use crate::domain::readiness::Endpoints;
use crate::domain::task::Task;
use crate::domain::weeder::State;

fn key(service: &str) -> ServiceKey {
    ServiceKey::new("shoot", service)
}

fn slice(service: &str, ready: u32) -> Slice {
    Slice {
        key: SliceKey {
            namespace: "shoot".into(),
            name: service.into(),
        },
        service: Some(service.into()),
        endpoints: Endpoints { ready, total: 3 },
    }
}

const OURS: Owns<'static> = &|_| true;
const THEIRS: Owns<'static> = &|_| false;

/// Names of services, with what is told of each.
type Told<T> = Vec<(String, Option<T>)>;

/// What is told: the ready endpoints of services, and the states of weeders.
fn news(model: &mut Model) -> (Told<u32>, Told<State>) {
    let news = model.take_news();
    let services = news.services.into_iter();
    let weeders = news.weeders.into_iter();
    (
        services
            .map(|(key, state)| (key.service.to_string(), state.map(|s| s.endpoints.ready)))
            .collect(),
        weeders
            .map(|(key, weeder)| (key.service.to_string(), weeder.map(|w| w.state)))
            .collect(),
    )
}

fn told<T>(service: &str, what: T) -> (String, T) {
    (service.to_owned(), what)
}

/// A pod that needs etcd crashes; says whether it would be deleted now.
fn deletes(model: &mut Model, now: f64) -> bool {
    model
        .weeding
        .seen(crashing("kube-apiserver", "apiserver", "1", "1"), at(now));
    let mut deletes = false;
    while let Some(task) = model.weeding.next(at(now)) {
        deletes |= matches!(task, Task::Delete(_));
    }
    deletes
}

#[test]
fn nothing_is_deleted_while_the_service_is_not_ready() {
    let mut model = Model::new(&config());
    model.slice_applied(slice("etcd", 1), OURS, at(0.0));
    assert!(deletes(&mut model, 1.0), "it is ready");
    for not_ready in [
        (|model| model.slice_applied(slice("etcd", 0), OURS, at(2.0))) as fn(&mut Model),
        |model| model.slice_removed(&slice("etcd", 0).key, OURS, at(2.0)),
    ] {
        let mut model = Model::new(&config());
        model.slice_applied(slice("etcd", 1), OURS, at(0.0));
        not_ready(&mut model);
        assert!(!deletes(&mut model, 3.0), "its weeder lives, but rests");
        model.slice_applied(slice("etcd", 1), OURS, at(4.0));
        assert!(deletes(&mut model, 5.0), "it is ready again");
    }
}

#[test]
fn a_service_that_becomes_ready_gets_a_weeder() {
    let mut model = Model::new(&config());
    model.slice_applied(slice("etcd", 0), OURS, at(0.0));
    assert_eq!(news(&mut model), (vec![told("etcd", Some(0))], vec![]));
    model.slice_applied(slice("etcd", 1), OURS, at(1.0));
    assert_eq!(
        news(&mut model),
        (
            vec![told("etcd", Some(1))],
            vec![told("etcd", Some(State::Queued))]
        )
    );
    model.slice_applied(slice("etcd", 0), OURS, at(2.0));
    assert_eq!(
        news(&mut model),
        (
            vec![told("etcd", Some(0))],
            vec![told("etcd", Some(State::Queued))]
        ),
        "the weeder lives on, at rest"
    );
    model.slice_removed(&slice("etcd", 0).key, OURS, at(3.0));
    assert_eq!(news(&mut model), (vec![told("etcd", None)], vec![]), "and on");
    model.slice_applied(slice("unrelated", 3), OURS, at(4.0));
    assert_eq!(news(&mut model), (vec![], vec![]), "not configured");
}

#[test]
fn namespaces_come_and_go_between_replicas() {
    let mut model = Model::new(&config());
    model.slice_applied(slice("etcd", 2), THEIRS, at(0.0));
    model.slice_applied(slice("kube-apiserver", 0), THEIRS, at(0.0));
    assert_eq!(news(&mut model), (vec![], vec![]), "it is another replica's");
    model.shares_changed(OURS, at(1.0));
    assert_eq!(
        news(&mut model),
        (
            vec![told("etcd", Some(2)), told("kube-apiserver", Some(0))],
            vec![told("etcd", Some(State::Queued))]
        ),
        "ready counts as first seen ready"
    );
    model.shares_changed(OURS, at(2.0));
    assert_eq!(news(&mut model), (vec![], vec![]));
    model.shares_changed(THEIRS, at(3.0));
    assert_eq!(
        news(&mut model),
        (
            vec![told("etcd", None), told("kube-apiserver", None)],
            vec![told("etcd", Some(State::Cancelled))]
        )
    );
    model.slice_applied(slice("kube-apiserver", 1), THEIRS, at(4.0));
    assert_eq!(news(&mut model), (vec![], vec![]));
}

#[test]
fn a_namespace_that_ends_takes_its_weeders_along() {
    let mut model = Model::new(&config());
    model.namespace_applied("shoot", false, at(0.0));
    model.slice_applied(slice("etcd", 1), OURS, at(0.0));
    model.take_news();
    model.namespace_applied("shoot", true, at(1.0));
    assert_eq!(news(&mut model).1, [told("etcd", Some(State::Cancelled))]);
    model.slice_applied(slice("kube-apiserver", 1), OURS, at(2.0));
    assert_eq!(news(&mut model).1, [], "nothing starts there any more");
    model.namespace_removed("shoot", at(3.0));
    model.namespace_applied("shoot", false, at(4.0));
    model.slice_applied(slice("kube-apiserver", 0), OURS, at(5.0));
    model.slice_applied(slice("kube-apiserver", 1), OURS, at(6.0));
    assert_eq!(
        news(&mut model).1,
        [told("kube-apiserver", Some(State::Queued))],
        "a new one of the same name"
    );
    model.namespaces_synced(&BTreeSet::new(), at(7.0));
    assert_eq!(
        news(&mut model).1,
        [told("kube-apiserver", Some(State::Cancelled))]
    );
}

#[test]
fn a_list_of_namespaces_that_is_too_old_ends_nothing() {
    let mut model = Model::new(&config());
    model.slice_applied(slice("etcd", 1), OURS, at(0.0));
    model.namespaces_synced(&BTreeSet::new(), at(1.0));
    assert_eq!(news(&mut model).1, [told("etcd", Some(State::Queued))]);
}

#[test]
fn a_changed_configuration_takes_effect() {
    let mut model = Model::new(&config());
    model.slice_applied(slice("etcd", 1), OURS, at(0.0));
    model.slice_applied(slice("kube-apiserver", 1), OURS, at(0.0));
    model.take_news();
    let mut changed = config();
    let selectors = changed.services.remove("etcd").unwrap();
    changed.services.insert("kube-apiserver".to_owned(), selectors);
    changed.watch_duration = Duration::from_secs(7);
    model.reconfigure(&changed, at(1.0));
    let (services, weeders) = news(&mut model);
    assert_eq!(services, [told("etcd", None)]);
    assert_eq!(
        weeders,
        [
            told("etcd", Some(State::Cancelled)),
            told("kube-apiserver", Some(State::Queued))
        ],
        "the one that stays has other dependants"
    );
    model.slice_applied(slice("kube-apiserver", 0), OURS, at(2.0));
    model.slice_applied(slice("kube-apiserver", 1), OURS, at(3.0));
    let weeders = model.take_news().weeders;
    let weeder = weeders[0].1.as_ref().unwrap();
    assert_eq!(weeder.ends_at, at(10.0), "lives as long as is configured now");
    model.reconfigure(&config(), at(4.0));
    model.slice_applied(slice("etcd", 1), OURS, at(4.0));
    assert_eq!(weeder.key, key("kube-apiserver"));
    assert!(
        news(&mut model).1.contains(&told("etcd", Some(State::Queued))),
        "first seen ready"
    );
}

fn selectors(text: &str) -> Option<Vec<watchdog_api::selector::Selector>> {
    Some(watchdog_api::weeder::parse_dependants(text).unwrap())
}

/// The live weeders' selectors, by service.
fn weeds(model: &mut Model) -> Vec<(String, usize)> {
    let weeders = model.take_news().weeders.into_iter();
    let live = weeders.filter_map(|(key, weeder)| Some((key, weeder.filter(Weeder::is_live)?)));
    live.map(|(key, weeder)| (key.service.to_string(), weeder.dependants.queries().count()))
        .collect()
}

#[test]
fn an_annotation_adds_to_the_file() {
    let mut model = Model::new(&config());
    model.slice_applied(slice("etcd", 1), OURS, at(0.0));
    assert_eq!(weeds(&mut model), [told("etcd", 1)]);
    model.service_annotated(
        &key("etcd"),
        selectors("[{matchLabels: {role: backup}}]"),
        at(1.0),
    );
    assert_eq!(weeds(&mut model), [told("etcd", 2)]);
    // What the file has already is not there twice.
    model.service_annotated(
        &key("etcd"),
        selectors("[{matchLabels: {role: apiserver}}]"),
        at(2.0),
    );
    assert_eq!(weeds(&mut model), [told("etcd", 1)]);
    model.service_annotated(&key("etcd"), None, at(3.0));
    assert_eq!(weeds(&mut model), [], "the file's selectors were all there was");
    assert!(model.annotated_names().is_empty());
}

#[test]
fn an_annotation_counts_in_its_namespace_only() {
    let mut model = Model::new(&config());
    let other = ServiceKey::new("other", "queue");
    model.service_annotated(&other, selectors("[{matchLabels: {role: user}}]"), at(0.0));
    model.slice_applied(slice("queue", 1), OURS, at(1.0));
    assert_eq!(news(&mut model), (vec![], vec![]));
    // Its slices are known when it is annotated too: first seen ready.
    model.service_annotated(&key("queue"), selectors("[{matchLabels: {role: user}}]"), at(2.0));
    assert_eq!(
        news(&mut model),
        (
            vec![told("queue", Some(1))],
            vec![told("queue", Some(State::Queued))]
        )
    );
    model.annotations_synced(&BTreeSet::from([other]), at(3.0));
    assert_eq!(
        news(&mut model),
        (
            vec![told("queue", None)],
            vec![told("queue", Some(State::Cancelled))]
        )
    );
    assert_eq!(model.annotated_names().len(), 1);
    model.slice_applied(slice("queue", 0), OURS, at(4.0));
    model.slice_applied(slice("queue", 1), OURS, at(5.0));
    assert_eq!(news(&mut model), (vec![], vec![]));
}

#[test]
fn an_annotation_outlives_the_file() {
    let mut model = Model::new(&config());
    model.service_annotated(
        &key("etcd"),
        selectors("[{matchLabels: {role: backup}}]"),
        at(0.0),
    );
    model.slice_applied(slice("etcd", 1), OURS, at(0.0));
    assert_eq!(weeds(&mut model), [told("etcd", 2)]);
    let mut changed = config();
    changed.services.remove("etcd");
    model.reconfigure(&changed, at(1.0));
    assert_eq!(weeds(&mut model), [told("etcd", 1)]);
    model.service_annotated(&key("etcd"), None, at(2.0));
    assert_eq!(
        news(&mut model),
        (
            vec![told("etcd", None)],
            vec![told("etcd", Some(State::Cancelled))]
        )
    );
    model.reconfigure(&config(), at(3.0));
    model.slice_applied(slice("etcd", 1), OURS, at(3.0));
    assert_eq!(weeds(&mut model), [told("etcd", 1)]);
}

#[test]
fn a_service_that_is_followed_is_known_when_it_is_named() {
    let selectors = || selectors("[{matchLabels: {role: user}}]");
    let mut model = Model::new(&config());
    model.slice_applied(slice("queue", 1), OURS, at(0.0));
    assert_eq!(news(&mut model), (vec![], vec![]), "nobody names it");
    for second in [1.0, 3.0] {
        model.service_annotated(&key("queue"), selectors(), at(second));
        let (services, weeders) = news(&mut model);
        assert_eq!(services, [told("queue", Some(1))]);
        assert_eq!(weeders, [told("queue", Some(State::Queued))]);
        model.service_annotated(&key("queue"), None, at(second + 1.0));
        assert_eq!(news(&mut model).0, [told("queue", None)]);
    }
    // Where it is not followed any more, it is heard of again when it is.
    model.follows(|service| service == "etcd", at(5.0));
    model.service_annotated(&key("queue"), selectors(), at(6.0));
    assert_eq!(news(&mut model), (vec![], vec![]));
    model.slice_applied(slice("queue", 1), OURS, at(7.0));
    assert_eq!(news(&mut model).0, [told("queue", Some(1))]);
}
