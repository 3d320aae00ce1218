//! Mutual TLS between the gRPC server and its callers, and the files that it is made of.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use rustls::HandshakeKind;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tokio_util::sync::CancellationToken;
use tonic_health::pb::health_check_response::ServingStatus;
use watchdog_runtime::failure::{Failure, Reason};
use watchdog_runtime::tls::{CertificateSource, PemFiles, Tls};

use crate::certs::{Authority, Files};
use crate::server::{CLIENT, SERVER, Server, ask, recorded, refused, value};
use crate::{PATIENCE, until};

#[tokio::test]
async fn a_caller_is_served_or_learns_why_not() {
    let (metrics, _guard) = recorded();
    let (ours, foreign) = (Authority::new("ours"), Authority::new("foreign"));
    let server = Server::start(Some(ours.tls(SERVER))).await;
    let [good, other] = [CLIENT, "other.test"].map(|name| ours.tls(name));
    // Knows the server's authority, but the server does not know its own.
    let stranger = Files::new(&foreign.issue(CLIENT), &ours.pem());
    let stranger = Tls::load(&stranger.paths()).unwrap();
    let expired = Files::new(&ours.issue_expired(SERVER), &ours.pem());
    let expired = Server::start(Some(Tls::load(&expired.paths()).unwrap())).await;
    let plaintext = Server::start(None).await;
    // Accepts and says nothing.
    let hanging = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let refusing = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let [silent, closed] = [&hanging, &refusing].map(|listener| listener.local_addr().unwrap());
    drop(refusing);

    // The watch of the readiness may not have come around yet.
    until("it serves", async || {
        server.ask(Some(&good)).await.unwrap() == ServingStatus::Serving
    })
    .await;
    let here = server.address;
    let no_right = "carries \"other.test\", which --tls-allowed-client does not name";
    for (address, tls, name, reason, text) in [
        (here, Some(&other), SERVER, Reason::Forbidden, no_right),
        (here, Some(&stranger), SERVER, Reason::Certificate, "unknown ca"),
        (
            here,
            Some(&foreign.tls(CLIENT)),
            SERVER,
            Reason::Certificate,
            "is signed by an authority that is neither trusted nor sent",
        ),
        (
            here,
            Some(&good),
            "elsewhere.test",
            Reason::ServerName,
            "elsewhere.test",
        ),
        (here, None, SERVER, Reason::Connection, ""),
        (
            expired.address,
            Some(&good),
            SERVER,
            Reason::Certificate,
            "expired",
        ),
        (plaintext.address, Some(&good), SERVER, Reason::Connection, ""),
        (
            closed,
            Some(&good),
            SERVER,
            Reason::ConnectionRefused,
            "Connection refused",
        ),
        (silent, Some(&good), SERVER, Reason::Timeout, ""),
    ] {
        let status = ask(address, tls, name).await.unwrap_err();
        let failure = Failure::of_grpc_status(&status);
        assert_eq!(failure.reason, reason, "{failure}");
        assert!(failure.to_string().contains(text), "{failure}");
    }
    assert_eq!(refused(&metrics, "identity"), 1);
    until("the stranger is counted", async || {
        refused(&metrics, "handshake") > 0
    })
    .await;
    assert_eq!(server.ask(Some(&good)).await.unwrap(), ServingStatus::Serving);
}

/// Else the first second of a start would have warnings about trust.
#[tokio::test]
async fn a_call_waits_for_the_first_certificate_of_its_program() {
    let authority = Authority::new("ours");
    let server = Server::start(Some(authority.tls(SERVER))).await;
    let client = Tls::without_certificate();
    let mut call = pin!(server.ask(Some(&client)));
    tokio::time::pause();
    let early = tokio::time::timeout(Duration::from_secs(1), call.as_mut()).await;
    tokio::time::resume();
    assert!(early.is_err(), "{early:?}");
    let credentials = authority.credentials(CLIENT, CertificateSource::Issued);
    client.replace(credentials).unwrap();
    call.await.unwrap();
}

