//! Follows the endpoints of the configured services in all namespaces.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::future::{select_all, try_join_all};
use kube::Api;
use kube::runtime::watcher::Config;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use watchdog_api::names::SERVICE_NAME_LABEL;
use watchdog_api::weeder::WeederConfig;
use watchdog_kube::key::ObjectKey;
use watchdog_kube::watch::{Change, Watch};
use watchdog_runtime::readiness::Readiness;

use super::discovery::Source;
use super::objects::{EndpointsObject, SliceObject};
use crate::domain::readiness::{Slice, SliceKey};
use crate::state::State;

/// A watch is opened anew this often, from where it was; one whose connection died without a sign is noticed then.
/// Nothing else of the weeder is as urgent, and a watch costs one request a minute.
const WATCH_SECONDS: u32 = 60;

/// Names that a selector holds at most: that many make at most 4 kB, which every proxy lets through. Should extensions
/// annotate services of more names, the endpoints of all services are watched, and those of others dropped.
const MAX_NAMES: usize = 64;

/// Follows the services that the configuration or an annotation names until `stop` is cancelled. When the configuration
/// names others, the model hears of it first, then others are followed.
///
/// # Errors
/// As [`Watch::run`].
pub async fn follow(
    client: kube::Client,
    source: Source,
    state: Arc<State>,
    mut config: watch::Receiver<Arc<WeederConfig>>,
    readiness: Readiness,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut annotated = state.annotated();
    loop {
        let services = {
            let config = config.borrow_and_update();
            state.update(|model, _, now| model.reconfigure(&config, now));
            names(&config, &annotated.borrow_and_update())
        };
        let stop_watches = stop.child_token();
        let watches = watches(
            &client,
            source,
            &services,
            &state,
            &readiness,
            stop_watches.clone(),
        );
        let renamed = async {
            loop {
                tokio::select! {
                    changed = config.changed() => match changed {
                        Ok(()) => state.update(|model, _, now| model.reconfigure(&config.borrow_and_update(), now)),
                        // The configuration is not followed any more: the process is stopping.
                        Err(_) => std::future::pending().await,
                    },
                    // The state holds the sender.
                    _ = annotated.changed() => {}
                }
                if names(&config.borrow(), &annotated.borrow_and_update()) != services {
                    return;
                }
            }
        };
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            result = watches => return result,
            () = renamed => {}
        }
        stop_watches.cancel();
        tracing::info!("other services have dependants, following those");
    }
}

fn names(config: &WeederConfig, annotated: &BTreeSet<Arc<str>>) -> BTreeSet<String> {
    let annotated = annotated.iter().map(|name| name.to_string());
    config.services.keys().cloned().chain(annotated).collect()
}

async fn watches(
    client: &kube::Client,
    source: Source,
    services: &BTreeSet<String>,
    state: &Arc<State>,
    readiness: &Readiness,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    match source {
        Source::EndpointSlices => {
            let names = services.iter().map(String::as_str).collect::<Vec<_>>().join(",");
            let mut config = Config::default().timeout(WATCH_SECONDS);
            if services.len() <= MAX_NAMES {
                config = config.labels(&format!("{SERVICE_NAME_LABEL} in ({names})"));
            }
            let watch = Watch {
                name: source.watch_name(),
                api: Api::<SliceObject>::all(client.clone()),
                config,
            };
            let hear = |change| hear(state, None, change, SliceObject::into_slice);
            watch.run(readiness.clone(), stop, hear).await
        }
        Source::Endpoints if services.len() > MAX_NAMES => {
            let watch = Watch {
                name: source.watch_name(),
                api: Api::<EndpointsObject>::all(client.clone()),
                config: Config::default().timeout(WATCH_SECONDS),
            };
            let hear = |change| hear(state, None, change, EndpointsObject::into_slice);
            watch.run(readiness.clone(), stop, hear).await
        }
        Source::Endpoints => {
            // Each watch has a readiness of its own: the first that is listed must not speak for all.
            let parts: Vec<Readiness> = services.iter().map(|_| Readiness::default()).collect();
            let watches = services.iter().zip(&parts).map(|(service, readiness)| {
                let config = Config::default().fields(&format!("metadata.name={service}"));
                let watch = Watch {
                    name: source.watch_name(),
                    api: Api::<EndpointsObject>::all(client.clone()),
                    config: config.timeout(WATCH_SECONDS),
                };
                let hear = move |change| hear(state, Some(service), change, EndpointsObject::into_slice);
                watch.run(readiness.clone(), stop.clone(), hear)
            });
            tokio::select! {
                result = try_join_all(watches) => result.map(|_| ()),
                () = all_ready(source.watch_name(), services, &parts, readiness) => Ok(()),
            }
        }
    }
}

fn hear<K>(state: &State, service: Option<&str>, change: Change<K>, into_slice: impl Fn(K) -> Option<Slice>) {
    let slice_key = |key: ObjectKey| SliceKey {
        namespace: key.namespace.into(),
        name: key.name.into(),
    };
    match change {
        Change::Applied(object) => {
            if let Some(slice) = into_slice(object) {
                state.update(|model, owns, now| model.slice_applied(slice, owns, now));
            }
        }
        Change::Deleted(key) => {
            state.update(|model, owns, now| model.slice_removed(&slice_key(key), owns, now));
        }
        Change::Synced(keys) => {
            let live = keys.into_iter().map(slice_key).collect();
            state.update(|model, owns, now| model.slices_synced(service, &live, owns, now));
        }
    }
}

/// Blocks readiness for as long as one of the watches does. Never ends.
async fn all_ready(name: &'static str, services: &BTreeSet<String>, parts: &[Readiness], whole: &Readiness) {
    let mut changes: Vec<_> = parts.iter().map(Readiness::subscribe).collect();
    loop {
        for change in &mut changes {
            change.mark_unchanged();
        }
        let why: Vec<String> = services
            .iter()
            .zip(parts)
            .filter_map(|(service, part)| Some(format!("{service}: {}", part.blockers().get(name)?)))
            .collect();
        if why.is_empty() {
            whole.clear(name);
        } else {
            whole.block(name, why.join("; "));
        }
        let changed = changes.iter_mut().map(|change| Box::pin(change.changed()));
        // The senders live in `parts`.
        let _ = select_all(changed).await;
    }
}
