//! All gRPC services on one port. Lists are filtered and cut into pages as the programs do.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use watchdog_client::item::StreamItem as _;
use watchdog_client::message::{COMPLETE, Event, Message};
use watchdog_client::wire::{ItemPage, WatchResponse};
use watchdog_proto::probe::v1::lease_probe_service_server::{LeaseProbeService, LeaseProbeServiceServer};
use watchdog_proto::probe::v1::*;
use watchdog_proto::scaling::v1::scaling_service_server::{ScalingService, ScalingServiceServer};
use watchdog_proto::scaling::v1::*;
use watchdog_proto::stream::v1::{Completeness, Position};
use watchdog_proto::weeder::v1::weeder_service_server::{WeederService, WeederServiceServer};
use watchdog_proto::weeder::v1::*;
// Each has a summary of the seed.
use watchdog_proto::{probe::v1 as probe, scaling::v1 as scaling, weeder::v1 as weeder};

/// Items of a page at most, whatever a request asks for.
const PAGE: usize = 2;

/// The answers of the services.
#[derive(Default)]
pub(crate) struct Answers {
    pub(crate) verdicts: Vec<Verdict>,
    pub(crate) scalings: Vec<ShootScaling>,
    pub(crate) plan: PlanScalingResponse,
    pub(crate) weeders: Vec<Weeder>,
    pub(crate) services: Vec<EndpointReadiness>,
    pub(crate) replicas: Vec<Replica>,
    /// The replicas that no answer has the items of.
    pub(crate) missing: Vec<String>,
    /// Every call but those of health fails with it.
    pub(crate) refusal: Option<Status>,
    pub(crate) is_not_serving: bool,
    /// The metadata of health.
    pub(crate) metadata: Vec<(&'static str, String)>,
}

#[derive(Clone, Default)]
pub(crate) struct StubServices {
    answers: Arc<Mutex<Answers>>,
    /// Wakes the streams.
    changed: Arc<watch::Sender<()>>,
    /// Verdicts and scaling states that were sent.
    sent: Arc<AtomicUsize>,
}

/// Serves until it is dropped.
pub(crate) struct StubServer {
    pub(crate) address: String,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

impl StubServices {
    pub(crate) fn new(answers: Answers) -> Self {
        Self {
            answers: Arc::new(Mutex::new(answers)),
            ..Self::default()
        }
    }

    pub(crate) fn answers(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().unwrap()
    }

    /// Changes the answers. Open streams send all their items again, or end if calls are refused now.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Answers)) {
        change(&mut self.answers());
        self.changed.send_replace(());
    }

    /// A stream: a snapshot, and then the items again after every change.
    fn live<R: WatchResponse>(
        &self,
        items: fn(&Answers) -> Vec<R::Item>,
    ) -> Result<Response<BoxStream<'static, Result<R, Status>>>, Status> {
        let message = |event| {
            let position = position().unwrap_or_default();
            R::encode(Message { position, event })
        };
        let upserts = move |answers: &Answers| -> Vec<R> {
            let items = items(answers).into_iter();
            let upsert = |item: R::Item| message(Event::Upsert(item.key().unwrap(), item));
            items.map(upsert).collect()
        };
        let (mut snapshot, completeness) = {
            let answers = self.allowed()?;
            (upserts(&answers), answers.completeness().unwrap())
        };
        self.count(snapshot.len());
        snapshot.push(message(Event::SnapshotComplete {
            items: snapshot.len() as u64,
            completeness,
        }));
        let later = stream::unfold(
            (self.clone(), self.changed.subscribe()),
            move |(this, mut changed)| async move {
                // It holds the sender itself.
                changed.changed().await.unwrap();
                let messages = match this.allowed() {
                    Ok(answers) => upserts(&answers).into_iter().map(Ok).collect(),
                    Err(status) => vec![Err(status)],
                };
                Some((stream::iter(messages), (this, changed)))
            },
        );
        let snapshot = stream::iter(snapshot.into_iter().map(Ok));
        Ok(Response::new(snapshot.chain(later.flatten()).boxed()))
    }

