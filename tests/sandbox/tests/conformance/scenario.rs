//! The requests to both servers.

use serde_json::{Value, json};

use super::transcript::Step;

const MERGE: &str = "application/merge-patch+json";
const PARTIAL: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const PARTIAL_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

const MAPS: &str = "/api/v1/namespaces/conf/configmaps";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/conf/leases";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/conf/deployments";
const ETCDS: &str = "/apis/druid.gardener.cloud/v1alpha1/namespaces/conf/etcds";

/// The shown part of an object.
const OBJECT: &[&str] = &[
    "/kind",
    "/apiVersion",
    "/metadata/name",
    "/metadata/namespace",
    "/metadata/resourceVersion",
    "/metadata/generation",
    "/metadata/labels",
    "/metadata/deletionTimestamp",
    "/data",
];
const SCALABLE: &[&str] = &[
    "/kind",
    "/metadata/resourceVersion",
    "/metadata/generation",
    "/spec/replicas",
    "/status",
];
const WHOLE_SCALE: &[&str] = &["/kind", "/apiVersion", "/metadata", "/spec", "/status"];

fn map(name: &str, data: Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": data })
}

pub(crate) fn steps() -> Vec<Step> {
    [
        create(),
        update(),
        patch(),
        scale(),
        delete(),
        list(),
        watch(),
        views(),
        nowhere(),
        rights(),
    ]
    .concat()
}

fn post(name: &'static str, path: &str, body: &Value) -> Step {
    Step::new(name, "POST", path).body(body).show(OBJECT)
}

fn create() -> Vec<Step> {
    vec![
        post(
            "namespace",
            "/api/v1/namespaces",
            &json!({ "metadata": { "name": "conf" } }),
        )
        .show(&["/kind", "/metadata/name", "/status/phase"]),
        post("map a", MAPS, &map("a", json!({ "k": "v" }))),
        post("map a again", MAPS, &map("a", json!({}))),
        post(
            "with a version",
            MAPS,
            &json!({ "metadata": { "name": "b", "resourceVersion": "5" } }),
        ),
        post("bad name", MAPS, &map("Not_a_name", json!({}))),
        post("no name", MAPS, &json!({ "metadata": {} })),
        post(
            "no such namespace",
            "/api/v1/namespaces/nowhere/configmaps",
            &map("a", json!({})),
        ),
        post(
            "another namespace",
            MAPS,
            &json!({ "metadata": { "name": "b", "namespace": "default" } }),
        ),
        post(
            "another kind",
            MAPS,
            &json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "b" } }),
        )
        .terse(),
        Step::new("no JSON", "POST", MAPS).raw("{").terse(),
        post(
            "wrong type",
            MAPS,
            &json!({ "metadata": { "name": "b" }, "data": 5 }),
        )
        .terse(),
        post(
            "unknown field",
            MAPS,
            &json!({ "metadata": { "name": "u" }, "dat": {} }),
        )
        .show(&["/metadata/name", "/dat"]),
        post(
            "lease with milliseconds",
            LEASES,
            &json!({ "metadata": { "name": "l" }, "spec": { "renewTime": "2026-11-21T07:00:00.123Z" } }),
        )
        .terse(),
        post(
            "lease",
            LEASES,
            &json!({ "metadata": { "name": "l" }, "spec": {
                "holderIdentity": "h", "leaseDurationSeconds": 40, "renewTime": "2026-11-21T07:00:00.123456Z",
            } }),
        )
        .show(&["/kind", "/apiVersion", "/metadata/generation", "/spec"]),
        post(
            "event without what it needs",
            "/apis/events.k8s.io/v1/namespaces/conf/events",
            &json!({ "metadata": { "name": "e" } }),
        )
        .terse(),
    ]
}

fn update() -> Vec<Step> {
    let a = format!("{MAPS}/a");
    let put = |name, body: &Value| Step::new(name, "PUT", a.as_str()).body(body).show(OBJECT);
    let versioned = |version: &str, data: Value| {
        let mut body = map("a", data);
        body["metadata"]["resourceVersion"] = version.into();
        body
    };
    let mut other_uid = map("a", json!({ "k": "u" }));
    other_uid["metadata"]["uid"] = "11111111-1111-1111-1111-111111111111".into();
    vec![
        put(
            "no change",
            &versioned("${map a:/metadata/resourceVersion}", json!({ "k": "v" })),
        ),
        put(
            "change",
            &versioned("${map a:/metadata/resourceVersion}", json!({ "k": "w" })),
        ),
        put(
            "stale",
            &versioned("${map a:/metadata/resourceVersion}", json!({ "k": "x" })),
        ),
        put("unconditional", &map("a", json!({ "k": "y" }))),
        put("another name", &map("b", json!({}))),
        put("another uid", &other_uid).terse(),
        Step::new("put of nothing", "PUT", format!("{MAPS}/none"))
            .body(&map("none", json!({})))
            .terse(),
        Step::new("lease without version", "PUT", format!("{LEASES}/l"))
            .body(&json!({ "metadata": { "name": "l" }, "spec": {} })),
    ]
}

