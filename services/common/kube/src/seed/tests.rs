use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use http::Request;
use jiff::{SignedDuration, Timestamp};
use kube::client::Body;
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use serde_json::{Value, json};
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;
use watchdog_runtime::args::LogFormat;
use watchdog_runtime::telemetry;
use watchdog_test_support::in_process::CapturedOutput;
use watchdog_test_support::scratch::Scratch;

use super::*;

/// A name that no resolver knows: only a proxy leads there.
const HOST: &str = "api.seed.test";

/// The requests that a server has received: the first line and the header or body that matters.
type RequestLog = Arc<Mutex<Vec<String>>>;

struct SeedAuthority(CertifiedIssuer<'static, KeyPair>);

impl SeedAuthority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "seed-ca");
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// PEM of a certificate and its key.
    fn issue(&self, name: &str) -> (String, String) {
        let mut params = CertificateParams::new(vec![name.to_owned(), "127.0.0.1".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    fn acceptor(&self, name: &str) -> TlsAcceptor {
        let (certificate, key) = self.issue(name);
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let clients = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(clients.allow_unauthenticated().build().unwrap())
            .with_single_cert(
                vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
            )
            .unwrap();
        TlsAcceptor::from(Arc::new(config))
    }
}

/// A task that serves at an address for as long as it is kept.
struct Served {
    address: String,
    received: RequestLog,
    _task: AbortOnDropHandle<()>,
}

async fn serve<F>(handle: impl Fn(TcpStream, RequestLog) -> F + Send + 'static) -> Served
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let received = RequestLog::default();
    let task = tokio::spawn({
        let received = received.clone();
        async move {
            while let Ok((tcp, _)) = listener.accept().await {
                tokio::spawn(handle(tcp, received.clone()));
            }
        }
    });
    Served {
        address,
        received,
        _task: AbortOnDropHandle::new(task),
    }
}

/// Reads a request: its first line, its headers in lower case, its body.
async fn request(
    stream: &mut (impl AsyncRead + Unpin),
) -> Option<(String, BTreeMap<String, String>, String)> {
    let mut reader = BufReader::with_capacity(1, stream);
    let mut line = String::new();
    reader.read_line(&mut line).await.ok().filter(|read| *read > 0)?;
    let mut headers = BTreeMap::new();
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).await.ok()?;
        let Some((name, value)) = header.trim().split_once(": ") else {
            break;
        };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let length = headers
        .get("content-length")
        .map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).await.ok()?;
    Some((line.trim().to_owned(), headers, String::from_utf8(body).unwrap()))
}

async fn answer(stream: &mut (impl AsyncWrite + Unpin), status: u16, body: &str) {
    let length = body.len();
    let text = format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n\r\n{body}");
    stream.write_all(text.as_bytes()).await.unwrap();
}

/// An API server that answers 200 to these credentials, and 401 to others. It takes note of the token, or of who the
/// client's certificate is for.
async fn api(pki: &SeedAuthority, accepts: impl Fn(&str) -> bool + Send + Sync + 'static) -> Served {
    let acceptor = pki.acceptor(HOST);
    let accepts = Arc::new(accepts);
    serve(move |tcp, received| {
        let (acceptor, accepts) = (acceptor.clone(), accepts.clone());
        async move {
            let Ok(mut tls) = acceptor.accept(tcp).await else {
                return;
            };
            let certificate = tls.get_ref().1.peer_certificates().map(|chain| {
                let text = String::from_utf8_lossy(&chain[0]).into_owned();
                (1..9)
                    .map(|n| format!("operator-{n}"))
                    .find(|name| text.contains(name))
                    .unwrap()
            });
            while let Some((_, headers, _)) = request(&mut tls).await {
                let token = headers.get("authorization").cloned().unwrap_or_default();
                let shown = certificate.clone().unwrap_or(token);
                let status = if accepts(&shown) { 200 } else { 401 };
                received.lock().push(shown);
                answer(&mut tls, status, "").await;
            }
        }
    })
    .await
}

