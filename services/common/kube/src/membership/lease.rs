//! Lease objects: reading, writing, naming.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams, Preconditions};
use parking_lot::Mutex;
use rapidhash::v3::rapidhash_v3;

use super::card::{Card, Identity, Seen, Session, Stamp, View};
use super::timing::Timing;
use crate::client::{RequestError, request_within};

/// Label on every membership Lease: the service whose replica it is.
pub const SERVICE_LABEL: &str = "dependency-watchdog.gardener.cloud/service";
/// Annotation: the replica's name, also when it has released the Lease.
pub const IDENTITY_ANNOTATION: &str = "dependency-watchdog.gardener.cloud/identity";
/// Annotation: the replica's session, 16 hexadecimal digits.
pub const SESSION_ANNOTATION: &str = "dependency-watchdog.gardener.cloud/session";
/// Annotation: where the replica's gRPC API is reached.
pub const ADDRESS_ANNOTATION: &str = "dependency-watchdog.gardener.cloud/address";
/// Annotation: whom the replica considers live, a JSON object of identity to session.
pub const VIEW_ANNOTATION: &str = "dependency-watchdog.gardener.cloud/view";

/// Names of objects are DNS subdomains of at most so many characters.
const NAME_LIMIT: usize = 253;

/// Why a Lease with the label of the service is no membership Lease.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("no metadata.{0}")]
    Metadata(&'static str),
    #[error("no annotation {0}")]
    Missing(&'static str),
    #[error("annotation {0} cannot be read: {1}")]
    Unreadable(&'static str, String),
    #[error("the name does not go with the identity {0:?}")]
    WrongName(String),
    #[error("spec.holderIdentity {0:?} is not the identity")]
    WrongHolder(String),
}

/// The Leases of one service in one namespace.
#[derive(Debug)]
pub(crate) struct Leases {
    pub(crate) api: Api<Lease>,
    service: &'static str,
    /// The replica that writes its own; none when all are only read.
    me: Option<Identity>,
    deadline: Duration,
    duration_seconds: i32,
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
            api: Api::namespaced(client, namespace),
            service,
            me,
            deadline: timing.request,
            duration_seconds: i32::try_from(timing.lease.as_secs()).unwrap_or(i32::MAX).max(1),
            renewed: AtomicI64::new(0),
            reported: Mutex::new(HashMap::new()),
        }
    }

    /// What selects them.
    pub(crate) fn selector(&self) -> String {
        format!("{SERVICE_LABEL}={}", self.service)
    }

    /// All Leases that can be read. Without a resourceVersion: what is true now, not what some cache remembers.
    pub(crate) async fn list(&self) -> Result<Vec<Seen>, RequestError> {
        let params = ListParams::default().labels(&self.selector());
        let leases = request_within(self.deadline, self.api.list(&params)).await?;
        Ok(leases.items.iter().filter_map(|lease| self.read(lease)).collect())
    }

    /// Creates the own Lease, or replaces exactly that version of it.
    pub(crate) async fn write(&self, base: Option<Stamp>, card: &Card) -> Result<Stamp, RequestError> {
        let lease = self.lease(base.as_ref(), card);
        let name = name(self.service, &card.identity);
        let params = PostParams::default();
        let written = match base {
            None => request_within(self.deadline, self.api.create(&params, &lease)).await?,
            Some(_) => request_within(self.deadline, self.api.replace(&name, &params, &lease)).await?,
        };
        // Without a version the next write conflicts, and a list finds it.
        Ok(stamp(&written.metadata).unwrap_or_else(|_| Stamp {
            uid: "".into(),
            version: "".into(),
        }))
    }

    /// Deletes exactly that version of somebody's Lease.
    pub(crate) async fn delete(&self, identity: &str, stamp: &Stamp) -> Result<(), RequestError> {
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                resource_version: Some(stamp.version.to_string()),
                uid: Some(stamp.uid.to_string()),
            }),
            ..DeleteParams::default()
        };
        let name = name(self.service, identity);
        request_within(self.deadline, self.api.delete(&name, &params))
            .await
            .map(drop)
    }

    /// Reads a Lease. One that is malformed is reported, once, and is nobody's; but the own one cannot be written over
    /// as long as whoever spoiled it may be another process, so it counts as somebody else's.
    pub(crate) fn read(&self, lease: &Lease) -> Option<Seen> {
        let error = match parse(self.service, lease) {
            Ok(seen) => return Some(seen),
            Err(error) => error,
        };
        let name = lease.metadata.name.clone().unwrap_or_default();
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
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
            .filter(|me| self::name(self.service, me) == name)?;
        let (session, address, view, held) = (Session(0), Arc::from(""), View::new(), true);
        let card = Card {
            identity: Arc::clone(me),
            session,
            address,
            view,
            held,
        };
        Some(Seen {
            card,
            stamp: stamp(&lease.metadata).ok()?,
        })
    }

    fn lease(&self, base: Option<&Stamp>, card: &Card) -> Lease {
        // A write that changes nothing gets no new resourceVersion, and others would not see it.
        let now = Timestamp::now().as_microsecond();
        let last = self.renewed.fetch_max(now, Ordering::Relaxed);
        let now = if now > last {
            now
        } else {
            self.renewed.fetch_add(1, Ordering::Relaxed) + 1
        };
        let view: BTreeMap<&str, String> = card.view.iter().map(|(id, s)| (&**id, s.to_string())).collect();
        let annotations = [
            (IDENTITY_ANNOTATION, card.identity.to_string()),
            (SESSION_ANNOTATION, card.session.to_string()),
            (ADDRESS_ANNOTATION, card.address.to_string()),
            (VIEW_ANNOTATION, serde_json::json!(view).to_string()),
        ];
        let holder = if card.held {
            card.identity.to_string()
        } else {
            String::new()
        };
        Lease {
            metadata: ObjectMeta {
                name: Some(name(self.service, &card.identity)),
                uid: base.map(|base| base.uid.to_string()),
                resource_version: base.map(|base| base.version.to_string()),
                labels: Some([(SERVICE_LABEL.to_owned(), self.service.to_owned())].into()),
                annotations: Some(annotations.map(|(k, v)| (k.to_owned(), v)).into()),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(holder),
                lease_duration_seconds: Some(self.duration_seconds),
                renew_time: Timestamp::from_microsecond(now).ok().map(MicroTime),
                ..LeaseSpec::default()
            }),
        }
    }
}

