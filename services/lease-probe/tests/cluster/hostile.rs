//! API servers that answer whatever they like, beside honest ones: large answers share a number of places.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use http_body_util::Full;
use lease_probe::cluster::http::HttpConnector;
use lease_probe::cluster::limits::{LARGEST_ANSWER, SharedLimits};
use lease_probe::domain::outcome::{Outcome, ProbeFailure};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use watchdog_sandbox::hostile::{HostileServer, Hostility};
use watchdog_sandbox::resource::keys;
use watchdog_sandbox::{ApiOptions, ApiServer};

use crate::fixture::{LOCAL, access_to, budget, client, kubeconfig};

/// Between two probes of a hostile shoot; a prober leaves more.
const PAUSE: Duration = Duration::from_millis(50);

/// Two places.
const BUDGET: usize = 4 << 20;

/// The shortest that a probe may have by the configuration is longer.
const LIMIT: Duration = Duration::from_secs(2);

fn limits() -> Arc<SharedLimits> {
    Arc::new(SharedLimits::new(64, BUDGET))
}

async fn failure_of(
    hostility: Hostility,
    h2: bool,
    limits: &Arc<SharedLimits>,
    within: Duration,
) -> ProbeFailure {
    let server = HostileServer::start(hostility, h2).await.unwrap();
    let access = access_to(&server.kubeconfig);
    let listed = client(LOCAL, limits).leases(&access, budget(within)).await;
    match listed {
        Err(failure) => failure,
        Ok(_) => panic!("{hostility:?} was listed"),
    }
}

/// The kind that is hostile in its nodes.
const OF_NODES: Hostility = Hostility::ManyConditions;

/// Their leases are listed: the one that is malformed is counted and left out.
const LISTED: [Hostility; 2] = [OF_NODES, Hostility::LongName];

