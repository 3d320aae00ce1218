use super::*;
use serde_json::json;

fn object(node: serde_json::Value, phase: serde_json::Value) -> serde_json::Value {
    json!({
        "metadata": {"name": "m", "namespace": "shoot--a--b", "labels": {"node": node, "name": "pool"}},
        "status": {"currentStatus": {"phase": phase}, "lastOperation": {"state": "Processing"}},
    })
}

#[test]
fn reads_node_and_phase() {
    let rows = [
        (json!("n"), json!("Running"), Some("n"), MachinePhase::Other),
        (json!("n"), json!("Failed"), Some("n"), MachinePhase::Failed),
        (
            json!("n"),
            json!("Terminating"),
            Some("n"),
            MachinePhase::Terminating,
        ),
        (json!("n"), json!("Pending"), Some("n"), MachinePhase::Other),
        (json!("n"), json!(""), Some("n"), MachinePhase::Other),
        (json!(""), json!(null), None, MachinePhase::Other),
    ];
    for (node, phase, expected_node, expected_phase) in rows {
        let object = object(node, phase);
        let item: MachineItem = serde_json::from_value(object).unwrap();
        assert_eq!(
            (&*item.name, item.node.as_deref(), item.phase),
            ("m", expected_node, expected_phase)
        );
    }
}

#[test]
fn a_new_machine_has_neither_node_nor_phase() {
    for object in [
        json!({"metadata": {"name": "m"}}),
        json!({"metadata": {"name": "m", "labels": null}, "status": null}),
    ] {
        let item: MachineItem = serde_json::from_value(object).unwrap();
        assert_eq!((item.node, item.phase), (None, MachinePhase::Other));
    }
}
