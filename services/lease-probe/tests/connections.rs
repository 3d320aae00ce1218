//! Connections to shoots: kept, replaced when they are dead, and only so many are opened at once.

#![cfg(test)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use lease_probe::cluster::connection::Connection;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::sync::watch;
use watchdog_sandbox::{ApiOptions, ApiServer};

/// As in `cluster/connection.rs`.
const AT_ONCE: usize = 64;

const SHOOTS: usize = 300;

/// A server that accepts and leaves the handshake hanging until the gate opens; then it hangs up. It counts how many
/// it holds, and takes them from the count before the client can know that it was hung up on.
#[tokio::test(flavor = "multi_thread")]
async fn never_more_than_a_bounded_number_of_connections_is_opening() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (open_gate, gate) = watch::channel(false);
    let held = Arc::new(AtomicUsize::new(0));
    let (most_ever, mut most) = watch::channel(0_usize);
    let most_ever = Arc::new(most_ever);
    tokio::spawn(async move {
        loop {
            let (mut connection, _) = listener.accept().await.unwrap();
            let now = held.fetch_add(1, SeqCst) + 1;
            most_ever.send_if_modified(|most| {
                let more = now > *most;
                *most = now.max(*most);
                more
            });
            let (mut gate, held) = (gate.clone(), held.clone());
            tokio::spawn(async move {
                let mut hello = [0; 1];
                connection.read_exact(&mut hello).await.unwrap();
                gate.wait_for(|open| *open).await.unwrap();
                held.fetch_sub(1, SeqCst);
            });
        }
    });
    let kubeconfig = format!(
        "{{clusters: [{{name: c, cluster: {{server: \"https://{address}\"}}}}], users: [{{name: u, user: {{token: t}}}}], \
         contexts: [{{name: x, context: {{cluster: c, user: u}}}}]}}"
    );
    let access = watchdog_api::kubeconfig::parse(kubeconfig.as_bytes()).unwrap();
    let probes: Vec<_> = (0..SHOOTS)
        .map(|_| {
            let mut connection = Connection::new(&access).unwrap();
            tokio::spawn(async move { connection.get("/version").await })
        })
        .collect();
    most.wait_for(|most| *most >= AT_ONCE).await.unwrap();
    open_gate.send(true).unwrap();
    for probe in probes {
        assert!(probe.await.unwrap().is_err(), "there was no handshake");
    }
    assert_eq!(*most.borrow(), AT_ONCE);
}

/// Pings find out while nothing is asked: a server that went silent is not waited for by the next probe.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_is_kept_and_a_dead_one_is_noticed_while_it_is_idle() {
    let server = ApiServer::start(ApiOptions::default()).await.unwrap();
    let access = watchdog_api::kubeconfig::parse(server.kubeconfig("probe").as_bytes()).unwrap();
    let mut connection = Connection::new(&access).unwrap();
    for _ in 0..5 {
        assert_eq!(connection.get("/version").await.unwrap().status, 200);
    }
    assert_eq!(
        server.counters().connections,
        1,
        "one is enough for five requests"
    );

    server.freeze();
    let noticed = async {
        while connection.is_open() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), noticed)
        .await
        .unwrap();
    server.thaw();
    assert_eq!(connection.get("/version").await.unwrap().status, 200);
    assert_eq!(server.counters().connections, 2);
}
