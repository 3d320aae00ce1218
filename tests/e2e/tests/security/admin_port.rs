//! Scrapers that misbehave at the admin endpoint: the probes of the kubelet are answered all the same. Its access by
//! certificate is tested in `watchdog-runtime`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use watchdog_test_support::real::RealFixture;
use watchdog_test_support::wait::{self, BOUND};
use watchdog_test_support::watchdog::Service;

/// See `services/common/runtime/src/admin_server.rs`.
const MAX_CONNECTIONS: usize = 64;

pub(crate) const USER: &str = "admin-port";

/// The address from which the kubelet comes in this test, and another one.
const KUBELET: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const SCRAPER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

async fn connect(source: IpAddr, to: &str) -> std::io::Result<TcpStream> {
    let to: SocketAddr = to.parse().unwrap();
    let socket = TcpSocket::new_v4()?;
    socket.bind((source, 0).into())?;
    socket.connect(to).await
}

/// Connections that were opened and have sent this.
async fn flood(source: IpAddr, service: &Service, count: usize, request: &str) -> Vec<TcpStream> {
    let mut open = Vec::new();
    for _ in 0..count {
        let mut tcp = connect(source, &service.admin).await.unwrap();
        // One that was closed already has done its part.
        let _ = tcp.write_all(request.as_bytes()).await;
        open.push(tcp);
    }
    open
}

pub(crate) async fn probes_are_answered_whatever_a_scraper_does(fixture: &RealFixture) {
    let command = crate::lease_probe(fixture, "admin-port", USER).await;
    let command = command.arg("--insecure-plaintext");
    let service = fixture.setup.custom(command).await.unwrap();
    service.wait_ready().await.unwrap();
    let half_a_head = "GET /metrics HTTP/1.1\r\nHost: slow\r\nX-Slow: ";
    // Answers that nobody reads, until the connection is full.
    let never_read = "GET /metrics HTTP/1.1\r\nHost: slow\r\n\r\n".repeat(100);
    for source in [SCRAPER, KUBELET] {
        for request in ["", half_a_head, never_read.as_str()] {
            let mut open = flood(source, &service, 3 * MAX_CONNECTIONS, request).await;
            for _ in 0..10 {
                for slow in &mut open {
                    let _ = slow.write_all(b"x").await;
                }
                assert!(service.is_ready().await.unwrap());
                let (health, _) = service.admin_get("/healthz").await.unwrap();
                assert_eq!(health, 200);
            }
            let closed = open.into_iter().map(|mut tcp| async move {
                let mut bytes = Vec::new();
                let _ = tcp.read_to_end(&mut bytes).await;
            });
            let mut closed: FuturesUnordered<_> = closed.collect();
            let most = async {
                for _ in 0..2 * MAX_CONNECTIONS {
                    closed.next().await;
                }
            };
            tokio::time::timeout(BOUND, most)
                .await
                .expect("the oldest gave way");
        }
    }
    wait::until_true("an honest scraper is served again", BOUND, || async {
        Ok(service.metric("watchdog_ready").await? == Some(1.0))
    })
    .await
    .unwrap();
}
