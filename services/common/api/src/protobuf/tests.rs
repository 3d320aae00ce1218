use jiff::Timestamp;

use super::*;
use crate::lease::LeaseItem;
use crate::list::{Item, ItemList};

/// Eleven leases of a kube-apiserver 1.20.2: without a spec, with an empty one, never renewed, renewed at the epoch and
/// before it, in other time zones and to the nanosecond.
const RECORDED: &[u8] = include_bytes!("../../tests/fixtures/leases-1.20.2.pb");
const RECORDED_IN_JSON: &[u8] = include_bytes!("../../tests/fixtures/leases-1.20.2.json");
/// Its answer to a user without permissions.
const FORBIDDEN: &[u8] = include_bytes!("../../tests/fixtures/forbidden-1.20.2.pb");

/// A document with this content.
fn document<T: Message + Default + Debug + Clone>(kind: &str, raw: &T) -> Vec<u8> {
    let type_meta = TypeMeta {
        kind: kind.to_owned(),
    };
    let envelope = Envelope {
        type_meta: Some(type_meta),
        raw: Some(raw.clone()),
    };
    [MAGIC, envelope.encode_to_vec().as_slice()].concat()
}

fn list(items: Vec<Lease>) -> LeaseList {
    LeaseList {
        metadata: Some(PageMeta::default()),
        items,
    }
}

fn lease(name: &str, seconds: Option<i64>) -> Lease {
    Lease {
        metadata: Some(ObjectMeta {
            name: name.to_owned(),
            ..ObjectMeta::default()
        }),
        spec: Some(LeaseSpec {
            lease_duration_seconds: Some(40),
            renew_time: Some(MicroTime { seconds, nanos: 0 }),
        }),
    }
}

fn page(bytes: &[u8]) -> Result<ItemList<LeaseItem>, ListError> {
    LeaseItem::page::<11>(bytes)
}

#[test]
fn a_recorded_list_says_the_same_as_in_json() {
    let (found, expected) = (page(RECORDED).unwrap(), page(RECORDED_IN_JSON).unwrap());
    assert_eq!(found, expected);
    let leases: Vec<_> = found.items.iter().filter_map(Item::ok).collect();
    assert_eq!(leases.len(), 11);
    let epoch = Timestamp::UNIX_EPOCH;
    assert!(leases.iter().any(|lease| lease.renew_time == Some(epoch)));
    assert!(leases.iter().any(|lease| lease.renew_time < Some(epoch)));
}

#[test]
fn no_part_of_a_list_passes_for_a_list() {
    let whole = page(RECORDED).unwrap();
    for end in 0..RECORDED.len() {
        if let Ok(found) = page(&RECORDED[..end]) {
            // Empty fields follow the content.
            assert_eq!(found, whole, "{end}");
        }
    }
}

#[test]
fn nothing_else_passes_for_a_list() {
    let one = list(vec![lease("node-a", None)]);
    let good = document("LeaseList", &one);
    assert_eq!(page(&good).unwrap().items.len(), 1);
    let mut not_utf8 = good.clone();
    let at = not_utf8.windows(6).position(|found| found == b"node-a").unwrap();
    not_utf8[at] = 0xff;
    let no_metadata = LeaseList {
        metadata: None,
        ..one.clone()
    };
    for bytes in [
        MAGIC.to_vec(),
        document("NodeList", &one),
        document("Status", &Status { message: None }),
        document("LeaseList", &()),
        document("LeaseList", &no_metadata),
        document("LeaseList", &list(vec![lease("n", None); 12])),
        [good.as_slice(), &good[MAGIC.len()..]].concat(),
        [good.as_slice(), b"\xff"].concat(),
        not_utf8,
    ] {
        let error = page(&bytes).unwrap_err().to_string();
        assert!(
            error.starts_with("the answer is not a Kubernetes list"),
            "{error}"
        );
        assert!(!error.contains("node-a"), "{error}");
    }
    assert_eq!(page(&document("LeaseList", &list(Vec::new()))).unwrap().items, []);
}

#[test]
fn a_lease_that_cannot_be_used_is_reported_by_name() {
    let long = "n".repeat(254);
    let nameless = Lease {
        metadata: None,
        ..lease("", None)
    };
    for (bad, expected_name, expected_reason) in [
        (lease("bad", Some(i64::MAX)), Some("bad"), "spec.renewTime"),
        (lease("", None), None, "metadata.name"),
        (nameless, None, "metadata.name"),
        (lease(&long, None), Some(long.as_str()), "metadata.name"),
    ] {
        let found = page(&document("LeaseList", &list(vec![bad, lease("good", None)]))).unwrap();
        let Item::Malformed { name, reason } = &found.items[0] else {
            panic!("{found:?}")
        };
        assert_eq!(name.as_deref(), expected_name);
        assert!(reason.starts_with(expected_reason), "{reason}");
        assert!(found.items[1].ok().is_some());
    }
}

#[test]
fn the_message_of_a_status_is_read() {
    let message = status_message(FORBIDDEN).unwrap();
    assert!(message.contains("is forbidden"), "{message}");
    for other in [RECORDED, b"{}", b""] {
        assert_eq!(status_message(other), None);
    }
}