/// A CONNECT proxy that leads everybody to one address, whatever name was asked for.
async fn proxy(target: String) -> Served {
    serve(move |tcp, received| lead(tcp, target.clone(), received)).await
}

/// The same, to which clients speak TLS.
async fn tls_proxy(pki: &SeedAuthority, target: String) -> Served {
    let acceptor = pki.acceptor("proxy.test");
    serve(move |tcp, received| {
        let (acceptor, target) = (acceptor.clone(), target.clone());
        async move {
            if let Ok(tls) = acceptor.accept(tcp).await {
                lead(tls, target, received).await;
            }
        }
    })
    .await
}

async fn lead(mut stream: impl AsyncRead + AsyncWrite + Unpin, target: String, received: RequestLog) {
    let Some((line, headers, _)) = request(&mut stream).await else {
        return;
    };
    let credentials = headers.get("proxy-authorization").cloned().unwrap_or_default();
    let is_refused = credentials == format!("Basic {}", encoded("nobody:"));
    received
        .lock()
        .push(format!("{line} {credentials}").trim().to_owned());
    if is_refused {
        return answer(&mut stream, 407, "").await;
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
    let mut upstream = TcpStream::connect(target).await.unwrap();
    let _ = tokio::io::copy_bidirectional(&mut stream, &mut upstream).await;
}

/// A SOCKS5 proxy without credentials that leads everybody to one address.
async fn socks_proxy(target: String) -> Served {
    serve(move |mut tcp, received| {
        let target = target.clone();
        async move {
            let mut greeting = [0; 3];
            tcp.read_exact(&mut greeting).await.unwrap();
            tcp.write_all(&[5, 0]).await.unwrap();
            let mut head = [0; 5];
            tcp.read_exact(&mut head).await.unwrap();
            let mut host = vec![0; usize::from(head[4]) + 2];
            tcp.read_exact(&mut host).await.unwrap();
            let port = host.split_off(usize::from(head[4]));
            let port = u16::from_be_bytes([port[0], port[1]]);
            received
                .lock()
                .push(format!("{}:{port}", String::from_utf8(host).unwrap()));
            tcp.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await.unwrap();
            let mut upstream = TcpStream::connect(target).await.unwrap();
            let _ = tokio::io::copy_bidirectional(&mut tcp, &mut upstream).await;
        }
    })
    .await
}

/// A kubeconfig in a folder of its own, and the environment.
struct Desk {
    scratch: Arc<Scratch>,
    environment: BTreeMap<&'static str, String>,
    config: Value,
}

impl Desk {
    fn new(pki: &SeedAuthority, server: &str) -> Self {
        let authority = encoded(&pki.0.pem());
        let config = json!({
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": server, "certificate-authority-data": authority}}],
            "users": [{"name": "u", "user": {"token": "written"}}],
        });
        Self {
            scratch: Scratch::new("seed").unwrap(),
            environment: BTreeMap::new(),
            config,
        }
    }

    fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.environment.insert(name, value.into());
        self
    }

    fn cluster(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.config["clusters"][0]["cluster"][field] = value.into();
        self
    }

    fn user(mut self, user: Value) -> Self {
        self.config["users"][0]["user"] = user;
        self
    }

    fn file(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    async fn connect(&self) -> anyhow::Result<kube::Client> {
        let path = self.file("kubeconfig");
        fs::write(&path, self.config.to_string()).unwrap();
        let variable = |name: &str| self.environment.get(name).cloned();
        connect_by_file(Some(&path), None, "test", &variable).await
    }

    /// The text of the error with which there is no client, or a request fails.
    async fn error(&self) -> String {
        let text = match self.connect().await {
            Err(error) => format!("{error:#}"),
            Ok(client) => {
                let error = client.send(get()).await.unwrap_err();
                format!("{} {error}", chain(&error))
            }
        };
        assert!(!text.contains("hunter2"), "{text}");
        text
    }
}

fn get() -> Request<Body> {
    Request::get("/version").body(Body::empty()).unwrap()
}

async fn status(client: &kube::Client) -> u16 {
    client.send(get()).await.unwrap().status().as_u16()
}

fn encoded(text: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(text)
}

#[tokio::test]
async fn a_proxy_of_the_environment_or_the_kubeconfig_leads_to_the_seed() {
    let pki = SeedAuthority::new();
    let api = api(&pki, |_| true).await;
    let proxy = proxy(api.address.clone()).await;
    let seed = format!("https://{HOST}:6443");
    let url = format!("http://me:p%40ss@{}", proxy.address);
    for desk in [
        Desk::new(&pki, &seed).with("HTTPS_PROXY", &url),
        Desk::new(&pki, &seed)
            .with("HTTPS_PROXY", &url)
            .with("NO_PROXY", "api.other.test,10.0.0.0/8"),
        Desk::new(&pki, &seed)
            .cluster("proxy-url", &*url)
            .with("NO_PROXY", "*"),
    ] {
        assert_eq!(status(&desk.connect().await.unwrap()).await, 200);
        let asked = std::mem::take(&mut *proxy.received.lock());
        assert_eq!(
            asked,
            [format!(
                "CONNECT {HOST}:6443 HTTP/1.1 Basic {}",
                encoded("me:p@ss")
            )]
        );
    }
    assert_eq!(*api.received.lock(), ["Bearer written"; 3]);
    // Without it, the name leads nowhere.
    let direct = Desk::new(&pki, &seed)
        .with("HTTPS_PROXY", &url)
        .with("NO_PROXY", ".seed.test");
    let error = direct.error().await;
    assert!(!error.contains("PROXY"), "{error}");
    assert!(proxy.received.lock().is_empty());
    // A host of this machine needs none.
    let local = Desk::new(&pki, &format!("https://{}", api.address)).with("HTTPS_PROXY", &url);
    assert_eq!(status(&local.connect().await.unwrap()).await, 200);
    assert!(proxy.received.lock().is_empty());
}

#[tokio::test]
async fn proxies_of_every_kind_lead_to_the_seed() {
    let pki = SeedAuthority::new();
    let api = api(&pki, |_| true).await;
    let seed = format!("https://{HOST}");
    let (tls, socks) = (
        tls_proxy(&pki, api.address.clone()).await,
        socks_proxy(api.address.clone()).await,
    );
    for (url, proxy, asked) in [
        (
            format!("https://{}", tls.address),
            &tls,
            format!("CONNECT {HOST}:443 HTTP/1.1"),
        ),
        (
            format!("socks5://{}", socks.address),
            &socks,
            format!("{HOST}:443"),
        ),
    ] {
        let desk = Desk::new(&pki, &seed).with("HTTPS_PROXY", url);
        assert_eq!(status(&desk.connect().await.unwrap()).await, 200);
        assert_eq!(*proxy.received.lock(), [asked]);
    }
}

#[tokio::test]
async fn a_proxy_that_does_not_lead_there_is_named() {
    let pki = SeedAuthority::new();
    let seed = format!("https://{HOST}:6443");
    let proxy = proxy("127.0.0.1:1".to_owned()).await;
    let refusing = format!("http://nobody@{}", proxy.address);
    for (url, expected) in [
        ("http://127.0.0.1:1", "Connection refused"),
        (&*refusing, "proxy authorization required"),
        ("ftp://hunter2", "not http, https, or socks5"),
    ] {
        for (desk, source) in [
            (Desk::new(&pki, &seed).with("HTTPS_PROXY", url), "HTTPS_PROXY"),
            (Desk::new(&pki, &seed).cluster("proxy-url", url), "proxy-url"),
        ] {
            let error = desk.error().await;
            assert!(error.contains(source) && error.contains(expected), "{error}");
        }
    }
}

/// A plugin that prints the n-th of these answers when it runs for the n-th time, and the last one from then on.
fn plugin(desk: &Desk, answers: &[Value]) -> Value {
    for (index, status) in answers.iter().enumerate() {
        let answer = json!({"kind": "ExecCredential", "status": status});
        fs::write(desk.file(&format!("answer-{}", index + 1)), answer.to_string()).unwrap();
    }
    let folder = desk.scratch.path().display();
    let script = format!(
        "echo run >>{folder}/runs; printf %s \"$KUBERNETES_EXEC_INFO\" >{folder}/info; n=$(wc -l <{folder}/runs); \
         while ! test -e {folder}/answer-$n; do n=$((n - 1)); done; cat {folder}/answer-$n"
    );
    exec(&["/bin/sh", "-c", &script])
}

fn exec(command: &[&str]) -> Value {
    json!({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "command": command[0], "args": command[1..],
        "env": null, "interactiveMode": "IfAvailable", "provideClusterInfo": true,
    }})
}

