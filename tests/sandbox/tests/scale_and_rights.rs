//! The scale sub-resource, access reviews, 403 and authentication.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a failed test may panic"
)]

mod support;

use k8s_openapi::api::{
    apps::v1::Deployment,
    authorization::v1::SelfSubjectAccessReview,
    coordination::v1::Lease,
    core::v1::{ConfigMap, Secret},
};
use kube::{
    Api, Discovery,
    api::{
        ApiResource, DynamicObject, GroupVersionKind, ListParams, ObjectMeta, Patch, PatchParams, PostParams,
    },
    runtime::events::{Event, EventType, Recorder},
};
use serde_json::{Value, json};
use support::{client, client_of, deployment, server};
use watchdog_sandbox::{
    Rule,
    resource::{ResourceType, ScalePaths},
};

#[tokio::test]
async fn scale_with_a_precondition() {
    let api = server().await;
    let deployments: Api<Deployment> = Api::namespaced(client(&api, "admin").await, "default");
    let created = deployments
        .create(&PostParams::default(), &deployment("d", 3))
        .await
        .unwrap();
    let scale = deployments.get_scale("d").await.unwrap();
    assert_eq!(scale.spec.as_ref().unwrap().replicas, Some(3));
    assert_eq!(scale.status.as_ref().unwrap().selector.as_deref(), Some("app=d"));
    assert_eq!(scale.metadata.resource_version, created.metadata.resource_version);

    let params = PatchParams::default();
    let to_zero = |version: &Option<String>| {
        Patch::Merge(json!({ "metadata": { "resourceVersion": version }, "spec": { "replicas": 0 } }))
    };
    let zero = deployments
        .patch_scale("d", &params, &to_zero(&created.metadata.resource_version))
        .await
        .unwrap();
    assert_eq!(
        zero.spec.unwrap_or_default().replicas,
        None,
        "Go leaves a zero out"
    );
    let stale = deployments
        .patch_scale("d", &params, &to_zero(&created.metadata.resource_version))
        .await;
    let Err(kube::Error::Api(status)) = stale else {
        panic!("not refused")
    };
    assert!(status.is_conflict(), "{status}");
    let deployment = deployments.get("d").await.unwrap();
    assert_eq!(deployment.spec.unwrap().replicas, Some(0));
    assert_eq!(deployment.metadata.generation, Some(2));

    let mut put = deployments.get_scale("d").await.unwrap();
    put.spec.get_or_insert_default().replicas = Some(2);
    let put = deployments
        .replace_scale("d", &PostParams::default(), &put)
        .await
        .unwrap();
    assert_eq!(put.spec.unwrap().replicas, Some(2));

    let negative = Patch::Merge(json!({ "spec": { "replicas": -1 } }));
    let Err(kube::Error::Api(status)) = deployments.patch_scale("d", &params, &negative).await else {
        panic!("not refused")
    };
    assert!(status.is_invalid(), "{status}");
}

#[tokio::test]
async fn any_kind_with_a_scale_sub_resource_scales() {
    let api = server().await;
    api.register(ResourceType::custom(
        "druid.gardener.cloud",
        "v1alpha1",
        "Etcd",
        "etcds",
        Some(ScalePaths::CUSTOM),
    ));
    let client = client(&api, "admin").await;
    let kind = GroupVersionKind::gvk("druid.gardener.cloud", "v1alpha1", "Etcd");
    let discovery = Discovery::new(client.clone()).run().await.unwrap();
    let (resource, _) = discovery.resolve_gvk(&kind).unwrap();
    assert_eq!(resource.plural, "etcds");
    let etcds: Api<DynamicObject> = Api::namespaced_with(client, "default", &resource);
    let etcd: DynamicObject = serde_json::from_value(
        json!({ "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "Etcd",
            "metadata": { "name": "e" }, "spec": { "replicas": 3 } }),
    )
    .unwrap();
    etcds.create(&PostParams::default(), &etcd).await.unwrap();
    let patch = Patch::Merge(json!({ "spec": { "replicas": 1 } }));
    let scale = etcds
        .patch_scale("e", &PatchParams::default(), &patch)
        .await
        .unwrap();
    assert_eq!(scale.spec.unwrap().replicas, Some(1));

    let strategic = Patch::Strategic(json!({ "spec": { "replicas": 1 } }));
    let Err(kube::Error::Api(status)) = etcds.patch("e", &PatchParams::default(), &strategic).await else {
        panic!("custom resources know no strategic merge patch")
    };
    assert_eq!(status.code, 415);
}

