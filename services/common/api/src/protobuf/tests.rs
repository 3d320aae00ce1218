use super::*;
use crate::lease::{LeaseItem, LeaseList};
use crate::list::Item;

/// What a server may send, with the fields that are skipped.
#[derive(Clone, PartialEq, Message)]
struct SentLease {
    #[prost(message, optional, tag = "1")]
    metadata: Option<SentMeta>,
    #[prost(message, optional, tag = "2")]
    spec: Option<SentSpec>,
}

#[derive(Clone, PartialEq, Message)]
struct SentMeta {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(string, tag = "6")]
    resource_version: String,
    #[prost(message, repeated, tag = "17")]
    managed_fields: Vec<SentSpec>,
}

#[derive(Clone, PartialEq, Message)]
struct SentSpec {
    #[prost(string, optional, tag = "1")]
    holder_identity: Option<String>,
    #[prost(int32, optional, tag = "2")]
    lease_duration_seconds: Option<i32>,
    #[prost(message, optional, tag = "4")]
    renew_time: Option<MicroTime>,
    #[prost(int32, optional, tag = "5")]
    lease_transitions: Option<i32>,
}

fn document(kind: &str, raw: &impl Message) -> Vec<u8> {
    #[derive(Clone, PartialEq, Message)]
    struct Sent {
        #[prost(message, optional, tag = "1")]
        type_meta: Option<TypeMeta>,
        #[prost(bytes = "vec", tag = "2")]
        raw: Vec<u8>,
    }
    let sent = Sent {
        type_meta: Some(TypeMeta {
            kind: kind.to_owned(),
        }),
        raw: raw.encode_to_vec(),
    };
    [MAGIC, sent.encode_to_vec().as_slice()].concat()
}

fn leases(items: Vec<SentLease>) -> Vec<u8> {
    let metadata = ListMeta {
        resource_version: "148203".to_owned(),
        continue_token: "more".to_owned(),
    };
    let list = List {
        metadata: Some(metadata),
        items,
    };
    document("LeaseList", &list)
}

fn lease(name: &[u8], renew_time: Option<MicroTime>) -> SentLease {
    let spec = SentSpec {
        holder_identity: Some("node-1".to_owned()),
        lease_duration_seconds: Some(40),
        renew_time,
        lease_transitions: Some(1),
    };
    SentLease {
        metadata: Some(SentMeta {
            name: name.to_vec(),
            resource_version: "7".to_owned(),
            managed_fields: vec![spec.clone()],
        }),
        spec: Some(spec),
    }
}

fn page(bytes: &[u8]) -> LeaseList {
    LeaseItem::page::<3>(bytes).unwrap()
}

#[test]
fn a_list_says_the_same_as_in_json() {
    let renewed = MicroTime {
        seconds: 1_763_720_130,
        nanos: 123_456_000,
    };
    let never = Some(MicroTime::default());
    let empty = SentLease {
        spec: None,
        ..lease(b"new", None)
    };
    let found = page(&leases(vec![
        lease(b"node-a", Some(renewed)),
        lease(b"node-b", never),
        empty,
    ]));
    let json = r#"{"metadata": {"resourceVersion": "148203", "continue": "more"}, "items": [
        {"metadata": {"name": "node-a"},
         "spec": {"leaseDurationSeconds": 40, "renewTime": "2025-11-21T10:15:30.123456Z"}},
        {"metadata": {"name": "node-b"}, "spec": {"leaseDurationSeconds": 40, "renewTime": null}},
        {"metadata": {"name": "new"}}]}"#;
    assert_eq!(found, page(json.as_bytes()));
    assert!(found.items.iter().all(|item| item.ok().is_some()), "{found:?}");
}

#[test]
fn a_lease_that_cannot_be_decoded_is_reported_by_name() {
    let end_of_time = MicroTime {
        seconds: i64::MAX,
        nanos: 0,
    };
    let long = "n".repeat(254);
    let nameless = SentLease {
        metadata: None,
        ..lease(b"", None)
    };
    for (lease, expected_name, expected_reason) in [
        (lease(b"bad", Some(end_of_time)), Some("bad"), "spec.renewTime"),
        (lease(b"", None), None, "metadata.name"),
        (nameless, None, "metadata.name"),
        (lease(long.as_bytes(), None), Some(long.as_str()), "metadata.name"),
    ] {
        let found = page(&leases(vec![lease, self::lease(b"good", None)]));
        let Item::Malformed { name, reason } = &found.items[0] else {
            panic!("{found:?}")
        };
        assert_eq!(name.as_deref(), expected_name);
        assert!(reason.starts_with(expected_reason), "{reason}");
        assert!(found.items[1].ok().is_some());
    }
}

#[test]
fn nothing_else_passes_for_a_list() {
    let one = || vec![lease(b"node-a", None)];
    let good = leases(one());
    assert_eq!(page(&good).items.len(), 1);
    let broken = [
        MAGIC.to_vec(),
        document(
            "NodeList",
            &List {
                metadata: None,
                items: one(),
            },
        ),
        document("Status", &Status { message: None }),
        leases(vec![lease(b"not \xff UTF-8", None)]),
        leases(vec![lease(b"n", None); 4]),
        good[..good.len() - 1].to_vec(),
        [good.as_slice(), b"\xff"].concat(),
    ];
    for bytes in broken {
        let error = LeaseItem::page::<3>(&bytes).unwrap_err().to_string();
        assert!(
            error.starts_with("the answer is not a Kubernetes list"),
            "{error}"
        );
        assert!(!error.contains("node-a"), "{error}");
    }
}

#[test]
fn a_list_without_leases_is_one() {
    assert_eq!(page(&leases(Vec::new())).items, []);
    let bare = document("LeaseList", &());
    assert_eq!(page(&bare).items, []);
}

#[test]
fn the_message_of_a_status_is_read() {
    let status = Status {
        message: Some("etcdserver: request timed out".to_owned()),
    };
    let bytes = document("Status", &status);
    assert_eq!(status_message(&bytes), status.message);
    for other in [document("Event", &status), b"{}".to_vec(), Vec::new()] {
        assert_eq!(status_message(&other), None);
    }
}
