//! Pods and slices with hostile text in every place that holds text. A container writes its own termination message,
//! and the readers hand such texts on to the log, to Events, to the API and to labels of metrics.

use serde_json::json;
use watchdog_api::text::is_printable;

use crate::hostile_documents::variants;

/// The most bytes of a name, and characters of a termination message.
const NAME: usize = 253;
const MESSAGE: usize = 200;

fn check(text: &str, most: usize) {
    assert!(
        text.chars().count() <= most,
        "{} characters",
        text.chars().count()
    );
    assert!(text.chars().all(is_printable), "{text:?}");
}

#[test]
fn pods() {
    let status = json!({
        "name": "main", "restartCount": 5, "image": "i", "ready": false,
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "m"}},
        "lastState": {"terminated": {
            "exitCode": 1, "reason": "Error", "message": "m", "finishedAt": "2020-11-21T08:00:00Z",
        }},
    });
    let pod = json!({
        "metadata": {
            "name": "kcm", "namespace": "shoot--a--b", "uid": "1", "resourceVersion": "7",
            "creationTimestamp": "2020-11-21T08:00:00Z", "labels": {"role": "controller-manager"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "kcm", "uid": "2",
                "controller": true}],
        },
        "status": {"phase": "Running", "containerStatuses": [status]},
    });
    let (mut read, mut skipped) = (0, 0);
    for document in variants(&pod) {
        let Ok(Some((_, crash))) = weeder::read_pod(document.to_string().as_bytes()) else {
            skipped += 1;
            continue;
        };
        check(&crash.container, NAME);
        check(&crash.reason, NAME);
        check(&crash.message, MESSAGE);
        read += 1;
    }
    assert!(read > 0 && skipped > 0, "{read} {skipped}");
}

#[test]
fn slices_and_endpoints() {
    let slice = json!({
        "metadata": {
            "name": "kube-apiserver-1", "namespace": "shoot--a--b", "uid": "1", "resourceVersion": "7",
            "labels": {"kubernetes.io/service-name": "kube-apiserver"},
            "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "2020-11-21T08:00:00Z"},
            "managedFields": [{"manager": "m", "time": "2020-11-21T08:00:00Z"}],
        },
        "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": true, "serving": true}}],
        "subsets": [{"addresses": [{"ip": "10.0.0.1"}], "notReadyAddresses": [{"ip": "10.0.0.2"}]}],
    });
    let mut read = 0;
    for document in variants(&slice) {
        let bytes = document.to_string();
        for found in [
            weeder::read_slice(bytes.as_bytes()),
            weeder::read_endpoints(bytes.as_bytes()),
        ] {
            if let Ok(Some(slice)) = found {
                let shown = format!("{slice:?}");
                check(&shown, 1_000);
                read += 1;
            }
        }
    }
    assert!(read > 0);
}