#[tokio::test]
async fn reviews_and_requests_follow_the_same_rules() {
    let api = server().await;
    let client = client(&api, "prober").await;
    let review = async |verb: &str, resource: &str| {
        let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
        let review: SelfSubjectAccessReview = serde_json::from_value(json!({
            "metadata": {},
            "spec": { "resourceAttributes": {
                "verb": verb, "resource": resource, "group": "", "namespace": "default",
            } },
        }))
        .unwrap();
        reviews
            .create(&PostParams::default(), &review)
            .await
            .unwrap()
            .status
            .unwrap()
            .allowed
    };
    assert!(review("list", "secrets").await);
    api.deny(Rule {
        user: Some("prober".into()),
        verbs: vec!["list".into()],
        resources: vec!["secrets".into()],
        ..Rule::default()
    });
    assert!(!review("list", "secrets").await);
    assert!(review("get", "secrets").await);
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "default");
    let Err(kube::Error::Api(status)) = secrets.list(&ListParams::default()).await else {
        panic!("not forbidden")
    };
    assert!(status.is_forbidden());
    assert_eq!(
        status.message,
        "secrets is forbidden: User \"prober\" cannot list resource \"secrets\" in API group \"\" in the \
         namespace \"default\""
    );
    api.allow_all();
    assert!(secrets.list(&ListParams::default()).await.is_ok());
}

#[tokio::test]
async fn resource_names_limit_lists_by_name() {
    let api = server().await;
    api.restrict(
        "prober",
        vec![Rule {
            verbs: vec!["list".into(), "watch".into()],
            resources: vec!["secrets".into()],
            names: vec!["probe".into()],
            ..Rule::default()
        }],
    );
    let secrets: Api<Secret> = Api::all(client(&api, "prober").await);
    assert!(
        secrets
            .list(&ListParams::default().fields("metadata.name=probe"))
            .await
            .is_ok()
    );
    assert!(secrets.list(&ListParams::default()).await.is_err());
}

#[tokio::test]
async fn tokens_and_certificates() {
    let api = server().await;
    let with_certificate = client_of(&api.kubeconfig_with_certificate("carol").unwrap()).await;
    let maps: Api<ConfigMap> = Api::namespaced(with_certificate, "default");
    maps.list(&ListParams::default()).await.unwrap();
    assert_eq!(api.audit().last().unwrap().user, "carol");

    let maps: Api<ConfigMap> = Api::namespaced(client(&api, "dave").await, "default");
    maps.list(&ListParams::default()).await.unwrap();
    api.revoke("dave");
    let Err(kube::Error::Api(status)) = maps.list(&ListParams::default()).await else {
        panic!("a revoked token was accepted")
    };
    assert_eq!((status.code, status.reason.as_str()), (401, "Unauthorized"));
    let entry = api.audit().pop().unwrap();
    assert_eq!(
        (entry.verb, entry.path.as_str()),
        ("list", "/api/v1/namespaces/default/configmaps")
    );
    assert_eq!((entry.user.as_str(), entry.code), ("", 401));
    assert_eq!(api.counters().requests, 3);
}

