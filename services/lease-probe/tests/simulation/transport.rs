//! The prober's network: connections to an API server that follows its timeline.

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode, header};
use http_body_util::Full;
use lease_probe::cluster::kubeconfig::Kubeconfig;
use lease_probe::cluster::transport::{ApiRequest, Connector, Link, Suspicion};
use lease_probe::domain::outcome::ProbeFailure;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::network::{ExchangeEnd, NetworkPath, RequestKind};
use crate::objects;
use crate::random::{MILLISECOND, Micros, SECOND};
use crate::timeline::{Client, FOREVER};
use crate::virtual_time::{PlayedShoot, ProbedShoot, VirtualClock};

/// The HTTP/2 PINGs of lease-probe (`cluster/http.rs`).
const PING_INTERVAL: Micros = 6 * SECOND;
const PING_TIME_OUT: Micros = 4 * SECOND;
const LATE_PONG: Micros = SECOND / 2;

/// The prober's network traffic in order, for failure reports.
pub(crate) type TrafficLog = Vec<(Micros, String)>;

/// Connects to one shoot.
#[derive(Clone)]
pub(crate) struct SimConnector {
    pub(crate) clock: VirtualClock,
    pub(crate) shoot: Arc<PlayedShoot>,
    /// Through the external endpoint.
    pub(crate) external: bool,
    pub(crate) probed: Arc<Mutex<ProbedShoot>>,
}

pub(crate) struct SimLink {
    peer: SimConnector,
    opened: Micros,
    /// When something came from the server.
    last_sign: Micros,
    closed: Option<Micros>,
    requests: u64,
}

impl Connector for SimConnector {
    type Link = SimLink;

    async fn open(&self, _: &Arc<Kubeconfig>) -> Result<SimLink, ProbeFailure> {
        let began = self.clock.now();
        self.log("connects");
        match self.path().open(began) {
            // The process died in the middle of the handshake.
            Ok(at) if self.path().closed(began, at + MILLISECOND).is_some() => {
                self.clock.sleep_until(at).await;
                self.log("cannot connect");
                Err(ProbeFailure::Connect("reset".to_owned()))
            }
            Ok(at) => {
                self.clock.sleep_until(at).await;
                self.log("is connected");
                let now = self.clock.now();
                Ok(SimLink {
                    peer: self.clone(),
                    opened: now,
                    last_sign: now,
                    closed: None,
                    requests: 0,
                })
            }
            Err(at) => {
                self.clock.sleep_until(at).await;
                self.log("cannot connect");
                Err(ProbeFailure::Connect("refused".to_owned()))
            }
        }
    }
}

impl SimConnector {
    fn path(&self) -> NetworkPath<'_> {
        let script = &self.shoot.script;
        NetworkPath {
            server: &script.server,
            cuts: match self.external {
                true => script.external_cuts.as_deref().unwrap_or_default(),
                false => &script.prober_cuts,
            },
            client: Client::LeaseProbe,
        }
    }

    fn log(&self, what: &str) {
        let way = if self.external { " (external endpoint)" } else { "" };
        self.probed
            .lock()
            .traffic
            .push((self.clock.now(), format!("{what}{way}")));
    }
}

impl Link for SimLink {
    type Body = Full<Bytes>;

    async fn send(&mut self, request: &ApiRequest) -> Result<Response<Full<Bytes>>, ProbeFailure> {
        let peer = self.peer.clone();
        let (clock, path) = (peer.clock, peer.path());
        let sent = clock.now();
        let what = request
            .path
            .split(['/', '?'])
            .rfind(|part| !part.is_empty() && !part.contains('='))
            .unwrap_or("");
        peer.log(&format!("asks for {what}"));
        self.requests += 1;
        let kind = RequestKind {
            writes: false,
            nonce: self.opened.unsigned_abs() << 8 | self.requests,
        };
        let broken = || ProbeFailure::Connect("connection reset".to_owned());
        if self.ends_at().is_some_and(|(at, _)| at <= sent) {
            return Err(broken());
        }
        if path.server.closes_idle(sent).is_some() {
            // It is no longer idle.
            self.closed = None;
        }
        let exchange = path.request(self.opened, sent, kind);
        let dead = self.ends_at().map_or(FOREVER, |(at, _)| at);
        match exchange.ends {
            ExchangeEnd::Answered(at) if at < dead => {
                clock.sleep_until(at).await;
                self.last_sign = clock.now();
                if objects::lists_leases(request) {
                    peer.probed.lock().asked = sent;
                }
                let (processed, status) = exchange.processed.unwrap_or((at, 200));
                peer.log(&format!("is answered {status}"));
                Ok(self.respond(request, processed, status, at))
            }
            ExchangeEnd::Reset(at) if at <= dead => {
                self.closed = Some(at);
                clock.sleep_until(at).await;
                peer.log("is reset");
                Err(broken())
            }
            _ if dead < FOREVER => {
                clock.sleep_until(dead).await;
                peer.log("has lost its connection");
                Err(broken())
            }
            _ => std::future::pending().await,
        }
    }