fn runs(desk: &Desk) -> usize {
    fs::read_to_string(desk.file("runs")).unwrap().lines().count()
}

fn after(seconds: i64) -> String {
    (Timestamp::now() + SignedDuration::from_secs(seconds)).to_string()
}

#[tokio::test]
async fn a_plugin_runs_once_and_again_after_a_refusal() {
    let pki = SeedAuthority::new();
    // Without an end, with one in 15 minutes.
    for end in [Value::Null, json!(after(900))] {
        let api = api(&pki, |token| token == "Bearer second").await;
        let mut desk = Desk::new(&pki, &format!("https://{}", api.address));
        let answers = ["first", "second"].map(|token| json!({"token": token, "expirationTimestamp": end}));
        desk = desk.user(json!({}));
        let user = plugin(&desk, &answers);
        let desk = desk.user(user);
        let client = desk.connect().await.unwrap();
        assert_eq!(runs(&desk), 1, "it runs before the first request");
        // As with client-go, the caller sees the refusal.
        assert_eq!(status(&client).await, 401);
        for _ in 0..2 {
            assert_eq!(status(&client).await, 200);
        }
        assert_eq!(runs(&desk), 2, "a good answer is kept");
        let info: Value = serde_json::from_str(&fs::read_to_string(desk.file("info")).unwrap()).unwrap();
        assert_eq!(info["apiVersion"], "client.authentication.k8s.io/v1");
        assert_eq!(info["spec"]["interactive"], false);
        assert_eq!(
            info["spec"]["cluster"]["server"],
            format!("https://{}", api.address)
        );
        assert_eq!(
            info["spec"]["cluster"]["certificate-authority-data"],
            encoded(&pki.0.pem())
        );
    }
}

