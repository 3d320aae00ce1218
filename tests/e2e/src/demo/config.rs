//! The configuration of the demo, and what it prints for those who go on by hand.

use watchdog_test_support::certs::TlsFiles;
use watchdog_test_support::watchdog::{SERVER_NAME, Service};

/// The configuration that Gardener deploys, except the times: the demo runs five times faster.
pub(super) const PROBER: &str = "\
kubeConfigSecretName: shoot-access-dependency-watchdog-probe
probeInterval: 6s
initialDelay: 1s
dependentResourceInfos:
- ref: {apiVersion: apps/v1, kind: Deployment, name: kube-controller-manager}
  scaleUp: {level: 0}
  scaleDown: {level: 1}
- ref: {apiVersion: apps/v1, kind: Deployment, name: machine-controller-manager}
  scaleUp: {level: 1, initialDelay: 2s}
  scaleDown: {level: 0}
- ref: {apiVersion: apps/v1, kind: Deployment, name: cluster-autoscaler}
  optional: true
  scaleUp: {level: 2}
  scaleDown: {level: 0}
";

/// The configuration that Gardener deploys, except the watch duration.
pub(super) const WEEDER: &str = "\
watchDuration: 30s
servicesAndDependantSelectors:
  etcd-main-client:
    podSelectors:
    - matchExpressions:
      - {key: gardener.cloud/role, operator: In, values: [controlplane]}
      - {key: role, operator: In, values: [apiserver]}
  kube-apiserver:
    podSelectors:
    - matchExpressions:
      - {key: gardener.cloud/role, operator: In, values: [controlplane]}
      - {key: role, operator: NotIn, values: [main, apiserver]}
";

/// Commands to look around with.
pub(super) fn grpcurl_help(
    lease_probe: &Service,
    coordinator: &Service,
    weeder: &Service,
    files: &TlsFiles,
) -> String {
    let call = |service: &Service, data: &str, method: &str| {
        format!(
            "grpcurl -cacert {} -cert {} -key {} -servername {SERVER_NAME} -d '{data}' {} gardener.watchdog.{method}\n",
            files.ca.display(),
            files.cert.display(),
            files.key.display(),
            service.grpc
        )
    };
    let mut text = "\nEverything is still running; press Ctrl-C to end it. Look around with:\n\n".to_owned();
    text.push_str(&call(
        lease_probe,
        "{}",
        "probe.v1.LeaseProbeService/ListVerdicts",
    ));
    text.push_str(&call(
        lease_probe,
        "{}",
        "probe.v1.LeaseProbeService/WatchVerdicts",
    ));
    let plan = "{\"shoot\":\"shoot--sandbox--alpha\",\"direction\":\"DIRECTION_DOWN\"}";
    text.push_str(&call(coordinator, plan, "scaling.v1.ScalingService/PlanScaling"));
    text.push_str(&call(coordinator, "{}", "scaling.v1.ScalingService/ListScaling"));
    text.push_str(&call(weeder, "{}", "weeder.v1.WeederService/ListWeeders"));
    text.push_str(&format!("curl http://{}/metrics\n", lease_probe.admin));
    text
}
