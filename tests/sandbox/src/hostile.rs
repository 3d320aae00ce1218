//! API servers that answer whatever they like, to show what one of them can do to its callers.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use http::{Request, Response, StatusCode, header};
use http_body_util::StreamBody;
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::task::AbortOnDropHandle;

use crate::error::SandboxError;
use crate::kubeconfig;

/// How an API server answers every request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hostility {
    /// A list of large objects that never ends, as fast as it is read.
    EndlessList,
    /// Bytes that are no JSON, without end.
    EndlessBytes,
    /// The begin of a list, then a byte a second.
    Trickles,
    /// Almost as much of a list as is read, then nothing more.
    Stalls,
    /// A megabyte of objects, and always another page.
    EndlessPages,
    /// 500 small objects with long names, and always another page.
    ManyLeases,
    /// A million items of two bytes.
    TinyItems,
    /// The same in Protobuf.
    TinyMessages,
    /// Nodes with a hundred thousand conditions each.
    ManyConditions,
    /// A name and a page token of most of a megabyte.
    LongStrings,
    /// One object whose name has 300,000 bytes and clears a terminal.
    LongName,
    /// Arrays within arrays.
    DeepJson,
    /// A body that says it is compressed, and is a bomb.
    Compressed,
    /// Headers without end.
    ManyHeaders,
    /// Responses before the response, without end.
    InterimResponses,
    /// Answers and pings that nobody asked for, without end.
    Unasked,
    /// The stream is reset in the middle of the answer.
    Resets,
    /// To a metadata service.
    Redirects,
    /// Another status code with each answer.
    AnyCode,
    /// A chain of certificates of a megabyte.
    LargeCertificate,
    /// A certificate for another name.
    OtherName,
    /// The connection opens, and nothing is answered.
    Silent,
}

/// A running server. It ends when it is dropped.
#[derive(Debug)]
pub struct HostileServer {
    /// For a user of it.
    pub kubeconfig: String,
    _serving: AbortOnDropHandle<()>,
}

type HostileBody = StreamBody<stream::BoxStream<'static, Result<Frame<Bytes>, io::Error>>>;

const HTTP_1_OK: &[u8] = b"HTTP/1.1 200 OK\r\n";

// === impl Hostility ===

impl Hostility {
    /// All of them.
    pub const ALL: [Self; 22] = [
        Self::EndlessList,
        Self::EndlessBytes,
        Self::Trickles,
        Self::Stalls,
        Self::EndlessPages,
        Self::ManyLeases,
        Self::TinyItems,
        Self::TinyMessages,
        Self::ManyConditions,
        Self::LongStrings,
        Self::LongName,
        Self::DeepJson,
        Self::Compressed,
        Self::ManyHeaders,
        Self::InterimResponses,
        Self::Unasked,
        Self::Resets,
        Self::Redirects,
        Self::AnyCode,
        Self::LargeCertificate,
        Self::OtherName,
        Self::Silent,
    ];

