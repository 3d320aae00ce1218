//! Watches the namespaces: a weeder ends with its own.

use kube::Api;
use kube::runtime::watcher::Config;
use tokio_util::sync::CancellationToken;
use watchdog_kube::watch::Watch;
use watchdog_runtime::readiness::Readiness;

use super::objects::NamespaceObject;
use super::{ObjectUpdate, update};
use crate::domain::namespaces::Namespace;

/// Watches the namespaces until `stop` is cancelled. An update has the name.
///
/// # Errors
/// As [`Watch::run`].
pub(crate) async fn watch(
    client: kube::Client,
    readiness: Readiness,
    stop: CancellationToken,
    mut on_update: impl FnMut(ObjectUpdate<(String, Namespace)>) + Send,
) -> anyhow::Result<()> {
    let watch = Watch {
        name: "namespaces",
        api: Api::<NamespaceObject>::all(client),
        config: Config::default(),
    };
    let on_change = move |change| {
        if let Some(update) = update(change, NamespaceObject::into_namespace) {
            on_update(update);
        }
    };
    watch.run(readiness, stop, on_change).await
}
