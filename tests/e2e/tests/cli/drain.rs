//! How the three services stop: SIGTERM turns readiness off, ends streams with UNAVAILABLE, gives the Lease back at
//! once and ends within the grace period with exit code 0; a second signal ends at once.

use std::time::Duration;

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
use watchdog_sandbox::{Fault, FaultAction};
use watchdog_test_support::history::LEADER_LEASE;
use watchdog_test_support::sandboxed::{SandboxFixture, ServiceKind};
use watchdog_test_support::wait::{self, BOUND};
use watchdog_test_support::watchdog::{NAMESPACE, Service};

/// `terminationGracePeriodSeconds` of a Pod, where nobody says otherwise.
const GRACE_PERIOD: Duration = Duration::from_secs(30);

/// A seed with a replica of lease-probe that goes on: without verdicts no coordinator is ready.
async fn seed(name: &str) -> (SandboxFixture, Service) {
    let fixture = SandboxFixture::start(name, &["one"]).await.unwrap();
    let lease_probe = fixture.lease_probe().await.unwrap();
    (fixture, lease_probe)
}

/// Opens a stream, waits for its first message, and gives what ends it.
async fn stream(
    kind: ServiceKind,
    fixture: &SandboxFixture,
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
async fn holder(
    fixture: &SandboxFixture,
    kind: ServiceKind,
    identity: &str,
) -> anyhow::Result<Option<String>> {
    let name = match kind {
        ServiceKind::LeaseProbe => format!("dependency-watchdog-lease-probe-{identity}"),
        ServiceKind::Coordinator => LEADER_LEASE.to_owned(),
        ServiceKind::Weeder => "weeder-leader".to_owned(),
    };
    let leases: Api<Lease> = Api::namespaced(fixture.seed.clone(), NAMESPACE);
    let spec = leases.get_opt(&name).await?.and_then(|lease| lease.spec);
    let holder = spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
    // That of a leader ends with a number of its process.
    let name = holder.split('_').next().unwrap_or_default();
    Ok((!name.is_empty()).then(|| name.to_owned()))
}

async fn health(fixture: &SandboxFixture, service: &Service) -> anyhow::Result<ServingStatus> {
    let mut client = HealthClient::new(fixture.setup.channel(service)?);
    Ok(client
        .check(HealthCheckRequest::default())
        .await?
        .into_inner()
        .status())
}

/// Waits until a replica has its Lease: what it gives back at its drain.
async fn until_it_has_its_lease(
    fixture: &SandboxFixture,
    kind: ServiceKind,
    name: &str,
) -> anyhow::Result<()> {
    wait::until_true("it has the Lease", BOUND, || async {
        Ok(holder(fixture, kind, name).await?.as_deref() == Some(name))
    })
    .await
}

/// Its drain, while the seed is as it should be.
async fn stops(fixture: &SandboxFixture, kind: ServiceKind) -> anyhow::Result<()> {
    let name = format!("{kind:?}").to_lowercase();
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

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_ends_streams_releases_the_lease_and_exits_cleanly() {
    let (fixture, _lease_probe) = seed("drain").await;
    tokio::try_join!(
        stops(&fixture, ServiceKind::LeaseProbe),
        stops(&fixture, ServiceKind::Coordinator),
        stops(&fixture, ServiceKind::Weeder)
    )
    .unwrap();
}

/// The seed does not answer: the Lease cannot be released, which is what holds up the drain.
#[tokio::test(flavor = "multi_thread")]
async fn a_drain_that_is_held_up_ends_within_the_grace_period() {
    let (fixture, _lease_probe) = seed("drain-held").await;
    let drained = ServiceKind::ALL.into_iter().map(async |kind| {
        let name = format!("{kind:?}").to_lowercase();
        let service = fixture.start_replica(kind, &name).await?;
        until_it_has_its_lease(&fixture, kind, &name).await?;
        fixture
            .sandbox
            .seed()
            .inject(Fault::always(FaultAction::Hang).user(&name));
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
        anyhow::Ok(())
    });
    futures::future::try_join_all(drained).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_at_once() {
    let (fixture, _lease_probe) = seed("drain-twice").await;
    let ended = ServiceKind::ALL.into_iter().map(async |kind| {
        let name = format!("{kind:?}").to_lowercase();
        let service = fixture.start_replica(kind, &name).await?;
        until_it_has_its_lease(&fixture, kind, &name).await?;
        fixture
            .sandbox
            .seed()
            .inject(Fault::always(FaultAction::Hang).user(&name));
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
            .await?;
        anyhow::Ok(())
    });
    futures::future::try_join_all(ended).await.unwrap();
}