    /// The begin of the body, the part that follows, and how often.
    fn body(self) -> (String, String, usize) {
        let list = r#"{"metadata": {}, "items": ["#;
        let whole = |text: String| (text, String::new(), 0);
        let endless = |begin: &str, part: String| (begin.to_owned(), part, usize::MAX);
        let lease = |name: &str, annotation: usize| {
            let metadata = json!({"name": name, "annotations": {"a": "x".repeat(annotation)}});
            json!({"metadata": metadata, "spec": {}})
        };
        let page = |token: &str, items: Value| {
            whole(json!({"metadata": {"continue": token}, "items": items}).to_string())
        };
        match self {
            Self::EndlessList => endless(list, format!("{},", lease("n", 250_000))),
            Self::EndlessBytes => endless("", "y".repeat(10_000)),
            Self::Trickles => endless(list, " ".to_owned()),
            Self::Stalls => endless(&(list.to_owned() + &" ".repeat(15 << 17)), String::new()),
            Self::EndlessPages => page("more", json!([lease("n", 1 << 20)])),
            Self::ManyLeases => {
                let name = |_: usize| format!("{:0>240}", rand::random::<u64>());
                page("more", (0..500).map(|n| lease(&name(n), 0)).collect())
            }
            Self::TinyItems => (format!("{list}0"), ",1".repeat(5_000), 190),
            Self::TinyMessages => {
                // The kind, and the 1,581,022 bytes of the list: its metadata, then ten times as many leases.
                let begin = "k8s\0\n\u{b}\u{12}\tLeaseList\u{12}\u{7bf}`\n\0".to_owned();
                (begin, "\u{12}\0".repeat(79_051), 10)
            }
            Self::ManyConditions => {
                let conditions = vec![json!({"type": "a"}); 100_000];
                let node = json!({"metadata": {"name": "n"}, "status": {"conditions": conditions}});
                whole(json!({"metadata": {}, "items": [node]}).to_string())
            }
            Self::LongStrings => page(&"t".repeat(3 << 18), json!([lease(&"n".repeat(3 << 18), 0)])),
            Self::LongName => {
                let name = format!("\u{1b}[2J{}", "n".repeat(300_000));
                let item = json!({"metadata": {"name": name}, "spec": {}, "status": {}});
                whole(json!({"metadata": {"resourceVersion": "7"}, "items": [item]}).to_string())
            }
            Self::DeepJson => (String::new(), "[".repeat(10_000), 190),
            // A stored block of 65,535 bytes, repeated: what a decoder would keep grows without end.
            Self::Compressed => (String::new(), "\u{1f}\u{b}".repeat(5_000), 190),
            _ => (
                r#"{"kind": "Status", "message": "#.to_owned(),
                "\"m".repeat(100),
                1,
            ),
        }
    }

