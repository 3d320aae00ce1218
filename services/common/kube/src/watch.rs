//! Watches that keep an index up to date.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::Duration;

use anyhow::Context as _;
use futures::future::{BoxFuture, OptionFuture};
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use kube::api::ListParams;
use kube::runtime::watcher::{self, Config, Event, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use watchdog_api::cluster::Cluster;
use watchdog_runtime::backoff::Backoff;
use watchdog_runtime::readiness::{Blocker, Readiness};

use crate::client::{RequestError, WATCH_SECONDS, request};
use crate::key::ObjectKey;
use crate::metrics::{WATCH_ERRORS, WATCHED_OBJECTS, WatchName};

/// Objects in one page of a list: what client-go's pager takes, and what API servers are tuned for. A seed may have
/// tens of thousands of pods and Services; a page of them stays below some megabytes.
pub const LIST_PAGE: u32 = 500;

/// Clusters in one page of a list. They are large, mostly because of the cloud profile in them: pages of 50 keep an
/// answer near a megabyte.
const CLUSTER_PAGE: u32 = 50;

/// Receives each change of the Clusters.
pub type OnClusterChange = Box<dyn FnMut(&Change<Cluster>) + Send>;

/// A change that a watch brings to its index.
#[derive(Debug)]
pub enum Change<K> {
    /// A list is about to be asked for: what is applied from now until it is complete comes from it.
    ListBegins,
    /// An object is there, new or changed or merely seen again.
    Applied(K),
    /// An object is gone; this is its last state.
    Deleted(K),
    /// The list is complete; these objects exist and no others. Comes again after every relist.
    Synced(BTreeSet<ObjectKey>),
    /// The seed's etcd was restored from a backup: what is known may be newer than what exists. A list follows.
    Restored,
}

/// Watches the Clusters of the seed, for all parts of the process that need them. As [`Watch::run`].
///
/// # Errors
/// Never; the type is that of a critical task.
pub fn clusters(
    seed: kube::Client,
    readiness: Readiness,
    stop: CancellationToken,
    mut handlers: Vec<OnClusterChange>,
) -> impl Future<Output = anyhow::Result<()>> {
    let watch = Watch {
        name: "clusters".into(),
        api: Api::all(seed),
        config: Config::default().page_size(CLUSTER_PAGE),
        ends_if_not_served: false,
    };
    watch.run(readiness, stop, move |change| {
        for on_change in &mut handlers {
            on_change(&change);
        }
    })
}

/// A watch: what it is called in logs, metrics and readiness, and what it asks for.
#[derive(Debug)]
pub struct Watch<K> {
    /// Name, for example `clusters`; blocks readiness until the first list is complete.
    pub name: Cow<'static, str>,
    /// Where to watch.
    pub api: Api<K>,
    /// Selectors.
    pub config: Config,
    /// Ends also when the API server answers 404, because it does not serve the kind (any more).
    pub ends_if_not_served: bool,
}

impl<K> Watch<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    /// Lists and watches until `stop` is cancelled, and calls `on_change` for every change; `on_change` must not block.
    /// A list or watch that fails is tried again with back-off, without end. Until it succeeds, the index shows the
    /// last known state; the next complete list removes from it what was deleted meanwhile. `K` must decode leniently,
    /// so that one bad object cannot stop the watch; a deletion needs nothing but the metadata.
    ///
    /// A watch that brings nothing for 20 s, not even a bookmark, is opened again where it was. After a failure it is
    /// checked whether etcd was restored from a backup: resource versions then start over below the one from which the
    /// watch goes on, and it would bring nothing. Then everything is listed again.
    ///
    /// From this call on it blocks `readiness`, until everything is listed, whenever the seed refuses access, and when
    /// no list succeeds for [`OUTDATED_AFTER`].
    ///
    /// # Errors
    /// Never; the type is that of a critical task.
    pub fn run(
        self,
        readiness: Readiness,
        stop: CancellationToken,
        on_change: impl FnMut(Change<K>) + Send,
    ) -> impl Future<Output = anyhow::Result<()>> {
        let blocker = readiness.block(self.name.clone(), "not listed yet");
        self.drive(blocker, readiness, stop, on_change)
    }

    async fn drive(
        self,
        blocker: Blocker,
        readiness: Readiness,
        stop: CancellationToken,
        mut on_change: impl FnMut(Change<K>) + Send,
    ) -> anyhow::Result<()> {
        let name = &self.name;
        let watched_objects = WATCHED_OBJECTS.handle(WatchName(name));
        let errors = WATCH_ERRORS.handle(WatchName(name));
        watched_objects.set(0.0);
        let mut blocker = Some(blocker);
        let (mut listed, mut live) = (BTreeSet::new(), BTreeSet::new());
        // The newest version that was seen, and how often the watch has failed in a row.
        let (mut newest, mut failures) = (0, 0);
        let mut pauses = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let mut pauses_after_refusal = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE_AFTER_REFUSAL);
        let mut events = self.open();
        let mut next_try = Instant::now();
        // Since when every list has failed.
        let mut unlisted_since = None;
        // After a failure: what the newest version was, and what it is now.
        let mut check: Option<BoxFuture<'_, (u64, u64)>> = None;
        loop {
            let event = tokio::select! {
                () = stop.cancelled() => {
                    readiness.recovered(name.clone());
                    return Ok(());
                }
                Some((before, revision)) = OptionFuture::from(check.as_mut()) => {
                    check = None;
                    if revision < before {
                        tracing::warn!(
                            watch = %name,
                            "resource versions went back because etcd was restored from a backup; listing again"
                        );
                        newest = revision;
                        on_change(Change::Restored);
                        events = self.open();
                        next_try = Instant::now();
                    }
                    continue;
                }
                event = async {
                    // kube's own back-off begins anew with every list, also with those that fail.
                    sleep_until(next_try).await;
                    events.next().await
                } => event.with_context(|| format!("the watch of {name} ended"))?,
            };
            let error = match event {
                Ok(event) => {
                    newest = newest.max(version(&event));
                    let works = !matches!(event, Event::Init | Event::InitApply(_));
                    let change = match event {
                        Event::Init => {
                            listed.clear();
                            Change::ListBegins
                        }
                        Event::InitApply(object) => {
                            listed.insert(ObjectKey::of(&object));
                            Change::Applied(object)
                        }
                        Event::InitDone => {
                            live = std::mem::take(&mut listed);
                            tracing::debug!(watch = %name, objects = live.len(), "watch listed its objects");
                            Change::Synced(live.clone())
                        }
                        Event::Apply(object) => {
                            live.insert(ObjectKey::of(&object));
                            pauses_after_refusal.reset();
                            Change::Applied(object)
                        }
                        Event::Delete(object) => {
                            live.remove(&ObjectKey::of(&object));
                            pauses_after_refusal.reset();
                            Change::Deleted(object)
                        }
                    };
                    on_change(change);
                    watched_objects.set(live.len() as f64);
                    if works {
                        (failures, unlisted_since) = (0, None);
                        drop(blocker.take());
                        pauses.reset();
                        if readiness.recovered(name.clone()) {
                            tracing::info!(watch = %name, "watch works again");
                        }
                    }
                    continue;
                }
                Err(error) => error,
            };
            failures += 1;
            errors.increment(1);
            let is_list = matches!(
                error,
                watcher::Error::InitialListFailed(_) | watcher::Error::NoResourceVersion
            );
            let error = RequestError::from(error);
            let failure = error.failure();
            let reason = failure.reason.as_str();
            if readiness.failing(name.clone(), failure) {
                tracing::warn!(watch = %name, reason, %error, "watch failed; trying again");
            }
            if is_list {
                unlisted_since.get_or_insert_with(Instant::now);
            }
            let is_outdated = unlisted_since.is_some_and(|since: Instant| since.elapsed() >= OUTDATED_AFTER);
            if is_refused(&error) {
                blocker.replace(readiness.block(name.clone(), "the seed refuses access"));
            } else if blocker.is_some() || is_outdated {
                blocker.replace(readiness.block(name.clone(), format!("cannot be listed: {error}")));
            }
            if self.ends_if_not_served && error.is_not_found() {
                return Ok(());
            }
            // An API server whose etcd is restored is restarted.
            if newest > 0 {
                check.get_or_insert_with(|| self.revision(newest).boxed());
            }
            // kube's watcher lists only when it is new, and asks for a version that is too old again and again if the
            // server says so by the code of its answer. A watch that was refused, works again and is quiet would never
            // say so; a complete list does.
            let is_too_old = error.code() == Some(410);
            if is_refused(&error) || is_too_old || failures >= MAX_FAILURES {
                events = self.open();
            }
            let pauses = match is_refused(&error) && !is_list {
                true => &mut pauses_after_refusal,
                false => &mut pauses,
            };
            next_try = Instant::now() + pauses.next_delay();
        }
    }

    /// Lists and watches from the start.
    fn open(&self) -> BoxStream<'static, watcher::Result<Event<K>>> {
        watcher(self.api.clone(), self.config.clone().timeout(WATCH_SECONDS)).boxed()
    }

    /// The version of the collection now, by a consistent read of one object, beside the newest one before.
    async fn revision(&self, before: u64) -> (u64, u64) {
        let params = ListParams {
            label_selector: self.config.label_selector.clone(),
            field_selector: self.config.field_selector.clone(),
            ..ListParams::default().limit(1)
        };
        let mut pauses = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let mut is_news = true;
        loop {
            match request(self.api.list_metadata(&params)).await {
                Ok(list) => {
                    let version = list.metadata.resource_version;
                    // Versions that are no numbers prove nothing.
                    let revision = version.and_then(|version| version.parse().ok());
                    return (before, revision.unwrap_or(before));
                }
                Err(error) => {
                    // A restore is most likely behind an API server that does not answer.
                    if std::mem::take(&mut is_news) {
                        let (watch, reason) = (&self.name, error.failure().reason.as_str());
                        tracing::warn!(
                            %watch,
                            reason,
                            %error,
                            "could not check whether etcd was restored; trying again"
                        );
                    }
                    sleep(pauses.next_delay()).await;
                }
            }
        }
    }
}

