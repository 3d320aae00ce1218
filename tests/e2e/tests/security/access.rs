//! Access over TLS: by certificate and by name, and while both sides are given new ones.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::join_all;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::Channel;
use tonic::{Code, Status};
use watchdog_proto::feed::v1::Scope;
use watchdog_proto::probe::v1 as pb;
use watchdog_proto::probe::v1::lease_probe_service_client::LeaseProbeServiceClient;
use watchdog_runtime::grpc_client::Dialer;
use watchdog_runtime::tls::{PemFiles, Tls};
use watchdog_test_support::binaries;
use watchdog_test_support::certs::{Authority, TlsFiles};
use watchdog_test_support::sandboxed::SandboxFixture;
use watchdog_test_support::wait::{self, BOUND};
use watchdog_test_support::watchdog::{SERVER_NAME, Service, tls_options};

type Client = LeaseProbeServiceClient<Channel>;

fn tls(files: &TlsFiles, ca: &TlsFiles) -> Tls {
    let paths = PemFiles {
        cert: files.cert.clone(),
        key: files.key.clone(),
        ca: ca.ca.clone(),
    };
    Tls::load(&paths).unwrap()
}

fn client(address: &str, tls: Option<Tls>) -> Client {
    let dialer = Dialer {
        tls: tls.map(|tls| tls.client()),
        server_name: SERVER_NAME.to_owned(),
    };
    LeaseProbeServiceClient::new(dialer.channel(address).unwrap())
}

async fn list(client: &Client) -> Result<i32, Status> {
    let request = pb::ListVerdictsRequest::default();
    client
        .clone()
        .list_verdicts(request)
        .await
        .map(|answer| answer.into_inner().total_size)
}

