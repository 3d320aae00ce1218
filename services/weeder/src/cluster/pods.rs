//! Watches the pods that may be dependants.
//!
//! One watch for each selector, over all namespaces and for as long as the weeder runs, so that the pods in a crash loop
//! are known at the moment at which their service becomes ready. A list for each recovery would take 20,000 requests
//! when a seed with 10,000 shoots recovers. Only pods in a crash loop are kept.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::Api;
use kube::runtime::watcher::Config;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use watchdog_kube::key::ObjectKey;
use watchdog_kube::watch::{Change, Watch};
use watchdog_runtime::readiness::Readiness;

use super::objects::PodObject;
use crate::controller::shared::SharedState;
use crate::domain::dependants::{MAX_WATCHES, PodQuery};
use crate::domain::pods::PodKey;
use crate::metrics;

/// Name of these watches in /readyz, logs and metrics.
const WATCH: &str = "pods";

/// Pods in one page of a list: a page stays below some megabytes.
const PAGE: u32 = 500;

/// Keeps the watches open that are needed, until `stop` is cancelled.
///
/// # Errors
/// When a watch panics.
pub(crate) async fn watch(
    client: kube::Client,
    state: Arc<SharedState>,
    readiness: Readiness,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut needed = state.pod_queries();
    let mut open: BTreeMap<PodQuery, CancellationToken> = BTreeMap::new();
    let mut tasks = JoinSet::new();
    loop {
        let queries = needed.borrow_and_update().clone();
        open.retain(|query, watch| {
            let keep = queries.contains(query);
            if !keep {
                watch.cancel();
                // What it saw is not updated any more; another watch lists it.
                state.update(|state, _, _| state.manager.pods_synced(query, &Default::default()));
            }
            keep
        });
        if queries.contains(&PodQuery::default()) && !open.contains_key(&PodQuery::default()) {
            tracing::warn!(
                limit = MAX_WATCHES,
                "more selectors than watches on pods, watching all pods of the seed; use fewer selectors"
            );
        }
        for query in queries {
            open.entry(query).or_insert_with_key(|query| {
                let stop = stop.child_token();
                let instance = readiness.part(&instance(query));
                tasks.spawn(watch_query(
                    client.clone(),
                    query.clone(),
                    state.clone(),
                    instance,
                    stop.clone(),
                ));
                stop
            });
        }
        metrics::count_pod_watches(open.keys());
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            // The state holds the sender.
            _ = needed.changed() => {}
            Some(ended) = tasks.join_next() => ended??,
        }
    }
}

async fn watch_query(
    client: kube::Client,
    query: PodQuery,
    state: Arc<SharedState>,
    readiness: Readiness,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let api: Api<PodObject> = match &query.namespace {
        Some(namespace) => Api::namespaced(client, namespace),
        None => Api::all(client),
    };
    let mut config = Config::default().page_size(PAGE);
    if let Some(labels) = &query.labels {
        config = config.labels(labels);
    }
    let watch = Watch {
        name: WATCH,
        api,
        config,
    };
    let query = Arc::new(query);
    let pod_key = |key: ObjectKey| PodKey {
        namespace: key.namespace.into(),
        name: key.name.into(),
    };
    let on_change = move |change| match change {
        Change::ListBegins | Change::Failed | Change::Restored => {}
        Change::Applied(object) => {
            if let Some(pod) = PodObject::into_pod(object) {
                state.update(|state, _, now| state.manager.pod_seen(pod, &query, now));
            }
        }
        Change::Deleted(object) => {
            let key = pod_key(ObjectKey::of(&object));
            state.update(|state, _, _| state.manager.pod_gone(&key));
        }
        Change::Synced(keys) => {
            let live = keys.into_iter().map(pod_key).collect();
            state.update(|state, _, _| state.manager.pods_synced(&query, &live));
        }
    };
    watch.run(readiness, stop, on_change).await
}

/// The name of a watch in /readyz.
fn instance(query: &PodQuery) -> String {
    let labels = query.labels.as_deref().unwrap_or("all");
    match &query.namespace {
        Some(namespace) => format!("{namespace}: {labels}"),
        None => labels.to_owned(),
    }
}
