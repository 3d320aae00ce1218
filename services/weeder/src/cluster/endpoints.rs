//! Watches the endpoints of services in all namespaces.

use std::time::Duration;

use futures::FutureExt;
use futures::future::try_join_all;
use kube::runtime::watcher::Config;
use kube::{Api, Resource};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use watchdog_api::names::SERVICE_NAME_LABEL;
use watchdog_kube::watch::{Change, Watch};
use watchdog_runtime::readiness::Readiness;

use super::discovery::EndpointsApi;
use super::objects::{EndpointsObject, SliceObject};
use super::{ObjectUpdate, update};
use crate::domain::declared::WatchedServices;
use crate::domain::readiness::{ReceivedBy, Slice};

/// After its last failure a watch brings what it has missed within this time: 5 s until it is opened again, 10 s until
/// the API server answers, and 5 s for the changes.
const CATCH_UP: Duration = Duration::from_secs(20);

/// A slice, and how it was received.
type SliceUpdate = ObjectUpdate<(Slice, ReceivedBy)>;

/// Watches the endpoints of services until `stop` is cancelled. An update comes with the service whose watch brought
/// it; none stands for a watch on all of them.
///
/// # Errors
/// As [`Watch::run`].
pub(crate) async fn watch(
    client: kube::Client,
    served: EndpointsApi,
    services: &WatchedServices,
    readiness: &Readiness,
    stop: CancellationToken,
    on_update: impl Fn(Option<&str>, SliceUpdate) + Send + Sync,
) -> anyhow::Result<()> {
    let watches = selections(served, services).into_iter().map(|(service, config)| {
        let (name, client, stop) = (served.watch_name(), client.clone(), stop.clone());
        let readiness = match service {
            Some(service) => readiness.named(service),
            None => readiness.clone(),
        };
        let on_update = &on_update;
        let on_update = move |update| on_update(service, update);
        match served {
            EndpointsApi::EndpointSlices => {
                let api = Api::all(client);
                let on_change = slices(SliceObject::into_slice, on_update);
                Watch { name, api, config }
                    .run(readiness, stop, on_change)
                    .boxed()
            }
            EndpointsApi::Endpoints => {
                let api = Api::all(client);
                let on_change = slices(EndpointsObject::into_slice, on_update);
                Watch { name, api, config }
                    .run(readiness, stop, on_change)
                    .boxed()
            }
        }
    });
    try_join_all(watches).await.map(drop)
}

/// The selection of each watch, with its service if it is on one only.
fn selections(served: EndpointsApi, services: &WatchedServices) -> Vec<(Option<&str>, Config)> {
    let all = Config::default();
    match (served, services) {
        (_, WatchedServices::All) => vec![(None, all)],
        (EndpointsApi::EndpointSlices, WatchedServices::Named(names)) => {
            let names = names.iter().map(|name| &**name).collect::<Vec<_>>().join(",");
            vec![(None, all.labels(&format!("{SERVICE_NAME_LABEL} in ({names})")))]
        }
        (EndpointsApi::Endpoints, WatchedServices::Named(names)) => {
            let named = |name| all.clone().fields(&format!("metadata.name={name}"));
            names.iter().map(|name| (Some(&**name), named(name))).collect()
        }
    }
}

/// Says of each slice how it was received: what a list brings was not observed as it happened, nor was what the API
/// server has kept while the watch was interrupted.
fn slices<K: Resource>(
    into_slice: impl Fn(K) -> Option<Slice>,
    mut on_update: impl FnMut(SliceUpdate),
) -> impl FnMut(Change<K>) {
    let mut listing = true;
    let mut failed_at = None::<Instant>;
    move |change| {
        match change {
            Change::ListBegins => listing = true,
            Change::Synced(_) => listing = false,
            Change::Failed => failed_at = Some(Instant::now()),
            // A list follows.
            Change::Restored | Change::Applied(_) | Change::Deleted(_) => {}
        }
        let resumed = || failed_at.is_some_and(|failed_at| failed_at.elapsed() < CATCH_UP);
        let read = |object| {
            let received_by = match (listing, resumed()) {
                (true, _) => ReceivedBy::List,
                (false, true) => ReceivedBy::ResumedWatch,
                (false, false) => ReceivedBy::Watch,
            };
            Some((into_slice(object)?, received_by))
        };
        if let Some(update) = update(change, read) {
            on_update(update);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    fn applied() -> Change<SliceObject> {
        let labels = json!({ SERVICE_NAME_LABEL: "etcd" });
        let slice = json!({"metadata": {"name": "etcd-1", "namespace": "shoot", "labels": labels}});
        Change::Applied(serde_json::from_value(slice).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn only_what_comes_soon_after_a_failure_may_be_late() {
        let mut received = Vec::new();
        let mut slices = slices(SliceObject::into_slice, |update| {
            if let ObjectUpdate::Applied((_, received_by)) = update {
                received.push(received_by);
            }
        });
        slices(Change::ListBegins);
        slices(applied());
        slices(Change::Synced(BTreeSet::new()));
        slices(applied());
        slices(Change::Failed);
        tokio::time::sleep(CATCH_UP - Duration::from_millis(1)).await;
        slices(applied());
        // It was opened again and brought nothing until long after.
        slices(Change::Failed);
        tokio::time::sleep(CATCH_UP).await;
        slices(applied());
        drop(slices);
        let expected = [
            ReceivedBy::List,
            ReceivedBy::Watch,
            ReceivedBy::ResumedWatch,
            ReceivedBy::Watch,
        ];
        assert_eq!(received, expected);
    }
}
