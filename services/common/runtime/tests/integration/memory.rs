//! The memory that one caller can take, of a service as it runs: this program again, with one test as its `main`.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use bytes::Bytes;
use futures::future::join_all;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_stream::Pending;
use tonic::service::RoutesBuilder;
use tonic::{Request, Response, Status};
use watchdog_proto::FILE_DESCRIPTOR_SET;
use watchdog_proto::probe::v1::lease_probe_service_server::{LeaseProbeService, LeaseProbeServiceServer};
use watchdog_proto::probe::v1::{
    GetVerdictRequest, GetVerdictResponse, ListVerdictsRequest, ListVerdictsResponse, WatchVerdictsRequest,
    WatchVerdictsResponse,
};
use watchdog_runtime::grpc_server::{Api, MAX_REQUEST_BYTES};
use watchdog_runtime::process::run;
use watchdog_runtime::service_builder::ServiceBuilder;
use watchdog_runtime::tls::Tls;

use crate::args::parse;
use crate::certs::{Authority, Files};
use crate::{PATIENCE, until};

/// Where the process under test finds its TLS files, and says where it listens.
const DIR: &str = "CALLER_MEMORY_DIR";

const SERVER: &str = "server.test";
const CLIENT: &str = "client.test";
const LIST: &str = "/gardener.watchdog.probe.v1.LeaseProbeService/ListVerdicts";

/// Bytes that an attack may add to the resident memory of the process.
const ALLOWED_BYTES: u64 = 64 << 20;

/// As large as the answer about 1,000 shoots.
const ANSWER_BYTES: usize = 170_000;

struct Lists;

#[tonic::async_trait]
impl LeaseProbeService for Lists {
    type WatchVerdictsStream = Pending<Result<WatchVerdictsResponse, Status>>;

    async fn watch_verdicts(
        &self,
        _: Request<WatchVerdictsRequest>,
    ) -> Result<Response<Self::WatchVerdictsStream>, Status> {
        Ok(Response::new(tokio_stream::pending()))
    }

    async fn get_verdict(
        &self,
        _: Request<GetVerdictRequest>,
    ) -> Result<Response<GetVerdictResponse>, Status> {
        Err(Status::not_found("there is none"))
    }

    async fn list_verdicts(
        &self,
        _: Request<ListVerdictsRequest>,
    ) -> Result<Response<ListVerdictsResponse>, Status> {
        Ok(Response::new(ListVerdictsResponse {
            next_page_token: "x".repeat(ANSWER_BYTES),
            ..Default::default()
        }))
    }
}

#[test]
fn service_under_attack() {
    let Ok(dir) = std::env::var(DIR) else {
        return;
    };
    let tls = [("cert", "tls.crt"), ("key", "tls.key"), ("client-ca", "ca.crt")]
        .map(|(option, file)| format!("--tls-{option}={dir}/{file}"));
    let mut arguments = vec![
        "--grpc-addr=127.0.0.1:0",
        "--admin-addr=127.0.0.1:0",
        "--tls-allowed-client=client.test",
    ];
    arguments.extend(tls.iter().map(String::as_str));
    let common = parse(&arguments).unwrap();
    let args = common.clone();
    let code = run(&common, |process| async move {
        let base = ServiceBuilder::bind(args, process).await?;
        let mut routes = RoutesBuilder::default();
        routes.add_service(LeaseProbeServiceServer::new(Lists).max_decoding_message_size(MAX_REQUEST_BYTES));
        let api = Api {
            routes,
            service_names: &[],
            descriptors: FILE_DESCRIPTOR_SET,
        };
        let bound = base.serve(api, vec![])?;
        let addresses = format!("{} {}", bound.grpc_addr, bound.admin_addr);
        std::fs::write(format!("{dir}/new"), addresses)?;
        std::fs::rename(format!("{dir}/new"), format!("{dir}/addresses"))?;
        Ok(bound)
    });
    std::process::exit(i32::from(
        format!("{code:?}") != format!("{:?}", ExitCode::SUCCESS),
    ));
}

