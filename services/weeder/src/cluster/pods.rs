//! Watches the pods that may be dependants.

use kube::Api;
use kube::runtime::watcher::Config;
use tokio_util::sync::CancellationToken;
use watchdog_kube::watch::{LIST_PAGE, Watch};
use watchdog_runtime::readiness::Readiness;

use super::objects::PodObject;
use super::{ObjectUpdate, update};
use crate::domain::dependants::PodQuery;
use crate::domain::pods::Pod;

/// Watches the pods of a query until `stop` is cancelled.
///
/// # Errors
/// As [`Watch::run`].
pub(crate) async fn watch(
    client: kube::Client,
    query: &PodQuery,
    readiness: Readiness,
    stop: CancellationToken,
    mut on_update: impl FnMut(ObjectUpdate<Pod>) + Send,
) -> anyhow::Result<()> {
    let mut config = Config::default().page_size(LIST_PAGE);
    if let Some(labels) = &query.labels {
        config = config.labels(labels);
    }
    let watch = Watch {
        name: "pods",
        api: match &query.namespace {
            Some(namespace) => Api::<PodObject>::namespaced(client, namespace),
            None => Api::all(client),
        },
        config,
    };
    let on_change = move |change| {
        if let Some(update) = update(change, PodObject::into_pod) {
            on_update(update);
        }
    };
    watch.run(readiness, stop, on_change).await
}
