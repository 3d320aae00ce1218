//! Follows the endpoints of the configured services in all namespaces.

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
use crate::domain::readiness::{Slice, SliceKey};
use crate::state::State;

/// Names that a selector holds at most: that many make at most 4 kB, which every proxy lets through. Should extensions
/// annotate services of more names, the endpoints of all services are watched and held.
const MAX_NAMES: usize = 64;

/// How long further names are waited for when others are to be followed: each time all slices are listed anew, and
/// extensions annotate one Service after the other.
const GATHER: Duration = Duration::from_secs(1);

/// The services that the watches are about.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Followed {
    Named(BTreeSet<String>),
    All,
}

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
        let followed = {
            let config = config.borrow_and_update();
            state.update(|model, _, now| model.reconfigure(&config, now));
            Followed::by(&config, &annotated.borrow_and_update())
        };
        state.update(|model, _, now| model.follows(|service| followed.includes(service), now));
        let stop_watches = stop.child_token();
        let watches = watches(
            &client,
            source,
            &followed,
            &state,
            &readiness,
            stop_watches.clone(),
        );
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            result = watches => return result,
            () = outdated(&followed, &state, &mut config, &mut annotated) => {}
        }
        stop_watches.cancel();
        tracing::info!("other services have dependants, following those");
    }
}

/// Ends when others are to be followed, and no sooner than [`GATHER`] after the first of them was named. The model hears
/// of every configuration.
async fn outdated(
    followed: &Followed,
    state: &State,
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
                Ok(()) => state.update(|model, _, now| model.reconfigure(&config.borrow_and_update(), now)),
                // The configuration is not followed any more: the process is stopping.
                Err(_) => std::future::pending().await,
            },
            // The state holds the sender.
            _ = annotated.changed() => {}
            () = over => return,
        }
        if Followed::by(&config.borrow(), &annotated.borrow_and_update()) == *followed {
            gathered = None;
        } else {
            gathered.get_or_insert_with(|| Instant::now() + GATHER);
        }
    }
}

impl Followed {
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
    followed: &Followed,
    state: &Arc<State>,
    readiness: &Readiness,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    match (source, followed) {
        (Source::EndpointSlices, _) => {
            let mut config = Config::default();
            if let Followed::Named(services) = followed {
                let names = services.iter().map(String::as_str).collect::<Vec<_>>().join(",");
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
        (Source::Endpoints, Followed::All) => {
            let watch = Watch {
                name: source.watch_name(),
                api: Api::<EndpointsObject>::all(client.clone()),
                config: Config::default(),
            };
            let hear = |change| hear(state, None, change, EndpointsObject::into_slice);
            watch.run(readiness.clone(), stop, hear).await
        }
        (Source::Endpoints, Followed::Named(services)) => {
            // Each watch has a readiness of its own: the first that is listed must not speak for all.
            let parts: Vec<Readiness> = services.iter().map(|service| readiness.part(service)).collect();
            let watches = services.iter().zip(&parts).map(|(service, readiness)| {
                let config = Config::default().fields(&format!("metadata.name={service}"));
                let watch = Watch {
                    name: source.watch_name(),
                    api: Api::<EndpointsObject>::all(client.clone()),
                    config,
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

fn hear<K: Resource>(
    state: &State,
    service: Option<&str>,
    change: Change<K>,
    into_slice: impl Fn(K) -> Option<Slice>,
) {
    let slice_key = |key: ObjectKey| SliceKey {
        namespace: key.namespace.into(),
        name: key.name.into(),
    };
    match change {
        Change::ListBegins | Change::Failed | Change::Restored => {}
        Change::Applied(object) => {
            if let Some(slice) = into_slice(object) {
                state.update(|model, owns, now| model.slice_applied(slice, owns, now));
            }
        }
        Change::Deleted(object) => {
            let key = slice_key(ObjectKey::of(&object));
            state.update(|model, owns, now| model.slice_removed(&key, owns, now));
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
        let state = State::new(&file, Clock::start(), |_: &str| true);
        let (_file, mut config) = watch::channel(file.clone());
        let (annotate, mut annotated) = watch::channel(BTreeSet::new());
        let followed = Followed::by(&file, &BTreeSet::new());
        let begun = Instant::now();
        let story = async {
            // One that comes and goes is none, nor is one that the file has.
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
            () = outdated(&followed, &state, &mut config, &mut annotated) => {}
            () = story => {}
        }
        assert_eq!(begun.elapsed(), GATHER * 9 / 4 + GATHER);
        let expected = Followed::Named(["a", "b", "c", "etcd"].map(str::to_owned).into());
        assert_eq!(Followed::by(&file, &annotated.borrow_and_update()), expected);
    }

    #[test]
    fn beyond_so_many_names_all_are_followed_and_further_names_change_nothing() {
        let file = b"servicesAndDependantSelectors: {etcd: {podSelectors: [{matchLabels: {a: b}}]}}";
        let file = watchdog_api::weeder::parse(file).unwrap();
        let names = |n: usize| (0..n).map(|n| Arc::from(format!("s{n}"))).collect();
        assert!(matches!(
            Followed::by(&file, &names(MAX_NAMES - 1)),
            Followed::Named(_)
        ));
        assert_eq!(Followed::by(&file, &names(MAX_NAMES)), Followed::All);
        assert_eq!(Followed::by(&file, &names(MAX_NAMES + 9)), Followed::All);
    }
}
