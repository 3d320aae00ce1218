//! Features of the API server that the recorded answers do not show: bookmarks, credentials, HTTP/2, health.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a failed test may panic"
)]

mod support;

use std::{pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api, ResourceExt,
    api::{ListParams, PostParams, WatchEvent, WatchParams},
};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use serde_json::{Value, json};
use support::{PATIENCE, client, client_of, eventually, server};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use watchdog_sandbox::{ApiOptions, ApiServer};

async fn next<T>(stream: &mut (impl Stream<Item = T> + Unpin)) -> T {
    tokio::time::timeout(PATIENCE, stream.next())
        .await
        .unwrap()
        .unwrap()
}

/// Short name of a watch event, for comparisons.
fn brief(event: &WatchEvent<ConfigMap>) -> String {
    match event {
        WatchEvent::Added(object) => format!("+{}", object.name_any()),
        WatchEvent::Bookmark(_) => "bookmark".into(),
        other => format!("{other:?}"),
    }
}

#[tokio::test]
async fn a_watch_without_version_starts_with_the_current_objects() {
    let api = server().await;
    let maps: Api<ConfigMap> = Api::namespaced(client(&api, "admin").await, "default");
    let map: ConfigMap = serde_json::from_value(json!({ "metadata": { "name": "a" } })).unwrap();
    maps.create(&PostParams::default(), &map).await.unwrap();
    let params = WatchParams::default().timeout(1);
    let events: Vec<_> = maps
        .watch(&params, "0")
        .await
        .unwrap()
        .map_ok(|event| brief(&event))
        .try_collect()
        .await
        .unwrap();
    assert_eq!(
        events,
        ["+a", "bookmark"],
        "and a timeout ends it after a bookmark"
    );
}

#[tokio::test]
async fn bookmarks_carry_a_version_that_resumes() {
    let options = ApiOptions {
        bookmark_interval: Duration::from_millis(50),
        ..ApiOptions::default()
    };
    let api = ApiServer::start(options).await.unwrap();
    let client = client(&api, "admin").await;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let mut events = pin!(maps.watch(&WatchParams::default(), "0").await.unwrap());
    // A write to another kind moves the bookmark on.
    let secrets: Api<Secret> = Api::namespaced(client, "default");
    let secret: Secret = serde_json::from_value(json!({ "metadata": { "name": "s" } })).unwrap();
    let newest = secrets
        .create(&PostParams::default(), &secret)
        .await
        .unwrap()
        .resource_version()
        .unwrap();
    loop {
        let WatchEvent::Bookmark(bookmark) = next(&mut events).await.unwrap() else {
            panic!("no bookmark")
        };
        if bookmark.metadata.resource_version == newest {
            break;
        }
    }
    let mut resumed = pin!(maps.watch(&WatchParams::default(), &newest).await.unwrap());
    assert_eq!(brief(&next(&mut resumed).await.unwrap()), "bookmark");
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
async fn version_and_health() {
    let api = server().await;
    let client = client(&api, "admin").await;
    let version = client.apiserver_version().await.unwrap();
    assert_eq!(version.git_version, "v1.33.0");
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

type Http2Client = http2::SendRequest<Full<Bytes>>;

/// One HTTP/2 connection, as Go clients make it.
async fn connect(api: &ApiServer) -> Http2Client {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(api.ca_pem().as_bytes()).unwrap())
        .unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let stream = TcpStream::connect(api.address()).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let stream = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .unwrap();
    assert_eq!(
        stream.get_ref().1.alpn_protocol(),
        Some(b"h2".as_slice()),
        "the server prefers HTTP/2"
    );
    let (client, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    client
}

async fn send(
    client: &mut Http2Client,
    api: &ApiServer,
    method: &str,
    path: &str,
    body: Bytes,
) -> Response<Incoming> {
    let request = Request::builder()
        .method(method)
        .uri(format!("{}{path}", api.url()))
        .header("Authorization", format!("Bearer {}", api.token("admin")))
        .header("Content-Type", "application/json")
        .body(Full::new(body))
        .unwrap();
    tokio::time::timeout(PATIENCE, client.send_request(request))
        .await
        .unwrap()
        .unwrap()
}

/// The next bytes of a body; `None` when it has ended or broken.
async fn frame(response: &mut Response<Incoming>) -> Option<String> {
    let frame = tokio::time::timeout(PATIENCE, response.frame()).await.unwrap()?;
    Some(String::from_utf8(frame.ok()?.into_data().unwrap().to_vec()).unwrap())
}

#[tokio::test]
async fn watches_and_requests_share_one_connection() {
    let api = server().await;
    let mut client = connect(&api).await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let mut watches = Vec::new();
    for _ in 0..20 {
        watches.push(
            send(
                &mut client,
                &api,
                "GET",
                &format!("{maps}?watch=true"),
                Bytes::new(),
            )
            .await,
        );
    }
    assert_eq!(api.counters().open_watches, 20);
    let map = json!({ "metadata": { "name": "a" } }).to_string();
    let created = send(&mut client, &api, "POST", maps, map.into()).await;
    assert_eq!(created.status(), StatusCode::CREATED);
    for watch in &mut watches {
        let line: Value = serde_json::from_str(&frame(watch).await.unwrap()).unwrap();
        assert_eq!(
            (&line["type"], &line["object"]["metadata"]["name"]),
            (&json!("ADDED"), &json!("a"))
        );
    }
    assert_eq!(api.counters().connections, 1);

    // A server that stops breaks the streams instead of ending them.
    api.stop().await.unwrap();
    for watch in &mut watches {
        assert_eq!(frame(watch).await, None);
    }
    eventually("no watch is left", || api.counters().open_watches == 0).await;
}
