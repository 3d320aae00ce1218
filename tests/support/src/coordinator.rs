//! A lease-probe that says what the test tells it to say, and a coordinator that listens to it, as a process.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures::Stream;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::DeleteParams;
use kube::{Api, Client};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use watchdog_proto::feed::v1 as feed;
use watchdog_proto::probe::v1 as pb;
use watchdog_proto::probe::v1::lease_probe_service_server::{LeaseProbeService, LeaseProbeServiceServer};
use watchdog_proto::probe::v1::watch_verdicts_response::Event;
use watchdog_proto::scaling::v1 as scaling;
use watchdog_proto::scaling::v1::scaling_service_client::ScalingServiceClient;

pub use watchdog_proto::probe::v1::Outcome;

use crate::binaries;
use crate::process::ChildProcess;
use crate::scratch::Scratch;
use crate::wait::{self, BOUND};
use crate::watchdog::{self, LISTENING};

/// Longer than any test.
const VALID_SECONDS: i64 = 600;

/// As often as lease-probe itself, or more often.
const HEARTBEAT: Duration = Duration::from_secs(1);

type Verdicts = BTreeMap<String, Outcome>;

/// A replica of lease-probe whose verdicts the test sets.
#[derive(Debug)]
pub struct FakeProbe {
    address: SocketAddr,
    verdicts: watch::Sender<Verdicts>,
    _server: AbortOnDropHandle<()>,
}

// === impl FakeProbe ===

impl FakeProbe {
    /// Starts one with nothing to say.
    ///
    /// # Errors
    /// When no port is free.
    pub async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let verdicts = watch::Sender::new(Verdicts::new());
        let service = LeaseProbeServiceServer::new(VerdictService {
            verdicts: verdicts.clone(),
            epoch: rand::random::<u64>().to_string(),
            started: Instant::now(),
        });
        let server = Server::builder()
            .add_service(service)
            .serve_with_incoming(TcpListenerStream::new(listener));
        let server = tokio::spawn(async move {
            if let Err(error) = server.await {
                eprintln!("the fake lease-probe failed: {error}");
            }
        });
        Ok(Self {
            address,
            verdicts,
            _server: AbortOnDropHandle::new(server),
        })
    }

    /// Where it listens, without TLS.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Says the same about all these shoots at one instant.
    pub fn say<'a>(&self, shoots: impl IntoIterator<Item = &'a str>, outcome: Outcome) {
        self.verdicts.send_modify(|verdicts| {
            verdicts.extend(shoots.into_iter().map(|shoot| (shoot.to_owned(), outcome)));
        });
    }
}

struct VerdictService {
    verdicts: watch::Sender<Verdicts>,
    epoch: String,
    started: Instant,
}

fn verdict(shoot: &str, outcome: Outcome) -> pb::Verdict {
    let mut verdict = pb::Verdict {
        shoot: shoot.to_owned(),
        outcome: outcome.into(),
        message: "The test says so.".into(),
        age: Some(Default::default()),
        observer: "fake-probe".into(),
        ..Default::default()
    };
    verdict.valid_for.get_or_insert_default().seconds = VALID_SECONDS;
    verdict
}

/// Sends the snapshot, then every change, until the consumer is gone.
async fn serve(
    mut verdicts: watch::Receiver<Verdicts>,
    epoch: String,
    started: Instant,
    out: mpsc::Sender<Result<pb::WatchVerdictsResponse, Status>>,
) {
    let (mut sent, mut revision, mut complete) = (Verdicts::new(), 0_u64, false);
    loop {
        let now = verdicts.borrow_and_update().clone();
        let changed = now
            .iter()
            .filter(|(shoot, outcome)| sent.get(*shoot) != Some(outcome));
        let mut events: Vec<_> = changed
            .map(|(shoot, outcome)| Event::Upsert(verdict(shoot, *outcome)))
            .collect();
        if !std::mem::replace(&mut complete, true) {
            events.push(Event::SnapshotComplete(feed::SnapshotComplete {
                items: now.len() as u64,
                completeness: None,
            }));
        } else if events.is_empty() {
            events.push(Event::Heartbeat(feed::Heartbeat::default()));
        }
        for event in events {
            revision += u64::from(matches!(event, Event::Upsert(_)));
            let mut position = feed::Position {
                epoch: epoch.clone(),
                revision,
                uptime: None,
                item_age: None,
            };
            let (uptime, passed) = (position.uptime.get_or_insert_default(), started.elapsed());
            uptime.seconds = i64::try_from(passed.as_secs()).unwrap_or_default();
            uptime.nanos = i32::try_from(passed.subsec_nanos()).unwrap_or_default();
            let message = pb::WatchVerdictsResponse {
                position: Some(position),
                event: Some(event),
            };
            if out.send(Ok(message)).await.is_err() {
                return;
            }
        }
        sent = now;
        if let Ok(Err(_)) = tokio::time::timeout(HEARTBEAT, verdicts.changed()).await {
            return;
        }
    }
}