#[tokio::test]
async fn a_certificate_of_a_plugin_is_replaced_before_it_ends() {
    let pki = SeedAuthority::new();
    let api = api(&pki, |_| true).await;
    let desk = Desk::new(&pki, &format!("https://{}", api.address));
    let answer = |number: usize, seconds: i64| {
        let (chain, key) = pki.issue(&format!("operator-{number}"));
        json!({"clientCertificateData": chain, "clientKeyData": key, "expirationTimestamp": after(seconds)})
    };
    // The first has half of its second left when it is due.
    let user = plugin(&desk, &[answer(1, -1), answer(2, 900)]);
    let desk = desk.user(user);
    let client = desk.connect().await.unwrap();
    for _ in 0..3 {
        assert_eq!(status(&client).await, 200);
    }
    assert_eq!(*api.received.lock(), ["operator-2"; 3]);
    assert_eq!(runs(&desk), 2);
}

#[tokio::test]
async fn a_plugin_that_gives_nothing_is_named() {
    let pki = SeedAuthority::new();
    for (command, expected) in [
        (
            &["kubectl-no-such-login"][..],
            "the exec plugin kubectl-no-such-login was not found: install it, or put it on the PATH",
        ),
        (
            &["/etc/passwd"],
            "the exec plugin passwd cannot be started: Permission denied",
        ),
        (
            &["/bin/sh", "-c", "echo hunter2; echo log in first >&2; exit 3"],
            "the exec plugin sh failed (exit status: 3); it says why on standard error",
        ),
        (
            &["/bin/echo", "hunter2"],
            "the answer of the exec plugin echo cannot be used: its output is not an ExecCredential",
        ),
    ] {
        let error = Desk::new(&pki, "https://127.0.0.1:1")
            .user(exec(command))
            .error()
            .await;
        assert!(error.contains(expected), "{error}");
    }
    let mut user = exec(&["/bin/true"]);
    user["exec"]["interactiveMode"] = "Always".into();
    let error = Desk::new(&pki, "https://127.0.0.1:1").user(user).error().await;
    assert!(error.contains("the exec plugin true needs a terminal"), "{error}");
}