/// The name of a replica's Lease. An identity that does not fit into an object name is replaced by what fits of it
/// and its hash.
#[must_use]
pub fn name(service: &str, identity: &str) -> String {
    let name = format!("dependency-watchdog-{service}-{identity}");
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let fits = name.len() <= NAME_LIMIT && identity.chars().all(plain) && !identity.ends_with('-');
    if fits && !identity.is_empty() {
        return name;
    }
    let hash = format!("{:016x}", rapidhash_v3(identity.as_bytes()));
    let mut name: String = name.chars().map(|c| if plain(c) { c } else { '-' }).collect();
    // Nothing but ASCII is left, so every byte is a character.
    name.truncate(NAME_LIMIT - hash.len() - 1);
    format!("{}-{hash}", name.trim_end_matches('-'))
}

fn stamp(metadata: &ObjectMeta) -> Result<Stamp, Malformed> {
    let uid = metadata.uid.as_deref().ok_or(Malformed::Metadata("uid"))?;
    let version = metadata
        .resource_version
        .as_deref()
        .ok_or(Malformed::Metadata("resourceVersion"))?;
    Ok(Stamp {
        uid: uid.into(),
        version: version.into(),
    })
}

fn parse(service: &str, lease: &Lease) -> Result<Seen, Malformed> {
    let stamp = stamp(&lease.metadata)?;
    let text = |key: &'static str| {
        let annotations = lease.metadata.annotations.as_ref();
        annotations
            .and_then(|a| a.get(key))
            .ok_or(Malformed::Missing(key))
    };
    let unreadable = |key| move |error: &dyn std::fmt::Display| Malformed::Unreadable(key, error.to_string());
    let identity: Identity = text(IDENTITY_ANNOTATION)?.as_str().into();
    if lease.metadata.name.as_deref() != Some(&name(service, &identity)) {
        return Err(Malformed::WrongName(identity.to_string()));
    }
    let holder = lease
        .spec
        .as_ref()
        .and_then(|spec| spec.holder_identity.as_deref())
        .unwrap_or_default();
    if !holder.is_empty() && holder != &*identity {
        return Err(Malformed::WrongHolder(holder.to_owned()));
    }
    let session = text(SESSION_ANNOTATION)?;
    let session = session.parse().map_err(|e| unreadable(SESSION_ANNOTATION)(&e))?;
    let view: BTreeMap<Identity, String> =
        serde_json::from_str(text(VIEW_ANNOTATION)?).map_err(|e| unreadable(VIEW_ANNOTATION)(&e))?;
    let view = view
        .into_iter()
        .map(|(identity, session)| Ok((identity, session.parse()?)))
        .collect::<Result<View, std::num::ParseIntError>>()
        .map_err(|e| unreadable(VIEW_ANNOTATION)(&e))?;
    let address = text(ADDRESS_ANNOTATION)?.as_str().into();
    let held = !holder.is_empty();
    Ok(Seen {
        card: Card {
            identity,
            session,
            address,
            view,
            held,
        },
        stamp,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_valid_and_distinct() {
        assert_eq!(
            name("weeder", "weeder-6c9f-abcde"),
            "dependency-watchdog-weeder-weeder-6c9f-abcde"
        );
        let long = "x".repeat(300);
        for identity in ["Host_Name", "host.name", "host-name-", "", "é", long.as_str()] {
            let name = name("weeder", identity);
            assert!(name.len() <= NAME_LIMIT, "{name}");
            assert!(
                name.chars()
                    .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'),
                "{name}"
            );
            assert!(!name.ends_with('-'), "{name}");
        }
        assert_ne!(name("weeder", "a_b"), name("weeder", "a.b"));
    }

    fn leases() -> Leases {
        let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let client = kube::Client::try_from(config).unwrap();
        Leases::new(client, "garden", "weeder", Some("a".into()), &Timing::PRODUCTION)
    }

    fn card() -> Card {
        Card {
            identity: "a".into(),
            session: Session(7),
            address: "10.0.0.1:9645".into(),
            view: [("a".into(), Session(7)), ("b".into(), Session(u64::MAX))].into(),
            held: true,
        }
    }

    #[tokio::test]
    async fn a_card_survives_its_lease() {
        let leases = leases();
        let base = Stamp {
            uid: "u".into(),
            version: "5".into(),
        };
        for card in [
            card(),
            Card {
                held: false,
                ..card()
            },
        ] {
            let lease = leases.lease(Some(&base), &card);
            let spec = lease.spec.clone().unwrap();
            assert_eq!(
                spec.holder_identity.as_deref(),
                Some(if card.held { "a" } else { "" })
            );
            assert_eq!(
                leases.read(&lease),
                Some(Seen {
                    card,
                    stamp: base.clone()
                })
            );
        }
    }

    #[tokio::test]
    async fn every_write_differs_from_the_one_before() {
        let leases = leases();
        let mut before = None;
        for _ in 0..1000 {
            let time = leases.lease(None, &card()).spec.unwrap().renew_time;
            assert!(time > before, "{time:?} after {before:?}");
            before = time;
        }
    }

    #[tokio::test]
    async fn malformed_leases_are_nobodys_but_the_own_one_is_taken() {
        let leases = leases();
        let base = Stamp {
            uid: "u".into(),
            version: "5".into(),
        };
        let good = |identity: &str| {
            leases.lease(
                Some(&base),
                &Card {
                    identity: identity.into(),
                    ..card()
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
        for lease in bad("b") {
            assert_eq!(leases.read(&lease), None, "{lease:?}");
        }
        for lease in bad("a") {
            let seen = leases.read(&lease).unwrap();
            assert!(seen.card.held && seen.card.session == Session(0) && seen.card.view.is_empty());
        }
    }
}
