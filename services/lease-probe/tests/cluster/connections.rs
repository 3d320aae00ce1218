//! Connections to shoots are cached and replaced when dead, and the limiter bounds how many open at once.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use lease_probe::cluster::connection::{ApiResponse, CachedConnection};
use lease_probe::cluster::http::HttpConnector;
use lease_probe::cluster::limits::{HELD_FOR, LARGEST_ANSWER, SharedLimits};
use lease_probe::cluster::shoot_client::answers;
use lease_probe::cluster::transport::{ApiRequest, Suspicion};
use lease_probe::domain::outcome::{Outcome, ProbeFailure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::unconstrained;
use tokio::time::Instant;
use watchdog_sandbox::hostile::{HostileServer, frame};
use watchdog_sandbox::{ApiOptions, ApiServer, Fault, FaultAction};

use crate::fixture::{LOCAL, access_to, budget, captured_log, client};

/// As in `controller/probe_context.rs`.
const AT_ONCE: usize = 64;

const SHOOTS: usize = 200;

const LIMIT: Duration = Duration::from_secs(5);

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

/// While this value exists, a paused clock advances only when the test advances it, however long sockets take.
struct FrozenClock {
    _until: std::sync::mpsc::Sender<()>,
}

impl FrozenClock {
    fn stand() -> Self {
        let (until, dropped) = std::sync::mpsc::channel();
        // The runtime does not skip time while somebody may be computing.
        tokio::task::spawn_blocking(move || dropped.recv());
        Self { _until: until }
    }
}

/// Lets everybody else run until the condition holds.
async fn until(what: &str, condition: impl Fn() -> bool) {
    let patience = std::time::Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(
            std::time::Instant::now() < patience,
            "gave up waiting until {what}"
        );
        tokio::task::yield_now().await;
    }
}

async fn idle() {
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
}

type Connection = CachedConnection<HttpConnector>;

fn limits(permits: usize) -> Arc<SharedLimits> {
    Arc::new(SharedLimits::new(permits, 1 << 20))
}

fn connection(server: &ApiServer) -> Connection {
    through(limits(1), server)
}

fn through(limiter: Arc<SharedLimits>, server: &ApiServer) -> Connection {
    from_kubeconfig(limiter, &server.kubeconfig("probe"))
}

fn from_kubeconfig(limiter: Arc<SharedLimits>, kubeconfig: &str) -> Connection {
    let mut connection = Connection::new(LOCAL, limiter);
    connection.set_kubeconfig(&access_to(kubeconfig)).unwrap();
    connection
}

async fn get(connection: &mut Connection, path: &str) -> Result<ApiResponse, ProbeFailure> {
    let request = ApiRequest {
        path: path.to_owned(),
        accept: "application/json",
        most: LARGEST_ANSWER,
    };
    connection
        .request(&request, budget(Duration::from_secs(30)))
        .await
}

/// The servers of hanging shoots accept connections and never answer. The limiter bounds how many begin to open at
/// once. Shoots queued behind them wait for [`HELD_FOR`], not until the hanging connections time out.
#[tokio::test(start_paused = true)]
async fn a_bounded_number_begins_to_open_and_those_that_hang_let_others_pass() {
    let _still = FrozenClock::stand();
    let silent = ApiServer::start(ApiOptions::default()).await.unwrap();
    silent.freeze();
    let accepted = || silent.counters().connections;
    let kubeconfig = silent.kubeconfig("probe");
    let limiter = limits(AT_ONCE);
    let hang: Vec<_> = (0..SHOOTS)
        .map(|_| {
            let mut connection = from_kubeconfig(limiter.clone(), &kubeconfig);
            tokio::spawn(async move { get(&mut connection, "/version").await })
        })
        .collect();
    let server = ApiServer::start(ApiOptions::default()).await.unwrap();
    let mut connection = through(limiter, &server);
    let answers = tokio::spawn(async move { get(&mut connection, "/version").await });
    for begun in [1, 2, 3].map(|turn| turn * AT_ONCE as u64) {
        until("all permits are taken", || accepted() >= begun).await;
        idle().await;
        assert_eq!(accepted(), begun);
        assert!(!answers.is_finished());
        tokio::time::advance(HELD_FOR + Duration::from_millis(10)).await;
    }
    assert_eq!(answers.await.unwrap().unwrap().status, 200);
    assert!(hang.iter().all(|one| !one.is_finished()), "they hang for 10 s");
}

