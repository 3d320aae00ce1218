//! The membership Lease of a replica: what it is called and what it says.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use rapidhash::v3::rapidhash_v3;

use super::table::{LEASE_DURATION, ObservedMember};
use crate::Identity;

/// Label on every membership Lease: the service whose replica it is.
pub(super) const SERVICE_LABEL: &str = "dependency-watchdog.gardener.cloud/service";
/// Annotation: the replica's name.
const IDENTITY_ANNOTATION: &str = "dependency-watchdog.gardener.cloud/identity";
/// Annotation: where the replica's gRPC API is reached.
const ADDRESS_ANNOTATION: &str = "dependency-watchdog.gardener.cloud/address";

/// Names of objects are DNS subdomains of at most this many characters.
const NAME_LIMIT: usize = 253;

/// Bytes of an address at most: a DNS name and a port.
const ADDRESS_LIMIT: usize = 260;

/// The Lease of this replica.
#[derive(Debug)]
pub struct OwnLease {
    /// Name of this replica.
    pub identity: Identity,
    /// Where others reach its gRPC API, `host:port`.
    pub address: Arc<str>,
}

/// The name of a replica's Lease. An identity that does not fit into an object name is replaced by what fits of it and
/// its hash.
pub(super) fn name(service: &str, identity: &str) -> String {
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

/// The Lease as its replica writes it now.
pub(super) fn render(service: &str, own: &OwnLease) -> Lease {
    let annotations = [
        (IDENTITY_ANNOTATION, &own.identity),
        (ADDRESS_ANNOTATION, &own.address),
    ];
    let annotations = annotations.map(|(key, value)| (key.to_owned(), value.to_string()));
    Lease {
        metadata: ObjectMeta {
            name: Some(name(service, &own.identity)),
            labels: Some([(SERVICE_LABEL.to_owned(), service.to_owned())].into()),
            annotations: Some(annotations.into()),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(own.identity.to_string()),
            lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
            // For people. A write that changes nothing would get no new version.
            renew_time: Some(MicroTime(Timestamp::now())),
            ..LeaseSpec::default()
        }),
    }
}

/// Reads the metadata of a Lease; none if it cannot be that of a replica of the service.
pub(super) fn parse(service: &str, metadata: &ObjectMeta) -> Option<ObservedMember> {
    let annotations = metadata.annotations.as_ref()?;
    let identity = annotations.get(IDENTITY_ANNOTATION)?;
    let address = annotations.get(ADDRESS_ANNOTATION)?;
    let lease = metadata.name.clone()?;
    let fits = identity.len() <= NAME_LIMIT && address.len() <= ADDRESS_LIMIT;
    if !fits || lease != name(service, identity) {
        return None;
    }
    Some(ObservedMember {
        identity: Arc::from(identity.as_str()),
        address: Arc::from(address.as_str()),
        lease,
        uid: metadata.uid.clone()?,
        version: metadata.resource_version.clone()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(identity: &str) -> OwnLease {
        OwnLease {
            identity: identity.into(),
            address: "10.0.0.1:9645".into(),
        }
    }

    /// As an API server stores it.
    fn stored(identity: &str) -> ObjectMeta {
        ObjectMeta {
            uid: Some("u".to_owned()),
            resource_version: Some("7".to_owned()),
            ..render("lease-probe", &own(identity)).metadata
        }
    }

    #[test]
    fn names_are_valid_and_distinct() {
        assert_eq!(
            name("lease-probe", "probe-6c9f-abcde"),
            "dependency-watchdog-lease-probe-probe-6c9f-abcde"
        );
        let long = "x".repeat(300);
        for identity in ["Host_Name", "host.name", "host-name-", "", "é", long.as_str()] {
            let name = name("lease-probe", identity);
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            assert!(name.len() <= NAME_LIMIT && name.chars().all(plain), "{name}");
            assert!(!name.ends_with('-'), "{name}");
        }
        assert_ne!(name("lease-probe", "a_b"), name("lease-probe", "a.b"));
    }

    #[test]
    fn what_is_no_membership_lease_is_no_member() {
        let annotate = |key: &str, value: String| {
            let mut metadata = stored("probe-0");
            metadata
                .annotations
                .get_or_insert_default()
                .insert(key.to_owned(), value);
            metadata
        };
        let mut unnamed = stored("probe-0");
        unnamed.annotations = None;
        let long = "x".repeat(100_000);
        for metadata in [
            unnamed,
            annotate(IDENTITY_ANNOTATION, "probe-1".to_owned()),
            annotate(IDENTITY_ANNOTATION, long.clone()),
            annotate(ADDRESS_ANNOTATION, long),
        ] {
            assert_eq!(parse("lease-probe", &metadata), None);
        }
        assert_eq!(parse("weeder", &stored("probe-0")), None);
    }
}