    pub(crate) async fn serve(&self) -> StubServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = tonic::transport::Server::builder()
            .add_service(LeaseProbeServiceServer::new(self.clone()))
            .add_service(ScalingServiceServer::new(self.clone()))
            .add_service(WeederServiceServer::new(self.clone()))
            .add_service(HealthServer::new(self.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener));
        let task = tokio::spawn(async move { server.await.unwrap() });
        StubServer {
            address,
            _tasks: vec![AbortOnDropHandle::new(task)],
        }
    }

    /// Behind TLS, which is relayed to a plaintext server.
    pub(crate) async fn serve_tls(&self, config: Arc<ServerConfig>) -> StubServer {
        let mut server = self.serve().await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let plaintext = std::mem::replace(&mut server.address, listener.local_addr().unwrap().to_string());
        let acceptor = TlsAcceptor::from(config);
        let task = tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                let (acceptor, plaintext) = (acceptor.clone(), plaintext.clone());
                tokio::spawn(async move {
                    match acceptor.accept(connection).into_fallible().await {
                        Ok(mut near) => {
                            let mut far = TcpStream::connect(plaintext).await.unwrap();
                            let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                        }
                        // What the client still sends is read, so that no reset overtakes the alert.
                        Err((_, mut near)) => {
                            let _ = tokio::io::copy(&mut near, &mut tokio::io::sink()).await;
                        }
                    }
                });
            }
        });
        server._tasks.push(AbortOnDropHandle::new(task));
        server
    }

    /// The number of verdicts and scaling states that were sent.
    pub(crate) fn sent(&self) -> usize {
        self.sent.load(Ordering::Relaxed)
    }

    fn count(&self, items: usize) {
        self.sent.fetch_add(items, Ordering::Relaxed);
    }

    /// The answers, unless calls are refused.
    fn allowed(&self) -> Result<MutexGuard<'_, Answers>, Status> {
        let answers = self.answers();
        answers.refusal.clone().map_or(Ok(answers), Err)
    }
}

impl Answers {
    fn completeness(&self) -> Option<Completeness> {
        Some(Completeness {
            complete: self.missing.is_empty(),
            missing_replicas: self.missing.clone(),
        })
    }

    /// A page of the items that a filter lets through. The replicas that are missing answer before the second page.
    fn page<T: Clone>(
        &self,
        items: &[T],
        size: i32,
        token: &str,
        filter: impl Fn(&&T) -> bool,
    ) -> ItemPage<T> {
        let found: Vec<T> = items.iter().filter(filter).cloned().collect();
        let start = token.parse().unwrap_or(0);
        let end = found.len().min(start + PAGE.min(usize::try_from(size).unwrap()));
        let next_page_token = if end < found.len() {
            end.to_string()
        } else {
            String::new()
        };
        ItemPage {
            items: found[start..end].to_vec(),
            next_page_token,
            total_size: i32::try_from(found.len()).unwrap(),
            position: position(),
            completeness: if start == 0 {
                self.completeness()
            } else {
                Some(COMPLETE)
            },
        }
    }
}

fn position() -> Option<Position> {
    Some(Position {
        epoch: "epoch".to_owned(),
        revision: 1,
        uptime: Some(prost_types::Duration::default()),
        item_age: Some(prost_types::Duration::default()),
    })
}

fn number<T>(items: &[T]) -> u32 {
    u32::try_from(items.len()).unwrap()
}

/// True if a filter is empty or names it.
fn is_among<T: PartialEq>(filter: &[T], value: &T) -> bool {
    filter.is_empty() || filter.contains(value)
}

fn not_found() -> Status {
    Status::not_found("the seed has no such shoot")
}

#[tonic::async_trait]
impl LeaseProbeService for StubServices {
    type WatchVerdictsStream = BoxStream<'static, Result<WatchVerdictsResponse, Status>>;

    async fn watch_verdicts(
        &self,
        _: Request<WatchVerdictsRequest>,
    ) -> Result<Response<Self::WatchVerdictsStream>, Status> {
        self.live(|answers| answers.verdicts.clone())
    }

