//! How the three services stop: SIGTERM turns readiness off, ends streams with UNAVAILABLE, gives the Lease back at
//! once and ends within the grace period with exit code 0; a second signal ends at once.

use std::time::Duration;

use futures::future::try_join_all;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use tokio::time::Instant;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use watchdog_proto::probe::v1::WatchVerdictsRequest;
use watchdog_proto::probe::v1::lease_probe_service_client::LeaseProbeServiceClient;
use watchdog_proto::scaling::v1::WatchScalingRequest;
use watchdog_proto::scaling::v1::scaling_service_client::ScalingServiceClient;
use watchdog_proto::weeder::v1::WatchEndpointReadinessRequest;
use watchdog_proto::weeder::v1::weeder_service_client::WeederServiceClient;
use watchdog_test_support::fault_proxy::Behaviour;
use watchdog_test_support::history::LEADER_LEASE;
use watchdog_test_support::real::{FixtureOptions, RealFixture};
use watchdog_test_support::wait::{self, BOUND};
use watchdog_test_support::watchdog::{NAMESPACE, Service, ServiceKind};

/// `terminationGracePeriodSeconds` of a Pod, where nobody says otherwise.
const GRACE_PERIOD: Duration = Duration::from_secs(30);

/// The replicas of one kind: those that stop while the seed is as it should be, while it does not answer, and twice.
fn name(kind: ServiceKind, stop: &str) -> String {
    format!("{kind:?}-{stop}").to_lowercase()
}

/// Opens a stream, waits for its first message, and gives what ends it.
async fn stream(
    kind: ServiceKind,
    fixture: &RealFixture,
    service: &Service,
) -> anyhow::Result<tokio::task::JoinHandle<Option<tonic::Status>>> {
    async fn end<T>(mut stream: tonic::Streaming<T>) -> Option<tonic::Status> {
        loop {
            match stream.message().await {
                Ok(Some(_)) => {}
                Ok(None) => return None,
                Err(status) => return Some(status),
            }
        }
    }
    let channel = fixture.setup.channel(service)?;
    Ok(match kind {
        ServiceKind::LeaseProbe => {
            let request = WatchVerdictsRequest::default();
            let mut client = LeaseProbeServiceClient::new(channel);
            let mut stream = client.watch_verdicts(request).await?.into_inner();
            stream.message().await?;
            tokio::spawn(end(stream))
        }
        ServiceKind::Coordinator => {
            let mut client = ScalingServiceClient::new(channel);
            let request = WatchScalingRequest::default();
            let mut stream = client.watch_scaling(request).await?.into_inner();
            stream.message().await?;
            tokio::spawn(end(stream))
        }
        ServiceKind::Weeder => {
            let mut client = WeederServiceClient::new(channel);
            let request = WatchEndpointReadinessRequest::default();
            let mut stream = client.watch_endpoint_readiness(request).await?.into_inner();
            stream.message().await?;
            tokio::spawn(end(stream))
        }
    })
}

/// The replica that holds its membership Lease, or that of the leader; none once that is given back.
async fn holder(fixture: &RealFixture, kind: ServiceKind, identity: &str) -> anyhow::Result<Option<String>> {
    let name = match kind {
        ServiceKind::LeaseProbe => format!("dependency-watchdog-lease-probe-{identity}"),
        ServiceKind::Coordinator => LEADER_LEASE.to_owned(),
        ServiceKind::Weeder => "weeder-leader".to_owned(),
    };
    let leases: Api<Lease> = Api::namespaced(fixture.seed.client(), NAMESPACE);
    let spec = leases.get_opt(&name).await?.and_then(|lease| lease.spec);
    let holder = spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
    // That of a leader ends with a number of its process.
    let name = holder.split('_').next().unwrap_or_default();
    Ok((!name.is_empty()).then(|| name.to_owned()))
}

async fn health(fixture: &RealFixture, service: &Service) -> anyhow::Result<ServingStatus> {
    let mut client = HealthClient::new(fixture.setup.channel(service)?);
    Ok(client
        .check(HealthCheckRequest::default())
        .await?
        .into_inner()
        .status())
}

/// Waits until a replica has its Lease: what it gives back at its drain.
async fn until_it_has_its_lease(fixture: &RealFixture, kind: ServiceKind, name: &str) -> anyhow::Result<()> {
    wait::until_true("it has the Lease", BOUND, || async {
        Ok(holder(fixture, kind, name).await?.as_deref() == Some(name))
    })
    .await
}