fn jwt(name: &str, seconds: i64) -> String {
    use base64::Engine as _;
    let payload =
        json!({"sub": name, "exp": (Timestamp::now() + SignedDuration::from_secs(seconds)).as_second()});
    let payload = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(payload.to_string());
    format!("e30.{payload}.")
}

/// An issuer below the path /realms/demo. Every refresh-token is good once.
async fn issuer(pki: &SeedAuthority, tokens: Vec<String>, takes_header: bool) -> Served {
    let acceptor = pki.acceptor("issuer.test");
    let tokens = Arc::new(Mutex::new(tokens.into_iter().enumerate()));
    serve(move |tcp, received| {
        let (acceptor, tokens) = (acceptor.clone(), tokens.clone());
        async move {
            let address = tcp.local_addr().unwrap();
            let Ok(mut tls) = acceptor.accept(tcp).await else {
                return;
            };
            while let Some((line, headers, body)) = request(&mut tls).await {
                received.lock().push(format!("{line} {body}").trim().to_owned());
                if line.starts_with("GET /realms/demo/.well-known/openid-configuration ") {
                    let metadata = json!({"token_endpoint": format!("https://{address}/token?realm=demo")});
                    answer(&mut tls, 200, &metadata.to_string()).await;
                    continue;
                }
                let is_wanted = headers.contains_key("authorization") == takes_header;
                let next = is_wanted.then(|| tokens.lock().next()).flatten();
                match next {
                    Some((index, token)) if body.contains(&format!("refresh_token=refresh-{index}")) => {
                        let refresh_token = format!("refresh-{}", index + 1);
                        let tokens = json!({"id_token": token, "refresh_token": refresh_token});
                        answer(&mut tls, 200, &tokens.to_string()).await;
                    }
                    _ => answer(&mut tls, 401, "hunter2").await,
                }
            }
        }
    })
    .await
}

fn oidc(pki: &SeedAuthority, issuer: &str, id_token: &str) -> Value {
    json!({"auth-provider": {"name": "oidc", "config": {
        "client-id": "kubernetes", "idp-issuer-url": format!("https://{issuer}/realms/demo"), "id-token": id_token,
        "idp-certificate-authority-data": encoded(&pki.0.pem()), "refresh-token": "refresh-0",
    }}})
}

#[tokio::test]
async fn an_id_token_is_refreshed_when_it_has_ended() {
    let pki = SeedAuthority::new();
    for (takes_header, first) in [(true, jwt("old", -60)), (false, String::new())] {
        let [ended, good] = [jwt("ended", 0), jwt("good", 900)];
        let issuer = issuer(&pki, vec![ended.clone(), good.clone()], takes_header).await;
        let api = api(&pki, |_| true).await;
        let desk = Desk::new(&pki, &format!("https://{}", api.address));
        let desk = desk.user(oidc(&pki, &issuer.address, &first));
        let client = desk.connect().await.unwrap();
        for _ in 0..2 {
            assert_eq!(status(&client).await, 200);
        }
        assert_eq!(
            *api.received.lock(),
            [format!("Bearer {good}"), format!("Bearer {good}")]
        );
        let asked = issuer
            .received
            .lock()
            .iter()
            .filter(|line| line.contains("grant_type=refresh_token"))
            .count();
        assert_eq!(
            asked,
            if takes_header { 2 } else { 4 },
            "each way once, and each refresh-token"
        );
    }
}

