//! Objects and configuration that several tests share.

use kube::Client;
use serde_json::{Value, json};

/// Name of the Secret with the probe's kubeconfig, as Gardener calls it.
pub const PROBE_SECRET: &str = "shoot-access-dependency-watchdog-probe";

/// The resources that Gardener has scaled.
pub const KCM: &str = "kube-controller-manager";
/// See [`KCM`].
pub const MCM: &str = "machine-controller-manager";
/// See [`KCM`].
pub const CA: &str = "cluster-autoscaler";

/// Gardener's prober configuration with other times: `head` replaces the lines before the dependants.
pub fn prober(head: &str, mcm_delay: &str) -> String {
    format!(
        "kubeConfigSecretName: {PROBE_SECRET}
{head}
dependentResourceInfos:
- ref: {{apiVersion: apps/v1, kind: Deployment, name: {KCM}}}
  optional: false
  scaleUp: {{level: 0}}
  scaleDown: {{level: 1}}
- ref: {{apiVersion: apps/v1, kind: Deployment, name: {MCM}}}
  optional: false
  scaleUp: {{level: 1, initialDelay: {mcm_delay}}}
  scaleDown: {{level: 0}}
- ref: {{apiVersion: apps/v1, kind: Deployment, name: {CA}}}
  optional: true
  scaleUp: {{level: 2}}
  scaleDown: {{level: 0}}
"
    )
}

/// Gardener's weeder configuration with another watch duration.
pub fn weeder(watch_duration: &str) -> String {
    format!(
        "watchDuration: {watch_duration}
servicesAndDependantSelectors:
  etcd-main-client:
    podSelectors:
    - matchExpressions:
      - {{key: gardener.cloud/role, operator: In, values: [controlplane]}}
      - {{key: role, operator: In, values: [apiserver]}}
  kube-apiserver:
    podSelectors:
    - matchExpressions:
      - {{key: gardener.cloud/role, operator: In, values: [controlplane]}}
      - {{key: role, operator: NotIn, values: [main, apiserver]}}
"
    )
}

/// True if a seed serves EndpointSlices as the weeder reads them; otherwise it reads Endpoints.
pub async fn serves_endpoint_slices(seed: &Client) -> anyhow::Result<bool> {
    match seed.list_api_group_resources("discovery.k8s.io/v1").await {
        Ok(served) => Ok(served
            .resources
            .iter()
            .any(|resource| resource.name == "endpointslices")),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// A Shoot that is probed, as it stands in a Cluster.
pub fn shoot(grace_period: &str) -> Value {
    json!({
        "apiVersion": "core.gardener.cloud/v1beta1",
        "kind": "Shoot",
        "metadata": {"name": "one", "namespace": "garden-real"},
        "spec": {
            "hibernation": {"enabled": false},
            "kubernetes": {"version": "1.33.0", "kubeControllerManager": {"nodeMonitorGracePeriod": grace_period}},
            "provider": {"type": "local", "workers": [{"name": "worker", "minimum": 1, "maximum": 9}]},
        },
        "status": {"hibernated": false, "lastOperation": {"type": "Reconcile", "state": "Succeeded"}},
    })
}
