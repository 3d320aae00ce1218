"""The chart, rendered."""

from pathlib import Path

import helm_python as helm
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "dependency-watchdog"
NAMESPACE = "garden"
# Where Leases are: by default, in a namespace that the chart creates; and in one that exists.
LEASES, OTHER_LEASES = "watchdog-leases", "leases-of-watchdogs"
RELEASE = "watchdog"
SERVICES = "lease-probe", "scaling-coordinator", "weeder"

DIGEST = "sha256:" + "0" * 64
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

# Without it nothing renders.
REGISTRY = {"image": {"registry": "registry.example.org"}}
# What gardenlet adds to the values of a chart, as pkg/gardenlet/controller/controllerinstallation has it. Its renderer
# (pkg/chartrenderer) knows the version of Kubernetes, and no API versions, hooks, lookups or notes.
GARDENLET = {
    "gardener": {
        "version": "v1.150.0",
        "garden": {"clusterIdentity": "landscape", "genericKubeconfigSecretName": "generic-token-kubeconfig"},
        "seed": {
            "name": "aws-eu1",
            "provider": "aws",
            "region": "eu-west-1",
            "spec": {"provider": {"zones": ["a", "b"]}},
        },
        "gardenlet": {"featureGates": {"DefaultSeccompProfile": True}},
    },
    "usablePorts": [10250, 10251],
}

# What people set, alone and together; None stands for the default.
MATRIX = {
    "default": None,
    "gardenlet": GARDENLET,
    "plaintext": {"insecurePlaintext": True},
    "without-gardener": {
        "seed": {"gardener": False},
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
        "certificates": {"source": "certManager"},
        "certManager": {"issuerRef": {"name": "seed-ca"}},
        "allowedClients": ["gardenlet.garden.svc", "dashboard.example.org"],
        "monitoring": {
            "podMonitor": {"enabled": True, "labels": {"prometheus": "seed"}},
            "serviceMonitor": {"enabled": True, "interval": "1m"},
            "rules": {
                "enabled": True,
                "runbookUrl": "https://runbooks.example.org/watchdog",
                "dashboardUrl": "https://grafana.example.org/",
            },
            "dashboards": {"enabled": True, "annotations": {"folder": "seed"}, "seedLabel": "cluster"},
        },
        "logging": {"gardener": {"enabled": True}},
        "leaseProbe": {"autoscaling": {"enabled": True, "minReplicas": 3}},
    },
    "policies": {
        "fullnameOverride": "dwd-live",
        "nameOverride": "dwd",
        "podSecurityContext": {"fsGroup": 2000, "runAsUser": None, "supplementalGroups": [3000]},
        "securityContext": {"readOnlyRootFilesystem": False, "capabilities": {"drop": ["NET_RAW"]}},
        "podDisruptionBudget": {"minAvailable": "50%", "unhealthyPodEvictionPolicy": "IfHealthyBudget"},
        "startupProbe": {"enabled": True, "initialDelaySeconds": 1, "failureThreshold": 90},
        "leaseProbe": {"serviceAccount": {"name": "prober"}},
        "scalingCoordinator": {
            "extraEnv": [{"name": "SSL_CERT_FILE", "value": "/etc/own-ca/ca.crt"}],
            "extraVolumes": [{"name": "own-ca", "secret": {"secretName": "own-ca"}}],
            "extraVolumeMounts": [{"name": "own-ca", "mountPath": "/etc/own-ca", "readOnly": True}],
        },
    },
    "everything-set": {
        "certificates": {"source": "secrets"},
        "nameOverride": "wd",
        "image": {"registry": "registry.example.org", "repository": "team/watchdog", "tag": "1.2.3"},
        "imagePullSecrets": [{"name": "pull"}],
        "log": {"level": "info,lease_probe=debug", "format": "text"},
        "priorityClassName": "system-cluster-critical",
        "commonLabels": {"landscape": "live", "app.kubernetes.io/name": "not-this"},
        "commonAnnotations": {"owner": "team-a"},
        "expectedShoots": 5000,
        "listenIP": "::",
        "membership": {"namespace": OTHER_LEASES},
        "seed": {"callerNamespaceSelectors": [{"matchLabels": {"kubernetes.io/metadata.name": "consumer"}}]},
        "topologySpread": {"zone": {"maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}},
        "verticalPodAutoscaler": {"enabled": True},
        "leaseProbe": {
            "replicas": 3,
            "tlsSecretName": "probe-certificate",
            "image": {"repository": "mirror.example.org/probe", "digest": DIGEST},
            "resources": {"requests": {"cpu": "1500m", "memory": "1Gi"}, "limits": {"memory": "2Gi"}},
            "podLabels": {"team": "a", "networking.gardener.cloud/to-public-networks": "denied"},
            "podAnnotations": {"note": "b"},
            "annotations": {"reloader": "off"},
            "service": {"annotations": {"mesh": "off"}},
            "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/x"}},
            "extraArgs": ["--answer-memory=128"],
            "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
            "dnsConfig": {"options": [{"name": "ndots", "value": "2"}]},
            "nodeSelector": {"pool": "system"},
            "tolerations": [{"key": "system", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
        },
        "scalingCoordinator": {"plurals": {"Proxy": "proxies"}, "releaseOnUninstall": False},
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


def merged(values=None) -> dict:
    """Values as somebody gives them, with a registry where they name none."""
    return _merge(REGISTRY, values or {})


def _merge(into: dict, values: dict) -> dict:
    both = dict(into)
    for key, value in values.items():
        both[key] = _merge(into[key], value) if isinstance(value, dict) and isinstance(into.get(key), dict) else value
    return both


def manifests(values=None, chart=CHART, name=RELEASE, namespace=NAMESPACE) -> dict[str, str]:
    """Text by path, for the newest Kubernetes that Helm's library knows."""
    with helm.Chart.load(chart) as loaded:
        return loaded.render(values, name=name, namespace=namespace)


def render(values=None, **where) -> list[dict]:
    """Every object."""
    rendered = manifests(merged(values), **where)
    texts = [text for path, text in rendered.items() if not path.endswith("NOTES.txt")]
    return [parsed for text in texts for parsed in _parsed(text)]


def hooks(rendered: list[dict], event: str | None = None) -> list[dict]:
    """Those that Helm makes for a moment: at one event, or at any."""
    events = [(found, found["metadata"].get("annotations", {}).get("helm.sh/hook")) for found in rendered]
    return [found for found, of in events if of is not None and event in (None, of)]


def notes(values=None) -> str:
    """What Helm prints after an installation."""
    return next(text for path, text in manifests(merged(values)).items() if path.endswith("NOTES.txt"))


def of_kind(objects: list[dict], kind: str) -> dict[str, dict]:
    """Those of one kind, by name."""
    return {found["metadata"]["name"]: found for found in objects if found["kind"] == kind}


def objects(release) -> list[dict]:
    """Of an installation, also of one that was only tried."""
    # There is no manifest where nothing was rendered.
    return _parsed(release.get("manifest", ""))


def _parsed(text: str) -> list[dict]:
    # By libyaml where there is one: PyYAML's own scanner takes longer than all that Helm does.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [parsed for parsed in yaml.load_all(text, loader) if parsed]
