//! Leases and Nodes as a shoot's API server answers them, byte for byte of a realistic size.

use serde_json::{Value, json};

/// The time that stands wherever a time does not matter.
const LONG_AGO: &str = "2026-03-01T08:00:00Z";

/// Images that a node reports; kubelet reports up to 50.
const IMAGES: usize = 12;

/// A node's Lease as kubelet writes it: about 0.9 kB.
pub fn lease() -> String {
    json!({
        "metadata": {
            "name": "|name|",
            "namespace": "kube-node-lease",
            "uid": "|uid|",
            "resourceVersion": "|version|",
            "creationTimestamp": LONG_AGO,
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Node", "name": "|name|", "uid": "|uid|",
            }],
            "managedFields": [{
                "manager": "kubelet",
                "operation": "Update",
                "apiVersion": "coordination.k8s.io/v1",
                "time": "|renewed|",
                "fieldsType": "FieldsV1",
                "fieldsV1": {
                    "f:metadata": {"f:ownerReferences": {".": {}, "k:{\"uid\":\"|uid|\"}": {}}},
                    "f:spec": {"f:holderIdentity": {}, "f:leaseDurationSeconds": {}, "f:renewTime": {}},
                },
            }],
        },
        "spec": {"holderIdentity": "|name|", "leaseDurationSeconds": 40, "renewTime": "|renewed|"},
    })
    .to_string()
}

/// A Node of a Gardener shoot: about 10 kB.
pub fn node() -> String {
    json!({
        "metadata": {
            "name": "|name|",
            "uid": "|uid|",
            "resourceVersion": "|version|",
            "creationTimestamp": LONG_AGO,
            "labels": {
                "beta.kubernetes.io/arch": "amd64",
                "beta.kubernetes.io/instance-type": "m5.large",
                "beta.kubernetes.io/os": "linux",
                "failure-domain.beta.kubernetes.io/region": "eu-west-1",
                "failure-domain.beta.kubernetes.io/zone": "|zone|",
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/hostname": "|name|",
                "kubernetes.io/os": "linux",
                "networking.gardener.cloud/node-local-dns-enabled": "false",
                "node.kubernetes.io/instance-type": "m5.large",
                "node.kubernetes.io/role": "node",
                "topology.ebs.csi.aws.com/zone": "|zone|",
                "topology.kubernetes.io/region": "eu-west-1",
                "topology.kubernetes.io/zone": "|zone|",
                "worker.garden.sapcloud.io/group": "worker",
                "worker.gardener.cloud/cri-name": "containerd",
                "worker.gardener.cloud/kubernetes-version": "1.33.4",
                "worker.gardener.cloud/pool": "worker",
                "worker.gardener.cloud/system-components": "true",
            },
            "annotations": {
                "checksum/cloud-config-data": "8b1a9953c4611296a827abf8c47804d7e6c49c6b97f0a6f1a2f4a1e1a1b4c2d3",
                "csi.volume.kubernetes.io/nodeid": "{\"ebs.csi.aws.com\":\"i-0123456789abcdef0\"}",
                "node.alpha.kubernetes.io/ttl": "0",
                "node.machine.sapcloud.io/last-applied-anno-labels-taints": "{\"metadata\":{\"creationTimestamp\":null,\
                 \"labels\":{\"node.kubernetes.io/role\":\"node\",\"worker.gardener.cloud/pool\":\"worker\"}},\
                 \"spec\":{}}",
                "projectcalico.org/IPv4Address": "10.250.0.12/19",
                "projectcalico.org/IPv4IPIPTunnelAddr": "100.64.3.1",
                "volumes.kubernetes.io/controller-managed-attach-detach": "true",
            },
            "managedFields": managed_fields(),
        },
        "spec": {
            "podCIDR": "100.64.3.0/24",
            "podCIDRs": ["100.64.3.0/24"],
            "providerID": "aws:///eu-west-1/i-0123456789abcdef0",
        },
        "status": {
            "capacity": resources("2"),
            "allocatable": resources("1920m"),
            "conditions": conditions(),
            "addresses": [
                {"type": "InternalIP", "address": "10.250.0.12"},
                {"type": "Hostname", "address": "|name|"},
                {"type": "InternalDNS", "address": "|name|"},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": {
                "machineID": "ec2a3c6f4d0b4f6e8f0a2c4e6a8c0e2f",
                "systemUUID": "ec2a3c6f-4d0b-4f6e-8f0a-2c4e6a8c0e2f",
                "bootID": "0b2c4d6e-8f0a-4b2c-9d4e-6f8a0b2c4d6e",
                "kernelVersion": "6.12.30-cloud-amd64",
                "osImage": "Garden Linux 1877.1",
                "containerRuntimeVersion": "containerd://2.0.5",
                "kubeletVersion": "v1.33.4",
                "kubeProxyVersion": "",
                "operatingSystem": "linux",
                "architecture": "amd64",
            },
            "images": images(),
        },
    })
    .to_string()
}

fn resources(cpu: &str) -> Value {
    json!({
        "cpu": cpu, "ephemeral-storage": "50633164Ki", "hugepages-1Gi": "0", "hugepages-2Mi": "0",
        "memory": "7935080Ki", "pods": "110",
    })
}

