//! Whatever a file or an API server holds, the decoders answer: they neither panic nor, where one bad object must not
//! hide the others, fail. No name that comes out of them has more than 253 bytes, no sentence more than 512 characters,
//! and a terminal acts on none of it.

#![cfg(test)]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "clippy exempts test functions, not their helpers"
)]

#[path = "fixtures/hostile_documents.rs"]
mod hostile_documents;

use hostile_documents::{hostile_texts, pointers, variants};
use proptest::prelude::*;
use serde_json::{Value, json};
use watchdog_api::cluster::Cluster;
use watchdog_api::config::{ConfigError, UnknownFields};
use watchdog_api::eligibility::{may_continue, may_start};
use watchdog_api::lease::LeaseItem;
use watchdog_api::list::{Item, ItemList, ListError};
use watchdog_api::machine::MachineItem;
use watchdog_api::names::{FAILURE_FRACTION_ANNOTATION, MODE_ANNOTATION};
use watchdog_api::node::NodeItem;
use watchdog_api::policy::{parse_failure_fraction, parse_mode};
use watchdog_api::secret::KubeconfigSecret;
use watchdog_api::text::{self, is_printable};
use watchdog_api::workload::{IgnoreScaling, RecordedReplicas, Workload};
use watchdog_api::{kubeconfig, prober, weeder};

const CLUSTER: &str = include_str!("fixtures/cluster.json");
const LEASES: &str = include_str!("fixtures/leases.json");
const NODES: &str = include_str!("fixtures/nodes.json");
const KUBECONFIG: &str = include_str!("fixtures/kubeconfig-gardener.yaml");
const PROBER: &str = include_str!("fixtures/prober-gardener.yaml");
const BAD_PROBER: &str = include_str!("fixtures/prober-bad.yaml");
const WEEDER: &str = include_str!("fixtures/weeder-gardener.yaml");

/// The most bytes of a name, and of a provider ID.
const NAME: usize = 253;
const PROVIDER_ID: usize = 512;

/// The most characters of a sentence, with the mark where it was cut and the path of its field.
const SENTENCE: usize = 600;

fn check(text: &str, most: usize) {
    assert!(text.len() <= most, "{} bytes", text.len());
    assert!(text.chars().all(is_printable), "{text:?}");
}

/// The texts of the items that can be read, by `texts`, and of those that cannot.
fn check_items<T>(items: &[Item<T>], texts: impl Fn(&T) -> Vec<Option<&str>>) -> usize {
    let mut malformed = 0;
    for item in items {
        match item {
            Item::Ok(item) => { texts(item).into_iter().flatten() }.for_each(|text| check(text, PROVIDER_ID)),
            Item::Malformed { name, reason } => {
                check(name.as_deref().unwrap_or_default(), NAME);
                check(reason, SENTENCE);
                malformed += 1;
            }
        }
    }
    malformed
}

/// Reads the list with hostile text in every place. Counts the malformed items, and the lists that are refused.
fn check_lists<T>(
    list: &Value,
    read: impl Fn(&[u8]) -> Result<ItemList<T>, ListError>,
    texts: impl Fn(&T) -> Vec<Option<&str>>,
) -> (usize, usize) {
    let (mut malformed, mut refused) = (0, 0);
    for list in variants(list) {
        match read(list.to_string().as_bytes()) {
            Ok(page) => malformed += check_items(&page.items, &texts),
            Err(error) => {
                check(&error.to_string(), SENTENCE);
                refused += 1;
            }
        }
    }
    (malformed, refused)
}

#[test]
fn leases_nodes_and_machines() {
    let leases: Value = serde_json::from_str(LEASES).unwrap();
    let of_leases = check_lists(&leases, LeaseItem::page::<500>, |lease| vec![Some(&lease.name)]);
    let nodes: Value = serde_json::from_str(NODES).unwrap();
    let read = |bytes: &[u8]| ItemList::<NodeItem>::from_slice(bytes);
    let of_nodes = check_lists(&nodes, read, |node| {
        let texts = [&node.pool, &node.zone, &node.provider_id];
        let texts = texts.into_iter().map(Option::as_deref);
        texts.chain([Some(&*node.name)]).collect()
    });
    let machine = json!({
        "metadata": {"name": "m", "resourceVersion": "7", "labels": {"node": "n"}},
        "spec": {"providerID": "aws:///z/i-1"},
        "status": {"currentStatus": {"phase": "Running"}},
    });
    let machines = json!({"metadata": {"resourceVersion": "7"}, "items": [machine]});
    let read = |bytes: &[u8]| ItemList::<MachineItem>::from_slice(bytes);
    let of_machines = check_lists(&machines, read, |machine| {
        let (node, id) = (machine.node.as_deref(), machine.provider_id.as_deref());
        vec![Some(&machine.name), node, id]
    });
    for (malformed, refused) in [of_leases, of_nodes, of_machines] {
        assert!(malformed > 0 && refused > 0, "{malformed} {refused}");
    }
}

