//! Watches the namespaces: a weeder ends with its own.

use std::sync::Arc;

use kube::Api;
use kube::runtime::watcher::Config;
use tokio_util::sync::CancellationToken;
use watchdog_kube::key::ObjectKey;
use watchdog_kube::watch::{Change, Watch};
use watchdog_runtime::readiness::Readiness;

use super::objects::NamespaceObject;
use crate::controller::shared::SharedState;

/// Watches the namespaces until `stop` is cancelled.
///
/// # Errors
/// As [`Watch::run`].
pub(crate) async fn watch(
    client: kube::Client,
    state: Arc<SharedState>,
    readiness: Readiness,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let watch = Watch {
        name: "namespaces",
        api: Api::<NamespaceObject>::all(client),
        config: Config::default(),
    };
    watch
        .run(readiness, stop, move |change| match change {
            Change::ListBegins | Change::Failed | Change::Restored => {}
            Change::Applied(namespace) => {
                let (name, terminating) = namespace.name_and_end();
                state.update(|state, _, now| state.namespace_applied(name, terminating, now));
            }
            Change::Deleted(namespace) => {
                let name = ObjectKey::of(&namespace).name;
                state.update(|state, _, now| state.namespace_removed(&name, now));
            }
            Change::Synced(keys) => {
                let live = keys.into_iter().map(|key| key.name).collect();
                state.update(|state, _, now| state.namespaces_synced(&live, now));
            }
        })
        .await
}
