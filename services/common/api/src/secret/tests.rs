use super::*;
use kube::core::ObjectList;
use serde_json::{Value, json};

fn secret(data: Value) -> KubeconfigSecret {
    let object =
        json!({"metadata": {"name": "probe", "namespace": "shoot--a--b"}, "type": "Opaque", "data": data});
    serde_json::from_value(object).unwrap()
}

#[test]
fn holds_the_kubeconfig_and_nothing_else() {
    let found = secret(json!({"kubeconfig": "YXBpVmVyc2lvbjogdjE=", "token": "c2VjcmV0"}));
    assert_eq!(found.kubeconfig(), Ok(Some(&b"apiVersion: v1"[..])));
    let shown = format!("{found:?}");
    assert_eq!(
        shown,
        "KubeconfigSecret { namespace: Some(\"shoot--a--b\"), name: Some(\"probe\"), .. }"
    );
    for none in [Value::Null, json!({}), json!({"kubeconfig": null})] {
        assert_eq!(secret(none).kubeconfig(), Ok(None));
    }
    let bare: KubeconfigSecret = serde_json::from_value(json!({})).unwrap();
    assert_eq!(bare.kubeconfig(), Ok(None));
}

/// One that cannot be read is known by its name, says what is wrong but not what it holds, and hides no other.
#[test]
fn a_malformed_one_says_what_is_wrong_and_not_what_is_in_it() {
    let list = json!({"apiVersion": "v1", "kind": "SecretList", "metadata": {}, "items": [
        {"metadata": {"name": "a"}, "data": "TOP-SECRET"},
        {"metadata": {"name": "b"}, "data": {"kubeconfig": ["TOP-SECRET"]}},
        {"metadata": {"name": "c"}, "data": {"kubeconfig": "no base64: TOP-SECRET"}},
        {"metadata": {"name": "d"}, "data": {"kubeconfig": "eA==", "other": ["TOP-SECRET"]}},
    ]});
    let list: ObjectList<KubeconfigSecret> = serde_json::from_value(list).unwrap();
    let [a, b, c, d] = list.items.as_slice() else {
        panic!("four items")
    };
    for (secret, name) in [(a, "a"), (b, "b"), (c, "c")] {
        assert_eq!(secret.metadata.name.as_deref(), Some(name));
        let reason = secret.kubeconfig().unwrap_err();
        assert!(!reason.contains("TOP") && !reason.is_empty(), "{reason}");
    }
    assert!(b.kubeconfig().unwrap_err().starts_with("data.kubeconfig"));
    assert_eq!(d.kubeconfig(), Ok(Some(&b"x"[..])));
}
