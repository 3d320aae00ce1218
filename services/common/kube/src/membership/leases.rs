//! The Leases of a service in the API server: requests, with a deadline each, and a watch.

use std::collections::HashMap;
use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, ListParams, PostParams, Preconditions};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use parking_lot::Mutex;
use serde::de::Error as _;
use watchdog_runtime::readiness::Readiness;

use super::lease::{self, SERVICE_LABEL};
use super::record::{Identity, LeaseVersion, MemberRecord, ObservedLease, SeenSessions, Session};
use super::timing::Timing;
use crate::client::{RequestError, WATCH_SECONDS, request_within};
use crate::metrics::{WATCH_ERRORS, WatchName};
use crate::stored_lease;
use crate::watch::{self, WatchBackoff};

/// The Leases of one service in one namespace.
#[derive(Debug)]
pub(crate) struct Leases {
    api: Api<Lease>,
    /// The same, read so that none can spoil the list of all.
    stored: Api<DynamicObject>,
    service: &'static str,
    /// The replica that writes its own; none when all are only read.
    me: Option<Identity>,
    deadline: Duration,
    /// Last renewTime written, in microseconds since the epoch.
    renewed: AtomicI64,
    /// Malformed Leases that were reported: name and resourceVersion.
    reported: Mutex<HashMap<String, String>>,
}

// === impl Leases ===

impl Leases {
    pub(crate) fn new(
        client: kube::Client,
        namespace: &str,
        service: &'static str,
        me: Option<Identity>,
        timing: &Timing,
    ) -> Self {
        Self {
            stored: stored_lease::api(client.clone(), namespace),
            api: Api::namespaced(client, namespace),
            service,
            me,
            deadline: timing.request,
            renewed: AtomicI64::new(0),
            reported: Mutex::new(HashMap::new()),
        }
    }

    /// The label selector of membership Leases.
    fn selector(&self) -> String {
        format!("{SERVICE_LABEL}={}", self.service)
    }

