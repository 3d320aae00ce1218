//! Access to the admin endpoint with TLS, and its limits for connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use watchdog_runtime::admin::{self, Admin};
use watchdog_runtime::allowed_clients::AllowedClients;
use watchdog_runtime::metrics::{Collector, Exposition};
use watchdog_runtime::process::Process;
use watchdog_runtime::readiness::Readiness;
use watchdog_runtime::tls::{CertificateSource, Tls};

use crate::PATIENCE;
use crate::certs::Authority;
use crate::process::exchange;
use crate::server::SERVER;

async fn serve(tls: Option<Tls>) -> SocketAddr {
    serve_collected(tls, Vec::new()).await
}

async fn serve_collected(tls: Option<Tls>, collectors: Vec<Arc<dyn Collector>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let allowed = AllowedClients::named(&[SERVER.to_owned()], &["scraper.test".to_owned()]);
    let tls = tls.map(|tls| tls.allowing(allowed));
    let admin = Admin {
        readiness: Readiness::default(),
        process: Process::default(),
        collectors,
    };
    tokio::spawn(admin::serve(listener, tls, admin));
    address
}

/// Connects as a caller with a certificate for this name, or with none.
async fn connect(address: SocketAddr, authority: &Authority, name: Option<&str>) -> TlsStream<TcpStream> {
    let own = authority.tls(name.unwrap_or(SERVER)).client();
    let mut config = (*own.current().await).clone();
    config.alpn_protocols.clear();
    if name.is_none() {
        let mut roots = RootCertStore::empty();
        let authority = CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap();
        roots.add(authority).unwrap();
        config = ClientConfig::builder_with_provider(config.crypto_provider().clone())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
    }
    let tcp = TcpStream::connect(address).await.unwrap();
    let connect = TlsConnector::from(Arc::new(config)).connect(SERVER.try_into().unwrap(), tcp);
    tokio::time::timeout(PATIENCE, connect).await.unwrap().unwrap()
}

#[tokio::test]
async fn with_tls_only_the_probes_are_answered_to_everybody() {
    let authority = Authority::new("ours");
    let address = serve(Some(authority.tls(SERVER))).await;
    let ask = async |name: Option<&str>, method: &str, path: &str| {
        exchange(connect(address, &authority, name).await, method, path, "debug").await
    };
    for (name, why) in [(None, "certificate"), (Some("other.test"), "\"other.test\"")] {
        for path in ["/healthz", "/readyz"] {
            assert_eq!(ask(name, "GET", path).await.0, 200, "{name:?} {path}");
        }
        for (method, path) in [("GET", "/metrics"), ("PUT", "/log-level"), ("GET", "/healthz/..")] {
            let (code, answer) = ask(name, method, path).await;
            assert!(
                code == 403 && answer.contains(why),
                "{name:?} {path}: {code} {answer}"
            );
        }
    }
    let scraper = Some("scraper.test");
    let (code, metrics) = ask(scraper, "GET", "/metrics").await;
    assert!(
        code == 200 && metrics.contains("watchdog_ready 1"),
        "{code} {metrics}"
    );
    assert_eq!(ask(scraper, "POST", "/metrics").await.0, 405);
    let (code, answer) = ask(scraper, "PUT", "/log-level").await;
    assert_eq!(
        (code, &*answer),
        (400, "the log level of this process is fixed\n")
    );

    let mut plaintext = TcpStream::connect(address).await.unwrap();
    plaintext
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        .await
        .unwrap();
    let mut answer = Vec::new();
    let read = tokio::time::timeout(PATIENCE, plaintext.read_to_end(&mut answer)).await;
    let _ = read.expect("it is closed");
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    assert_eq!(
        ask(None, "GET", "/healthz").await.0,
        200,
        "others are served as before"
    );
}

