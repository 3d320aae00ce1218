//! API servers that answer whatever they like, beside an honest one: their answers share a budget of bytes.

#![cfg(test)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lease_probe::cluster::answer_budget::SharedLimits;
use lease_probe::cluster::http::HttpConnector;
use lease_probe::cluster::kubeconfig::{Access, access};
use lease_probe::cluster::shoot_client::{Budget, HttpShootClient, ShootClient};
use lease_probe::domain::outcome::{Outcome, ProbeFailure};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use watchdog_sandbox::{ApiOptions, ApiServer};

const BUDGET: usize = 4 << 20;

const LIMIT: Duration = Duration::from_secs(5);

/// How an API server answers every request.
#[derive(Debug, Clone, Copy)]
enum Hostility {
    /// A list that never ends, as fast as it is read.
    EndlessList,
    /// Bytes that are no JSON, without end.
    EndlessBytes,
    /// A byte a second.
    Trickles,
    /// A list of one Lease with a megabyte of annotations, and always another page.
    ManyPages,
    /// Arrays within arrays.
    DeepJson,
    /// A body that says it is compressed.
    Compressed,
    /// Headers without end.
    ManyHeaders,
    /// To another server.
    Redirects,
}

const ALL: [Hostility; 8] = [
    Hostility::EndlessList,
    Hostility::EndlessBytes,
    Hostility::Trickles,
    Hostility::ManyPages,
    Hostility::DeepJson,
    Hostility::Compressed,
    Hostility::ManyHeaders,
    Hostility::Redirects,
];

const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n";

impl Hostility {
    /// The begin of the answer, the part that follows, how often, and how long after the one before.
    fn answer(self) -> (String, String, usize, Duration) {
        let (at_once, endless) = (Duration::ZERO, usize::MAX);
        let list = format!("{HEAD}\r\n{{\"metadata\": {{}}, \"items\": [");
        let lease = |annotations: usize| {
            format!(
                r#"{{"metadata": {{"name": "n", "annotations": {{"a": "{}"}}}}, "spec": {{}}}},"#,
                "x".repeat(annotations)
            )
        };
        match self {
            Self::EndlessList => (list, lease(1_000), endless, at_once),
            Self::EndlessBytes => (format!("{HEAD}\r\n"), "y".repeat(10_000), endless, at_once),
            Self::Trickles => (list, " ".to_owned(), endless, Duration::from_secs(1)),
            Self::ManyPages => {
                let item = lease(1 << 20);
                let item = item.trim_end_matches(',');
                let body = format!(r#"{{"metadata": {{"continue": "more"}}, "items": [{item}]}}"#);
                let length = format!("Content-Length: {}\r\n\r\n", body.len());
                (format!("{HEAD}{length}{body}"), String::new(), 0, at_once)
            }
            Self::DeepJson => (format!("{HEAD}\r\n"), "[".repeat(10_000), 100, at_once),
            Self::Compressed => (
                format!("{HEAD}Content-Encoding: gzip\r\n\r\n"),
                "\u{1f}\u{b}".repeat(5_000),
                100,
                at_once,
            ),
            Self::ManyHeaders => (HEAD.to_owned(), "a: b\r\n".repeat(100), endless, at_once),
            Self::Redirects => (
                "HTTP/1.1 302 Found\r\nLocation: https://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n"
                    .to_owned(),
                String::new(),
                0,
                at_once,
            ),
        }
    }

    async fn serve(self, mut stream: TlsStream<TcpStream>) -> std::io::Result<()> {
        let mut request = [0; 4096];
        let (begin, part, times, pause) = self.answer();
        while stream.read(&mut request).await? > 0 {
            stream.write_all(begin.as_bytes()).await?;
            for _ in 0..times {
                stream.write_all(part.as_bytes()).await?;
                stream.flush().await?;
                tokio::time::sleep(pause).await;
            }
            stream.flush().await?;
            if times > 0 {
                return stream.shutdown().await;
            }
        }
        Ok(())
    }

    /// Starts a server; returns a kubeconfig for it.
    async fn start(self) -> Access {
        let key = rcgen::KeyPair::generate().unwrap();
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let certificate = rcgen::CertificateParams::new(names)
            .unwrap()
            .self_signed(&key)
            .unwrap();
        let private = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], private)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let tls = acceptor.accept(tcp).await?;
                    self.serve(tls).await
                });
            }
        });
        let ca = STANDARD.encode(certificate.pem());
        let kubeconfig = format!(
            "{{clusters: [{{name: c, cluster: {{server: \"https://{address}\", certificate-authority-data: {ca}}}}}], \
             users: [{{name: u, user: {{token: t}}}}], contexts: [{{name: x, context: {{cluster: c, user: u}}}}], \
             current-context: x}}"
        );
        access(Ok(Some(kubeconfig.as_bytes())))
    }
}