#[tokio::test]
async fn an_id_token_that_is_good_needs_no_issuer() {
    let pki = SeedAuthority::new();
    let api = api(&pki, |_| true).await;
    let good = jwt("good", 900);
    let desk = Desk::new(&pki, &format!("https://{}", api.address)).user(oidc(&pki, "127.0.0.1:1", &good));
    assert_eq!(status(&desk.connect().await.unwrap()).await, 200);
    assert_eq!(*api.received.lock(), [format!("Bearer {good}")]);
}

#[tokio::test]
async fn an_id_token_that_cannot_be_refreshed_says_to_log_in_again() {
    let pki = SeedAuthority::new();
    let issuer = issuer(&pki, Vec::new(), true).await;
    let stranger = SeedAuthority::new();
    let ended = jwt("old", -60);
    let user = |issuer: &str, change: fn(&mut Value)| {
        let mut user = oidc(&pki, issuer, &ended);
        change(&mut user["auth-provider"]["config"]);
        user
    };
    let foreign = encoded(&stranger.0.pem());
    let mut not_trusted = oidc(&pki, &issuer.address, &ended);
    not_trusted["auth-provider"]["config"]["idp-certificate-authority-data"] = foreign.into();
    for (user, expected) in [
        (
            user(&issuer.address, |_| {}),
            "(the issuer refused the refresh-token with 401 Unauthorized); log in again",
        ),
        (user("127.0.0.1:1", |_| {}), "Connection refused"),
        (
            user(&issuer.address, |config| config["refresh-token"] = "".into()),
            "(there is no refresh-token); log in again",
        ),
        (
            user(&issuer.address, |config| config["id-token"] = "hunter2".into()),
            "is not a JWT; log in again",
        ),
        (
            user(&issuer.address, |config| config["client-id"] = Value::Null),
            "auth-provider oidc lacks client-id",
        ),
        (not_trusted, "is not signed by the authority"),
        (
            json!({"auth-provider": {"name": "gcp", "config": {"access-token": "hunter2"}}}),
            "auth-provider gcp is not supported; use an exec plugin for it",
        ),
    ] {
        let error = Desk::new(&pki, "https://127.0.0.1:1").user(user).error().await;
        assert!(
            error.contains("auth-provider") && error.contains(expected),
            "{error}"
        );
    }
}

/// A file as people write it, with a line feed at its end, that somebody replaces.
#[tokio::test]
async fn a_token_file_is_read_again() {
    let pki = SeedAuthority::new();
    let api = api(&pki, |token| token != "Bearer old").await;
    let desk = Desk::new(&pki, &format!("https://{}", api.address));
    let file = desk.file("token");
    fs::write(&file, "old\n").unwrap();
    let desk = desk.user(json!({"tokenFile": file.to_str().unwrap()}));
    let client = desk.connect().await.unwrap();
    assert_eq!(status(&client).await, 401);
    for (content, expected) in [
        (" \n".to_owned(), "is empty"),
        ("x".repeat(3_000_000), "has 3000000 bytes, and API servers take"),
    ] {
        fs::write(&file, content).unwrap();
        let error = chain(&client.send(get()).await.unwrap_err());
        let expected = format!("the token file {} {expected}", file.display());
        assert!(error.contains(&expected), "{error}");
    }
    fs::write(&file, " new\r\n").unwrap();
    assert_eq!(
        status(&client).await,
        200,
        "a refusal does not wait for the next minute"
    );
    assert_eq!(*api.received.lock(), ["Bearer old", "Bearer new"]);
}

