//! Whatever a file or an API server holds, the decoders answer: they neither panic nor, where one bad object must not
//! hide the others, fail. The decoders are plain functions over bytes, so that a fuzzer can also drive them.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "clippy exempts test functions, not their helpers"
)]

use proptest::prelude::*;
use serde_json::{Value, json};
use watchdog_api::{
    cluster::Cluster,
    config::{ConfigError, UnknownFields},
    eligibility::{may_continue, may_start},
    kubeconfig,
    lease::LeaseItem,
    list::ItemList,
    machine::MachineItem,
    node::NodeItem,
    prober,
    secret::KubeconfigSecret,
    text, weeder,
    workload::Workload,
};

const CLUSTER: &str = include_str!("fixtures/cluster.json");
const LEASES: &str = include_str!("fixtures/leases.json");
const NODES: &str = include_str!("fixtures/nodes.json");
const KUBECONFIG: &str = include_str!("fixtures/kubeconfig-gardener.yaml");
const PROBER: &str = include_str!("fixtures/prober-gardener.yaml");
const BAD_PROBER: &str = include_str!("fixtures/prober-bad.yaml");
const WEEDER: &str = include_str!("fixtures/weeder-gardener.yaml");

/// Drives every decoder; the rest of what they say is checked elsewhere.
fn decode_all(bytes: &[u8]) {
    let _ = ItemList::<LeaseItem>::from_slice(bytes);
    let _ = ItemList::<NodeItem>::from_slice(bytes);
    let _ = ItemList::<MachineItem>::from_slice(bytes);
    let _ = kubeconfig::parse(bytes);
    let _ = kubeconfig::of_seed(&["seed".into()], None, &|_| Ok(bytes.to_vec()));
    let prober = prober::parse(bytes, UnknownFields::Refused).err();
    let weeder = weeder::parse(bytes, UnknownFields::Ignored).err();
    let lines = bytes.split(|byte| *byte == b'\n').count() as u64;
    for errors in [prober, weeder].into_iter().flatten() {
        let errors = errors.errors();
        assert!(!errors.is_empty(), "a refusal says why");
        let inside = |error: &ConfigError| (1..=lines + 1).contains(&error.line) && error.column >= 1;
        assert!(errors.iter().all(inside), "{errors:?}");
    }
    if let Ok(secret) = serde_json::from_slice::<KubeconfigSecret>(bytes) {
        let _ = secret.kubeconfig();
    }
    if let Ok(cluster) = serde_json::from_slice::<Cluster>(bytes) {
        let _ = (may_start(&cluster), may_continue(&cluster));
    }
    if let Ok(workload) = serde_json::from_slice::<Workload>(bytes) {
        let _ = (workload.ready_replicas(), workload.recorded_replicas());
    }
}

/// A document with some bytes changed, a piece taken out, or a piece twice.
fn damaged(text: &'static str) -> impl Strategy<Value = Vec<u8>> {
    let span = (any::<prop::sample::Index>(), 0_usize..40);
    (
        span,
        prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        0_u8..3,
    )
        .prop_map(move |((start, length), changes, kind)| {
            let mut bytes = text.as_bytes().to_vec();
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            let start = start.index(bytes.len());
            let end = (start + length).min(bytes.len());
            match kind {
                0 => drop(bytes.drain(start..end)),
                1 => {
                    let piece = bytes[start..end].to_vec();
                    bytes.splice(end..end, piece);
                }
                _ => {}
            }
            bytes
        })
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        // Not any float: printing and reading one again may change its last digit.
        prop::sample::select(vec![0.5, -1e300]).prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
        prop::sample::select(vec!["-5s", "40s", "Migrate", "2026-11-21T10:00:00Z"]).prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("name|spec|status|type|[a-z]{0,4}", inner, 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// All the ways into a document.
fn pointers(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    match value {
        Value::Array(items) => {
            items
                .iter()
                .enumerate()
                .for_each(|(index, item)| pointers(item, &format!("{at}/{index}"), found));
        }
        Value::Object(fields) => fields.iter().for_each(|(key, field)| {
            let key = key.replace('~', "~0").replace('/', "~1");
            pointers(field, &format!("{at}/{key}"), found);
        }),
        _ => {}
    }
}

/// The document with another value somewhere below the top.
fn replaced(text: &'static str) -> impl Strategy<Value = Value> {
    (any::<prop::sample::Index>(), any_json()).prop_map(move |(at, other)| {
        let mut document: Value = serde_json::from_str(text).unwrap();
        let mut found = Vec::new();
        pointers(&document, "", &mut found);
        let pointer = &found[1 + at.index(found.len() - 1)];
        *document.pointer_mut(pointer).unwrap() = other;
        document
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        decode_all(&bytes);
    }

    #[test]
    fn arbitrary_json(value in any_json()) {
        decode_all(value.to_string().as_bytes());
    }

    #[test]
    fn damaged_documents(bytes in prop_oneof![
        damaged(CLUSTER), damaged(LEASES), damaged(NODES), damaged(KUBECONFIG), damaged(PROBER), damaged(BAD_PROBER),
        damaged(WEEDER),
    ]) {
        decode_all(&bytes);
    }

    /// A Cluster of any shape decodes, and keeps its name unless that is what is wrong.
    #[test]
    fn a_cluster_is_decoded_whatever_is_in_it(document in replaced(CLUSTER)) {
        let cluster: Cluster = serde_json::from_str(&document.to_string()).unwrap();
        let name = document.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        // A separator of lines is part of no name.
        let name = if text::name(name).is_ok() { name } else { "" };
        prop_assert_eq!(cluster.name(), name);
        let buffered: Cluster = serde_json::from_value(document).unwrap();
        prop_assert_eq!(buffered.shoot, cluster.shoot);
        prop_assert_eq!(buffered.metadata, cluster.metadata);
    }

    /// One item of any shape changes nothing for the others.
    #[test]
    fn a_list_keeps_its_good_items(other in any_json(), at in 0_usize..=2) {
        let mut list: Value = serde_json::from_str(LEASES).unwrap();
        let items = list["items"].as_array_mut().unwrap();
        items.insert(at, other);
        let bytes = list.to_string();
        let decoded = ItemList::<LeaseItem>::from_slice(bytes.as_bytes()).unwrap();
        let mut names: Vec<_> = decoded.items.iter().map(|item| item.ok().map(|lease| &*lease.name)).collect();
        names.remove(at);
        prop_assert_eq!(names, [Some("node-a-5c7f9"), Some("node-b-77d2k")]);
    }

    #[test]
    fn a_watched_object_is_decoded_whatever_is_in_it(fields in prop::collection::vec(any_json(), 3)) {
        let object = json!({"metadata": fields[0], "spec": fields[1], "status": fields[2], "data": fields[1]});
        let object = object.to_string();
        prop_assert!(serde_json::from_str::<Workload>(&object).is_ok());
        prop_assert!(serde_json::from_str::<KubeconfigSecret>(&object).is_ok());
    }
}