/// Its drain, while the seed is as it should be.
async fn stops(fixture: &RealFixture, kind: ServiceKind) -> anyhow::Result<()> {
    let name = name(kind, "stops");
    let service = fixture.start_replica(kind, &name).await?;
    anyhow::ensure!(health(fixture, &service).await? == ServingStatus::Serving);
    until_it_has_its_lease(fixture, kind, &name).await?;
    // The Lease is seen a moment before its holder knows that it leads.
    let stream = wait::until("it streams", BOUND, || async {
        stream(kind, fixture, &service).await.map(Some)
    })
    .await?;

    let begin = Instant::now();
    service.process.sigterm()?;
    let status = tokio::time::timeout(BOUND, stream).await??;
    let status = anyhow::Context::context(status, "the stream ended as if it were complete")?;
    anyhow::ensure!(status.code() == Code::Unavailable, "{status:?}");
    // A leader that stops also tells that it leads no more, whichever comes first.
    let told = status.message().contains("stopping")
        || (kind != ServiceKind::LeaseProbe && status.message().contains("another replica leads"));
    anyhow::ensure!(told, "{status:?}");
    let exit = service.process.wait_exit(BOUND).await?;
    eprintln!("{name} stopped after {:?}", begin.elapsed());
    anyhow::ensure!(exit.code() == Some(0), "{exit}");
    anyhow::ensure!(
        holder(fixture, kind, &name).await?.is_none(),
        "its Lease was not released"
    );
    let given_back = match kind {
        ServiceKind::LeaseProbe => "the membership Lease is deleted",
        ServiceKind::Coordinator | ServiceKind::Weeder => "the Lease is released",
    };
    for line in ["the process is draining", given_back, "the process has stopped"] {
        service.process.wait_for_text(&format!("{line:?}"), BOUND).await?;
    }
    Ok(())
}

/// The seed does not answer: the Lease cannot be released, which is what holds up the drain.
async fn is_held_up(fixture: &RealFixture, kind: ServiceKind) -> anyhow::Result<()> {
    let (name, to_seed) = (name(kind, "held"), fixture.proxy_to_seed().await?);
    let service = fixture.start_behind(Some(&to_seed), kind, &name).await?;
    until_it_has_its_lease(fixture, kind, &name).await?;
    to_seed.set(Behaviour::Silent);
    let begin = Instant::now();
    service.process.sigterm()?;
    // Readiness is the first to go, so that nobody is sent to it any more.
    wait::until("it is not ready", BOUND, || async {
        let (code, body) = service.admin_get("/readyz").await?;
        anyhow::ensure!(body.contains("draining"), "{code} {body}");
        Ok((code == 503).then_some(()))
    })
    .await?;
    let exit = service.process.wait_exit(BOUND).await?;
    // The machine may be busy, so this is only printed: the bound that counts is that of the process itself.
    eprintln!("{name} stopped after {:?}, of {GRACE_PERIOD:?}", begin.elapsed());
    anyhow::ensure!(exit.code() == Some(0), "{exit}");
    Ok(())
}

async fn a_second_signal_ends(fixture: &RealFixture, kind: ServiceKind) -> anyhow::Result<()> {
    let (name, to_seed) = (name(kind, "twice"), fixture.proxy_to_seed().await?);
    let service = fixture.start_behind(Some(&to_seed), kind, &name).await?;
    until_it_has_its_lease(fixture, kind, &name).await?;
    to_seed.set(Behaviour::Silent);
    service.process.sigterm()?;
    service
        .process
        .wait_for_text("the process is draining", BOUND)
        .await?;
    service.process.sigint()?;
    let exit = service.process.wait_exit(BOUND).await?;
    anyhow::ensure!(exit.code() == Some(1), "{exit}");
    service
        .process
        .wait_for_text("received a second signal while draining", BOUND)
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn at_once_when_held_up_and_when_it_is_asked_twice() {
    let users = ServiceKind::ALL.into_iter();
    let users = users.flat_map(|kind| ["stops", "held", "twice"].map(|stop| name(kind, stop)));
    let users: Vec<_> = users.collect();
    let users: Vec<_> = users.iter().map(String::as_str).collect();
    let fixture = RealFixture::start(FixtureOptions::new("drain", &[]).users(&users));
    let fixture = fixture.await.unwrap();
    // A replica of lease-probe that goes on: without verdicts no coordinator is ready.
    let _lease_probe = fixture
        .start_replica(ServiceKind::LeaseProbe, "lease-probe-0")
        .await
        .unwrap();
    try_join_all(ServiceKind::ALL.map(|kind| stops(&fixture, kind)))
        .await
        .unwrap();
    try_join_all(ServiceKind::ALL.map(|kind| is_held_up(&fixture, kind)))
        .await
        .unwrap();
    try_join_all(ServiceKind::ALL.map(|kind| a_second_signal_ends(&fixture, kind)))
        .await
        .unwrap();
}
