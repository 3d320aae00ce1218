//! A replica of lease-probe whose verdicts the test sets, over the real wire contract.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::time::Instant;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use watchdog_client::validity::LONGEST_VALIDITY;
use watchdog_proto::probe::v1 as pb;
use watchdog_proto::probe::v1::lease_probe_service_server::{LeaseProbeService, LeaseProbeServiceServer};
use watchdog_proto::stream::v1::Scope;
use watchdog_watch_stream::message::Message;
use watchdog_watch_stream::server::StreamStore;
use watchdog_watch_stream::stream::{Responses, serve};
use watchdog_watch_stream::wire::{WatchResponse as _, duration};

pub use watchdog_proto::probe::v1::Outcome;

use crate::separate_runtime::SeparateRuntime;
use crate::wait::BOUND;

/// One replica, in a runtime of its own, so that its death cuts its connections.
#[derive(Debug)]
pub struct FakeProbe {
    address: SocketAddr,
    name: String,
    verdicts: StreamStore<String, FakeVerdict>,
    runtime: Option<SeparateRuntime>,
}

/// A verdict, with its age and validity at the time when it was set.
#[derive(Debug)]
struct FakeVerdict {
    verdict: pb::Verdict,
    said_at: Instant,
    age: Duration,
    valid_for: Duration,
}

// === impl FakeProbe ===

impl FakeProbe {
    /// Starts one with nothing to say.
    pub async fn start() -> anyhow::Result<Self> {
        Self::start_as("fake-probe").await
    }

    /// The same, with its name as an observer.
    pub async fn start_as(name: &str) -> anyhow::Result<Self> {
        let mut probe = Self {
            address: (Ipv4Addr::LOCALHOST, 0).into(),
            name: name.to_owned(),
            verdicts: StreamStore::new(),
            runtime: None,
        };
        probe.serve().await?;
        Ok(probe)
    }

    /// Where it listens, without TLS; the same after a restart.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Says the same about all these shoots at one instant.
    pub fn say<S: Into<String>>(&self, shoots: impl IntoIterator<Item = S>, outcome: Outcome) {
        for shoot in shoots {
            self.say_of(shoot, outcome, Duration::ZERO, LONGEST_VALIDITY);
        }
    }

    pub fn say_for(&self, shoot: &str, outcome: Outcome, valid_for: Duration) {
        self.say_of(shoot, outcome, Duration::ZERO, valid_for);
    }

    /// Sends an observation of this age as a new verdict.
    pub fn say_of(&self, shoot: impl Into<String>, outcome: Outcome, age: Duration, valid_for: Duration) {
        let shoot = shoot.into();
        let verdict = pb::Verdict {
            shoot: shoot.clone(),
            outcome: outcome.into(),
            message: "The test says so.".into(),
            observer: self.name.clone(),
            ..Default::default()
        };
        let verdict = FakeVerdict {
            verdict,
            said_at: Instant::now(),
            age,
            valid_for,
        };
        self.verdicts.upsert(shoot, verdict);
    }

    pub fn take_back(&self, shoot: &str) {
        self.verdicts.remove(&shoot.to_owned());
    }

    /// The process dies.
    pub fn kill(&mut self) {
        self.runtime = None;
    }

    /// The process is there again, on the same address, with nothing to say yet.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        self.restart_saying([""; 0], Outcome::Unspecified).await
    }

    /// The process is there again, and its first snapshot says the same of all these shoots: the coordinator learns of
    /// all of them at one instant.
    pub async fn restart_saying<S: Into<String>>(
        &mut self,
        shoots: impl IntoIterator<Item = S>,
        outcome: Outcome,
    ) -> anyhow::Result<()> {
        self.kill();
        self.verdicts = StreamStore::new();
        self.say(shoots, outcome);
        self.serve().await
    }

    async fn serve(&mut self) -> anyhow::Result<()> {
        let mut threads = Builder::new_multi_thread();
        threads.worker_threads(1);
        let runtime = SeparateRuntime::start(threads)?;
        let (address, verdicts) = (self.address, self.verdicts.clone());
        let serve = async move {
            let listener = listen(address).await?;
            let address = listener.local_addr()?;
            let service = VerdictService { verdicts };
            let server = Server::builder()
                .add_service(LeaseProbeServiceServer::new(service))
                .serve_with_incoming(TcpListenerStream::new(listener));
            tokio::spawn(async move {
                if let Err(error) = server.await {
                    eprintln!("the fake lease-probe failed: {error}");
                }
            });
            Ok(address)
        };
        self.address = runtime.run(serve).await?;
        self.runtime = Some(runtime);
        Ok(())
    }
}

/// The runtime of the one before ends in the background: its listener may hold the address a moment longer.
async fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let end = Instant::now() + BOUND;
    loop {
        match TcpListener::bind(address).await {
            Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < end => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            bound => return bound,
        }
    }
}

struct VerdictService {
    verdicts: StreamStore<String, FakeVerdict>,
}

/// With the ages of the moment at which it is sent.
fn encode(message: Message<String, Arc<FakeVerdict>>) -> pb::WatchVerdictsResponse {
    let event = message.event.map(|said| {
        let passed = said.said_at.elapsed();
        pb::Verdict {
            age: Some(duration(said.age + passed)),
            valid_for: Some(duration(said.valid_for.saturating_sub(passed))),
            ..said.verdict.clone()
        }
    });
    let position = message.position;
    pb::WatchVerdictsResponse::encode(Message { position, event })
}

#[tonic::async_trait]
impl LeaseProbeService for VerdictService {
    type WatchVerdictsStream = Responses<pb::WatchVerdictsResponse>;

    async fn watch_verdicts(
        &self,
        request: Request<pb::WatchVerdictsRequest>,
    ) -> Result<Response<Self::WatchVerdictsStream>, Status> {
        assert_eq!(
            request.get_ref().scope(),
            Scope::Replica,
            "every replica is asked for its own shoots"
        );
        let responses = serve(
            "WatchVerdicts",
            CancellationToken::new(),
            self.verdicts.subscribe(|_| true),
            |message| Ok(encode(message)),
        );
        responses.map(Response::new)
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

    async fn get_seed_summary(
        &self,
        _: Request<pb::GetSeedSummaryRequest>,
    ) -> Result<Response<pb::GetSeedSummaryResponse>, Status> {
        Err(Status::unimplemented("not asked for"))
    }

    async fn list_replicas(
        &self,
        _: Request<pb::ListReplicasRequest>,
    ) -> Result<Response<pb::ListReplicasResponse>, Status> {
        Err(Status::unimplemented("not asked for"))
    }
}
