"""The chart, rendered."""

from pathlib import Path

import helm_python as helm
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "dependency-watchdog"
NAMESPACE = "garden"
RELEASE = "watchdog"
SERVICES = "lease-probe", "scaling-coordinator", "weeder"

_STATEFUL_SET = {
    "ref": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "etcd"},
    "scaleUp": {"level": 3, "replicas": 3},
    "scaleDown": {"level": 2, "initialDelay": "500ms", "timeout": "1m30s", "replicas": 0},
}
_CUSTOM = {
    "ref": {"apiVersion": "example.org/v1", "kind": "Proxy", "name": "egress"},
    "scaleUp": {},
    "scaleDown": {},
}

# What people set, alone and together; None stands for the default.
MATRIX = {
    "default": None,
    "plaintext": {"insecurePlaintext": True},
    "without-gardener": {
        "gardener": {"enabled": False},
        "tracing": {"otlpEndpoint": "http://collector"},
        "priorityClassName": "",
        "scrapeAnnotations": False,
        "networkPolicy": {"callers": [{"namespaceSelector": {}}], "scrapers": [], "apiServerPorts": [443]},
    },
    "no-extras": {
        "networkPolicy": {"enabled": False},
        "topologySpread": {"enabled": False},
        "podDisruptionBudget": {"enabled": False},
    },
    "shadow": {"scalingCoordinator": {"replicas": 0}, "weeder": {"enabled": False}},
    "only-weeder": {
        "leaseProbe": {"enabled": False},
        "scalingCoordinator": {"enabled": False},
        "networkPolicy": {"scrapers": []},
    },
    "nothing": {
        "leaseProbe": {"enabled": False},
        "scalingCoordinator": {"enabled": False},
        "weeder": {"enabled": False},
    },
    "operators": {
        "scrapeAnnotations": False,
        "certManager": {"enabled": True, "issuerRef": {"name": "seed-ca"}},
        "allowedClients": ["gardenlet.garden.svc", "dashboard.example.org"],
        "tracing": {
            "otlpEndpoint": "https://otel-collector.monitoring.svc:14317",
            "collectors": [{"namespaceSelector": {"matchLabels": {"role": "monitoring"}}}],
        },
        "monitoring": {
            "podMonitor": {"enabled": True, "labels": {"prometheus": "seed"}},
            "serviceMonitor": {"enabled": True, "interval": "1m"},
            "rules": {"enabled": True, "runbookUrl": "https://runbooks.example.org/watchdog"},
            "dashboards": {"enabled": True, "annotations": {"folder": "seed"}},
        },
        "leaseProbe": {"autoscaling": {"enabled": True, "minReplicas": 3}},
        "scalingCoordinator": {"autoscaling": {"enabled": True, "maxReplicas": 4, "cpuUtilization": 50}},
        "weeder": {
            "autoscaling": {
                "enabled": True,
                "podMetric": {"name": "watchdog_weeder_pending_deletions", "averageValue": "50"},
                "cpuUtilization": 0,
            }
        },
    },
    "everything-set": {
        "nameOverride": "wd",
        "image": {"registry": "registry.example.org", "repository": "team/watchdog", "tag": "1.2.3"},
        "imagePullSecrets": [{"name": "pull"}],
        "log": {"level": "info,lease_probe=debug", "format": "text"},
        "priorityClassName": "system-cluster-critical",
        "topologySpread": {"zone": {"maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}},
        "leaseProbe": {
            "replicas": 3,
            "tlsSecretName": "probe-certificate",
            "image": "registry.example.org/probe@sha256:" + "0" * 64,
            "resources": {"requests": {"cpu": "1500m", "memory": "1Gi"}, "limits": {"memory": "2Gi"}},
            "podLabels": {"team": "a"},
            "podAnnotations": {"note": "b"},
            "nodeSelector": {"pool": "system"},
            "tolerations": [{"key": "system", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
        },
        "scalingCoordinator": {"plurals": {"Proxy": "proxies"}},
        "config": {
            "prober": {
                "externalKubeConfigSecretName": "shoot-access-external",
                "probeTimeout": "10s",
                "initialDelay": "0s",
                "backoffJitterFactor": 0.5,
                "kcmNodeMonitorGraceDuration": "2m",
                "nodeLeaseFailureFraction": 0.75,
                "successThreshold": 2,
                "failureThreshold": 3,
                "internalProbeFailureBackOffDuration": "15s",
                "name": "default",
                "namespace": "garden",
                "dependentResourceInfos": [_STATEFUL_SET, _CUSTOM],
            },
            "weeder": {
                "watchDuration": "10m",
                "servicesAndDependantSelectors": {
                    "etcd-main-client": None,
                    "dns": {"podSelectors": [{"matchLabels": {"app": "resolver"}}]},
                },
            },
        },
    },
}


def render(values=None) -> list[dict]:
    """Every object, for the newest Kubernetes that Helm's library knows."""
    with helm.Chart.load(CHART) as chart:
        manifests = chart.render(values, name=RELEASE, namespace=NAMESPACE)
    objects = []
    for path, text in manifests.items():
        if not path.endswith("NOTES.txt"):
            objects += [parsed for parsed in yaml.safe_load_all(text) if parsed]
    return objects


def hooks(rendered: list[dict]) -> list[dict]:
    """Those that Helm makes for a moment."""
    return [found for found in rendered if "helm.sh/hook" in found["metadata"].get("annotations", {})]


def notes(values=None) -> str:
    """What Helm prints after an installation."""
    with helm.Chart.load(CHART) as chart:
        manifests = chart.render(values, name=RELEASE, namespace=NAMESPACE)
    return next(text for path, text in manifests.items() if path.endswith("NOTES.txt"))


def of_kind(objects: list[dict], kind: str) -> dict[str, dict]:
    """Those of one kind, by name."""
    return {found["metadata"]["name"]: found for found in objects if found["kind"] == kind}


def objects(release) -> list[dict]:
    """Of an installation, also of one that was only tried."""
    # There is no manifest where nothing was rendered.
    return [parsed for parsed in yaml.safe_load_all(release.get("manifest", "")) if parsed]