/// A request that waits for this process must not be reported as a failure of either endpoint.
#[tokio::test(start_paused = true)]
async fn a_request_that_queues_has_asked_nobody() {
    let full = limits(0);
    let server = ApiServer::start(ApiOptions::default()).await.unwrap();
    let access = access_to(&server.kubeconfig("probe"));
    let not_asked = ProbeFailure::QueueTimeout(LIMIT);
    assert_eq!(not_asked.outcome(), Outcome::Inconclusive);
    assert!(!not_asked.suggests_outage());
    let mut external = Connection::new(LOCAL, full.clone());
    let answers = answers(&mut external, &access, budget(LIMIT)).await;
    assert_eq!(answers, Err(not_asked.clone()));
    let mut asks = client(LOCAL, &full);
    let listed = asks.leases(&access, budget(LIMIT)).await;
    assert_eq!(listed.err(), Some(not_asked.clone()));
    // Nor are nodes listed while others are.
    let free = limits(1);
    let taken: Vec<_> =
        std::iter::from_fn(|| unconstrained(free.node_lists.acquire()).now_or_never()).collect();
    assert_eq!(taken.len(), 128);
    let mut asks = client(LOCAL, &free);
    let listed = asks.nodes_and_machines(&access, budget(LIMIT)).await;
    assert_eq!(listed.err(), Some(not_asked));
    assert_eq!(server.counters().connections, 0);
}

/// A server that takes 4 s is in time although the wait for a permit took as long before.
#[tokio::test(start_paused = true)]
async fn the_time_of_the_server_begins_with_the_permit() {
    let _still = FrozenClock::stand();
    let server = ApiServer::start(ApiOptions::default()).await.unwrap();
    let limiter: Arc<SharedLimits> = limits(1);
    for (takes, expected) in [
        (Duration::from_secs(4), Ok(())),
        (Duration::from_secs(6), Err(ProbeFailure::Timeout(LIMIT))),
    ] {
        server.freeze();
        let before = server.counters().connections;
        let permit = limiter.connect.acquire().await;
        let access = access_to(&server.kubeconfig("probe"));
        let mut external = Connection::new(LOCAL, limiter.clone());
        let asked = tokio::spawn(async move { answers(&mut external, &access, budget(LIMIT)).await });
        idle().await;
        tokio::time::advance(Duration::from_secs(4)).await;
        drop(permit);
        until("the server receives the connection", || {
            server.counters().connections > before
        })
        .await;
        tokio::time::advance(takes).await;
        idle().await;
        server.thaw();
        assert_eq!(asked.await.unwrap(), expected);
    }
}

/// A cached connection may be dead: after 2.5 s without a first byte, the request is also sent over a new one.
#[tokio::test]
async fn a_list_on_a_silent_connection_is_asked_for_again_and_the_first_answer_wins() {
    let server = ApiServer::start(ApiOptions::default()).await.unwrap();
    let mut connection = connection(&server);
    get(&mut connection, "/version").await.unwrap();
    assert_eq!(
        connection.take_suspicion(),
        None,
        "the first connection is no evidence"
    );
    server.inject(Fault::always(FaultAction::Hang).path(LEASES).times(1));
    let sent = Instant::now();
    let answer = get(&mut connection, LEASES).await.unwrap();
    assert_eq!(answer.status, 200);
    assert!(answer.sent > sent, "the second request was answered");
    assert_eq!(server.counters().connections, 2);
    assert!(
        matches!(connection.take_suspicion(), Some(Suspicion { since, silent: true, .. }) if since < answer.sent)
    );
}

