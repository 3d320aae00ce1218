//! Watches the dependants that Services declare by an annotation.
//!
//! The API cannot select by annotation, so all Services of the seed are watched, but only their metadata. Of a Service
//! without the annotation only the name is kept.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::Config;
use tokio_util::sync::CancellationToken;
use watchdog_api::names::DEPENDANTS_ANNOTATION;
use watchdog_api::selector::Selector;
use watchdog_api::weeder::parse_dependants;
use watchdog_kube::events::{EventSink, Notice};
use watchdog_kube::watch::{Change, LIST_PAGE, Watch};
use watchdog_runtime::readiness::Readiness;

use super::{ObjectUpdate, malformed, reference, update};
use crate::domain::namespaced_name::NamespacedName;

/// The dependants that a Service declares; none if it declares none.
pub(crate) type Declaration = (NamespacedName, Option<Vec<Selector>>);

/// Watches the Services of all namespaces until `stop` is cancelled.
///
/// # Errors
/// As [`Watch::run`].
pub(crate) async fn watch(
    client: kube::Client,
    events: EventSink,
    readiness: Readiness,
    stop: CancellationToken,
    mut on_update: impl FnMut(ObjectUpdate<Declaration>) + Send,
) -> anyhow::Result<()> {
    let watch = Watch {
        name: "services",
        api: Api::<PartialObjectMeta<Service>>::all(client),
        config: Config::default().page_size(LIST_PAGE),
    };
    let mut reports = MalformedReports {
        events,
        reported: BTreeMap::new(),
    };
    let on_change = move |change: Change<PartialObjectMeta<Service>>| {
        let Some(update) = update(change, |service| reports.declaration(service.metadata)) else {
            return;
        };
        match &update {
            ObjectUpdate::Applied(_) => {}
            ObjectUpdate::Removed(key) => {
                reports.reported.remove(key);
            }
            ObjectUpdate::Synced(live) => reports.reported.retain(|key, _| live.contains(key)),
        }
        on_update(update);
    };
    watch.run(readiness, stop, on_change).await
}

struct MalformedReports {
    events: EventSink,
    // Malformed annotations that were reported, by their hash: a list shows them again.
    reported: BTreeMap<NamespacedName, u64>,
}

impl MalformedReports {
    fn declaration(&mut self, service: ObjectMeta) -> Option<Declaration> {
        let key = NamespacedName::new(service.namespace?, service.name?);
        let annotation = service
            .annotations
            .and_then(|mut annotations| annotations.remove(DEPENDANTS_ANNOTATION));
        let own = match annotation.as_deref().map(parse_dependants) {
            Some(Err(errors)) => {
                let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(&annotation);
                if self.reported.insert(key.clone(), hash) != Some(hash) {
                    self.report(&key, service.uid, &errors.to_string());
                }
                // It counts as none, whatever was there before.
                return Some((key, None));
            }
            Some(Ok(selectors)) => Some(selectors),
            None => None,
        };
        self.reported.remove(&key);
        Some((key, own))
    }

    /// Every replica reports, because the owner of the namespace may not be known yet.
    fn report(&self, key: &NamespacedName, uid: Option<String>, errors: &str) {
        malformed("annotation", &key.namespace, &key.name, errors);
        self.events.publish(Notice {
            about: reference("v1", "Service", &key.namespace, &key.name, uid.as_deref()),
            warning: true,
            reason: "MalformedDependants",
            action: "Ignored",
            note: format!("The annotation {DEPENDANTS_ANNOTATION} is ignored: {errors}"),
        });
    }
}