/// Type, reason and message of the conditions that kubelet, node-problem-detector and the network plugin of a Gardener
/// shoot set.
const CONDITIONS: &str = "\
ReadonlyFilesystem FilesystemIsNotReadOnly Filesystem is not read-only
KernelDeadlock KernelHasNoDeadlock kernel has no deadlock
CorruptDockerOverlay2 NoCorruptDockerOverlay2 docker overlay2 is functioning properly
FrequentKubeletRestart NoFrequentKubeletRestart kubelet is functioning properly
FrequentContainerdRestart NoFrequentContainerdRestart containerd is functioning properly
FrequentUnregisterNetDevice NoFrequentUnregisterNetDevice node is functioning properly
NetworkUnavailable CalicoIsUp Calico is running on this node
MemoryPressure KubeletHasSufficientMemory kubelet has sufficient memory available
DiskPressure KubeletHasNoDiskPressure kubelet has no disk pressure
PIDPressure KubeletHasSufficientPID kubelet has sufficient PID available
Ready KubeletReady kubelet is posting ready status";

fn conditions() -> Vec<Value> {
    let condition = |line: &str| {
        let (kind, rest) = line.split_once(' ')?;
        let (reason, message) = rest.split_once(' ')?;
        let status = if kind == "Ready" { "True" } else { "False" };
        Some(json!({
            "type": kind, "status": status, "lastHeartbeatTime": LONG_AGO, "lastTransitionTime": LONG_AGO,
            "reason": reason, "message": message,
        }))
    };
    CONDITIONS.lines().filter_map(condition).collect()
}

fn images() -> Vec<Value> {
    let image = |i: usize| {
        let repository = format!("europe-docker.pkg.dev/gardener-project/releases/component-{i}");
        json!({
            "names": [format!("{repository}@sha256:{}", digest(i)), format!("{repository}:v1.{i}.0")],
            "sizeBytes": 41_000_000 + 977 * i,
        })
    };
    (0..IMAGES).map(image).collect()
}

fn digest(i: usize) -> String {
    format!("{:016x}", 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(i as u64 + 1)).repeat(4)
}

/// The fields that the three writers of a Node own: a fifth of its size.
fn managed_fields() -> Vec<Value> {
    let empty = || json!({});
    let keys = |keys: &[&str]| -> Value { keys.iter().map(|key| ((*key).to_owned(), empty())).collect() };
    let conditions: serde_json::Map<String, Value> = conditions()
        .iter()
        .filter_map(|condition| condition.get("type")?.as_str())
        .map(|kind| {
            let fields = keys(&[
                "f:lastHeartbeatTime",
                "f:lastTransitionTime",
                "f:message",
                "f:reason",
                "f:status",
            ]);
            (format!("k:{{\"type\":\"{kind}\"}}"), fields)
        })
        .collect();
    let entry = |manager: &str, part: &str, fields: Value| {
        json!({
            "manager": manager, "operation": "Update", "apiVersion": "v1", "time": LONG_AGO,
            "fieldsType": "FieldsV1", "fieldsV1": fields, "subresource": part,
        })
    };
    vec![
        entry(
            "machine-controller-manager",
            "",
            json!({"f:metadata": {
                "f:annotations": keys(&["f:node.machine.sapcloud.io/last-applied-anno-labels-taints"]),
                "f:labels": keys(&["f:node.kubernetes.io/role", "f:worker.gardener.cloud/pool"])}}),
        ),
        entry(
            "node-problem-detector",
            "status",
            json!({"f:status": {"f:conditions": conditions}}),
        ),
        entry(
            "kubelet",
            "status",
            json!({"f:status": {"f:images": {}, "f:nodeInfo": {}}}),
        ),
    ]
}

/// Discovery, which clients ask first: the answer for a path, as JSON; none for others.
pub fn discovery(path: &str) -> Option<Value> {
    let resource = |name: &str, kind: &str, namespaced: bool| {
        let verbs = ["get", "list"];
        json!({"name": name, "singularName": "", "namespaced": namespaced, "kind": kind, "verbs": verbs})
    };
    let group = json!({
        "name": "coordination.k8s.io",
        "versions": [{"groupVersion": "coordination.k8s.io/v1", "version": "v1"}],
        "preferredVersion": {"groupVersion": "coordination.k8s.io/v1", "version": "v1"},
    });
    let resources = |version: &str, resource: Value| {
        let resources = [resource];
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources})
    };
    Some(match path {
        "/api" => json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}),
        "/apis" => json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]}),
        "/api/v1" => resources("v1", resource("nodes", "Node", false)),
        "/apis/coordination.k8s.io/v1" => {
            resources("coordination.k8s.io/v1", resource("leases", "Lease", true))
        }
        "/version" => json!({
            "major": "1", "minor": "33", "gitVersion": "v1.33.4", "gitCommit": "simulated", "gitTreeState": "clean",
            "buildDate": LONG_AGO, "goVersion": "go1.24.5", "compiler": "gc", "platform": "linux/amd64",
        }),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::template::{Template, Values};

    fn written(text: &str) -> Vec<u8> {
        let mut out = Vec::new();
        let values = Values {
            name: "shoot--bench--0042-worker-z1-6c9f8-x7k2p".to_owned(),
            uid: "3b1c8e0a-52d1-4a52-9f4c-0123456789ab".to_owned(),
            version: 123_456_789,
            renewed: 1_700_000_000_000_001,
            zone: "eu-west-1a",
        };
        Template::new(text).write(&mut out, &values);
        out
    }

    #[test]
    fn sizes_are_those_of_real_objects() {
        let (lease, node) = (written(&lease()), written(&node()));
        assert!(
            (800..1_000).contains(&lease.len()),
            "a lease of {} bytes",
            lease.len()
        );
        assert!(
            (8_000..12_000).contains(&node.len()),
            "a node of {} bytes",
            node.len()
        );
        for text in [lease, node] {
            serde_json::from_slice::<Value>(&text).unwrap();
        }
    }
}