/// Pings find out while nothing is asked: a server that went silent is not waited for by the next probe.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_is_kept_and_a_dead_one_is_noticed_while_it_is_idle() {
    let server = ApiServer::start(ApiOptions::default()).await.unwrap();
    let mut connection = connection(&server);
    for _ in 0..5 {
        assert_eq!(get(&mut connection, "/version").await.unwrap().status, 200);
    }
    assert_eq!(
        server.counters().connections,
        1,
        "one is enough for five requests"
    );

    server.freeze();
    let frozen = Instant::now();
    tokio::time::timeout(Duration::from_secs(60), connection.disconnected())
        .await
        .unwrap();
    server.thaw();
    assert_eq!(get(&mut connection, "/version").await.unwrap().status, 200);
    assert_eq!(server.counters().connections, 2);
    let Some(Suspicion {
        since, silent: true, ..
    }) = connection.take_suspicion()
    else {
        panic!("nothing is suspected")
    };
    assert!(
        since <= frozen + Duration::from_millis(500),
        "it may have been away from then on"
    );
}

/// An answer that takes longer makes the API server suspicious.
const HEDGED_AFTER: Duration = Duration::from_millis(2_500);

/// Asks such a server 100 times, one request right after the other, as for the pages of a list.
async fn ask_often(server: &HostileServer) {
    let mut connection = from_kubeconfig(limits(1), &server.kubeconfig);
    let before = Instant::now();
    for request in 0..100 {
        let asked = Instant::now();
        let answer = get(&mut connection, "/version").await;
        let took = asked.elapsed();
        assert_eq!(
            answer.map(|answer| answer.status.as_u16()),
            Ok(200),
            "request {request}"
        );
        let suspicion = connection.take_suspicion();
        match suspicion {
            // That it is a habit shows with the second connection, and the first end is known to the moment.
            Some(Suspicion {
                since,
                silent: false,
                noticed: false,
            }) if request < 3 => assert!(since >= before, "{suspicion:?}"),
            // This machine has stalled.
            Some(Suspicion { silent: true, .. }) if took > HEDGED_AFTER => {}
            _ => assert_eq!(suspicion, None, "request {request}"),
        }
    }
}

/// Some say so in the answer, some only close.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_http_1_that_closes_after_each_answer_is_not_away() {
    for header in ["Connection: close\r\n", ""] {
        let server = HostileServer::scripted(false, move |mut stream| async move {
            let mut request = [0; 4096];
            if stream.read(&mut request).await? > 0 {
                let answer = format!("HTTP/1.1 200 OK\r\n{header}Content-Length: 2\r\n\r\n{{}}");
                stream.write_all(answer.as_bytes()).await?;
            }
            stream.shutdown().await
        });
        ask_often(&server.await.unwrap()).await;
    }
}

/// GOAWAY comes right after the answer, or when the next request is already on its way and is not processed.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_http_2_that_goes_away_after_each_answer_is_not_away() {
    const SETTINGS: u8 = 4;
    const GOAWAY: u8 = 7;
    const END_STREAM: u8 = 1;
    const END_HEADERS: u8 = 4;
    for waits_for_another in [false, true] {
        let server = HostileServer::scripted(true, move |mut stream| async move {
            stream.write_all(&frame(SETTINGS, 0, 0, &[])).await?;
            stream.read_exact(&mut [0; 24]).await?;
            let mut requests = 0;
            loop {
                let mut head = [0; 9];
                stream.read_exact(&mut head).await?;
                let [l0, l1, l2, kind, _, s0, s1, s2, s3] = head;
                let length = u32::from_be_bytes([0, l0, l1, l2]) as usize;
                stream.read_exact(&mut vec![0; length]).await?;
                if kind != 1 {
                    continue;
                }
                requests += 1;
                if requests == 1 {
                    let id = u32::from_be_bytes([s0, s1, s2, s3]);
                    let ok = frame(1, END_HEADERS, id, &[0x88]);
                    stream
                        .write_all(&[ok, frame(0, END_STREAM, id, b"{}")].concat())
                        .await?;
                }
                if requests == 2 || !waits_for_another {
                    // The last stream that was processed, and no error.
                    stream
                        .write_all(&frame(GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]))
                        .await?;
                    return stream.shutdown().await;
                }
            }
        });
        ask_often(&server.await.unwrap()).await;
    }
}