    async fn get_verdict(
        &self,
        request: Request<GetVerdictRequest>,
    ) -> Result<Response<GetVerdictResponse>, Status> {
        let (answers, shoot) = (self.allowed()?, request.into_inner().shoot);
        let found = answers.verdicts.iter().find(|one| one.shoot == shoot);
        self.count(1);
        Ok(Response::new(GetVerdictResponse {
            verdict: Some(found.ok_or_else(not_found)?.clone()),
            completeness: answers.completeness(),
            ..Default::default()
        }))
    }

    async fn list_verdicts(
        &self,
        request: Request<ListVerdictsRequest>,
    ) -> Result<Response<ListVerdictsResponse>, Status> {
        let (answers, asked) = (self.allowed()?, request.into_inner());
        let filter = |one: &&Verdict| is_among(&asked.outcomes, &one.outcome);
        let page = answers.page(&answers.verdicts, asked.page_size, &asked.page_token, filter);
        self.count(page.items.len());
        Ok(Response::new(page.into()))
    }

    async fn get_seed_summary(
        &self,
        _: Request<probe::GetSeedSummaryRequest>,
    ) -> Result<Response<probe::GetSeedSummaryResponse>, Status> {
        let answers = self.allowed()?;
        let mut outcomes: BTreeMap<i32, u32> = BTreeMap::new();
        for verdict in &answers.verdicts {
            *outcomes.entry(verdict.outcome).or_default() += 1;
        }
        let outcomes = outcomes.into_iter();
        let summary = probe::SeedSummary {
            shoots: number(&answers.verdicts),
            outcomes: outcomes
                .map(|(outcome, shoots)| OutcomeCount { outcome, shoots })
                .collect(),
            ..probe::SeedSummary::default()
        };
        Ok(Response::new(probe::GetSeedSummaryResponse {
            summary: Some(summary),
            position: position(),
            completeness: answers.completeness(),
        }))
    }

    async fn list_replicas(
        &self,
        request: Request<ListReplicasRequest>,
    ) -> Result<Response<ListReplicasResponse>, Status> {
        let (answers, asked) = (self.allowed()?, request.into_inner());
        let page = answers.page(&answers.replicas, asked.page_size, &asked.page_token, |_| true);
        Ok(Response::new(page.into()))
    }
}

#[tonic::async_trait]
impl ScalingService for StubServices {
    type WatchScalingStream = BoxStream<'static, Result<WatchScalingResponse, Status>>;

    async fn watch_scaling(
        &self,
        _: Request<WatchScalingRequest>,
    ) -> Result<Response<Self::WatchScalingStream>, Status> {
        self.live(|answers| answers.scalings.clone())
    }

    async fn get_scaling(
        &self,
        request: Request<GetScalingRequest>,
    ) -> Result<Response<GetScalingResponse>, Status> {
        let (answers, shoot) = (self.allowed()?, request.into_inner().shoot);
        let found = answers.scalings.iter().find(|one| one.shoot == shoot);
        self.count(1);
        Ok(Response::new(GetScalingResponse {
            scaling: Some(found.ok_or_else(not_found)?.clone()),
            completeness: answers.completeness(),
            ..Default::default()
        }))
    }

    async fn list_scaling(
        &self,
        request: Request<ListScalingRequest>,
    ) -> Result<Response<ListScalingResponse>, Status> {
        let (answers, asked) = (self.allowed()?, request.into_inner());
        let filter = |one: &&ShootScaling| {
            is_among(&asked.directions, &one.direction)
                && is_among(&asked.states, &one.state)
                && is_among(&asked.modes, &one.mode)
                && { asked.meltdown_protection_active }
                    .is_none_or(|active| active == one.meltdown_protection_active)
        };
        let page = answers.page(&answers.scalings, asked.page_size, &asked.page_token, filter);
        self.count(page.items.len());
        Ok(Response::new(page.into()))
    }

    async fn plan_scaling(
        &self,
        _: Request<PlanScalingRequest>,
    ) -> Result<Response<PlanScalingResponse>, Status> {
        Ok(Response::new(self.allowed()?.plan.clone()))
    }

