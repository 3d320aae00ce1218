//! Watches that keep an index up to date.

use std::collections::BTreeSet;
use std::fmt::Debug;

use futures::{StreamExt, TryStreamExt};
use kube::runtime::watcher::{self, Config, Event, watcher};
use kube::runtime::WatchStreamExt;
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;
use watchdog_runtime::readiness::Readiness;

use crate::key::ObjectKey;
use crate::metrics::{WATCH_ERRORS, WATCHED_OBJECTS};

/// What a watch tells its index.
#[derive(Debug)]
pub enum Change<K> {
    /// An object is there, new or changed or merely seen again.
    Applied(K),
    /// An object is gone.
    Deleted(ObjectKey),
    /// The list is complete; these objects exist and no others. Comes again after every relist.
    Synced(BTreeSet<ObjectKey>),
}

/// A watch: what it is called in logs, metrics and readiness, and what it asks for.
#[derive(Debug)]
pub struct Watch<K> {
    /// Name, for example `clusters`; blocks readiness until the first list is complete.
    pub name: &'static str,
    /// Where to watch.
    pub api: Api<K>,
    /// Selectors.
    pub config: Config,
}

impl<K> Watch<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    /// Lists and watches until `stop` is cancelled, and calls `hear` for every change; `hear` must not block. A list
    /// or watch that fails is tried again with back-off, for ever: the index then shows the last known state. What
    /// was deleted meanwhile is found by the next complete list, against what the index holds then. `K` must decode
    /// leniently, so that one bad object cannot stop the watch; a deletion needs nothing but the metadata.
    ///
    /// # Errors
    /// Never; the type is that of a critical task.
    pub async fn run(
        self,
        readiness: Readiness,
        stop: CancellationToken,
        mut hear: impl FnMut(Change<K>) + Send,
    ) -> anyhow::Result<()> {
        let name = self.name;
        readiness.block(name, "not listed yet");
        let objects = WATCHED_OBJECTS.gauge_handle(&[("watch", name.to_owned())]);
        let mut synced = false;
        let mut listed = BTreeSet::new();
        let mut live = BTreeSet::new();
        let mut events = watcher(self.api, self.config)
            .default_backoff()
            .inspect_err(|error| {
                WATCH_ERRORS.inc(&[("watch", name.to_owned())]);
                tracing::warn!(watch = name, error = %describe(error), "watch failed, trying again");
                if !synced_hint(error) {
                    readiness.block(name, describe(error));
                }
            })
            .boxed();
        loop {
            let event = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                event = events.next() => event,
            };
            match event {
                Some(Ok(Event::Init)) => listed.clear(),
                Some(Ok(Event::InitApply(object))) => {
                    listed.insert(ObjectKey::of(&object));
                    hear(Change::Applied(object));
                }
                Some(Ok(Event::InitDone)) => {
                    live = std::mem::take(&mut listed);
                    hear(Change::Synced(live.clone()));
                    if !synced {
                        tracing::info!(watch = name, objects = live.len(), "listed");
                    }
                    synced = true;
                    readiness.clear(name);
                }
                Some(Ok(Event::Apply(object))) => {
                    live.insert(ObjectKey::of(&object));
                    hear(Change::Applied(object));
                    readiness.clear(name);
                }
                Some(Ok(Event::Delete(object))) => {
                    let key = ObjectKey::of(&object);
                    live.remove(&key);
                    hear(Change::Deleted(key));
                }
                // Already logged; the watcher goes on.
                Some(Err(_)) => {}
                None => anyhow::bail!("the watch of {name} ended"),
            }
            objects.set(live.len() as f64);
        }
    }
}

/// Whether an index that was complete once may still be served while this error lasts: all but a lost permission,
/// which somebody has to mend.
fn synced_hint(error: &watcher::Error) -> bool {
    !matches!(code(error), Some(401 | 403))
}

fn code(error: &watcher::Error) -> Option<u16> {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => Some(status.code),
        _ => None,
    }
}

fn describe(error: &watcher::Error) -> String {
    // The chain says which stage failed and why; one line, no debug output.
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}