    fn answer(self) -> http::Result<Response<HostileBody>> {
        let (begin, part, times) = self.body();
        let part = Bytes::from(part);
        let parts = stream::iter(0..times).then(move |_| {
            let part = part.clone();
            async move {
                if matches!(self, Self::Trickles | Self::Stalls) {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
                match self {
                    Self::Resets => Err(io::Error::other("reset")),
                    _ => Ok(Frame::data(part)),
                }
            }
        });
        let begin = stream::once(std::future::ready(Ok(Frame::data(Bytes::from(begin)))));
        let response = Response::builder().header(header::CONTENT_TYPE, "application/json");
        let response = match self {
            Self::Compressed => response.header(header::CONTENT_ENCODING, "gzip"),
            Self::Redirects => response
                .status(StatusCode::FOUND)
                .header(header::LOCATION, "https://169.254.169.254/latest/meta-data/"),
            Self::AnyCode => response.status(rand::random_range(200_u16..1000)),
            _ => response,
        };
        let body = StreamBody::new(begin.chain(parts).boxed());
        response.body(body)
    }

    async fn serve(self, mut stream: TlsStream<TcpStream>) -> io::Result<()> {
        let h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        if self == Self::Silent {
            let mut ignored = [0; 4096];
            while stream.read(&mut ignored).await? > 0 {}
            return Ok(());
        }
        if let Some((begin, part)) = self.raw(h2) {
            return flood(stream, &begin, &part, self != Self::Unasked).await;
        }
        let service = service_fn(move |_: Request<Incoming>| std::future::ready(self.answer()));
        let builder = auto::Builder::new(TokioExecutor::new());
        let served = builder.serve_connection(TokioIo::new(stream), service).await;
        served.map_err(io::Error::other)
    }

    /// The begin of what is sent in place of HTTP, and the part that is repeated.
    fn raw(self, h2: bool) -> Option<(Vec<u8>, Vec<u8>)> {
        const DATA_FOLLOWS: u8 = 0;
        const END_HEADERS: u8 = 4;
        let settings = frame(4, 0, 0, &[]);
        // Fields of HPACK: the status, in the static table; "a: b"; the status 103.
        let (status, field, early) = (&[0x88_u8][..], b"\x00\x01a\x01b".repeat(2_000), b"\x08\x03103");
        let raw = match (self, h2) {
            (Self::ManyHeaders, true) => (
                [settings, frame(1, DATA_FOLLOWS, 1, status)].concat(),
                frame(9, DATA_FOLLOWS, 1, &field),
            ),
            (Self::ManyHeaders, false) => (HTTP_1_OK.to_vec(), b"a: b\r\n".repeat(2_000)),
            (Self::InterimResponses, true) => (settings, frame(1, END_HEADERS, 1, early).repeat(500)),
            (Self::InterimResponses, false) => (Vec::new(), b"HTTP/1.1 103 Early Hints\r\n\r\n".repeat(500)),
            (Self::Unasked, true) => (settings, frame(6, 0, 0, b"whoareu?").repeat(500)),
            (Self::Unasked, false) => {
                let answer = [HTTP_1_OK, b"Content-Length: 2\r\n\r\nok"].concat();
                (Vec::new(), answer.repeat(500))
            }
            _ => return None,
        };
        Some(raw)
    }
}

/// A frame of HTTP/2.
#[must_use]
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, length @ ..] = u32::try_from(payload.len()).unwrap_or(0).to_be_bytes();
    [&length[..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Sends without end, after a request or at once.
async fn flood(stream: TlsStream<TcpStream>, begin: &[u8], part: &[u8], waits: bool) -> io::Result<()> {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut received = [0; 4096];
    if waits {
        // The preface of HTTP/2 and the request come together or one after the other.
        let mut seen = 0;
        while seen < 100 {
            match reader.read(&mut received).await? {
                0 => return Ok(()),
                more => seen += more,
            }
        }
    }
    let drain = async {
        while reader.read(&mut received).await? > 0 {}
        Ok(())
    };
    let send = async {
        writer.write_all(begin).await?;
        loop {
            writer.write_all(part).await?;
        }
    };
    tokio::select! {
        drained = drain => drained,
        sent = send => sent,
    }
}

// === impl HostileServer ===

impl HostileServer {
    /// Starts a server on a loopback address, of HTTP/2 or of HTTP/1.1.
    ///
    /// # Errors
    /// When no port is free or no certificate can be made.
    pub async fn start(hostility: Hostility, h2: bool) -> Result<Self, SandboxError> {
        Self::listen(hostility, h2, move |stream| hostility.serve(stream)).await
    }

    /// Starts a server that does this with each connection, after the handshake.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn scripted<F: Future<Output = io::Result<()>> + Send + 'static>(
        h2: bool,
        serve: impl Fn(TlsStream<TcpStream>) -> F + Send + Sync + 'static,
    ) -> Result<Self, SandboxError> {
        Self::listen(Hostility::Silent, h2, serve).await
    }

    async fn listen<F: Future<Output = io::Result<()>> + Send + 'static>(
        hostility: Hostility,
        h2: bool,
        serve: impl Fn(TlsStream<TcpStream>) -> F + Send + Sync + 'static,
    ) -> Result<Self, SandboxError> {
        let serve = Arc::new(serve);
        let key = rcgen::KeyPair::generate()?;
        let names = match hostility {
            Hostility::OtherName => vec!["other.example".to_owned()],
            _ => vec!["localhost".to_owned(), "127.0.0.1".to_owned()],
        };
        let certificate = rcgen::CertificateParams::new(names)?.self_signed(&key)?;
        let mut chain = vec![certificate.der().clone()];
        if hostility == Hostility::LargeCertificate {
            chain.extend((0..16).map(|_| CertificateDer::from(vec![0x30; 1 << 16])));
        }
        let private = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, private)?;
        let protocol: &[u8] = if h2 { b"h2" } else { b"http/1.1" };
        config.alpn_protocols = vec![protocol.to_vec()];
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let serving = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((tcp, _)) = listener.accept().await {
                let (acceptor, serve) = (acceptor.clone(), serve.clone());
                connections.spawn(async move { serve(acceptor.accept(tcp).await?).await });
                while connections.try_join_next().is_some() {}
            }
        });
        let url = format!("https://{address}");
        let kubeconfig = kubeconfig::render(&url, &certificate.pem(), "hostile", "u", "token: t");
        Ok(Self {
            kubeconfig,
            _serving: AbortOnDropHandle::new(serving),
        })
    }
}
