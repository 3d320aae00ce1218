use super::*;
use crate::list::Item;
use serde_json::json;

fn lease(spec: serde_json::Value) -> Result<LeaseItem, serde_json::Error> {
    serde_json::from_value(json!({"metadata": {"name": "node-1"}, "spec": spec}))
}

#[test]
fn reads_a_list_as_the_api_server_answers_it() {
    let list = ItemList::<LeaseItem>::from_slice(include_bytes!("../../tests/fixtures/leases.json")).unwrap();
    assert_eq!(list.metadata.resource_version, "148203");
    assert_eq!(list.metadata.continue_token, "");
    let leases: Vec<_> = list.items.iter().filter_map(Item::ok).collect();
    assert_eq!(leases.len(), 2);
    assert_eq!(&*leases[0].name, "node-a-5c7f9");
    assert_eq!(
        leases[0].renew_time,
        Some("2026-11-21T10:15:30.123456Z".parse().unwrap())
    );
    assert_eq!(leases[0].lease_duration_seconds, Some(40));
    assert_eq!(leases[1].renew_time, None, "the second lease was never renewed");
}

#[test]
fn reads_every_notation_of_a_time() {
    let expected: Timestamp = "2026-11-21T10:15:30Z".parse().unwrap();
    for text in [
        "2026-11-21T10:15:30Z",
        "2026-11-21t10:15:30z",
        "2026-11-21T10:15:30.000000Z",
        "2026-11-21T10:15:30.000000000Z",
        "2026-11-21T12:15:30.0+02:00",
    ] {
        let lease = lease(json!({"renewTime": text})).unwrap();
        assert_eq!(lease.renew_time, Some(expected), "{text}");
    }
    for odd in [
        "0001-01-01T00:00:00.000000Z",
        "2099-01-01T00:00:00.000000Z",
        "2016-12-31T23:59:60.000000Z",
    ] {
        assert!(
            lease(json!({"renewTime": odd})).unwrap().renew_time.is_some(),
            "{odd}"
        );
    }
}

#[test]
fn a_lease_may_lack_all_but_its_name() {
    for spec in [
        json!(null),
        json!({}),
        json!({"renewTime": null, "leaseDurationSeconds": null}),
    ] {
        let lease = lease(spec).unwrap();
        assert_eq!((lease.renew_time, lease.lease_duration_seconds), (None, None));
    }
    assert!(serde_json::from_value::<LeaseItem>(json!({"metadata": {"name": "n"}})).is_ok());
    for object in [
        json!({}),
        json!({"metadata": {}}),
        json!({"metadata": {"name": ""}}),
        json!({"metadata": null}),
        json!({"metadata": {"name": "n"}, "spec": "x"}),
        json!({"metadata": {"name": "n"}, "spec": {"leaseDurationSeconds": "40"}}),
        json!({"metadata": {"name": "n"}, "spec": {"leaseDurationSeconds": 4_000_000_000_u64}}),
    ] {
        assert!(
            serde_json::from_value::<LeaseItem>(object.clone()).is_err(),
            "{object}"
        );
    }
}

#[test]
fn names_with_escapes_are_decoded() {
    let lease: LeaseItem = serde_json::from_str(r#"{"metadata":{"name":"a\u002db"}}"#).unwrap();
    assert_eq!(&*lease.name, "a-b");
}
