//! Follows the dependants that Services declare by an annotation.
//!
//! Annotations cannot be selected, so all Services of the seed are watched, but only their metadata, and nothing is
//! kept of those without the annotation but their names.

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
use crate::domain::service::ServiceKey;
use crate::state::State;

/// Services in one page of a list, so that a seed with tens of thousands never has all in memory at once.
const PAGE: u32 = 500;

/// Follows the Services of all namespaces until `stop` is cancelled.
///
/// # Errors
/// As [`Watch::run`].
pub async fn follow(
    client: kube::Client,
    state: Arc<State>,
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
        .run(readiness, stop, move |change| annotations.hear(change))
        .await
}

struct Annotations {
    state: Arc<State>,
    events: EventSink,
    // Malformed annotations that were reported, by their hash: a list shows them again.
    reported: BTreeMap<ServiceKey, u64>,
    listed: bool,
}

impl Annotations {
    fn hear(&mut self, change: Change<PartialObjectMeta<Service>>) {
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
                    .update(|model, _, now| model.annotations_synced(&live, now));
                self.listed = true;
            }
        }
        // In the middle of the first list each name would have the slices listed again.
        if self.listed {
            self.state.follow_annotated();
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
                self.declare(&key, Some(selectors));
            }
            Some(Err(errors)) => {
                // As if there were none, so that it does not matter what was there before.
                self.declare(&key, None);
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
        self.declare(key, None);
    }

    fn declare(&self, key: &ServiceKey, own: Option<Vec<Selector>>) {
        self.state
            .update(|model, _, now| model.service_annotated(key, own, now));
    }

    /// Every replica does: which of them owns the namespace may not be known yet.
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