    fn end(&self) -> Option<Suspicion> {
        let (at, is_silent) = self.ends_at()?;
        // Timers are exact to a millisecond only: a link has ended when its timer fires.
        let alive_until = match is_silent {
            false => self.last_sign_before(at),
            true => at - PING_INTERVAL - PING_TIME_OUT,
        };
        (at <= self.peer.clock.now()).then(|| Suspicion::ended_at(self.instant_of(alive_until), is_silent))
    }

    async fn ended(&self) {
        match self.ends_at() {
            Some((at, _)) => {
                self.peer.clock.sleep_until(at).await;
                self.peer.log("sees its connection end");
            }
            None => std::future::pending().await,
        }
    }
}

impl SimLink {
    fn respond(
        &mut self,
        request: &ApiRequest,
        processed: Micros,
        status: u16,
        at: Micros,
    ) -> Response<Full<Bytes>> {
        let server = &self.peer.shoot.script.server;
        let status = match status {
            200 => objects::status(&self.peer.shoot, request, processed),
            status => status,
        };
        let closes = server.closes_after_answers(at);
        let mut response = Response::builder().status(StatusCode::from_u16(status).unwrap());
        if closes && !server.speaks_http2 {
            response = response.header(header::CONNECTION, "close");
        }
        if closes {
            self.closed = Some(at + MILLISECOND);
        }
        if let Some(idle) = server.closes_idle(at) {
            self.closed = Some(at + idle);
        }
        if status == 429 {
            response = response.header(header::RETRY_AFTER, "1");
        }
        let body = match status {
            200 => {
                if objects::lists_leases(request) {
                    self.peer.probed.lock().listed = processed - server.staleness(processed);
                }
                objects::answer(&self.peer.shoot, request, processed)
            }
            _ => r#"{"kind":"Status","apiVersion":"v1","status":"Failure","message":"simulated"}"#.to_owned(),
        };
        response.body(Full::new(body.into())).unwrap()
    }

    /// The instant of something that is past.
    fn instant_of(&self, at: Micros) -> Instant {
        let clock = self.peer.clock;
        let ago = crate::virtual_time::duration((clock.now() - at).max(0));
        Instant::now().checked_sub(ago).unwrap_or_else(Instant::now)
    }

    /// When the connection ends if nothing more is sent, and if it falls silent.
    fn ends_at(&self) -> Option<(Micros, bool)> {
        let path = self.peer.path();
        let closed = path
            .closed(self.opened, FOREVER)
            .into_iter()
            .chain(self.closed)
            .min();
        let closed = closed.map(|at| (at, false));
        let silent = match path.server.speaks_http2 {
            true => self.falls_silent(&path).map(|at| (at, true)),
            false => None,
        };
        [closed, silent].into_iter().flatten().min_by_key(|(at, _)| *at)
    }

    /// When the server last answered a PING, if one was unanswered at `end`; else `end`.
    fn last_sign_before(&self, end: Micros) -> Micros {
        let path = self.peer.path();
        if !path.server.speaks_http2 {
            return end;
        }
        let mut sign = self.last_sign;
        loop {
            let ping = sign + PING_INTERVAL;
            if ping + LATE_PONG > end {
                return end;
            }
            match path.pong(self.opened, ping) {
                Some(pong) if pong <= end => sign = pong,
                _ => return sign,
            }
        }
    }

    /// When the first PING is not answered in time.
    fn falls_silent(&self, path: &NetworkPath<'_>) -> Option<Micros> {
        let mut sign = self.last_sign;
        loop {
            // Nothing can happen to a PING before the next fault.
            let fault = path.next_fault(sign)?;
            let without_fault = (fault - sign - SECOND) / (PING_INTERVAL + 3 * MILLISECOND);
            if without_fault > 0 {
                sign += without_fault * (PING_INTERVAL + 3 * MILLISECOND);
            }
            let ping = sign + PING_INTERVAL;
            match path.pong(self.opened, ping) {
                Some(pong) if pong <= ping + PING_TIME_OUT => sign = pong,
                _ => return Some(ping + PING_TIME_OUT),
            }
        }
    }
}

#[cfg(test)]
mod tests;
