//! Lease objects: what they are called and what they say.

use std::collections::BTreeMap;
use std::fmt::Display;

use anyhow::{Context as _, anyhow, ensure};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use rapidhash::v3::rapidhash_v3;

use super::record::{Identity, LeaseVersion, MemberRecord, ObservedLease, SeenSessions};

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

/// Annotation: UID of the replica's Pod, where it is known.
pub const POD_ANNOTATION: &str = "dependency-watchdog.gardener.cloud/pod-uid";

/// `spec.leaseDurationSeconds`, for people and tools; nothing here reads it.
const LEASE_DURATION_SECONDS: i32 = 15;

/// Names of objects are DNS subdomains of at most this many characters.
const NAME_LIMIT: usize = 253;

/// Characters of foreign text that a reason shows.
const LONGEST_QUOTE: usize = 100;

fn quote(text: &str) -> String {
    text.chars().take(LONGEST_QUOTE).collect()
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

pub(crate) fn lease_version(metadata: &ObjectMeta) -> anyhow::Result<LeaseVersion> {
    let uid = metadata.uid.as_deref().context("no metadata.uid")?;
    let version = metadata.resource_version.as_deref();
    let version = version.context("no metadata.resourceVersion")?;
    Ok(LeaseVersion {
        uid: uid.into(),
        version: version.into(),
    })
}

/// The Lease with this record, renewed at `renewed`, in microseconds since the epoch.
pub(crate) fn render(
    service: &str,
    base: Option<&LeaseVersion>,
    record: &MemberRecord,
    renewed: i64,
) -> Lease {
    let view: BTreeMap<&str, String> = record.view.iter().map(|(id, s)| (&**id, s.to_string())).collect();
    let annotations = [
        (IDENTITY_ANNOTATION, record.identity.to_string()),
        (SESSION_ANNOTATION, record.session.to_string()),
        (ADDRESS_ANNOTATION, record.address.to_string()),
        (VIEW_ANNOTATION, serde_json::json!(view).to_string()),
    ];
    let pod = record.pod.as_deref().map(|uid| (POD_ANNOTATION, uid.to_owned()));
    let annotations = annotations.into_iter().chain(pod);
    let holder = if record.held {
        record.identity.to_string()
    } else {
        String::new()
    };
    Lease {
        metadata: ObjectMeta {
            name: Some(name(service, &record.identity)),
            uid: base.map(|base| base.uid.to_string()),
            resource_version: base.map(|base| base.version.to_string()),
            labels: Some([(SERVICE_LABEL.to_owned(), service.to_owned())].into()),
            annotations: Some(annotations.map(|(k, v)| (k.to_owned(), v)).collect()),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(holder),
            lease_duration_seconds: Some(LEASE_DURATION_SECONDS),
            renew_time: Timestamp::from_microsecond(renewed).ok().map(MicroTime),
            ..LeaseSpec::default()
        }),
    }
}

/// Reads a membership Lease and writes it again from what was read. For the fuzz targets in `fuzz/`.
///
/// # Errors
/// Why it is no membership Lease.
pub fn rewrite(service: &str, lease: &Lease) -> anyhow::Result<Lease> {
    let ObservedLease {
        record,
        lease_version,
    } = parse(service, lease)?;
    Ok(render(service, Some(&lease_version), &record, 0))
}

/// Reads a Lease of the service.
pub(crate) fn parse(service: &str, lease: &Lease) -> anyhow::Result<ObservedLease> {
    let lease_version = lease_version(&lease.metadata)?;
    let text = |key: &str| {
        let annotations = lease.metadata.annotations.as_ref();
        annotations
            .and_then(|annotations| annotations.get(key))
            .with_context(|| format!("no annotation {key}"))
    };
    let identity: Identity = text(IDENTITY_ANNOTATION)?.as_str().into();
    ensure!(
        lease.metadata.name.as_deref() == Some(&name(service, &identity)),
        "the name does not match the identity {:?}",
        quote(&identity)
    );
    let spec = lease.spec.as_ref();
    let holder = spec
        .and_then(|spec| spec.holder_identity.as_deref())
        .unwrap_or_default();
    ensure!(
        holder.is_empty() || holder == &*identity,
        "spec.holderIdentity {:?} is not the identity",
        quote(holder)
    );
    Ok(ObservedLease {
        record: MemberRecord {
            session: readable(SESSION_ANNOTATION, text(SESSION_ANNOTATION)?.parse())?,
            address: text(ADDRESS_ANNOTATION)?.as_str().into(),
            view: readable(VIEW_ANNOTATION, view(text(VIEW_ANNOTATION)?))?,
            pod: text(POD_ANNOTATION).ok().map(|uid| uid.as_str().into()),
            held: !holder.is_empty(),
            identity,
        },
        lease_version,
    })
}

fn view(text: &str) -> anyhow::Result<SeenSessions> {
    let view: BTreeMap<Identity, String> = serde_json::from_str(text)?;
    let sessions = view
        .into_iter()
        .map(|(identity, session)| Ok((identity, session.parse()?)));
    sessions.collect()
}

/// An error that quotes foreign text is cut.
fn readable<T, E: Display>(annotation: &str, read: Result<T, E>) -> anyhow::Result<T> {
    read.map_err(|error| {
        anyhow!(
            "annotation {annotation} cannot be read: {}",
            quote(&error.to_string())
        )
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
}