#[tokio::test]
async fn events_and_server_side_apply() {
    let api = server().await;
    let client = client(&api, "admin").await;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "default");
    let created = deployments
        .create(&PostParams::default(), &deployment("d", 1))
        .await
        .unwrap();
    let recorder = Recorder::new(client.clone(), "sandbox-test".into());
    let event = Event {
        type_: EventType::Normal,
        reason: "Scaled".into(),
        note: Some("to 0".into()),
        action: "Scale".into(),
        secondary: None,
    };
    let reference = kube::Resource::object_ref(&created, &());
    recorder.publish(&event, &reference).await.unwrap();
    recorder.publish(&event, &reference).await.unwrap();
    let events: Api<k8s_openapi::api::events::v1::Event> = Api::namespaced(client.clone(), "default");
    let events = events.list(&ListParams::default()).await.unwrap();
    assert_eq!(events.items[0].series.as_ref().unwrap().count, 2);

    let leases: Api<Lease> = Api::namespaced(client, "default");
    let lease = |holder: &str| Lease {
        metadata: ObjectMeta {
            name: Some("l".into()),
            ..ObjectMeta::default()
        },
        spec: Some(k8s_openapi::api::coordination::v1::LeaseSpec {
            holder_identity: Some(holder.into()),
            renew_time: Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime(
                jiff::Timestamp::now(),
            )),
            ..Default::default()
        }),
    };
    leases
        .patch("l", &PatchParams::apply("one"), &Patch::Apply(lease("one")))
        .await
        .unwrap();
    let taken = leases
        .patch("l", &PatchParams::apply("two"), &Patch::Apply(lease("two")))
        .await;
    let Err(kube::Error::Api(status)) = taken else {
        panic!("no conflict")
    };
    assert!(
        status.is_conflict() && status.message.contains("conflict with \"one\""),
        "{status}"
    );
    let forced = PatchParams::apply("two").force();
    let lease = leases
        .patch("l", &forced, &Patch::Apply(lease("two")))
        .await
        .unwrap();
    assert_eq!(lease.spec.unwrap().holder_identity.as_deref(), Some("two"));
}

#[tokio::test]
async fn unknown_things_are_not_found_in_the_two_ways_of_the_real_server() {
    let api = server().await;
    let client = client(&api, "admin").await;
    let of = |group: &str, version: &str, plural: &str| {
        let resource = ApiResource {
            group: group.into(),
            version: version.into(),
            api_version: if group.is_empty() {
                version.into()
            } else {
                format!("{group}/{version}")
            },
            kind: "K".into(),
            plural: plural.into(),
        };
        Api::<DynamicObject>::all_with(client.clone(), &resource)
    };
    // No such group: plain text, which kube wraps.
    let error = of("none.example.com", "v1", "things")
        .list(&ListParams::default())
        .await
        .unwrap_err();
    let kube::Error::Api(status) = error else {
        panic!("{error}")
    };
    assert_eq!(
        (status.code, status.message.as_str()),
        (404, "404 page not found")
    );
    // No such version or resource in a known group: a Status.
    api.unregister(&watchdog_sandbox::resource::keys::ENDPOINT_SLICES);
    let slices = of("discovery.k8s.io", "v1", "endpointslices")
        .list(&ListParams::default())
        .await;
    let Err(kube::Error::Api(status)) = slices else {
        panic!("served although unregistered")
    };
    assert!(status.is_not_found());
    let error = of("apps", "v1", "daemonsets")
        .list(&ListParams::default())
        .await
        .unwrap_err();
    let kube::Error::Api(status) = error else {
        panic!("{error}")
    };
    assert_eq!(status.message, "the server could not find the requested resource");
    assert!(status.is_not_found());
}

#[tokio::test]
async fn version_and_health() {
    let api = server().await;
    let client = client(&api, "admin").await;
    let version = client.apiserver_version().await.unwrap();
    assert_eq!(version.git_version, watchdog_sandbox::KUBERNETES_VERSION);
    let ready = client
        .request_text(http::Request::get("/readyz").body(vec![]).unwrap())
        .await
        .unwrap();
    assert_eq!(ready, "ok");
    let groups: Value = client
        .request(http::Request::get("/apis").body(vec![]).unwrap())
        .await
        .unwrap();
    assert!(
        groups["groups"]
            .as_array()
            .unwrap()
            .iter()
            .any(|group| group["name"] == "apps")
    );
}
