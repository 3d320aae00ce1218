//! A Lease as the API server stores it: its times may be any that Go can write.

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::Api;
use kube::api::{ApiResource, DynamicObject};
use serde::Deserialize as _;

/// The times of a Lease. Nobody decides by them, and jiff ends two hours before the year 9999 does.
const TIMES: [&str; 2] = ["acquireTime", "renewTime"];

pub(crate) fn api(client: kube::Client, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client, namespace, &ApiResource::erase::<Lease>(&()))
}

/// Reads a Lease, if it exists.
pub(crate) async fn read(leases: &Api<DynamicObject>, name: &str) -> kube::Result<Option<Lease>> {
    let stored = leases.get_opt(name).await?;
    stored.map(lease).transpose().map_err(kube::Error::SerdeError)
}

/// The Lease without the times that cannot be read.
pub(crate) fn lease(mut stored: DynamicObject) -> serde_json::Result<Lease> {
    let spec = stored.data.get_mut("spec").map(serde_json::Value::take);
    let spec = spec.map(|mut spec| {
        if let Some(fields) = spec.as_object_mut() {
            fields.retain(|name, value| !TIMES.contains(&&**name) || MicroTime::deserialize(&*value).is_ok());
        }
        serde_json::from_value::<Option<LeaseSpec>>(spec)
    });
    Ok(Lease {
        metadata: stored.metadata,
        spec: spec.transpose()?.flatten(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(spec: serde_json::Value) -> serde_json::Result<Lease> {
        let stored = serde_json::json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "l", "resourceVersion": "7"}, "spec": spec,
        });
        lease(serde_json::from_value(stored)?)
    }

    #[test]
    fn a_time_that_only_go_can_read_hides_nothing_else() {
        let spec = serde_json::json!({
            "holderIdentity": "a", "leaseDurationSeconds": 15, "leaseTransitions": 3,
            "acquireTime": "2026-11-23T06:00:00.000000Z", "renewTime": "9999-12-31T23:59:59.000000Z",
        });
        let lease = read(spec).unwrap();
        assert_eq!(lease.metadata.resource_version.as_deref(), Some("7"));
        let spec = lease.spec.unwrap();
        assert_eq!(spec.holder_identity.as_deref(), Some("a"));
        assert_eq!(
            (spec.lease_duration_seconds, spec.lease_transitions),
            (Some(15), Some(3))
        );
        assert!(spec.acquire_time.is_some() && spec.renew_time.is_none());
    }

    #[test]
    fn a_lease_without_a_spec_is_read_and_one_of_other_types_is_not() {
        assert_eq!(read(serde_json::Value::Null).unwrap().spec, None);
        assert!(read(serde_json::json!({"holderIdentity": 1})).is_err());
    }
}
