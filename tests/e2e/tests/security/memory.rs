//! The memory that one caller, or one stranger at the admin ports, can take.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt as _;
use futures::future::join_all;
use futures::stream;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use watchdog_runtime::grpc_server::MAX_REQUEST_BYTES;
use watchdog_runtime::tls::Tls;
use watchdog_sandbox::hostile::frame;
use watchdog_test_support::fixtures;
use watchdog_test_support::http_exchange::exchange;
use watchdog_test_support::real::{RealFixture, create_cluster};
use watchdog_test_support::resource_usage::ProcessUsage;
use watchdog_test_support::wait::{self, BOUND};
use watchdog_test_support::watchdog::{self, SERVER_NAME, Service};

use crate::subscriber::list;

/// The user of the drop-in program.
pub(crate) const DROP_IN: &str = "drop-in-0";

const LIST: &str = "/gardener.watchdog.probe.v1.LeaseProbeService/ListVerdicts";

/// An attack may add this to the resident memory of the process.
const ALLOWED_BYTES: u64 = 64 << 20;

/// Shoots without a kubeconfig, for answers of some size.
const SHOOTS: i32 = 1_000;

/// A `ListVerdictsRequest` for a page of 1,000, as gRPC frames it.
const LIST_REQUEST: [u8; 8] = [0, 0, 0, 0, 3, 8, 0xe8, 7];

/// Connections of the caller.
const CONNECTIONS: usize = 24;

/// Requests of each, or answers that it does not read: more than it may have.
const REQUESTS: u32 = 128;

/// Longer than the server waits for who does not read.
const BETWEEN_ATTACKS: Duration = Duration::from_secs(15);

/// Connections with half a request at an admin port, which serves as many.
const BODIES: usize = 64;

/// The largest body that the admin endpoint takes, and the largest that its library takes by default.
const BODY_BYTES: [usize; 2] = [1_024, 2 << 20];

/// Resident memory in bytes: now, and the most so far.
fn memory(service: &Service) -> (u64, u64) {
    let usage = ProcessUsage::of([service]).unwrap();
    (usage.resident_kb << 10, usage.peak_kb << 10)
}

fn check_peak(what: &str, service: &Service, before: u64) {
    let (_, peak) = memory(service);
    println!("{what}: {} MiB before, {} MiB at most", before >> 20, peak >> 20);
    assert!(peak < before + ALLOWED_BYTES, "{what}: {before} {peak}");
}

async fn connect(service: &Service, tls: &Tls) -> Option<TlsStream<TcpStream>> {
    let tcp = TcpStream::connect(&service.grpc).await.ok()?;
    let name = SERVER_NAME.try_into().unwrap();
    let connect = TlsConnector::from(tls.client().current().await).connect(name, tcp);
    timeout(BOUND, connect).await.ok()?.ok()
}

/// Sends requests that lack their last byte, and waits until the server has given all of them up.
async fn send_incomplete_requests(service: &Service, tls: &Tls) {
    let Some(io) = connect(service, tls).await else {
        return;
    };
    let Ok((client, connection)) = h2::client::handshake(io).await else {
        return;
    };
    let connection = tokio::spawn(connection);
    let length = u32::try_from(MAX_REQUEST_BYTES - 5).unwrap();
    let mut message = vec![0];
    message.extend(length.to_be_bytes());
    message.resize(MAX_REQUEST_BYTES - 1, b'x');
    let message = Bytes::from(message);
    let requests = (0..REQUESTS).map(|_| async {
        let request = http::Request::post(format!("https://{SERVER_NAME}{LIST}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())
            .unwrap();
        let Ok(mut client) = client.clone().ready().await else {
            return;
        };
        let Ok((answer, mut body)) = client.send_request(request, false) else {
            return;
        };
        let _ = body.send_data(message.clone(), false);
        let _ = answer.await;
    });
    join_all(requests).await;
    connection.abort();
}

/// Asks for answers and reads nothing of what comes.
async fn send_unread_requests(service: &Service, tls: &Tls) -> Option<TlsStream<TcpStream>> {
    let mut io = connect(service, tls).await?;
    let mut headers = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "https"),
        (":path", LIST),
        (":authority", SERVER_NAME),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ] {
        // A literal that is not indexed.
        headers.push(0);
        for text in [name, value] {
            headers.push(u8::try_from(text.len()).unwrap());
            headers.extend(text.as_bytes());
        }
    }
    let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    // The largest window of a stream and of the connection.
    sent.extend(frame(4, 0, 0, &[0, 4, 0x7f, 0xff, 0xff, 0xff]));
    sent.extend(frame(8, 0, 0, &[0x7f, 0, 0, 0]));
    for request in 0..REQUESTS {
        let stream = 2 * request + 1;
        sent.extend(frame(1, 4, stream, &headers));
        sent.extend(frame(0, 1, stream, &LIST_REQUEST));
    }
    io.write_all(&sent).await.ok()?;
    io.flush().await.ok()?;
    Some(io)
}

