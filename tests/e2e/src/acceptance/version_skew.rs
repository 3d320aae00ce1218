//! Peers of neighbouring versions: a lease-probe that sends more than this version knows, one that sends less, and a
//! consumer that asks with more. On the level of bytes, as no type of this version can hold what it does not know.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use futures::Stream;
use futures::future::BoxFuture;
use http::uri::PathAndQuery;
use prost::Message;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_util::task::AbortOnDropHandle;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::{NamedService, ServerStreamingService};
use tonic::transport::{Channel, Server};
use tonic::{Request, Response, Status};
use watchdog_proto::feed::v1 as feed;
use watchdog_proto::probe::v1 as pb;
use watchdog_proto::probe::v1::watch_verdicts_response::Event;

/// As often as lease-probe itself, or more often.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// Number of a field that no version has.
const UNKNOWN_FIELD: u64 = 2_000;

/// Wire type of strings and messages.
const LENGTH_DELIMITED: u64 = 2;

/// Field `upsert` of `WatchVerdictsResponse`.
const UPSERT: u64 = 2;

/// Field `position` of `WatchVerdictsResponse`.
const POSITION: u64 = 1;

/// How a peer differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Age {
    /// It sends fields, kinds of events and enum values that this version does not know.
    Newer,
    /// It sends nothing of what is optional.
    Older,
}

/// A lease-probe of another version that reports the same verdict on one shoot until the test changes it.
pub struct SkewedPeer {
    /// Where it listens, in plaintext.
    pub address: SocketAddr,
    outcome: watch::Sender<i32>,
    _server: AbortOnDropHandle<()>,
}

/// The peer's record and its readers.
#[derive(Clone)]
struct PeerRecord {
    age: Age,
    shoot: String,
    outcome: watch::Receiver<i32>,
    started: Instant,
}

// === impl SkewedPeer ===

impl SkewedPeer {
    /// Starts one.
    ///
    /// # Errors
    /// When no port is free.
    pub async fn start(age: Age, shoot: &str, outcome: i32) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let outcome = watch::Sender::new(outcome);
        let say = PeerRecord {
            age,
            shoot: shoot.to_owned(),
            outcome: outcome.subscribe(),
            started: Instant::now(),
        };
        let server = Server::builder()
            .add_service(say)
            .serve_with_incoming(TcpListenerStream::new(listener));
        let server = tokio::spawn(async move {
            if let Err(error) = server.await {
                eprintln!("a peer of another version failed: {error}");
            }
        });
        Ok(Self {
            address,
            outcome,
            _server: AbortOnDropHandle::new(server),
        })
    }

    /// Says something else from now on; the number may be one that this version does not know.
    pub fn say(&self, outcome: i32) {
        self.outcome.send_replace(outcome);
    }
}

// === impl PeerRecord ===

impl PeerRecord {
    fn position(&self, revision: u64) -> feed::Position {
        let passed = self.started.elapsed();
        let mut position = feed::Position {
            epoch: "neighbour".to_owned(),
            revision,
            uptime: None,
            item_age: None,
        };
        let uptime = position.uptime.get_or_insert_default();
        uptime.seconds = i64::try_from(passed.as_secs()).unwrap_or_default();
        uptime.nanos = i32::try_from(passed.subsec_nanos()).unwrap_or_default();
        position
    }

    fn verdict(&self, outcome: i32) -> Vec<u8> {
        let mut verdict = pb::Verdict {
            shoot: self.shoot.clone(),
            outcome,
            age: Some(Default::default()),
            ..Default::default()
        };
        verdict.valid_for.get_or_insert_default().seconds = 600;
        if self.age == Age::Newer {
            verdict.message = "Newer.".to_owned();
            verdict.observer = "neighbour".to_owned();
            let evidence = verdict.evidence.get_or_insert_default();
            evidence.excluded = vec![pb::ExclusionCount {
                reason: 999,
                leases: 1,
            }];
        }
        let mut bytes = verdict.encode_to_vec();
        self.embellish(&mut bytes);
        bytes
    }

