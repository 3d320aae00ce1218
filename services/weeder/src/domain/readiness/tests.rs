use proptest::prelude::*;

use super::*;

fn key(name: &str) -> NamespacedName {
    NamespacedName {
        namespace: "shoot".into(),
        name: name.into(),
    }
}

fn slice(name: &str, service: &str, conditions: &[Option<bool>]) -> Slice {
    Slice {
        key: key(name),
        service: Some(service.into()),
        endpoints: Endpoints::of(conditions.iter().map(|ready| ready.unwrap_or(true))),
        write: None,
        triggered: None,
    }
}

fn at(seconds: i64) -> UnixTime {
    UnixTime(seconds * 1_000_000)
}

fn is_ready(index: &Index, service: &str) -> Option<bool> {
    let state = index.get(&NamespacedName::new("shoot", service))?;
    Some(state.endpoints.is_ready())
}

const READY: Option<bool> = Some(true);
const BAD: Option<bool> = Some(false);

#[test]
fn one_ready_endpoint_is_enough() {
    for (conditions, wanted) in [
        (&[][..], false),
        (&[BAD], false),
        (&[None], true),
        (&[READY, BAD, READY], true),
        (&[BAD, BAD, READY], true),
    ] {
        assert_eq!(
            Endpoints::of(conditions.iter().map(|ready| ready.unwrap_or(true))).is_ready(),
            wanted,
            "{conditions:?}"
        );
    }
}

#[test]
fn readiness_is_over_all_slices() {
    let mut index = Index::default();
    let first = index.apply(slice("v4", "etcd", &[BAD]), at(1));
    assert!(!first[0].became_ready(), "first seen not ready");
    let second = index.apply(slice("v6", "etcd", &[READY]), at(2));
    assert!(second[0].became_ready(), "the other address family is ready");
    assert_eq!(second[0].after.unwrap().since, at(2));
    let more = index.apply(slice("v4", "etcd", &[READY, READY]), at(3));
    assert!(!more[0].became_ready(), "it was ready already");
    assert_eq!(more[0].after.unwrap().since, at(2), "and is since then");
    assert_eq!(more[0].after.unwrap().endpoints, Endpoints { ready: 3, total: 3 });
    assert_eq!(
        index.apply(slice("v4", "etcd", &[READY, READY]), at(4)),
        [],
        "seen again"
    );
    assert!(!index.remove(&key("v6"), at(5))[0].became_ready());
    let empty = index.apply(slice("v4", "etcd", &[]), at(6));
    assert!(!empty[0].is_ready() && empty[0].after.is_some(), "an empty slice");
    let gone = index.remove(&key("v4"), at(7)).remove(0);
    assert_eq!((gone.after, gone.became_ready()), (None, false), "no slice");
    assert!(
        index.apply(slice("v4", "etcd", &[READY]), at(8))[0].became_ready(),
        "first seen ready"
    );
}

#[test]
fn a_slice_moves_to_another_service() {
    let mut index = Index::default();
    index.apply(slice("a", "etcd", &[READY]), at(1));
    index.apply(slice("b", "etcd", &[BAD]), at(1));
    let moved = index.apply(slice("a", "kube-apiserver", &[READY]), at(2));
    assert_eq!(moved.len(), 2);
    assert!(!moved[0].became_ready() && moved[1].became_ready());
    assert_eq!(is_ready(&index, "etcd"), Some(false));
    assert_eq!(is_ready(&index, "kube-apiserver"), Some(true));
    let nameless = Slice {
        service: None,
        ..slice("a", "", &[READY])
    };
    index.apply(nameless, at(3));
    assert_eq!(is_ready(&index, "kube-apiserver"), None);
}

#[test]
fn a_renamed_slice_changes_nothing() {
    let mut index = Index::default();
    index.apply(slice("old", "etcd", &[READY]), at(1));
    let added = index.apply(slice("new", "etcd", &[READY]), at(2));
    let listed = index.list(None, vec![slice("new", "etcd", &[READY])], at(3));
    assert!(!added[0].became_ready() && !listed[0].became_ready());
    assert_eq!(index.services[&NamespacedName::new("shoot", "etcd")].since, at(1));
}