pub(crate) async fn one_caller_takes_less_than_64_mib(fixture: &RealFixture, service: &Service) {
    let channel = fixture.setup.channel(service).unwrap();
    let before = list(channel.clone()).await.unwrap();
    let made = stream::iter(0..SHOOTS).map(|number| {
        let seed = fixture.seed.client();
        async move {
            create_cluster(
                &seed,
                &format!("shoot--many--{number:04}"),
                fixtures::shoot("40s"),
            )
            .await
        }
    });
    let made: Vec<_> = made.buffer_unordered(16).collect().await;
    made.into_iter().collect::<anyhow::Result<()>>().unwrap();
    wait::until("all shoots have a verdict", BOUND, || async {
        let found = list(channel.clone()).await?;
        anyhow::ensure!(found == before + SHOOTS, "{found}");
        Ok(Some(()))
    })
    .await
    .unwrap();
    let caller = Tls::load(fixture.setup.client_files()).unwrap();
    let (before, _) = memory(service);

    let attack = join_all((0..CONNECTIONS).map(|_| send_incomplete_requests(service, &caller)));
    timeout(BOUND, attack).await.expect("the server gives them up");
    check_peak("incomplete requests", service, before);

    // The server hangs up on who does not read.
    let unread_total = "watchdog_grpc_connections_refused_total{reason=\"unread\"}";
    let (mut unread, mut next_attack) = (Vec::new(), Instant::now());
    let end = Instant::now() + BOUND;
    while service.metric(unread_total).await.unwrap().unwrap_or_default() == 0.0 {
        assert!(Instant::now() < end, "the server does not hang up");
        if Instant::now() >= next_attack {
            // Connections of the attack before may still have been counted when the last ones came.
            let attack = join_all((0..CONNECTIONS).map(|_| send_unread_requests(service, &caller))).await;
            unread.extend(attack.into_iter().flatten());
            next_attack = Instant::now() + BETWEEN_ATTACKS;
        }
    }
    check_peak("unread answers", service, before);
    // Its connections have ended, so it may come again.
    drop(unread);
    wait::until("the caller is served again", BOUND, || async {
        Ok(Some(list(fixture.setup.channel(service)?).await?))
    })
    .await
    .unwrap();
}

/// Sends all but the last byte of each body and waits until the server has answered or hung up.
async fn send_incomplete_bodies(address: &str) {
    let bodies = (0..BODIES).map(|number| async move {
        let length = BODY_BYTES[number % BODY_BYTES.len()];
        let Ok(mut tcp) = TcpStream::connect(address).await else {
            return;
        };
        let head = format!("PUT /log-level HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n");
        let mut request = head.into_bytes();
        request.resize(request.len() + length - 1, b'x');
        // The server may hang up before it has all of it.
        let _ = tcp.write_all(&request).await;
        let mut answer = Vec::new();
        let _ = tokio::io::AsyncReadExt::read_to_end(&mut tcp, &mut answer).await;
    });
    let sent = timeout(BOUND, join_all(bodies)).await;
    sent.expect("the server answers or hangs up");
}

pub(crate) async fn bodies_at_the_admin_ports_take_less_than_64_mib(
    fixture: &RealFixture,
    service: &Service,
) {
    let kubeconfig = fixture.seed.kubeconfig_for(DROP_IN).unwrap();
    let (scratch, config) = (fixture.scratch(), fixture.setup.prober_file());
    let command = watchdog::drop_in_command(scratch, "prober", DROP_IN, &kubeconfig, config);
    let drop_in = fixture.setup.custom(command.unwrap()).await.unwrap();
    drop_in.wait_ready().await.unwrap();
    let health = drop_in
        .process
        .wait_for_field("listening for health probes", "health_addr", BOUND)
        .await
        .unwrap();
    for (service, address) in [
        (service, &service.admin),
        (&drop_in, &drop_in.admin),
        (&drop_in, &health),
    ] {
        let (before, _) = memory(service);
        send_incomplete_bodies(address).await;
        check_peak(&format!("bodies at {address}"), service, before);
        let probe = TcpStream::connect(address).await.unwrap();
        let answer = exchange(probe, "GET", "/healthz", "").await.unwrap();
        assert_eq!(answer, (200, "ok\n".to_owned()));
    }
}