#[tokio::test]
async fn health_says_whether_the_process_is_ready_and_the_stop_ends_the_server() {
    let server = Server::start(None).await;
    let until_it_is = async |status| {
        until("its health changes", async || {
            server.ask(None).await.unwrap() == status
        })
        .await;
    };
    until_it_is(ServingStatus::Serving).await;
    let blocker = server.readiness.block("clusters", "not listed yet");
    until_it_is(ServingStatus::NotServing).await;
    drop(blocker);
    until_it_is(ServingStatus::Serving).await;
    server.stop.cancel();
    let served = tokio::time::timeout(PATIENCE, server.served).await;
    served.expect("it ends").unwrap().unwrap();
}

#[tokio::test]
async fn changed_files_are_taken_up_and_bad_ones_are_not() {
    let (metrics, _guard) = recorded();
    let valid = || value(&metrics, "watchdog_tls_files_valid");
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let files = Files::new(&old.issue(SERVER), &old.pem());
    let tls = Tls::load(&files.paths()).unwrap();
    let stop = CancellationToken::new();
    let following = tokio::spawn(tls.clone().follow_files(files.paths(), stop.clone()));
    let server = Server::start(Some(tls)).await;
    let (before, after) = (old.tls(CLIENT), new.tls(CLIENT));
    assert!(server.ask(Some(&before)).await.is_ok());
    assert!(server.ask(Some(&after)).await.is_err());

    let renewed = new.issue(SERVER);
    files.write(&renewed.cert, &renewed.key, &new.pem());
    until("the new authority counts", async || {
        server.ask(Some(&after)).await.is_ok()
    })
    .await;
    assert!(server.ask(Some(&before)).await.is_err());
    assert_eq!(valid(), 1);

    files.write(&renewed.cert, &old.issue(SERVER).key, &new.pem());
    until("the wrong key is noticed", async || valid() == 0).await;
    assert!(
        server.ask(Some(&after)).await.is_ok(),
        "the last good files stay in use"
    );

    files.write(&renewed.cert, &renewed.key, &new.pem());
    until("they are good again", async || valid() == 1).await;
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
    // An Ed448 key of zeros.
    let zeros = format!("MEcCAQAwBQYDK2VxBDsEOQ{}==", "A".repeat(76));
    let shell = format!("-----BEGIN PRIVATE KEY-----\n{zeros}\n-----END PRIVATE KEY-----\n");
    let odd_key = file("odd.key", &shell);
    let shell = "-----BEGIN CERTIFICATE-----\naHVudGVyMg==\n-----END CERTIFICATE-----\n";
    let no_certificate = file("hollow.pem", shell);
    let malformed = file("malformed.pem", &Authority::malformed("ours").pem());
    let ended = file("ended.pem", &Authority::expired("ours").pem());
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
    let rows: [(Place, &Path, &str); 14] = [
        (cert, &absent, "cannot read"),
        (cert, &empty, "holds no certificate"),
        (cert, &text, "holds no certificate"),
        (cert, &torn, "not PEM"),
        (
            cert,
            &no_certificate,
            "does not begin with a certificate that can be read",
        ),
        (key, &absent, "cannot read"),
        (key, &text, "no private key"),
        (
            key,
            &odd_key,
            "holds a private key of a kind that is not accepted",
        ),
        (key, &foreign_key, "is not the private key of "),
        (ca, &absent, "cannot read"),
        (ca, &empty, "holds no certificate"),
        (ca, &no_certificate, "an authority cannot be used"),
        (ca, &malformed, "malformed or repeated parts"),
        (ca, &ended, "all authorities have expired"),
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
    let client = tls.client().current().await;
    for _ in 0..3 {
        let (near, far) = tokio::io::duplex(16 * 1024);
        let connect = TlsConnector::from(client.clone()).connect(SERVER.try_into().unwrap(), near);
        let accept = TlsAcceptor::from(tls.server().unwrap()).accept(far);
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
