//! Through the eyes of a Kubernetes client on the sandbox.

use std::time::Duration;

use kube::Client;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use watchdog_sandbox::{ApiOptions, ApiServer};

use super::*;
use crate::sandboxed;
use crate::wait;

async fn pair() -> (ApiServer, FaultProxy, Client) {
    let server = ApiServer::start(ApiOptions::default()).await.unwrap();
    let proxy = FaultProxy::start(Upstream::from(&server)).await.unwrap();
    let client = sandboxed::client(&proxy.kubeconfig(&server.kubeconfig("somebody")))
        .await
        .unwrap();
    (server, proxy, client)
}

async fn version(client: &Client) -> Result<String, String> {
    match tokio::time::timeout(Duration::from_secs(2), client.apiserver_version()).await {
        Ok(Ok(version)) => Ok(version.git_version),
        Ok(Err(error)) => Err(format!("{error:?}")),
        Err(_) => Err("no answer".to_owned()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_passes_on_and_fails_and_recovers() {
    let (_server, proxy, client) = pair().await;
    version(&client).await.unwrap();
    for (behaviour, sign) in [(Behaviour::Silent, "no answer"), (Behaviour::Throttle(3), "429")] {
        proxy.set(behaviour);
        // The first to fail may be the connection that was open when the behaviour changed.
        wait::until_true(
            &format!("{behaviour:?} shows"),
            Duration::from_secs(20),
            || async { Ok(matches!(version(&client).await, Err(error) if error.contains(sign))) },
        )
        .await
        .unwrap();
        proxy.set(Behaviour::Pass);
        wait::until_true("it passes on again", Duration::from_secs(20), || async {
            Ok(version(&client).await.is_ok())
        })
        .await
        .unwrap();
    }
    assert!(proxy.connections() > 2);
}

async fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = socket.into_split();
                tokio::io::copy(&mut read, &mut write).await
            });
        }
    });
    address
}

async fn ping(socket: &mut TcpStream) -> anyhow::Result<()> {
    socket.write_all(b"x").await?;
    let mut answer = [0];
    tokio::time::timeout(Duration::from_secs(1), socket.read_exact(&mut answer)).await??;
    Ok(())
}

#[tokio::test]
async fn silence_swallows_and_its_end_breaks_what_was_open() {
    let proxy = FaultProxy::start_tcp(echo().await).await.unwrap();
    let mut before = TcpStream::connect(proxy.address()).await.unwrap();
    ping(&mut before).await.unwrap();
    proxy.set(Behaviour::Silent);
    proxy.set(Behaviour::Silent);
    assert!(ping(&mut before).await.is_err());
    let mut during = TcpStream::connect(proxy.address()).await.unwrap();
    assert!(ping(&mut during).await.is_err());
    proxy.set(Behaviour::Pass);
    proxy.set(Behaviour::Pass);
    for socket in [&mut before, &mut during] {
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(10), socket.read_to_end(&mut rest)).await;
        assert!(
            ended.is_ok() && rest.is_empty(),
            "it ends, and nothing comes late"
        );
    }
    wait::until_true("new connections pass", Duration::from_secs(10), || async {
        let mut after = TcpStream::connect(proxy.address()).await?;
        ping(&mut after).await?;
        Ok(true)
    })
    .await
    .unwrap();
}