/// A field of the process's status in bytes.
fn memory(pid: u32, field: &str) -> u64 {
    let status = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    let kib: u64 = line.trim_matches([':', '\t', ' ', 'k', 'B']).parse().unwrap();
    kib << 10
}

async fn connect(address: &str, tls: &Tls) -> Option<TlsStream<TcpStream>> {
    let tcp = TcpStream::connect(address).await.ok()?;
    let connect = TlsConnector::from(tls.client().current()).connect(SERVER.try_into().unwrap(), tcp);
    tokio::time::timeout(PATIENCE, connect).await.ok()?.ok()
}

/// Sends requests that lack their last byte, and waits until the server has given all of them up.
async fn send_incomplete_requests(address: &str, tls: &Tls) {
    let Some(io) = connect(address, tls).await else {
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
    let requests = (0..128).map(|_| async {
        let request = http::Request::post(format!("https://{SERVER}{LIST}"))
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
async fn send_unread_requests(address: &str, tls: &Tls) -> Option<TlsStream<TcpStream>> {
    let mut io = connect(address, tls).await?;
    let frame = |kind: u8, flags: u8, stream: u32, payload: &[u8]| {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut frame = vec![length[1], length[2], length[3], kind, flags];
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        frame
    };
    let mut headers = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "https"),
        (":path", LIST),
        (":authority", SERVER),
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
    for stream in (1..256).step_by(2) {
        sent.extend(frame(1, 4, stream, &headers));
        sent.extend(frame(0, 1, stream, &[0; 5]));
    }
    io.write_all(&sent).await.ok()?;
    io.flush().await.ok()?;
    Some(io)
}

#[tokio::test(flavor = "multi_thread")]
async fn one_caller_takes_less_than_64_mib() {
    let authority = Authority::new("ours");
    let files = Files::new(&authority.issue(SERVER), &authority.pem());
    let dir = files.paths().ca.parent().unwrap().to_owned();
    let mut service = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "memory::service_under_attack", "--nocapture"])
        .env(DIR, &dir)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut addresses = String::new();
    until("it listens", async || {
        addresses = std::fs::read_to_string(dir.join("addresses")).unwrap_or_default();
        !addresses.is_empty()
    })
    .await;
    let grpc = addresses.split(' ').next().unwrap();
    let caller = authority.tls(CLIENT);
    // What every first call costs.
    drop(connect(grpc, &caller).await.unwrap());
    let before = memory(service.id(), "VmRSS");

    let attack = join_all((0..24).map(|_| send_incomplete_requests(grpc, &caller)));
    tokio::time::timeout(PATIENCE, attack)
        .await
        .expect("the server gives them up");
    let peak = memory(service.id(), "VmHWM");
    println!("incomplete requests: {before} bytes before, {peak} at most");
    assert!(peak < before + ALLOWED_BYTES, "{before} {peak}");

    let unread = join_all((0..24).map(|_| send_unread_requests(grpc, &caller))).await;
    assert!(unread.iter().flatten().count() > 0);
    // The server hangs up on who does not read.
    let admin = addresses.split(' ').nth(1).unwrap();
    let counted = "watchdog_grpc_connections_refused_total{reason=\"unread\"} ";
    until("the server hangs up", async || {
        let stream = TcpStream::connect(admin).await.unwrap();
        let (_, metrics) = crate::process::exchange(stream, "GET", "/metrics", "").await;
        let count = metrics.lines().find_map(|line| line.strip_prefix(counted));
        count.is_some_and(|count| count != "0")
    })
    .await;
    let peak = memory(service.id(), "VmHWM");
    println!("unread answers: {before} bytes before, {peak} at most");
    assert!(peak < before + ALLOWED_BYTES, "{before} {peak}");
    service.kill().unwrap();
    service.wait().unwrap();
}