    async fn get_seed_summary(
        &self,
        _: Request<scaling::GetSeedSummaryRequest>,
    ) -> Result<Response<scaling::GetSeedSummaryResponse>, Status> {
        let answers = self.allowed()?;
        let summary = scaling::SeedSummary {
            shoots: number(&answers.scalings),
            leader: "scaling-coordinator-0".to_owned(),
            ..scaling::SeedSummary::default()
        };
        Ok(Response::new(scaling::GetSeedSummaryResponse {
            summary: Some(summary),
            position: position(),
            completeness: answers.completeness(),
        }))
    }
}

/// True if the key of a service is of this namespace and name, each unless it is empty.
fn is_service(key: Option<&ServiceKey>, namespace: &str, service: &str) -> bool {
    let key = key.unwrap();
    (namespace.is_empty() || key.namespace == namespace) && (service.is_empty() || key.service == service)
}

#[tonic::async_trait]
impl WeederService for StubServices {
    type WatchEndpointReadinessStream = BoxStream<'static, Result<WatchEndpointReadinessResponse, Status>>;
    type WatchWeedersStream = BoxStream<'static, Result<WatchWeedersResponse, Status>>;

    async fn watch_endpoint_readiness(
        &self,
        _: Request<WatchEndpointReadinessRequest>,
    ) -> Result<Response<Self::WatchEndpointReadinessStream>, Status> {
        Err(Status::unimplemented("no command asks for it"))
    }

    async fn get_endpoint_readiness(
        &self,
        _: Request<GetEndpointReadinessRequest>,
    ) -> Result<Response<GetEndpointReadinessResponse>, Status> {
        Err(Status::unimplemented("no command asks for it"))
    }

    async fn get_seed_summary(
        &self,
        _: Request<weeder::GetSeedSummaryRequest>,
    ) -> Result<Response<weeder::GetSeedSummaryResponse>, Status> {
        let answers = self.allowed()?;
        let summary = weeder::SeedSummary {
            services: number(&answers.services),
            leader: "weeder-0".to_owned(),
            ..weeder::SeedSummary::default()
        };
        Ok(Response::new(weeder::GetSeedSummaryResponse {
            summary: Some(summary),
            position: position(),
            completeness: answers.completeness(),
        }))
    }

    async fn list_endpoint_readiness(
        &self,
        request: Request<ListEndpointReadinessRequest>,
    ) -> Result<Response<ListEndpointReadinessResponse>, Status> {
        let (answers, asked) = (self.allowed()?, request.into_inner());
        let filter =
            |one: &&EndpointReadiness| is_service(one.key.as_ref(), &asked.namespace, &asked.service);
        let page = answers.page(&answers.services, asked.page_size, &asked.page_token, filter);
        Ok(Response::new(page.into()))
    }

    async fn watch_weeders(
        &self,
        _: Request<WatchWeedersRequest>,
    ) -> Result<Response<Self::WatchWeedersStream>, Status> {
        self.live(|answers| answers.weeders.clone())
    }

    async fn get_weeder(&self, _: Request<GetWeederRequest>) -> Result<Response<GetWeederResponse>, Status> {
        Err(Status::unimplemented("no command asks for it"))
    }

    async fn list_weeders(
        &self,
        request: Request<ListWeedersRequest>,
    ) -> Result<Response<ListWeedersResponse>, Status> {
        let (answers, asked) = (self.allowed()?, request.into_inner());
        let filter = |one: &&Weeder| is_service(one.key.as_ref(), &asked.namespace, &asked.service);
        let page = answers.page(&answers.weeders, asked.page_size, &asked.page_token, filter);
        Ok(Response::new(page.into()))
    }
}

#[tonic::async_trait]
impl Health for StubServices {
    type WatchStream = BoxStream<'static, Result<HealthCheckResponse, Status>>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        assert!(request.get_ref().service.starts_with("gardener.watchdog."));
        let answers = self.answers();
        let status = if answers.is_not_serving {
            ServingStatus::NotServing
        } else {
            ServingStatus::Serving
        };
        let mut response = Response::new(HealthCheckResponse {
            status: status.into(),
        });
        for (name, value) in &answers.metadata {
            response.metadata_mut().append(*name, value.parse().unwrap());
        }
        Ok(response)
    }

    async fn watch(&self, _: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented("no command asks for it"))
    }
}
