//! Access over TLS, by certificate and by name. What becomes of connections when certificates are replaced is tested in
//! `watchdog-runtime`.

use std::sync::Arc;

use futures::future::join_all;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::Channel;
use tonic::{Code, Status};
use watchdog_runtime::grpc_client::Dialer;
use watchdog_runtime::tls::{PemFiles, Tls};
use watchdog_test_support::certs::Authority;
use watchdog_test_support::real::RealFixture;
use watchdog_test_support::wait::{self, BOUND};
use watchdog_test_support::watchdog::{SERVER_NAME, Service, tls_options};

use crate::subscriber::list;

/// By which the replicas call each other: that of the Service in their namespace.
const PEER_NAME: &str = "watchdog-lease-probe.access.svc";

/// A replica for each refusal: the first one of its kind is logged at once, the others are summed up in a minute.
pub(crate) const USERS: [&str; 4] = ["callers", "callers-foreign", "callers-bare", "callers-plain"];

fn tls(files: &PemFiles, ca: &PemFiles) -> Tls {
    let ca = ca.ca.clone();
    Tls::load(&PemFiles { ca, ..files.clone() }).unwrap()
}

fn channel(address: &str, tls: Option<Tls>) -> Channel {
    let dialer = Dialer {
        tls: tls.map(|tls| tls.client()),
        server_name: SERVER_NAME.to_owned(),
    };
    dialer.channel(address).unwrap()
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

async fn lease_probe(fixture: &RealFixture, name: &str, files: &PemFiles, arguments: &[&str]) -> Service {
    let command = crate::lease_probe(fixture, "access", name).await;
    let command = command.args(tls_options(files)).args(arguments.iter().copied());
    let service = fixture.setup.custom(command).await.unwrap();
    service.wait_ready().await.unwrap();
    service
}

async fn refused(service: &Service, reason: &str) -> f64 {
    let series = format!("watchdog_grpc_connections_refused_total{{reason=\"{reason}\"}}");
    service.metric(&series).await.unwrap().unwrap_or_default()
}

async fn until_refused(service: &Service, reason: &str) {
    wait::until_true(&format!("a connection is refused: {reason}"), BOUND, || async {
        Ok(refused(service, reason).await > 0.0)
    })
    .await
    .unwrap();
}

pub(crate) async fn callers_who_are_not_known_are_refused_and_both_sides_are_told_why(fixture: &RealFixture) {
    let ours = Authority::new(fixture.scratch(), "ours").unwrap();
    let foreign = Authority::new(fixture.scratch(), "foreign").unwrap();
    let server = ours.issue("server", &[SERVER_NAME, PEER_NAME]).unwrap();
    let allowed = [
        "--tls-allowed-client",
        "client.test",
        "--tls-allowed-client",
        PEER_NAME,
    ];
    let starts = USERS.map(|name| lease_probe(fixture, name, &server, &allowed));
    let [service, of_foreign, of_bare, of_plain] = <[Service; 4]>::try_from(join_all(starts).await)
        .map_err(drop)
        .expect("all start");
    let good = ours.issue("good", &["x.test", "client.test"]).unwrap();
    let good = channel(&service.grpc, Some(tls(&good, &good)));
    list(good.clone()).await.unwrap();

    let expired = ours.issue_expired("expired", &["client.test"]).unwrap();
    let stranger = foreign.issue("stranger", &["client.test"]).unwrap();
    for (service, files, to_client, to_server) in [
        (&service, &expired, "CertificateExpired", "certificate expired"),
        (&of_foreign, &stranger, "UnknownCA", "unknown issuer"),
    ] {
        let status = list(channel(&service.grpc, Some(tls(files, &server))))
            .await
            .unwrap_err();
        eprintln!("{}", causes(&status));
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
        assert!(causes(&status).contains(to_client), "{}", causes(&status));
        service.process.wait_for_text(to_server, BOUND).await.unwrap();
        until_refused(service, "handshake").await;
    }

    let speak = async || {
        let tcp = TcpStream::connect(&of_bare.grpc).await?;
        connect_tls(tcp, &server).await?.read_u8().await
    };
    let told_nobody = speak().await.unwrap_err();
    assert!(
        told_nobody.to_string().contains("CertificateRequired"),
        "{told_nobody}"
    );
    of_bare
        .process
        .wait_for_text("peer sent no certificates", BOUND)
        .await
        .unwrap();

    let other = ours.issue("other", &["other.test"]).unwrap();
    let other = channel(&service.grpc, Some(tls(&other, &other)));
    for _ in 0..2 {
        let status = list(other.clone()).await.unwrap_err();
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
    until_refused(&service, "identity").await;
    service
        .process
        .wait_for_text("\\\"other.test\\\"", BOUND)
        .await
        .unwrap();

    // Without TLS the two do not even speak the same language; only the server can tell.
    assert!(list(channel(&of_plain.grpc, None)).await.is_err());
    of_plain
        .process
        .wait_for_text("invalid content type", BOUND)
        .await
        .unwrap();

    assert_eq!(
        list(good.clone()).await.unwrap(),
        1,
        "who is known is served all the time"
    );
    let log = std::fs::read_to_string(service.process.log_path()).unwrap();
    let kubeconfig = fixture.seed.kubeconfig_for(USERS[0]).unwrap();
    let kubeconfig: serde_json::Value = serde_json::from_str(&kubeconfig).unwrap();
    let token = kubeconfig["users"][0]["user"]["token"].as_str().unwrap();
    for secret in ["PRIVATE KEY", "BEGIN CERTIFICATE", token] {
        assert!(!log.contains(secret), "the log holds {secret}");
    }
}

/// Speaks TLS without a certificate.
async fn connect_tls(tcp: TcpStream, ca: &PemFiles) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&ca.ca).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(SERVER_NAME).unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, tcp).await
}
