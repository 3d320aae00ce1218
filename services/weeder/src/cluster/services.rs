//! Watches the endpoints of the configured services in all namespaces.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{select_all, try_join_all};
use kube::runtime::watcher::Config;
use kube::{Api, Resource};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use watchdog_api::names::SERVICE_NAME_LABEL;
use watchdog_api::weeder::WeederConfig;
use watchdog_kube::key::ObjectKey;
use watchdog_kube::watch::{Change, Watch};
use watchdog_runtime::readiness::Readiness;

use super::discovery::Source;
use super::objects::{EndpointsObject, SliceObject};
use crate::controller::shared::SharedState;
use crate::controller::state::Seen;
use crate::domain::readiness::{Slice, SliceKey};

/// Names in a selector at most: they take 4 kB, which every proxy lets through. With more names the endpoints of all
/// services are watched.
const MAX_NAMES: usize = 64;

/// How long changes of the names are gathered: each change takes a list of all slices, and extensions annotate one Service
/// after the other.
const GATHER: Duration = Duration::from_secs(1);

/// A watch that was interrupted brings what it has missed within this time.
const CATCH_UP: Duration = Duration::from_secs(5);

/// The services whose endpoints are watched.
#[derive(Debug, Clone, PartialEq, Eq)]
enum WatchedServices {
    Named(BTreeSet<String>),
    All,
}

/// Watches the services that the configuration or an annotation names until `stop` is cancelled. A changed configuration
/// takes effect on the state first, then on the watches.
///
/// # Errors
/// As [`Watch::run`].
pub(crate) async fn watch(
    client: kube::Client,
    source: Source,
    state: Arc<SharedState>,
    mut config: watch::Receiver<Arc<WeederConfig>>,
    readiness: Readiness,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut annotated = state.annotated();
    loop {
        let watched = {
            let config = config.borrow_and_update();
            state.update(|state, _, now| state.reconfigure(&config, now));
            WatchedServices::by(&config, &annotated.borrow_and_update())
        };
        state.update(|state, _, now| state.keep_services(|service| watched.includes(service), now));
        let stop_watches = stop.child_token();
        let watches = watches(
            &client,
            source,
            &watched,
            &state,
            &readiness,
            stop_watches.clone(),
        );
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            result = watches => return result,
            () = outdated(&watched, &state, &mut config, &mut annotated) => {}
        }
        stop_watches.cancel();
        tracing::info!("services with dependants changed, watching the new ones");
    }
}