fn patch() -> Vec<Step> {
    let a = format!("{MAPS}/a");
    let patch = |name, kind, body: &Value| {
        Step::new(name, "PATCH", a.as_str())
            .header("Content-Type", kind)
            .body(body)
            .show(OBJECT)
    };
    vec![
        patch(
            "merge",
            MERGE,
            &json!({ "data": { "k": null, "n": "1" }, "metadata": { "labels": { "l": "1" } } }),
        ),
        patch("merge of nothing new", MERGE, &json!({ "data": { "n": "1" } })),
        patch(
            "merge at a stale version",
            MERGE,
            &json!({ "metadata": { "resourceVersion": "${map a:/metadata/resourceVersion}" }, "data": { "n": "2" } }),
        ),
        patch("unknown patch", "application/unknown", &json!({})).terse(),
        patch("wrong type by patch", MERGE, &json!({ "data": 5 })).terse(),
        patch(
            "another name by patch",
            MERGE,
            &json!({ "metadata": { "name": "b" } }),
        )
        .terse(),
        Step::new("patch of nothing", "PATCH", format!("{MAPS}/none"))
            .header("Content-Type", MERGE)
            .body(&json!({ "data": {} })),
    ]
}

fn scale() -> Vec<Step> {
    let deployment = json!({
        "metadata": { "name": "d" },
        "spec": {
            "selector": { "matchLabels": { "b": "2", "a": "1" } },
            "template": {
                "metadata": { "labels": { "a": "1", "b": "2" } },
                "spec": { "containers": [{ "name": "c", "image": "none" }] },
            },
        },
        "status": { "readyReplicas": 5 },
    });
    let d = format!("{DEPLOYMENTS}/d");
    let of = |name, method, path: String, body: Value| {
        let step = Step::new(name, method, path).show(WHOLE_SCALE);
        let step = if method == "PATCH" {
            step.header("Content-Type", MERGE)
        } else {
            step
        };
        if body.is_null() { step } else { step.body(&body) }
    };
    let scaled = |version: &str, replicas: i32| {
        json!({
            "metadata": { "name": "d", "namespace": "conf", "resourceVersion": version },
            "spec": { "replicas": replicas },
        })
    };
    let path = format!("{d}/scale");
    let etcd = json!({
        "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "Etcd", "metadata": { "name": "e" },
        "spec": { "replicas": 3, "x": 1 }, "status": { "replicas": 3, "labelSelector": "a=b" },
    });
    vec![
        post("deployment", DEPLOYMENTS, &deployment).show(SCALABLE),
        of("get scale", "GET", path.clone(), Value::Null),
        of(
            "put scale",
            "PUT",
            path.clone(),
            scaled("${deployment:/metadata/resourceVersion}", 3),
        ),
        of(
            "put scale at a stale version",
            "PUT",
            path.clone(),
            scaled("${deployment:/metadata/resourceVersion}", 4),
        ),
        of("put scale without version", "PUT", path.clone(), scaled("", 2)),
        of(
            "patch scale to zero",
            "PATCH",
            path.clone(),
            json!({ "spec": { "replicas": 0 } }),
        ),
        of(
            "patch scale to zero again",
            "PATCH",
            path.clone(),
            json!({ "spec": { "replicas": 0 } }),
        ),
        of(
            "patch scale at a stale version",
            "PATCH",
            path.clone(),
            json!({
                "metadata": { "resourceVersion": "${deployment:/metadata/resourceVersion}" },
                "spec": { "replicas": 1 },
            }),
        ),
        of(
            "patch scale below zero",
            "PATCH",
            path.clone(),
            json!({ "spec": { "replicas": -1 } }),
        ),
        of(
            "patch scale to text",
            "PATCH",
            path.clone(),
            json!({ "spec": { "replicas": "1" } }),
        )
        .terse(),
        of(
            "scale of nothing",
            "GET",
            format!("{DEPLOYMENTS}/none/scale"),
            Value::Null,
        ),
        Step::new("scaled deployment", "GET", d.as_str()).show(SCALABLE),
        Step::new("status", "PATCH", format!("{d}/status"))
            .header("Content-Type", MERGE)
            .body(&json!({ "spec": { "replicas": 7 }, "status": { "replicas": 1, "readyReplicas": 1 } }))
            .show(SCALABLE),
        Step::new("main", "PATCH", d.as_str())
            .header("Content-Type", MERGE)
            .body(&json!({ "spec": { "replicas": 7 }, "status": { "readyReplicas": 3 } }))
            .show(SCALABLE),
        Step::new("annotation", "PATCH", d.as_str())
            .header("Content-Type", MERGE)
            .body(&json!({ "metadata": { "annotations": { "a": "b" } } }))
            .show(SCALABLE),
        post("etcd", ETCDS, &etcd).show(SCALABLE),
        Step::new("etcd status", "PATCH", format!("{ETCDS}/e/status"))
            .header("Content-Type", MERGE)
            .body(&json!({ "spec": { "x": 2 }, "status": { "replicas": 3, "labelSelector": "a=b" } }))
            .show(SCALABLE),
        of("etcd scale", "GET", format!("{ETCDS}/e/scale"), Value::Null),
        of(
            "scale etcd",
            "PATCH",
            format!("{ETCDS}/e/scale"),
            json!({ "spec": { "replicas": 0 } }),
        ),
        Step::new("etcd without version", "PUT", format!("{ETCDS}/e")).body(&etcd),
        Step::new("scaled etcd", "GET", format!("{ETCDS}/e")).show(SCALABLE),
    ]
}

