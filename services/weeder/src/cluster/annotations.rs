//! Watches the dependants that Services declare by an annotation.
//!
//! The API cannot select by annotation, so all Services of the seed are watched, but only their metadata. Of a Service
//! without the annotation only the name is kept.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ObjectReference, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::Config;
use tokio_util::sync::CancellationToken;
use watchdog_api::names::DEPENDANTS_ANNOTATION;
use watchdog_api::selector::Selector;
use watchdog_api::weeder::parse_dependants;
use watchdog_kube::events::{EventSink, Notice};
use watchdog_kube::key::ObjectKey;
use watchdog_kube::watch::{Change, Watch};
use watchdog_runtime::readiness::Readiness;

use super::trimmed::malformed;
use crate::controller::shared::SharedState;
use crate::domain::service::ServiceKey;

/// Services in one page of a list: a seed may have tens of thousands.
const PAGE: u32 = 500;

/// Watches the Services of all namespaces until `stop` is cancelled.
///
/// # Errors
/// As [`Watch::run`].
pub(crate) async fn watch(
    client: kube::Client,
    state: Arc<SharedState>,
    events: EventSink,
    readiness: Readiness,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let watch = Watch {
        name: "services",
        api: Api::<PartialObjectMeta<Service>>::all(client),
        config: Config::default().page_size(PAGE),
    };
    let mut annotations = Annotations {
        state,
        events,
        reported: BTreeMap::new(),
        listed: false,
    };
    watch
        .run(readiness, stop, move |change| annotations.on_change(change))
        .await
}

struct Annotations {
    state: Arc<SharedState>,
    events: EventSink,
    // Malformed annotations that were reported, by their hash: a list shows them again.
    reported: BTreeMap<ServiceKey, u64>,
    listed: bool,
}

impl Annotations {
    fn on_change(&mut self, change: Change<PartialObjectMeta<Service>>) {
        match change {
            Change::ListBegins | Change::Failed | Change::Restored => {}
            Change::Applied(service) => self.applied(service.metadata),
            Change::Deleted(service) => {
                let key = ObjectKey::of(&service);
                self.forget(&ServiceKey::new(key.namespace, key.name));
            }
            Change::Synced(keys) => {
                let key = |key: ObjectKey| ServiceKey::new(key.namespace, key.name);
                let live: BTreeSet<ServiceKey> = keys.into_iter().map(key).collect();
                self.reported.retain(|key, _| live.contains(key));
                self.state
                    .update(|state, _, now| state.annotations_synced(&live, now));
                self.listed = true;
            }
        }
        // During the first list each name would cause another list of the slices.
        if self.listed {
            self.state.publish_annotated();
        }
    }

    fn applied(&mut self, mut service: ObjectMeta) {
        let (Some(namespace), Some(name)) = (service.namespace.take(), service.name.take()) else {
            return;
        };
        let key = ServiceKey::new(namespace, name);
        let annotation = service
            .annotations
            .and_then(|mut annotations| annotations.remove(DEPENDANTS_ANNOTATION));
        match annotation.as_deref().map(parse_dependants) {
            None => self.forget(&key),
            Some(Ok(selectors)) => {
                self.reported.remove(&key);
                self.set_dependants(&key, Some(selectors));
            }
            Some(Err(errors)) => {
                // It counts as none, whatever was there before.
                self.set_dependants(&key, None);
                let mut hasher = DefaultHasher::new();
                annotation.hash(&mut hasher);
                let hash = hasher.finish();
                if self.reported.insert(key.clone(), hash) != Some(hash) {
                    self.report(&key, service.uid, &errors.lines());
                }
            }
        }
    }

    fn forget(&mut self, key: &ServiceKey) {
        self.reported.remove(key);
        self.set_dependants(key, None);
    }

    fn set_dependants(&self, key: &ServiceKey, own: Option<Vec<Selector>>) {
        self.state
            .update(|state, _, now| state.set_dependants(key, own, now));
    }

    /// Every replica reports, because the owner of the namespace may not be known yet.
    fn report(&self, key: &ServiceKey, uid: Option<String>, errors: &str) {
        malformed("annotation", &key.namespace, &key.service, errors);
        self.events.publish(Notice {
            about: ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Service".to_owned()),
                namespace: Some(key.namespace.to_string()),
                name: Some(key.service.to_string()),
                uid,
                ..ObjectReference::default()
            },
            warning: true,
            reason: "MalformedDependants",
            action: "Ignored",
            note: format!("The annotation {DEPENDANTS_ANNOTATION} is ignored: {errors}"),
        });
    }
}
