//! Follows the dependants of all weeders that live.
//!
//! One watch for each *selector*, over all namespaces, however many services became ready: a thousand weeders of the
//! same service in a thousand namespaces share one. It begins at the present, without a list of what exists: a weeder
//! lists its own namespace, after the watch has begun, and hears everything later from the watch. So the cost is that
//! of the changes of dependants while somebody needs them, and nothing while no weeder lives. (A watch for each weeder
//! would take a thousand connections in the worst moment; looking again at intervals would either be late or ask a
//! hundred times a second.)

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::Api;
use kube::api::{ListParams, WatchEvent, WatchParams};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use watchdog_kube::client::{RequestError, WATCH_SECONDS, request};
use watchdog_runtime::backoff::Backoff;
use watchdog_runtime::failure::Failure;
use watchdog_runtime::readiness::Readiness;

use super::objects::PodObject;
use crate::domain::dependants::Query;
use crate::domain::pods::PodKey;
use crate::metrics;
use crate::state::State;

/// Name of these watches in /readyz and in metrics.
const LOOP: &str = "pods";

/// So long after that the connection counts as dead.
const DEAD_AFTER: Duration = Duration::from_secs(5);

/// While a watch is refused, its weeders look again at the pace of the tries; this is the slowest.
const SLOWEST_BEGINNING: Duration = Duration::from_secs(30);

/// Slowest pace at which a lost connection is opened again.
const SLOWEST_RESUMPTION: Duration = Duration::from_secs(5);

/// Keeps the watches open that the weeders need, until `stop` is cancelled.
///
/// # Errors
/// When a watch panics.
pub async fn follow(
    client: kube::Client,
    state: Arc<State>,
    readiness: Readiness,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let open_watches = metrics::POD_WATCHES.gauge_handle(&[]);
    let mut wanted = state.watches();
    let mut open: BTreeMap<Query, CancellationToken> = BTreeMap::new();
    let mut tasks = JoinSet::new();
    loop {
        let queries = wanted.borrow_and_update().clone();
        open.retain(|query, watch| {
            let keep = queries.contains(query);
            if !keep {
                watch.cancel();
            }
            keep
        });
        for query in queries {
            open.entry(query).or_insert_with_key(|query| {
                let stop = stop.child_token();
                let watch = PodWatch {
                    client: client.clone(),
                    state: state.clone(),
                    readiness: readiness.part(&instance(query)),
                    query: query.clone(),
                };
                let ended = stop.clone();
                tasks.spawn(async move {
                    let readiness = watch.readiness.clone();
                    tokio::select! {
                        () = ended.cancelled() => {}
                        () = watch.run() => {}
                    }
                    readiness.recovered(LOOP);
                });
                stop
            });
        }
        open_watches.set(open.len() as f64);
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            // The state holds the sender.
            _ = wanted.changed() => {}
            Some(ended) = tasks.join_next() => ended?,
        }
    }
}

struct PodWatch {
    client: kube::Client,
    state: Arc<State>,
    readiness: Readiness,
    query: Query,
}

/// The name of a watch in /readyz.
fn instance(query: &Query) -> String {
    match query {
        Query::All => "all".to_owned(),
        Query::Labels(labels) => labels.to_string(),
    }
}

/// How a watch came to its end.
enum End {
    /// As agreed: the next one goes on where it was.
    Resume,
    /// With its connection: the same.
    Broken(Failure),
    /// What came in between is not known.
    Gap(Failure),
}

impl PodWatch {
    async fn run(self) {
        const FIRST: Duration = Duration::from_millis(100);
        let mut resumption = Backoff::new(FIRST, SLOWEST_RESUMPTION);
        let mut beginning = Backoff::new(FIRST, SLOWEST_BEGINNING);
        let mut version = None;
        loop {
            let since = match version.take() {
                Some(version) => Ok(version),
                None => self.begin().await.map_err(|error| error.failure()),
            };
            let begun = Instant::now();
            let gap = match since {
                Ok(mut since) => match self.watch(&mut since).await {
                    End::Resume => {
                        version = Some(since);
                        None
                    }
                    End::Broken(failure) => {
                        self.failed(failure, "watch on pods broke, opening it again");
                        version = Some(since);
                        None
                    }
                    End::Gap(why) => Some(why),
                },
                Err(why) => Some(why),
            };
            // One that lived for a while was a success, however it ended.
            if begun.elapsed() > DEAD_AFTER {
                resumption.reset();
                beginning.reset();
            }
            let pause = match gap {
                None => resumption.next_delay(),
                Some(why) => {
                    metrics::POD_WATCH_ERRORS.inc(&[]);
                    self.failed(why, "watch on pods lost, beginning anew");
                    beginning.next_delay()
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    fn failed(&self, failure: Failure, what: &str) {
        let reason = failure.reason.as_str();
        tracing::warn!(query = ?self.query, reason, error = %failure, "{what}");
        self.readiness.failing(LOOP, failure);
    }

    /// The present version of the collection. What is listed from now on is at least as new, so a weeder that looks
    /// now and then follows the watch misses nothing.
    async fn begin(&self) -> Result<String, RequestError> {
        let pods: Api<PodObject> = Api::all(self.client.clone());
        let page = request(pods.list_metadata(&ListParams::default().limit(1))).await?;
        self.state
            .update(|model, _, now| model.weeding.look_again(&self.query, now));
        Ok(page.metadata.resource_version.unwrap_or_default())
    }

    /// Watches from `version` on, which moves along.
    async fn watch(&self, version: &mut String) -> End {
        let mut params = WatchParams::default().timeout(WATCH_SECONDS);
        if let Query::Labels(labels) = &self.query {
            params = params.labels(labels);
        }
        let pods: Api<PodObject> = Api::all(self.client.clone());
        let mut events = match request(pods.watch(&params, version)).await {
            Ok(events) => events.boxed(),
            Err(error @ RequestError::Refused(_)) => return End::Gap(error.failure()),
            Err(error) => return End::Broken(error.failure()),
        };
        self.readiness.recovered(LOOP);
        let dead = tokio::time::sleep(Duration::from_secs(WATCH_SECONDS.into()) + DEAD_AFTER);
        tokio::pin!(dead);
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                () = &mut dead => return End::Resume,
            };
            match event {
                Some(Ok(WatchEvent::Added(pod) | WatchEvent::Modified(pod))) => self.seen(pod, version),
                Some(Ok(WatchEvent::Deleted(pod))) => self.gone(pod, version),
                Some(Ok(WatchEvent::Bookmark(bookmark))) => *version = bookmark.metadata.resource_version,
                Some(Ok(WatchEvent::Error(status)) | Err(kube::Error::Api(status))) => {
                    return End::Gap(RequestError::Refused(status).failure());
                }
                Some(Err(error @ kube::Error::SerdeError(_))) => {
                    return End::Gap(RequestError::from(error).failure());
                }
                Some(Err(error)) => return End::Broken(RequestError::from(error).failure()),
                None => return End::Resume,
            }
        }
    }

    fn seen(&self, pod: PodObject, version: &mut String) {
        if let Some(pod) = pod.into_pod() {
            version.clone_from(&pod.resource_version);
            self.state.update(|model, _, now| model.weeding.seen(pod, now));
        }
    }

    fn gone(&self, pod: PodObject, version: &mut String) {
        if let Some(pod) = pod.into_pod() {
            version.clone_from(&pod.resource_version);
            let key: &PodKey = &pod.key;
            self.state.update(|model, _, _| model.weeding.gone(key));
        }
    }
}