#[test]
fn a_list_of_one_service_leaves_the_others_alone() {
    let mut index = Index::default();
    index.apply(slice("etcd", "etcd", &[READY]), at(1));
    index.apply(slice("kube-apiserver", "kube-apiserver", &[READY]), at(1));
    let gone = index.list(Some("etcd"), Vec::new(), at(2));
    assert_eq!(gone.len(), 1);
    assert_eq!(is_ready(&index, "kube-apiserver"), Some(true));
    assert_eq!(index.keep_services(|_| false, at(3)).len(), 1);
    assert!(index.services.is_empty() && index.slices.is_empty());
}

#[test]
fn a_service_is_judged_once_its_list_is_complete() {
    let mut index = Index::default();
    index.apply(slice("v4", "etcd", &[READY]), at(1));
    let moved = vec![slice("v4", "etcd", &[BAD]), slice("v6", "etcd", &[READY])];
    let changes = index.list(None, moved, at(2));
    assert_eq!(changes.len(), 1);
    assert!(!changes[0].became_ready(), "it was ready all the time");
}

#[derive(Debug, Clone)]
enum Step {
    Apply(Slice),
    Remove(NamespacedName),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let name = prop::sample::select(vec!["a", "b", "c", "d"]);
    let service = prop::option::weighted(0.9, prop::sample::select(vec!["etcd", "kube-apiserver"]));
    let conditions = prop::collection::vec(any::<Option<bool>>(), 0..4);
    let apply = (name.clone(), service, conditions).prop_map(|(name, service, conditions)| {
        Step::Apply(Slice {
            key: key(name),
            service: service.map(Into::into),
            endpoints: Endpoints::of(conditions.into_iter().map(|ready| ready.unwrap_or(true))),
            write: None,
            triggered: None,
        })
    });
    let remove = name.prop_map(|name| Step::Remove(key(name)));
    prop::collection::vec(prop_oneof![4 => apply, 1 => remove], 0..40)
}

/// The readiness of a service, straight from the rule.
fn by_the_rule(slices: &BTreeMap<NamespacedName, Slice>, service: &str) -> Option<bool> {
    let of_service = slices
        .values()
        .filter(|slice| slice.service.as_deref() == Some(service));
    of_service
        .map(|slice| slice.endpoints.ready > 0)
        .reduce(|any, ready| any || ready)
}

proptest! {
    #[test]
    fn every_change_is_that_of_the_rule(steps in steps()) {
        let mut index = Index::default();
        let mut slices = BTreeMap::new();
        for (i, step) in steps.into_iter().enumerate() {
            let before = slices.clone();
            let changes = match step {
                Step::Apply(slice) => {
                    slices.insert(slice.key.clone(), slice.clone());
                    index.apply(slice, at(i as i64))
                }
                Step::Remove(key) => {
                    slices.remove(&key);
                    index.remove(&key, at(i as i64))
                }
            };
            for service in ["etcd", "kube-apiserver"] {
                let was = by_the_rule(&before, service);
                let is = by_the_rule(&slices, service);
                prop_assert_eq!(is_ready(&index, service), is);
                let starts = changes.iter().any(|c| *c.key.name == *service && c.became_ready());
                let wanted = is == Some(true) && was != Some(true);
                prop_assert_eq!(starts, wanted, "{} was {:?}, is {:?}", service, was, is);
            }
        }
    }

    #[test]
    fn a_first_list_starts_every_ready_service_once_in_any_order(
        slices in prop::collection::vec((0_u8..3, prop::collection::vec(any::<Option<bool>>(), 0..3)), 0..8)
            .prop_map(|slices| {
                let named = |(i, (service, conditions)): (usize, (u8, Vec<_>))| {
                    slice(&i.to_string(), &format!("service-{service}"), &conditions)
                };
                slices.into_iter().enumerate().map(named).collect::<Vec<_>>()
            })
            .prop_flat_map(|slices| (Just(slices.clone()), Just(slices).prop_shuffle())),
    ) {
        let run = |slices: Vec<Slice>| {
            let mut index = Index::default();
            let mut started: Vec<_> = index
                .list(None, slices, at(0))
                .into_iter()
                .filter(ServiceChange::became_ready)
                .map(|change| change.key)
                .collect();
            started.sort();
            let end: Vec<_> = index.services.into_iter().collect();
            (started, end)
        };
        let (sorted, shuffled) = slices;
        let (started, end) = run(sorted);
        let unique: BTreeSet<_> = started.iter().collect();
        prop_assert_eq!(unique.len(), started.len(), "each starts once");
        prop_assert_eq!((started, end), run(shuffled));
    }
}