/// Each kind alone, over both protocols: no kind leads to a scale-down, and no memory stays taken.
#[tokio::test(flavor = "multi_thread")]
async fn no_hostile_answer_is_a_loss() {
    let alone = |(hostility, h2)| async move {
        let limits = limits();
        let failure = failure_of(hostility, h2, &limits, LIMIT).await;
        assert!(
            matches!(
                failure.outcome(),
                Outcome::Inconclusive | Outcome::ApiServerUnreachable | Outcome::Throttled
            ),
            "{hostility:?}: {failure}"
        );
        assert!(failure.to_string().len() < 1_000, "{hostility:?}: {failure}");
        assert_eq!(limits.answer_bytes(), 0, "{hostility:?}: {failure}");
    };
    let kinds = Hostility::ALL
        .into_iter()
        .filter(|kind| !LISTED.contains(kind))
        .flat_map(|kind| [(kind, true), (kind, false)]);
    futures::future::join_all(kinds.map(alone)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_too_large_is_asked_for_in_smaller_pages_and_then_named() {
    let limits = Arc::new(SharedLimits::new(64, 64 << 20));
    let failure = failure_of(Hostility::EndlessList, true, &limits, 20 * LIMIT).await;
    assert_eq!(failure, ProbeFailure::AnswerTooLarge(2 << 20));
    assert_eq!(failure.outcome(), Outcome::Inconclusive);
    let named = failure.to_string();
    assert!(named.contains("larger than 2048 KiB"), "{named}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_for_another_name_is_named_unless_that_is_the_name_to_expect() {
    let server = HostileServer::start(Hostility::OtherName, true).await.unwrap();
    let failure = async |kubeconfig: &str| {
        let mut asks = client(LOCAL, &limits());
        let listed = asks.leases(&access_to(kubeconfig), budget(LIMIT)).await;
        listed.unwrap_err()
    };
    let failed = failure(&server.kubeconfig).await;
    let named = failed.to_string();
    assert!(matches!(failed, ProbeFailure::Tls(_)), "{named}");
    assert!(
        named.contains("does not have the name 127.0.0.1, only "),
        "{named}"
    );
    assert!(named.contains("other.example"), "{named}");
    let expected = "    tls-server-name: other.example\n    server: ";
    let failed = failure(&server.kubeconfig.replace("    server: ", expected)).await;
    assert!(!matches!(failed, ProbeFailure::Tls(_)), "it answers: {failed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_too_many_conditions_fails_the_list() {
    let limits = limits();
    let server = HostileServer::start(OF_NODES, true).await.unwrap();
    let access = access_to(&server.kubeconfig);
    // To read megabytes without optimization takes seconds.
    let listed = client(LOCAL, &limits)
        .nodes_and_machines(&access, budget(LIMIT * 15))
        .await;
    let Err(ProbeFailure::ListFailed(why)) = listed else {
        panic!("{listed:?}")
    };
    assert!(why.contains("more than 128 entries"), "{why}");
    assert_eq!(limits.answer_bytes(), 0);
}

/// A name is text of the shoot. It must not make a verdict too large for its readers, nor clear their terminals.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_with_a_name_of_300_000_bytes_is_left_out_and_a_node_is_quoted_with_253() {
    let limits = limits();
    let server = HostileServer::start(Hostility::LongName, true).await.unwrap();
    let access = access_to(&server.kubeconfig);
    let mut asks = client(LOCAL, &limits);
    let leases = asks.leases(&access, budget(LIMIT)).await.unwrap();
    assert_eq!((leases.leases.len(), leases.malformed), (0, 1));
    let nodes = asks.nodes_and_machines(&access, budget(LIMIT)).await;
    let sentence = nodes.unwrap_err().to_string();
    assert!(
        sentence.contains("nnn") && sentence.len() < 600,
        "{}",
        sentence.len()
    );
    assert!(!sentence.contains('\u{1b}'), "{sentence:?}");
}

/// A server that floods a connection with what nobody asked for loses it.
#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_asked_for_ends_the_connection() {
    for (hostility, h2) in [
        (Hostility::Unasked, true),
        (Hostility::Unasked, false),
        (Hostility::InterimResponses, true),
        (Hostility::InterimResponses, false),
    ] {
        let limits = limits();
        let failure = failure_of(hostility, h2, &limits, 30 * LIMIT).await;
        // With HTTP/1.1 an answer that comes right after the request counts as the one that was asked for.
        let may_be_taken = hostility == Hostility::Unasked && !h2;
        let taken_for_answer = may_be_taken && matches!(failure, ProbeFailure::VersionFailed(_));
        assert!(
            matches!(failure, ProbeFailure::Connect(_)) || taken_for_answer,
            "{hostility:?}: {failure}"
        );
    }
}

/// Hostile shoots want many times the budget; an honest one is listed all the same.
#[tokio::test(flavor = "multi_thread")]
async fn hostile_shoots_take_nothing_from_an_honest_one() {
    let limits = limits();
    let ended = Arc::new(AtomicBool::new(false));
    let mut hostile = tokio::task::JoinSet::new();
    for (number, hostility) in Hostility::ALL.into_iter().enumerate() {
        let (limits, ended) = (limits.clone(), ended.clone());
        let server = HostileServer::start(hostility, number % 3 == 0).await.unwrap();
        hostile.spawn(async move {
            let access = access_to(&server.kubeconfig);
            let mut asks = client(LOCAL, &limits);
            while !ended.load(SeqCst) {
                let listed = asks.leases(&access, budget(LIMIT)).await;
                assert!(listed.is_err() || LISTED.contains(&hostility), "{hostility:?}");
                tokio::time::sleep(PAUSE).await;
            }
            // The task has the whole server, or it would end before.
            drop(server);
        });
    }
    let server = ApiServer::start(ApiOptions::default()).await.unwrap();
    let honest = access_to(&server.kubeconfig("probe"));
    let mut asks = client(LOCAL, &limits);
    let (mut lists, mut most) = (0, 0);
    while lists < 50 || most < BUDGET / 2 {
        let listed = asks.leases(&honest, budget(10 * LIMIT)).await;
        assert!(listed.is_ok(), "{listed:?}");
        lists += 1;
        most = most.max(limits.answer_bytes());
        assert!(most <= BUDGET);
    }
    ended.store(true, SeqCst);
    hostile.abort_all();
    while let Some(end) = hostile.join_next().await {
        assert!(end.is_ok() || end.is_err_and(|error| error.is_cancelled()));
    }
    assert_eq!(limits.answer_bytes(), 0);
}

/// Waiting for a place says nothing about the API server.
#[tokio::test]
async fn a_list_that_waits_for_a_place_until_its_time_is_over_is_no_evidence() {
    let limits = Arc::new(SharedLimits::new(64, 2 << 20));
    let server = ApiServer::start(ApiOptions::default()).await.unwrap();
    // One page, which their names make larger than 64 KiB.
    for number in 0..500 {
        let name = format!("{number:0>200}");
        let lease = json!({"metadata": {"name": name}, "spec": {"leaseDurationSeconds": 40}});
        server.create(&keys::LEASES, "kube-node-lease", lease).unwrap();
    }
    let access = access_to(&server.kubeconfig("probe"));
    let large = Full::from(vec![0; 1 << 20]);
    let holder = limits.read(large, LARGEST_ANSWER, budget(LIMIT)).await.unwrap();
    let mut asks = client(LOCAL, &limits);
    let listed = asks.leases(&access, budget(LIMIT / 4)).await;
    let failure = listed.unwrap_err();
    assert_eq!(failure, ProbeFailure::NoAnswerMemory(2 << 20));
    assert!(!failure.suggests_outage());
    assert_eq!(asks.take_suspicion(), None);
    drop(holder);
    let listed = asks.leases(&access, budget(LIMIT)).await;
    assert_eq!(listed.unwrap().leases.len(), 500);
}

/// An honest page that is almost as large as allowed, in small chunks, as a server of HTTP/1.1 sends it.
#[tokio::test]
async fn a_page_of_almost_the_limit_is_read_over_http_1() {
    const LIMIT_OF_PAGE: usize = 2 << 20;
    let server = HostileServer::scripted(false, |mut stream| async move {
        let lease = |number: usize, padding: usize| {
            let padding = "x".repeat(padding);
            format!(
                r#"{{"metadata": {{"name": "node-{number:03}", "annotations": {{"a": "{padding}"}}}}, "spec": {{}}}}"#
            )
        };
        let page = |padding: usize| {
            let leases: Vec<_> = (0..500).map(|number| lease(number, padding)).collect();
            let items = leases.join(",");
            format!(r#"{{"metadata": {{"resourceVersion": "7"}}, "items": [{items}]}}"#)
        };
        let padding = (LIMIT_OF_PAGE - 1 - page(0).len()) / 500;
        let mut page = page(padding);
        page.push_str(&" ".repeat(LIMIT_OF_PAGE - 1 - page.len()));
        let mut answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        for chunk in page.as_bytes().chunks(512) {
            answer.extend(format!("{:x}\r\n", chunk.len()).as_bytes());
            answer.extend([chunk, b"\r\n"].concat());
        }
        answer.extend(b"0\r\n\r\n");
        let mut request = [0; 4096];
        while stream.read(&mut request).await? > 0 {
            // At once, so that as much waits as each read takes.
            stream.write_all(&answer).await?;
            stream.flush().await?;
        }
        Ok(())
    });
    let server = server.await.unwrap();
    let access = access_to(&server.kubeconfig);
    let limits = limits();
    let mut asks = client(LOCAL, &limits);
    for _ in 0..3 {
        let listed = asks.leases(&access, budget(10 * LIMIT)).await;
        assert_eq!(listed.unwrap().leases.len(), 500);
        assert_eq!(asks.take_suspicion(), None);
    }
}

/// A kubeconfig must not make lease-probe talk to its own host or cloud.
#[tokio::test]
async fn local_addresses_are_refused_and_nothing_connects() {
    let connector = HttpConnector {
        allow_local_addresses: false,
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    for (host, address, kind) in [
        ("127.0.0.1", "127.0.0.1", "loopback"),
        ("localhost", "127.0.0.1", "loopback"),
        ("[::ffff:127.0.0.1]", "::ffff:127.0.0.1", "loopback"),
        ("0.0.0.0", "0.0.0.0", "unspecified"),
        ("169.254.169.254", "169.254.169.254", "link-local"),
        ("[fd00:ec2::254]", "fd00:ec2::254", "metadata"),
        ("[64:ff9b:1::a9fe:a9fe]", "64:ff9b:1::a9fe:a9fe", "link-local"),
        ("[2002:7f00:1::1]", "2002:7f00:1::1", "loopback"),
    ] {
        let kubeconfig = kubeconfig(&format!("https://{host}:{port}"));
        let limits = limits();
        let mut asks = client(connector, &limits);
        let listed = asks.leases(&access_to(&kubeconfig), budget(LIMIT)).await;
        let Err(failure) = listed else {
            panic!("{host} was listed")
        };
        let ProbeFailure::AddressRefused { kind: found, .. } = &failure else {
            panic!("{host}: {failure}")
        };
        assert_eq!(
            (failure.outcome(), failure.suggests_outage()),
            (Outcome::Inconclusive, false)
        );
        assert!(*found == kind, "{host}: {failure}");
        let sentence = failure.to_string();
        assert!(host == "localhost" || sentence.contains(address), "{sentence}");
        assert!(
            sentence.contains("Set the server of the kubeconfig"),
            "{sentence}"
        );
    }
    let accepted = tokio::time::timeout(Duration::ZERO, listener.accept()).await;
    assert!(accepted.is_err(), "somebody connected");
}