fn client(limits: &Arc<SharedLimits>) -> HttpShootClient<HttpConnector> {
    let seed = kube::Config::new("http://127.0.0.1:9".parse().unwrap());
    let seed = kube::Client::try_from(seed).unwrap();
    HttpShootClient::new("shoot".into(), seed, HttpConnector, limits.clone())
}

async fn failure_of(hostility: Hostility, limits: &Arc<SharedLimits>, within: Duration) -> ProbeFailure {
    let access = hostility.start().await;
    let listed = client(limits).leases(&access, Budget::starting_now(within)).await;
    match listed {
        Err(failure) => failure,
        Ok(_) => panic!("{hostility:?} was listed"),
    }
}

/// Each kind alone: the outcome holds, and nothing stays taken.
#[tokio::test(flavor = "multi_thread")]
async fn no_hostile_answer_is_a_loss() {
    for hostility in ALL {
        let limits = Arc::new(SharedLimits::new(64, BUDGET));
        let failure = failure_of(hostility, &limits, LIMIT).await;
        assert!(
            matches!(
                failure.outcome(),
                Outcome::Inconclusive | Outcome::ApiServerUnreachable
            ),
            "{hostility:?}: {failure}"
        );
        assert_eq!(limits.answers.in_use(), 0, "{hostility:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_too_large_is_asked_for_in_smaller_pages_and_then_named() {
    let limits = Arc::new(SharedLimits::new(64, 64 << 20));
    let failure = failure_of(Hostility::EndlessList, &limits, 20 * LIMIT).await;
    assert_eq!(failure, ProbeFailure::AnswerTooLarge(8 << 20));
}

/// Forty hostile shoots want ten times the budget all the time; an honest one is listed all the same.
#[tokio::test(flavor = "multi_thread")]
async fn hostile_shoots_take_nothing_from_an_honest_one() {
    let limits = Arc::new(SharedLimits::new(64, BUDGET));
    let ended = Arc::new(AtomicBool::new(false));
    let mut hostile = tokio::task::JoinSet::new();
    for hostility in ALL.into_iter().cycle().take(40) {
        let (limits, ended, access) = (limits.clone(), ended.clone(), hostility.start().await);
        hostile.spawn(async move {
            let mut client = client(&limits);
            while !ended.load(SeqCst) {
                assert!(client.leases(&access, Budget::starting_now(LIMIT)).await.is_err());
            }
        });
    }
    let server = ApiServer::start(ApiOptions::default()).await.unwrap();
    let honest = access(Ok(Some(server.kubeconfig("probe").as_bytes())));
    let mut most = 0;
    let mut listed = 0;
    while listed < 200 {
        let mut client = client(&limits);
        client
            .leases(&honest, Budget::starting_now(4 * LIMIT))
            .await
            .unwrap();
        listed += 1;
        most = most.max(limits.answers.in_use());
        assert!(most <= BUDGET);
    }
    assert!(most > 0, "the hostile shoots had none of the memory");
    ended.store(true, SeqCst);
    hostile.abort_all();
    while let Some(end) = hostile.join_next().await {
        assert!(end.is_ok() || end.is_err_and(|error| error.is_cancelled()));
    }
    assert_eq!(limits.answers.in_use(), 0);
}