/// Ends when other services must be watched, [`GATHER`] after the first change. Every configuration takes effect on the
/// state at once.
async fn outdated(
    watched: &WatchedServices,
    state: &SharedState,
    config: &mut watch::Receiver<Arc<WeederConfig>>,
    annotated: &mut watch::Receiver<BTreeSet<Arc<str>>>,
) {
    let mut gathered: Option<Instant> = None;
    loop {
        let over = async {
            match gathered {
                Some(instant) => tokio::time::sleep_until(instant).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = config.changed() => match changed {
                Ok(()) => state.update(|state, _, now| state.reconfigure(&config.borrow_and_update(), now)),
                // The process is stopping.
                Err(_) => std::future::pending().await,
            },
            // The state holds the sender.
            _ = annotated.changed() => {}
            () = over => return,
        }
        if WatchedServices::by(&config.borrow(), &annotated.borrow_and_update()) == *watched {
            gathered = None;
        } else {
            gathered.get_or_insert_with(|| Instant::now() + GATHER);
        }
    }
}

impl WatchedServices {
    fn includes(&self, service: &str) -> bool {
        match self {
            Self::All => true,
            Self::Named(names) => names.contains(service),
        }
    }

    fn by(config: &WeederConfig, annotated: &BTreeSet<Arc<str>>) -> Self {
        let annotated = annotated.iter().map(|name| name.to_string());
        let names: BTreeSet<String> = config.services.keys().cloned().chain(annotated).collect();
        if names.len() > MAX_NAMES {
            Self::All
        } else {
            Self::Named(names)
        }
    }
}

async fn watches(
    client: &kube::Client,
    source: Source,
    watched: &WatchedServices,
    state: &Arc<SharedState>,
    readiness: &Readiness,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    match (source, watched) {
        (Source::EndpointSlices, _) => {
            let mut config = Config::default();
            if let WatchedServices::Named(services) = watched {
                let names = services.iter().map(String::as_str).collect::<Vec<_>>().join(",");
                config = config.labels(&format!("{SERVICE_NAME_LABEL} in ({names})"));
            }
            let watch = Watch {
                name: source.watch_name(),
                api: Api::<SliceObject>::all(client.clone()),
                config,
            };
            let apply = apply(state, None, SliceObject::into_slice);
            watch.run(readiness.clone(), stop, apply).await
        }
        (Source::Endpoints, WatchedServices::All) => {
            let watch = Watch {
                name: source.watch_name(),
                api: Api::<EndpointsObject>::all(client.clone()),
                config: Config::default(),
            };
            let apply = apply(state, None, EndpointsObject::into_slice);
            watch.run(readiness.clone(), stop, apply).await
        }
        (Source::Endpoints, WatchedServices::Named(services)) => {
            // Each watch has a readiness of its own: the first list does not make all of them ready.
            let parts: Vec<Readiness> = services.iter().map(|service| readiness.part(service)).collect();
            let watches = services.iter().zip(&parts).map(|(service, readiness)| {
                let config = Config::default().fields(&format!("metadata.name={service}"));
                let watch = Watch {
                    name: source.watch_name(),
                    api: Api::<EndpointsObject>::all(client.clone()),
                    config,
                };
                let apply = apply(state, Some(service), EndpointsObject::into_slice);
                watch.run(readiness.clone(), stop.clone(), apply)
            });
            tokio::select! {
                result = try_join_all(watches) => result.map(|_| ()),
                () = all_ready(source.watch_name(), services, &parts, readiness) => Ok(()),
            }
        }
    }
}

/// Applies the changes of one watch to the state. What a list brings was not seen as it happened, nor was what the API
/// server has kept while the watch was interrupted.
fn apply<K: Resource>(
    state: &SharedState,
    service: Option<&str>,
    into_slice: impl Fn(K) -> Option<Slice>,
) -> impl FnMut(Change<K>) {
    let slice_key = |key: ObjectKey| SliceKey {
        namespace: key.namespace.into(),
        name: key.name.into(),
    };
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
            let seen = if listing || late { Seen::InList } else { Seen::Live };
            if let Some(slice) = into_slice(object) {
                state.update(|state, owns, now| state.slice_applied(slice, seen, owns, now));
            }
        }
        Change::Deleted(object) => {
            let key = slice_key(ObjectKey::of(&object));
            state.update(|state, owns, now| state.slice_removed(&key, owns, now));
        }
        Change::Synced(keys) => {
            listing = false;
            let live = keys.into_iter().map(slice_key).collect();
            state.update(|state, owns, now| state.slices_synced(service, &live, owns, now));
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

#[cfg(test)]
mod tests {
    use watchdog_runtime::clock::Clock;

    use super::*;

    fn named(names: &[&str]) -> BTreeSet<Arc<str>> {
        names.iter().map(|name| Arc::from(*name)).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn names_are_gathered_before_all_slices_are_listed_anew() {
        let file = b"servicesAndDependantSelectors: {etcd: {podSelectors: [{matchLabels: {a: b}}]}}";
        let file = Arc::new(watchdog_api::weeder::parse(file).unwrap());
        let state = SharedState::new(&file, Clock::start(), |_: &str| true);
        let (_file, mut config) = watch::channel(file.clone());
        let (annotate, mut annotated) = watch::channel(BTreeSet::new());
        let watched = WatchedServices::by(&file, &BTreeSet::new());
        let begun = Instant::now();
        let story = async {
            // A name that comes and goes does not count, nor does one that the file has.
            for names in [named(&["queue"]), named(&["etcd"]), named(&[])] {
                annotate.send(names).unwrap();
                tokio::time::sleep(GATHER * 3 / 4).await;
            }
            for names in [named(&["a"]), named(&["a", "b"]), named(&["a", "b", "c"])] {
                annotate.send(names).unwrap();
                tokio::time::sleep(GATHER / 4).await;
            }
            std::future::pending().await
        };
        tokio::select! {
            () = outdated(&watched, &state, &mut config, &mut annotated) => {}
            () = story => {}
        }
        assert_eq!(begun.elapsed(), GATHER * 9 / 4 + GATHER);
        let expected = WatchedServices::Named(["a", "b", "c", "etcd"].map(str::to_owned).into());
        assert_eq!(
            WatchedServices::by(&file, &annotated.borrow_and_update()),
            expected
        );
    }

    #[test]
    fn with_many_names_all_services_are_watched_and_further_names_change_nothing() {
        let file = b"servicesAndDependantSelectors: {etcd: {podSelectors: [{matchLabels: {a: b}}]}}";
        let file = watchdog_api::weeder::parse(file).unwrap();
        let names = |n: usize| (0..n).map(|n| Arc::from(format!("s{n}"))).collect();
        assert!(matches!(
            WatchedServices::by(&file, &names(MAX_NAMES - 1)),
            WatchedServices::Named(_)
        ));
        assert_eq!(
            WatchedServices::by(&file, &names(MAX_NAMES)),
            WatchedServices::All
        );
        assert_eq!(
            WatchedServices::by(&file, &names(MAX_NAMES + 9)),
            WatchedServices::All
        );
    }
}
