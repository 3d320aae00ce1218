use std::collections::BTreeMap;

use http::{Method, Request, Response};
use http_body_util::BodyExt as _;
use kube::client::Body;
use kube::core::Status;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::*;
use crate::leadership::LeaseTimes;

/// An API server that takes `delay` for each request and has Leases alone.
fn slow_api(delay: Duration) -> kube::Client {
    let stored = Arc::new(Mutex::new((BTreeMap::<String, Value>::new(), 0_u64)));
    let api = tower::service_fn(move |request: Request<Body>| {
        let stored = Arc::clone(&stored);
        async move {
            sleep(delay).await;
            let (head, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            let mut lease: Value = serde_json::from_slice(&body).unwrap_or_default();
            let name = lease["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            let (leases, version) = &mut *stored.lock();
            let answer = match head.method {
                Method::GET => json!({
                    "apiVersion": "meta.k8s.io/v1",
                    "kind": "PartialObjectMetadataList",
                    "metadata": {},
                    "items": leases.values().collect::<Vec<_>>(),
                }),
                Method::PATCH if !leases.contains_key(&name) => {
                    json!(Status::failure("there is none", "NotFound").with_code(404))
                }
                _ => {
                    *version += 1;
                    lease["metadata"]["uid"] = json!("uid");
                    lease["metadata"]["resourceVersion"] = json!(version.to_string());
                    leases.insert(name, lease.clone());
                    lease
                }
            };
            let code = answer["code"].as_u64().map_or(200, |code| code as u16);
            let response = Response::builder().status(code);
            let response = response.body(Body::from(answer.to_string().into_bytes()));
            response.map_err(kube::Error::HttpError)
        }
    });
    kube::Client::new(api, "garden")
}

/// Where a leader can act, its program must find those that it acts upon.
#[tokio::test(start_paused = true)]
async fn replicas_that_start_on_a_slow_api_server_find_each_other_and_stay_found() {
    let slowest = LeaseTimes::CLIENT_GO.request_timeout() - Duration::from_millis(1);
    let (api, mut running) = (slow_api(slowest), JoinSet::new());
    let mut start = |own: Option<&str>| {
        let own = own.map(|identity| OwnLease {
            identity: identity.into(),
            address: format!("{identity}:9645").into(),
        });
        let (members, followed) =
            FollowedMembers::new(api.clone(), "garden", "lease-probe", Readiness::default(), own);
        running.spawn(followed.run(CancellationToken::new()));
        members
    };
    for mut members in [start(Some("a")), start(Some("b")), start(None)] {
        let both = members.wait_for(|members| members.len() == 2);
        timeout(Duration::from_secs(60), both).await.unwrap().unwrap();
        members.borrow_and_update();
        let changed = timeout(Duration::from_secs(600), members.changed());
        assert!(changed.await.is_err(), "{:?}", members.borrow());
    }
}
