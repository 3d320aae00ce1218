//! Mutual TLS between the gRPC server and its callers, and the files that it is made of.

use std::path::{Path, PathBuf};

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use rustls::HandshakeKind;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tokio_util::sync::CancellationToken;
use tonic::service::RoutesBuilder;
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use watchdog_runtime::allowed_clients::AllowedClients;
use watchdog_runtime::failure::{Failure, Reason};
use watchdog_runtime::grpc_client::Dialer;
use watchdog_runtime::grpc_server::{self, Api};
use watchdog_runtime::readiness::Readiness;
use watchdog_runtime::tls::{PemFiles, Tls};

use crate::certs::{Authority, Files};
use crate::{PATIENCE, until};

const SERVICE: &str = "test.Service";

/// The name in the server's certificate.
const SERVER: &str = "server.test";

struct Server {
    address: String,
    readiness: Readiness,
    stop: CancellationToken,
    served: JoinHandle<anyhow::Result<()>>,
}

impl Server {
    async fn start(tls: Option<Tls>, allowed: &[&str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (readiness, stop) = (Readiness::default(), CancellationToken::new());
        let allowed: Vec<_> = allowed.iter().map(ToString::to_string).collect();
        let api = Api {
            routes: RoutesBuilder::default(),
            service_names: &[SERVICE],
            descriptors: &[],
        };
        let serve = grpc_server::serve(
            listener,
            tls,
            AllowedClients::named(&[SERVER.to_owned()], &allowed),
            api,
            "replica-0".into(),
            readiness.clone(),
            stop.clone(),
        );
        Self {
            address,
            readiness,
            stop,
            served: tokio::spawn(serve),
        }
    }

    /// Asks for its health with a connection of its own, as a caller that expects a server of this name.
    async fn asked_as(&self, tls: Option<Tls>, server_name: &str) -> Result<ServingStatus, Status> {
        ask(&self.address, tls, server_name).await
    }

    async fn asked(&self, tls: &Tls) -> Result<ServingStatus, Status> {
        self.asked_as(Some(tls.clone()), SERVER).await
    }
}

async fn ask(address: &str, tls: Option<Tls>, server_name: &str) -> Result<ServingStatus, Status> {
    let dialer = Dialer {
        tls: tls.map(|tls| tls.client()),
        server_name: server_name.to_owned(),
    };
    let mut client = HealthClient::new(dialer.channel(address).unwrap());
    let request = HealthCheckRequest {
        service: SERVICE.to_owned(),
    };
    let answer = tokio::time::timeout(PATIENCE, client.check(request)).await;
    Ok(answer.expect("an answer")?.into_inner().status())
}

/// The metrics of this thread, on which all of a test's tasks run.
fn recorded() -> (PrometheusHandle, metrics::LocalRecorderGuard<'static>) {
    let recorder: &'static _ = Box::leak(Box::new(PrometheusBuilder::new().build_recorder()));
    (recorder.handle(), metrics::set_default_local_recorder(recorder))
}

fn has(metrics: &PrometheusHandle, line: &str) -> bool {
    metrics.render().lines().any(|found| found == line)
}

#[tokio::test]
async fn callers_are_served_or_refused_by_what_their_certificate_says() {
    let (metrics, _guard) = recorded();
    let (ours, foreign) = (Authority::new("ours"), Authority::new("foreign"));
    let server = Server::start(Some(ours.tls(SERVER)), &["client.test"]).await;
    let good = ours.tls("client.test");
    // The watch of the readiness may not have come around yet.
    until("it serves", async || {
        server.asked(&good).await.unwrap() == ServingStatus::Serving
    })
    .await;

    let other = server.asked(&ours.tls("other.test")).await.unwrap_err();
    assert_eq!(other.code(), Code::PermissionDenied, "{other}");
    for part in ["\"other.test\"", "--tls-allowed-client"] {
        assert!(other.message().contains(part), "{other}");
    }
    let refused = |reason: &str| {
        let series = "watchdog_grpc_connections_refused_total";
        has(&metrics, &format!("{series}{{reason=\"{reason}\"}} 1"))
    };
    assert!(refused("identity") && !refused("handshake"));

    // It knows the server's authority, but the server does not know its own.
    let stranger = Files::new(&foreign.issue("client.test"), &ours.pem());
    let stranger = Tls::load(&stranger.paths()).unwrap();
    let status = server.asked(&stranger).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    until("the stranger is counted", async || refused("handshake")).await;

    // The other way round: the caller does not believe the server, for its authority or for its name.
    assert!(server.asked(&foreign.tls("client.test")).await.is_err());
    assert!(
        server
            .asked_as(Some(good.clone()), "elsewhere.test")
            .await
            .is_err()
    );
    assert!(server.asked_as(None, SERVER).await.is_err(), "plaintext");
    assert_eq!(server.asked(&good).await.unwrap(), ServingStatus::Serving);
}

#[tokio::test]
async fn a_call_that_fails_says_why() {
    let (ours, foreign) = (Authority::new("ours"), Authority::new("foreign"));
    let server = Server::start(Some(ours.tls(SERVER)), &["client.test"]).await;
    let good = ours.tls("client.test");
    let stranger = Tls::load(&Files::new(&foreign.issue("client.test"), &ours.pem()).paths()).unwrap();
    let expired = Files::new(&ours.issue_expired(SERVER), &ours.pem());
    let expired = Server::start(Some(Tls::load(&expired.paths()).unwrap()), &[]).await;
    let plaintext = Server::start(None, &[]).await;
    // Accepts and says nothing.
    let hanging = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hanging_address = hanging.local_addr().unwrap().to_string();
    let refusing = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let refusing_address = refusing.local_addr().unwrap().to_string();
    drop(refusing);
    let call = async |address: &str, tls: &Tls, server_name: &str| {
        let status = ask(address, Some(tls.clone()), server_name).await.unwrap_err();
        Failure::of_grpc_status(&status)
    };
    let at = server.address.as_str();
    for (wrong, failure, reason, text) in [
        (
            "no right",
            call(at, &ours.tls("other.test"), SERVER).await,
            Reason::Forbidden,
            "--tls-allowed-client",
        ),
        (
            "its certificate",
            call(at, &foreign.tls("client.test"), SERVER).await,
            Reason::Certificate,
            "invalid peer certificate",
        ),
        (
            "its expiry",
            call(&expired.address, &good, SERVER).await,
            Reason::Certificate,
            "expired",
        ),
        (
            "plaintext",
            call(&plaintext.address, &good, SERVER).await,
            Reason::Connection,
            "",
        ),
        (
            "our certificate",
            call(at, &stranger, SERVER).await,
            Reason::Certificate,
            "UnknownCA",
        ),
        (
            "its name",
            call(at, &good, "elsewhere.test").await,
            Reason::ServerName,
            "elsewhere.test",
        ),
        (
            "refused",
            call(&refusing_address, &good, SERVER).await,
            Reason::ConnectionRefused,
            "Connection refused",
        ),
        (
            "hanging",
            call(&hanging_address, &good, SERVER).await,
            Reason::Timeout,
            "",
        ),
    ] {
        assert_eq!(failure.reason, reason, "{wrong}: {failure}");
        assert!(failure.to_string().contains(text), "{wrong}: {failure}");
    }
}

#[tokio::test]
async fn health_says_whether_the_process_is_ready_and_the_stop_ends_the_server() {
    let server = Server::start(None, &[]).await;
    let health = async || server.asked_as(None, SERVER).await;
    until("it serves", async || {
        health().await.unwrap() == ServingStatus::Serving
    })
    .await;
    let blocker = server.readiness.block("clusters", "not listed yet");
    until("it does not", async || {
        health().await.unwrap() == ServingStatus::NotServing
    })
    .await;
    drop(blocker);
    until("it does again", async || {
        health().await.unwrap() == ServingStatus::Serving
    })
    .await;
    server.stop.cancel();
    let served = tokio::time::timeout(PATIENCE, server.served).await;
    served.expect("it ends").unwrap().unwrap();
}

#[tokio::test]
async fn changed_files_are_taken_up_and_bad_ones_are_not() {
    let (metrics, _guard) = recorded();
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let files = Files::new(&old.issue(SERVER), &old.pem());
    let tls = Tls::load(&files.paths()).unwrap();
    let stop = CancellationToken::new();
    let following = tokio::spawn(tls.clone().follow_files(files.paths(), stop.clone()));
    let server = Server::start(Some(tls), &["client.test"]).await;
    let (before, after) = (old.tls("client.test"), new.tls("client.test"));
    assert!(server.asked(&before).await.is_ok());
    assert!(server.asked(&after).await.is_err());

    let renewed = new.issue(SERVER);
    files.write(&renewed.cert, &renewed.key, &new.pem());
    until("the new authority counts", async || {
        server.asked(&after).await.is_ok()
    })
    .await;
    assert!(server.asked(&before).await.is_err());
    assert!(has(&metrics, "watchdog_tls_files_valid 1"));

    files.write(&renewed.cert, &old.issue(SERVER).key, &new.pem());
    until("the wrong key is noticed", async || {
        has(&metrics, "watchdog_tls_files_valid 0")
    })
    .await;
    assert!(
        server.asked(&after).await.is_ok(),
        "the last good files stay in use"
    );

    files.write(&renewed.cert, &renewed.key, &new.pem());
    until("they are good again", async || {
        has(&metrics, "watchdog_tls_files_valid 1")
    })
    .await;
    stop.cancel();
    following.await.unwrap().unwrap();
}

#[test]
fn a_bad_file_is_named_and_what_is_in_it_is_not_shown() {
    let authority = Authority::new("ours");
    let (pair, other) = (authority.issue("a.test"), authority.issue("b.test"));
    let good = Files::new(&pair, &authority.pem());
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    };
    let absent = dir.path().join("absent.pem");
    let empty = file("empty.pem", "");
    let text = file("text.pem", "hunter2");
    let torn = file("torn.pem", &format!("{}hunter2", &pair.cert[..200]));
    let foreign_key = file("foreign.key", &other.key);
    let shell = "-----BEGIN CERTIFICATE-----\naHVudGVyMg==\n-----END CERTIFICATE-----\n";
    let no_certificate = file("hollow.pem", shell);
    let load = |change: &dyn Fn(&mut PemFiles)| {
        let mut paths = good.paths();
        change(&mut paths);
        Tls::load(&paths).map(drop)
    };
    load(&|_| {}).unwrap();
    type Place = fn(&mut PemFiles) -> &mut PathBuf;
    let (cert, key, ca): (Place, Place, Place) = (
        |paths| &mut paths.cert,
        |paths| &mut paths.key,
        |paths| &mut paths.ca,
    );
    let rows: [(Place, &Path, &str); 10] = [
        (cert, &absent, "cannot read"),
        (cert, &empty, "holds no certificate"),
        (cert, &text, "holds no certificate"),
        (cert, &torn, "not PEM"),
        (key, &absent, "cannot read"),
        (key, &text, "no private key"),
        (key, &foreign_key, "does not belong to the certificate"),
        (ca, &absent, "cannot read"),
        (ca, &empty, "holds no certificate"),
        (ca, &no_certificate, "an authority cannot be used"),
    ];
    for (place, path, why) in rows {
        let error = load(&|paths| *place(paths) = path.to_owned()).unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains(why), "{error}");
        assert!(error.contains(&path.display().to_string()), "{error}");
        for secret in ["hunter2", "PRIVATE KEY", "aHVudGVyMg"] {
            assert!(!error.contains(secret), "{error}");
        }
    }
}

#[tokio::test]
async fn every_connection_is_authenticated_anew() {
    let tls = Authority::new("ours").tls(SERVER);
    let client = tls.client().current();
    for _ in 0..3 {
        let (near, far) = tokio::io::duplex(16 * 1024);
        let connect = TlsConnector::from(client.clone()).connect(SERVER.try_into().unwrap(), near);
        let accept = TlsAcceptor::from(tls.server()).accept(far);
        let (connected, accepted) = tokio::join!(connect, accept);
        let (mut connected, mut accepted) = (connected.unwrap(), accepted.unwrap());
        let (_, session) = accepted.get_ref();
        assert_eq!(session.handshake_kind(), Some(HandshakeKind::Full));
        // What a session is resumed with comes before the first byte.
        accepted.write_u8(1).await.unwrap();
        accepted.flush().await.unwrap();
        assert_eq!(connected.read_u8().await.unwrap(), 1);
    }
}
