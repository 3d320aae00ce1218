//! A list of Leases says the same in Protobuf, which lease-probe asks for, as in JSON.

use http::header::ACCEPT;
use http_body_util::BodyExt;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use watchdog_api::lease::LeaseItem;
use watchdog_api::list::ItemList;
use watchdog_api::protobuf;
use watchdog_test_support::real::{ApiServerOptions, RealControlPlane};
use watchdog_test_support::sandboxed;

const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
const JSON: &str = "application/json";

#[tokio::test(flavor = "multi_thread")]
async fn a_real_api_server_lists_the_same_in_both_encodings() {
    let plane = RealControlPlane::start("lease-lists").await.unwrap();
    let options = ApiServerOptions::new("seed").user("nobody", &[]);
    let server = plane.api_server_with(options).await.unwrap();
    let client = |user: &str| server.kubeconfig_for(user).unwrap();
    let admin = sandboxed::client(&client("admin")).await.unwrap();
    lists_the_same(&admin).await;

    // An error is encoded in the same way.
    let nobody = sandboxed::client(&client("nobody")).await.unwrap();
    let (status, body) = get(&nobody, PATH, protobuf::ACCEPT).await;
    assert_eq!(status, http::StatusCode::FORBIDDEN);
    let message = protobuf::status_message(&body).unwrap();
    assert!(
        message.contains(r#"User "nobody" cannot list resource "leases""#),
        "{message}"
    );
}

async fn lists_the_same(client: &Client) {
    let leases: Api<Lease> = Api::namespaced(client.clone(), "default");
    let spec = |renew_time: Option<&str>| LeaseSpec {
        holder_identity: Some("node".to_owned()),
        lease_duration_seconds: Some(40),
        renew_time: renew_time.map(|time| MicroTime(time.parse::<Timestamp>().unwrap())),
        ..LeaseSpec::default()
    };
    for (name, spec) in [
        ("renewed", Some(spec(Some("2026-11-21T07:00:00.123456Z")))),
        ("never-renewed", Some(spec(None))),
        ("empty", None),
    ] {
        let metadata = ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        };
        let lease = Lease { metadata, spec };
        leases.create(&PostParams::default(), &lease).await.unwrap();
    }
    let whole = same(client, PATH).await;
    assert_eq!(whole.items.len(), 3);
    let renewed = whole.items.iter().filter_map(|item| item.ok()?.renew_time);
    assert_eq!(renewed.count(), 1);

    let first = same(client, &format!("{PATH}?limit=2")).await;
    let next = format!("{PATH}?limit=2&continue={}", first.metadata.continue_token);
    let second = same(client, &next).await;
    assert_eq!([first.items, second.items].concat(), whole.items);
}

/// The list, which is the same in both encodings. A token for the next page may be another one each time.
async fn same(client: &Client, path: &str) -> ItemList<LeaseItem> {
    let (_, json) = get(client, path, JSON).await;
    let (status, body) = get(client, path, protobuf::ACCEPT).await;
    assert_eq!(status, http::StatusCode::OK);
    assert!(body.starts_with(b"k8s\0"), "not in Protobuf");
    let [mut found, mut expected] = [body, json].map(|body| LeaseItem::page::<3>(&body).unwrap());
    let token = std::mem::take(&mut found.metadata.continue_token);
    assert_eq!(
        token.is_empty(),
        std::mem::take(&mut expected.metadata.continue_token).is_empty()
    );
    assert_eq!(found, expected);
    found.metadata.continue_token = token;
    found
}

async fn get(client: &Client, path: &str, accept: &str) -> (http::StatusCode, Vec<u8>) {
    let request = http::Request::get(path).header(ACCEPT, accept);
    let response = client
        .send(request.body(Vec::new().into()).unwrap())
        .await
        .unwrap();
    let status = response.status();
    let body = response.into_body().collect().await.unwrap();
    (status, body.to_bytes().to_vec())
}
