//! Tests of the limits for callers, allowed and not: certificates, names, plaintext, limits.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::join_all;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::Channel;
use tonic::{Code, Status};
use watchdog_proto::feed::v1::Scope;
use watchdog_proto::probe::v1 as pb;
use watchdog_proto::probe::v1::lease_probe_service_client::LeaseProbeServiceClient;
use watchdog_runtime::grpc_client::Dialer;
use watchdog_runtime::tls::{Tls, TlsPaths};
use watchdog_test_support::binaries;
use watchdog_test_support::certs::{Authority, TlsFiles};
use watchdog_test_support::process::Command;
use watchdog_test_support::sandboxed::SandboxFixture;
use watchdog_test_support::wait::{self, BOUND};
use watchdog_test_support::watchdog::{NAMESPACE, SERVER_NAME, Service};

type Client = LeaseProbeServiceClient<Channel>;

fn tls(files: &TlsFiles, ca: &TlsFiles) -> Tls {
    let paths = TlsPaths {
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

fn command(fixture: &SandboxFixture, binary: &str, name: &str, server: Option<&TlsFiles>) -> Command {
    let kubeconfig = fixture
        .scratch
        .write(&format!("{name}.kubeconfig"), fixture.kubeconfig())
        .unwrap();
    let mut command = Command::new(name, binaries::path(binary).unwrap())
        .args(["--identity", name, "--namespace", NAMESPACE])
        .args(["--grpc-addr", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0"])
        .arg("--config-file")
        .arg(fixture.setup.prober_file().as_os_str())
        .arg("--kubeconfig")
        .arg(kubeconfig.as_os_str());
    if binary == binaries::LEASE_PROBE {
        command = command.arg("--allow-local-addresses");
    }
    if let Some(files) = server {
        for (flag, path) in [
            ("--tls-cert", &files.cert),
            ("--tls-key", &files.key),
            ("--tls-client-ca", &files.ca),
        ] {
            command = command.arg(flag).arg(path.as_os_str());
        }
    }
    command
}

async fn lease_probe(fixture: &SandboxFixture, name: &str, files: &TlsFiles, arguments: &[&str]) -> Service {
    let command = command(fixture, binaries::LEASE_PROBE, name, Some(files)).args(arguments.iter().copied());
    let service = fixture.setup.custom(command).await.unwrap();
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

    let nobody = {
        let mut roots = rustls::RootCertStore::empty();
        use rustls::pki_types::pem::PemObject;
        roots
            .add(rustls::pki_types::CertificateDer::from_pem_file(&server.ca).unwrap())
            .unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth()
    };
    let told_nobody = speak_tls(&service.grpc, nobody).await.unwrap_err();
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

/// Of one caller, see `services/common/runtime/src/accept.rs`.
const MAX_CONNECTIONS: usize = 128;

#[tokio::test(flavor = "multi_thread")]
async fn one_certificate_takes_no_connection_from_others_and_a_refused_one_keeps_none() {
    let fixture = SandboxFixture::start("quota", &["one"]).await.unwrap();
    let ours = Authority::new(&fixture.scratch, "ours").unwrap();
    let server = ours.issue("server", &[SERVER_NAME]).unwrap();
    let allowed = ["greedy.test", "modest.test"].map(|name| ["--tls-allowed-client", name]);
    let service = lease_probe(&fixture, "quota", &server, &allowed.concat()).await;
    let caller = |name: &str| {
        let files = ours.issue(name, &[name]).unwrap();
        tls(&files, &files)
    };
    let connect = async |caller: &Tls, connections: usize| {
        let clients: Vec<_> = (0..connections)
            .map(|_| client(&service.grpc, Some(caller.clone())))
            .collect();
        let mut answers = Vec::new();
        // One after the other: handshakes have a limit of their own.
        for client in &clients {
            answers.push(list(client).await);
        }
        (clients, answers)
    };
    let (greedy, modest, stranger) = (
        caller("greedy.test"),
        caller("modest.test"),
        caller("stranger.test"),
    );
    let (_held, answers) = connect(&greedy, MAX_CONNECTIONS + 10).await;
    let served = answers.iter().filter(|answer| answer.is_ok()).count();
    assert_eq!(served, MAX_CONNECTIONS);
    until_refused(&service, "limit", 0.0).await;
    service
        .process
        .wait_for_text("greedy.test has 128 connections already", BOUND)
        .await
        .unwrap();
    // The own service is known by the name in its certificate.
    for other in [&modest, &tls(&server, &server)] {
        list(&client(&service.grpc, Some(other.clone()))).await.unwrap();
    }

    let (_refused, answers) = connect(&stranger, MAX_CONNECTIONS).await;
    assert!(answers.iter().all(Result::is_err));
    // Of the same address, callers that are known come in again when those that are refused were let go.
    let modest = client(&service.grpc, Some(modest));
    wait::until_true("a known caller comes in", BOUND, || async {
        Ok(list(&modest).await.is_ok())
    })
    .await
    .unwrap();
}

/// Connects with this configuration and waits for the first byte.
async fn speak_tls(address: &str, config: rustls::ClientConfig) -> std::io::Result<u8> {
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let name = rustls::pki_types::ServerName::try_from(SERVER_NAME).unwrap();
    let mut stream = connector
        .connect(name, TcpStream::connect(address).await?)
        .await?;
    stream.read_u8().await
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_cannot_be_trusted_are_not_believed() {
    let fixture = SandboxFixture::start("servers", &["one"]).await.unwrap();
    let ours = Authority::new(&fixture.scratch, "ours").unwrap();
    let foreign = Authority::new(&fixture.scratch, "foreign").unwrap();
    let coordinator = ours.issue("coordinator", &["coordinator.test"]).unwrap();
    // Each knows the coordinator's authority, so only the server's certificate is at fault.
    let known = |mut files: TlsFiles| {
        files.ca = coordinator.ca.clone();
        files
    };
    let cases = [
        (
            "expired",
            ours.issue_expired("expired", &[SERVER_NAME]).unwrap(),
            "certificate expired",
        ),
        (
            "foreign",
            foreign.issue("foreign", &[SERVER_NAME]).unwrap(),
            "UnknownIssuer",
        ),
        (
            "misnamed",
            ours.issue("misnamed", &["other.test"]).unwrap(),
            "not valid for name",
        ),
    ];
    let checks = cases.map(|(name, files, why)| {
        let (fixture, coordinator, files) = (&fixture, &coordinator, known(files));
        async move {
            let probe = command(fixture, binaries::LEASE_PROBE, name, Some(&files));
            let probe = fixture.setup.custom(probe).await.unwrap();
            let command = command(
                fixture,
                binaries::SCALING_COORDINATOR,
                &format!("to-{name}"),
                Some(coordinator),
            )
            .args(["--lease-probe", &probe.grpc]);
            let consumer = fixture.setup.custom(command).await.unwrap();
            let is_told = |line: watchdog_test_support::log::LogRecord<'_>| {
                let lost = line.is_message("stream lost; connecting again");
                (lost && line.text.contains(why)).then_some(())
            };
            consumer.process.wait_for_line(why, BOUND, is_told).await.unwrap();
            until_refused(&probe, "handshake", 0.0).await;
        }
    });
    join_all(checks).await;
    let shoot = fixture.shoot("one").unwrap();
    assert_eq!(fixture.writes(&shoot), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn plaintext_is_spoken_only_when_it_is_asked_for_by_name() {
    let fixture = SandboxFixture::start("plaintext", &["one"]).await.unwrap();
    let files = Authority::new(&fixture.scratch, "ours")
        .unwrap()
        .issue("server", &[SERVER_NAME])
        .unwrap();
    let run = |arguments: &[&str], server: Option<&TlsFiles>| {
        let command = command(&fixture, binaries::LEASE_PROBE, "usage", server);
        command
            .args(arguments.iter().copied())
            .spawn(&fixture.scratch)
            .unwrap()
    };
    let cert = files.cert.to_str().unwrap();
    for (process, named) in [
        (run(&[], None), "--insecure-plaintext"),
        (
            run(&["--insecure-plaintext"], Some(&files)),
            "--insecure-plaintext",
        ),
        (run(&["--tls-cert", cert], None), "--tls-key"),
        (
            run(&["--insecure-plaintext", "--tls-allowed-client", "a.test"], None),
            "--tls-",
        ),
    ] {
        assert_eq!(process.wait_exit(BOUND).await.unwrap().code(), Some(2), "{named}");
        assert!(process.log_tail().contains(named), "{}", process.log_tail());
    }
    let command = command(&fixture, binaries::LEASE_PROBE, "plain", None).arg("--insecure-plaintext");
    let service = fixture.setup.custom(command).await.unwrap();
    list(&client(&service.grpc, None)).await.unwrap();
    let with_tls = list(&client(&service.grpc, Some(tls(&files, &files)))).await;
    assert_eq!(with_tls.unwrap_err().code(), Code::Unavailable);
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
