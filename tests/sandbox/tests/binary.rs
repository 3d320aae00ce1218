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

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Node, Secret},
};
use kube::{Api, api::ListParams};
use serde_json::{Value, json};
use support::{client_of, eventually, eventually_async};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use watchdog_sandbox::PROBE_SECRET;

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
    let args = ["--shoots=2", "--nodes=4", "--zones=2", "--time-scale=40"];
    let mut process = spawn(dir.path(), &args);
    let addresses = dir.path().join("addresses.json");
    eventually("it is up", || addresses.exists()).await;
    let addresses: Value = serde_json::from_slice(&std::fs::read(addresses).unwrap()).unwrap();
    let control = addresses["control"].as_str().unwrap();

    let kubeconfig = std::fs::read_to_string(dir.path().join("seed.kubeconfig")).unwrap();
    let seed = client_of(&kubeconfig).await;
    let deployments: Api<Deployment> = Api::all(seed.clone());
    let list = async || deployments.list(&ListParams::default()).await;
    assert_eq!(list().await.unwrap().items.len(), 8);

    let cut = Some(json!({ "zone": "zone-1" }));
    assert_eq!(call(control, "POST", "/shoots/shoot-0/cut", cut).await.0, 200);
    let secrets: Api<Secret> = Api::namespaced(seed, "shoot--sandbox--shoot-0");
    let secret = secrets.get(PROBE_SECRET).await.unwrap();
    let kubeconfig = String::from_utf8(secret.data.unwrap()["kubeconfig"].0.clone()).unwrap();
    let nodes: Api<Node> = Api::all(client_of(&kubeconfig).await);
    eventually_async("its nodes are Unknown", async || {
        let nodes = nodes.list(&ListParams::default()).await.unwrap();
        let is_unknown = |node: &&Node| {
            let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
            conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "Unknown"))
        };
        nodes.items.iter().filter(is_unknown).count() == 2
    })
    .await;
    assert_eq!(call(control, "POST", "/shoots/shoot-0/heal", None).await.0, 200);

    let (_, audit) = call(control, "GET", "/audit?since=0", None).await;
    let mut audit = audit.as_array().unwrap().iter();
    assert!(audit.any(|entry| entry["verb"] == "list" && entry["code"] == 200));

    let (code, error) = call(control, "POST", "/shoots/none/heal", None).await;
    assert_eq!((code, error["error"].as_str().unwrap()), (404, "no shoot none"));
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