#[tonic::async_trait]
impl LeaseProbeService for VerdictService {
    type WatchVerdictsStream = Pin<Box<dyn Stream<Item = Result<pb::WatchVerdictsResponse, Status>> + Send>>;

    async fn watch_verdicts(
        &self,
        _: Request<pb::WatchVerdictsRequest>,
    ) -> Result<Response<Self::WatchVerdictsStream>, Status> {
        let (out, stream) = mpsc::channel(64);
        tokio::spawn(serve(
            self.verdicts.subscribe(),
            self.epoch.clone(),
            self.started,
            out,
        ));
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
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

/// A running coordinator that listens to a [`FakeProbe`]. Killed when dropped.
#[derive(Debug)]
pub struct Coordinator {
    pub process: ChildProcess,
    /// Its API.
    pub client: ScalingServiceClient<tonic::transport::Channel>,
}

impl Coordinator {
    /// Starts one and waits until it listens.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn start(
        scratch: &Arc<Scratch>,
        config: &Path,
        kubeconfig: &str,
        probe: &FakeProbe,
    ) -> anyhow::Result<Self> {
        let name = "coordinator-0";
        let process = watchdog::command(scratch, binaries::SCALING_COORDINATOR, name, kubeconfig, config)?
            .args(["--insecure-plaintext", "--lease-probe"])
            .arg(probe.address.to_string())
            .spawn(scratch)?;
        let grpc = process.wait_for_field(LISTENING, "grpc_addr", BOUND).await?;
        let channel = tonic::transport::Channel::from_shared(format!("http://{grpc}"))?.connect_lazy();
        Ok(Self {
            process,
            client: ScalingServiceClient::new(channel),
        })
    }

    /// The state of a shoot.
    ///
    /// # Errors
    /// When it does not answer, or does not know the shoot.
    pub async fn get(&self, shoot: &str) -> anyhow::Result<scaling::ShootScaling> {
        let request = scaling::GetScalingRequest {
            shoot: shoot.to_owned(),
        };
        let answer = self.client.clone().get_scaling(request).await?.into_inner();
        answer.scaling.context("an answer without a state")
    }

    /// Waits until a direction is settled.
    ///
    /// # Errors
    /// When it is not within the bound.
    pub async fn until_settled(
        &self,
        shoot: &str,
        direction: scaling::Direction,
        bound: Duration,
    ) -> anyhow::Result<()> {
        wait::until(&format!("{shoot} is settled {direction:?}"), bound, || async {
            let state = self.get(shoot).await?;
            let settled = state.direction() == direction && state.state() == scaling::FlowState::Settled;
            anyhow::ensure!(
                settled,
                "it is {:?} {:?}: {}",
                state.direction(),
                state.state(),
                state.reason
            );
            Ok(Some(()))
        })
        .await
    }
}

/// Removes what a killed coordinator left behind, as nothing else would for 18 s. Nobody else may run.
///
/// # Errors
/// When the seed does not answer.
pub async fn forget_leases(seed: &Client) -> anyhow::Result<()> {
    let leases: Api<Lease> = Api::namespaced(seed.clone(), "garden");
    for lease in leases.list(&Default::default()).await? {
        if let Some(name) = lease.metadata.name {
            leases.delete(&name, &DeleteParams::default()).await?;
        }
    }
    Ok(())
}
