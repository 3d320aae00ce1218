//! The binary, as scripts use it.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a failed test may panic"
)]

mod support;

use std::{
    path::Path,
    process::{Child, Command, Stdio},
};

use k8s_openapi::api::apps::v1::Deployment;
use kube::{Api, api::ListParams};
use serde_json::{Value, json};
use support::{client_of, eventually, eventually_async};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Kills the process when the test ends early.
struct ChildProcess(Child);

impl Drop for ChildProcess {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

fn spawn(dir: &Path, args: &[&str]) -> ChildProcess {
    let child = Command::new(env!("CARGO_BIN_EXE_watchdog-sandbox"))
        .arg("--dir")
        .arg(dir)
        .args(args)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    ChildProcess(child)
}

/// One plain HTTP request to the control endpoint.
async fn call(control: &str, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
    let address = control.strip_prefix("http://").unwrap();
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let body = body.map(|body| body.to_string()).unwrap_or_default();
    let kind = if body.is_empty() {
        ""
    } else {
        "Content-Type: application/json\r\n"
    };
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{kind}Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let code = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    (code, serde_json::from_str(body).unwrap_or_default())
}

#[tokio::test]
async fn serves_until_sigterm() {
    let dir = tempfile::tempdir().unwrap();
    let args = [
        "--shoots",
        "2",
        "--nodes",
        "4",
        "--zones",
        "2",
        "--time-scale",
        "40",
    ];
    let mut process = spawn(dir.path(), &args);
    let addresses = dir.path().join("addresses.json");
    eventually("it is up", || addresses.exists()).await;
    let addresses: Value = serde_json::from_slice(&std::fs::read(addresses).unwrap()).unwrap();
    let control = addresses["control"].as_str().unwrap();

    let kubeconfig = std::fs::read_to_string(dir.path().join("seed.kubeconfig")).unwrap();
    let deployments: Api<Deployment> = Api::all(client_of(&kubeconfig).await);
    assert_eq!(
        deployments
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
            .len(),
        8
    );

    let (code, state) = call(control, "GET", "/state", None).await;
    assert_eq!((code, state["shoots"].as_array().unwrap().len()), (200, 2));

    let cut = Some(json!({ "zone": "zone-1" }));
    assert_eq!(call(control, "POST", "/shoots/shoot-0/cut", cut).await.0, 204);
    eventually_async("its nodes are Unknown", async || {
        let (_, shoot) = call(control, "GET", "/shoots/shoot-0", None).await;
        shoot["markedUnknown"] == 2
    })
    .await;
    assert_eq!(call(control, "POST", "/shoots/shoot-0/heal", None).await.0, 204);

    let fault = json!({ "action": { "type": "internalError" }, "when": { "verbs": ["list"] }, "times": 1 });
    assert_eq!(call(control, "POST", "/faults", Some(fault)).await.0, 200);
    assert!(deployments.list(&ListParams::default()).await.is_err());
    deployments.list(&ListParams::default()).await.unwrap();

    let new = json!({ "name": "late", "nodes": 1 });
    assert_eq!(call(control, "POST", "/shoots", Some(new.clone())).await.0, 200);
    assert_eq!(call(control, "POST", "/shoots", Some(new)).await.0, 409);
    assert_eq!(
        call(control, "POST", "/shoots/late/api-server/stop", None)
            .await
            .0,
        204
    );
    assert_eq!(call(control, "DELETE", "/shoots/late", None).await.0, 204);
    let (code, error) = call(control, "POST", "/shoots/late/heal", None).await;
    assert_eq!((code, error["error"].as_str().unwrap()), (404, "no shoot late"));
    let (_, audit) = call(control, "GET", "/audit?since=0", None).await;
    assert!(
        audit
            .as_array()
            .unwrap()
            .iter()
            .any(|entry| entry["verb"] == "list" && entry["code"] == 500)
    );

    let pid = process.0.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-TERM", &pid])
            .status()
            .unwrap()
            .success()
    );
    eventually("it has ended", || process.0.try_wait().unwrap().is_some()).await;
    assert!(process.0.wait().unwrap().success());
}

#[test]
fn bad_usage_exits_2() {
    let dir = tempfile::tempdir().unwrap();
    for bad in [["--grace-period", "soon"], ["--control-addr", "0.0.0.0:0"]] {
        assert_eq!(
            spawn(dir.path(), &bad).0.wait().unwrap().code(),
            Some(2),
            "{bad:?}"
        );
    }
}