/// As with every client of client-go; the log says so, because no API server accepts it.
#[tokio::test]
async fn a_username_without_a_password_is_sent_with_an_empty_one() {
    let pki = SeedAuthority::new();
    let api = api(&pki, |_| true).await;
    let desk = Desk::new(&pki, &format!("https://{}", api.address)).user(json!({"username": "me"}));
    let log = CapturedOutput::default();
    let writer = log.clone();
    let (subscriber, _) = telemetry::subscriber(LogFormat::Text, "warn", move || writer.clone()).unwrap();
    let client = {
        let _default = tracing::subscriber::set_default(subscriber);
        desk.connect().await.unwrap()
    };
    assert!(
        log.text().contains("has a username and no password"),
        "{}",
        log.text()
    );
    assert_eq!(status(&client).await, 200);
    assert_eq!(*api.received.lock(), [format!("Basic {}", encoded("me:"))]);
}

#[test]
fn the_files_are_those_of_the_option_else_the_environment() {
    let home = "/home/me/.kube/config";
    for (option, kubeconfig, expected) in [
        (Some("/o"), "/a", (OPTION, &["/o"][..])),
        (None, ":/a::b", (VARIABLE, &["/a", "b"])),
        (None, "", ("the home directory", &[home])),
        (None, ":", ("the home directory", &[home])),
    ] {
        let variable = |name: &str| Some(if name == VARIABLE { kubeconfig } else { "/home/me" }.to_owned());
        let (origin, found) = files(option.map(Path::new), &variable);
        let expected_files: Vec<_> = expected.1.iter().map(PathBuf::from).collect();
        assert_eq!((origin, found), (Some(expected.0), expected_files));
    }
}

