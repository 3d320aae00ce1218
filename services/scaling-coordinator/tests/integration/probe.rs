//! A lease-probe that says what the test tells it to say, over the real wire contract.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::time::Instant;
use tokio_stream::Stream;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::{Extensions, Request, Response, Status};
use watchdog_proto::feed::v1 as feed;
use watchdog_proto::probe::v1 as pb;
use watchdog_proto::probe::v1::lease_probe_service_server::{LeaseProbeService, LeaseProbeServiceServer};
use watchdog_watch_stream::message::{Event, Message};
use watchdog_watch_stream::server::StateStore;
use watchdog_watch_stream::stream::Streams;
use watchdog_watch_stream::wire::{WatchResponse as _, duration};

pub use watchdog_proto::probe::v1::Outcome;

/// Longer than any test.
const LONG: Duration = Duration::from_secs(300);

struct FakeVerdict {
    outcome: Outcome,
    /// Age of the observation when the verdict was sent.
    age: Duration,
    given_at: Instant,
    valid_until: Instant,
    observer: String,
}

/// One replica, in a runtime of its own, so that its death cuts its connections.
pub struct Probe {
    pub address: SocketAddr,
    name: String,
    feed: StateStore<String, FakeVerdict>,
    runtime: Option<Runtime>,
}

impl Probe {
    pub async fn start(name: &str) -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut probe = Self {
            address: any,
            name: name.to_owned(),
            feed: StateStore::new(),
            runtime: None,
        };
        probe.restart().await;
        probe
    }

    /// A replica that is known but does not run yet.
    pub async fn planned(name: &str) -> Self {
        let mut probe = Self::start(name).await;
        probe.kill();
        probe
    }

    pub fn say(&self, shoot: &str, outcome: Outcome) {
        self.say_for(shoot, outcome, LONG);
    }

    pub fn say_for(&self, shoot: &str, outcome: Outcome, valid_for: Duration) {
        self.say_of(shoot, outcome, Duration::ZERO, valid_for);
    }

    /// Sends an observation of this age as a new verdict.
    pub fn say_of(&self, shoot: &str, outcome: Outcome, age: Duration, valid_for: Duration) {
        let given = FakeVerdict {
            outcome,
            age,
            given_at: Instant::now(),
            valid_until: Instant::now() + valid_for,
            observer: self.name.clone(),
        };
        self.feed.upsert(shoot.to_owned(), given);
    }

    pub fn take_back(&self, shoot: &str) {
        self.feed.remove(&shoot.to_owned());
    }

    /// The process dies.
    pub fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    /// The process is there again, on the same address, with nothing to say yet.
    pub async fn restart(&mut self) {
        self.kill();
        self.feed = StateStore::new();
        self.serve().await;
    }

    /// The process is there again, and its first snapshot says the same of all these shoots: the coordinator learns of
    /// all of them at one instant.
    pub async fn restart_saying(&mut self, shoots: impl IntoIterator<Item = String>, outcome: Outcome) {
        self.kill();
        self.feed = StateStore::new();
        for shoot in shoots {
            self.say(&shoot, outcome);
        }
        self.serve().await;
    }

    async fn serve(&mut self) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let address = self.address;
        let listener = runtime.spawn(listen(address)).await.unwrap();
        self.address = listener.local_addr().unwrap();
        let service = ProbeService {
            feed: self.feed.clone(),
            streams: Streams::new(CancellationToken::new()),
        };
        let server = Server::builder()
            .add_service(LeaseProbeServiceServer::new(service))
            .serve_with_incoming(TcpListenerStream::new(listener));
        runtime.spawn(async move { server.await.unwrap() });
        self.runtime = Some(runtime);
    }
}

/// The runtime of the one before ends in the background: its listener may hold the address a moment longer.
async fn listen(address: SocketAddr) -> TcpListener {
    let end = Instant::now() + LONG;
    loop {
        match TcpListener::bind(address).await {
            Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < end => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            bound => return bound.unwrap(),
        }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.kill();
    }
}

struct ProbeService {
    feed: StateStore<String, FakeVerdict>,
    streams: Streams,
}

fn verdict(shoot: String, given: &FakeVerdict) -> pb::Verdict {
    let now = Instant::now();
    pb::Verdict {
        shoot,
        outcome: given.outcome.into(),
        message: "The test says so.".into(),
        age: Some(duration(
            given.age + now.saturating_duration_since(given.given_at),
        )),
        valid_for: Some(duration(given.valid_until.saturating_duration_since(now))),
        observer: given.observer.clone(),
        ..Default::default()
    }
}

#[tonic::async_trait]
impl LeaseProbeService for ProbeService {
    type WatchVerdictsStream = Pin<Box<dyn Stream<Item = Result<pb::WatchVerdictsResponse, Status>> + Send>>;

    async fn watch_verdicts(
        &self,
        request: Request<pb::WatchVerdictsRequest>,
    ) -> Result<Response<Self::WatchVerdictsStream>, Status> {
        assert_eq!(
            request.get_ref().scope(),
            feed::Scope::Local,
            "every replica is asked for its own shoots"
        );
        let encode = |message: Message<String, std::sync::Arc<FakeVerdict>>| {
            let event = match message.event {
                Event::Upsert(shoot, given) => Event::Upsert(shoot.clone(), verdict(shoot, &given)),
                Event::Removed(shoot) => Event::Removed(shoot),
                Event::SnapshotComplete { items, completeness } => {
                    Event::SnapshotComplete { items, completeness }
                }
                Event::Heartbeat { completeness } => Event::Heartbeat { completeness },
            };
            let position = message.position;
            Ok(pb::WatchVerdictsResponse::encode(Message { position, event }))
        };
        Ok(Response::new(self.streams.serve(
            "WatchVerdicts",
            &Extensions::default(),
            self.feed.subscribe(|_| true),
            encode,
        )?))
    }

    async fn get_verdict(
        &self,
        _: Request<pb::GetVerdictRequest>,
    ) -> Result<Response<pb::GetVerdictResponse>, Status> {
        Err(Status::unimplemented("not asked for"))
    }

    async fn list_verdicts(
        &self,
        _: Request<pb::ListVerdictsRequest>,
    ) -> Result<Response<pb::ListVerdictsResponse>, Status> {
        Err(Status::unimplemented("not asked for"))
    }
}
