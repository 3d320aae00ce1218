//! Features that kube's client does not use: HTTP/2, limits, media types.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a failed test may panic"
)]

mod support;

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use serde_json::{Value, json};
use support::{PATIENCE, eventually, server};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use watchdog_sandbox::{ApiServer, resource::keys};

type Client = http2::SendRequest<Full<Bytes>>;

/// One HTTP/2 connection, as Go clients make it.
async fn connect(api: &ApiServer) -> Client {
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
    client: &mut Client,
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

#[tokio::test]
async fn a_watcher_that_is_overtaken_is_told() {
    let options = watchdog_sandbox::ApiOptions {
        watch_log: 4,
        ..Default::default()
    };
    let api = ApiServer::start(options).await.unwrap();
    let mut client = connect(&api).await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let from = api.store().revision();
    for index in 0..6 {
        let name = format!("m{index}");
        api.create(
            &keys::CONFIG_MAPS,
            "default",
            json!({ "metadata": { "name": name } }),
        )
        .unwrap();
    }
    let path = format!("{maps}?watch=true&resourceVersion={from}");
    let mut watch = send(&mut client, &api, "GET", &path, Bytes::new()).await;
    let line: Value = serde_json::from_str(&frame(&mut watch).await.unwrap()).unwrap();
    assert_eq!(
        (&line["type"], &line["object"]["code"]),
        (&json!("ERROR"), &json!(410))
    );
    assert_eq!(frame(&mut watch).await, None);
}

#[tokio::test]
async fn old_servers_ignore_send_initial_events() {
    let options = watchdog_sandbox::ApiOptions {
        streaming_lists: false,
        ..Default::default()
    };
    let api = ApiServer::start(options).await.unwrap();
    let mut client = connect(&api).await;
    let path = "/api/v1/namespaces?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan\
                &allowWatchBookmarks=true&resourceVersion=0&timeoutSeconds=1";
    let watch = send(&mut client, &api, "GET", path, Bytes::new()).await;
    let text = String::from_utf8(watch.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap();
    assert_eq!(text.matches("ADDED").count(), 4);
    assert!(!text.contains("initial-events-end"));
}

#[tokio::test]
async fn too_much_and_too_odd() {
    let api = server().await;
    let mut client = connect(&api).await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let large = json!({ "metadata": { "name": "a" }, "data": { "k": "x".repeat(4 << 20) } }).to_string();
    let refused = send(&mut client, &api, "POST", maps, large.into()).await;
    assert_eq!(refused.status(), StatusCode::PAYLOAD_TOO_LARGE);
    let odd = Bytes::from_static(b"\x00\xff");
    for (method, path) in [
        ("POST", maps),
        ("PUT", "/api/v1/namespaces/kube-system"),
        ("DELETE", maps),
    ] {
        assert_eq!(
            send(&mut client, &api, method, path, odd.clone()).await.status(),
            StatusCode::BAD_REQUEST
        );
    }
    assert_eq!(
        send(&mut client, &api, "OPTIONS", maps, Bytes::new())
            .await
            .status(),
        StatusCode::METHOD_NOT_ALLOWED
    );
}
