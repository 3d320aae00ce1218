//! SeedWatches the endpoints of services in all namespaces.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{select_all, try_join_all};
use kube::runtime::watcher::Config;
use kube::{Api, Resource};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use watchdog_api::names::SERVICE_NAME_LABEL;
use watchdog_kube::key::ObjectKey;
use watchdog_kube::watch::{Change, Watch};
use watchdog_runtime::readiness::Readiness;

use super::discovery::EndpointsApi;
use super::objects::{EndpointsObject, SliceObject};
use super::{ObjectUpdate, name_of};
use crate::domain::declared::WatchedServices;
use crate::domain::readiness::{ReceivedBy, Slice};

/// A watch that was interrupted brings what it has missed within this time.
const CATCH_UP: Duration = Duration::from_secs(5);

/// A slice, and how it was received.
type SliceUpdate = ObjectUpdate<(Slice, ReceivedBy)>;

/// SeedWatches the endpoints of services until `stop` is cancelled. An update comes with the service whose watch brought
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
    let all = |update| on_update(None, update);
    match (served, services) {
        (EndpointsApi::EndpointSlices, _) => {
            let mut config = Config::default();
            if let WatchedServices::Named(services) = services {
                let names = services.iter().map(|name| &**name).collect::<Vec<_>>().join(",");
                config = config.labels(&format!("{SERVICE_NAME_LABEL} in ({names})"));
            }
            let watch = Watch {
                name: served.watch_name(),
                api: Api::all(client),
                config,
            };
            watch
                .run(readiness.clone(), stop, slices(SliceObject::into_slice, all))
                .await
        }
        (EndpointsApi::Endpoints, WatchedServices::All) => {
            let watch = Watch {
                name: served.watch_name(),
                api: Api::all(client),
                config: Config::default(),
            };
            watch
                .run(readiness.clone(), stop, slices(EndpointsObject::into_slice, all))
                .await
        }
        (EndpointsApi::Endpoints, WatchedServices::Named(services)) => {
            // Each watch has a readiness of its own: the first list does not make all of them ready.
            let parts: Vec<Readiness> = services.iter().map(|service| readiness.part(service)).collect();
            let watches = services.iter().zip(&parts).map(|(service, readiness)| {
                let watch = Watch {
                    name: served.watch_name(),
                    api: Api::all(client.clone()),
                    config: Config::default().fields(&format!("metadata.name={service}")),
                };
                let on_update = |update| on_update(Some(service), update);
                watch.run(
                    readiness.clone(),
                    stop.clone(),
                    slices(EndpointsObject::into_slice, on_update),
                )
            });
            tokio::select! {
                result = try_join_all(watches) => result.map(|_| ()),
                () = all_ready(served.watch_name(), services, &parts, readiness) => Ok(()),
            }
        }
    }
}

/// Says of each slice how it was received: what a list brings was not observed as it happened, nor was what the API server
/// has kept while the watch was interrupted.
fn slices<K: Resource>(
    into_slice: impl Fn(K) -> Option<Slice>,
    mut on_update: impl FnMut(SliceUpdate),
) -> impl FnMut(Change<K>) {
    let mut listing = true;
    let (mut failed, mut resumed) = (false, None::<Instant>);
    move |change| match change {
        Change::ListBegins => listing = true,
        Change::Failed => failed = true,
        // A list follows.
        Change::Restored => {}
        Change::Applied(object) => {
            if std::mem::take(&mut failed) {
                resumed = Some(Instant::now());
            }
            let late = resumed.is_some_and(|resumed| resumed.elapsed() < CATCH_UP);
            let received_by = if listing || late {
                ReceivedBy::List
            } else {
                ReceivedBy::Watch
            };
            if let Some(slice) = into_slice(object) {
                on_update(ObjectUpdate::Applied((slice, received_by)));
            }
        }
        Change::Deleted(object) => on_update(ObjectUpdate::Removed(name_of(ObjectKey::of(&object)))),
        Change::Synced(keys) => {
            listing = false;
            on_update(ObjectUpdate::Synced(keys.into_iter().map(name_of).collect()));
        }
    }
}

/// Blocks readiness for as long as one of the watches does. Never ends.
async fn all_ready(
    name: &'static str,
    services: &BTreeSet<Arc<str>>,
    parts: &[Readiness],
    whole: &Readiness,
) {
    let mut changes: Vec<_> = parts.iter().map(Readiness::subscribe).collect();
    let mut blocker = None;
    loop {
        for change in &mut changes {
            change.mark_unchanged();
        }
        let why: Vec<String> = services
            .iter()
            .zip(parts)
            .filter_map(|(service, part)| Some(format!("{service}: {}", part.blockers().get(name)?)))
            .collect();
        let new = (!why.is_empty()).then(|| whole.block(name, why.join("; ")));
        drop(std::mem::replace(&mut blocker, new));
        let changed = changes.iter_mut().map(|change| Box::pin(change.changed()));
        // The senders live in `parts`.
        let _ = select_all(changed).await;
    }
}
