//! Programs that issue their own certificates from an authority that they make together. That people call them with
//! one is tested with `helm test`.

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use watchdog_test_support::real::{RealFixture, create_namespace};
use watchdog_test_support::wait::{self, BOUND};
use watchdog_test_support::watchdog::Service;

const NAMESPACE: &str = "authority";

pub(crate) const USERS: [&str; 2] = ["first", "second"];

const SECRET: &str = "watchdog-authority";
const OBSERVER: &str = "watchdog-observer";

async fn start(fixture: &RealFixture, name: &str) -> Service {
    let command = crate::lease_probe(fixture, NAMESPACE, name).await;
    let command = command.args(["--tls-authority", SECRET, "--tls-observer", OBSERVER]);
    fixture.setup.custom(command).await.unwrap()
}

/// The members that a program knows.
async fn members(service: &Service) -> Option<f64> {
    let members = "watchdog_membership_members{service=\"lease-probe\"}";
    service.metric(members).await.unwrap()
}

pub(crate) async fn a_replica_without_a_certificate_takes_no_shoot_from_the_others(fixture: &RealFixture) {
    let seed = fixture.seed.client();
    create_namespace(&seed, NAMESPACE).await.unwrap();
    let secrets: Api<Secret> = Api::namespaced(seed, NAMESPACE);
    // Empty, as the chart renders them.
    for name in [SECRET, OBSERVER] {
        let empty = serde_json::json!({"metadata": {"name": name}});
        let empty = serde_json::from_value(empty).unwrap();
        secrets.create(&PostParams::default(), &empty).await.unwrap();
    }
    let first = start(fixture, USERS[0]).await;
    first.wait_ready().await.unwrap();
    let good = secrets.get(SECRET).await.unwrap().data;
    let put = async |data: serde_json::Value| {
        let patch = Patch::Merge(serde_json::json!({ "data": data }));
        let params = PatchParams::default();
        secrets.patch(SECRET, &params, &patch).await.unwrap();
    };
    put(serde_json::json!({"ca.key": "Y2xhc3NpZmllZA=="})).await;
    let second = start(fixture, USERS[1]).await;
    wait::until_true("the second one says why it is not ready", BOUND, || async {
        let (_, shown) = second.admin_get("/readyz").await?;
        Ok(shown.contains("certificate: the last try failed: the Secret"))
    })
    .await
    .unwrap();
    assert_eq!(members(&first).await, Some(1.0));

    put(serde_json::to_value(good).unwrap()).await;
    second.wait_ready().await.unwrap();
    wait::until_true("both are members", BOUND, || async {
        Ok(members(&first).await == Some(2.0))
    })
    .await
    .unwrap();

    // The key of the authority is in no log.
    let secret = secrets.get(SECRET).await.unwrap().data.unwrap();
    let key = String::from_utf8(secret["ca.key"].0.clone()).unwrap();
    let line = key.lines().nth(1).unwrap();
    for service in [&first, &second] {
        let log = std::fs::read_to_string(service.process.log_path()).unwrap();
        assert!(!log.contains(line));
    }
}
