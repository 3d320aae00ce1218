use super::*;
use proptest::prelude::*;
use serde_json::json;

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Thing {
    metadata: Meta,
    size: u32,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Meta {
    name: String,
}

fn page(json: &serde_json::Value) -> Result<ItemList<Thing>, ListError> {
    ItemList::from_slice(json.to_string().leak().as_bytes())
}

fn thing(name: &str, size: u32) -> Item<Thing> {
    Item::Ok(Thing {
        metadata: Meta {
            name: name.to_owned(),
        },
        size,
    })
}

#[test]
fn decodes_a_page() {
    let list = page(&json!({
        "kind": "ThingList", "apiVersion": "v1",
        "metadata": {"resourceVersion": "77", "continue": "abc", "remainingItemCount": 3},
        "items": [{"metadata": {"name": "a", "managedFields": []}, "size": 1}],
    }));
    let list = list.unwrap();
    assert_eq!(list.metadata.resource_version, "77");
    assert_eq!(list.metadata.continue_token, "abc");
    assert_eq!(list.items, [thing("a", 1)]);
}

#[test]
fn metadata_may_be_absent_but_items_may_not() {
    let last = page(&json!({"metadata": null, "items": null})).unwrap();
    assert_eq!((last.metadata, last.items), (PageMeta::default(), Vec::new()));
    assert_eq!(page(&json!({"items": []})).unwrap().items, []);
    let odd_version = json!({"items": [], "metadata": {"resourceVersion": 7}});
    for answer in [
        json!({}),
        json!([]),
        json!("items"),
        json!({"items": {}}),
        odd_version,
    ] {
        assert!(page(&answer).is_err(), "{answer}");
    }
    let status = page(&json!({"kind": "Status", "status": "hunter2"}));
    let expected = "the answer is not a Kubernetes list: missing field `items` at line 1 column 36";
    assert_eq!(status.unwrap_err().to_string(), expected);
}

#[test]
fn a_malformed_item_is_named_and_hides_no_other() {
    let list = page(&json!({"items": [
        {"metadata": {"name": "a"}, "size": 1},
        {"metadata": {"name": "b"}, "size": "hunter2"},
        {"metadata": {"name": 3}, "size": 1},
        {"size": 1},
        null,
        "hunter2",
        {"metadata": {"name": "c"}, "size": 2},
    ]}));
    let list = list.unwrap();
    assert_eq!(list.items.first(), Some(&thing("a", 1)));
    assert_eq!(list.items.last(), Some(&thing("c", 2)));
    let bad: Vec<_> = list.items.iter().filter(|item| item.ok().is_none()).collect();
    assert_eq!(bad.len(), 5);
    let Item::Malformed { name, reason } = bad[0] else {
        panic!("malformed")
    };
    assert_eq!(name.as_deref(), Some("b"));
    assert_eq!(
        reason,
        "size: invalid type: string …, expected u32 at line 1 column 41"
    );
    assert!(
        bad[1..]
            .iter()
            .all(|item| matches!(item, Item::Malformed { name: None, .. }))
    );
    assert!(!format!("{bad:?}").contains("hunter2"));
}

#[test]
fn a_page_that_ends_early_is_an_error() {
    let whole = json!({"items": [{"metadata": {"name": "a"}, "size": 1}]}).to_string();
    for end in 0..whole.len() {
        assert!(
            ItemList::<Thing>::from_slice(&whole.as_bytes()[..end]).is_err(),
            "{end}"
        );
    }
}

#[test]
fn a_page_has_no_more_items_than_were_asked_for() {
    let things = |count: u32| {
        let items: Vec<_> = (0..count)
            .map(|n| json!({"metadata": {"name": "a"}, "size": n}))
            .collect();
        json!({"items": items}).to_string()
    };
    let decoded = |text: &str| ItemList::<Thing>::at_most::<3>(text.as_bytes()).map(|list| list.items.len());
    assert_eq!(decoded(&things(3)).unwrap(), 3);
    let error = decoded(&things(4)).unwrap_err().to_string();
    assert!(error.contains("more than 3 entries"), "{error}");
    assert!(
        decoded(r#"{"items": [0, 1, 2, 3]}"#).is_err(),
        "malformed ones count"
    );
    assert_eq!(decoded(r#"{"items": [0, 1, 2]}"#).unwrap(), 3);
}

proptest! {
    /// Both ways of decoding agree where there is nothing malformed.
    #[test]
    fn the_fast_and_the_slow_way_agree(
        names in prop::collection::vec("[a-z\"\\\\é]{1,8}", 0..5), size in any::<u32>(),
    ) {
        let items: Vec<_> = names.iter().map(|name| json!({"metadata": {"name": name}, "size": size})).collect();
        let bytes = json!({"metadata": {"resourceVersion": "1"}, "items": items}).to_string();
        let fast = ItemList::<Thing>::from_slice(bytes.as_bytes()).unwrap();
        let slow = ItemList::<Thing>::item_by_item::<5>(bytes.as_bytes()).unwrap();
        prop_assert_eq!(&fast, &slow);
        let expected: Vec<_> = names.iter().map(|name| thing(name, size)).collect();
        prop_assert_eq!(fast.items, expected);
    }
}