fn delete() -> Vec<Step> {
    let del = |name, object: &str| Step::new(name, "DELETE", format!("{MAPS}/{object}")).show(OBJECT);
    let kept = json!({ "metadata": { "name": "kept", "finalizers": ["example.com/keep"] } });
    vec![
        post("map p", MAPS, &map("p", json!({}))),
        del("other uid", "p")
            .body(&json!({ "preconditions": { "uid": "other" } }))
            .terse(),
        del("other version", "p")
            .body(&json!({ "preconditions": { "resourceVersion": "1" } }))
            .terse(),
        del("right uid and version", "p").body(&json!({ "preconditions": {
            "uid": "${map p:/metadata/uid}", "resourceVersion": "${map p:/metadata/resourceVersion}",
        } })),
        del("gone", "p"),
        post("map kept", MAPS, &kept),
        del("kept", "kept").show(&[
            "/kind",
            "/metadata/name",
            "/metadata/resourceVersion",
            "/metadata/deletionTimestamp",
        ]),
        del("kept again", "kept").show(&[
            "/kind",
            "/metadata/name",
            "/metadata/resourceVersion",
            "/metadata/deletionTimestamp",
        ]),
        Step::new("let go", "PATCH", format!("{MAPS}/kept"))
            .header("Content-Type", MERGE)
            .body(&json!({ "metadata": { "finalizers": null } }))
            .show(&["/kind", "/metadata/name", "/metadata/resourceVersion"]),
        Step::new("let go indeed", "GET", format!("{MAPS}/kept")),
        Step::new("delete etcd", "DELETE", format!("{ETCDS}/e")),
    ]
}

fn list() -> Vec<Step> {
    let secrets = "/api/v1/namespaces/conf/services";
    let page = |name, query: &str| {
        Step::new(name, "GET", format!("{LEASES}?{query}")).show(&[
            "/kind",
            "/apiVersion",
            "/metadata/continue",
            "/items/0/metadata/name",
            "/items/1/metadata/name",
            "/items/0/kind",
        ])
    };
    vec![
        post("second lease", LEASES, &json!({ "metadata": { "name": "m" } })),
        page("all leases", ""),
        page("first page", "limit=1"),
        page("second page", "limit=1&continue=${first page:/metadata/continue}"),
        page("by name", "fieldSelector=metadata.name%3Dl"),
        page("by unknown field", "fieldSelector=spec.holderIdentity%3Dh"),
        page("bad field selector", "fieldSelector=l").terse(),
        page("bad label selector", "labelSelector=a%20b").terse(),
        page("bad limit", "limit=x").terse(),
        page("bad continue", "continue=x").terse(),
        Step::new("empty list", "GET", secrets).show(&["/kind", "/apiVersion", "/items"]),
        Step::new("labels", "GET", format!("{MAPS}?labelSelector=l%20in%20(1,2)"))
            .show(&["/items/0/metadata/name", "/items/1/metadata/name"]),
        Step::new("custom items say what they are", "GET", ETCDS).show(&["/kind", "/items"]),
    ]
}