#[test]
fn clusters() {
    let mut cluster: Value = serde_json::from_str(CLUSTER).unwrap();
    for annotations in ["/metadata/annotations", "/spec/shoot/metadata/annotations"] {
        *cluster.pointer_mut(annotations).unwrap() = json!({
            MODE_ANNOTATION: "observe",
            FAILURE_FRACTION_ANNOTATION: "0.5",
        });
    }
    let (mut refused, mut quoted) = (0, 0);
    for document in variants(&cluster) {
        let read: Cluster = serde_json::from_slice(document.to_string().as_bytes()).unwrap();
        check(read.name(), NAME);
        for reason in [may_start(&read).err(), may_continue(&read).err()]
            .into_iter()
            .flatten()
        {
            check(&reason.to_string(), SENTENCE);
            refused += 1;
        }
        if let Ok(shoot) = &read.shoot {
            let of_mode = shoot.mode.as_deref().map(parse_mode);
            let of_fraction = shoot.failure_fraction.as_deref().map(parse_failure_fraction);
            let errors = [of_mode.and_then(Result::err), of_fraction.and_then(Result::err)];
            for error in errors.into_iter().flatten() {
                check(&error.to_string(), SENTENCE);
                quoted += 1;
            }
        }
    }
    assert!(refused > 0 && quoted > 0, "{refused} {quoted}");
}

#[test]
fn secrets() {
    let secret = json!({
        "metadata": {"name": "probe", "namespace": "shoot--a--b", "uid": "1", "resourceVersion": "7"},
        "data": {"kubeconfig": "YXBpVmVyc2lvbjogdjE="},
    });
    for document in variants(&secret) {
        let read: KubeconfigSecret = serde_json::from_slice(document.to_string().as_bytes()).unwrap();
        check(read.metadata.name.as_deref().unwrap_or_default(), NAME);
        check(read.metadata.namespace.as_deref().unwrap_or_default(), NAME);
        if let Err(reason) = read.kubeconfig() {
            check(reason, SENTENCE);
        }
    }
}

#[test]
fn workloads() {
    let fields = json!({"f:spec": {"f:replicas": {}}, "f:metadata": {"f:annotations": {
        "f:dependency-watchdog.gardener.cloud/meltdown-protection-active": {},
    }}});
    let workload = json!({
        "metadata": {
            "name": "kcm", "namespace": "shoot--a--b", "resourceVersion": "7",
            "annotations": {
                "dependency-watchdog.gardener.cloud/replicas": "2",
                "dependency-watchdog.gardener.cloud/ignore-scaling": "false",
            },
            "managedFields": [{"manager": "m", "time": "2026-11-20T21:14:55Z", "fieldsV1": fields}],
        },
        "spec": {"replicas": 1},
        "status": {"readyReplicas": 1},
    });
    let mut quoted = 0;
    for document in variants(&workload) {
        let read: Workload = serde_json::from_slice(document.to_string().as_bytes()).unwrap();
        check(read.metadata.name.as_deref().unwrap_or_default(), NAME);
        let writers = read.writers();
        for writer in [writers.replicas, writers.protection].iter().flatten() {
            check(writer, NAME);
        }
        if let RecordedReplicas::Unreadable(text) = read.recorded_replicas() {
            check(&text, 256);
            quoted += 1;
        }
        if let IgnoreScaling::Invalid(text) = read.ignore_scaling() {
            check(&text, 256);
            quoted += 1;
        }
        check(&read.replicas.clone().err().unwrap_or_default(), SENTENCE);
        check(read.ready_replicas().err().unwrap_or_default(), SENTENCE);
    }
    assert_eq!(quoted, 2 * hostile_texts().len());
}

/// The longest that a cloud makes is that of Azure. A Machine that counts as malformed would fail the whole list.
#[test]
fn a_long_provider_id_is_none_of_these() {
    let id = format!(
        "azure:///subscriptions/{}/resourceGroups/{}/providers/Microsoft.Compute/virtualMachines/{}",
        "s".repeat(36),
        "g".repeat(90),
        "m".repeat(64)
    );
    assert!(id.len() > NAME);
    let machine: MachineItem =
        serde_json::from_value(json!({"metadata": {"name": "m"}, "spec": {"providerID": id}})).unwrap();
    let node: NodeItem =
        serde_json::from_value(json!({"metadata": {"name": "n"}, "spec": {"providerID": id}})).unwrap();
    assert_eq!(
        (machine.provider_id.as_deref(), node.provider_id.as_deref()),
        (Some(&*id), Some(&*id))
    );
}

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
        let is_shown = |error: &ConfigError| error.to_string().chars().all(is_printable);
        assert!(errors.iter().all(is_shown), "{errors:?}");
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

/// The document with another value somewhere below the top.
fn replaced(text: &'static str) -> impl Strategy<Value = Value> {
    (any::<prop::sample::Index>(), any_json()).prop_map(move |(at, other)| {
        let mut document: Value = serde_json::from_str(text).unwrap();
        let found = pointers(&document);
        // The last one is that to the whole.
        let pointer = &found[at.index(found.len() - 1)];
        *document.pointer_mut(pointer).unwrap() = other;
        document
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

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