#[tokio::test]
async fn the_oldest_of_64_silent_connections_gives_way_to_a_probe() {
    let address = serve(None).await;
    let mut silent = Vec::new();
    for _ in 0..64 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    let probe = TcpStream::connect(address).await.unwrap();
    assert_eq!(exchange(probe, "GET", "/healthz", "").await.0, 200);
    let closed = tokio::time::timeout(PATIENCE, silent[0].read(&mut [0; 1])).await;
    assert!(matches!(closed.expect("it is closed"), Ok(0) | Err(_)));
    // The next one is still served.
    assert_eq!(
        exchange(silent.swap_remove(1), "GET", "/healthz", "").await.0,
        200
    );
}

#[tokio::test]
async fn a_connection_on_which_nothing_comes_is_closed_with_and_without_tls() {
    for tls in [None, Some(Authority::new("ours").tls(SERVER))] {
        let address = serve(tls).await;
        let mut caller = TcpStream::connect(address).await.unwrap();
        tokio::time::pause();
        let began = tokio::time::Instant::now();
        assert_eq!(caller.read(&mut [0; 1]).await.unwrap(), 0);
        let open = began.elapsed();
        assert!(open <= Duration::from_secs(11), "{open:?}");
        tokio::time::resume();
    }
}

/// One that asks every 5 s is under way when its connection has been open for a minute.
#[tokio::test]
async fn a_kept_connection_ends_between_two_answers() {
    let address = serve(None).await;
    let mut scraper = TcpStream::connect(address).await.unwrap();
    tokio::time::pause();
    let began = tokio::time::Instant::now();
    loop {
        let request = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
        if scraper.write_all(request).await.is_err()
            || scraper.read(&mut [0; 1 << 16]).await.unwrap_or(0) == 0
        {
            break;
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    let open = began.elapsed();
    assert!(
        open <= Duration::from_secs(36),
        "a scrape that began after {open:?} has little time"
    );
}

/// As one to the gRPC API. Without that, an idle one ends after 10 s by the same clock.
#[tokio::test]
async fn a_kept_connection_ends_when_its_authority_is_not_trusted_any_more() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let tls = old.tls(SERVER);
    let address = serve(Some(tls.clone())).await;
    let mut kept = connect(address, &old, Some("scraper.test")).await;
    kept.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        .await
        .unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"ok\n") {
        let read = tokio::time::timeout(PATIENCE, kept.read_buf(&mut answer)).await;
        assert_ne!(read.unwrap().unwrap(), 0, "{answer:?}");
    }

    tokio::time::pause();
    let began = tokio::time::Instant::now();
    tls.replace(new.credentials(SERVER, CertificateSource::Files))
        .unwrap();
    let closed = kept.read(&mut [0; 1]).await;
    assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
    let open = began.elapsed();
    assert!(open <= Duration::from_secs(6), "{open:?}");
}

/// Counts how often it is read, which takes as long as the series of 10,000 shoots do.
struct SlowCollector(Arc<AtomicU32>);

const COLLECTING: Duration = Duration::from_millis(50);

impl Collector for SlowCollector {
    fn collect(&self, _: &mut Exposition) {
        std::thread::sleep(COLLECTING);
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A request without an answer to read holds no place, and many of them fit into one packet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn however_many_ask_for_metrics_takes_half_of_a_core_at_most() {
    let collected = Arc::new(AtomicU32::new(0));
    let began = tokio::time::Instant::now();
    let address = serve_collected(None, vec![Arc::new(SlowCollector(collected.clone()))]).await;
    let mut scrapers = Vec::new();
    for _ in 0..8 {
        let mut scraper = TcpStream::connect(address).await.unwrap();
        let requests = "HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(64);
        scraper.write_all(requests.as_bytes()).await.unwrap();
        scrapers.push(scraper);
    }
    for _ in 0..5 {
        let probe = TcpStream::connect(address).await.unwrap();
        assert_eq!(exchange(probe, "GET", "/healthz", "").await.0, 200);
        tokio::time::sleep(4 * COLLECTING).await;
    }
    let collected = collected.load(Ordering::Relaxed);
    let elapsed = began.elapsed();
    assert!(
        collected > 0 && (collected - 1) * 2 * COLLECTING <= elapsed,
        "{collected} in {elapsed:?}"
    );
}