    fn upsert(&self, revision: u64, outcome: i32) -> Bytes {
        let mut bytes = Vec::new();
        delimited(&mut bytes, POSITION, &self.position(revision).encode_to_vec());
        delimited(&mut bytes, UPSERT, &self.verdict(outcome));
        self.embellish(&mut bytes);
        bytes.into()
    }

    fn event(&self, revision: u64, event: Option<Event>) -> Bytes {
        let message = pb::WatchVerdictsResponse {
            position: Some(self.position(revision)),
            event,
        };
        let mut bytes = message.encode_to_vec();
        self.embellish(&mut bytes);
        bytes.into()
    }

    /// Adds what only a newer version has.
    fn embellish(&self, bytes: &mut Vec<u8>) {
        if self.age == Age::Newer {
            delimited(bytes, UNKNOWN_FIELD, b"of a later version");
        }
    }

    async fn tell(mut self, out: mpsc::Sender<Result<Bytes, Status>>) {
        let mut revision = 1;
        let outcome = *self.outcome.borrow_and_update();
        let complete = Event::SnapshotComplete(feed::SnapshotComplete {
            items: 1,
            completeness: None,
        });
        let mut messages = vec![
            self.upsert(revision, outcome),
            self.event(revision, Some(complete)),
        ];
        loop {
            for message in messages.drain(..) {
                if out.send(Ok(message)).await.is_err() {
                    return;
                }
            }
            messages = match tokio::time::timeout(HEARTBEAT, self.outcome.changed()).await {
                Ok(Ok(())) => {
                    revision += 1;
                    let outcome = *self.outcome.borrow_and_update();
                    vec![self.upsert(revision, outcome)]
                }
                Ok(Err(_)) => return,
                Err(_) => vec![self.event(revision, Some(Event::Heartbeat(feed::Heartbeat::default())))],
            };
            if self.age == Age::Newer {
                // A kind of event that is none for this version.
                messages.push(self.event(revision, None));
            }
        }
    }
}

impl NamedService for PeerRecord {
    const NAME: &'static str = "gardener.watchdog.probe.v1.LeaseProbeService";
}

impl ServerStreamingService<Bytes> for PeerRecord {
    type Response = Bytes;
    type ResponseStream = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;
    type Future = BoxFuture<'static, Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, _: Request<Bytes>) -> Self::Future {
        let say = self.clone();
        Box::pin(async move {
            let (out, stream) = mpsc::channel(16);
            tokio::spawn(say.tell(out));
            let stream: Self::ResponseStream = Box::pin(ReceiverStream::new(stream));
            Ok(Response::new(stream))
        })
    }
}

impl tower::Service<http::Request<Body>> for PeerRecord {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let say = self.clone();
        Box::pin(async move {
            Ok(tonic::server::Grpc::new(RawMessages)
                .server_streaming(say, request)
                .await)
        })
    }
}

/// Asks lease-probe for a verdict with a field that it does not know.
///
/// # Errors
/// When it refuses.
pub async fn newer_request(channel: Channel, shoot: &str) -> anyhow::Result<pb::GetVerdictResponse> {
    let request = pb::GetVerdictRequest {
        shoot: shoot.to_owned(),
    };
    let mut bytes = request.encode_to_vec();
    delimited(&mut bytes, UNKNOWN_FIELD, b"of a later version");
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await?;
    let path = PathAndQuery::from_static("/gardener.watchdog.probe.v1.LeaseProbeService/GetVerdict");
    let answer = client
        .unary(Request::new(Bytes::from(bytes)), path, RawMessages)
        .await?;
    Ok(pb::GetVerdictResponse::decode(answer.into_inner())?)
}

fn varint(bytes: &mut Vec<u8>, mut number: u64) {
    loop {
        let low = number.to_le_bytes().first().copied().unwrap_or_default() & 0x7f;
        number >>= 7;
        if number == 0 {
            return bytes.push(low);
        }
        bytes.push(low | 0x80);
    }
}

fn delimited(bytes: &mut Vec<u8>, field: u64, content: &[u8]) {
    varint(bytes, field << 3 | LENGTH_DELIMITED);
    varint(bytes, u64::try_from(content.len()).unwrap_or_default());
    bytes.extend_from_slice(content);
}

/// Messages as bytes.
struct RawMessages;

impl Codec for RawMessages {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for RawMessages {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for RawMessages {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}
