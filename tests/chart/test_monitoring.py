"""Gardener's monitoring, with a real Prometheus and a real Alertmanager: its relabelling of the chart's Pods, and its
route for the chart's alerts. The data comes from gardener/gardener v1.150, by the paths that are named."""

import contextlib
import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
import yaml
from chart import SERVICES, of_kind, render
from incident import end
from programs import wait
from real_kubernetes import free_port
from test_rules import ALERTS

PREFIX = "__meta_kubernetes_pod_"
# What the Prometheus operator puts before the relabelling of any PodMonitor, with the name of the monitor.
OPERATOR = [
    {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
    {"source_labels": [f"{PREFIX}container_name"], "target_label": "container"},
    {"source_labels": [f"{PREFIX}name"], "target_label": "pod"},
    {"target_label": "job", "replacement": "garden/{monitor}"},
]
NAME = {"source_labels": [f"{PREFIX}annotation_prometheus_io_name"], "regex": "(.+)", "target_label": "job"}
LABELS = {"action": "labelmap", "regex": f"{PREFIX}label_(.+)"}


def address(v4: str, v6: str) -> list[dict]:
    """The IP of a Pod and the port of its annotation."""
    ip, port = f"{PREFIX}ip", f"{PREFIX}annotation_prometheus_io_port"
    return [
        {"source_labels": [ip], "regex": v6, "replacement": "[$1]", "target_label": "__tmp_ip"},
        {"source_labels": [ip], "regex": v4, "replacement": "$1", "target_label": "__tmp_ip"},
        {
            "source_labels": ["__tmp_ip", port],
            "regex": "(.+);(.+)",
            "replacement": "$1:$2",
            "target_label": "__address__",
        },
    ]


def keep(regex: str, *annotations: str, namespace=False) -> dict:
    labels = ["__meta_kubernetes_namespace"] if namespace else []
    labels += [f"{PREFIX}annotation_prometheus_io_{name}" for name in annotations]
    return {"source_labels": labels, "regex": regex, "action": "keep"}


SCHEME = {
    "source_labels": [f"{PREFIX}annotation_prometheus_io_scheme"],
    "regex": "(https?)",
    "target_label": "__scheme__",
}
# pkg/component/observability/monitoring/prometheus/seed/podmonitors.go: for Pods in garden, and for those of
# extensions.
MONITORS = {
    "garden": {
        "scheme": "https",
        "tls_config": {"insecure_skip_verify": True},
        "relabel_configs": [
            keep("true;(.+)", "scrape", "port"),
            NAME,
            SCHEME,
            *address("([^:]+)", "(.+:.+:.+)"),
            LABELS,
        ],
    },
    "extensions": {
        "relabel_configs": [
            keep("extension-(.+);true;(.+)", "scrape", "port", namespace=True),
            NAME,
            *address("([^:]+)", "(.+:.+)"),
            LABELS,
        ]
    },
}


def discovered(deployment: dict, namespace: str, ip: str, pod: str) -> list[dict]:
    """What Kubernetes' service discovery gives for a Pod of a Deployment: a target for each port."""
    template = deployment["spec"]["template"]
    (container,) = template["spec"]["containers"]
    labels = {
        "__meta_kubernetes_namespace": namespace,
        f"{PREFIX}name": pod,
        f"{PREFIX}ip": ip,
        f"{PREFIX}container_name": container["name"],
    }
    for kind in "label", "annotation":
        for key, value in template["metadata"][f"{kind}s"].items():
            labels[f"{PREFIX}{kind}_" + re.sub(r"[^A-Za-z0-9_]", "_", key)] = value
    return [{"targets": [f"{ip}:{port['containerPort']}"], "labels": labels} for port in container["ports"]]


@pytest.mark.parametrize(("monitor", "namespace"), [("garden", "garden"), ("extensions", "extension-watchdog-x7k2p")])
def test_the_seed_prometheus_finds_every_pod_once_and_up(seed, install, tmp_path, monitor, namespace):
    rendered = of_kind(render(namespace=namespace), "Deployment")
    start = install()
    with contextlib.ExitStack() as stack:
        pods = []
        for number, service in enumerate(SERVICES, 1):
            program = stack.enter_context(start(service, ip=f"127.0.1.{number}"))
            program.wait_until_readyz_says("ready\n")
            pods += discovered(rendered[f"watchdog-{service}"], namespace, f"127.0.1.{number}", f"{service}-0")
        # Without the annotation Gardener speaks TLS to a port that does not: what this test is there to notice.
        blind = rendered["watchdog-weeder"]
        del blind["spec"]["template"]["metadata"]["annotations"]["prometheus.io/scheme"]
        pods += discovered(blind, namespace, "127.0.1.3", "without-scheme")
        ask = stack.enter_context(prometheus(tmp_path, monitor, pods))
        wait(lambda: all(target["health"] != "unknown" for target in ask("targets")["activeTargets"]))
        targets = {target["labels"]["pod"]: target for target in ask("targets")["activeTargets"]}
        assert len(targets) == len(ask("targets")["activeTargets"]) == len(SERVICES) + 1
        assert (targets.pop("without-scheme")["health"] == "down") == (monitor == "garden")
        for service in SERVICES:
            target = targets[f"{service}-0"]
            assert target["health"] == "up", target["lastError"]
            assert target["labels"]["job"] == f"watchdog-{service}"
            assert target["labels"]["app_kubernetes_io_component"] == service
        ready = ask("query", "watchdog_ready{pod!='without-scheme'}")["result"]
        assert {series["metric"]["job"] for series in ready} == {f"watchdog-{service}" for service in SERVICES}


@contextlib.contextmanager
def prometheus(folder: Path, monitor: str, pods: list[dict]):
    """One that scrapes as a PodMonitor of Gardener says; gives what asks its API."""
    (folder / "pods.json").write_text(json.dumps(pods))
    scrape = dict(MONITORS[monitor])
    before = [
        {key: str(value).format(monitor=monitor) if key == "replacement" else value for key, value in step.items()}
        for step in OPERATOR
    ]
    scrape |= {"job_name": "seed", "relabel_configs": [*before, *scrape["relabel_configs"]]}
    scrape["file_sd_configs"] = [{"files": [str(folder / "pods.json")]}]
    config = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": [scrape]}
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    port = free_port()
    # It comes in the same package as promtool.
    command = [
        Path(shutil.which("promtool")).resolve().parent / "prometheus",
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]

    def ask(what: str, query=""):
        url = f"http://127.0.0.1:{port}/api/v1/{what}?{urllib.parse.urlencode({'query': query})}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.loads(answer.read())["data"]

    with running(folder / "prometheus.log", *command):
        wait(lambda: answers(lambda: ask("targets")["activeTargets"]))
        yield ask


# pkg/component/observability/monitoring/alertmanager/config.go, of a seed: routes, and what inhibits what.
RECEIVER = "email-kubernetes-ops"


def inhibit(source: str, target: str, *equal: str) -> dict:
    return {"source_matchers": [source], "target_matchers": [target], "equal": [*equal, "cluster"]}


ALERTMANAGER = {
    "route": {
        "group_by": ["service"],
        "group_wait": "5m",
        "receiver": "dev-null",
        "routes": [{"matchers": ['visibility=~"all|operator"'], "receiver": RECEIVER}],
    },
    "inhibit_rules": [
        inhibit('severity="critical"', 'severity="warning"', "alertname", "service"),
        inhibit('service="vpn"', 'type=~"shoot"', "type"),
        inhibit('severity="blocker"', 'severity=~"^(critical|warning)$"'),
        inhibit('service="kube-apiserver"', 'service=~"nodes"'),
        inhibit('service="kube-apiserver"', 'severity=~"info"'),
    ],
    "receivers": [{"name": "dev-null"}, {"name": RECEIVER}],
}
SEVERITIES = {"blocker", "critical", "warning", "info"}


def rendered_alerts(values=None) -> dict[str, dict]:
    """Labels of the alerts in the PrometheusRule."""
    (rule,) = of_kind(render({"monitoring": {"rules": {"enabled": True}}} | (values or {})), "PrometheusRule").values()
    return {alert["alert"]: alert["labels"] for group in rule["spec"]["groups"] for alert in group["rules"]}


def test_every_alert_reaches_operators(tmp_path):
    alerts = rendered_alerts()
    assert set(alerts) == set(ALERTS)
    # One that is not labelled goes nowhere: what this test is there to notice.
    sent = alerts | {"Unlabelled": {"severity": "critical"}}
    file = tmp_path / "alertmanager.yaml"
    file.write_text(yaml.safe_dump(ALERTMANAGER))
    port = free_port()
    api = f"http://127.0.0.1:{port}/api/v2/alerts"
    program = Path(shutil.which("prometheus-alertmanager"))
    command = [
        # Debian's looks for its templates where the package would be installed, and here it is only unpacked.
        *("unshare", "--map-root-user", "--mount", "sh", "-c", 'mount --bind "$0" /usr/share && exec "$@"'),
        program.parents[1] / "share",
        program,
        f"--config.file={file}",
        f"--storage.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
    ]
    with running(tmp_path / "alertmanager.log", *command):
        wait(lambda: answers(lambda: fetch(api) == []))
        body = [{"labels": labels | {"alertname": name, "cluster": "aws-eu1"}} for name, labels in sent.items()]
        fetch(api, body)
        wait(lambda: len(fetch(api)) == len(sent))
        found = {alert["labels"]["alertname"]: alert for alert in fetch(api)}
    receivers = {name: [receiver["name"] for receiver in alert["receivers"]] for name, alert in found.items()}
    assert receivers.pop("Unlabelled") == ["dev-null"]
    assert set(map(tuple, receivers.values())) == {(RECEIVER,)}
    assert [name for name, alert in found.items() if alert["status"]["inhibitedBy"]] == []


@pytest.mark.parametrize("name", ALERTS)
def test_alerts_have_the_labels_of_gardener(name):
    labels = rendered_alerts()[name]
    assert labels["severity"] in SEVERITIES - {"blocker"}, "a blocker silences every other alert of the seed"
    assert (labels["type"], labels["visibility"]) == ("seed", "operator")
    # Alertmanager groups by it; some take it from the series.
    by_series = re.search(r"by \(service\)", ALERTS[name]["expr"]) or "watchdog_membership" in ALERTS[name]["expr"]
    assert "service" in labels or by_series


def test_labels_of_alerts_can_be_added():
    alerts = rendered_alerts(
        {"monitoring": {"rules": {"enabled": True, "alertLabels": {"visibility": "all", "team": "a"}}}}
    )
    assert {(labels["visibility"], labels["team"], labels["type"]) for labels in alerts.values()} == {
        ("all", "a", "seed")
    }


def test_monitors_and_rules_reach_the_prometheus_that_has_an_alertmanager():
    """pkg/component/observability/monitoring/prometheus/prometheus.go: chosen by this label, in all namespaces."""
    on = {kind: {"enabled": True} for kind in ("podMonitor", "serviceMonitor", "rules")}
    for kind in "PodMonitor", "ServiceMonitor", "PrometheusRule":
        (found,) = of_kind(render({"monitoring": on}), kind).values()
        assert found["metadata"]["labels"]["prometheus"] == "aggregate"
        (found,) = of_kind(render({"monitoring": on, "seed": {"gardener": False}}), kind).values()
        assert "prometheus" not in found["metadata"]["labels"]
    (other,) = of_kind(
        render({"monitoring": {"podMonitor": {"enabled": True, "labels": {"prometheus": "seed"}}}}), "PodMonitor"
    ).values()
    assert other["metadata"]["labels"]["prometheus"] == "seed"


@contextlib.contextmanager
def running(log: Path, *command):
    """A program, for as long as the context lasts."""
    with open(log, "wb") as output:
        process = subprocess.Popen([str(part) for part in command], stdout=output, stderr=output)
    try:
        yield process
    finally:
        end(process)


def answers(ask) -> bool:
    """Whether somebody listens by now, and has something to say."""
    try:
        return bool(ask())
    except OSError:
        return False


def fetch(url: str, body=None):
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(
        urllib.request.Request(url, data, {"Content-Type": "application/json"}), timeout=10
    ) as answer:
        text = answer.read()
        return json.loads(text) if text else None