#[tokio::test]
async fn a_file_that_is_missing_is_named_with_what_names_it() {
    let variable = |name: &str| (name == "KUBECONFIG").then(|| "/no/such/file".to_owned());
    let lists = |name: &str| (name == "KUBECONFIG").then(|| "/no/such/file:/nor/this".to_owned());
    let home = |name: &str| (name == "HOME").then(|| "/no/such/home".to_owned());
    let nothing = |_: &str| None;
    let path = PathBuf::from("/no/such/option");
    let device = PathBuf::from("/dev/null");
    let missing = "cannot be read: No such file or directory";
    let cases: [(Option<&Path>, Variable<'_>, String); 6] = [
        (
            Some(&device),
            &variable,
            "of --kubeconfig cannot be used: /dev/null: cannot be read: it is not a regular file".to_owned(),
        ),
        (
            Some(&path),
            &variable,
            format!("of --kubeconfig cannot be used: /no/such/option: {missing}"),
        ),
        (
            None,
            &variable,
            format!("of KUBECONFIG cannot be used: /no/such/file: {missing}"),
        ),
        (
            None,
            &lists,
            "of KUBECONFIG cannot be used: kubeconfig: none of its files exists".to_owned(),
        ),
        (
            None,
            &home,
            format!("of the home directory cannot be used: /no/such/home/.kube/config: {missing}"),
        ),
        (
            None,
            &nothing,
            "there is no kubeconfig: set --kubeconfig or KUBECONFIG".to_owned(),
        ),
    ];
    for (path, variable, expected) in cases {
        let error = connect_by_file(path, None, "test", variable).await.err().unwrap();
        assert!(error.to_string().contains(&expected), "{error}");
    }
}

/// A Pod has a service account. A file that is named counts more, and the one in the home directory only without it.
#[tokio::test]
async fn a_kubeconfig_that_is_named_is_before_the_service_account() {
    let pki = SeedAuthority::new();
    let api = api(&pki, |_| true).await;
    let desk = Desk::new(&pki, &format!("https://{}", api.address));
    desk.connect().await.unwrap();
    let file = desk.file("kubeconfig");
    let home = desk.file("home");
    fs::create_dir_all(home.join(".kube")).unwrap();
    let environment = |with: &[(&str, &Path)]| {
        let mut of_pod = BTreeMap::from([("KUBERNETES_SERVICE_HOST".to_owned(), "127.0.0.1".to_owned())]);
        of_pod.extend(
            with.iter()
                .map(|(name, path)| ((*name).to_owned(), path.to_str().unwrap().to_owned())),
        );
        move |name: &str| of_pod.get(name).cloned()
    };
    let named = environment(&[("KUBECONFIG", &file)]);
    assert_eq!(
        status(&connect_in(None, "test", &named).await.unwrap()).await,
        200
    );
    let nothing = environment(&[("HOME", &home)]);
    assert_eq!(
        status(&connect_in(Some(&file), "test", &nothing).await.unwrap()).await,
        200
    );
    // This process has no service account.
    let error = connect_in(None, "test", &nothing).await.err().unwrap();
    let expected = "cannot use the service account of the Pod: failed to read an incluster environment variable: \
                    environment variable not found";
    assert_eq!(format!("{error:#}"), expected);
    fs::copy(&file, home.join(".kube/config")).unwrap();
    assert_eq!(
        status(&connect_in(None, "test", &nothing).await.unwrap()).await,
        200
    );
}

/// Certificates of the seed are judged by Go's rules, as those of shoots: its own certificate as authority, a bundle
/// with a block that is none, and refusals that name the certificate.
#[tokio::test]
async fn the_seed_is_trusted_by_the_rules_of_go() {
    let pki = SeedAuthority::new();
    let api = api(&pki, |_| true).await;
    let desk = |authority: &str| {
        let desk = Desk::new(&pki, &format!("https://{}", api.address));
        desk.cluster("certificate-authority-data", encoded(authority))
    };
    let ca = pki.0.pem();
    let block = |text: &str| format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n");
    for bundle in [
        ca.clone(),
        block("MIIB") + &ca,
        block("hunter2!") + &ca,
        format!("a comment\n{ca}"),
    ] {
        assert_eq!(
            status(&desk(&bundle).connect().await.unwrap()).await,
            200,
            "{bundle}"
        );
    }
    let error = desk(&SeedAuthority::new().0.pem()).error().await;
    assert!(
        error.starts_with("the certificate (subject") || error.contains("is not signed by the authority"),
        "{error}"
    );
    let error = desk(&block("MIIB")).error().await;
    assert!(error.contains("holds no certificate that can be read"), "{error}");
    let named = desk(&ca).cluster("tls-server-name", "other.test");
    let error = named.connect().await.unwrap().send(get()).await.unwrap_err();
    assert!(
        chain(&error).contains("does not have the name other.test, only api.seed.test"),
        "{error}"
    );
    assert_eq!(
        watchdog_runtime::failure::Reason::of_transport(&error).as_str(),
        "server_name"
    );
    let insecure = desk("")
        .cluster("tls-server-name", "other.test")
        .cluster("insecure-skip-tls-verify", true);
    assert_eq!(status(&insecure.connect().await.unwrap()).await, 200);
}

#[tokio::test]
async fn a_static_certificate_is_shown_and_a_foreign_key_refused() {
    let pki = SeedAuthority::new();
    let api = api(&pki, |name| name == "operator-3").await;
    let (chain, key) = pki.issue("operator-3");
    let (_, foreign) = pki.issue("operator-4");
    let user =
        |key: &str| json!({"client-certificate-data": encoded(&chain), "client-key-data": encoded(key)});
    let desk = |user| Desk::new(&pki, &format!("https://{}", api.address)).user(user);
    assert_eq!(status(&desk(user(&key)).connect().await.unwrap()).await, 200);
    let error = desk(user(&foreign)).error().await;
    assert_eq!(
        error,
        "client-key-data is not the private key of client-certificate-data"
    );
}