/// Everything that a client receives about why its call failed.
fn causes(status: &Status) -> String {
    let mut text = status.to_string();
    let mut source = std::error::Error::source(status);
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

async fn lease_probe(fixture: &SandboxFixture, name: &str, files: &TlsFiles, arguments: &[&str]) -> Service {
    let setup = &fixture.setup;
    let command = setup
        .bare_command(binaries::LEASE_PROBE, name, &fixture.kubeconfig())
        .unwrap()
        .args(tls_options(files))
        .args(arguments.iter().copied());
    let service = setup.custom(command).await.unwrap();
    service.wait_ready().await.unwrap();
    service
}

async fn refused(service: &Service, reason: &str) -> f64 {
    let series = format!("watchdog_grpc_connections_refused_total{{reason=\"{reason}\"}}");
    service.metric(&series).await.unwrap().unwrap_or_default()
}

async fn until_refused(service: &Service, reason: &str, more_than: f64) {
    wait::until_true(&format!("a connection is refused: {reason}"), BOUND, || async {
        Ok(refused(service, reason).await > more_than)
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_who_are_not_known_are_refused_and_both_sides_are_told_why() {
    let fixture = SandboxFixture::start("callers", &["one"]).await.unwrap();
    let ours = Authority::new(&fixture.scratch, "ours").unwrap();
    let foreign = Authority::new(&fixture.scratch, "foreign").unwrap();
    let server = ours.issue("server", &[SERVER_NAME]).unwrap();
    let allowed = [
        "--tls-allowed-client",
        "client.test",
        "--tls-allowed-client",
        SERVER_NAME,
    ];
    let service = lease_probe(&fixture, "callers", &server, &allowed).await;
    let good = ours.issue("good", &["x.test", "client.test"]).unwrap();
    let good = client(&service.grpc, Some(tls(&good, &good)));
    list(&good).await.unwrap();

    let expired = ours.issue_expired("expired", &["client.test"]).unwrap();
    let stranger = foreign.issue("stranger", &["client.test"]).unwrap();
    for (files, to_client, to_server) in [
        (&expired, "CertificateExpired", "certificate expired"),
        (&stranger, "UnknownCA", "UnknownIssuer"),
    ] {
        let before = refused(&service, "handshake").await;
        let status = list(&client(&service.grpc, Some(tls(files, &server))))
            .await
            .unwrap_err();
        eprintln!("{}", causes(&status));
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
        assert!(causes(&status).contains(to_client), "{}", causes(&status));
        service.process.wait_for_text(to_server, BOUND).await.unwrap();
        until_refused(&service, "handshake", before).await;
    }

    let speak = async || {
        let tcp = TcpStream::connect(&service.grpc).await?;
        connect_tls(tcp, &server, None).await?.read_u8().await
    };
    let told_nobody = speak().await.unwrap_err();
    assert!(
        told_nobody.to_string().contains("CertificateRequired"),
        "{told_nobody}"
    );
    service
        .process
        .wait_for_text("peer sent no certificates", BOUND)
        .await
        .unwrap();

    let other = ours.issue("other", &["other.test"]).unwrap();
    let other = client(&service.grpc, Some(tls(&other, &other)));
    for _ in 0..2 {
        let status = list(&other).await.unwrap_err();
        assert_eq!(status.code(), Code::PermissionDenied);
        assert!(
            status.message().contains("\"other.test\""),
            "{}",
            status.message()
        );
        assert!(
            status.message().contains("--tls-allowed-client"),
            "{}",
            status.message()
        );
    }
    until_refused(&service, "identity", 0.0).await;
    service
        .process
        .wait_for_text("\\\"other.test\\\"", BOUND)
        .await
        .unwrap();

    // Without TLS the two do not even speak the same language; only the server can tell.
    assert!(list(&client(&service.grpc, None)).await.is_err());
    service
        .process
        .wait_for_text("InvalidContentType", BOUND)
        .await
        .unwrap();

    assert_eq!(
        list(&good).await.unwrap(),
        1,
        "who is known is served all the time"
    );
    let log = std::fs::read_to_string(service.process.log_path()).unwrap();
    for secret in [
        "PRIVATE KEY",
        "BEGIN CERTIFICATE",
        &fixture.sandbox.seed().token("watchdog"),
    ] {
        assert!(!log.contains(secret), "the log holds {secret}");
    }
}

/// Speaks TLS with this certificate or none.
pub(crate) async fn connect_tls(
    tcp: TcpStream,
    ca: &TlsFiles,
    certificate: Option<&TlsFiles>,
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&ca.ca).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match certificate {
        None => config.with_no_client_auth(),
        Some(files) => {
            let chain = vec![CertificateDer::from_pem_file(&files.cert).unwrap()];
            let key = PrivateKeyDer::from_pem_file(&files.key).unwrap();
            config.with_client_auth_cert(chain, key).unwrap()
        }
    };
    let name = ServerName::try_from(SERVER_NAME).unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, tcp).await
}

/// A stream of all verdicts that counts what comes.
struct Follower {
    messages: Arc<AtomicU64>,
    task: AbortOnDropHandle<Status>,
}

impl Follower {
    async fn start(client: &Client) -> Result<Self, Status> {
        // Every renewal is sent.
        let request = pb::WatchVerdictsRequest {
            scope: Scope::Local.into(),
            ..Default::default()
        };
        let mut stream = client.clone().watch_verdicts(request).await?.into_inner();
        let messages = Arc::new(AtomicU64::new(0));
        let count = messages.clone();
        let task = tokio::spawn(async move {
            loop {
                match stream.message().await {
                    Ok(Some(_)) => count.fetch_add(1, Ordering::Relaxed),
                    Ok(None) => return Status::ok("the stream ended"),
                    Err(status) => return status,
                };
            }
        });
        Ok(Self {
            messages,
            task: AbortOnDropHandle::new(task),
        })
    }

    /// Waits for messages that come from now on, on the same stream.
    async fn until_more(&self) {
        let before = self.messages.load(Ordering::Relaxed);
        wait::until("verdicts keep flowing", BOUND, || async {
            anyhow::ensure!(!self.task.is_finished(), "the stream has ended");
            Ok((self.messages.load(Ordering::Relaxed) > before + 2).then_some(()))
        })
        .await
        .unwrap();
    }
}

fn replace(files: &TlsFiles, with: &TlsFiles, authorities: &[&Path]) {
    let bundle: String = authorities
        .iter()
        .map(|ca| std::fs::read_to_string(ca).unwrap())
        .collect();
    std::fs::write(&files.ca, bundle).unwrap();
    std::fs::copy(&with.key, &files.key).unwrap();
    std::fs::copy(&with.cert, &files.cert).unwrap();
}

/// As a certificate authority is replaced without a gap: both are trusted, then the new one issues, then the old one
/// is forgotten.
#[tokio::test(flavor = "multi_thread")]
async fn certificates_and_authorities_are_rotated_without_a_dropped_stream() {
    let fixture = SandboxFixture::start("rotation", &["one", "two", "three"])
        .await
        .unwrap();
    let (old, new) = (
        Authority::new(&fixture.scratch, "old").unwrap(),
        Authority::new(&fixture.scratch, "new").unwrap(),
    );
    let first = old.issue("first", &[SERVER_NAME]).unwrap();
    let second = new.issue("second", &[SERVER_NAME]).unwrap();
    let copy = |name: &str, of: &Path| fixture.scratch.write(name, std::fs::read(of).unwrap()).unwrap();
    let server = TlsFiles {
        cert: copy("tls.crt", &first.cert),
        key: copy("tls.key", &first.key),
        ca: copy("ca.crt", &first.ca),
    };
    let service = lease_probe(&fixture, "rotation", &server, &[]).await;
    let old_client = client(&service.grpc, Some(tls(&first, &first)));
    let mut followers = Vec::new();
    for _ in 0..20 {
        followers.push(Follower::start(&old_client).await.unwrap());
    }
    let followed = async || join_all(followers.iter().map(Follower::until_more)).await;

    let new_client = |ca: &TlsFiles| client(&service.grpc, Some(tls(&second, ca)));
    let until_served = async |what: &str, ca: &TlsFiles| {
        let look = || async { Ok(list(&new_client(ca)).await.is_ok()) };
        wait::until_true(what, BOUND, look).await.unwrap();
    };
    followed().await;
    assert!(
        list(&new_client(&first)).await.is_err(),
        "the new authority is not known yet"
    );
    replace(&server, &first, &[&first.ca, &second.ca]);
    until_served("both authorities are trusted", &first).await;
    followed().await;
    replace(&server, &second, &[&first.ca, &second.ca]);
    until_served("the new authority has issued", &second).await;
    followed().await;
    replace(&server, &second, &[&second.ca]);
    wait::until("the old authority is forgotten", BOUND, || async {
        let status = list(&client(&service.grpc, Some(tls(&first, &second)))).await;
        Ok(status.err().filter(|status| causes(status).contains("UnknownCA")))
    })
    .await
    .unwrap();
    followed().await;
    assert_eq!(
        service.metric("watchdog_tls_files_valid").await.unwrap(),
        Some(1.0)
    );
}