    /// The changes of the Leases: one that was seen, or none where only a list can tell what changed. A watch that
    /// fails is reported under the `name` of a loop, and opened again.
    pub(crate) fn watch(
        leases: &Arc<Self>,
        name: &'static str,
        readiness: &Readiness,
    ) -> BoxStream<'static, Option<ObservedLease>> {
        let config = watcher::Config::default()
            .labels(&leases.selector())
            .timeout(WATCH_SECONDS);
        let events = watcher(leases.stored.clone(), config).backoff(WatchBackoff::new());
        let (leases, readiness) = (Arc::clone(leases), readiness.clone());
        let changes = events.filter_map(move |event| {
            ready(match event {
                Ok(Event::Apply(lease) | Event::InitApply(lease)) => Some(leases.read(lease)),
                Ok(Event::Delete(_) | Event::InitDone) => Some(None),
                Ok(Event::Init) => None,
                Err(error) => {
                    WATCH_ERRORS.inc(WatchName("membership"));
                    let (service, failure) = (leases.service, watch::failure(&error));
                    let reason = failure.reason.as_str();
                    tracing::warn!(
                        service,
                        reason,
                        error = %failure,
                        "the watch of the membership leases failed; trying again"
                    );
                    readiness.failing(name, failure);
                    None
                }
            })
        });
        changes.boxed()
    }

    /// All Leases that can be read. Without a resourceVersion: what is true now, not what some cache remembers.
    pub(crate) async fn list(&self) -> Result<Vec<ObservedLease>, RequestError> {
        let params = ListParams::default().labels(&self.selector());
        let leases = request_within(self.deadline, self.stored.list(&params)).await?;
        Ok(leases.into_iter().filter_map(|lease| self.read(lease)).collect())
    }

    /// Creates the own Lease, or replaces exactly that version of it.
    pub(crate) async fn write(
        &self,
        base: Option<LeaseVersion>,
        record: &MemberRecord,
    ) -> Result<LeaseVersion, RequestError> {
        let object = self.lease(base.as_ref(), record);
        let name = lease::name(self.service, &record.identity);
        let params = PostParams::default();
        let written = match base {
            None => request_within(self.deadline, self.api.create(&params, &object)).await?,
            Some(_) => request_within(self.deadline, self.api.replace(&name, &params, &object)).await?,
        };
        // As if there were no answer: the next write conflicts, and a list tells how things are.
        lease::lease_version(&written.metadata)
            .map_err(|error| kube::Error::SerdeError(serde_json::Error::custom(error)).into())
    }

    /// Deletes exactly that version of somebody's Lease.
    pub(crate) async fn delete(
        &self,
        identity: &str,
        lease_version: &LeaseVersion,
    ) -> Result<(), RequestError> {
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                resource_version: Some(lease_version.version.to_string()),
                uid: Some(lease_version.uid.to_string()),
            }),
            ..DeleteParams::default()
        };
        let name = lease::name(self.service, identity);
        request_within(self.deadline, self.api.delete(&name, &params))
            .await
            .map(drop)
    }

    /// Reads a Lease. One that is malformed is reported, once, and has no owner; but the own one cannot be written over
    /// as long as the process that spoiled it may be another one, so it counts as somebody else's.
    fn read(&self, stored: DynamicObject) -> Option<ObservedLease> {
        let metadata = stored.metadata.clone();
        let lease = stored_lease::lease(stored).map_err(anyhow::Error::from);
        let error = match lease.and_then(|lease| lease::parse(self.service, &lease)) {
            Ok(seen) => return Some(seen),
            Err(error) => error,
        };
        let name = metadata.name.clone().unwrap_or_default();
        let version = metadata.resource_version.clone().unwrap_or_default();
        let mut reported = self.reported.lock();
        if reported.insert(name.clone(), version.clone()).as_ref() != Some(&version) {
            tracing::warn!(service = self.service, lease = name, %error, "ignoring a malformed membership lease");
        }
        if reported.len() > 1000 {
            reported.clear();
        }
        drop(reported);
        let me = self
            .me
            .as_ref()
            .filter(|me| lease::name(self.service, me) == name)?;
        let (session, address, view, held) = (Session(0), Arc::from(""), SeenSessions::new(), true);
        let record = MemberRecord {
            identity: Arc::clone(me),
            session,
            address,
            view,
            pod: None,
            held,
        };
        Some(ObservedLease {
            record,
            lease_version: lease::lease_version(&metadata).ok()?,
        })
    }

    fn lease(&self, base: Option<&LeaseVersion>, record: &MemberRecord) -> Lease {
        // A write that changes nothing gets no new resourceVersion, and others would not see it.
        let last = self.renewed.load(Ordering::Relaxed);
        let renewed = Timestamp::now().as_microsecond().max(last + 1);
        self.renewed.store(renewed, Ordering::Relaxed);
        lease::render(self.service, base, record, renewed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::lease::{ADDRESS_ANNOTATION, IDENTITY_ANNOTATION, SESSION_ANNOTATION, VIEW_ANNOTATION};
    use super::*;

    fn leases() -> Leases {
        let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let client = kube::Client::try_from(config).unwrap();
        Leases::new(client, "garden", "weeder", Some("a".into()), &Timing::PRODUCTION)
    }

    fn stored(lease: &Lease) -> DynamicObject {
        serde_json::from_value(serde_json::to_value(lease).unwrap()).unwrap()
    }

    fn record() -> MemberRecord {
        MemberRecord {
            identity: "a".into(),
            session: Session(7),
            address: "10.0.0.1:9645".into(),
            view: [("a".into(), Session(7)), ("b".into(), Session(u64::MAX))].into(),
            pod: Some("0a1b".into()),
            held: true,
        }
    }

    #[tokio::test]
    async fn a_record_survives_its_lease() {
        let leases = leases();
        let base = LeaseVersion {
            uid: "u".into(),
            version: "5".into(),
        };
        for record in [
            record(),
            MemberRecord {
                held: false,
                pod: None,
                ..record()
            },
        ] {
            let lease = leases.lease(Some(&base), &record);
            let spec = lease.spec.clone().unwrap();
            assert_eq!(
                spec.holder_identity.as_deref(),
                Some(if record.held { "a" } else { "" })
            );
            assert_eq!(
                leases.read(stored(&lease)),
                Some(ObservedLease {
                    record,
                    lease_version: base.clone()
                })
            );
        }
    }

    #[tokio::test]
    async fn every_write_differs_from_the_one_before() {
        let leases = leases();
        let mut before = None;
        for _ in 0..1000 {
            let time = leases.lease(None, &record()).spec.unwrap().renew_time;
            assert!(time > before, "{time:?} after {before:?}");
            before = time;
        }
    }

    #[tokio::test]
    async fn a_malformed_lease_has_no_owner_but_the_own_one_is_taken() {
        let leases = leases();
        let base = LeaseVersion {
            uid: "u".into(),
            version: "5".into(),
        };
        let good = |identity: &str| {
            leases.lease(
                Some(&base),
                &MemberRecord {
                    identity: identity.into(),
                    ..record()
                },
            )
        };
        let annotate = |mut lease: Lease, key: &str, value: Option<&str>| {
            let annotations = lease.metadata.annotations.as_mut().unwrap();
            match value {
                Some(value) => annotations.insert(key.to_owned(), value.to_owned()),
                None => annotations.remove(key),
            };
            lease
        };
        let bad = |identity: &str| {
            let mut held_by_another = good(identity);
            held_by_another.spec.as_mut().unwrap().holder_identity = Some("z".to_owned());
            vec![
                annotate(good(identity), SESSION_ANNOTATION, None),
                annotate(good(identity), SESSION_ANNOTATION, Some("xyz")),
                annotate(good(identity), VIEW_ANNOTATION, Some("[1]")),
                annotate(good(identity), VIEW_ANNOTATION, Some("{\"b\":\"?\"}")),
                annotate(good(identity), IDENTITY_ANNOTATION, Some("c")),
                annotate(good(identity), ADDRESS_ANNOTATION, None),
                held_by_another,
            ]
        };
        let mut untimely = stored(&good("b"));
        untimely.data["spec"]["renewTime"] = "9999-12-31T23:59:59.000000Z".into();
        assert!(
            leases.read(untimely).is_some(),
            "jiff cannot read that time, and Go can"
        );
        let mut of_other_types = stored(&good("b"));
        of_other_types.data["spec"]["holderIdentity"] = 1.into();
        assert_eq!(leases.read(of_other_types), None);
        for lease in bad("b") {
            assert_eq!(leases.read(stored(&lease)), None, "{lease:?}");
        }
        for lease in bad("a") {
            let seen = leases.read(stored(&lease)).unwrap();
            assert!(seen.record.held && seen.record.session == Session(0) && seen.record.view.is_empty());
        }
    }
}
