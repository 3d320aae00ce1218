//! One kept connection to a shoot's API server.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use secrecy::{ExposeSecret, SecretString};
use tokio::net::TcpStream;
use watchdog_api::kubeconfig::ShootAccess;

use super::gate::{Gate, Place};
use super::tls::{self, ShootTls};
use crate::domain::outcome::Failure;
use crate::metrics::CONNECTIONS;

/// A silent connection is asked for a sign of life this often (HTTP/2 PING), also while no probe runs, and given up
/// when none comes within [`PING_TIMEOUT`]: a dead one is noticed within 10 s.
const PING_INTERVAL: Duration = Duration::from_secs(6);

/// See [`PING_INTERVAL`].
const PING_TIMEOUT: Duration = Duration::from_secs(4);

/// TCP connect and TLS handshake together. The wait for a place is not counted, here and in every limit that a server
/// is judged by: it is this process that waits for itself.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A kept connection that brings no answer for so long may be dead before a ping found out: another is opened then.
const KEPT_ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// Connections that begin to open at the same time, over all shoots: a handshake costs a core about a millisecond, and
/// after a restart all shoots want one. Servers that do not answer hold a place for a second only, so what is under way
/// is at most 64 a second for [`CONNECT_TIMEOUT`], 640, and never more than one for each endpoint of each shoot that
/// hangs: sockets that wait.
static OPENING: Gate = Gate::new(64);

/// A page of 500 leases is about 500 KB, a page of 500 nodes about 8 MB; more than this is no answer of an API server.
const MAX_BODY: usize = 64 * 1024 * 1024;

/// What a request brought.
#[derive(Debug)]
pub struct Answer {
    /// Status code.
    pub status: StatusCode,
    /// `Retry-After` in seconds, where it is there.
    pub retry_after: Option<Duration>,
    /// The whole body.
    pub body: Bytes,
}

/// Talks to one API server over one connection, which is opened when needed and kept.
#[derive(Debug)]
pub struct Connection {
    server: Uri,
    authority: String,
    tls: ShootTls,
    authorization: Option<header::HeaderValue>,
    gate: &'static Gate,
    sender: Option<Sender>,
    // Whether the last request waits for a place, or waited for one when it was given up.
    waits: bool,
}

#[derive(Debug)]
enum Sender {
    H1(http1::SendRequest<Full<Bytes>>),
    H2(http2::SendRequest<Full<Bytes>>),
}

/// One request.
struct Call<'a> {
    method: Method,
    path: &'a str,
    body: Bytes,
}

impl Connection {
    /// Prepares a connection; nothing is opened yet.
    ///
    /// # Errors
    /// When the kubeconfig's data cannot be used.
    pub fn new(access: &ShootAccess) -> Result<Self, Failure> {
        Self::through(&OPENING, access)
    }

