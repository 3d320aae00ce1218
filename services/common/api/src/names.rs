//! Every annotation, condition and namespace that the watchdog shares with Gardener, Kubernetes or the Go
//! dependency-watchdog ("DWD"), in one place and with its source. Labels and annotations of Nodes and Machines are with
//! their types: derive macros take no constants.

use std::time::Duration;

// === written and read on scaled workloads ===

/// Annotation with the replica count that a workload had before it was scaled down, a decimal number.
/// Source: DWD, `internal/prober/scaler` (`replicasAnnotationKey`).
pub const REPLICAS_ANNOTATION: &str = "dependency-watchdog.gardener.cloud/replicas";

/// Annotation (value empty) that tells gardenlet not to scale the workload up while the meltdown protection holds it
/// down. Source: DWD, `api/prober/types.go` (`MeltdownProtectionActive`).
pub const MELTDOWN_PROTECTION_ANNOTATION: &str =
    "dependency-watchdog.gardener.cloud/meltdown-protection-active";

/// Annotation by which people take a workload out of the watchdog's hands when its value is true.
/// Source: DWD, `internal/prober/scaler` (`ignoreScalingAnnotationKey`).
pub const IGNORE_SCALING_ANNOTATION: &str = "dependency-watchdog.gardener.cloud/ignore-scaling";

/// Name under which gardener/dependency-watchdog writes, in `managedFields`: that of its binary.
pub const EXISTING_WATCHDOG_FIELD_MANAGER: &str = "dependency-watchdog";

/// Name under which the scaling-coordinator writes, in `managedFields`. DWD writes as `dependency-watchdog`, so that
/// each of the two knows what the other has done.
pub const COORDINATOR_FIELD_MANAGER: &str = "scaling-coordinator";

/// Replicas to restore when no count was recorded and the configuration names none.
/// Source: DWD, `internal/prober/scaler` (`defaultScaleUpReplicas`).
pub const DEFAULT_SCALE_UP_REPLICAS: i32 = 1;

/// Replicas to scale down to when the configuration names none.
/// Source: DWD, `internal/prober/scaler` (`defaultScaleDownReplicas`).
pub const DEFAULT_SCALE_DOWN_REPLICAS: i32 = 0;

// === read on Shoots, inside their Clusters ===

/// Annotation with what the watchdog may do to the shoot; ours. See [`crate::policy::parse_mode`].
pub const MODE_ANNOTATION: &str = "dependency-watchdog.gardener.cloud/mode";

/// Annotation with the share of expired leases at which the shoot counts as cut off; ours.
pub const FAILURE_FRACTION_ANNOTATION: &str = "dependency-watchdog.gardener.cloud/failure-fraction";

// === nodes, machines, leases ===

/// Node conditions that, when True, mark a node as unhealthy if its worker pool names none.
/// Source: DWD, `internal/util/node.go` (`DefaultUnhealthyNodeConditions`), the same as in
/// machine-controller-manager (`--node-conditions`).
pub const DEFAULT_UNHEALTHY_CONDITIONS: [&str; 4] = [
    "KernelDeadlock",
    "ReadonlyFilesystem",
    "DiskPressure",
    "NetworkUnavailable",
];

/// Condition of a Node that is updated in place.
/// Source: machine-controller-manager, `pkg/apis/machine/v1alpha1` (`NodeInPlaceUpdate`).
pub const IN_PLACE_UPDATE_CONDITION: &str = "InPlaceUpdate";

/// The reasons with which [`IN_PLACE_UPDATE_CONDITION`] excludes a node from the candidates, whatever the condition's
/// status: the update may begin, or failed. Source: DWD, `internal/util/node.go` (`IsNodeUndergoingInPlaceUpdate`).
pub const IN_PLACE_UPDATE_REASONS: [&str; 2] = ["ReadyForUpdate", "UpdateFailed"];

// === services and pods ===

/// Annotation on EndpointSlices and Endpoints: when that happened which made their endpoints change last.
/// Source: Kubernetes, `k8s.io/api/core/v1` (`EndpointsLastChangeTriggerTime`).
pub const LAST_CHANGE_ANNOTATION: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// Label on an EndpointSlice with the name of its Service.
/// Source: Kubernetes, `k8s.io/api/discovery/v1` (`LabelServiceName`).
pub const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

/// Reason of a waiting container that kubelet restarts with growing delay.
/// Source: Kubernetes, `pkg/kubelet` (`ErrCrashLoopBackOff`).
pub const CRASH_LOOP_BACK_OFF: &str = "CrashLoopBackOff";

// === groups and kinds ===

/// Group of the Cluster resource. Source: Gardener, `pkg/apis/extensions/v1alpha1`.
pub const CLUSTER_GROUP: &str = "extensions.gardener.cloud";

/// Group of the Machine resource. Source: machine-controller-manager, `pkg/apis/machine/v1alpha1`.
pub const MACHINE_GROUP: &str = "machine.sapcloud.io";

/// Version of both the Cluster and the Machine resource.
pub const V1ALPHA1: &str = "v1alpha1";

// === places in the seed ===

/// Key of a kubeconfig in a Secret's data. Source: Gardener, `pkg/utils/secrets` (`DataKeyKubeconfig`).
pub const KUBECONFIG_KEY: &str = "kubeconfig";

// === times ===

/// Least pause after a 429, also when Retry-After asks for less.
/// Source: DWD, `internal/prober/prober.go` (`backOffDurationForThrottledRequests`).
pub const BACK_OFF_FOR_THROTTLED_REQUESTS: Duration = Duration::from_secs(10);

// === the syntax of names ===

/// True if this is a DNS label (RFC 1123), as the names of namespaces and Services are.
#[must_use]
pub fn is_dns_label(label: &str) -> bool {
    label.len() <= 63 && is_dns_part(label)
}

/// True if this is a DNS subdomain (RFC 1123), as the names of most objects are: at most 253 characters, in parts of
/// any length.
#[must_use]
pub fn is_dns_subdomain(name: &str) -> bool {
    name.len() <= 253 && name.split('.').all(is_dns_part)
}

/// True if this is a kind, such as StatefulSet.
pub(crate) fn is_kind(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_uppercase())
        && text.bytes().all(|b| b.is_ascii_alphanumeric())
        && text.len() <= 63
}

fn is_dns_part(part: &str) -> bool {
    let inner = part
        .bytes()
        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    inner && !part.is_empty() && !part.starts_with('-') && !part.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_judged_as_by_kubernetes() {
        let (longest_label, longest_name) = ("x".repeat(63), "x".repeat(253));
        for (name, label, subdomain) in [
            ("etcd-main-client", true, true),
            ("0", true, true),
            ("a.b", false, true),
            ("", false, false),
            (".a", false, false),
            ("a..b", false, false),
            ("-a", false, false),
            ("a-", false, false),
            ("a.b-", false, false),
            ("Etcd", false, false),
            ("a_b", false, false),
            ("é", false, false),
            (&longest_label, true, true),
            (&format!("{longest_label}x"), false, true),
            (&longest_name, false, true),
            (&format!("{longest_name}x"), false, false),
        ] {
            assert_eq!(
                (is_dns_label(name), is_dns_subdomain(name)),
                (label, subdomain),
                "{name:?}"
            );
        }
    }
}