/// A proxy on the way may answer everything with a page of its own.
#[tokio::test]
async fn an_answer_that_is_not_of_an_api_server_says_so() {
    let server = HostileServer::scripted(false, |mut stream| async move {
        let mut request = [0; 4096];
        while stream.read(&mut request).await? > 0 {
            let page = "<html>Sign in</html>";
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{page}", page.len());
            stream.write_all(answer.as_bytes()).await?;
        }
        Ok(())
    });
    let server = server.await.unwrap();
    let mut asks = client(LOCAL, &limits(1));
    let failure = asks
        .leases(&access_to(&server.kubeconfig), budget(LIMIT))
        .await
        .unwrap_err();
    let text = "GET /version answered 200 OK without a JSON object; check the address in the kubeconfig";
    assert!(failure.to_string().contains(text), "{failure}");
}

/// This API server refuses lists, and says of each what was asked for.
#[tokio::test]
async fn leases_are_asked_for_in_protobuf_and_the_rest_in_json() {
    let server = HostileServer::scripted(false, |mut stream| async move {
        let mut request = [0; 4096];
        loop {
            let read = stream.read(&mut request).await?;
            if read == 0 {
                return Ok(());
            }
            let request = String::from_utf8_lossy(&request[..read]);
            let accept = request.lines().find(|line| line.starts_with("accept: "));
            let (status, message) = match request.starts_with("GET /version ") {
                true => ("200 OK", ""),
                false => ("404 Not Found", accept.unwrap_or("nothing")),
            };
            let body = format!(r#"{{"message": "{message}"}}"#);
            let answer = format!(
                "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(answer.as_bytes()).await?;
        }
    });
    let server = server.await.unwrap();
    let access = access_to(&server.kubeconfig);
    let mut asks = client(LOCAL, &limits(1));
    let leases = asks.leases(&access, budget(LIMIT)).await.unwrap_err().to_string();
    assert!(
        leases.contains("(accept: application/vnd.kubernetes.protobuf, "),
        "{leases}"
    );
    let nodes = asks.nodes_and_machines(&access, budget(LIMIT)).await;
    let nodes = nodes.unwrap_err().to_string();
    assert!(nodes.contains("(accept: application/json)"), "{nodes}");
}

/// A token, a client certificate, and a server under a path, over real TLS.
#[tokio::test]
async fn a_kubeconfig_is_used_as_it_says_and_its_secrets_are_not_logged() {
    const PATH: &str = "/shoots/one";
    let (log, _logs) = captured_log();
    let server = ApiServer::start(ApiOptions::default()).await.unwrap();
    let token = server.kubeconfig("by-token");
    let certificate = server.kubeconfig_with_certificate("by-certificate").unwrap();
    let under_a_path = token.replace(&server.url(), &format!("{}{PATH}/", server.url()));
    for (kubeconfig, path, user) in [
        (token, "", "by-token"),
        (certificate, "", "by-certificate"),
        (under_a_path, PATH, "by-token"),
    ] {
        server.set_path_prefix(path);
        let before = server.counters().requests;
        let mut asks = client(LOCAL, &limits(1));
        let listed = asks.leases(&access_to(&kubeconfig), budget(LIMIT)).await;
        assert!(listed.is_ok(), "{user} {path}: {listed:?}");
        let audit = server.audit_since(before);
        let as_user = !audit.is_empty() && audit.iter().all(|entry| entry.user == user);
        assert!(as_user, "{user} {path}: {audit:?}");
        let fields = kubeconfig.lines().filter_map(|line| line.trim().split_once(": "));
        let mut secrets = fields.filter(|(field, _)| ["token", "client-key-data"].contains(field));
        assert!(secrets.all(|(_, secret)| !log.text().contains(secret.trim_matches('"'))));
    }
    assert!(!log.text().is_empty());
}