    /// The same with a gate of its own.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn through(gate: &'static Gate, access: &ShootAccess) -> Result<Self, Failure> {
        let tls = tls::build(access).map_err(Failure::Kubeconfig)?;
        let bad = |what: &str| Failure::Kubeconfig(what.to_owned());
        let authority = access
            .server
            .authority()
            .ok_or_else(|| bad("the server URL has no host"))?;
        Ok(Self {
            authority: format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(443)),
            server: access.server.clone(),
            tls,
            authorization: access
                .credentials
                .token()
                .map(bearer)
                .transpose()
                .map_err(|()| bad("the token holds characters that cannot stand in a header"))?,
            gate,
            sender: None,
            waits: false,
        })
    }

    /// Sends a GET for `path` (with its query, relative to the server URL) and reads the whole answer. The connection
    /// is reused; a reused one that turns out to be closed is replaced once. Bound the whole with a timeout. Cancelling
    /// drops only this request where the server speaks HTTP/2, and the connection with it where it does not;
    /// [`waits`](Self::waits) says whether it was sent at all.
    ///
    /// # Errors
    /// When the API server cannot be reached or its answer breaks off.
    pub async fn get(&mut self, path: &str) -> Result<Answer, Failure> {
        self.send(Method::GET, path, Bytes::new()).await
    }

    /// Sends a POST with a JSON body that changes nothing on the server, so that it may be sent twice; else as
    /// [`get`](Self::get).
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn ask(&mut self, path: &str, body: Bytes) -> Result<Answer, Failure> {
        self.send(Method::POST, path, body).await
    }

    /// Whether there is a connection that the next request can use: one whose server was heard of lately.
    #[must_use]
    pub fn is_open(&self) -> bool {
        match &self.sender {
            Some(Sender::H1(sender)) => !sender.is_closed(),
            Some(Sender::H2(sender)) => !sender.is_closed(),
            None => false,
        }
    }

    /// Whether the last request waits for a place to open a connection, or did when it was given up: then the server
    /// was not asked.
    #[must_use]
    pub const fn waits(&self) -> bool {
        self.waits
    }

    /// Drops the connection, so that the next request opens another.
    pub fn close(&mut self) {
        self.sender = None;
    }

    /// As [`get`](Self::get), for a request by which a server is judged: it has `limit` on a connection that was opened
    /// for it, whatever became of the kept one and however long it waited for a place.
    ///
    /// # Errors
    /// As [`get`](Self::get); [`Failure::Timeout`] when the server had its time, [`Failure::NoPlace`] when none became
    /// free for as long.
    pub async fn get_within(&mut self, limit: Duration, path: &str) -> Result<Answer, Failure> {
        let call = Call {
            method: Method::GET,
            path,
            body: Bytes::new(),
        };
        let kept = tokio::time::timeout(KEPT_ANSWERS_WITHIN.min(limit), self.on_kept(&call)).await;
        if let Ok(Some(answer)) = kept {
            return Ok(answer);
        }
        self.close();
        let place = tokio::time::timeout(limit, self.place()).await;
        let place = place.map_err(|_| Failure::NoPlace(limit))?;
        let fresh = tokio::time::timeout(limit, self.on_fresh(place, &call)).await;
        fresh.unwrap_or(Err(Failure::Timeout(limit)))
    }

    async fn send(&mut self, method: Method, path: &str, body: Bytes) -> Result<Answer, Failure> {
        let call = Call { method, path, body };
        if let Some(answer) = self.on_kept(&call).await {
            return Ok(answer);
        }
        let place = self.place().await;
        self.on_fresh(place, &call).await
    }

    /// The answer on the kept connection; none when there is none, or none that can be used.
    async fn on_kept(&mut self, call: &Call<'_>) -> Option<Answer> {
        self.waits = false;
        let sender = self.sender.take()?;
        match self.exchange(sender, call).await {
            Ok(answer) => Some(answer),
            // The server may have closed it while it was idle; a fresh one tells whether it lives.
            Err(error) => {
                tracing::debug!(%error, "kept connection lost, opening another");
                None
            }
        }
    }

    async fn place(&mut self) -> Place<'static> {
        self.waits = true;
        let place = self.gate.place().await;
        self.waits = false;
        place
    }

    async fn on_fresh(&mut self, place: Place<'_>, call: &Call<'_>) -> Result<Answer, Failure> {
        // On the heap: it is rare, and every shoot's probe would keep room for it.
        let sender = Box::pin(self.open(place)).await?;
        self.exchange(sender, call).await
    }

    async fn exchange(&mut self, mut sender: Sender, call: &Call<'_>) -> Result<Answer, Failure> {
        // Given up, a request of HTTP/2 leaves its connection to the next; one of HTTP/1 leaves half an answer on it.
        if let Sender::H2(h2) = &sender {
            self.sender = Some(Sender::H2(h2.clone()));
        }
        let answer = self.talk(&mut sender, call).await;
        self.sender = answer.is_ok().then_some(sender);
        answer
    }

    async fn talk(&self, sender: &mut Sender, call: &Call<'_>) -> Result<Answer, Failure> {
        let broken = |e: hyper::Error| Failure::Connect(chain(&e));
        let response = match sender {
            Sender::H1(h1) => {
                h1.ready().await.map_err(broken)?;
                h1.send_request(self.request(call, false)?)
                    .await
                    .map_err(broken)?
            }
            Sender::H2(h2) => {
                h2.ready().await.map_err(broken)?;
                h2.send_request(self.request(call, true)?).await.map_err(broken)?
            }
        };
        read(response).await
    }

    fn request(&self, call: &Call<'_>, absolute: bool) -> Result<Request<Full<Bytes>>, Failure> {
        let path = call.path;
        let prefix = self.server.path().trim_end_matches('/');
        let uri = if absolute {
            format!("https://{}{prefix}{path}", self.authority)
        } else {
            format!("{prefix}{path}")
        };
        let mut request = Request::builder()
            .method(call.method.clone())
            .uri(uri)
            .header(header::ACCEPT, "application/json")
            .header(
                header::USER_AGENT,
                concat!("lease-probe/", env!("CARGO_PKG_VERSION")),
            );
        if !absolute {
            request = request.header(header::HOST, &self.authority);
        }
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        if !call.body.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        request
            .body(Full::new(call.body.clone()))
            .map_err(|e| Failure::Kubeconfig(format!("the server URL cannot be used: {e}")))
    }

    async fn open(&self, place: Place<'_>) -> Result<Sender, Failure> {
        let handshake = tokio::time::timeout(CONNECT_TIMEOUT, self.handshake());
        let opened = place.during(handshake).await;
        let (result, sender) = match opened {
            Ok(Ok(sender)) => ("opened", Ok(sender)),
            Ok(Err(failure)) => ("failed", Err(failure)),
            Err(_) => ("failed", Err(Failure::Timeout(CONNECT_TIMEOUT))),
        };
        CONNECTIONS.inc(&[("result", result.to_owned())]);
        sender
    }

    async fn handshake(&self) -> Result<Sender, Failure> {
        let unreachable = |e: std::io::Error| Failure::Connect(format!("{}: {e}", self.authority));
        let tcp = TcpStream::connect(&self.authority).await.map_err(unreachable)?;
        tcp.set_nodelay(true).map_err(unreachable)?;
        let connector = tokio_rustls::TlsConnector::from(self.tls.config.clone());
        let name: ServerName<'static> = self.tls.server_name.clone();
        let tls = connector
            .connect(name, tcp)
            .await
            .map_err(|e| match tls_error(&e) {
                Some(error) => Failure::Tls(error),
                None => unreachable(e),
            })?;
        let h2 = tls.get_ref().1.alpn_protocol() == Some(b"h2");
        let broken = |e: hyper::Error| Failure::Connect(chain(&e));
        let io = TokioIo::new(tls);
        if h2 {
            let (sender, connection) = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .keep_alive_interval(PING_INTERVAL)
                .keep_alive_timeout(PING_TIMEOUT)
                .keep_alive_while_idle(true)
                .handshake(io)
                .await
                .map_err(broken)?;
            // Ends when the sender is dropped, the server closes or pings are not answered.
            tokio::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "connection to a shoot ended");
                }
            });
            return Ok(Sender::H2(sender));
        }
        let (sender, connection) = http1::handshake(io).await.map_err(broken)?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection to a shoot ended");
            }
        });
        Ok(Sender::H1(sender))
    }
}

async fn read(response: hyper::Response<Incoming>) -> Result<Answer, Failure> {
    let status = response.status();
    let retry_after = retry_after(response.headers());
    let body = Limited::new(response.into_body(), MAX_BODY).collect().await;
    let body = body
        .map_err(|e| Failure::Connect(format!("the answer broke off: {e}")))?
        .to_bytes();
    Ok(Answer {
        status,
        retry_after,
        body,
    })
}

/// `Retry-After` in seconds; the notation as a date, which no API server uses, counts as none.
pub(super) fn retry_after(headers: &header::HeaderMap) -> Option<Duration> {
    let seconds = headers.get(header::RETRY_AFTER)?.to_str().ok()?;
    seconds.trim().parse().ok().map(Duration::from_secs)
}

fn bearer(token: &SecretString) -> Result<header::HeaderValue, ()> {
    let mut value =
        header::HeaderValue::from_str(&format!("Bearer {}", token.expose_secret())).map_err(|_| ())?;
    value.set_sensitive(true);
    Ok(value)
}

/// The TLS error inside an I/O error, if that is what it is.
fn tls_error(error: &std::io::Error) -> Option<String> {
    error
        .get_ref()?
        .downcast_ref::<rustls::Error>()
        .map(ToString::to_string)
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