/// The resource version of the object that an event brings; 0 if it brings none.
fn version<K: Resource>(event: &Event<K>) -> u64 {
    let (Event::InitApply(object) | Event::Apply(object) | Event::Delete(object)) = event else {
        return 0;
    };
    let version = object.meta().resource_version.as_ref();
    version.and_then(|version| version.parse().ok()).unwrap_or(0)
}

/// A watch that fails this often in a row is opened with a list: it may ask for a version that does not exist.
const MAX_FAILURES: u32 = 3;

/// The pause after the first failure; see [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// The longest pause between two tries. kube's default of 30 s would leave an index half a minute behind after an
/// outage of the API server; a handful of replicas with a handful of watches each overrun nobody.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The longest pause after a watch that was refused, which is begun anew with a list: where listing is allowed and
/// watching is not, the lists must not become a load.
const LONGEST_PAUSE_AFTER_REFUSAL: Duration = Duration::from_secs(30);

/// An index that was complete once is served during an outage of the seed. If nothing can be listed for longer than an
/// API server takes to restart, somebody has to mend it: new shoots are not seen, and no write is confirmed.
pub const OUTDATED_AFTER: Duration = Duration::from_secs(120);

/// True for a lost permission, which somebody has to mend.
fn is_refused(error: &RequestError) -> bool {
    matches!(error.code(), Some(401 | 403))
}
