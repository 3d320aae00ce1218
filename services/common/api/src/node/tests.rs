use super::*;
use crate::list::{Item, ItemList};
use serde_json::json;

#[test]
fn reads_a_list_as_the_api_server_answers_it() {
    let list = ItemList::<NodeItem>::from_slice(include_bytes!("../../tests/fixtures/nodes.json")).unwrap();
    let nodes: Vec<_> = list.items.iter().filter_map(Item::ok).collect();
    assert_eq!(nodes.len(), list.items.len());
    let [first, second] = nodes.as_slice() else {
        panic!("two nodes")
    };
    assert_eq!(
        (&*first.name, first.pool.as_deref(), first.zone.as_deref()),
        ("node-a", Some("worker-a"), Some("eu-1a"))
    );
    assert!(!first.not_managed_by_mcm);
    assert!(!first.in_place_update());
    assert_eq!(first.true_conditions().collect::<Vec<_>>(), ["Ready"]);
    assert!(second.not_managed_by_mcm);
    assert!(second.in_place_update());
    assert_eq!(
        second.true_conditions().collect::<Vec<_>>(),
        ["DiskPressure", "InPlaceUpdate"]
    );
}

#[test]
fn the_annotation_counts_whatever_its_value() {
    for value in [json!("1"), json!("false"), json!(""), json!(null)] {
        let annotations = json!({"node.machine.sapcloud.io/not-managed-by-mcm": value});
        let node = json!({"metadata": {"name": "n", "annotations": annotations}});
        let node: NodeItem = serde_json::from_value(node).unwrap();
        assert!(node.not_managed_by_mcm);
    }
}

#[test]
fn in_place_updates_are_told_by_their_reason() {
    for (kind, reason, expected) in [
        ("InPlaceUpdate", "ReadyForUpdate", true),
        ("InPlaceUpdate", "UpdateFailed", true),
        ("InPlaceUpdate", "CandidateForUpdate", false),
        ("InPlaceUpdate", "UpdateSuccessful", false),
        ("Ready", "UpdateFailed", false),
    ] {
        for status in ["True", "False", "Unknown"] {
            let conditions = json!([{"type": kind, "status": status, "reason": reason}]);
            let node = json!({"metadata": {"name": "n"}, "status": {"conditions": conditions}});
            let node: NodeItem = serde_json::from_value(node).unwrap();
            assert_eq!(node.in_place_update(), expected, "{kind} {reason} {status}");
        }
    }
}

#[test]
fn what_no_real_node_has_makes_a_node_malformed() {
    let node = |name: &str, zone: &str, conditions: usize| {
        let conditions = vec![json!({"type": "a"}); conditions];
        serde_json::from_value::<NodeItem>(json!({
            "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}},
            "status": {"conditions": conditions},
        }))
    };
    assert_eq!(node("n", "", 128).unwrap().zone.as_deref(), Some(""));
    assert!(node(&"n".repeat(253), &"z".repeat(63), 0).is_ok());
    assert!(node(&"n".repeat(254), "z", 0).is_err());
    assert!(node("n", &"z".repeat(254), 0).is_err());
    assert!(node("n", "z", 129).is_err());
}

#[test]
fn a_node_may_lack_all_but_its_name() {
    for object in [
        json!({"metadata": {"name": "n"}}),
        json!({"metadata": {"name": "n", "labels": null, "annotations": null}, "status": null}),
        json!({"metadata": {"name": "n", "labels": {}, "annotations": {}}, "status": {"conditions": null}}),
    ] {
        let node: NodeItem = serde_json::from_value(object).unwrap();
        assert_eq!((node.pool, node.zone, node.conditions.len()), (None, None, 0));
    }
    assert!(serde_json::from_value::<NodeItem>(json!({"metadata": {}})).is_err());
}
