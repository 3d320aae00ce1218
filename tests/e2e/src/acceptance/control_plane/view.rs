//! The weeder's view of the Services: a pod that crashes a second after its Service went down must not crash before
//! the weeder could know.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;
use watchdog_proto::weeder::v1::watch_endpoint_readiness_response::Event;
use watchdog_proto::weeder::v1::weeder_service_client::WeederServiceClient;
use watchdog_proto::weeder::v1::{EndpointReadiness, Readiness, WatchEndpointReadinessRequest};

use crate::acceptance::seed::Seed;
use watchdog_test_support::restartable_service::RestartableService;
use watchdog_test_support::wait::BOUND;
use watchdog_test_support::watchdog::Setup;

/// After a broken stream.
const RETRY: Duration = Duration::from_millis(100);

/// Endpoints that are ready, by namespace and Service.
type Ready = BTreeMap<(String, String), usize>;

/// Follows the weeder while it lives.
pub(super) struct ReadinessView {
    ready: watch::Receiver<Ready>,
    _task: AbortOnDropHandle<()>,
}

// === impl ReadinessView ===

impl ReadinessView {
    pub(super) fn follow(seed: &Seed) -> Self {
        let (setup, weeder) = (seed.setup.clone(), seed.weeder.clone());
        let (sender, ready) = watch::channel(Ready::new());
        let task = tokio::spawn(async move {
            loop {
                // What was missed is in the next snapshot.
                let _ = stream(&setup, &weeder, &sender).await;
                tokio::time::sleep(RETRY).await;
            }
        });
        Self {
            ready,
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// Waits until the weeder knows of this many ready endpoints.
    pub(super) async fn knows(
        self: &Arc<Self>,
        namespace: &str,
        service: &str,
        ready: usize,
    ) -> anyhow::Result<()> {
        let key = (namespace.to_owned(), service.to_owned());
        let mut changes = self.ready.clone();
        let known = changes.wait_for(|all| all.get(&key) == Some(&ready));
        let known = timeout(BOUND, known).await;
        known.with_context(|| {
            format!("the weeder does not see {ready} endpoints of {namespace}/{service}")
        })??;
        Ok(())
    }
}

async fn stream(
    setup: &Setup,
    weeder: &RestartableService,
    ready: &watch::Sender<Ready>,
) -> anyhow::Result<()> {
    let mut client = WeederServiceClient::new(weeder.channel(setup)?);
    let request = WatchEndpointReadinessRequest::default();
    let mut stream = client.watch_endpoint_readiness(request).await?.into_inner();
    while let Some(message) = stream.message().await? {
        if let Some(Event::Upsert(now)) = message.event {
            note(ready, now);
        }
    }
    Ok(())
}

fn note(ready: &watch::Sender<Ready>, now: EndpointReadiness) {
    let count = match now.readiness() {
        Readiness::Ready => usize::try_from(now.ready_endpoints).unwrap_or_default(),
        _ => 0,
    };
    if let Some(key) = now.key {
        ready.send_modify(|all| _ = all.insert((key.namespace, key.service), count));
    }
}