fn watch() -> Vec<Step> {
    const EVENT: &[&str] = &["/kind", "/metadata/name", "/metadata/resourceVersion", "/data"];
    let labelled = |name: &'static str, labels: Value| {
        let body = json!({ "metadata": { "labels": labels }, "data": { "at": name } });
        Step::new(name, "PATCH", format!("{MAPS}/w"))
            .header("Content-Type", MERGE)
            .body(&body)
            .show(EVENT)
    };
    let watch = |name, query: &str| {
        Step::new(name, "GET", format!("{MAPS}?watch=true&timeoutSeconds=1&{query}")).show(EVENT)
    };
    vec![
        post("map w", MAPS, &map("w", json!({ "at": "start" }))).show(EVENT),
        labelled("joins", json!({ "on": "yes" })),
        labelled("stays", json!({ "on": "yes" })),
        labelled("leaves", json!({ "on": "no" })),
        labelled("is elsewhere", json!({ "on": "no" })),
        labelled("joins again", json!({ "on": "yes" })),
        Step::new("ends", "DELETE", format!("{MAPS}/w")),
        watch(
            "by label",
            "labelSelector=on%3Dyes&resourceVersion=${map w:/metadata/resourceVersion}",
        ),
        watch(
            "by name",
            "fieldSelector=metadata.name%3Dw&resourceVersion=${joins again:/metadata/resourceVersion}",
        ),
        Step::new(
            "one object",
            "GET",
            format!(
                "{MAPS}/w?watch=true&timeoutSeconds=1&resourceVersion=${{leaves:/metadata/resourceVersion}}"
            ),
        )
        .show(EVENT),
    ]
}

fn views() -> Vec<Step> {
    let get = |name, path: &str, accept| Step::new(name, "GET", path).header("Accept", accept);
    let a = format!("{MAPS}/a");
    vec![
        get("partial", &a, PARTIAL).show(&["/kind", "/apiVersion", "/metadata/name", "/data"]),
        get("partial list", LEASES, PARTIAL_LIST).show(&[
            "/kind",
            "/apiVersion",
            "/items/0/kind",
            "/items/0/spec",
        ]),
        get("html", &a, "text/html").terse(),
        get("one of several", &a, "text/html,application/json").show(&["/kind"]),
    ]
}

fn nowhere() -> Vec<Step> {
    vec![
        Step::new("no such group", "GET", "/apis/none.example.com/v1/things"),
        Step::new("no such version", "GET", "/apis/apps/v9/deployments"),
        Step::new("no such resource", "GET", "/apis/apps/v1/namespaces/conf/things"),
        Step::new("no such sub-resource", "GET", format!("{DEPLOYMENTS}/d/things")),
        Step::new("no scale here", "GET", format!("{MAPS}/a/scale")),
        Step::new("post on an object", "POST", format!("{MAPS}/a")).body(&map("a", json!({}))),
        Step::new("put on a collection", "PUT", MAPS).body(&map("a", json!({}))),
    ]
}

fn rights() -> Vec<Step> {
    let bob = |step: Step| step.header("Impersonate-User", "bob");
    let review = |name, attributes: Value| {
        Step::new(
            name,
            "POST",
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        )
        .body(&json!({ "spec": { "resourceAttributes": attributes } }))
        .show(&["/kind", "/spec", "/status/allowed"])
    };
    let scale = json!({ "verb": "patch", "group": "apps", "resource": "deployments", "subresource": "scale",
        "namespace": "conf" });
    vec![
        bob(Step::new("bob lists", "GET", "/api/v1/namespaces/conf/secrets")),
        bob(Step::new("bob lists all", "GET", "/api/v1/secrets")),
        bob(Step::new("bob gets", "GET", format!("{DEPLOYMENTS}/d"))),
        bob(Step::new(
            "bob lists by name",
            "GET",
            "/api/v1/secrets?fieldSelector=metadata.name%3Dprobe",
        )),
        bob(Step::new("bob watches nodes", "GET", "/api/v1/nodes?watch=true")),
        bob(Step::new("bob scales", "PATCH", format!("{DEPLOYMENTS}/d/scale")))
            .header("Content-Type", MERGE)
            .body(&json!({})),
        bob(Step::new("bob creates", "POST", MAPS)).body(&map("x", json!({}))),
        bob(review("bob asks", scale.clone())),
        review("the administrator asks", scale),
        Step::new(
            "review without attributes",
            "POST",
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        )
        .body(&json!({ "spec": {} }))
        .terse(),
        Step::new(
            "get of reviews",
            "GET",
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        ),
    ]
}
